"""One cluster for each atom, drawn from its responsibilities."""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.mixture.resp import ScreenedWeights, resp_and_entropy
from bnp_dask.kernels.options import njit

NEGLIGIBLE = 40.0
"""Nats below the best cluster at which a cluster is left out, as in screening."""

NOBODY = -1
"""Place of an atom for which no listed cluster could be drawn."""


def choose_among_all(log_lik: np.ndarray, log_weight: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """A cluster for each atom, drawn in proportion to ``exp(log_lik + log_weight)``.

    Parameters
    ----------
    log_lik
        ``(n, K)`` nats; overwritten.
    log_weight
        ``(K,)`` nats.
    uniform
        Numbers from 0 to 1, ``(n,)``: the cluster is the first at which the cumulative responsibility exceeds them.

    Returns
    -------
    numpy.ndarray
        Places of clusters, ``(n,)`` int64; :data:`NOBODY` if no number is finite.
    """
    resp, _ = resp_and_entropy(np.ascontiguousarray(log_lik, np.float64), log_weight, None)
    out = np.empty(len(resp), np.int64)
    _invert(resp, uniform, out)
    return out


def choose_from_lists(screened: ScreenedWeights, uniform: np.ndarray) -> np.ndarray:
    """Choices from screened weights, whose values include the log weights; :data:`NOBODY` if none is finite."""
    out = np.empty(len(screened.offsets) - 1, np.int64)
    tail = np.zeros((0, screened.n_clusters), np.float32) if screened.tail is None else screened.tail
    _invert_lists(screened.offsets, screened.index, screened.value, tail, uniform, out)
    return out


@njit(nogil=True, cache=True)
def _invert(resp, uniform, out):
    n, n_clusters = resp.shape
    for i in range(n):
        total = 0.0
        for k in range(n_clusters):
            total += resp[i, k]
        level, place = uniform[i] * total, 0
        reached = 0.0
        for k in range(n_clusters):
            if resp[i, k] > 0.0:
                place = k
                reached += resp[i, k]
                if reached > level:
                    break
        out[i] = place if total > 0.0 else NOBODY


@njit(nogil=True, cache=True)
def _invert_lists(offsets, index, value, tail, uniform, out):
    has_tail, n_clusters = len(tail) > 0, tail.shape[1]
    longest = n_clusters
    for i in range(len(out)):
        longest = max(longest, offsets[i + 1] - offsets[i])
    mass = np.empty(longest)
    for i in range(len(out)):
        start, stop = offsets[i], offsets[i + 1]
        top = -np.inf
        for j in range(start, stop):
            top = max(top, value[j])
        if not np.isfinite(top):
            out[i] = NOBODY
            continue
        total = 0.0
        for j in range(start, stop):
            d = value[j] - top
            mass[j - start] = np.exp(d) if d > -NEGLIGIBLE else 0.0
            total += mass[j - start]
        listed = total
        if has_tail:
            for k in range(n_clusters):
                d = tail[i, k] - top
                if d > -NEGLIGIBLE:
                    total += np.exp(d)
        level, reached, place = uniform[i] * total, 0.0, NOBODY
        if level < listed or not has_tail:
            for j in range(start, stop):
                if mass[j - start] > 0.0:
                    place = index[j]
                    reached += mass[j - start]
                    if reached > level:
                        break
        else:
            reached = listed
            for k in range(n_clusters):
                d = tail[i, k] - top
                if d > -NEGLIGIBLE:
                    place = k
                    reached += np.exp(d)
                    if reached > level:
                        break
        out[i] = place
