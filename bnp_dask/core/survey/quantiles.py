"""Quantiles of every feature from one pass: few weighted points per feature, which add up over batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from bnp_dask.kernels.numeric.quantiles import merge_rows, thin_rows

POINTS = 64
"""Points per feature that a batch keeps, at most: 1 kB."""

TOTAL_POINTS = 128
"""Points per feature of several batches together, at most."""

MOST_POINTS, LEAST_POINTS = 2**15, 32
"""Points of all features together, at most (0.5 MB), unless each has the least number: what the coordinator holds is
this for each time that the number of batches doubles."""

MOST_SPARSE = 1024
"""Columns of sparse counts up to which quantiles are kept: nobody asks for those of a vocabulary."""

NOTHING, NO_SETS = (np.zeros((0, 0)), np.zeros((0, 0))), np.zeros((0, 2), np.int64)
"""Points of unknown quantiles, and the sets that these are of."""

_TILE_NUMBERS = 2**17
"""Numbers that are sorted at a time (1 MB)."""

_Points = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Values, weights and numbers of points of some features, see :func:`bnp_dask.kernels.numeric.quantiles.thin_rows`."""


@dataclass(frozen=True, eq=False)
class Quantiles:
    """Weighted points of each feature that have about the quantiles of all values.

    Exact where a feature has few distinct values (up to :data:`POINTS` in each batch and :data:`TOTAL_POINTS` in all);
    values that many atoms share stay exact always.  Otherwise a rank is off by at most one part in 128 of a batch, and
    by one in 256 for each time that the number of batches doubles.  Of more than 256 features each has fewer points,
    down to :data:`LEAST_POINTS` from 1,024 on.

    Parameters
    ----------
    values
        Ascending values of each feature, ``(D, P)``; what is beyond its last point repeats that.  P is 0 where no
        quantiles are known.
    weights
        Their weights, ``(D, P)``; 0 beyond the last point.
    """

    values: np.ndarray
    weights: np.ndarray

    @property
    def is_unknown(self) -> bool:
        """Whether there is nothing to tell quantiles from."""
        return self.values.shape == (0, 0)

    def without(self, positions: np.ndarray) -> Quantiles:
        """Points, of which those at ``positions (D, P)``, bool, weigh nothing."""
        return Quantiles(self.values, np.where(positions, 0.0, self.weights))

    def features(self, index: np.ndarray) -> Quantiles:
        """Those of some features, at the positions ``index``."""
        return self if self.is_unknown else Quantiles(self.values[index], self.weights[index])

    def at(self, share: float) -> np.ndarray:
        """Least value of each feature at or below which there is ``share`` of the weight, ``(D,)``."""
        below = np.cumsum(self.weights, axis=1)
        # sums of shares may miss the whole by rounding
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
    """No quantiles, as of counts of many words."""
    return Quantiles(*NOTHING)


def quantiles_of(x: np.ndarray | sparse.csr_array, weights: np.ndarray | None) -> Quantiles:
    """Quantiles of the columns of one batch ``(n, D)``; atoms whose weight ``(n,)`` is 0 do not count, nor does NaN."""
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
        columns[missing] = 0.0  # of no weight
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
    """Quantiles of batches that come one after the other.

    Equally many batches are joined with one another, so that no point is thinned more often than the number of batches
    doubles; held are those of at most so many sets of batches.  What it comes to depends on the batches and their order
    alone, also where it is taken apart with :meth:`to_arrays` between two of them.

    Parameters
    ----------
    parts
        Sets of batches: how often each was joined, and its quantiles.
    """

    parts: tuple[tuple[int, Quantiles], ...] = ()

    @classmethod
    def from_arrays(cls, values: np.ndarray, weights: np.ndarray, sets: np.ndarray) -> QuantileTotal:
        """Inverse of :meth:`to_arrays`, of views; without any set nothing is known of what came before."""
        if len(sets) == 0:
            return cls(((0, unknown()),))
        ends = np.cumsum(sets[:, 1])
        bounds = [slice(int(end - width), int(end)) for end, width in zip(ends, sets[:, 1], strict=True)]
        parts = [Quantiles(values[:, here], weights[:, here]) for here in bounds]
        return cls(tuple(zip(sets[:, 0].tolist(), parts, strict=True)))

    def to_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values and weights of all sets side by side, ``(D, P)``, and how often each was joined and its width."""
        if not self.parts or any(part.is_unknown for _, part in self.parts):
            return (*NOTHING, NO_SETS)
        sets = np.array([[level, part.values.shape[1]] for level, part in self.parts], np.int64)
        values = np.concatenate([part.values for _, part in self.parts], axis=1)
        return values, np.concatenate([part.weights for _, part in self.parts], axis=1), sets

    def with_batch(self, part: Quantiles) -> QuantileTotal:
        """These batches and the next."""
        level, parts = 0, list(self.parts)
        while parts and parts[-1][0] == level:
            part = joined(parts.pop()[1], part)
            level += 1
        return QuantileTotal((*parts, (level, part)))

    def features(self, index: np.ndarray) -> QuantileTotal:
        """Those of some features, at the positions ``index``."""
        return QuantileTotal(tuple((level, part.features(index)) for level, part in self.parts))

    def value(self) -> Quantiles:
        """Quantiles of all batches so far."""
        parts = [part for _, part in reversed(self.parts)]
        total = parts[0] if parts else unknown()
        for part in parts[1:]:
            total = joined(part, total)
        return total


NO_BATCHES = QuantileTotal()
"""Of no batches yet."""


def joined(a: Quantiles, b: Quantiles) -> Quantiles:
    """Quantiles of two sets of atoms together; unknown where those of one are."""
    if a.is_unknown or b.is_unknown:
        return unknown()
    if 0 in (a.values.shape[1], b.values.shape[1]):  # one of them has no atoms
        return b if a.values.shape[1] == 0 else a
    merged = merge_rows(*(np.ascontiguousarray(rows) for rows in (a.values, a.weights, b.values, b.weights)))
    return _side_by_side([thin_rows(*merged, _at_most(TOTAL_POINTS, len(a.values)))])


def _at_most(points: int, n_features: int) -> int:
    """Points of each of so many features."""
    return max(LEAST_POINTS, min(points, MOST_POINTS // max(1, n_features)))


def _side_by_side(found: Sequence[_Points]) -> Quantiles:
    """Points of all features, no wider than the longest."""
    if not found:
        return Quantiles(np.zeros((0, 0)), np.zeros((0, 0)))
    width = max(int(counts.max(initial=0)) for _, _, counts in found)
    values, weights = (np.concatenate([part[i][:, :width] for part in found]) for i in (0, 1))
    return Quantiles(values, weights)
