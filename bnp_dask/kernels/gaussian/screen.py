"""Screening: float32 finds the clusters that can have a responsibility for an atom; float64 evaluates only these.

The log likelihood of a Gaussian cluster of full covariance is a *form*, ``level - nu / 2 (y - m)' B^-1 (y - m)``.  A
float32 matrix product bounds the forms of all clusters for a few hundred atoms at a time:

- the *coarse* bound is linear in ``[z, z**2]``: with Sigma the covariance of a cluster, C its correlations and
  ``lam`` at least the largest eigenvalue of C, ``Sigma^-1 >= diag(Sigma)^-1 / lam``.  It costs a D-th of the form;
- the *fine* bound is the form itself, linear in ``[z, 1, z_i z_j (i <= j)]``.

z is the atom in the coordinates in which the average cluster is round, which removes common units, offsets and
correlations of columns.  Each bound comes with the largest error that float32 can have made in it, for any order of
additions: a product of P terms is wrong by at most ``(P + 8) u`` times the sum of their sizes, u = 2**-24, and that
sum is at most ``A |z|**2 / 2 + B |z| + C`` with norms A, B, C of the cluster's coefficients.

One cluster of each atom is evaluated in float64; all whose bound is not :data:`MARGIN` nats below it are candidates
and are evaluated in float64, too, by whitening, which is the accurate way.  The clusters left out have responsibilities
below 1e-17.  If there are many candidates, those below 1e-9 may keep their float32 value, if its error is small.
The way of a tile is decided from a sample of its own atoms: the same on every machine and every repetition.

With thousands of clusters the coarse bound of an atom costs a pass over all of them.  Atoms that share a likely
cluster, their *home*, are screened together then (:class:`Groups`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bnp_dask.kernels.gaussian.quadratic import (
    _blocks,
    _products_into,
    cholesky_factor,
    cholesky_factors,
    n_packed,
    quadratic_coefficients,
)
from bnp_dask.kernels.mixture import ScreenedWeights, by_cluster, whitened_pairs
from bnp_dask.kernels.numeric.arithmetic import exp, is_fixed, matmul
from bnp_dask.kernels.options import copy_into, njit

# -- bounds of quadratic forms by float32 products, with the largest possible float32 error ---------------------------
UNIT = 2.0**-24
"""Rounding of float32."""


OVERFLOW, SQUARE_FITS = 1e30, 1e15
"""Error of a bound and size of z up to which no intermediate number overflows float32."""

SMALLEST, LARGEST = 1e-15, 1e15
"""Largest size whose square, multiplied by small responsibilities, float32 can hold."""

PIECE = 512
"""Number of atoms whose features are in the buffer at a time."""


ADDED = 320
"""Features multiplied at once: sums of these sums, and not sums of thousands, keep the error and the buffer small."""


@dataclass(frozen=True, eq=False)
class Forms:
    """Log likelihoods of clusters: ``level - nu / 2 (y - shift)' scale^-1 (y - shift)`` with ``y = x - center``.

    Parameters
    ----------
    center
        ``(D,)``.
    shift
        Means about the center, ``(K, D)``.
    scale
        Symmetric positive definite, ``(K, D, D)``.
    nu, level
        ``(K,)``; level in nats.
    """

    center: np.ndarray
    shift: np.ndarray
    scale: np.ndarray
    nu: np.ndarray
    level: np.ndarray


@dataclass(frozen=True, eq=False)
class Bound:
    """A float32 table whose product with features bounds W; ``slack (3, K)`` float32 are A, B, C times their error.

    ``full`` tells whether the features are all products or squares only.
    """

    table: np.ndarray
    slack: np.ndarray
    full: bool

    @staticmethod
    def of(linear: np.ndarray, constant: np.ndarray, quadratic: np.ndarray, size: np.ndarray) -> Bound:
        """From coefficients ``(K, D)``, ``(K,)``, ``(K, P)`` and a bound ``(K,)`` of the quadratic part's norm."""
        rows = np.concatenate([linear, constant[:, None], quadratic], axis=1)
        longest, pieces = _longest_sum(linear.shape[1], rows.shape[1])
        # 8 more for rounding of the coefficients, the features and z itself; a hundredth for this calculation
        error = 1.01 * (longest + pieces + 8) * UNIT
        slack = error * np.stack([0.5 * size, np.linalg.norm(linear, axis=1), np.abs(constant)])
        full = quadratic.shape[1] > linear.shape[1]
        with np.errstate(over="ignore"):  # callers check whether the bound is usable
            return Bound(np.ascontiguousarray(rows.T, np.float32), slack.astype(np.float32), full)

    @property
    def usable(self) -> bool:
        """Whether all numbers fit float32."""
        return bool(np.isfinite(self.table).all() and np.isfinite(self.slack).all())


