"""One cluster for each atom, drawn from its responsibilities among the clusters that are open to it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numba import njit

from bnp_dask.kernels.mixture.resp import ScreenedWeights, resp_and_entropy

NEGLIGIBLE = 40.0
"""Nats below the best cluster from which on one is left out, as screening leaves it out."""

NOBODY = -1
"""Place of an atom that could not be drawn from what is listed."""


@dataclass(frozen=True, eq=False)
class Choice:
    """Which clusters are open to each of some atoms, and in what proportion.

    Parameters
    ----------
    log_weight
        Log weights among open clusters, ``(K,)`` nats.
    height
        A cluster is open to atoms whose slice is at most this, ``(K,)``; without heights all are open to all.
    shown, mark
        A cluster with ``shown`` below one is open only where ``(end - mark) mod 1`` is less, ``(K,)``.
    slices, ends
        Of each atom, ``(n,)``.
    places
        Clusters of the atoms so far, ``(n,)``: they are open, whatever rounding does.
    """

    log_weight: np.ndarray
    height: np.ndarray | None = None
    shown: np.ndarray = field(default_factory=lambda: np.zeros(0))
    mark: np.ndarray = field(default_factory=lambda: np.zeros(0))
    slices: np.ndarray = field(default_factory=lambda: np.zeros(0))
    ends: np.ndarray = field(default_factory=lambda: np.zeros(0))
    places: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def rows(self, own: slice | np.ndarray) -> Choice:
        """That of some of the atoms."""
        if self.height is None:
            return self
        return replace(self, slices=self.slices[own], ends=self.ends[own], places=self.places[own])

    def from_all(self, log_lik: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """A cluster for each atom, drawn in proportion to ``exp(log_lik + log_weight)`` among those that are open.

        Parameters
        ----------
        log_lik
            ``(n, K)`` nats; overwritten.
        uniform
            Numbers from 0 to 1, ``(n,)``: the cluster is that at which the cumulative responsibility exceeds them.

        Returns
        -------
        numpy.ndarray
            Places of clusters, ``(n,)`` int64; :data:`NOBODY` where no number is finite.
        """
        log_lik = np.ascontiguousarray(log_lik, np.float64)
        if self.height is not None:
            _close(log_lik, self.height, self.shown, self.mark, self.slices, self.ends, self.places)
        resp, _ = resp_and_entropy(log_lik, self.log_weight, None)
        out = np.empty(len(resp), np.int64)
        _invert(resp, uniform, out)
        return out

    def from_lists(self, screened: ScreenedWeights, uniform: np.ndarray) -> np.ndarray:
        """Choices from screened weights, whose values include the log weights.

        :data:`NOBODY` for atoms whose best cluster is closed to them, since clusters that were left out may matter
        then, and for those that see clusters through windows.
        """
        n = len(screened.offsets) - 1
        out = np.empty(n, np.int64)
        tail = np.zeros((0, 0), np.float32) if screened.tail is None else screened.tail
        height, slices = self.height, self.slices
        if height is None:
            height, slices = np.ones(screened.n_clusters), np.ones(n)
        least = height.min(initial=np.inf) if (self.shown < 1.0).any() else 0.0
        _invert_lists(screened.offsets, screened.index, screened.value, tail, height, slices, least, uniform, out)
        return out


@njit(nogil=True, cache=True)
def _close(log_lik, height, shown, mark, slices, ends, places):
    n, n_clusters = log_lik.shape
    for i in range(n):
        for k in range(n_clusters):
            if k == places[i]:
                continue
            if height[k] < slices[i] or (shown[k] < 1.0 and not (ends[i] - mark[k]) % 1.0 < shown[k]):
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
def _invert_lists(offsets, index, value, tail, size, slices, least, uniform, out):
    # atoms with slices below ``least`` are left to others
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
        if best < top or not np.isfinite(top) or slices[i] <= least:
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
