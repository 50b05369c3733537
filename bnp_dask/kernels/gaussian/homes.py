"""Screening of thousands of clusters: atoms that share a likely cluster, their *home*, are screened together.

The coarse bound of an atom costs a pass over all clusters.  Here one pass is made for all atoms of a home:

1. Homes: means lie in about sqrt(K) groups.  An atom looks at the clusters of the few nearest groups only, and the most
   likely of these is its home.  Any cluster may be a home; a poor one costs time and nothing else.
2. One bound for all atoms of a home, first in a ball: these atoms lie within R of its mean, and by the triangle
   inequality the distance ``q**(1/2)`` of cluster j, ``q(z) = sum_d precision_jd (z_d - mean_jd)**2``, is nowhere in
   the ball less than ``q(mean)**(1/2) - (max_d precision_jd)**(1/2) R``.  The distances of means come from a product
   of matrices.  The best weight of each of these atoms is at least that of its home, which is computed in float64.
   Clusters whose coarse bound ``top_j - q / 2`` is 40 nats below the least of these are left out for all atoms.
3. Of clusters that remain, the coarse bound is found in the box of coordinates z of the home's atoms: highest in the
   box, it is ``top_j - 1/2 sum_d precision_jd dist(mean_jd, box_d)**2``.
4. The few clusters that still remain are bounded for each atom alone, in the same way with a box of one point.

Atoms that are far even from their home would widen its box: they are screened against all clusters.

Bounds are sums of squares, which do not cancel, in float32; they are lowered by more than float32 can be wrong by:
boxes and balls are widened by the rounding of coordinates and means, and sums by that of ``D + 16`` operations.
Distances of means come with the largest error of their product (see :class:`~.bounds.Bound`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnp_dask.kernels.gaussian.bounds import OVERFLOW, UNIT, Bound, bound_products
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
"""Coordinates of the first look at a cluster in a box; the others are read only for clusters that remain.  With no more
features than these, balls save nothing: of 10,000 clusters whose means have a deviation of 4, they kept 2,200 in 16
dimensions, and 2 in 64."""

TILE = 8192
"""Atoms that are compared with all groups at a time."""

HOMES = 512
"""Homes whose distances from all clusters are in memory at a time."""

CHUNK = 128
"""Clusters that are compared with a box at a time, so that their numbers stay in cache."""


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
    whole
        Coarse bounds of all clusters.
    mean, precision, top
        Of the coarse bounds, ``(K, D)`` and ``(K,)`` float32.
    steepest
        ``(max_d precision_kd)**(1/2)``, ``(K,)`` float32.
    reach
        Largest norm of a mean.
    """

    centers: np.ndarray
    members: list[np.ndarray]
    bounds: list[Bound]
    whole: Bound
    mean: np.ndarray
    precision: np.ndarray
    top: np.ndarray
    steepest: np.ndarray
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
            whole=bound,
            mean=np.ascontiguousarray(mean, np.float32),
            precision=np.ascontiguousarray(diagonal.precision, np.float32),
            top=np.ascontiguousarray(diagonal.top, np.float32),
            steepest=np.sqrt(diagonal.precision.max(axis=1)).astype(np.float32),
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
        head = tuple(np.ascontiguousarray(table[:, :FIRST].T) for table in (self.mean, self.precision))
        begin, count = np.empty(len(z), np.int64), np.zeros(len(z), np.int64)
        found, at = [np.zeros(0, np.int32)], 0
        for block in range(0, len(which), HOMES):
            own, ends = which[block : block + HOMES], starts[block : block + HOMES + 1]
            near = bound_products(self.mean[own], self.whole) if d > FIRST else np.empty((len(own), 0), np.float32)
            norm = np.sqrt(np.einsum("nd,nd->n", self.mean[own], self.mean[own], dtype=np.float64) + 1.0)
            clusters = *head, self.mean, self.precision, self.top, self.steepest, self.whole.slack
            some = _candidates_of_homes(z, order, own, ends, near, norm, widened, lowest, *clusters, kept, begin, count)
            begin[order[ends[0] : ends[-1]]] += at
            at += len(some)
            found.append(some)
        index = np.concatenate(found)
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
def _candidates_of_homes(
    z,
    order,
    which,
    starts,
    near,
    norm,
    widened,
    lowest,
    mean_t,
    precision_t,
    mean,
    precision,
    top,
    steepest,
    slack,
    kept,
    begin,
    count,
):
    # near (H, K) are coarse bounds of all clusters at the means of the homes, without columns if no ball is tried; norm
    # (H,) are the norms of these means; fills begin and count of the homes' atoms
    n_clusters, d = mean.shape
    index, at = np.empty(4 * (starts[-1] - starts[0]) + n_clusters, np.int32), 0
    low, high = np.empty(d, np.float32), np.empty(d, np.float32)
    found, total = np.empty(n_clusters, np.int32), np.empty(n_clusters, np.float32)
    own_mean, own_precision = np.empty((d, n_clusters), np.float32), np.empty((d, n_clusters), np.float32)
    first, half = min(FIRST, d), np.float32(0.5 * kept)
    few_mean, few_precision = np.empty((first, CHUNK), np.float32), np.empty((first, CHUNK), np.float32)
    some = np.empty(CHUNK, np.float32)
    for h in range(len(which)):
        home, least, farthest = which[h], np.inf, 0.0
        low[:] = np.inf
        high[:] = -np.inf
        for place in range(starts[h], starts[h + 1]):
            row = order[place]
            least = min(least, lowest[row])
            square = 0.0
            for j in range(d):
                low[j] = min(low[j], z[row, j] - widened[row])
                high[j] = max(high[j], z[row, j] + widened[row])
                away = abs(np.float64(z[row, j]) - np.float64(mean[home, j])) + np.float64(widened[row])
                square += away * away
            farthest = max(farthest, square)
        bar = np.float32(least)
        if near.shape[1]:
            radius = np.float32(1.00001 * np.sqrt(farthest))
            m = _in_ball(home, near[h], np.float32(norm[h]), radius, bar, top, steepest, slack, total, found)
        else:
            m = n_clusters
            for k in range(n_clusters):
                found[k] = k
        m = _in_box(
            home,
            low,
            high,
            bar,
            mean_t,
            precision_t,
            mean,
            precision,
            top,
            half,
            found,
            m,
            few_mean,
            few_precision,
            some,
        )
        for i in range(m):
            for j in range(d):
                own_mean[j, i] = mean[found[i], j]
                own_precision[j, i] = precision[found[i], j]
        for place in range(starts[h], starts[h + 1]):
            row = order[place]
            if at + m > len(index):
                longer = np.empty(2 * len(index) + m, np.int32)
                copy_into(longer, index[:at])
                index = longer
            for j in range(d):
                low[j] = z[row, j] - widened[row]
                high[j] = z[row, j] + widened[row]
            _first_sums(own_mean, own_precision, 0, m, low, high, total)
            bar = np.float32(lowest[row])
            begin[row] = at
            for i in range(m):
                if found[i] == home or not top[found[i]] - half * total[i] < bar:
                    index[at] = found[i]
                    at += 1
            count[row] = at - begin[row]
    return index[:at]


