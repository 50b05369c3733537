"""Screening of thousands of clusters: atoms that share a likely cluster, their *home*, are screened together.

The coarse bound of an atom costs a pass over all clusters.  Here one pass is made for all atoms of a home:

1. Homes: means lie in about sqrt(K) groups.  An atom looks at the clusters of the few nearest groups only, and the most
   likely of these is its home.  Any cluster may be a home; a poor one costs time and nothing else.
2. One bound for all atoms of a home: the atoms lie in a box of coordinates z, and the coarse bound of cluster j,
   highest in the box, is ``top_j - 1/2 sum_d precision_jd dist(mean_jd, box_d)**2``.  The best weight of each of these
   atoms is at least that of its home, which is computed in float64.  Clusters whose bound is 40 nats below the least of
   these are left out for all atoms of the home.
3. The few clusters that remain are bounded for each atom alone, in the same way with a box of one point.

Atoms that are far even from their home would widen its box: they are screened against all clusters.

Bounds are sums of squares, which do not cancel, in float32; they are lowered by more than float32 can be wrong by:
boxes are widened by the rounding of coordinates and means, and sums by that of ``D + 16`` operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnp_dask.kernels.gaussian.bounds import UNIT, Bound, bound_products
from bnp_dask.kernels.numeric.arithmetic import matmul
from bnp_dask.kernels.numeric.copying import copy_into
from bnp_dask.kernels.options import njit

NEAREST = 4
"""Groups of clusters in which an atom looks for its home: a guess.  On separated clusters in 16 and 64 dimensions atoms
that missed their cluster were few."""

FAR = 6.0
"""Standard deviations of the squared distance from its home beyond which an atom is screened alone."""

ROUNDS = 3
"""Rounds of k-means that group the clusters' means."""

FIRST = 16
"""Coordinates of the first look at a cluster; the others are read only for clusters that remain."""

TILE = 8192
"""Atoms that are compared with all groups at a time."""

CHUNK, HOMES = 256, 32
"""Clusters, and homes, that are compared at a time, so that their numbers stay in cache."""


