"""Forward-backward for hidden Markov chains: posteriors of the state at each step, and expected transitions.

Probabilities are scaled, not logarithms: one vector-matrix product per step and direction, and no exponentials except
for the likelihoods.  Sums over pairs of steps come from the stored results of both directions, because the pair
posterior is ``s_t[k, l] = alpha_t[k] A[k, l] grow_{t+1}[l]``.  The entropy needs no pairs: it is the log normaliser
minus expectations of the terms of the posterior.  States with no probability at a step contribute nothing to its
backward message (:func:`bnp_dask.kernels.hmm.steps.back`).  A sequence whose likelihoods double precision cannot scale
(at some step, every state reached so far makes the data impossible) is done again with logarithms.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnp_dask.kernels.hmm.steps import Transitions
from bnp_dask.kernels.hmm.sweeps import Rows, Space, add_pairs, likelihoods, sweep_back, sweep_forth
from bnp_dask.kernels.numeric.arithmetic import matmul
from bnp_dask.kernels.numeric.simd import aligned, aligned_zeros, padded
from bnp_dask.kernels.options import njit

FEW = 0.35
"""Largest share of active states per step for which sums over pairs visit only these; above, a matrix product is
faster."""

NEVER = -1e200
"""Stands for log 0, so that zero times it is zero."""


class Chains(NamedTuple):
    """Posterior of the states of all sequences of a tile.

    ``filtered (n, W)`` (alpha), ``grow (n, W)`` and ``trans (K, K)`` (A) give pair posteriors: of the steps t and
    t + 1 of a sequence ``filtered[t, k] * trans[k, l] * grow[t + 1, l]``, times the sequence's weight; their rows are
    zero after K numbers.  ``resp (n, K)`` are the posteriors of single steps, without weights.  ``grow`` of a first
    step is zero.  ``scaled (G,)`` marks the sequences done by scaling; for the others, which were done with logarithms,
    ``filtered`` and ``grow`` are zero, and their pair sums are in ``extra (K, K)``.  ``log_norm (G,)`` is the log
    normaliser of each, nats, and ``found (G,)`` the number of non-zeros of its ``grow``.
    """

    resp: np.ndarray
    filtered: np.ndarray
    grow: np.ndarray
    trans: np.ndarray
    scaled: np.ndarray
    log_norm: np.ndarray
    extra: np.ndarray
    found: np.ndarray

    def pair_sums(self) -> np.ndarray:
        """Expected steps from state k to state l, times weights, ``(K, K)``."""
        if len(self.resp) < 2:
            return self.extra.copy()
        return pair_sums(self.trans, self.filtered[:-1], self.grow, int(self.found.sum())) + self.extra


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
    """Subtract the maximum of each row, in place in C-contiguous float64 ``(n, K)``, and return it, ``(n,)``.

    Numbers are cut at :data:`NEVER`, which times zero is zero.  A row with NaN gives NaN.
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
    """Forward-backward pass with logarithms: of alpha in ``filtered``, of beta in ``grow``; pair sums in ``pairs``."""
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
def _all_sequences(offsets, rows, moves, log_start, log_trans, log_lik, grow, space, out):
    """Forward-backward pass of all sequences; ``grow (n + 1, W)`` holds the likelihoods and is replaced by ``grow``."""
    n_states = log_lik.shape[1]
    once = np.ones(len(log_lik))
    for g in range(len(offsets) - 2, -1, -1):  # the last first: each ends the pairs at the start of the next
        first, last = offsets[g], offsets[g + 1]
        if first == last:
            continue
        begins, ends, resp = rows.begins[first:last], rows.ends[first:last], out.resp[first:last]
        lik, alpha = grow[first:last], out.filtered[first:last]
        norm = sweep_forth(Rows(begins, ends, once[first:last]), moves, lik, moves.start, alpha, space)
        counted = Rows(begins, ends, rows.weights[first:last])
        found = -1 if norm != norm else sweep_back(counted, moves, lik, alpha, grow[first : last + 1], resp, space)
        if found >= 0:
            out.found[g] = found
        else:
            out.scaled[g] = False
            logs, pairs = np.empty((2, last - first, n_states)), np.zeros((n_states, n_states))
            norm = _logarithmic(log_start, log_trans, log_lik[first:last], logs[0], logs[1], resp, pairs)
            alpha[:] = 0.0
            lik[:] = 0.0
            for k in range(n_states):
                for j in range(n_states):
                    out.extra[k, j] += rows.weights[first] * pairs[k, j]
        grow[first] = 0.0
        out.log_norm[g] = norm


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
        Log likelihoods of each step, ``(n, K)`` nats, the largest of a row zero, none below :data:`NEVER`.
    offsets
        Offsets of the steps of each sequence, ``(G + 1,)`` int64.
    weights
        Weight of each sequence, ``(G,)``.
    """
    n, n_states = log_lik.shape
    groups = len(offsets) - 1
    moves, space = Transitions.of(log_start, log_trans), Space.of(n_states)
    filtered, grow = aligned(n, padded(n_states)), aligned(n + 1, padded(n_states))
    out = Chains(
        np.empty((n, n_states)), filtered, grow[:n], np.ascontiguousarray(moves.trans[:, :n_states]),
        np.ones(groups, np.bool_), np.zeros(groups), np.zeros((n_states, n_states)),
        np.zeros(groups, np.int64),
    )  # fmt: skip
    log_lik = np.ascontiguousarray(log_lik, np.float64)
    likelihoods(log_lik, space, grow[:n])
    _all_sequences(offsets, Rows.of(offsets, weights), moves, log_start, log_trans, log_lik, grow, space, out)
    return out


def pair_sums(trans: np.ndarray, filtered: np.ndarray, grow: np.ndarray, found: int) -> np.ndarray:
    """Expected steps from state k to state l, times weights, ``(K, K)``.

    ``filtered (m, W)`` belongs to some rows, ``grow (m + 1, W)`` to the same rows and the next one; ``found`` numbers
    of ``grow`` are not zero.
    """
    n_states, width = len(trans), filtered.shape[1]
    if found > FEW * n_states * len(filtered):
        return trans * matmul(filtered[:, :n_states].T, grow[1:, :n_states])
    sums = aligned_zeros(n_states, width)
    add_pairs(filtered, grow, np.empty(width + 1, np.int64), sums)
    return trans * sums[:, :n_states].T


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
    """Jointly most likely states of each sequence, ``(n,)`` int64; the first in ties."""
    path = np.zeros(len(log_lik), np.int64)
    _viterbi(offsets, log_start, np.ascontiguousarray(log_trans), np.ascontiguousarray(log_lik, np.float64), path)
    return path
