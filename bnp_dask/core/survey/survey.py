"""Survey of the data by one pass: sizes, moments, ranges, quantiles, checksums.  Additive over batches."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from bnp_dask.core.batch import Batch, check_weights
from bnp_dask.core.survey.copies import NO_ROWS, DistinctRows, combine_distinct, distinct_rows
from bnp_dask.core.survey.moments import (
    NO_JOINT,
    NONE_MISSING,
    TILE_BYTES,
    JointMoments,
    Moments,
    combine_joint,
    combine_moments,
    dense_moments,
    joint_moments,
    sparse_moments,
    weight_alone,
)
from bnp_dask.core.survey.quantiles import NO_BATCHES, Quantiles, QuantileTotal, quantiles_of
from bnp_dask.errors import DataError
from bnp_dask.inputs.levels import Levels

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