def _cuts(n_features: int, full: bool) -> list[tuple[int, int, int, int]]:
    """Partition of the products of features: rows ``i:j`` of the triangle, which are its numbers ``start:stop``."""
    return list(_blocks(n_features, ADDED)) if full else [(0, 0, 0, n_features)]


def _longest_sum(n_features: int, n_coefficients: int) -> tuple[int, int]:
    """Most terms of a product of :func:`bound_products`, and the number of products that are added up."""
    cuts = _cuts(n_features, n_coefficients > 2 * n_features + 1)
    return n_features + 1 + max(stop - start for _, _, start, stop in cuts), len(cuts)


def bound_products(z: np.ndarray, bound: Bound) -> np.ndarray:
    """Features times the table, ``(n, K)`` float32."""
    n, d = z.shape
    table = bound.table
    out = np.empty((n, table.shape[1]), np.float32)
    cuts = _cuts(d, bound.full)
    head = d + 1
    buffer = np.empty((head + max(stop - start for _, _, start, stop in cuts)) * PIECE, np.float32)
    more = np.empty((PIECE, table.shape[1]), np.float32)
    for first in range(0, n, PIECE):
        part, to = z[first : first + PIECE], out[first : first + PIECE]
        features = buffer[: len(buffer) // PIECE * len(part)].reshape(-1, len(part))
        features[:d] = part.T
        features[d] = 1.0
        for i, j, start, stop in cuts:
            products = features[head : head + stop - start]
            if bound.full:
                _products_into(features[:d], i, j, products)
            else:
                np.square(features[:d], out=products)
            if start == 0:
                matmul(features[: head + stop].T, table[: head + stop], out=to)
            else:
                matmul(products.T, table[head + start : head + stop], out=more[: len(part)])
                to += more[: len(part)]
    return out


# -- homes --------------------------------------------------------------------------------------------------------
# The coarse bound of an atom costs a pass over all clusters.  Here one pass is made for all atoms of a home:
#
# 1. Homes: means lie in about sqrt(K) groups.  An atom looks at the clusters of the few nearest groups only, and the
# most
#    likely of these is its home.  Any cluster may be a home; a poor one costs time and nothing else.
# 2. One bound for all atoms of a home, first in a ball: these atoms lie within R of its mean, and by the triangle
#    inequality the distance ``q**(1/2)`` of cluster j, ``q(z) = sum_d precision_jd (z_d - mean_jd)**2``, is nowhere in
#    the ball less than ``q(mean)**(1/2) - (max_d precision_jd)**(1/2) R``.  The distances of means come from a product
#    of matrices.  The best weight of each of these atoms is at least that of its home, which is computed in float64.
#    Clusters whose coarse bound ``top_j - q / 2`` is 40 nats below the least of these are left out for all atoms.
# 3. Of clusters that remain, the coarse bound is found in the box of coordinates z of the home's atoms: highest in the
#    box, it is ``top_j - 1/2 sum_d precision_jd dist(mean_jd, box_d)**2``.
# 4. The few clusters that still remain are bounded for each atom alone, in the same way with a box of one point.
#
# Atoms that are far even from their home would widen its box: they are screened against all clusters.
#
# Bounds are sums of squares, which do not cancel, in float32; they are lowered by more than float32 can be wrong by:
# boxes and balls are widened by the rounding of coordinates and means, and sums by that of ``D + 16`` operations.
# Distances of means come with the largest error of their product (see :class:`~.bounds.Bound`).
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


# -- atoms against clusters ---------------------------------------------------------------------------------------
MARGIN = 40.0
"""Nats below the best cluster at which a cluster is left out: responsibilities below 5e-18."""

CORE = 16.0
"""Nats below the best cluster at which float32 can be enough: responsibilities below 1e-7."""

HARMLESS = 1e-10
"""Largest product of a responsibility and its bounded log error for which float32 is enough."""


PROBE = 256
"""Number of atoms that decide the way of a tile."""


@dataclass(frozen=True)
class Costs:
    """Approximate nanoseconds per atom of the ways to a summary: only their order matters.

    Measured on one core with 43 (86) GFLOP/s in large products of float64 (float32).  With K clusters, D features and
    P products of them; ``pairs`` is the number of pairs (atom, cluster) of an atom.
    """

    n_clusters: int
    n_features: int

    @property
    def ready(self) -> float:
        """Nanoseconds of preparing factors and bounds, for all atoms together."""
        return self.n_clusters * (0.6 * self.n_features**3 + 3000)

    def dense(self, pairs: float) -> float:
        """All clusters in float64; moments of few pairs are summed one by one."""
        k, p = self.n_clusters, self._products
        if pairs < k / 8:
            return k * (0.047 * p + 10) + 0.6 * p + pairs * (70 + 0.07 * self.n_features**2)
        return k * (0.093 * p + 12) + 1.2 * p

    def coarse(self, pairs: float) -> float:
        """The coarse bound, and pairs in float64."""
        return self.n_clusters * (0.047 * self.n_features + 3) + 250 + self._pairs(pairs)

    def fine(self, pairs: float) -> float:
        """The fine bound, and pairs in float64."""
        return self._pass() + 250 + self._pairs(pairs)

    def tail(self, pairs: float) -> float:
        """The fine bound, moments of all clusters in float32, and pairs in float64."""
        return 2 * self._pass() + 250 + self._pairs(pairs)

    def _pass(self) -> float:
        return self.n_clusters * (0.0233 * self._products + 4) + 0.6 * self._products

    def _pairs(self, pairs: float) -> float:
        return pairs * (70 + 0.138 * self.n_features**2)

    @property
    def _products(self) -> int:
        return n_packed(self.n_features) + self.n_features + 1


class Screen:
    """Forms prepared for atoms: factors and bounds, computed when first used, whatever the batch.

    Parameters
    ----------
    forms
        Of all clusters.
    log_weights
        ``(K,)`` nats.
    """

    def __init__(self, forms: Forms, log_weights: np.ndarray) -> None:
        self.forms, self.log_weights = forms, log_weights
        k, d = forms.shift.shape
        self.n_clusters, self.n_features = k, d
        self.costs = Costs(k, d)

    @cached_property
    def roots(self) -> np.ndarray:
        """Transposed inverses of the Cholesky factors of the scale matrices, ``(K, D, D)``."""
        return self._roots_and_spreads[0]

    @cached_property
    def _roots_and_spreads(self) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray] | None]:
        # one pass, so that only the roots are ever held for all clusters; the variances of the coordinates z, (K, D),
        # and bounds of the largest eigenvalues of their correlations, (K,), or None if they are not numbers
        k, d = self.n_clusters, self.n_features
        roots, variance, largest = np.empty((k, d, d)), np.empty((k, d)), np.empty(k)
        usable = self.basis is not None
        for few in _some(k):
            lower, inverse, wrong = cholesky_factors(self.forms.scale[few])
            assert wrong < 0  # the global step has factored them
            roots[few] = inverse.transpose(0, 2, 1)
            if self.basis is None or not usable:
                continue
            half = matmul(self.basis[0], lower)
            spread = matmul(half, half.transpose(0, 2, 1)) / self.forms.nu[few, None, None]
            variance[few] = np.diagonal(spread, axis1=1, axis2=2)
            usable = bool(np.isfinite(spread).all() and (variance[few] > 0).all())
            if usable:
                root = np.sqrt(variance[few])
                largest[few] = _largest_eigenvalue(spread / root[:, :, None] / root[:, None, :])
        return roots, (variance, largest) if usable else None

    @cached_property
    def basis(self) -> tuple[np.ndarray, np.ndarray] | None:
        """``z = y @ to_z.T`` and ``y = z @ from_z.T``, or None if they would lose too many digits."""
        share = exp(self.log_weights - self.log_weights.max())
        share /= share.sum()
        with np.errstate(over="ignore", invalid="ignore"):
            pooled = np.einsum("k,kij->ij", share / self.forms.nu, self.forms.scale)
        unit = np.sqrt(pooled.diagonal())
        if not (np.isfinite(pooled).all() and (unit > 0).all()):
            return None
        from_z, to_z, wrong = cholesky_factor(pooled / unit / unit[:, None])
        if wrong:
            return None
        lost = _norm(matmul(np.abs(to_z), np.abs(from_z))) * self.n_features**2 * 2.0**-53
        return (to_z / unit, unit[:, None] * from_z) if lost < UNIT / 4 else None

    @cached_property
    def diagonal(self) -> Diagonal | None:
        """The coarse bound on log weight plus log likelihood, as a sum of squares."""
        spreads = self._roots_and_spreads[1]
        if self.basis is None or spreads is None:
            return None
        to_z, _ = self.basis
        inverse = 1.0 / (spreads[0] * spreads[1][:, None])
        return Diagonal(matmul(self.forms.shift, to_z.T), inverse, self.log_weights + self.forms.level)

    @cached_property
    def coarse(self) -> Bound | None:
        """The coarse bound as a product of features."""
        if self.diagonal is None:
            return None
        mean, inverse = self.diagonal.mean, self.diagonal.precision
        linear = inverse * mean
        constant = self.diagonal.top - 0.5 * np.sum(linear * mean, axis=1)
        return _usable(Bound.of(linear, constant, -0.5 * inverse, inverse.max(axis=1)))

    @cached_property
    def groups(self) -> Groups:
        """The clusters in groups, for atoms that are screened by their homes."""
        assert self.diagonal is not None and self.coarse is not None
        return Groups.of(self.diagonal, self.coarse)

    @cached_property
    def fine(self) -> Bound | None:
        """The form itself."""
        if self.basis is None:
            return None
        to_z, from_z = self.basis
        k, d = self.n_clusters, self.n_features
        mean = matmul(self.forms.shift, to_z.T)
        linear, quadratic, size = np.empty((k, d)), np.empty((k, n_packed(d))), np.empty(k)
        for few in _some(k):
            root = matmul(self.roots[few].transpose(0, 2, 1), from_z)
            precision = matmul(root.transpose(0, 2, 1), root) * self.forms.nu[few, None, None]
            linear[few] = np.einsum("kij,kj->ki", precision, mean[few])
            quadratic[few] = quadratic_coefficients(precision)
            size[few] = np.abs(precision).sum(axis=2).max(axis=1)
        constant = self.log_weights + self.forms.level - 0.5 * np.sum(linear * mean, axis=1)
        return _usable(Bound.of(linear, constant, quadratic, size))


