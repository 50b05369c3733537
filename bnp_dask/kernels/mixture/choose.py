"""One cluster for each atom, drawn from its responsibilities among the clusters that are open to it."""

from __future__ import annotations

import numpy as np
from numba import njit

from bnp_dask.kernels.mixture.resp import ScreenedWeights, resp_and_entropy

NEGLIGIBLE = 40.0
"""Nats below the best cluster from which on one is left out, as screening leaves it out."""

NOBODY = -1
"""Place of an atom that could not be drawn from what is listed."""


def choose(
    log_lik: np.ndarray, log_weight: np.ndarray, size: np.ndarray, slices: np.ndarray | None, uniform: np.ndarray
) -> np.ndarray:
    """Places of clusters, drawn in proportion to ``exp(log_lik + log_weight)`` where ``size >= slice``.

    Parameters
    ----------
    log_lik
        ``(n, K)`` nats; overwritten.
    log_weight, size
        ``(K,)``.
    slices
        ``(n,)``; None: all clusters are open.
    uniform
        Numbers from 0 to 1, ``(n,)``: the place is where the cumulative responsibility exceeds one.

    Returns
    -------
    numpy.ndarray
        ``(n,)`` int64.
    """
    log_lik = np.ascontiguousarray(log_lik, np.float64)
    if slices is not None:
        _close(log_lik, size, slices)
    resp, _ = resp_and_entropy(log_lik, log_weight, None)
    out = np.empty(len(resp), np.int64)
    _invert(resp, uniform, out)
    return out


def choose_screened(
    screened: ScreenedWeights, size: np.ndarray, slices: np.ndarray | None, uniform: np.ndarray
) -> np.ndarray:
    """The same from screened weights, whose ``value`` includes the log weights; :data:`NOBODY` for atoms whose best
    cluster is closed to them: clusters that were left out may matter then."""
    n = len(screened.offsets) - 1
    out = np.empty(n, np.int64)
    none = np.zeros((0, 0), np.float32)
    _invert_lists(
        screened.offsets,
        screened.index,
        screened.value,
        none if screened.tail is None else screened.tail,
        size,
        np.zeros(n) if slices is None else slices,
        uniform,
        out,
    )
    return out


@njit(nogil=True, cache=True)
def _close(log_lik, size, slices):
    n, n_clusters = log_lik.shape
    least = size[0]
    for k in range(n_clusters):
        least = min(least, size[k])
    for i in range(n):
        if least < slices[i]:
            for k in range(n_clusters):
                if size[k] < slices[i]:
                    log_lik[i, k] = -np.inf


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
def _invert_lists(offsets, index, value, tail, size, slices, uniform, out):
    has_tail = len(tail) > 0
    n_clusters = len(size)
    longest = n_clusters
    for i in range(len(out)):
        longest = max(longest, offsets[i + 1] - offsets[i])
    mass = np.empty(longest)
    for i in range(len(out)):
        start, stop = offsets[i], offsets[i + 1]
        top, best = -np.inf, -np.inf
        for j in range(start, stop):
            top = max(top, value[j])
            if size[index[j]] >= slices[i]:
                best = max(best, value[j])
        if best < top or not np.isfinite(top):
            out[i] = NOBODY
            continue
        total = 0.0
        for j in range(start, stop):
            d = value[j] - top
            open_here = size[index[j]] >= slices[i] and d > -NEGLIGIBLE
            mass[j - start] = np.exp(d) if open_here else 0.0
            total += mass[j - start]
        listed = total
        if has_tail:
            for k in range(n_clusters):
                d = tail[i, k] - top
                if d > -NEGLIGIBLE and size[k] >= slices[i]:
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
                if d > -NEGLIGIBLE and size[k] >= slices[i]:
                    place = k
                    reached += np.exp(d)
                    if reached > level:
                        break
        out[i] = place


@njit(nogil=True, cache=True)
def least_by_cluster(labels, uniform, n_clusters):
    """Smallest of ``uniform (n,)`` in each cluster, ``(K,)``; one where it holds no atom."""
    out = np.ones(n_clusters)
    for i in range(len(labels)):
        if uniform[i] < out[labels[i]]:
            out[labels[i]] = uniform[i]
    return out
