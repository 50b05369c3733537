"""Coherence of the words of topics: NPMI, UMass and c_v, from counts of words and of pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnp_dask.errors import SettingError

EPSILON = 1e-12
"""Added to probabilities of pairs in c_v (Roeder et al. 2015), so that pairs that never occur have a logarithm."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Number of documents, or windows, with each chosen word of a topic, ``(K, n)``, and with both words of each pair,
    ``(K, n, n)``; on the diagonal with the single word."""

    column: np.ndarray
    single: np.ndarray
    both: np.ndarray

    def __add__(self, other: Pairs) -> Pairs:
        return Pairs(self.column, self.single + other.single, self.both + other.both)

    def first(self, n: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Counts of the first ``n`` words, ``(K, n)`` and ``(K, n, n)``; SettingError for more than were counted."""
        counted = self.single.shape[1]
        n = counted if n is None else n
        if not 2 <= n <= counted:
            raise SettingError(f"n={n}: the survey counted {counted} words per topic; needs 2 to {counted}")
        return self.single[:, :n], self.both[:, :n, :n]


def npmi(single: np.ndarray, both: np.ndarray, total: float) -> np.ndarray:
    """Mean over pairs of words of their normalized pointwise mutual information, ``(K,)``; Bouma 2009."""
    p, q = both / total, single / total
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.log(p) - np.log(q[:, :, None]) - np.log(q[:, None, :])
        value = np.where(p > 0, information / -np.log(p), -1.0)
    # both in every document: the limit
    value = np.where(p >= 1.0, 1.0, value)
    return _mean_of_pairs(value)


def umass(single: np.ndarray, both: np.ndarray) -> np.ndarray:
    """Mean over pairs of words of log((D(v, w) + 1) / D(w)), w the foremost, ``(K,)``; Mimno et al. 2011."""
    with np.errstate(divide="ignore"):
        value = np.log(both + 1.0) - np.log(single[:, None, :])
    value = np.where(single[:, None, :] > 0, value, np.nan)
    return _mean_of_pairs(value)


def c_v(single: np.ndarray, both: np.ndarray, total: float) -> np.ndarray:
    """Mean over words of the cosine between their NPMI vector and the vector of all words together, ``(K,)``.

    Roeder, Both and Hinneburg 2015, table 8: one-set segmentation, normalized log-ratio, cosine, arithmetic mean.
    NaN for topics of which fewer than two words occur.
    """
    return np.array([_cosines(*counts, total) for counts in zip(single, both, strict=True)], np.float64)


def _cosines(single: np.ndarray, both: np.ndarray, total: float) -> float:
    there = single > 0
    if there.sum() < 2:
        return np.nan
    p, q = both[np.ix_(there, there)] / total + EPSILON, single[there] / total
    with np.errstate(divide="ignore"):
        vectors = np.log(p / np.outer(q, q)) / -np.log(p)
    # both in every window: the limit
    vectors = np.where(p >= 1.0, 1.0, vectors)
    whole = vectors.sum(axis=0)
    length = np.linalg.norm(vectors, axis=1) * np.linalg.norm(whole)
    # vectors have a one on the diagonal; their sum may vanish
    return float(np.divide(vectors @ whole, length, out=np.zeros(len(length)), where=length > 0).mean())


def _mean_of_pairs(value: np.ndarray) -> np.ndarray:
    """Mean over pairs below the diagonal (word i after word j), NaN entries left out, ``(K,)``."""
    i, j = np.tril_indices(value.shape[1], -1)
    chosen = value[:, i, j]
    there = ~np.isnan(chosen)
    count = there.sum(axis=1)
    return np.where(count > 0, np.where(there, chosen, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)
