"""Entropy that is lost when states of chains become one.

The pair posteriors of the merged chain are sums of the original ones (thesis 6.5.1), and the entropy of a chain is
``sum_t H(s_t) - sum_(inner t) H(r_t)``, so only terms of these states differ.
"""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.hmm.forward_backward import Chains, Rows
from bnp_dask.kernels.options import INNER, njit

SMALL = 1e-18
"""Probability below which merging with another loses no relevant entropy."""


@njit(**INNER, error_model="numpy")
def _apart(x, y):
    """``(x + y) log(x + y) - x log x - y log y``: entropy lost when two probabilities become one."""
    if not min(x, y) > SMALL:
        return 0.0
    low, high = min(x, y), max(x, y)
    return high * math.log1p(low / high) + low * math.log((x + y) / low)


@njit(**INNER, error_model="numpy")
def _many_apart(parts):
    """Entropy lost when any number of probabilities become one."""
    lost, total = 0.0, 0.0
    for x in parts:
        lost += _apart(total, x)
        total += x
    return lost


@njit(**INNER, error_model="numpy")
def _pair_loss(alpha, trans, grow, weight, members, inside, cells):
    """Entropy of a pair of two steps that is lost when the states ``members`` become one.

    Its posterior is ``alpha[k] trans[k, l] grow[l] / weight``.
    """
    count = len(members)
    lost = 0.0
    for k in range(len(inside)):
        if inside[k]:
            continue
        total = 0.0
        if grow[k] > 0.0:  # from the members to state k
            for i in range(count):
                x = alpha[members[i]] * trans[members[i], k] * grow[k] / weight
                lost += _apart(total, x)
                total += x
        total = 0.0
        if alpha[k] > 0.0:
            for i in range(count):
                x = alpha[k] * trans[k, members[i]] * grow[members[i]] / weight
                lost += _apart(total, x)
                total += x
    for i in range(count):
        for j in range(count):
            cells[i * count + j] = alpha[members[i]] * trans[members[i], members[j]] * grow[members[j]] / weight
    return lost + _many_apart(cells)


@njit(**INNER, error_model="numpy")
def _of_states(resp, members, own):
    for i in range(len(members)):
        own[i] = resp[members[i]]
    return _many_apart(own)


@njit(nogil=True, cache=True, error_model="numpy")
def _losses(rows, trans, filtered, grow, resp, after, members, starts, out):
    n, width = resp.shape
    for m in range(len(starts) - 1):
        who = members[starts[m] : starts[m + 1]]
        inside = np.zeros(width, np.bool_)
        for k in who:
            inside[k] = True
        own, cells = np.empty(len(who)), np.empty(len(who) * len(who))
        following = _of_states(after, who, own)
        for t in range(n - 1, -1, -1):
            here = _of_states(resp[t], who, own)
            weight = rows.weights[t]
            if weight > 0.0:
                if rows.begins[t] and rows.ends[t]:
                    out[m] += weight * here
                elif not (rows.begins[t] or rows.ends[t]):
                    out[m] -= weight * here
                if not rows.ends[t] and (here > 0.0 or following > 0.0):
                    out[m] += weight * _pair_loss(filtered[t], trans, grow[t + 1], weight, who, inside, cells)
            following = here


def piece_losses(
    rows: Rows, trans: np.ndarray, filtered: np.ndarray, grow: np.ndarray, resp: np.ndarray, after: np.ndarray,
    sets: list[np.ndarray],
) -> np.ndarray:  # fmt: skip
    """Entropy lost in one piece of a tile, times weights, ``(M,)`` nats: its steps, and the pairs that these begin.

    Parameters
    ----------
    rows
        Rows of the piece.
    trans, filtered, grow
        Pair posteriors of the steps t and t + 1, times weights: ``filtered[t, k] trans[k, l] grow[t + 1, l]``.
    resp
        Responsibilities of its steps, without weights, ``(m, K)``.
    after
        Responsibilities of the step after the piece, ``(K,)``; ignored if the piece ends a sequence.
    sets
        Positions of states that become one.
    """
    out = np.zeros(len(sets))
    if len(sets):
        members = np.concatenate([np.asarray(s, np.int64) for s in sets])
        starts = np.concatenate([[0], np.cumsum([len(s) for s in sets])]).astype(np.int64)
        _losses(rows, trans, filtered, grow, resp, after, members, starts, out)
    return out


def merge_losses(chains: Chains, offsets: np.ndarray, weights: np.ndarray, sets: list[np.ndarray]) -> np.ndarray:
    """Entropy lost when the states of each set become one, times weights, ``(M,)`` nats, not negative.

    For a sequence that was done with logarithms it is a bound from above, from single steps:
    ``sum_t (H(r_t) - H(r_t merged))``.
    """
    rows = Rows.of(offsets, weights)
    alone = np.repeat(~chains.scaled, np.diff(offsets))
    rows.begins[alone] = rows.ends[alone] = True
    after = np.zeros(chains.resp.shape[1])
    return piece_losses(rows, chains.trans, chains.filtered, chains.grow, chains.resp, after, sets)
