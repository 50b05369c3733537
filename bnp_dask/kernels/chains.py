"""Forward-backward for hidden Markov chains: which state each step of a sequence is in, and how often states follow.

Probabilities are scaled, not logarithms: one vector-matrix product per step and direction, and no exponential but
those of the likelihoods.  Sums over pairs of steps are one matrix product of what both directions leave behind,
because the pair posterior is ``s_t[k, l] = alpha_t[k] A[k, l] grow_{t+1}[l]``; and the entropy needs no pair at all:
it is the log normaliser minus expectations of the terms that the posterior was made from.  A sequence whose
likelihoods double precision cannot scale (a step that every state reached so far calls impossible) is done again with
logarithms.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from bnp_dask.kernels.special import LN2_HIGH, LN2_LOW, LOG2_E, ROUND

NEVER = -1e200
"""Stands for log 0, so that zero times it is zero."""

LOWEST = -690.0
"""Logs below this have exponential zero: it is far from denormal numbers."""

NOTHING = 1e-200
"""Filtered probabilities below this are zero."""

EXP_BLOCK = 1024

SAFE = 1e-100
"""Least normaliser of a step for which scaling is trusted; what :data:`NOTHING` leaves out is nothing beside it."""


class Chains(NamedTuple):
    """Posterior of the states of all sequences of a tile.

    ``filtered (n, K)`` (alpha), ``grow (n, K)`` and ``trans (K, K)`` (A) give pair posteriors: of the steps t and
    t + 1 of a sequence ``filtered[t, k] * trans[k, l] * grow[t + 1, l]``, times the sequence's weight; ``resp (n, K)``
    are those of single steps, without weights.  ``grow`` of a first step is zero.  ``scaled (G,)`` says which
    sequences these are; of the others, which were done with logarithms, ``filtered`` and ``grow`` are zero, and their
    pair sums are in ``extra (K, K)``.  ``log_norm (G,)`` is the log normaliser of each, nats.
    """

    resp: np.ndarray
    filtered: np.ndarray
    grow: np.ndarray
    trans: np.ndarray
    scaled: np.ndarray
    log_norm: np.ndarray
    extra: np.ndarray


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _exp_block(source, n, bits, out):
    """``exp`` of the first ``n`` numbers in vector code (see ``kernels/resp.py``); zero below :data:`LOWEST`."""
    power = bits.view(np.float64)
    for k in range(n):
        d = source[k]
        c = d if d > LOWEST else LOWEST
        z = (c * LOG2_E + ROUND) - ROUND
        bits[k] = np.int64(np.int32(z) + np.int32(1023)) << 52
        r = (c - z * LN2_HIGH) - z * LN2_LOW
        p = 1.0 / 6227020800.0
        p = p * r + 1.0 / 479001600.0
        p = p * r + 1.0 / 39916800.0
        p = p * r + 1.0 / 3628800.0
        p = p * r + 1.0 / 362880.0
        p = p * r + 1.0 / 40320.0
        p = p * r + 1.0 / 5040.0
        p = p * r + 1.0 / 720.0
        p = p * r + 1.0 / 120.0
        p = p * r + 1.0 / 24.0
        p = p * r + 1.0 / 6.0
        p = p * r + 0.5
        p = p * (r * r) + r
        out[k] = p + 1.0 if d > LOWEST else 0.0
    for k in range(n):
        out[k] *= power[k]


@njit(nogil=True, cache=True, error_model="numpy")
def exp_all(source, out):
    """The same of any number, through scratch that stays in cache."""
    bits = np.empty(EXP_BLOCK, np.int64)
    for start in range(0, len(source), EXP_BLOCK):
        n = min(EXP_BLOCK, len(source) - start)
        _exp_block(source[start:], n, bits, out[start:])


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def times(vector, matrix, out):
    """``vector @ matrix`` (K, K), eight rows at a time, so that the result stays in registers longer."""
    n, width = matrix.shape
    out[:] = 0.0
    whole = n - n % 8
    for i in range(0, whole, 8):
        a, b, c, d = vector[i], vector[i + 1], vector[i + 2], vector[i + 3]
        e, f, g, h = vector[i + 4], vector[i + 5], vector[i + 6], vector[i + 7]
        if a == 0.0 and b == 0.0 and c == 0.0 and d == 0.0 and e == 0.0 and f == 0.0 and g == 0.0 and h == 0.0:
            continue
        ra, rb, rc, rd = matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]
        re, rf, rg, rh = matrix[i + 4], matrix[i + 5], matrix[i + 6], matrix[i + 7]
        for k in range(width):
            low = (a * ra[k] + b * rb[k]) + (c * rc[k] + d * rd[k])
            high = (e * re[k] + f * rf[k]) + (g * rg[k] + h * rh[k])
            out[k] += low + high
    for i in range(whole, n):
        a = vector[i]
        if a != 0.0:
            row = matrix[i]
            for k in range(width):
                out[k] += a * row[k]


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _times_and_sum(source, factor, out):
    """``out = source * factor`` with what is below :data:`NOTHING` set to zero; its sum, in a fixed order."""
    n = len(out)
    whole = n - n % 4
    s0 = s1 = s2 = s3 = 0.0
    for k in range(n):
        x = source[k] * factor[k]
        out[k] = x if x > NOTHING else 0.0
    for k in range(0, whole, 4):
        s0 += out[k]
        s1 += out[k + 1]
        s2 += out[k + 2]
        s3 += out[k + 3]
    for k in range(whole, n):
        s0 += out[k]
    return (s0 + s1) + (s2 + s3)


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def forth(prior, lik, filtered):
    """One step forward: ``filtered`` from what the steps before make of it (``prior``); the step's normaliser.

    Below :data:`SAFE` the normaliser is not to be trusted, and ``filtered`` is not normalised.
    """
    total = _times_and_sum(prior, lik, filtered)
    if total > SAFE:
        share = 1.0 / total
        for k in range(len(filtered)):
            filtered[k] *= share
    return total


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def back(flipped, lik, filtered, weight, later, here, resp, space):
    """One step backward: ``here`` (not scaled yet) from ``later``, which is scaled, times ``weight``; the normaliser.

    Below :data:`NOTHING` the normaliser is not to be trusted, and nothing is scaled.
    """
    times(later, flipped, space)
    total = _times_and_sum(filtered, space, resp)
    if total > NOTHING:
        share = 1.0 / total
        counted = share * weight
        for k in range(len(resp)):
            resp[k] *= share
        for k in range(len(resp)):
            later[k] *= counted
        for k in range(len(resp)):
            beta = space[k] * share
            new = lik[k] * (beta if beta < 1.0 / NOTHING else 1.0 / NOTHING)
            here[k] = new if new > NOTHING else 0.0
    return total


@njit(nogil=True, cache=True, error_model="numpy")
def _scaled(start, trans, flipped, lik, weight, filtered, grow, resp, space):
    """One sequence; its log normaliser, or NaN when scaling fails.  ``lik`` and ``grow`` may be the same memory."""
    n, width = lik.shape
    log_norm = 0.0
    product = 1.0
    for t in range(n):
        if t == 0:
            total = forth(start, lik[0], filtered[0])
        else:
            times(filtered[t - 1], trans, space)
            total = forth(space, lik[t], filtered[t])
        if not total > SAFE:
            return np.nan
        # a log per few steps instead of one per step
        product *= total
        if product < 1e-150 or product > 1e150:
            log_norm += math.log(product)
            product = 1.0
    log_norm += math.log(product)
    resp[n - 1] = filtered[n - 1]
    last = grow[n - 1]
    for k in range(width):
        last[k] = lik[n - 1, k]
    for t in range(n - 2, -1, -1):
        if not back(flipped, lik[t], filtered[t], weight, grow[t + 1], grow[t], resp[t], space) > NOTHING:
            return np.nan
    grow[0] = 0.0
    return log_norm


@njit(nogil=True, cache=True, error_model="numpy")
def _shift_rows(values, top):
    n, width = values.shape
    for i in range(n):
        row = values[i]
        high = row[0]
        unknown = False
        for k in range(width):
            x = row[k]
            unknown |= x != x
            high = x if x > high else high
        top[i] = np.nan if unknown else high
        for k in range(width):
            x = row[k] - high
            row[k] = x if x > NEVER else NEVER


def shift_rows(values: np.ndarray) -> np.ndarray:
    """Take the largest of each row off it, in place in C-contiguous float64 ``(n, K)``, and give it, ``(n,)``.

    Nothing stays below :data:`NEVER`, which times zero is zero.  A row with NaN gives NaN.
    """
    top = np.empty(len(values))
    _shift_rows(values, top)
    return top


@njit(nogil=True, cache=True, error_model="numpy")
def _log_sum(values):
    top = values.max()
    if not top > NEVER:
        return top
    total = 0.0
    for value in values:
        total += math.exp(value - top)
    return top + math.log(total)


@njit(nogil=True, cache=True, error_model="numpy")
def _logarithmic(log_start, log_trans, log_lik, filtered, grow, resp, pairs):
    """The same with logarithms: logs of alpha in ``filtered``, of beta in ``grow``; pair sums into ``pairs``."""
    n, width = log_lik.shape
    terms = np.empty(width)
    for k in range(width):
        filtered[0, k] = log_start[k] + log_lik[0, k]
        grow[n - 1, k] = 0.0
    for t in range(1, n):
        for j in range(width):
            for k in range(width):
                terms[k] = filtered[t - 1, k] + log_trans[k, j]
            filtered[t, j] = max(_log_sum(terms) + log_lik[t, j], NEVER)
    for t in range(n - 2, -1, -1):
        for k in range(width):
            for j in range(width):
                terms[j] = log_trans[k, j] + log_lik[t + 1, j] + grow[t + 1, j]
            grow[t, k] = max(_log_sum(terms), NEVER)
    log_norm = _log_sum(filtered[n - 1])
    for t in range(n):
        for k in range(width):
            resp[t, k] = math.exp(filtered[t, k] + grow[t, k] - log_norm)
            if t + 1 < n:
                for j in range(width):
                    rest = log_trans[k, j] + log_lik[t + 1, j] + grow[t + 1, j] - log_norm
                    pairs[k, j] += math.exp(filtered[t, k] + rest)
    return log_norm


@njit(nogil=True, cache=True, error_model="numpy")
def _all_sequences(offsets, log_start, log_trans, start, flipped, log_lik, weights, out):
    width = log_lik.shape[1]
    space = np.empty(width)
    for g in range(len(offsets) - 1):
        first, last = offsets[g], offsets[g + 1]
        if first == last:
            out.log_norm[g] = 0.0
            continue
        alpha, lik, resp = out.filtered[first:last], out.grow[first:last], out.resp[first:last]
        exp_all(log_lik[first:last].ravel(), lik.ravel())
        norm = _scaled(start, out.trans, flipped, lik, weights[g], alpha, lik, resp, space)
        if norm != norm:
            out.scaled[g] = False
            own = np.zeros((width, width))
            norm = _logarithmic(log_start, log_trans, log_lik[first:last], alpha, lik, resp, own)
            alpha[:] = 0.0
            lik[:] = 0.0
            for k in range(width):
                for j in range(width):
                    out.extra[k, j] += weights[g] * own[k, j]
        out.log_norm[g] = norm


def exponentials(logs: np.ndarray) -> np.ndarray:
    """``exp``, zero below :data:`LOWEST`."""
    return np.where(logs > LOWEST, np.exp(np.maximum(logs, LOWEST)), 0.0)


def forward_backward(
    log_start: np.ndarray, log_trans: np.ndarray, log_lik: np.ndarray, offsets: np.ndarray, weights: np.ndarray
) -> Chains:
    """Posterior of the states of independent sequences.

    Parameters
    ----------
    log_start, log_trans
        Log potentials of the first state ``(K,)`` and of each step from state to state ``(K, K)``, nats; they need not
        be normalised.  Not above zero by much: the largest should be about zero.
    log_lik
        Of each step, ``(n, K)`` nats, the largest of a row zero, none below :data:`NEVER`.
    offsets
        Steps of each sequence, ``(G + 1,)`` int64.
    weights
        How often each sequence counts, ``(G,)``.
    """
    n, width = log_lik.shape
    groups = len(offsets) - 1
    trans = np.ascontiguousarray(exponentials(log_trans))
    out = Chains(
        np.empty((n, width)), np.empty((n, width)), np.empty((n, width)), trans, np.ones(groups, np.bool_),
        np.zeros(groups), np.zeros((width, width)),
    )  # fmt: skip
    flipped = np.ascontiguousarray(trans.T)
    start = exponentials(log_start)
    log_lik = np.ascontiguousarray(log_lik, np.float64)
    _all_sequences(offsets, log_start, log_trans, start, flipped, log_lik, weights, out)
    return out


def pair_sums(chains: Chains) -> np.ndarray:
    """Expected steps from state k to state l, times weights, ``(K, K)``."""
    if len(chains.resp) < 2:
        return chains.extra.copy()
    return chains.trans * (chains.filtered[:-1].T @ chains.grow[1:]) + chains.extra


# -- the most likely path -------------------------------------------------------------------------------------
@njit(nogil=True, cache=True, error_model="numpy")
def _viterbi(offsets, log_start, log_trans, log_lik, path):
    width = log_lik.shape[1]
    best, new = np.empty(width), np.empty(width)
    for g in range(len(offsets) - 1):
        first, last = offsets[g], offsets[g + 1]
        if first == last:
            continue
        came = np.empty((last - first, width), np.int32)
        for k in range(width):
            best[k] = log_start[k] + log_lik[first, k]
        for t in range(first + 1, last):
            source = came[t - first]
            for j in range(width):
                new[j] = best[0] + log_trans[0, j]
                source[j] = 0
            for k in range(1, width):
                row, value = log_trans[k], best[k]
                for j in range(width):
                    x = value + row[j]
                    source[j] = k if x > new[j] else source[j]
                    new[j] = x if x > new[j] else new[j]
            top = new.max()  # keeps sums small over long sequences
            for j in range(width):
                best[j] = new[j] - top + log_lik[t, j]
        path[last - 1] = np.argmax(best)
        for t in range(last - 1, first, -1):
            path[t - 1] = came[t - first, path[t]]


def viterbi(log_start: np.ndarray, log_trans: np.ndarray, log_lik: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The most likely states of each sequence together, ``(n,)`` int64; of equals the first."""
    path = np.zeros(len(log_lik), np.int64)
    _viterbi(offsets, log_start, np.ascontiguousarray(log_trans), np.ascontiguousarray(log_lik, np.float64), path)
    return path
