"""Paths drawn from the posterior of hidden Markov chains: filtered forward, drawn backward (Chib 1996)."""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.hmm.steps import Transitions
from bnp_dask.kernels.hmm.sweeps import Rows, Space, likelihoods, sweep_forth
from bnp_dask.kernels.numeric.simd import aligned, padded
from bnp_dask.kernels.options import njit


@njit(nogil=True, cache=True, error_model="numpy")
def _log_filtered(log_start, log_trans, log_lik, filtered):
    """Logarithms of filtered probabilities of one sequence, into ``filtered (m, W)``; the largest of a row is zero."""
    m, n_states = log_lik.shape
    now, before, terms = np.empty(n_states), np.empty(n_states), np.empty(n_states)
    for t in range(m):
        for k in range(n_states):
            now[k] = log_start[k]
            if t > 0:
                for j in range(n_states):
                    terms[j] = before[j] + log_trans[j, k]
                top = terms.max()
                total = 0.0
                for j in range(n_states):
                    total += math.exp(terms[j] - top)
                now[k] = top + math.log(total)
            now[k] += log_lik[t, k]
        top = now.max()
        for k in range(n_states):
            before[k] = now[k] - top
            filtered[t, k] = before[k]


@njit(nogil=True, cache=True, error_model="numpy")
def _draw_back(filtered, trans, uniform, path):
    """Draw the states of one sequence from the last to the first; ``trans (K, W)`` has a row for the later state."""
    m, n_states = len(path), len(trans)
    reached = np.empty(n_states)
    for t in range(m - 1, -1, -1):
        total = 0.0
        for k in range(n_states):
            total += filtered[t, k] * (1.0 if t == m - 1 else trans[path[t + 1], k])
            reached[k] = total
        level, chosen = uniform[t] * total, 0
        for k in range(n_states):
            if reached[k] > level:
                chosen = k
                break
        path[t] = chosen


@njit(nogil=True, cache=True, error_model="numpy")
def _draw_back_logs(filtered, log_trans, uniform, path):
    """As :func:`_draw_back`, from logarithms of filtered probabilities and of transitions."""
    m, n_states = len(path), len(log_trans)
    terms = np.empty(n_states)
    for t in range(m - 1, -1, -1):
        for k in range(n_states):
            terms[k] = filtered[t, k] + (0.0 if t == m - 1 else log_trans[k, path[t + 1]])
        top, total = terms.max(), 0.0
        for k in range(n_states):
            total += math.exp(terms[k] - top)
        level, reached, chosen = uniform[t] * total, 0.0, 0
        for k in range(n_states):
            reached += math.exp(terms[k] - top)
            if reached > level:
                chosen = k
                break
        path[t] = chosen


@njit(nogil=True, cache=True, error_model="numpy")
def _all_paths(offsets, rows, moves, log_start, log_trans, log_lik, lik, filtered, space, uniform, path):
    for g in range(len(offsets) - 1):
        first, last = offsets[g], offsets[g + 1]
        if first == last:
            continue
        own = Rows(rows.begins[first:last], rows.ends[first:last], rows.weights[first:last])
        alpha, chance, drawn = filtered[first:last], uniform[first:last], path[first:last]
        norm = sweep_forth(own, moves, lik[first:last], moves.start, alpha, space)
        if norm == norm:
            _draw_back(alpha, moves.flipped, chance, drawn)
        else:
            _log_filtered(log_start, log_trans, log_lik[first:last], alpha)
            _draw_back_logs(alpha, log_trans, chance, drawn)


def draw_paths(
    log_start: np.ndarray, log_trans: np.ndarray, log_lik: np.ndarray, offsets: np.ndarray, uniform: np.ndarray
) -> np.ndarray:
    """A path of each sequence, drawn from its posterior, positions of states ``(n,)`` int64.

    The filtered probabilities of a step are those of the forward pass of
    :mod:`~bnp_dask.kernels.hmm.forward_backward`.  The last state is drawn from them, and each state before it in
    proportion to ``filtered[t, k] trans[k, z_{t + 1}]``.

    Parameters
    ----------
    log_start, log_trans, log_lik, offsets
        As in :func:`~bnp_dask.kernels.hmm.forward_backward.forward_backward`.
    uniform
        Numbers in [0, 1), ``(n,)``.
    """
    n, n_states = log_lik.shape
    moves, space = Transitions.of(log_start, log_trans), Space.of(n_states)
    filtered, lik = aligned(n, padded(n_states)), aligned(n, padded(n_states))
    log_lik = np.ascontiguousarray(log_lik, np.float64)
    likelihoods(log_lik, space, lik)
    rows, path = Rows.of(offsets, np.ones(len(offsets) - 1)), np.empty(n, np.int64)
    _all_paths(offsets, rows, moves, log_start, log_trans, log_lik, lik, filtered, space, uniform, path)
    return path
