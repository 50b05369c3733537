"""Forward and backward sweeps over sequences: piece by piece over long ones, so that most results stay in cache.

The forward sweep visits all pieces of a tile and keeps two arrays, the log likelihoods ``(n, K)`` and the filtered
probabilities ``(n, W)``; the backward sweep visits the pieces, last first, and yields each piece's part of all sums.
One row passes from a piece to the next.  W numbers are K states and zeros, see :mod:`bnp_dask.kernels.numeric.simd`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnp_dask.kernels.hmm.steps import NOTHING, SAFE, back, exp_all, forth, times, turn, which
from bnp_dask.kernels.numeric.simd import aligned, aligned_zeros, fill, fused, load, padded, store
from bnp_dask.kernels.options import njit


class Rows(NamedTuple):
    """Whether rows are the first and the last of their sequence, ``(n,)`` bool, and their weights, ``(n,)``."""

    begins: np.ndarray
    ends: np.ndarray
    weights: np.ndarray

    @staticmethod
    def of(offsets: np.ndarray, weights: np.ndarray) -> Rows:
        """Rows of sequences at ``offsets (G + 1,)``, each counted ``weights (G,)`` times."""
        begins, ends = np.zeros((2, offsets[-1]), np.bool_)
        some = np.diff(offsets) > 0
        begins[offsets[:-1][some]] = True
        ends[offsets[1:][some] - 1] = True
        return Rows(begins, ends, np.repeat(weights, np.diff(offsets)))

    def part(self, first: int, last: int) -> Rows:
        """The rows ``first:last``."""
        return Rows(self.begins[first:last], self.ends[first:last], self.weights[first:last])


class Kept(NamedTuple):
    """Rows of a piece as the forward sweep keeps them.

    ``log_lik (m, K)``: the largest of a row is zero.  ``filtered (m, W)``.
    """

    log_lik: np.ndarray
    filtered: np.ndarray

    @staticmethod
    def room(n: int, n_states: int) -> Kept:
        """Room for ``n`` rows of ``n_states`` states."""
        return Kept(np.empty((n, n_states)), aligned(n, padded(n_states)))

    def part(self, first: int, last: int) -> Kept:
        """The rows ``first:last``."""
        return Kept(self.log_lik[first:last], self.filtered[first:last])


class Space(NamedTuple):
    """Scratch for a step: ``prior (W,)``, ``held (W,)`` and ``places (W + 1,)``."""

    prior: np.ndarray
    held: np.ndarray
    places: np.ndarray

    @staticmethod
    def of(n_states: int) -> Space:
        """Scratch for ``n_states`` states."""
        width = padded(n_states)
        return Space(aligned_zeros(width), aligned_zeros(width), np.empty(width + 1, np.int64))


@njit(nogil=True, cache=True, error_model="numpy")
def likelihoods(log_lik, space, lik):
    """``exp(log_lik (m, K))`` into ``lik (m, W)``."""
    m, n_states = log_lik.shape
    flat = lik.ravel()
    exp_all(log_lik.ravel(), flat)
    if n_states == lik.shape[1]:
        return
    for t in range(m - 1, -1, -1):  # rows move by their padding, the last first
        row, first = lik[t], t * n_states
        for k in range(n_states):
            space.held[k] = flat[first + k]
        for k in range(n_states):
            row[k] = space.held[k]
        for k in range(n_states, len(row)):
            row[k] = 0.0


@njit(nogil=True, cache=True, error_model="numpy")
def sweep_forth(rows, moves, lik, before, filtered, space):
    """Filter one piece; the sum of its steps' log normalisers times weights, nats, or NaN when scaling fails.

    The largest number of each row of ``lik (m, W)`` is one, ``before (W,)`` is the filtered row before the piece, and
    ``filtered (m, W)`` is written.
    """
    norm, product, weight = 0.0, 1.0, 1.0
    for t in range(len(lik)):
        if rows.begins[t]:
            norm += weight * math.log(product)
            product = 1.0
            total = forth(moves.start, lik[t], filtered[t])
        else:
            last = before if t == 0 else filtered[t - 1]
            times(last, moves.trans, space.prior)
            total = forth(space.prior, lik[t], filtered[t])
        if not total > SAFE:
            return np.nan
        weight = rows.weights[t]
        # a log per few steps instead of one per step
        product *= total
        if product < 1e-150 or product > 1e150:
            norm += weight * math.log(product)
            product = 1.0
    return norm + weight * math.log(product)


@njit(nogil=True, cache=True, error_model="numpy")
def sweep_back(rows, moves, lik, filtered, grow, resp, space):
    """Responsibilities of one piece, without weights, into ``resp (m, K)``.

    Returns the number of non-zeros of ``grow``; -1 on failure.

    The last row of ``grow (m + 1, W)`` belongs to the row after the piece: the first row that the call for the next
    piece left.  The others may be the memory of ``lik (m, W)``.  Afterwards ``filtered[t, k] trans[k, l] grow[t + 1,
    l]`` is the pair posterior of the rows t and t + 1, times its weight; zero if t is the last of its sequence.

    The sum of ``filtered[t] * (flipped @ grow[t + 1])`` is the normaliser of step t + 1, except for numbers below
    :data:`~bnp_dask.kernels.hmm.steps.NOTHING` and ``TINY``.  So if the forward sweep did not fail, this one does not.
    """
    n_states, found = resp.shape[1], 0
    whole = n_states - n_states % 8
    for t in range(len(resp) - 1, -1, -1):
        alpha, later = filtered[t], grow[t + 1]
        if rows.ends[t]:
            for k in range(len(later)):
                later[k] = 0.0
            turn(lik[t], alpha, grow[t], space)
        else:
            norm, count = back(moves.flipped, lik[t], alpha, rows.weights[t], later, grow[t], space)
            if not norm > NOTHING:
                return -1
            found += count
        row = resp[t]
        for k in range(0, whole, 8):
            store(row, k, load(space.held, k))
        for k in range(whole, n_states):
            row[k] = space.held[k]
    return found


@njit(nogil=True, cache=True, error_model="numpy")
def add_pairs(filtered, grow, index, out):
    """Add ``grow[t + 1, l] filtered[t, k]`` of all rows t of a piece to ``out (K, W)``, at ``[l, k]``.

    Few states have a non-zero ``grow`` at a step, and only these are visited; ``index (W + 1,)`` is scratch.
    """
    for t in range(len(filtered)):
        later, alpha = grow[t + 1], filtered[t]
        for place in index[: which(later, index)]:
            x, row = fill(later[place]), out[place]
            for k in range(0, len(alpha), 8):
                store(row, k, fused(x, load(alpha, k), load(row, k)))
