"""One step of a sweep over a sequence, forward and backward; see :mod:`~bnp_dask.kernels.hmm.forward_backward`.

Rows of states are ``(W,)``: K states and zeros up to a multiple of eight (:mod:`bnp_dask.kernels.numeric.simd`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnp_dask.kernels.mixture.softmax import TINY, exp_block
from bnp_dask.kernels.numeric.arithmetic import exp
from bnp_dask.kernels.numeric.simd import aligned_zeros, fill, fused, load, padded, store, total, where_above
from bnp_dask.kernels.options import njit

LOWEST = -690.0
"""Least log: smaller log likelihoods are raised to it, and smaller log potentials become log 0.  Its exponential is far
from denormal numbers, and below the filtered probabilities that :data:`NOTHING` keeps."""

NOTHING = 1e-200
"""Threshold below which filtered probabilities are set to zero."""

EXP_BLOCK = 1024

SAFE = 1e-100
"""Least normaliser of a step for which scaling is trusted; probabilities below :data:`NOTHING` are negligible beside
it."""


class Transitions(NamedTuple):
    """Potentials of the start ``(W,)`` and of steps from state to state ``(K, W)``, and these flipped."""

    start: np.ndarray
    trans: np.ndarray
    flipped: np.ndarray

    @staticmethod
    def of(log_start: np.ndarray, log_trans: np.ndarray) -> Transitions:
        """From their logs ``(K,)`` and ``(K, K)``, the largest about zero."""
        n = len(log_start)
        width = padded(n)
        out = Transitions(aligned_zeros(width), aligned_zeros(n, width), aligned_zeros(n, width))
        out.start[:n] = exponentials(log_start)
        out.trans[:, :n] = exponentials(log_trans)
        out.flipped[:, :n] = out.trans[:, :n].T
        return out


def exponentials(logs: np.ndarray) -> np.ndarray:
    """``exp``, zero below :data:`LOWEST`."""
    return np.where(logs > LOWEST, exp(np.maximum(logs, LOWEST)), 0.0)


@njit(nogil=True, cache=True, error_model="numpy")
def exp_all(source, out):
    """``exp`` of any number of logs, through scratch that stays in cache; logs below :data:`LOWEST` count as it."""
    power = np.empty(EXP_BLOCK)
    for start in range(0, len(source), EXP_BLOCK):
        stop = min(start + EXP_BLOCK, len(source))
        exp_block(source[start:stop], LOWEST, power[: stop - start], out[start:stop])


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def which(row, index):
    """Write positions of the non-zeros of a row into ``index (W + 1,)``; return their number."""
    count = 0
    for k in range(len(row)):
        index[count] = k
        count += row[k] != 0.0
    return count


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def times(vector, matrix, out):
    """``vector (W,) @ matrix (K, W)``; the sums of up to four groups of columns stay in registers."""
    done = 0
    while done < len(out):
        left = len(out) - done
        a = b = c = d = fill(0.0)
        if left >= 32:
            for k in range(len(matrix)):
                x, row = fill(vector[k]), matrix[k]
                a = fused(x, load(row, done), a)
                b = fused(x, load(row, done + 8), b)
                c = fused(x, load(row, done + 16), c)
                d = fused(x, load(row, done + 24), d)
            store(out, done + 16, c)
            store(out, done + 24, d)
        elif left >= 16:
            for k in range(len(matrix)):
                x, row = fill(vector[k]), matrix[k]
                a = fused(x, load(row, done), a)
                b = fused(x, load(row, done + 8), b)
        else:
            for k in range(len(matrix)):
                a = fused(fill(vector[k]), load(matrix[k], done), a)
        store(out, done, a)
        if left >= 16:
            store(out, done + 8, b)
        done += 32 if left >= 32 else 16 if left >= 16 else 8


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def times_some(vector, index, matrix, out):
    """Product of a vector and the rows ``index`` of a matrix, four rows at a time."""
    for k in range(0, len(out), 8):
        store(out, k, fill(0.0))
    whole = len(index) - len(index) % 4
    for i in range(0, whole, 4):
        p, q, r, s = index[i], index[i + 1], index[i + 2], index[i + 3]
        a, b, c, d = fill(vector[p]), fill(vector[q]), fill(vector[r]), fill(vector[s])
        row_a, row_b, row_c, row_d = matrix[p], matrix[q], matrix[r], matrix[s]
        for k in range(0, len(out), 8):
            two = fused(b, load(row_b, k), fused(a, load(row_a, k), load(out, k)))
            store(out, k, fused(d, load(row_d, k), fused(c, load(row_c, k), two)))
    for i in range(whole, len(index)):
        a, row_a = fill(vector[index[i]]), matrix[index[i]]
        for k in range(0, len(out), 8):
            store(out, k, fused(a, load(row_a, k), load(out, k)))


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def forth(prior, lik, filtered):
    """One step forward: ``filtered`` from its prediction by the steps before (``prior``); the step's normaliser.

    Below :data:`SAFE` the normaliser is unreliable, and ``filtered`` is not normalised.
    """
    held = fill(0.0)
    for k in range(0, len(filtered), 8):
        x = load(prior, k) * load(lik, k)
        x = where_above(x, NOTHING, x)
        store(filtered, k, x)
        held = held + x
    norm = total(held)
    if norm > SAFE:
        share = fill(1.0 / norm)
        for k in range(0, len(filtered), 8):
            store(filtered, k, load(filtered, k) * share)
    return norm


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def back(flipped, lik, filtered, weight, later, here, space):
    """One step backward: ``here`` (not scaled yet) from ``later``, which is scaled, times ``weight``.

    Returns the normaliser, and the number of states with non-zero ``later``.

    ``space.held`` receives the step's responsibilities.
    Responsibilities up to 2**-53 become zero, as everywhere, and with them the states' part of the message to earlier
    steps: contributions of all states sum to one, so a sum loses no more than that.
    Below :data:`NOTHING` the normaliser is unreliable, and nothing is scaled.
    """
    beta, resp = space.prior, space.held
    count = which(later, space.places)
    if 2 * count > len(flipped):
        times(later, flipped, beta)
    else:
        times_some(later, space.places[:count], flipped, beta)
    held = fill(0.0)
    for k in range(0, len(resp), 8):
        x = load(filtered, k) * load(beta, k)
        store(resp, k, x)
        held = held + x
    norm = total(held)
    if norm > NOTHING:
        share, counted = fill(1.0 / norm), fill(weight / norm)
        for k in range(0, len(resp), 8):
            x = load(resp, k) * share
            store(resp, k, where_above(x, TINY, x))
            store(later, k, load(later, k) * counted)
            store(here, k, where_above(x, TINY, load(lik, k) * (load(beta, k) * share)))
    return norm, count


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def turn(lik, filtered, here, space):
    """Last step of a sequence, with the results that :func:`back` gives for other steps."""
    for k in range(0, len(here), 8):
        x = load(filtered, k)
        store(space.held, k, where_above(x, TINY, x))
        store(here, k, where_above(x, TINY, load(lik, k)))
