"""Forward-backward of long sequences piece by piece, so that most of what it makes stays in the processor's cache.

One sweep goes forth over all pieces of a tile and keeps two ``(n, K)`` arrays, the log likelihoods and the filtered
probabilities; one goes back over the pieces, last first, and hands out what each piece adds to all sums.  What crosses
from one piece to the next is one row.  The arithmetic of a step is that of :mod:`bnp_dask.kernels.chains`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from bnp_dask.kernels.chains import NOTHING, SAFE, back, exp_all, exponentials, forth, times


class Rows(NamedTuple):
    """Which rows are the first and the last of their sequence, ``(n,)`` bool, and how often each counts, ``(n,)``."""

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


class Transitions(NamedTuple):
    """Potentials of the start ``(K,)`` and of steps from state to state ``(K, K)``, and these flipped."""

    start: np.ndarray
    trans: np.ndarray
    flipped: np.ndarray

    @staticmethod
    def of(log_start: np.ndarray, log_trans: np.ndarray) -> Transitions:
        """From their logs, the largest about zero."""
        trans = np.ascontiguousarray(exponentials(log_trans))
        return Transitions(exponentials(log_start), trans, np.ascontiguousarray(trans.T))


class Kept(NamedTuple):
    """What the sweep forth keeps of the rows of a piece, both ``(m, K)``; ``log_lik``: the largest of a row is zero."""

    log_lik: np.ndarray
    filtered: np.ndarray

    @staticmethod
    def room(n: int, width: int) -> Kept:
        """Room for ``n`` rows of ``width`` states."""
        return Kept(np.empty((n, width)), np.empty((n, width)))

    def part(self, first: int, last: int) -> Kept:
        """The rows ``first:last``."""
        return Kept(self.log_lik[first:last], self.filtered[first:last])


class Space(NamedTuple):
    """Scratch for a piece of m rows, used again by the next.

    ``lik (m, K)``; ``row (K,)``; ``grow (m + 1, K)``: its last row is that of the row after the piece.
    """

    lik: np.ndarray
    row: np.ndarray
    grow: np.ndarray

    @staticmethod
    def of(m: int, width: int) -> Space:
        """For pieces of at most ``m`` rows."""
        return Space(np.empty((m, width)), np.empty(width), np.empty((m + 1, width)))


@njit(nogil=True, cache=True, error_model="numpy")
def sweep_forth(rows, moves, log_lik, before, kept, space):
    """Filter one piece; the sum of its steps' log normalisers times weights, nats, or NaN when scaling fails.

    ``log_lik (m, K)`` has zero as the largest of each row; ``before (K,)`` is the filtered row before the piece.
    """
    norm, product, weight = 0.0, 1.0, 1.0
    kept.log_lik[:] = log_lik
    lik = space.lik[: len(log_lik)]
    exp_all(log_lik.ravel(), lik.ravel())
    for t in range(len(log_lik)):
        if rows.begins[t]:
            norm += weight * math.log(product)
            product = 1.0
            total = forth(moves.start, lik[t], kept.filtered[t])
        else:
            if t == 0:
                times(before, moves.trans, space.row)
            else:
                times(kept.filtered[t - 1], moves.trans, space.row)
            total = forth(space.row, lik[t], kept.filtered[t])
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
def sweep_back(rows, moves, kept, space, resp):
    """Responsibilities of one piece, without weights, into ``resp (m, K)``; whether that could be done.

    The last row of ``space.grow`` is that of the row after the piece, as this left its first row there.  Afterwards
    ``kept.filtered[t, k] trans[k, l] space.grow[t + 1, l]`` is the pair posterior of the rows t and t + 1, times its
    weight; zero where t is the last of its sequence.

    The sum of ``filtered[t] * (flipped @ grow[t + 1])`` is the normaliser of step t + 1 but for what
    :data:`~bnp_dask.kernels.chains.NOTHING` leaves out, so where the sweep forth did not fail this one does not.
    """
    m = len(resp)
    lik, grow = space.lik[:m], space.grow[: m + 1]
    exp_all(kept.log_lik.ravel(), lik.ravel())
    for t in range(m - 1, -1, -1):
        alpha = kept.filtered[t]
        if rows.ends[t]:
            grow[t + 1] = 0.0
            grow[t] = lik[t]
            resp[t] = alpha
        elif (
            not back(moves.flipped, lik[t], alpha, rows.weights[t], grow[t + 1], grow[t], resp[t], space.row) > NOTHING
        ):
            return False
    return True