def _some(n_clusters: int) -> Iterator[slice]:
    """Slices of a few clusters at a time, so that preparation takes little memory."""
    return (slice(start, start + 32) for start in range(0, n_clusters, 32))


@dataclass
class Patience:
    """How the tiles of one batch went: after tiles that needed all clusters, ``rest`` are not screened."""

    rest: int = 0
    waits: int = 0


def screened_weights(
    screen: Screen, x: np.ndarray, patience: Patience, tail: bool = True, way: str | None = None
) -> ScreenedWeights | None:
    """Log weight plus log likelihood of the clusters that matter, for the atoms ``(n, D)`` of one tile.

    ``patience`` is that of the tile's batch; ``tail`` lets small responsibilities stay in float32; ``way`` takes the
    named way (coarse, fine, tail or dense) instead of the cheapest.  None if evaluating all clusters is cheaper, or if
    float32 cannot distinguish them.
    """
    if way is None and patience.rest > 0:  # the last tile needed all clusters: those after it are likely to
        patience.rest -= 1
        return None
    if screen.coarse is None:
        return None
    if way is None:
        way = _way(screen, x[:: -(-len(x) // PROBE)], tail)
    if way == "dense":
        patience.waits = 2 * patience.waits + 1
        patience.rest = patience.waits
        return None
    bound = screen.coarse if way == "coarse" or screen.fine is None else screen.fine
    seen = _Seen(screen, bound, x)
    return seen.lists_and_tail() if way == "tail" else seen.lists()


def _way(screen: Screen, x: np.ndarray, tail: bool) -> str:
    """The cheapest way for a tile, from some of its atoms: coarse, fine, tail or dense."""
    assert screen.coarse is not None
    costs = screen.costs
    pairs = _Seen(screen, screen.coarse, x).candidates(MARGIN)[1]
    cost = {"coarse": costs.coarse(len(pairs) / len(x))}
    if cost["coarse"] > costs.fine(1.0) and screen.fine is not None:
        seen = _Seen(screen, screen.fine, x)
        pairs = seen.candidates(MARGIN)[1]
        cost["fine"] = costs.fine(len(pairs) / len(x))
        if tail:
            cost["tail"] = costs.tail(len(seen.candidates(CORE)[1]) / len(x))
    cost["dense"] = costs.dense(len(pairs) / len(x))
    return min(cost, key=cost.__getitem__)


def suits_homes(screen: Screen, x: np.ndarray) -> bool:
    """Whether the atoms ``(n, D)`` of a batch, judged by some of them, belong to few clusters each."""
    if screen.coarse is None:
        return False
    few = x[:: -(-len(x) // PROBE)]
    return len(_Seen(screen, screen.coarse, few).candidates(MARGIN)[1]) <= FEW * len(few)


def weights_by_home(screen: Screen, x: np.ndarray) -> ScreenedWeights:
    """As :func:`screened_weights` by the coarse bound, for many atoms ``(n, D)`` and clusters at once."""
    groups, d = screen.groups, screen.n_features
    assert screen.basis is not None and screen.coarse is not None
    y = np.subtract(x, screen.forms.center)
    with np.errstate(over="ignore", invalid="ignore"):
        z = matmul(y, screen.basis[0].T).astype(np.float32)
        size = np.sqrt(np.einsum("nd,nd->n", z, z, dtype=np.float64) + 1.0)
    home = groups.homes(z)
    level = (screen.log_weights + screen.forms.level)[home]
    weight = exact_pairs(screen, y, np.arange(len(y) + 1), home)
    # NaN and what float32 cannot represent are far from everything
    is_near = (level - weight <= 0.5 * (d + FAR * np.sqrt(2.0 * d))) & (size < SQUARE_FITS)
    near, far = np.flatnonzero(is_near), np.flatnonzero(~is_near)
    offsets, index = groups.candidates(z[near], home[near], weight[near] - MARGIN, size[near])
    ends, others = np.zeros(1, np.int64), [np.zeros(0, np.int64)]
    for start in range(0, len(far), ALONE):
        own, found = _Seen(screen, screen.coarse, x[far[start : start + ALONE]]).candidates(MARGIN)
        ends, others = np.append(ends, ends[-1] + own[1:]), [*others, found]
    offsets, index = merged_lists(near, offsets, index, far, ends, np.concatenate(others), len(x))
    return ScreenedWeights(offsets, index, exact_pairs(screen, y, offsets, index), screen.n_clusters)


FEW = 8.0
"""Clusters that an atom may belong to, on average, where atoms are screened by their homes: a guess."""

ALONE = 512
"""Atoms far from their homes that are screened against all clusters at a time."""


def exact_pairs(screen: Screen, y: np.ndarray, offsets: np.ndarray, index: np.ndarray) -> np.ndarray:
    """W of some pairs in float64; ``y (n, D)`` are the atoms about the center."""
    forms, out = screen.forms, np.empty(len(index))
    atoms, places, starts = by_cluster(offsets, index, screen.n_clusters)
    level = forms.level + screen.log_weights
    whitened_pairs(y, atoms, places, starts, forms.shift, screen.roots, forms.nu, level, is_fixed(), out)
    return out


class _Seen:
    """Bounds of all clusters for some atoms."""

    def __init__(self, screen: Screen, bound: Bound, x: np.ndarray) -> None:
        assert screen.basis is not None  # bounds are made with it
        self.screen, self.bound = screen, bound
        self.y = y = np.subtract(x, screen.forms.center)
        # atoms that float32 cannot represent evaluate all clusters
        with np.errstate(over="ignore", invalid="ignore"):
            z = matmul(y, screen.basis[0].T).astype(np.float32)
            self.weights = bound_products(z, bound)
        self.size = np.sqrt(np.einsum("nd,nd->n", z, z, dtype=np.float64) + 1.0)
        self.best = self.weights.argmax(axis=1)
        single = np.arange(len(y) + 1)
        self.best_weight = self.exact(single, self.best)

    def exact(self, offsets: np.ndarray, index: np.ndarray) -> np.ndarray:
        """W of some pairs in float64."""
        return exact_pairs(self.screen, self.y, offsets, index)

    def candidates(self, margin: float) -> tuple[np.ndarray, np.ndarray]:
        """Pairs that may be within ``margin`` of the best; below MARGIN, also pairs whose error may matter."""
        return _candidates(self.weights, self.bound.slack, self.size, self.best_weight, self.best, margin)

    def lists(self) -> ScreenedWeights:
        offsets, index = self.candidates(MARGIN)
        return ScreenedWeights(offsets, index, self.exact(offsets, index), self.screen.n_clusters)

    def lists_and_tail(self) -> ScreenedWeights:
        offsets, index = self.candidates(CORE)
        value = self.exact(offsets, index)
        _forget(offsets, index, self.weights)
        return ScreenedWeights(offsets, index, value, self.screen.n_clusters, self.weights)


@njit(nogil=True, cache=True)
def _depth(error, margin):
    # number of nats below the best at which a weight with this error is harmless
    if margin == MARGIN or not error < 1.0:
        return MARGIN
    return min(max(np.log(error / HARMLESS), margin), MARGIN) if error > 0.0 else margin


@njit(nogil=True, cache=True)
def _candidates(weights, slack, size, best_weight, best, margin):
    n, n_clusters = weights.shape
    widest = np.array([slack[0].max(), slack[1].max(), slack[2].max()])
    offsets = np.empty(n + 1, np.int64)
    index = np.empty(4 * n + 4 * n_clusters, np.int64)
    offsets[0] = at = 0
    for row in range(n):
        if at + n_clusters > len(index):
            longer = np.empty(2 * len(index) + n_clusters, np.int64)
            copy_into(longer, index[:at])
            index = longer
        w, s, top = weights[row], size[row], best_weight[row]
        most = widest[0] * s * s + widest[1] * s + widest[2]
        if not (most < OVERFLOW and s < SQUARE_FITS):  # float32 may have overflowed, and bounds nothing
            for k in range(n_clusters):
                index[at + k] = k
            at += n_clusters
            offsets[row + 1] = at
            continue
        # no number below this can be listed, with any error; NaN never is below
        least = np.float32(top - _depth(most, margin) - most - 1e-6 * abs(top))
        for start in range(0, n_clusters, 8):
            stop = min(start + 8, n_clusters)
            nothing = True
            for k in range(start, stop):
                nothing &= w[k] < least
            if nothing and not start <= best[row] < stop:
                continue
            for k in range(start, stop):
                error = slack[0, k] * s * s + slack[1, k] * s + slack[2, k]
                if k == best[row] or not w[k] + error < top - _depth(error, margin):
                    index[at] = k
                    at += 1
        offsets[row + 1] = at
    return offsets, index[:at].copy()


@njit(nogil=True, cache=True)
def _forget(offsets, index, weights):
    for row in range(len(offsets) - 1):
        for i in range(offsets[row], offsets[row + 1]):
            weights[row, index[i]] = -np.inf


def _largest_eigenvalue(matrices: np.ndarray) -> np.ndarray:
    """At least the largest eigenvalue of positive semidefinite matrices ``(K, D, D)``, at most D**(1/8) times it."""
    rows = np.abs(matrices).sum(axis=2).max(axis=1)
    power = matrices.astype(np.float32)
    power = matmul(power, power)
    power = matmul(power, power)
    norm = np.linalg.norm(power.astype(np.float64), axis=(1, 2))
    return np.minimum(rows, 1.001 * (np.sqrt(np.sqrt(norm)) if is_fixed() else norm**0.25))


def _norm(matrix: np.ndarray) -> float:
    """Root of the sum of squares."""
    return float(np.sqrt((matrix * matrix).sum()) if is_fixed() else np.linalg.norm(matrix))


def _usable(bound: Bound) -> Bound | None:
    return bound if bound.usable else None
