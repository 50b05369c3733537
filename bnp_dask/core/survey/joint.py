"""Joint second moments of columns, from one pass: a survey has them for columns whose likelihood requests them.

Likelihoods with correlations request them, because only these moments show which columns are functions of others.
They add up over batches like moments of single columns, at the cost of one product of a batch with itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bnp_dask.core.survey.moments import TILE_BYTES
from bnp_dask.kernels.numeric.arithmetic import matmul

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
