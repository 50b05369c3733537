"""Moments of atoms, a tile at a time: weight, mean, variance and range of each feature, in rows and in counts.

Joint second moments of columns come from the same pass, for columns whose likelihood requests them.  Likelihoods with
correlations do, because only these moments show which columns are functions of others.  They add up over batches like
moments of single columns, at the cost of one product of a batch with itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import sparse

from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError
from bnp_dask.kernels.numeric.arithmetic import matmul

TILE_BYTES = 2**20
"""Dense rows are looked at in tiles of this size: temporaries stay small beside the batch."""


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
NAMES = ("joint_columns", "joint_sizes", "joint_mean", "joint_covariance")
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
        """As arrays of the names :data:`NAMES`."""
        values = (self.columns, np.array([self.count, self.weight]), self.mean, self.covariance)
        return dict(zip(NAMES, values, strict=True))

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> JointMoments:
        """Inverse of :meth:`to_arrays`."""
        columns, (count, weight), mean, covariance = (np.asarray(arrays[name]) for name in NAMES)
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
