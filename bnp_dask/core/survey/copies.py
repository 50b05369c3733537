"""Rows that occur several times: a sample of the distinct rows of any data, and how often each occurs.

The sample holds the rows with the smallest hashes.  Hashes look like random numbers, so these are drawn uniformly among
the distinct rows; and a row among the smallest of all data is among the smallest of each batch that has it, so that
samples of batches combine to the sample of all, with exact counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import sparse

NAMES = ("copies_hashes", "copies_counts", "copies_rows")
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
        """As arrays of the names :data:`NAMES`."""
        return dict(zip(NAMES, (self.hashes, self.counts, self.rows), strict=True))

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> DistinctRows:
        """Inverse of :meth:`to_arrays`."""
        return DistinctRows(*(np.asarray(arrays[name]) for name in NAMES))


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
    """Hash of each row of ``x (n, D)``, ``(n,)`` uint64; equal rows have equal hashes, dense or sparse."""
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
