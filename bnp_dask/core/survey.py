"""One pass over the data: sizes, moments, ranges, quantiles, checksums.  Additive over batches.

Each batch -> its :class:`Moments` a tile at a time, points of its :class:`Quantiles`, a sample of its rows that occur
several times -> a survey of the batch -> folded in order into one :class:`Survey` of the data, from which priors and
starts are set.  :class:`Bulk` and :func:`grain_of` read the quantiles.

Joint second moments of columns come from the same pass, for columns whose likelihood requests them.  Likelihoods with
correlations do, because only these moments show which columns are functions of others.  They add up over batches like
moments of single columns, at the cost of one product of a batch with itself.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import sparse

from bnp_dask.core.batch import Batch, check_weights
from bnp_dask.errors import DataError
from bnp_dask.inputs import Levels
from bnp_dask.kernels import matmul, merge_rows, thin_rows

# -- moments ------------------------------------------------------------------------------------------------------
TILE_BYTES = 2**20
"""Bytes of a tile of dense rows: temporaries stay small beside the batch."""

NONE_MISSING = np.zeros(0)
"""``missing`` of data in which no entry is missing."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Weight ``()``, mean, variance, minimum and maximum ``(D,)`` of some atoms; ``missing`` as in a survey."""

    weight: float
    mean: np.ndarray
    variance: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray
    missing: np.ndarray = field(default_factory=lambda: NONE_MISSING)


def combine_moments(a: Moments, b: Moments) -> Moments:
    """Moments of two disjoint sets of atoms together, by the update of Chan, Golub and LeVeque (1983)."""
    if a.missing.size or b.missing.size:
        return _combine_by_feature(a, b)
    weight = a.weight + b.weight
    minimum = np.minimum(a.minimum, b.minimum)
    maximum = np.maximum(a.maximum, b.maximum)
    if b.weight == 0 or a.weight == 0:
        heavy = a if b.weight == 0 else b
        return Moments(weight, heavy.mean, heavy.variance, minimum, maximum)
    share_a, share_b = a.weight / weight, b.weight / weight
    shift = b.mean - a.mean
    mean = a.mean + share_b * shift
    variance = share_a * a.variance + share_b * b.variance + (share_a * share_b) * shift**2
    return Moments(weight, mean, variance, minimum, maximum)


def _combine_by_feature(a: Moments, b: Moments) -> Moments:
    """Moments of two sets of atoms that do not all have every feature."""
    missing_a, missing_b = (np.broadcast_to(m.missing if m.missing.size else 0.0, m.mean.shape) for m in (a, b))
    # a sum of weights less a sum of some of them may miss zero by rounding
    own_a, own_b = (np.maximum(m.weight - gone, 0.0) for m, gone in ((a, missing_a), (b, missing_b)))
    both = own_a + own_b
    share_a, share_b = (np.divide(own, both, out=np.zeros_like(both), where=both > 0) for own in (own_a, own_b))
    shift = np.where((own_a > 0) & (own_b > 0), b.mean - a.mean, 0.0)
    mean = np.where(own_a > 0, a.mean, b.mean) + share_b * shift
    variance = share_a * a.variance + share_b * b.variance + (share_a * share_b) * shift**2
    minimum, maximum = np.minimum(a.minimum, b.minimum), np.maximum(a.maximum, b.maximum)
    return Moments(a.weight + b.weight, mean, variance, minimum, maximum, missing_a + missing_b)


def _no_moments(n_features: int) -> Moments:
    zero = np.zeros(n_features)
    return Moments(0.0, zero, zero, np.full(n_features, np.inf), np.full(n_features, -np.inf))


def dense_moments(x: np.ndarray, weights: np.ndarray | None, batch: Batch, may_miss: bool) -> Moments:
    """Moments of dense rows ``x (n, D)`` with ``weights (n,)``, a tile at a time.

    ``may_miss``: NaN is an entry that is missing.  DataError names batch, row and column of a number that is not
    finite.
    """
    total = _no_moments(x.shape[1])
    if x.shape[1] == 0:
        return replace(total, weight=float(len(x) if weights is None else weights.sum()))
    for tile, part, finite in _checked_tiles(x, weights, batch, may_miss):
        found = _tile_moments(tile, part) if finite is None else _gappy_moments(tile, part, finite)
        total = combine_moments(total, found)
    return total


def weight_alone(batch: Batch, weights: np.ndarray | None, may_miss: bool) -> Moments:
    """Weight of atoms after a check of their numbers, with empty moments: for data that set no prior."""
    x = batch.x
    nothing = _no_moments(batch.n_features)
    if not isinstance(x, np.ndarray):
        _check_entries(x, x.data, batch)
    elif x.shape[1]:
        tiles = _checked_tiles(x, weights, batch, may_miss)
        return replace(nothing, weight=sum(float(len(t) if part is None else part.sum()) for t, part, _ in tiles))
    return replace(nothing, weight=float(batch.n_atoms if weights is None else weights.sum()))


