"""Coherence of the words of topics: NPMI, UMass and c_v, from counts of words and of pairs.

Counts are of documents, or of a window that slides over texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from bnp_dask.analysis.base import vocabulary_of
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs import shown
from bnp_dask.model import Posterior

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


# -- counts of windows ---------------------------------------------------------------------------------------------
WINDOW_WORDS = 110
"""Words of a window of c_v (Roeder et al. 2015)."""

WINDOWS_AT_ONCE = 4096
"""Number of windows of a long text that are counted together."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows with words of the topics, and the number of all windows."""

    pairs: Pairs
    total: int


def count_windows(
    posterior: Posterior, texts: Iterable[str | Sequence[str]], column: np.ndarray, size: int = WINDOW_WORDS
) -> Windows:
    """Slide a window over texts, by one word each time; a shorter text is one window.

    Parameters
    ----------
    posterior
        Posterior with the words, and with the tokenizer of texts.
    texts
        Raw texts, or lists of words; read once.  Texts without words have no window.
    column
        Words of each topic, ``(K, n)`` columns.
    size
        Words of a window, including words that are unknown to the posterior.

    Raises
    ------
    DataError
        A posterior without a vocabulary, or values other than texts.
    """
    chosen, inverse = np.unique(column, return_inverse=True)
    place = inverse.reshape(column.shape)
    names = posterior.feature_names
    if names is None:
        raise DataError("the posterior knows no words, so they cannot be found in texts; train with a vocabulary")
    known = {names[v]: i for i, v in enumerate(chosen.tolist())}
    k, n = column.shape
    single, both, total = np.zeros(len(chosen)), np.zeros((k, n, n)), 0
    for words in _cut(posterior, texts):
        code = np.fromiter(map(known.get, words, repeat(-1)), np.int64, len(words))
        for start in range(0, max(1, len(code) - size + 1), WINDOWS_AT_ONCE):
            piece = code[start : start + WINDOWS_AT_ONCE + size - 1]
            n_windows = max(1, len(piece) - size + 1)
            total += n_windows
            own, together = _in_one(piece, size, n_windows)
            if len(own):
                _add(single, both, place, own, together)
    return Windows(Pairs(column, single[place], both), total)


def require_texts(texts: object) -> None:
    """Raise DataError for a single text, and for any value that is not a series of texts."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise DataError(f"texts={shown(texts)}: needs several texts, or lists of words")


def _in_one(code: np.ndarray, size: int, n_windows: int) -> tuple[np.ndarray, np.ndarray]:
    """Relevant words of a text, ``(R,)``, and the number of its windows with both words of each pair, ``(R, R)``."""
    at = np.flatnonzero(code >= 0)
    own, word = np.unique(code[at], return_inverse=True)
    # an occurrence is in the windows that begin at most size - 1 words before it
    first, last = np.maximum(at - size + 1, 0), np.minimum(at, n_windows - 1) + 1
    edges = np.unique(np.concatenate([first, last]))
    held = np.zeros((len(own), len(edges)))
    np.add.at(held, (word, np.searchsorted(edges, first)), 1.0)
    np.add.at(held, (word, np.searchsorted(edges, last)), -1.0)
    # between two edges all windows hold the same words
    there = (np.cumsum(held, axis=1) > 0)[:, :-1].astype(np.float64)
    return own, (there * np.diff(edges)) @ there.T


def _add(single: np.ndarray, both: np.ndarray, place: np.ndarray, own: np.ndarray, together: np.ndarray) -> None:
    """Add the counts of one text to the totals."""
    single[own] += np.diag(together)
    local = np.full(len(single), -1)
    local[own] = np.arange(len(own))
    at = local[place]
    some = np.flatnonzero((at >= 0).any(axis=1))
    padded = np.pad(together, (0, 1))  # the last row and column are for absent words
    both[some] += padded[at[some][:, :, None], at[some][:, None, :]]


def _cut(posterior: Posterior, texts: Iterable[str | Sequence[str]]) -> Iterator[list[str]]:
    """Words of each text with at least one."""
    analyze: Callable[[str], list[str]] | None = None
    for number, text in enumerate(texts):
        if isinstance(text, str):
            analyze = _analyzer(posterior) if analyze is None else analyze
            words = analyze(text)
        elif isinstance(text, (list, tuple, np.ndarray)) and all(isinstance(word, str) for word in text):
            words = list(text)
        else:
            raise DataError(f"texts: number {number} is {shown(text)}; needs a text, or a list of words")
        if words:
            yield words


def _analyzer(posterior: Posterior) -> Callable[[str], list[str]]:
    analysis = vocabulary_of(posterior).analysis
    if analysis is None:
        raise DataError("the posterior does not know how texts are cut into words; give lists of words")
    return analysis.analyzer()