@dataclass(frozen=True, eq=False)
class Diagonal:
    """Coarse bounds of all clusters: ``top_k - 1/2 sum_d precision_kd (z_d - mean_kd)**2``, in nats.

    ``mean`` and ``precision (K, D)``, ``top (K,)`` float64.
    """

    mean: np.ndarray
    precision: np.ndarray
    top: np.ndarray


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of clusters by their means, and float32 copies of the coarse bounds.

    Parameters
    ----------
    centers
        Features of the groups' centres, ``(D + 1, G)`` float32: a product with ``[z, 1]`` is largest for the nearest.
    members
        Positions of the clusters of each group.
    bounds
        Coarse bounds of these clusters.
    mean, precision, top
        Of the coarse bounds, ``(K, D)`` and ``(K,)`` float32.
    reach
        Largest norm of a mean.
    """

    centers: np.ndarray
    members: list[np.ndarray]
    bounds: list[Bound]
    mean: np.ndarray
    precision: np.ndarray
    top: np.ndarray
    reach: float

    @staticmethod
    def of(diagonal: Diagonal, bound: Bound) -> Groups:
        """Groups of the clusters of coarse bounds; ``bound`` holds these as a product."""
        mean = diagonal.mean
        n_groups = int(np.ceil(np.sqrt(len(mean))))
        centers = mean[np.linspace(0, len(mean) - 1, n_groups).astype(np.int64)]
        for _ in range(ROUNDS):
            own = (matmul(mean, centers.T) - 0.5 * np.square(centers).sum(axis=1)).argmax(axis=1)
            counts = np.bincount(own, minlength=n_groups)
            sums = np.zeros_like(centers)
            np.add.at(sums, own, mean)
            centers = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centers)
        members = [np.flatnonzero(own == g) for g in range(n_groups)]
        used = [g for g, some in enumerate(members) if len(some)]
        features = np.concatenate([centers, -0.5 * np.square(centers).sum(axis=1)[:, None]], axis=1)[used]
        return Groups(
            centers=np.ascontiguousarray(features.T, np.float32),
            members=[members[g] for g in used],
            bounds=[
                Bound(np.ascontiguousarray(bound.table[:, members[g]]), bound.slack[:, members[g]], bound.full)
                for g in used
            ],
            mean=np.ascontiguousarray(mean, np.float32),
            precision=np.ascontiguousarray(diagonal.precision, np.float32),
            top=np.ascontiguousarray(diagonal.top, np.float32),
            reach=float(np.sqrt(np.square(mean).sum(axis=1).max())),
        )

    def homes(self, z: np.ndarray) -> np.ndarray:
        """Home of each atom, ``(n,)``, given its coordinates ``(n, D)`` float32."""
        few = min(NEAREST, len(self.members))
        chosen = np.empty((len(z), few), np.int64)
        for start in range(0, len(z), TILE):
            near = matmul(z[start : start + TILE], self.centers[:-1])
            near += self.centers[-1]
            _largest(near, chosen[start : start + TILE])
        order = np.argsort(chosen.ravel(), kind="stable")
        ends = np.cumsum(np.bincount(chosen.ravel(), minlength=len(self.members)))
        home, best = np.zeros(len(z), np.int64), np.full(len(z), -np.inf, np.float32)
        start = 0
        for members, bound, end in zip(self.members, self.bounds, ends.tolist(), strict=True):
            rows = order[start:end] // few
            start = end
            if not len(rows):
                continue
            found = bound_products(z[rows], bound)
            place = found.argmax(axis=1)
            value = found[np.arange(len(rows)), place]
            better = value > best[rows]
            best[rows[better]], home[rows[better]] = value[better], members[place[better]]
        return home

    def candidates(
        self, z: np.ndarray, home: np.ndarray, floor: np.ndarray, size: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Clusters of each atom whose weight may reach ``floor (n,)`` nats, and its home: offsets ``(n + 1,)``, index.

        ``z (n, D)`` float32; ``size (n,)`` are at least the norms of the coordinates.
        """
        d = z.shape[1]
        order = np.argsort(home, kind="stable")
        which, starts = np.unique(home[order], return_index=True)
        starts = np.append(starts, len(order))
        widened = (8.0 * UNIT * (self.reach + size)).astype(np.float32)
        # the sum, and the differences in it, are larger than computed by no less than this factor
        kept = 1.0 - (d + 16) * UNIT
        # the constant is rounded once
        lowest = floor - UNIT * float(np.abs(self.top).max()) - 1e-6 * np.abs(floor)
        first = min(FIRST, d)
        head = np.ascontiguousarray(self.mean[:, :first].T), np.ascontiguousarray(self.precision[:, :first].T)
        begin, count, index = _candidates_of_homes(
            z, order, which, starts, widened, lowest, *head, self.mean, self.precision, self.top, kept
        )
        offsets = np.zeros(len(z) + 1, np.int64)
        np.cumsum(count, out=offsets[1:])
        return offsets, _in_order(begin, offsets, index)


@njit(nogil=True, cache=True)
def _largest(values, chosen):
    # positions of the largest values of each row, in any order; NaN is never larger
    few = chosen.shape[1]
    best = np.empty(few, values.dtype)
    for row in range(len(values)):
        for i in range(few):
            best[i], chosen[row, i] = values[row, i], i
        least = best.argmin()
        for k in range(few, values.shape[1]):
            if values[row, k] > best[least]:
                best[least], chosen[row, least] = values[row, k], k
                least = best.argmin()


