"""What one pass over the data tells: sizes, moments, ranges, quantiles, checksums.  Additive over batches."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import sparse

from bnp_dask.core.batch import Batch, check_weights
from bnp_dask.core.quantiles import NO_BATCHES, Quantiles, QuantileTotal, quantiles_of, unknown
from bnp_dask.errors import DataError
from bnp_dask.inputs.levels import Levels
from bnp_dask.kernels.numeric.arithmetic import matmul

_TILE_BYTES = 2**20
"""Dense rows are looked at in tiles of this size: temporaries stay small beside the batch."""


LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 2.0**53
"""Range of the sum of all weights.

Pseudo-counts of the prior are about 1, and the objective holds differences of functions of the sums of both: rounding
leaves 1e-16, or a share of 1e-10 of the least.  To the most, one more is still something.
"""


NONE_MISSING = np.zeros(0)
"""Of data in which no entry is missing."""


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
        Range of each feature, ``(D,)``; +inf and -inf where there is no atom.
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
        Groups: documents of sparse counts, groups of dense rows; 0 for rows that come in none.
    batch_weights
        Sum of the weights in each batch, in batch order.
    names
        Names of the features, ``(D,)``, for messages about priors; None where they have none.
    points
        What the quantiles of these batches, and of more, are made of.
    missing
        Weight of the atoms that lack each feature, ``(D,)``; of length 0 where no entry is missing.  Moments, ranges
        and quantiles of a feature are those of the atoms that have it.
    finds_grain
        Whether priors may be told the resolution of values; not in runs that older versions began.
    levels
        Levels of each feature whose values are places among them, None for others, ``(D,)``; None where no feature has
        levels, or nobody knows them.
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
    finds_grain: bool = True
    levels: tuple[Levels | None, ...] | None = None

    @property
    def quantiles(self) -> Quantiles:
        """Quantiles of each feature."""
        return self.points.value()

    def without_quantiles(self) -> Survey:
        """The facts but for quantiles, so that priors are set from the moments of all values."""
        return replace(self, points=QuantileTotal(((0, unknown()),)))

    @property
    def n_features(self) -> int:
        """Number of features D, or words V."""
        return len(self.mean)

    @property
    def n_batches(self) -> int:
        """Number of batches B."""
        return len(self.batch_atoms)

    def features(self, index: np.ndarray) -> Survey:
        """What is known of some features, at the positions ``index``."""
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
        )

    def called(self, index: np.ndarray) -> str:
        """How messages call some columns: the first ones by name, or else by number."""
        shown = np.asarray(index)[:10].tolist()
        return str(shown if self.names is None else [self.names[i] for i in shown])


@dataclass(frozen=True, eq=False)
class _Moments:
    """Weight ``()``, mean, variance, minimum and maximum ``(D,)`` of some atoms; ``missing`` as in a survey."""

    weight: float
    mean: np.ndarray
    variance: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray
    missing: np.ndarray = field(default_factory=lambda: NONE_MISSING)


def survey_batch(batch: Batch, may_miss: bool = False) -> Survey:
    """Survey of one batch; a batch without atoms counts as zero atoms.

    Parameters
    ----------
    batch
        Atoms.
    may_miss
        Whether NaN in dense rows is an entry that is missing.

    Raises
    ------
    DataError
        A value is NaN or infinite, or a weight is missing, NaN, infinite or negative; names batch, row and column.
    """
    weights = None if batch.weights is None else check_weights(batch.weights, batch.n_atoms, batch.name)
    if isinstance(batch.x, np.ndarray):
        moments = _dense_moments(batch.x, weights, batch, may_miss)
    else:
        moments = _sparse_moments(batch.x, weights, batch)
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
        points=NO_BATCHES.with_batch(quantiles_of(batch.x, weights)),
        missing=moments.missing,
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
    """A survey of some batches, None for none of them, and those of more: as if all had been combined at once."""
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
    """DataError when there is no atom at all, or the weights sum to zero or to what float64 cannot tell apart."""
    if total is None or total.n_atoms == 0:
        where = "there are no batches" if total is None else f"{total.name} and all other batches are empty"
        raise DataError(f"the data set has no atoms: {where}")
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


def checksum(batch: Batch) -> int:
    """CRC-32 of shape, kind, values and weights of a batch; words that others brought are not of it."""
    if isinstance(batch.x, np.ndarray):
        parts = [batch.x[:, : batch.read_width]]
    else:
        parts = [batch.x.data, batch.x.indices, batch.x.indptr]
    if batch.weights is not None:
        parts.append(batch.weights)
    if batch.groups is not None:
        parts.append(batch.groups)
    # index arrays may be 32 or 64 bit, depending on where the batch came from
    kinds = [np.dtype(np.int64) if p.dtype.kind == "i" else p.dtype for p in parts]
    shape = batch.x.shape if batch.read_width is None else (batch.n_atoms, batch.read_width)
    value = zlib.crc32(repr((shape, batch.is_sparse, [str(kind) for kind in kinds])).encode())
    for part, kind in zip(parts, kinds, strict=True):
        rows = max(1, _TILE_BYTES // (8 * max(1, part[:1].size)))
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
    moments = _combine_moments(
        _Moments(a.total_weight, a.mean, a.variance, a.minimum, a.maximum, a.missing),
        _Moments(b.total_weight, b.mean, b.variance, b.minimum, b.maximum, b.missing),
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
    )


def _combine_moments(a: _Moments, b: _Moments) -> _Moments:
    if a.missing.size or b.missing.size:
        return _combine_by_feature(a, b)
    weight = a.weight + b.weight
    minimum = np.minimum(a.minimum, b.minimum)
    maximum = np.maximum(a.maximum, b.maximum)
    if b.weight == 0 or a.weight == 0:
        heavy = a if b.weight == 0 else b
        return _Moments(weight, heavy.mean, heavy.variance, minimum, maximum)
    share_a, share_b = a.weight / weight, b.weight / weight
    shift = b.mean - a.mean
    mean = a.mean + share_b * shift
    variance = share_a * a.variance + share_b * b.variance + (share_a * share_b) * shift**2
    return _Moments(weight, mean, variance, minimum, maximum)


def _combine_by_feature(a: _Moments, b: _Moments) -> _Moments:
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
    return _Moments(a.weight + b.weight, mean, variance, minimum, maximum, missing_a + missing_b)


def _no_moments(n_features: int) -> _Moments:
    zero = np.zeros(n_features)
    return _Moments(0.0, zero, zero, np.full(n_features, np.inf), np.full(n_features, -np.inf))


def _dense_moments(x: np.ndarray, weights: np.ndarray | None, batch: Batch, may_miss: bool) -> _Moments:
    total = _no_moments(x.shape[1])
    if x.shape[1] == 0:
        return replace(total, weight=float(len(x) if weights is None else weights.sum()))
    rows = max(1, _TILE_BYTES // (8 * x.shape[1]))
    for start in range(0, len(x), rows):
        tile = x[start : start + rows]
        part = None if weights is None else weights[start : start + rows]
        finite = np.isfinite(tile)
        if finite.all():
            total = _combine_moments(total, _tile_moments(tile, part))
            continue
        wrong = ~finite & ~np.isnan(tile) if may_miss else ~finite
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise _not_finite(batch, start + row, column, tile[row, column])
        total = _combine_moments(total, _gappy_moments(tile, part, finite))
    return total


def _tile_moments(tile: np.ndarray, weights: np.ndarray | None) -> _Moments:
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
    return _Moments(weight, origin + shift, variance, tile.min(axis=0), tile.max(axis=0))


def _gappy_moments(tile: np.ndarray, weights: np.ndarray | None, held: np.ndarray) -> _Moments:
    """Moments of a tile of which only the entries ``held (n, D)`` are there."""
    rows = np.ones(len(tile)) if weights is None else weights
    own = matmul(rows, held.astype(np.float64))
    share = np.divide(1.0, own, out=np.zeros_like(own), where=own > 0)
    origin = np.where(held.any(axis=0), tile[held.argmax(axis=0), np.arange(tile.shape[1])], 0.0)
    deviation = np.where(held, tile - origin, 0.0)
    shift = matmul(rows, deviation) * share
    variance = matmul(rows, np.where(held, deviation - shift, 0.0) ** 2) * share
    minimum, maximum = np.where(held, tile, np.inf).min(axis=0), np.where(held, tile, -np.inf).max(axis=0)
    missing = matmul(rows, (~held).astype(np.float64))
    return _Moments(float(rows.sum()), origin + shift, variance, minimum, maximum, missing)


def _sparse_moments(x: sparse.csr_array, weights: np.ndarray | None, batch: Batch) -> _Moments:
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
        return _Moments(0.0, np.zeros(v), np.zeros(v), minimum, maximum)
    mean, square = first / total, np.zeros(v)
    for word, count, weight in _entries(x, weights):
        square += np.bincount(word, weight * (count - mean[word]) ** 2, minlength=v)
    # the entries that are not stored are zeros, each at squared distance mean**2
    variance = (square + np.maximum(total - present, 0.0) * mean**2) / total
    return _Moments(total, mean, variance, minimum, maximum)


def _entries(x: sparse.csr_array, weights: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Columns, counts and weights of the stored entries, a tile at a time; tiles are not small beside a row."""
    size = max(_TILE_BYTES // 8, x.shape[1])
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
