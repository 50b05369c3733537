"""Quantiles of every feature from one pass: few weighted points per feature, which add up over batches."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

from bnp_dask.kernels.quantiles import thin_sorted

POINTS = 64
"""Points per feature that a batch keeps, at most: 1 kB."""

TOTAL_POINTS = 128
"""Points per feature of several batches together, at most."""

MOST_SPARSE = 1024
"""Columns of sparse counts up to which quantiles are kept: nobody asks for those of a vocabulary."""

NOTHING, NO_SETS = (np.zeros((0, 0)), np.zeros((0, 0))), np.zeros((0, 2), np.int64)
"""Points of unknown quantiles, and the sets that these are of."""

_TILE_NUMBERS = 2**17
"""Numbers that are sorted at a time (1 MB)."""


@dataclass(frozen=True, eq=False)
class Quantiles:
    """Weighted points of each feature that have about the quantiles of all values.

    Exact where a feature has few distinct values (up to :data:`POINTS` in each batch and :data:`TOTAL_POINTS` in all);
    values that many atoms share stay exact always.  Otherwise a rank is off by at most one part in 128 of a batch, and
    by one in 256 for each time that the number of batches doubles.

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
        """The same points, of which those at ``positions (D, P)``, bool, weigh nothing."""
        return Quantiles(self.values, np.where(positions, 0.0, self.weights))

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
    """Quantiles of the columns of one batch ``(n, D)``, finite; atoms whose weight ``(n,)`` is 0 do not count."""
    if not isinstance(x, np.ndarray):
        return unknown() if x.shape[1] > MOST_SPARSE else _of_sparse(sparse.csc_array(x), weights)
    n, d = x.shape
    found = _Points(d, POINTS)
    ones = np.ones(n)
    step = max(1, _TILE_NUMBERS // max(1, n))
    for start in range(0, d, step):
        columns = np.array(x[:, start : start + step].T, np.float64, order="C")
        if weights is None:
            columns.sort(axis=1)
        for j, values in enumerate(columns, start):
            if weights is None:
                found.put(j, values, ones)
            else:
                order = np.argsort(values, kind="stable")
                found.put(j, values[order], weights[order])
    return found.done()


def _of_sparse(x: sparse.csc_array, weights: np.ndarray | None) -> Quantiles:
    n, d = x.shape
    found = _Points(d, POINTS)
    total = float(n if weights is None else weights.sum())
    for j in range(d):
        here = slice(x.indptr[j], x.indptr[j + 1])
        own = np.ones(x.indptr[j + 1] - x.indptr[j]) if weights is None else weights[x.indices[here]]
        values = np.append(np.asarray(x.data[here], np.float64), 0.0)
        own = np.append(own, max(total - own.sum(), 0.0))
        order = np.argsort(values, kind="stable")
        found.put(j, values[order], own[order])
    return found.done()


@dataclass
class QuantileTotal:
    """Quantiles of batches that come one after the other.

    Equally many batches are joined with one another, so that no point is thinned more often than the number of batches
    doubles; held are those of at most so many sets of batches.  What it comes to depends on the batches and their order
    alone, also where it is taken apart with :meth:`to_arrays` between two of them.
    """

    _parts: list[tuple[int, Quantiles]] = field(default_factory=list)

    @classmethod
    def from_arrays(cls, values: np.ndarray, weights: np.ndarray, sets: np.ndarray) -> QuantileTotal:
        """Inverse of :meth:`to_arrays`; without any set nothing is known of what came before."""
        if len(sets) == 0:
            return cls([(0, unknown())])
        ends = np.cumsum(sets[:, 1])
        bounds = [slice(int(end - width), int(end)) for end, width in zip(ends, sets[:, 1], strict=True)]
        parts = [Quantiles(values[:, here], weights[:, here]) for here in bounds]
        return cls(list(zip(sets[:, 0].tolist(), parts, strict=True)))

    def to_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values and weights of all sets side by side, ``(D, P)``, and how often each was joined and its width."""
        if not self._parts or any(part.is_unknown for _, part in self._parts):
            return (*NOTHING, NO_SETS)
        sets = np.array([[level, part.values.shape[1]] for level, part in self._parts], np.int64)
        values = np.concatenate([part.values for _, part in self._parts], axis=1)
        return values, np.concatenate([part.weights for _, part in self._parts], axis=1), sets

    def add(self, part: Quantiles) -> None:
        """Take in the next batch."""
        level = 0
        while self._parts and self._parts[-1][0] == level:
            part = joined(self._parts.pop()[1], part)
            level += 1
        self._parts.append((level, part))

    def value(self) -> Quantiles:
        """Quantiles of all batches so far."""
        parts = [part for _, part in reversed(self._parts)]
        total = parts[0] if parts else unknown()
        for part in parts[1:]:
            total = joined(part, total)
        return total


def joined(a: Quantiles, b: Quantiles) -> Quantiles:
    """Quantiles of two sets of atoms together; unknown where those of one are."""
    if a.is_unknown or b.is_unknown:
        return unknown()
    if 0 in (a.values.shape[1], b.values.shape[1]):  # one of them has no atoms
        return b if a.values.shape[1] == 0 else a
    found = _Points(len(a.values), TOTAL_POINTS)
    values = np.concatenate([a.values, b.values], axis=1)
    weights = np.concatenate([a.weights, b.weights], axis=1)
    order = np.argsort(values, axis=1, kind="stable")
    values, weights = np.take_along_axis(values, order, axis=1), np.take_along_axis(weights, order, axis=1)
    for j in range(len(values)):
        found.put(j, values[j], weights[j])
    return found.done()


class _Points:
    """Points of each feature while they are found."""

    def __init__(self, n_features: int, limit: int) -> None:
        self.limit = limit
        self.values, self.weights = np.zeros((n_features, limit)), np.zeros((n_features, limit))
        self.counts = np.zeros(n_features, np.int64)

    def put(self, feature: int, values: np.ndarray, weights: np.ndarray) -> None:
        """Thin ascending values of a feature and keep what is left of them."""
        own = self.values[feature]
        found = thin_sorted(values, weights, self.limit, own, self.weights[feature])
        own[found:] = own[found - 1] if found else 0.0
        self.counts[feature] = found

    def done(self) -> Quantiles:
        """All of it, no wider than the longest."""
        width = int(self.counts.max(initial=0))
        return Quantiles(self.values[:, :width].copy(), self.weights[:, :width].copy())