@njit(nogil=True, cache=True)
def _in_ball(home, near, norm, radius, bar, top, steepest, slack, over, found):
    # clusters whose coarse bound may reach the bar within the radius of a home's mean, and the home; over (K,) is by
    # how much the square of the distance of the means is too large: no branch, so that it is compiled to vector code
    n_clusters = len(top)
    tiny, nothing, two = np.float32(1e-6), np.float32(0.0), np.float32(2.0)
    wider, huge = np.float32(1.00001), np.float32(OVERFLOW)
    for k in range(n_clusters):
        error = (slack[0, k] * norm + slack[1, k]) * norm + slack[2, k]
        error = wider * error + tiny * (abs(top[k]) + abs(near[k]))
        may = top[k] - bar
        may = may if may > nothing else nothing
        reaches = wider * (steepest[k] * radius + np.sqrt(two * may))
        more = two * (top[k] - near[k] - error) - wider * (reaches * reaches)
        over[k] = more if error < huge else nothing  # float32 may have overflowed, and bounds nothing
    m = 0
    for k in range(n_clusters):
        if k == home or not over[k] > nothing:  # what is not a number is never left out
            found[m] = k
            m += 1
    return m


@njit(nogil=True, cache=True)
def _in_box(
    home, low, high, bar, mean_t, precision_t, mean, precision, top, half, found, m, few_mean, few_precision, total
):
    # of the first m clusters of found, those whose coarse bound may reach the bar in a box, and the home; few_ (FIRST,
    # CHUNK) and total (CHUNK,) are buffers
    first, d, left, is_all = len(few_mean), len(low), 0, m == len(top)
    for start in range(0, m, CHUNK):
        size = min(CHUNK, m - start)
        if is_all:
            _first_sums(mean_t, precision_t, start, size, low, high, total)
        else:
            for i in range(size):
                k = found[start + i]
                for j in range(first):
                    few_mean[j, i] = mean[k, j]
                    few_precision[j, i] = precision[k, j]
            _first_sums(few_mean, few_precision, 0, size, low, high, total)
        for i in range(size):
            k = found[start + i]
            if top[k] - half * total[i] < bar and k != home:
                continue
            rest = np.float32(0.0)
            for j in range(first, d):
                away = max(max(low[j] - mean[k, j], mean[k, j] - high[j]), np.float32(0.0))
                rest += precision[k, j] * away * away
            if k == home or not top[k] - half * (total[i] + rest) < bar:
                found[left] = k
                left += 1
    return left


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