def _checked_tiles(
    x: np.ndarray, weights: np.ndarray | None, batch: Batch, may_miss: bool
) -> Iterator[tuple[np.ndarray, np.ndarray | None, np.ndarray | None]]:
    """Tiles of dense rows, their weights, and a mask of present entries; None if all are present.

    DataError if a number is not finite, except a NaN that may be missing.
    """
    rows = max(1, TILE_BYTES // (8 * x.shape[1]))
    for start in range(0, len(x), rows):
        tile = x[start : start + rows]
        part = None if weights is None else weights[start : start + rows]
        finite = np.isfinite(tile)
        if finite.all():
            yield tile, part, None
            continue
        wrong = ~finite & ~np.isnan(tile) if may_miss else ~finite
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise _not_finite(batch, start + row, column, tile[row, column])
        yield tile, part, finite


def _tile_moments(tile: np.ndarray, weights: np.ndarray | None) -> Moments:
    share = np.full(len(tile), 1.0 / len(tile))
    weight = float(len(tile))
    if weights is not None:
        weight = float(weights.sum())
        share = weights / weight if weight > 0 else np.zeros(len(tile))
    origin = tile[0]
    deviation = tile - origin
    shift = matmul(share, deviation)
    deviation -= shift
    variance = matmul(share, deviation**2)
    return Moments(weight, origin + shift, variance, tile.min(axis=0), tile.max(axis=0))


def _gappy_moments(tile: np.ndarray, weights: np.ndarray | None, held: np.ndarray) -> Moments:
    """Moments of a tile in which only the entries ``held (n, D)`` are present."""
    rows = np.ones(len(tile)) if weights is None else weights
    own = matmul(rows, held.astype(np.float64))
    share = np.divide(1.0, own, out=np.zeros_like(own), where=own > 0)
    origin = np.where(held.any(axis=0), tile[held.argmax(axis=0), np.arange(tile.shape[1])], 0.0)
    deviation = np.where(held, tile - origin, 0.0)
    shift = matmul(rows, deviation) * share
    variance = matmul(rows, np.where(held, deviation - shift, 0.0) ** 2) * share
    minimum, maximum = np.where(held, tile, np.inf).min(axis=0), np.where(held, tile, -np.inf).max(axis=0)
    missing = matmul(rows, (~held).astype(np.float64))
    return Moments(float(rows.sum()), origin + shift, variance, minimum, maximum, missing)


def sparse_moments(x: sparse.csr_array, weights: np.ndarray | None, batch: Batch) -> Moments:
    """Moments of sparse counts ``x (n, V)`` with ``weights (n,)``; entries that are not stored are zeros.

    DataError names batch, row and column of a count that is not finite.
    """
    n, v = x.shape
    if n == 0:
        return _no_moments(v)
    total = float(n if weights is None else weights.sum())
    minimum, maximum = np.full(v, np.inf), np.full(v, -np.inf)
    stored, present, first = np.zeros(v, np.int64), np.zeros(v), np.zeros(v)
    for word, count, weight in _entries(x, weights):
        _check_entries(x, count, batch)
        np.minimum.at(minimum, word, count)
        np.maximum.at(maximum, word, count)
        stored += np.bincount(word, minlength=v)
        present += np.bincount(word, weight, minlength=v)
        first += np.bincount(word, weight * count, minlength=v)
    has_zero = stored < n
    minimum[has_zero] = np.minimum(minimum[has_zero], 0.0)
    maximum[has_zero] = np.maximum(maximum[has_zero], 0.0)
    if total == 0:
        return Moments(0.0, np.zeros(v), np.zeros(v), minimum, maximum)
    mean, square = first / total, np.zeros(v)
    for word, count, weight in _entries(x, weights):
        square += np.bincount(word, weight * (count - mean[word]) ** 2, minlength=v)
    # the entries that are not stored are zeros, each at squared distance mean**2
    variance = (square + np.maximum(total - present, 0.0) * mean**2) / total
    return Moments(total, mean, variance, minimum, maximum)


def _entries(x: sparse.csr_array, weights: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Columns, counts and weights of the stored entries, a tile at a time; a tile has at least as many as columns."""
    size = max(TILE_BYTES // 8, x.shape[1])
    for start in range(0, x.nnz, size):
        stop = min(start + size, x.nnz)
        weight = np.ones(stop - start)
        if weights is not None:
            weight = weights[np.searchsorted(x.indptr, np.arange(start, stop), side="right") - 1]
        yield x.indices[start:stop], x.data[start:stop], weight


def _check_entries(x: sparse.csr_array, count: np.ndarray, batch: Batch) -> None:
    if np.isfinite(count).all():
        return
    entry = int(np.argmax(~np.isfinite(x.data)))
    row = int(np.searchsorted(x.indptr, entry, side="right")) - 1
    raise _not_finite(batch, row, int(x.indices[entry]), x.data[entry])


def _not_finite(batch: Batch, row: int, column: int, value: float) -> DataError:
    return DataError(
        f"{batch.name}: row {row}, {batch.column(column)} is {value}; needs finite values. Drop or impute such rows "
        "before training"
    )


# -- joint second moments ------------------------------------------------------------------------------------------
NAMES_OF_JOINT = ("joint_columns", "joint_sizes", "joint_mean", "joint_covariance")
"""Names of the arrays that hold joint moments."""


@dataclass(frozen=True, eq=False)
class JointMoments:
    """Moments of the rows that have a value in each of some columns.

    Parameters
    ----------
    columns
        Positions of the columns, ``(U,)`` ascending.
    count, weight
        Rows of positive weight that have all of these columns, and the sum of their weights.
    mean, covariance
        ``(U,)`` and ``(U, U)``; the covariance is the population one.
    """

    columns: np.ndarray
    count: int
    weight: float
    mean: np.ndarray
    covariance: np.ndarray

    def features(self, index: np.ndarray) -> JointMoments:
        """Joint moments of the features at the positions ``index``, as far as they are known."""
        index = np.asarray(index)
        own = np.flatnonzero(np.isin(index, self.columns))
        place = np.searchsorted(self.columns, index[own])
        return JointMoments(own, self.count, self.weight, self.mean[place], self.covariance[np.ix_(place, place)])

    def covers(self, n_features: int) -> bool:
        """Whether moments of all of ``n_features`` columns are known, from any rows."""
        return self.count > 0 and len(self.columns) == n_features

    def to_arrays(self) -> dict[str, np.ndarray]:
        """As arrays of the names :data:`NAMES_OF_JOINT`."""
        values = (self.columns, np.array([self.count, self.weight]), self.mean, self.covariance)
        return dict(zip(NAMES_OF_JOINT, values, strict=True))

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> JointMoments:
        """Inverse of :meth:`to_arrays`."""
        columns, (count, weight), mean, covariance = (np.asarray(arrays[name]) for name in NAMES_OF_JOINT)
        return JointMoments(columns, int(count), float(weight), mean, covariance)


def no_joint_moments(columns: np.ndarray) -> JointMoments:
    """Joint moments of some columns over no rows."""
    size = len(columns)
    return JointMoments(np.asarray(columns, np.int64), 0, 0.0, np.zeros(size), np.zeros((size, size)))


NO_JOINT = no_joint_moments(np.zeros(0, np.int64))
"""Joint moments of no columns."""


def joint_moments(x: np.ndarray, weights: np.ndarray | None, columns: np.ndarray) -> JointMoments:
    """Moments of ``columns (U,)`` of dense rows ``(n, D)``; rows that lack one of them do not count."""
    total = no_joint_moments(columns)
    rows = max(1, TILE_BYTES // (8 * max(1, x.shape[1])))
    for start in range(0, len(x) if len(columns) else 0, rows):
        tile = x[start : start + rows][:, columns]
        share = np.ones(len(tile)) if weights is None else weights[start : start + rows]
        held = np.isfinite(tile).all(axis=1) & (share > 0)
        if not held.all():
            tile, share = tile[held], share[held]
        if len(tile):
            total = combine_joint(total, _of_tile(tile, share, total.columns))
    return total


def _of_tile(tile: np.ndarray, share: np.ndarray, columns: np.ndarray) -> JointMoments:
    weight = float(share.sum())
    origin = tile[0]
    deviation = tile - origin
    shift = matmul(share, deviation) / weight
    deviation -= shift
    covariance = matmul((deviation * (share / weight)[:, None]).T, deviation)
    return JointMoments(columns, len(tile), weight, origin + shift, covariance)


def combine_joint(a: JointMoments, b: JointMoments) -> JointMoments:
    """Joint moments of two sets of rows; batches surveyed without joint moments are left out."""
    if b.count == 0 or a.count == 0:
        heavy, light = (a, b) if b.count == 0 else (b, a)
        return heavy if len(heavy.columns) or heavy.count else light
    weight = a.weight + b.weight
    share_a, share_b = a.weight / weight, b.weight / weight
    shift = b.mean - a.mean
    covariance = share_a * a.covariance + share_b * b.covariance + (share_a * share_b) * np.outer(shift, shift)
    return JointMoments(a.columns, a.count + b.count, weight, a.mean + share_b * shift, covariance)


# -- quantiles: few weighted points of each feature, which add up over batches ------------------------------------
POINTS = 64
"""Points per feature that a batch keeps, at most: 1 kB."""

TOTAL_POINTS = 128
"""Points per feature of several batches together, at most."""

MOST_POINTS = 2**15
"""Points of all features together, at most (0.5 MB), unless each has the least number.  The coordinator holds this much
for each doubling of the number of batches."""

LEAST_POINTS = 32
"""Points of each feature, at least, however many features there are."""

MOST_SPARSE = 1024
"""Most columns of sparse counts for which quantiles are kept; quantiles of a vocabulary are never used."""

NOTHING = np.zeros((0, 0)), np.zeros((0, 0))
"""Values and weights of unknown quantiles."""

NO_SETS = np.zeros((0, 2), np.int64)
"""Sets of batches of unknown quantiles."""

_TILE_NUMBERS = 2**17
"""Numbers that are sorted at a time (1 MB)."""

_Points = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Values, weights and numbers of points of some features, see :func:`bnp_dask.kernels.numeric.quantiles.thin_rows`."""


@dataclass(frozen=True, eq=False)
class Quantiles:
    """Weighted points of each feature whose quantiles approximate the quantiles of all values.

    Exact for features of few distinct values (up to :data:`POINTS` in each batch and :data:`TOTAL_POINTS` in all);
    values shared by many atoms always stay exact.  Otherwise a rank is off by at most one part in 128 of a batch, and
    by one in 256 for each doubling of the number of batches.  With more than 256 features each has fewer points, down
    to :data:`LEAST_POINTS` from 1,024 features on.

    Parameters
    ----------
    values
        Ascending values of each feature, ``(D, P)``; entries beyond its last point repeat that point.  P is 0 if no
        quantiles are known.
    weights
        Their weights, ``(D, P)``; 0 beyond the last point.
    """

    values: np.ndarray
    weights: np.ndarray

    @property
    def is_unknown(self) -> bool:
        """Whether there are no points to compute quantiles from."""
        return self.values.shape == (0, 0)

    def without(self, positions: np.ndarray) -> Quantiles:
        """Quantiles with zero weight for the points selected by ``positions (D, P)``, bool."""
        return Quantiles(self.values, np.where(positions, 0.0, self.weights))

    def features(self, index: np.ndarray) -> Quantiles:
        """Quantiles of the features at the positions ``index``."""
        return self if self.is_unknown else Quantiles(self.values[index], self.weights[index])

    def at(self, share: float) -> np.ndarray:
        """Quantile of each feature, ``(D,)``: least value at or below which lies ``share`` of the weight."""
        below = np.cumsum(self.weights, axis=1)
        # by rounding, sums of shares may differ from the whole
        place = (below < share * below[:, -1:] * (1.0 - 1e-12)).sum(axis=1)
        place = np.minimum(place, self.values.shape[1] - 1)
        return np.take_along_axis(self.values, place[:, None], axis=1)[:, 0]

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the points of each feature, ``(D,)``."""
        share = self.weights / self.weights.sum(axis=1, keepdims=True)
        origin = self.at(0.5)
        held = np.where(share > 0, self.values - origin[:, None], 0.0)
        shift = (share * held).sum(axis=1)
        return origin + shift, (share * (held - shift[:, None]) ** 2).sum(axis=1)


def unknown() -> Quantiles:
    """Unknown quantiles, as for counts of many words."""
    return Quantiles(*NOTHING)


def quantiles_of(x: np.ndarray | sparse.csr_array, weights: np.ndarray | None) -> Quantiles:
    """Quantiles of the columns of one batch ``(n, D)``; atoms of weight 0 (``weights (n,)``) and NaN do not count."""
    if not isinstance(x, np.ndarray):
        return unknown() if x.shape[1] > MOST_SPARSE else _of_sparse(sparse.csc_array(x), weights)
    n, d = x.shape
    step, limit = max(1, _TILE_NUMBERS // max(1, n)), _at_most(POINTS, d)
    return _side_by_side([_of_columns(x[:, start : start + step], weights, limit) for start in range(0, d, step)])


def _of_columns(x: np.ndarray, weights: np.ndarray | None, limit: int) -> _Points:
    columns = np.array(x.T, np.float64, order="C")
    missing = np.isnan(columns)
    if missing.any():
        own = np.where(missing, 0.0, 1.0 if weights is None else weights)
        columns[missing] = 0.0  # any number, as its weight is 0
        order = np.argsort(columns, axis=1, kind="stable")
        return thin_rows(np.take_along_axis(columns, order, axis=1), np.take_along_axis(own, order, axis=1), limit)
    if weights is None:
        columns.sort(axis=1)
        return thin_rows(columns, np.ones((1, len(x))), limit)
    order = np.argsort(columns, axis=1, kind="stable")
    return thin_rows(np.take_along_axis(columns, order, axis=1), np.asarray(weights, np.float64)[order], limit)


def _of_sparse(x: sparse.csc_array, weights: np.ndarray | None) -> Quantiles:
    n, d = x.shape
    total, limit = float(n if weights is None else weights.sum()), _at_most(POINTS, d)
    found = []
    for j in range(d):
        here = slice(x.indptr[j], x.indptr[j + 1])
        own = np.ones(x.indptr[j + 1] - x.indptr[j]) if weights is None else weights[x.indices[here]]
        values = np.append(np.asarray(x.data[here], np.float64), 0.0)
        own = np.append(own, max(total - own.sum(), 0.0))
        order = np.argsort(values, kind="stable")
        found.append(thin_rows(values[order][None], own[order][None], limit))
    return _side_by_side(found)


@dataclass(frozen=True, eq=False)
class QuantileTotal:
    """Quantiles accumulated over a sequence of batches.

    As batches arrive, only sets of equally many are joined.  Hence a point is thinned at most once for each doubling of
    the number of batches, and the number of sets held grows in the same way.  The result depends only on the batches
    and their order, even if it passes through :meth:`to_arrays` between two batches.

    Parameters
    ----------
    parts
        Sets of batches: number of joins of each, and its quantiles.
    """

    parts: tuple[tuple[int, Quantiles], ...] = ()

    @classmethod
    def from_arrays(cls, values: np.ndarray, weights: np.ndarray, sets: np.ndarray) -> QuantileTotal:
        """Inverse of :meth:`to_arrays`, as views; without sets, quantiles of earlier batches are unknown."""
        if len(sets) == 0:
            return cls(((0, unknown()),))
        ends = np.cumsum(sets[:, 1])
        bounds = [slice(int(end - width), int(end)) for end, width in zip(ends, sets[:, 1], strict=True)]
        parts = [Quantiles(values[:, here], weights[:, here]) for here in bounds]
        return cls(tuple(zip(sets[:, 0].tolist(), parts, strict=True)))

    def to_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values and weights of all sets side by side, ``(D, P)``, and the number of joins and width of each set."""
        if not self.parts or any(part.is_unknown for _, part in self.parts):
            return (*NOTHING, NO_SETS)
        sets = np.array([[level, part.values.shape[1]] for level, part in self.parts], np.int64)
        values = np.concatenate([part.values for _, part in self.parts], axis=1)
        return values, np.concatenate([part.weights for _, part in self.parts], axis=1), sets

    def with_batch(self, part: Quantiles) -> QuantileTotal:
        """Total that includes the next batch."""
        level, parts = 0, list(self.parts)
        while parts and parts[-1][0] == level:
            part = joined(parts.pop()[1], part)
            level += 1
        return QuantileTotal((*parts, (level, part)))

    def features(self, index: np.ndarray) -> QuantileTotal:
        """Totals of the features at the positions ``index``."""
        return QuantileTotal(tuple((level, part.features(index)) for level, part in self.parts))

    def value(self) -> Quantiles:
        """Quantiles of all batches so far."""
        parts = [part for _, part in reversed(self.parts)]
        total = parts[0] if parts else unknown()
        for part in parts[1:]:
            total = joined(part, total)
        return total


NO_BATCHES = QuantileTotal()
"""Quantiles of no batches."""


def joined(a: Quantiles, b: Quantiles) -> Quantiles:
    """Quantiles of two disjoint sets of atoms together; unknown if either is unknown."""
    if a.is_unknown or b.is_unknown:
        return unknown()
    if 0 in (a.values.shape[1], b.values.shape[1]):  # one of them has no atoms
        return b if a.values.shape[1] == 0 else a
    merged = merge_rows(*(np.ascontiguousarray(rows) for rows in (a.values, a.weights, b.values, b.weights)))
    return _side_by_side([thin_rows(*merged, _at_most(TOTAL_POINTS, len(a.values)))])


def _at_most(points: int, n_features: int) -> int:
    """Most points of each of ``n_features`` features."""
    return max(LEAST_POINTS, min(points, MOST_POINTS // max(1, n_features)))


def _side_by_side(found: Sequence[_Points]) -> Quantiles:
    """Points of all features side by side, as wide as the longest."""
    if not found:
        return Quantiles(np.zeros((0, 0)), np.zeros((0, 0)))
    width = max(int(counts.max(initial=0)) for _, _, counts in found)
    values, weights = (np.concatenate([part[i][:, :width] for part in found]) for i in (0, 1))
    return Quantiles(values, weights)


# -- rows that occur several times --------------------------------------------------------------------------------
# The sample holds the rows with the smallest hashes.  Hashes look like random numbers, so these are drawn uniformly
# among the distinct rows; and a row among the smallest of all data is among the smallest of each batch that has it, so
# that samples of batches combine to the sample of all, with exact counts.
NAMES_OF_COPIES = ("copies_hashes", "copies_counts", "copies_rows")
"""Names of the arrays that hold a sample of distinct rows."""

MOST_ROWS = 512
"""Distinct rows in a sample, at most."""

MOST_NUMBERS = 2**15
"""Numbers in a sample, at most: 256 KB; but at least :data:`LEAST_ROWS` rows."""

LEAST_ROWS = 64
"""Distinct rows in a sample, at least, if there are so many."""

FACTORS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""Odd numbers that spread bits, of the generator SplitMix64 (Steele, Lea and Flood 2014)."""

TILE = 2**16
"""Numbers hashed at a time."""


@dataclass(frozen=True, eq=False)
class DistinctRows:
    """Sample of distinct rows.

    Parameters
    ----------
    hashes
        Hashes of the rows, ascending, ``(M,)`` uint64.
    counts
        How often each occurs, ``(M,)``.
    rows
        The rows, ``(M, D)``; of sparse counts the number of distinct words of each, ``(M, 1)``.
    """

    hashes: np.ndarray
    counts: np.ndarray
    rows: np.ndarray

    def features(self, index: np.ndarray) -> DistinctRows:
        """No sample: rows that differ may agree in some features."""
        return NO_ROWS

    def to_arrays(self) -> dict[str, np.ndarray]:
        """As arrays of the names :data:`NAMES_OF_COPIES`."""
        return dict(zip(NAMES_OF_COPIES, (self.hashes, self.counts, self.rows), strict=True))

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> DistinctRows:
        """Inverse of :meth:`to_arrays`."""
        return DistinctRows(*(np.asarray(arrays[name]) for name in NAMES_OF_COPIES))


NO_ROWS = DistinctRows(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros((0, 0)))
"""No sample, as of rows with weights, of groups of dense rows, and of documents with responses."""


def distinct_rows(x: np.ndarray | sparse.csr_array) -> DistinctRows:
    """Sample of the distinct rows of ``x (n, D)``; of sparse counts with the number of distinct words of each."""
    hashes, first, counts = np.unique(row_hashes(x), return_index=True, return_counts=True)
    rows = x if isinstance(x, np.ndarray) else np.diff(x.indptr)[:, None]
    few = slice(0, _most(rows.shape[1]))
    return DistinctRows(hashes[few], counts[few].astype(np.int64), np.array(rows[first[few]], np.float64))


def combine_distinct(a: DistinctRows, b: DistinctRows) -> DistinctRows:
    """Sample of the rows of two sets of data."""
    if not len(a.hashes) or not len(b.hashes):
        return b if not len(a.hashes) else a
    both = np.concatenate([a.hashes, b.hashes])
    hashes, first, place = np.unique(both, return_index=True, return_inverse=True)
    counts = np.zeros(len(hashes), np.int64)
    np.add.at(counts, place.ravel(), np.concatenate([a.counts, b.counts]))
    few = slice(0, _most(a.rows.shape[1]))
    return DistinctRows(hashes[few], counts[few], np.concatenate([a.rows, b.rows])[first[few]])


def row_hashes(x: np.ndarray | sparse.csr_array) -> np.ndarray:
    """Hash of each row of ``x (n, D)``, ``(n,)`` uint64; rows of equal numbers have equal hashes, dense or sparse."""
    n, d = x.shape
    factors = _spread(FACTORS[0] * np.arange(1, d + 1, dtype=np.uint64)) | np.uint64(1)
    if not isinstance(x, np.ndarray):
        bits = np.ascontiguousarray(x.data, np.float64) + 0.0
        # zeros add nothing, and sums wrap: the difference of two running sums is the sum between them
        terms = _spread(bits.view(np.uint64)) * factors[x.indices]
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
        return _spread(running[x.indptr[1:]] - running[x.indptr[:-1]])
    out = np.empty(n, np.uint64)
    size = max(1, TILE // max(1, d))
    for start in range(0, n, size):
        tile = np.ascontiguousarray(x[start : start + size], np.float64) + 0.0  # -0.0 is 0.0
        out[start : start + size] = (_spread(tile.view(np.uint64)) * factors).sum(axis=1, dtype=np.uint64)
    return _spread(out)


def _spread(bits: np.ndarray) -> np.ndarray:
    """Bits mixed so that each depends on all; a permutation of the 64-bit numbers (the finish of SplitMix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * FACTORS[1]
    bits = (bits ^ (bits >> np.uint64(27))) * FACTORS[2]
    mixed: np.ndarray = bits ^ (bits >> np.uint64(31))
    return mixed


def _most(n_features: int) -> int:
    return max(LEAST_ROWS, min(MOST_ROWS, MOST_NUMBERS // max(1, n_features)))


# -- the survey ---------------------------------------------------------------------------------------------------
LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 2.0**53
"""Range of the sum of all weights.

Pseudo-counts of the prior are about 1, and the objective holds differences of functions of weights plus pseudo-counts.
Rounding leaves an error of 1e-16, a share of 1e-10 of the least weight.  Up to the largest sum, adding 1 still counts.
"""


@dataclass(frozen=True, eq=False)
class Survey:
    """Facts about a set of atoms.

    Parameters
    ----------
    n_atoms
        Number of atoms.
    total_weight
        Sum of their weights (the number of atoms when there are none).
    mean, variance
        Weighted moments of each feature, ``(D,)``; the variance is the population one.
    minimum, maximum
        Range of each feature, ``(D,)``; +inf and -inf without atoms.
    is_sparse
        Whether the atoms are sparse counts.
    nbytes
        Bytes of all batches when loaded.
    batch_atoms
        Atoms in each batch, in batch order.
    batch_bytes
        Bytes of each batch when loaded.
    checksums
        CRC-32 of each batch's content, in batch order.
    name
        Name of the (first) batch, for error messages.
    n_groups
        Number of groups: documents of sparse counts, groups of dense rows; 0 for ungrouped rows.
    batch_weights
        Sum of the weights in each batch, in batch order.
    names
        Names of the features, ``(D,)``, for messages about priors; None for features without names.
    points
        Accumulated points from which quantiles are computed, also with further batches.
    missing
        Weight of the atoms that lack each feature, ``(D,)``; of length 0 if no entry is missing.  Moments, ranges and
        quantiles of a feature are computed from the atoms that have it.
    levels
        Levels of each categorical feature, whose values are positions among them, None for others, ``(D,)``; None if
        no feature has levels, or they are unknown.
    joint
        Joint second moments of the columns whose likelihood requests them.
    copies
        Sample of distinct rows, and how often each occurs; none of rows with weights, of groups of dense rows, and of
        documents with responses.
    """

    n_atoms: int
    total_weight: float
    mean: np.ndarray
    variance: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray
    is_sparse: bool
    nbytes: int
    batch_atoms: tuple[int, ...]
    batch_bytes: tuple[int, ...]
    checksums: tuple[int, ...]
    name: str = "batch"
    n_groups: int = 0
    batch_weights: tuple[float, ...] = ()
    names: tuple[str, ...] | None = None
    points: QuantileTotal = NO_BATCHES
    missing: np.ndarray = field(default_factory=lambda: NONE_MISSING)
    levels: tuple[Levels | None, ...] | None = None
    joint: JointMoments = NO_JOINT
    copies: DistinctRows = NO_ROWS

    @property
    def quantiles(self) -> Quantiles:
        """Quantiles of each feature."""
        return self.points.value()

    @property
    def n_features(self) -> int:
        """Number of features D, or words V."""
        return len(self.mean)

    @property
    def n_batches(self) -> int:
        """Number of batches B."""
        return len(self.batch_atoms)

    def features(self, index: np.ndarray) -> Survey:
        """Survey of some features, at the positions ``index``."""
        return replace(
            self,
            mean=self.mean[index],
            variance=self.variance[index],
            minimum=self.minimum[index],
            maximum=self.maximum[index],
            names=None if self.names is None else tuple(self.names[i] for i in index),
            points=self.points.features(index),
            missing=self.missing[index] if self.missing.size else self.missing,
            levels=None if self.levels is None else tuple(self.levels[i] for i in index),
            joint=self.joint.features(index),
            copies=self.copies.features(index),
        )

    def called(self, index: np.ndarray) -> str:
        """Names of some columns in messages: the first ones by name, or else by number."""
        shown = np.asarray(index)[:10].tolist()
        return str(shown if self.names is None else [self.names[i] for i in shown])


def survey_batch(
    batch: Batch, may_miss: bool = False, for_priors: bool = True, joint_columns: np.ndarray = NO_JOINT.columns
) -> Survey:
    """Survey of one batch; a batch without atoms counts as zero atoms.

    Parameters
    ----------
    batch
        Atoms.
    may_miss
        Whether NaN in dense rows is an entry that is missing.
    for_priors
        Whether to compute moments, ranges and quantiles, which set priors; otherwise they are as for no atoms.
    joint_columns
        Columns of dense rows whose joint second moments are computed, for priors, ``(U,)`` ascending.

    Raises
    ------
    DataError
        A value is NaN or infinite, or a weight is missing, NaN, infinite or negative; names batch, row and column.
    """
    if batch.weights is not None:
        check_weights(batch.weights, batch.n_atoms, batch.name)
    some = batch.counting()
    if not for_priors:
        moments = weight_alone(some, some.weights, may_miss)
    elif isinstance(some.x, np.ndarray):
        moments = dense_moments(some.x, some.weights, some, may_miss)
    else:
        moments = sparse_moments(some.x, some.weights, some)
    joint = NO_JOINT
    if for_priors and isinstance(some.x, np.ndarray):
        joint = joint_moments(some.x, some.weights, joint_columns)
    is_plain = batch.weights is None and batch.groups is None and batch.responses is None
    return Survey(
        n_atoms=batch.n_atoms,
        total_weight=moments.weight,
        mean=moments.mean,
        variance=moments.variance,
        minimum=moments.minimum,
        maximum=moments.maximum,
        is_sparse=batch.is_sparse,
        nbytes=batch.nbytes,
        batch_atoms=(batch.n_atoms,),
        batch_bytes=(batch.nbytes,),
        checksums=(checksum(batch),),
        name=batch.name,
        n_groups=batch.n_groups if batch.is_sparse or batch.groups is not None else 0,
        batch_weights=(moments.weight,),
        points=NO_BATCHES.with_batch(quantiles_of(some.x, some.weights)) if for_priors else NO_BATCHES,
        missing=moments.missing,
        joint=joint,
        copies=distinct_rows(batch.x) if for_priors and is_plain and batch.n_atoms else NO_ROWS,
    )


def combine(surveys: Iterable[Survey]) -> Survey:
    """One survey of all batches, folded in the order given; takes a generator and holds one survey at a time.

    Means and variances are combined by the update of Chan, Golub and LeVeque (1983), which does not cancel however
    far the data lie from zero.

    Raises
    ------
    DataError
        Batches disagree in their features, there is no atom at all, or all weights are zero.
    """
    return require_atoms(extend(None, surveys))


def extend(total: Survey | None, surveys: Iterable[Survey]) -> Survey | None:
    """Extend a survey of some batches, or None, by the surveys of more, as if all had been combined at once."""
    atoms = [] if total is None else list(total.batch_atoms)
    sizes = [] if total is None else list(total.batch_bytes)
    checksums = [] if total is None else list(total.checksums)
    weights = [] if total is None else list(total.batch_weights)
    points = NO_BATCHES if total is None else total.points
    for survey in surveys:
        total = survey if total is None else _combine_two(total, survey)
        points = points.with_batch(survey.quantiles)
        weights += survey.batch_weights
        atoms += survey.batch_atoms
        sizes += survey.batch_bytes
        checksums += survey.checksums
    return total and replace(
        total,
        points=points,
        batch_atoms=tuple(atoms),
        batch_bytes=tuple(sizes),
        checksums=tuple(checksums),
        batch_weights=tuple(weights),
    )


def require_atoms(total: Survey | None) -> Survey:
    """DataError if there is no atom, the sum of weights is zero or out of range, or a feature has no value."""
    if total is None or total.n_atoms == 0:
        where = "there are no batches" if total is None else f"{total.name} and all other batches hold none"
        raise DataError(f"the data set has no atoms of positive weight: {where}")
    if not total.total_weight > 0:
        raise DataError(f"all {total.n_atoms} atoms have weight 0; at least one needs a positive weight")
    if not LEAST_WEIGHT <= total.total_weight <= MOST_WEIGHT:
        raise DataError(
            f"the weights of {total.n_atoms} atoms sum to {total.total_weight:.3g}; needs {LEAST_WEIGHT:g} to "
            f"{MOST_WEIGHT:.2g}, which double precision tells from the prior's pseudo-counts. Multiply all weights by "
            "one number, such as one over their mean"
        )
    if total.missing.size and not (total.total_weight - total.missing > 0).all():
        empty = np.flatnonzero(~(total.total_weight - total.missing > 0))
        raise DataError(
            f"{total.name} and all other batches: column(s) {total.called(empty)} have no value in any atom that "
            "counts; leave them out"
        )
    return total


def without(survey: Survey, batches: Collection[int]) -> Survey:
    """Survey of the data without the atoms of some batches; moments still cover all batches."""
    atoms, sizes, weights = list(survey.batch_atoms), list(survey.batch_bytes), list(survey.batch_weights)
    for b in batches:
        atoms[b], sizes[b], weights[b] = 0, 0, 0.0
    return replace(
        survey,
        n_atoms=sum(atoms),
        total_weight=math.fsum(weights),
        nbytes=sum(sizes),
        batch_atoms=tuple(atoms),
        batch_bytes=tuple(sizes),
        batch_weights=tuple(weights),
    )


def checksum(batch: Batch) -> int:
    """CRC-32 of shape, kind, and all arrays of a batch, without columns beyond ``read_width``."""
    if isinstance(batch.x, np.ndarray):
        parts = [batch.x[:, : batch.read_width]]
    else:
        parts = [batch.x.data, batch.x.indices, batch.x.indptr]
    if batch.weights is not None:
        parts.append(batch.weights)
    if batch.groups is not None:
        parts.append(batch.groups)
    if batch.labels is not None:
        parts.append(batch.labels)
    if batch.responses is not None:
        parts.append(batch.responses)
    if batch.links is not None:
        parts.append(batch.links)
    # index arrays may be 32 or 64 bit, depending on where the batch came from
    kinds = [np.dtype(np.int64) if p.dtype.kind == "i" else p.dtype for p in parts]
    shape = batch.x.shape if batch.read_width is None else (batch.n_atoms, batch.read_width)
    value = zlib.crc32(repr((shape, batch.is_sparse, [str(kind) for kind in kinds])).encode())
    for part, kind in zip(parts, kinds, strict=True):
        rows = max(1, TILE_BYTES // (8 * max(1, part[:1].size)))
        for start in range(0, len(part) if part.size else 0, rows):
            tile = np.ascontiguousarray(part[start : start + rows], kind)
            value = zlib.crc32(tile.data.cast("B"), value)
    return value


def _combine_two(a: Survey, b: Survey) -> Survey:
    if a.n_features != b.n_features:
        raise DataError(
            f"{b.name} has {b.n_features} features, but {a.name} has {a.n_features}; all batches need the same columns"
        )
    if a.is_sparse != b.is_sparse:
        kinds = {True: "sparse counts", False: "dense rows"}
        raise DataError(f"{b.name} holds {kinds[b.is_sparse]}, but {a.name} holds {kinds[a.is_sparse]}")
    moments = combine_moments(
        Moments(a.total_weight, a.mean, a.variance, a.minimum, a.maximum, a.missing),
        Moments(b.total_weight, b.mean, b.variance, b.minimum, b.maximum, b.missing),
    )
    return replace(
        a,
        n_atoms=a.n_atoms + b.n_atoms,
        total_weight=moments.weight,
        mean=moments.mean,
        variance=moments.variance,
        minimum=moments.minimum,
        maximum=moments.maximum,
        nbytes=a.nbytes + b.nbytes,
        n_groups=a.n_groups + b.n_groups,
        missing=moments.missing,
        joint=combine_joint(a.joint, b.joint),
        copies=combine_distinct(a.copies, b.copies),
    )


# -- the bulk of the data, and the grain of its values ------------------------------------------------------------
# The points of :class:`Quantiles` are values of the data.  If all differences of points are multiples of a step, that
# step is the grain of the column: its values were rounded, or recorded on a grid.  Continuous values give steps too
# small to matter.
OUTER = 0.05
"""Share of the weight in each tail that the range of the bulk leaves out."""

REACH = 1.5
"""Multiple of the bulk's range beyond which, on either side, a value is an outlier.

For a Gaussian this is 6.6 standard deviations, for uniform values 3.6 times the half width: data without outliers lose
no value.  Up to 5 % of the atoms on either side may lie anywhere.
"""

FUZZ = 1e-5
"""Share of a column's deviation by which values may miss their grid: single precision does."""

LEAST_GRAIN = 1e-3
"""Share of a column's deviation below which a step is ignored: 1e-7 of the variance.  Continuous values give a step of
about ten times :data:`FUZZ`."""

MANY = 16
"""Distinct values that are enough to tell a grid from continuous values; fewer must be repeated, twice on average."""


@dataclass(frozen=True, eq=False)
class Bulk:
    """Where most of each feature lies.

    Parameters
    ----------
    mean, variance
        Moments of the values near the bulk, ``(D,)``; exact moments of all values if none is far.
    minimum, maximum
        Range of these values, ``(D,)``.
    survey
        Survey from which the bulk was computed.
    """

    mean: np.ndarray
    variance: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray
    survey: Survey


def bulk_of(survey: Survey) -> Bulk:
    """Moments without values that lie more than :data:`REACH` ranges beyond the bulk of their feature.

    The range of the bulk runs from the 5 % to the 95 % quantile.  If most values are equal, these two may coincide;
    then the range is computed from the other values and extended to the most frequent one.  Features without quantiles
    (counts of many words) have the moments of all values.
    """
    exact = Bulk(survey.mean, survey.variance, survey.minimum, survey.maximum, survey)
    points = survey.quantiles
    if points.values.size == 0:
        return exact
    lower, upper = _fences(points)
    clean = (survey.minimum >= lower) & (survey.maximum <= upper)
    if clean.all():
        return exact
    far = (points.values < lower[:, None]) | (points.values > upper[:, None])
    near = points.without(far)
    mean, variance = near.moments()
    held = near.weights > 0
    minimum = np.where(held, points.values, np.inf).min(axis=1)
    maximum = np.where(held, points.values, -np.inf).max(axis=1)
    return Bulk(
        np.where(clean, exact.mean, mean),
        np.where(clean, exact.variance, variance),
        np.where(clean, exact.minimum, minimum),
        np.where(clean, exact.maximum, maximum),
        survey,
    )


def _fences(points: Quantiles) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest value that belongs to the bulk, ``(D,)`` each."""
    low, high = points.at(OUTER), points.at(1.0 - OUTER)
    flat = low == high
    if flat.any():
        mode = low[:, None]
        rest = points.without((points.values == mode) | ~flat[:, None])
        alone = rest.weights.sum(axis=1) == 0
        rest = Quantiles(rest.values, np.where(alone[:, None], points.weights, rest.weights))
        low = np.where(flat, np.minimum(low, rest.at(OUTER)), low)
        high = np.where(flat, np.maximum(high, rest.at(1.0 - OUTER)), high)
    reach = REACH * (high - low)
    return low - reach, high + reach


def grain_of(survey: Survey) -> np.ndarray:
    """Grid steps of the columns, ``(D,)`` in units of the data; 0 for continuous columns.

    Values far from the bulk do not count.  Surveys without quantiles know no grain.
    """
    out = np.zeros(survey.n_features)
    points = survey.quantiles
    if points.values.size == 0:
        return out
    bulk = bulk_of(survey)
    for j in range(len(out)):
        held = points.values[j][points.weights[j] > 0]
        inside = np.unique(held[(held >= bulk.minimum[j]) & (held <= bulk.maximum[j])])
        if len(inside) < 2 or (len(inside) < MANY and survey.n_atoms < 2 * len(inside)):
            continue
        out[j] = _step(inside, float(np.sqrt(bulk.variance[j])))
    return out


def _step(values: np.ndarray, deviation: float) -> float:
    """Largest step that divides all differences of ascending ``values``; 0 if it is too small to matter."""
    fuzz = FUZZ * deviation + 8 * np.finfo(np.float64).eps * float(np.abs(values).max())
    step, near = 0.0, np.sort(np.diff(values))  # small ones first: errors of large multiples would add up
    if near[0] <= fuzz:  # the rounding of numbers far from zero hides any step
        return 0.0
    for i, gap in enumerate(near.tolist(), 1):
        step = _common(gap, step, fuzz)
        if step < LEAST_GRAIN * deviation:
            return 0.0
        step = float(near[:i].sum() / np.round(near[:i] / step).sum())
    gaps = values - values[0]
    times = np.round(gaps / step)
    step = float(gaps @ times / (times @ times))  # rounding of single gaps is averaged out
    return step if np.abs(gaps - step * times).max() <= 2 * fuzz else 0.0


def _common(a: float, b: float, fuzz: float) -> float:
    """Largest common divisor of two lengths, up to ``fuzz`` (Euclid)."""
    while b > fuzz:
        rest = a % b
        a, b = b, (0.0 if b - rest <= fuzz else rest)
    return a
