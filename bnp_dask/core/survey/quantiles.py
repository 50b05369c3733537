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
"""Points of all features together, at most (0.5 MB), unless each has the least number.  The coordinator holds this much
for each doubling of the number of batches."""

MOST_SPARSE = 1024
"""Most columns of sparse counts for which quantiles are kept; quantiles of a vocabulary are never used."""

NOTHING, NO_SETS = (np.zeros((0, 0)), np.zeros((0, 0))), np.zeros((0, 2), np.int64)
"""Points of unknown quantiles, and their sets of batches."""

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
    """Quantiles of two sets of atoms together; unknown if either is unknown."""
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