@njit(nogil=True, cache=True)
def _candidates_of_homes(z, order, which, starts, widened, lowest, mean_t, precision_t, mean, precision, top, kept):
    n, d = z.shape
    n_clusters, first = len(top), len(mean_t)
    begin, count = np.empty(n, np.int64), np.zeros(n, np.int64)
    index, at = np.empty(4 * n + n_clusters, np.int32), 0
    low, high = np.empty((HOMES, d), np.float32), np.empty((HOMES, d), np.float32)
    least = np.empty(HOMES)
    found, n_found = np.empty((HOMES, n_clusters), np.int32), np.empty(HOMES, np.int64)
    total = np.empty(max(CHUNK, n_clusters), np.float32)
    own_mean, own_precision = np.empty((d, n_clusters), np.float32), np.empty((d, n_clusters), np.float32)
    half = np.float32(0.5 * kept)
    for block in range(0, len(which), HOMES):
        n_homes = min(HOMES, len(which) - block)
        for h in range(n_homes):
            low[h] = np.inf
            high[h] = -np.inf
            least[h] = np.inf
            for place in range(starts[block + h], starts[block + h + 1]):
                row = order[place]
                least[h] = min(least[h], lowest[row])
                for j in range(d):
                    low[h, j] = min(low[h, j], z[row, j] - widened[row])
                    high[h, j] = max(high[h, j], z[row, j] + widened[row])
            n_found[h] = 0
        for k0 in range(0, n_clusters, CHUNK):
            size = min(CHUNK, n_clusters - k0)
            for h in range(n_homes):
                _first_sums(mean_t, precision_t, k0, size, low[h], high[h], total)
                bar = np.float32(least[h])
                for i in range(size):
                    k = k0 + i
                    if top[k] - half * total[i] < bar and k != which[block + h]:
                        continue
                    rest = np.float32(0.0)
                    for j in range(first, d):
                        away = max(max(low[h, j] - mean[k, j], mean[k, j] - high[h, j]), np.float32(0.0))
                        rest += precision[k, j] * away * away
                    if k == which[block + h] or not top[k] - half * (total[i] + rest) < bar:
                        found[h, n_found[h]] = k
                        n_found[h] += 1
        for h in range(n_homes):
            m, home = n_found[h], which[block + h]
            for i in range(m):
                for j in range(d):
                    own_mean[j, i] = mean[found[h, i], j]
                    own_precision[j, i] = precision[found[h, i], j]
            for place in range(starts[block + h], starts[block + h + 1]):
                row = order[place]
                if at + m > len(index):
                    longer = np.empty(2 * len(index) + m, np.int32)
                    copy_into(longer, index[:at])
                    index = longer
                low[h] = z[row] - widened[row]
                high[h] = z[row] + widened[row]
                _first_sums(own_mean, own_precision, 0, m, low[h], high[h], total)
                bar = np.float32(lowest[row])
                begin[row] = at
                for i in range(m):
                    if found[h, i] == home or not top[found[h, i]] - half * total[i] < bar:
                        index[at] = found[h, i]
                        at += 1
                count[row] = at - begin[row]
    return begin, count, index[:at]


@njit(nogil=True, cache=True)
def _first_sums(mean_t, precision_t, start, size, low, high, total):
    # sums of precision times squared distance from a box, of some clusters: no branch, so that it is compiled to
    # vector code
    sums = total[:size]
    sums[:] = np.float32(0.0)
    for j in range(len(mean_t)):
        mean, precision = mean_t[j, start : start + size], precision_t[j, start : start + size]
        a, b = low[j], high[j]
        for i in range(size):
            below, above = a - mean[i], mean[i] - b
            away = below if below > above else above
            away = away if away > np.float32(0.0) else np.float32(0.0)
            sums[i] += precision[i] * away * away


@njit(nogil=True, cache=True)
def _in_order(begin, offsets, index):
    out = np.empty(len(index), np.int64)
    for row in range(len(begin)):
        for i in range(offsets[row + 1] - offsets[row]):
            out[offsets[row] + i] = index[begin[row] + i]
    return out


@njit(nogil=True, cache=True)
def merged_lists(rows, offsets, index, other_rows, other_offsets, other_index, n):
    """Lists of atoms in order, from lists of some and lists of the others."""
    count = np.zeros(n + 1, np.int64)
    for i in range(len(rows)):
        count[rows[i] + 1] = offsets[i + 1] - offsets[i]
    for i in range(len(other_rows)):
        count[other_rows[i] + 1] = other_offsets[i + 1] - other_offsets[i]
    ends = np.cumsum(count)
    out = np.empty(ends[-1], np.int64)
    for i in range(len(rows)):
        for m in range(offsets[i + 1] - offsets[i]):
            out[ends[rows[i]] + m] = index[offsets[i] + m]
    for i in range(len(other_rows)):
        for m in range(other_offsets[i + 1] - other_offsets[i]):
            out[ends[other_rows[i]] + m] = other_index[other_offsets[i] + m]
    return ends, out
