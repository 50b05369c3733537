"""Topics as people read them: their words, coherence, sizes and documents; over time; and in one document.

Words are ordered by probability, by lift, and by relevance.  As points in the plane, topics are near one another if
their words are alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from functools import reduce
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa
from scipy import sparse
from scipy.special import psi

from bnp_dask.analysis.base import (
    WINDOW,
    computing_as,
    open_for,
    require_posterior,
    runner_for,
    texts_in,
    vocabulary_of,
)
from bnp_dask.core import HEAD, Batch, Table, TopicLine, TopicList, listed
from bnp_dask.core import in_order as in_their_order
from bnp_dask.core.columns import few
from bnp_dask.data import Reader, Source, batch_reader, load_documents
from bnp_dask.errors import DataError, SettingError, answering, nearest
from bnp_dask.execute import Executor, in_order
from bnp_dask.inputs import is_whole, number_from, one_of, plain, shown, whole_number
from bnp_dask.kernels import matmul, resp_from_weights
from bnp_dask.model import Posterior, brief
from bnp_dask.observation import Multinomial
from bnp_dask.structure import (
    as_documents,
    check_documents,
    counts_words,
    find_topics,
    in_use,
    normalized,
    noun_of,
    own_step,
    prior_mass,
    shares_of,
    unused_line,
)

if TYPE_CHECKING:
    from distributed import Client


Ranking = Literal["probability", "lift", "relevance"]

RELEVANCE = 0.6
"""Weight of log probability against log lift that readers preferred (Sievert and Shirley 2014)."""

LEAST_TOKENS = 5.0
"""Least tokens in the corpus of a word listed by lift: words seen once have the largest lift."""


def word_probabilities(posterior: Posterior) -> np.ndarray:
    """E[phi_k], the expected probability of each word in each topic, ``(K, V)``; rows sum to one.

    Raises
    ------
    SettingError
        Clusters that do not generate words.
    """
    if not isinstance(require_posterior(posterior).model.observation, Multinomial):
        raise SettingError(
            f"{noun_of(posterior.model).many} of {type(posterior.model.observation).__name__} have no words; this "
            "needs Multinomial()"
        )
    lam = posterior.observation.lam
    return lam / lam.sum(axis=1, keepdims=True)


def token_shares(posterior: Posterior) -> np.ndarray:
    """Share of all tokens that each topic has, ``(K,)``; the expected weights when statistics are not at hand."""
    size = posterior.weights if posterior.summary is None else np.maximum(posterior.summary["N"], 0.0)
    return size / size.sum() if size.sum() > 0 else np.full(len(size), 1.0 / max(1, len(size)))


def by_size(posterior: Posterior) -> np.ndarray:
    """Positions of the topics, largest first, ``(K,)``; ties in the order of the posterior."""
    return np.argsort(-token_shares(posterior), kind="stable")


def in_tables(posterior: Posterior) -> np.ndarray:
    """Positions of the topics that have tokens, largest first, as tables and pages show them."""
    order = by_size(posterior)
    return order[in_use(posterior)[order]]


def marginal(posterior: Posterior) -> np.ndarray:
    """Probability of each word over all topics by their shares of the tokens, ``(V,)``."""
    return token_shares(posterior) @ word_probabilities(posterior)


def lift(posterior: Posterior) -> np.ndarray:
    """Probability of each word in each topic over its probability in all topics, ``(K, V)``."""
    return word_probabilities(posterior) / marginal(posterior)


def relevance(posterior: Posterior, weight: float = RELEVANCE) -> np.ndarray:
    """``weight * log phi + (1 - weight) * log lift``, ``(K, V)`` nats (Sievert and Shirley 2014).

    ``weight=1`` ranks as probability, ``weight=0`` as lift.
    """
    number_from("weight", weight, 0.0, 1.0, "a number between 0 (lift) and 1 (probability)")
    phi = word_probabilities(posterior)
    return weight * np.log(phi) + (1.0 - weight) * np.log(phi / marginal(posterior))


def word_tokens(posterior: Posterior) -> np.ndarray | None:
    """Tokens of each word that the posterior was trained on, ``(V,)``; None without its statistics."""
    return None if posterior.summary is None else np.asarray(posterior.summary["x"]).sum(axis=0)


@dataclass(frozen=True, eq=False)
class TopWords:
    """The foremost words of each topic.

    Parameters
    ----------
    ids
        Topics, ``(K,)`` in the order of the posterior.
    column
        Their words, foremost first: columns of the counts, ``(K, n)``.
    score
        Values by which they were ranked, ``(K, n)``.
    probability
        Probability of these words in the topic, ``(K, n)``.
    words
        Names of all columns, or None.
    """

    ids: np.ndarray
    column: np.ndarray
    score: np.ndarray
    probability: np.ndarray
    words: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return brief(self)

    def names(self, position: int) -> list[str]:
        """Words of the topic at a position."""
        if self.words is None:
            return [f"word {v}" for v in self.column[position]]
        return [self.words[v] for v in self.column[position]]

    def to_table(self) -> pa.Table:
        """One row for each topic and word: topic, rank (from 1), word, column, score, probability."""
        k, n = self.column.shape
        columns = {
            "topic": np.repeat(self.ids, n),
            "rank": np.tile(np.arange(1, n + 1), k),
            "word": [name for i in range(k) for name in self.names(i)],
            "column": self.column.ravel(),
            "score": self.score.ravel(),
            "probability": self.probability.ravel(),
        }
        return pa.table(columns)


@answering
def top_words(
    posterior: Posterior,
    n: int = 10,
    by: Ranking = "relevance",
    weight: float = RELEVANCE,
    words: Sequence[str] | Mapping[Any, Any] | None = None,
    least: float | None = None,
) -> TopWords:
    """The ``n`` foremost words of each topic.

    Parameters
    ----------
    posterior
        Topics over words, or a mixture of documents.
    n
        Words per topic; all of them when there are fewer.
    by
        ``"probability"``, ``"lift"``, or ``"relevance"``, which is between them.
    weight
        Weight of probability in relevance, 0 to 1.
    words
        Names of the columns, ``(V,)``, or a mapping between names and columns, such as gensim's ``Dictionary`` and the
        ``vocabulary_`` of scikit-learn's ``CountVectorizer``, or this itself; default: the posterior's words.
    least
        Least tokens of a listed word in the corpus; default 5 for lift, else 0.

    Returns
    -------
    TopWords
        Words of each topic, best first, in the order of ``posterior.ids``; prints as a table.  Ties go to the earlier
        column.

    Raises
    ------
    SettingError
        The likelihood has no words, or ``words`` are no names.
    DataError
        The number of ``words`` is not the number of columns.
    """
    whole_number("n", n, 1, what="a whole number of words")
    one_of("by", by, ("probability", "lift", "relevance"))
    if least is not None:
        number_from("least", least, 0.0, what="a number of tokens")
    phi = word_probabilities(posterior)
    names = names_of(posterior, words)
    score = {
        "probability": lambda: phi,
        "lift": lambda: lift(posterior),
        "relevance": lambda: relevance(posterior, weight),
    }[by]()
    ranked = score
    least = (LEAST_TOKENS if by == "lift" else 0.0) if least is None else float(least)
    tokens = word_tokens(posterior)
    if least > 0 and tokens is not None and (tokens >= least).any():
        ranked = np.where(tokens >= least, score, -np.inf)
    n = min(int(n), phi.shape[1])
    column = foremost(ranked, n)
    take = np.take_along_axis
    return TopWords(posterior.ids, column, take(score, column, 1), take(phi, column, 1), names)


def foremost(score: np.ndarray, n: int) -> np.ndarray:
    """Columns of the ``n`` largest entries of each row, largest first, ties to the earlier column, ``(K, n)``."""
    out = np.empty((len(score), n), np.int64)
    for k, row in enumerate(score):
        # all that reach the n-th largest: few, unless many are equal
        low = np.partition(row, len(row) - n)[len(row) - n]
        candidates = np.flatnonzero(row >= low)
        out[k] = candidates[np.argsort(-row[candidates], kind="stable")[:n]]
    return out


def names_of(posterior: Posterior, words: Sequence[str] | Mapping[Any, Any] | None) -> tuple[str, ...] | None:
    """Names of the columns: the given names, or the posterior's words; DataError for a wrong number.

    They may be given as a mapping from columns to names, or from names to columns.
    """
    if words is None:
        return posterior.feature_names
    words = in_their_order(words)
    if isinstance(words, str) or not isinstance(words, Sized) or plain(words, "words").ndim != 1:
        raise SettingError(f"words={shown(words)}: needs a list of names, one for each column")
    names = tuple(str(w) for w in words)
    width = posterior.observation.lam.shape[1]
    if len(names) != width:
        raise DataError(f"{len(names)} words, but the model has {width} columns; give one for each")
    return names


def hellinger(posterior: Posterior) -> np.ndarray:
    """Hellinger distance of each pair of topics, ``(K, K)``: 0 for equal topics, 1 for topics without a common word."""
    root = np.sqrt(word_probabilities(posterior))
    distance = np.sqrt(np.maximum(1.0 - np.minimum(root @ root.T, 1.0), 0.0))
    np.fill_diagonal(distance, 0.0)
    return np.maximum(distance, distance.T)


# -- for the prompt ------------------------------------------------------------------------------------------------


def topic_list(
    posterior: Posterior,
    n: int = 10,
    by: Ranking = "relevance",
    weight: float = RELEVANCE,
    words: Sequence[str] | Mapping[Any, Any] | None = None,
) -> TopicList:
    """Topics, largest first, each with its ``n`` foremost words; see :func:`top_words` for the arguments.

    A topic without tokens is left out; the list says how many were.
    """
    found = top_words(posterior, n, by, weight, words)
    shares = token_shares(posterior)
    counts = None if posterior.summary is None else posterior.summary["N"]
    lines = [
        TopicLine(int(posterior.ids[k]), float(shares[k]), None if counts is None else float(counts[k]), found.names(k))
        for k in in_tables(posterior).tolist()
    ]
    return TopicList(tuple(lines), unused_line(posterior))


# -- points in the plane -------------------------------------------------------------------------------------------
def topic_positions(posterior: Posterior) -> np.ndarray:
    """Classical scaling of the Hellinger distances between topics, ``(K, 2)``, centred (Torgerson 1952).

    These are distances between points, the square roots of the probabilities of words, so that no eigenvalue is
    negative; the points spread most along the two axes.  The sign of each axis is such that its largest coordinate is
    positive.
    """
    square = hellinger(posterior) ** 2
    centred = square - square.mean(axis=0) - square.mean(axis=1)[:, None] + square.mean()
    values, vectors = np.linalg.eigh(-0.5 * centred)
    out = np.zeros((len(square), 2))
    for axis, at in enumerate(range(len(values) - 1, max(-1, len(values) - 3), -1)):
        column = vectors[:, at] * np.sqrt(max(values[at], 0.0))
        out[:, axis] = column * (-1.0 if column[np.abs(column).argmax()] < 0 else 1.0)
    return out


# -- Coherence of the words of topics: NPMI, UMass and c_v, from counts of words and of pairs ---------------------
# Counts are of documents, or of a window that slides over texts.


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
    for words in _cut_into_words(posterior, texts):
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


def _cut_into_words(posterior: Posterior, texts: Iterable[str | Sequence[str]]) -> Iterator[list[str]]:
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


# -- One pass over documents: shares of each topic, its best documents, and co-occurrence of topics and words -----
# From these: topics, and pairs of topics, as tables, and as arguments of pyLDAvis, which itself is not needed.


USED = 0.05
"""Share of a document from which a topic counts as used there."""


@dataclass(frozen=True, eq=False)
class _Part:
    """Sums over some documents."""

    n: int
    empty: int
    tokens: float
    used: np.ndarray
    total: np.ndarray
    square: np.ndarray
    row: np.ndarray
    share: np.ndarray
    length: np.ndarray
    pairs: Pairs | None


@dataclass(frozen=True, eq=False)
class TopicSurvey:
    """Use of the topics by documents, from a pass over them.

    Parameters
    ----------
    ids
        Topics, ``(K,)`` in the order of the posterior.
    n_documents, n_empty, n_tokens
        All documents, documents without a word of the vocabulary (which count nowhere else), tokens.
    used
        Share of documents in which the topic has more than 5%, ``(K,)``.
    mean
        Mean share of a document, ``(K,)``.
    correlation
        Correlation of shares of documents, ``(K, K)``; 0 for topics whose share is the same everywhere.
    row, share, length
        The best documents of each topic: rows of the data ``(K, n)``, n as many as requested or available, the topic's
        shares there, and their tokens.  Best is the largest expected share; it is smaller in a short document, where
        the prior counts more.
    pairs
        Co-occurrence of the topic's words in documents; None for topics without words.
    windows
        Co-occurrence of these words in windows of texts; None without texts.
    """

    ids: np.ndarray
    n_documents: int
    n_empty: int
    n_tokens: float
    used: np.ndarray
    mean: np.ndarray
    correlation: np.ndarray
    row: np.ndarray
    share: np.ndarray
    length: np.ndarray
    pairs: Pairs | None
    windows: Windows | None = None

    def __repr__(self) -> str:
        return brief(self)

    def documents(self, ids: Sequence[str] | None = None) -> pa.Table:
        """One row for each topic and document: topic, rank (from 1), row, share, tokens, and id where ids are given."""
        k, n = self.row.shape
        columns: dict[str, Any] = {
            "topic": np.repeat(self.ids, n),
            "rank": np.tile(np.arange(1, n + 1), k),
            "row": self.row.ravel(),
            "share": self.share.ravel(),
            "tokens": self.length.ravel(),
        }
        if ids is not None:
            columns["id"] = [str(ids[int(r)]) for r in columns["row"]]
        return pa.table(columns)

    def npmi(self, n: int | None = None) -> np.ndarray:
        """Coherence of each topic's first ``n`` words, ``(K,)``: mean normalized pointwise mutual information.

        -1: they never occur in one document.  0: as often as by chance.  1: always together (Bouma 2009, Lau et al.
        2014).  Co-occurrence is within these documents.  NaN for topics without two words.
        """
        return npmi(*self._counted().first(n), float(max(1, self.n_documents - self.n_empty)))

    def umass(self, n: int | None = None) -> np.ndarray:
        """Coherence of Mimno et al. (2011), ``(K,)``: mean over pairs of log((D(v, w) + 1) / D(w)), w the foremost.

        0 is the best; words that occur in no document are left out.
        """
        return umass(*self._counted().first(n))

    def c_v(self, n: int | None = None) -> np.ndarray:
        """Coherence c_v of each topic's first ``n`` words, ``(K,)``; Roeder, Both and Hinneburg 2015.

        Co-occurrence is within a window of 110 words that slides over the texts.  Each word has the vector of its NPMI
        with all words of the topic; c_v is the mean cosine of these vectors with their sum.  1 is the best.  Words that
        occur in no text are left out; NaN for topics without two words.

        Raises
        ------
        SettingError
            The survey was made without texts: counts do not tell which words are near.
        """
        if self.windows is None:
            raise SettingError(
                "c_v is about words that are near in texts, and this survey saw none: give "
                "survey_documents(posterior, data, texts=...) the texts, raw or as lists of words"
            )
        return c_v(*self.windows.pairs.first(n), float(max(1, self.windows.total)))

    def _counted(self) -> Pairs:
        if self.pairs is None:
            raise SettingError("these topics have no words, so there is no coherence of words")
        return self.pairs


@answering
def survey_documents(
    posterior: Posterior,
    data: Any,
    *,
    n_documents: int = 10,
    n_words: int = 10,
    words: np.ndarray | None = None,
    texts: Iterable[str | Sequence[str]] | None = None,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> TopicSurvey:
    """Survey the topics of documents: one pass, out of core.

    Parameters
    ----------
    posterior
        Topics.
    data
        As for :func:`bnp_dask.predict`.
    n_documents
        Documents per topic to find.
    n_words
        Most probable words per topic whose co-occurrence is counted.
    words
        Their columns, ``(K, n)``, instead of the most probable ones.
    texts
        For :meth:`TopicSurvey.c_v`: texts, or lists of words, in any order, read once, in this process.  Default:
        ``data`` if these are raw texts.
    batch_size, client
        As in :func:`bnp_dask.predict`.

    Returns
    -------
    TopicSurvey
        Shares of topics, most typical documents of each topic, and counts for measures of coherence.

    Raises
    ------
    SettingError
        Not a topic model.
    DataError
        Data that the likelihood cannot have produced, or counts with another vocabulary.
    """
    posterior = require_posterior(posterior)
    prior_mass(posterior)
    whole_number("n_documents", n_documents)
    whole_number("n_words", n_words, 1)
    if texts is not None:
        require_texts(texts)
    source = open_for(posterior, data, batch_size)
    column = None
    if counts_words(posterior.model):
        column = top_words(posterior, n_words, by="probability").column if words is None else _columns(posterior, words)
    with runner_for(posterior, client) as runner:
        shared = runner.share("posterior", posterior.light())
        tasks = (
            (f"topics-batch{i}", survey_task, (shared, batch_reader(source, i), column, n_documents))
            for i in range(source.n_batches)
        )
        total, first = None, 0
        for part in in_order(runner, tasks, WINDOW):
            placed = replace(part, row=part.row + first)
            first += part.n
            total = placed if total is None else _joined(total, placed, n_documents)
    if total is None or total.n == total.empty:
        raise DataError(f"{source.name}: no document with a word of the vocabulary; topics cannot be seen in it")
    windows = None
    texts = texts_in(posterior, data) if column is not None and texts is None else texts
    if column is not None and texts is not None:
        windows = count_windows(posterior, texts, column)
    return replace(_finish(posterior, total), windows=windows)


def _columns(posterior: Posterior, words: Any) -> np.ndarray:
    """Columns of words of each topic ``(K, n)``; DataError for invalid ones."""
    array, width = plain(words, "words"), posterior.observation.lam.shape[1]
    wrong = array.ndim != 2 or len(array) != posterior.n_clusters or array.dtype.kind not in "iu"
    if wrong or (array.size and not 0 <= array.min() <= array.max() < width):
        raise DataError(
            f"words of shape {array.shape} and dtype {array.dtype}; needs columns of the counts, 0 to {width - 1}, "
            f"({posterior.n_clusters}, n)"
        )
    return array.astype(np.int64)


def survey_task(posterior: Posterior, reader: Reader, column: np.ndarray | None, n_documents: int) -> _Part:
    """Task: sums over the documents of one batch."""
    return survey_batch(posterior, reader(), column, n_documents)


def survey_batch(posterior: Posterior, batch: Batch, column: np.ndarray | None, n_documents: int) -> _Part:
    """Sums over the documents of a batch in memory; weights of documents do not matter."""
    model = posterior.model
    batch = as_documents(model, replace(batch, weights=None))
    check_documents(model, batch)
    found = find_topics(posterior, batch, own_step(posterior))
    k = posterior.n_clusters
    some = found.length > 0
    used, total, square = np.zeros(k), np.zeros(k), np.zeros((k, k))
    best: list[tuple[np.ndarray, np.ndarray]] = []
    for start, stop in found.tiles():
        shares = found.shares(start, stop)[:, :k][some[start:stop]]
        rows = start + np.flatnonzero(some[start:stop])
        used += (shares > USED).sum(axis=0)
        total += shares.sum(axis=0)
        square += matmul(shares.T, shares)
        if len(rows):
            first = np.argsort(-shares, axis=0, kind="stable")[:n_documents].T
            best.append((rows[first], np.take_along_axis(shares.T, first, axis=1)))
    none = (np.zeros((k, 0), np.int64), np.zeros((k, 0)))
    row, share = reduce(lambda a, b: _best(a, b, n_documents), best, none)
    pairs = None if column is None or not batch.is_sparse else _count_pairs(batch, column)
    length = found.length[row] if row.size else np.zeros(row.shape)
    empty = int((~some).sum())
    return _Part(len(some), empty, math.fsum(found.length), used, total, square, row, share, length, pairs)


def _count_pairs(batch: Batch, column: np.ndarray) -> Pairs:
    x = sparse.csr_array(batch.x)
    there = sparse.csr_array(((x.data > 0).astype(np.float64), x.indices, x.indptr), shape=x.shape)
    chosen, place = np.unique(column, return_inverse=True)
    held = sparse.csc_array(there[:, chosen])
    place = place.reshape(column.shape)
    single = np.asarray(held.sum(axis=0)).ravel()[place]
    both = np.stack([(held[:, p].T @ held[:, p]).toarray() for p in place])
    return Pairs(column, single, both)


def _best(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray]:
    """The first ``n`` documents of two lists, ties in order."""
    row, share = (np.concatenate(both, axis=1) for both in zip(a, b, strict=True))
    order = np.argsort(-share, axis=1, kind="stable")[:, :n]
    return np.take_along_axis(row, order, 1), np.take_along_axis(share, order, 1)


def _joined(a: _Part, b: _Part, n_documents: int) -> _Part:
    share = np.concatenate([a.share, b.share], axis=1)
    order = np.argsort(-share, axis=1, kind="stable")[:, :n_documents]

    def taken(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.take_along_axis(np.concatenate([x, y], axis=1), order, 1)

    pairs = a.pairs if b.pairs is None else b.pairs if a.pairs is None else a.pairs + b.pairs
    sums = (a.n + b.n, a.empty + b.empty, a.tokens + b.tokens, a.used + b.used, a.total + b.total, a.square + b.square)
    return _Part(*sums, taken(a.row, b.row), taken(a.share, b.share), taken(a.length, b.length), pairs)


def _finish(posterior: Posterior, part: _Part) -> TopicSurvey:
    n = part.n - part.empty
    mean = part.total / n
    covariance = part.square / n - np.outer(mean, mean)
    deviation = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    varies = deviation > 1e-6 * mean  # less is rounding of the difference
    scale = np.where(varies, deviation, 1.0)
    correlation = np.where(np.outer(varies, varies), covariance / np.outer(scale, scale), 0.0)
    np.fill_diagonal(correlation, 1.0)
    return TopicSurvey(
        posterior.ids, part.n, part.empty, part.tokens, part.used / n, mean, np.clip(correlation, -1.0, 1.0),
        part.row, part.share, part.length, part.pairs,
    )  # fmt: skip


def topic_table(
    posterior: Posterior, n: int = 10, words: Sequence[str] | None = None, survey: TopicSurvey | None = None
) -> pa.Table:
    """One row per topic, largest first.

    Parameters
    ----------
    posterior
        Topics of words.
    n
        Words per topic.
    words
        Names of the columns; default: the posterior's words.
    survey
        Survey of documents (:func:`survey_documents`), for more columns.

    Returns
    -------
    pyarrow.Table
        ``topic``, ``weight`` (expected share of a new document), ``tokens`` (null when unknown), ``token_share``,
        ``words`` by relevance; with a survey also ``used`` (share of documents that have more than 5% of it),
        ``mean_share``, ``npmi`` and ``umass`` (coherence; null without two words), and ``c_v`` if it saw texts.
        Topics without tokens are left out.
    """
    found = top_words(posterior, n, words=words)
    order = in_tables(posterior)
    tokens = None if posterior.summary is None else posterior.summary["N"][order]
    columns: dict[str, Any] = {
        "topic": posterior.ids[order],
        "weight": posterior.weights[order],
        "tokens": pa.nulls(len(order), pa.float64()) if tokens is None else tokens,
        "token_share": token_shares(posterior)[order],
        "words": [found.names(int(k)) for k in order],
    }
    if survey is not None:
        _check_same(posterior, survey)
        columns |= {"used": survey.used[order], "mean_share": survey.mean[order]}
        if survey.pairs is not None and survey.pairs.single.shape[1] > 1:
            columns |= {"npmi": survey.npmi()[order], "umass": survey.umass()[order]}
            columns |= {} if survey.windows is None else {"c_v": survey.c_v()[order]}
    return pa.table(columns)


def topic_relations(posterior: Posterior, survey: TopicSurvey | None = None) -> pa.Table:
    """One row for each pair of topics, the most alike first: ``topic``, ``other``, ``hellinger``, ``correlation``.

    ``hellinger`` is the distance of their words, 0 to 1; ``correlation`` the correlation of their shares of documents,
    null without a survey.  ``(K (K - 1) / 2)`` rows for the K topics that have tokens.
    """
    distance = hellinger(posterior)
    used = np.flatnonzero(in_use(posterior))
    first, second = (used[places] for places in np.triu_indices(len(used), 1))
    order = np.argsort(distance[first, second], kind="stable")
    first, second = first[order], second[order]
    if survey is not None:
        _check_same(posterior, survey)
    return pa.table(
        {
            "topic": posterior.ids[first],
            "other": posterior.ids[second],
            "hellinger": distance[first, second],
            "correlation": pa.nulls(len(first), pa.float64()) if survey is None else survey.correlation[first, second],
        }
    )


def _check_same(posterior: Posterior, survey: TopicSurvey) -> None:
    if not np.array_equal(survey.ids, posterior.ids):
        raise SettingError("the survey is of another posterior: their topics differ; make it from this one")


# -- arguments of pyLDAvis -----------------------------------------------------------------------------------------


@answering
def to_pyldavis(
    posterior: Posterior,
    data: Any,
    words: Sequence[str] | None = None,
    *,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> dict[str, Any]:
    """The arguments of ``pyLDAvis.prepare``: ``pyLDAvis.prepare(**bnp_dask.to_pyldavis(posterior, data))``.

    Parameters
    ----------
    posterior
        A topic model of words.
    data
        Documents, as for :func:`bnp_dask.predict`.  pyLDAvis wants the shares of all of them in memory, ``(G, K)``.
    words
        Names of the columns; default: the posterior's words, else ``"word 0"`` and so on.
    batch_size, client
        As in :func:`bnp_dask.predict`.

    Returns
    -------
    dict
        ``topic_term_dists (K, V)`` in the order of ``posterior.ids``, and ``doc_topic_dists (G, K)``: rows sum to one,
        the share of topics that were not met yet is left out; ``doc_lengths (G,)``, ``vocab``, and
        ``term_frequency (V,)``, tokens in these documents.

    Raises
    ------
    SettingError
        The posterior is of no topic model of words.
    DataError
        As for :func:`bnp_dask.predict`.
    """
    if not counts_words(require_posterior(posterior).model):
        model = posterior.model
        raise SettingError(
            f"pyLDAvis shows topics of words, not {type(model.allocation).__name__} of "
            f"{type(model.observation).__name__}; this needs LDA() or HDPTopics() with Multinomial()"
        )
    source = open_for(posterior, data, batch_size)
    names = names_of(posterior, words)
    phi = word_probabilities(posterior)
    with runner_for(posterior, client) as runner:
        shared = runner.share("posterior", posterior.light())
        tasks = (
            (f"documents-batch{i}", shares_task, (shared, batch_reader(source, i))) for i in range(source.n_batches)
        )
        parts = list(in_order(runner, tasks, WINDOW))
    none: list[np.ndarray] = [np.zeros((0, posterior.n_clusters))]
    return {
        "topic_term_dists": normalized(phi),
        "doc_topic_dists": np.concatenate([p[0] for p in parts] or none),
        "doc_lengths": np.concatenate([p[1] for p in parts] or [np.zeros(0, np.int64)]),
        "vocab": list(names) if names is not None else [f"word {v}" for v in range(phi.shape[1])],
        "term_frequency": sum((p[2] for p in parts), np.zeros(phi.shape[1])).astype(np.int64),
    }


def shares_task(posterior: Posterior, reader: Reader) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Task: shares of topics ``(g, K)``, lengths ``(g,)``, and tokens of each word ``(V,)`` of one batch."""
    shares, length, batch = shares_of(posterior, reader())
    return shares, length.astype(np.int64), np.asarray(batch.x.sum(axis=0), np.float64)


# -- Explains the topics of a document: the number of its tokens in each topic, and their words -------------------


LEAST_SHARE = 0.01
"""Share of a document below which a topic is not listed unless asked for: half a token of fifty."""


@dataclass(frozen=True)
class TopicReason:
    """One topic of a document.

    Parameters
    ----------
    topic
        Its id.
    share
        Its expected share of the document.
    tokens
        Its expected tokens in the document.
    words
        Its words with most tokens: word, expected tokens of the word in this topic, tokens of the word.
    """

    topic: int
    share: float
    tokens: float
    words: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True, eq=False)
class Explanation(Sequence[TopicReason]):
    """Topics of a document, the largest first; a sequence that prints as a table.

    Parameters
    ----------
    reasons
        One for each listed topic.
    topics
        Ids of all topics, ``(K,)``.
    columns
        Columns of the document's words, ``(R,)``.
    counts
        Counts of these words, ``(R,)``.
    resp
        Probability of each topic for a token of each word, ``(R, K)``; rows sum to one.
    """

    reasons: tuple[TopicReason, ...]
    topics: np.ndarray
    columns: np.ndarray
    counts: np.ndarray
    resp: np.ndarray

    def __len__(self) -> int:
        return len(self.reasons)

    def __getitem__(self, index):  # type: ignore[no-untyped-def,override]
        return self.reasons[index]

    def __iter__(self) -> Iterator[TopicReason]:
        return iter(self.reasons)

    def to_table(self) -> pa.Table:
        """One row for each topic and word listed: topic, share, word, tokens (of the word, this topic's), count."""
        rows = [(one.topic, one.share, *word) for one in self.reasons for word in one.words]
        names = ("topic", "share", "word", "tokens", "count")
        kinds = (pa.int64(), pa.float64(), pa.string(), pa.float64(), pa.float64())
        return pa.table({n: pa.array([row[i] for row in rows], kinds[i]) for i, n in enumerate(names)})

    def __str__(self) -> str:
        return listed([_cells(one) for one in self.reasons])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return Table(HEAD, [_cells(one) for one in self.reasons], left=(3,))._repr_html_()


def _cells(one: TopicReason) -> tuple[str, str, str, str]:
    # words whose tokens would print as zero are left out
    words = ", ".join(f"{word} {_number(tokens)}/{_number(n)}" for word, tokens, n in one.words if tokens >= 0.05)
    return str(one.topic), f"{one.share:.1%}", _number(one.tokens), words


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


@answering
def explain(posterior: Posterior, document: Any, n: int = 10, least: float = LEAST_SHARE) -> Explanation:
    """Topics of a document, and the words that account for them.

    Parameters
    ----------
    posterior
        Of a topic model of words.
    document
        A text, if the posterior knows its vocabulary; counts ``(V,)``, or one row of them, dense or sparse; or a
        mapping from words to counts.
    n
        Words of each topic.
    least
        Share of the document below which a topic is not listed, 0 to 1.

    Returns
    -------
    Explanation
        Topics by their share of the document, as :func:`bnp_dask.predict` gives it with ``soft=True``; under each the
        words with most tokens.  A token of word v is from topic k with probability proportional to
        ``exp(E[log pi_dk] + E[log phi_kv])`` (thesis 5.31).  ``vote 2.9/3``: of three tokens, 2.9 are expected to be of
        this topic.

    Raises
    ------
    SettingError
        A model without topics of words.
    DataError
        More than one document, or words that the posterior does not know.
    """
    if not counts_words(require_posterior(posterior).model):
        raise SettingError(
            f"{type(posterior.model.allocation).__name__} of {type(posterior.model.observation).__name__} has no "
            "topics of words to explain a document by; this needs a topic model, such as HDPTopics() of Multinomial()"
        )
    whole_number("n", n, 1, what="a whole number of words")
    number_from("least", least, 0.0, 1.0, "a share between 0 and 1")
    source = open_for(posterior, _row(posterior, document))
    with computing_as(posterior.model):
        batch = as_documents(posterior.model, source.reader(0)())
        check_documents(posterior.model, batch)
        found = find_topics(posterior, batch, own_step(posterior))
        shares, theta = found.shares(0, 1)[0], found.theta(0, 1)
        x: Any = batch.x
        column, count = np.asarray(x.indices, np.int64), np.asarray(x.data)
        observation: Any = posterior.model.observation
        log_lik = observation.token_log_lik(posterior.observation, column)
        resp = resp_from_weights(log_lik + psi(theta))[0] if len(column) else np.zeros((0, posterior.n_clusters))
    tokens = count[:, None] * resp
    names = posterior.feature_names
    reasons = []
    for k in np.argsort(-shares[: posterior.n_clusters], kind="stable").tolist():
        if shares[k] >= least:
            most = [i for i in np.argsort(-tokens[:, k], kind="stable")[:n].tolist() if tokens[i, k] > 0]
            words = [(_name(names, column[i]), float(tokens[i, k]), float(count[i])) for i in most]
            own = float(tokens[:, k].sum())
            reasons.append(TopicReason(int(posterior.ids[k]), float(shares[k]), own, tuple(words)))
    return Explanation(tuple(reasons), posterior.ids, column, count, resp)


def _name(names: Sequence[str] | None, column: int) -> str:
    return f"word {column}" if names is None else names[column]


def _row(posterior: Posterior, document: Any) -> Any:
    """One document as data of one row."""
    if isinstance(document, str):
        return [document]
    if isinstance(document, Mapping):
        return _of_mapping(posterior, document)
    x = document if sparse.issparse(document) else plain(document, "document")
    if not sparse.issparse(x) and x.dtype.kind in "OUS":
        raise DataError(f"document={shown(document)}: needs one text, counts (V,), or a mapping from words to counts")
    x = x.reshape(1, -1) if x.ndim == 1 else x
    if x.ndim != 2 or x.shape[0] != 1:
        raise DataError(f"document has shape {x.shape}; needs one document: a text, or one row of counts")
    return x


def _of_mapping(posterior: Posterior, counts: Mapping[str, float]) -> np.ndarray:
    names = posterior.feature_names
    if names is None:
        raise DataError("the posterior knows no vocabulary, so counts cannot come by word; give them as an array (V,)")
    place = {name: v for v, name in enumerate(names)}
    unknown = [str(word) for word in counts if word not in place]
    if unknown:
        raise DataError(f"document: the posterior does not know {few(unknown)}; leave these words out")
    row = np.zeros((1, len(names)))
    for word, count in counts.items():
        row[0, place[word]] = count
    return row


# -- Topics over time, and by any other known value of documents --------------------------------------------------
# Documents are grouped by a column of metadata, or by a time, cut into bins.


Weight = Literal["tokens", "documents"]


@dataclass(frozen=True, eq=False)
class TopicShares:
    """Share of each topic in groups of documents, as :func:`topics_over` finds it.

    Parameters
    ----------
    by
        Name of the value by which documents were put into groups.
    values
        Value of each group G, or the start of its bin.
    labels
        The same as text.
    is_time
        Whether the values are times.
    ids
        Topics, ``(K,)`` in the order of the posterior.
    names
        Names of the topics: their three foremost words.
    share
        Share of each topic in each group, ``(G, K)``; rows sum to one, NaN in groups without words.
    documents, tokens
        Documents with words, and their tokens, of each group, ``(G,)``.
    weight
        Weight of a document: ``"tokens"`` for its tokens, ``"documents"`` for one.
    n_without
        Documents without a value.
    """

    by: str
    values: tuple[Any, ...]
    labels: tuple[str, ...]
    is_time: bool
    ids: np.ndarray
    names: tuple[str, ...]
    share: np.ndarray
    documents: np.ndarray
    tokens: np.ndarray
    weight: Weight
    n_without: int

    def __repr__(self) -> str:
        return brief(self)

    @property
    def on_line(self) -> bool:
        """Whether the values lie on a line: times and numbers."""
        return self.is_time or not any(isinstance(value, str) for value in self.values)

    def to_table(self) -> pa.Table:
        """One row for each group and topic: value, topic, share (null without words), documents, tokens."""
        g, k = self.share.shape
        share = self.share.ravel()
        columns = {
            "value": np.repeat(np.array(self.values), k),
            "topic": np.tile(self.ids, g),
            "share": pa.array(share, pa.float64(), mask=np.isnan(share)),
            "documents": np.repeat(self.documents, k),
            "tokens": np.repeat(self.tokens, k),
        }
        return pa.table(columns)


@answering
def topics_over(
    posterior: Posterior,
    data: Any,
    by: Any,
    *,
    bins: int | Calendar | None = None,
    weight: Weight = "tokens",
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> TopicShares:
    """Share of each topic in documents of one value, or one time: one pass, out of core.

    Parameters
    ----------
    posterior
        Topics.
    data
        Documents, as for :func:`bnp_dask.predict`.
    by
        Column of the metadata that a store keeps (:func:`bnp_dask.load_documents`), or a value for each document:
        texts, numbers, dates or times.  Texts that are all ISO dates, such as ``2024-05-31``, are dates.
    bins
        Bins of numbers and times: a number of intervals of equal length, or ``"day"``, ``"week"``, ``"month"``,
        ``"quarter"``, ``"year"``.  None: each value is a separate group, but many numbers are cut into 20 intervals,
        and times into the shortest period of which there are at most 60.
    weight
        ``"tokens"``: a document counts once per token, so that the figures are shares of the tokens.
        ``"documents"``: each counts once, so that they are means of the documents' shares.
    batch_size, client
        As in :func:`bnp_dask.predict`.

    Returns
    -------
    TopicShares
        ``to_table()`` has a row for each value and topic; :func:`bnp_dask.plot.topics_over` draws it.  The share of
        topics that were not met yet is left out.

    Raises
    ------
    SettingError
        Not a topic model, or bins that do not apply.
    DataError
        No such column, unequal numbers of values and documents, or more than 60 different texts.
    """
    posterior = require_posterior(posterior)
    prior_mass(posterior)
    one_of("weight", weight, ("tokens", "documents"))
    source = open_for(posterior, data, batch_size)
    name = by if isinstance(by, str) else "by"
    groups = grouping_of(_column(source, by) if isinstance(by, str) else by, name, bins)
    return shares_over(posterior, source, [(name, groups)], weight, client)[0]


def shares_over(
    posterior: Posterior,
    source: Source,
    groupings: Sequence[tuple[str, Grouping]],
    weight: Weight = "tokens",
    client: Client | Executor | str | None = None,
) -> list[TopicShares]:
    """Shares by several values, from one pass; arguments as of :func:`topics_over`."""
    k, first = posterior.n_clusters, 0
    sums = [np.zeros((len(own.values), k + 3)) for _, own in groupings]
    with runner_for(posterior, client) as runner:
        shared = runner.share("posterior", posterior.light())
        tasks = ((f"over-batch{i}", _shares_task, (shared, batch_reader(source, i))) for i in range(source.n_batches))
        for shares, length in in_order(runner, tasks, WINDOW):
            some = length > 0
            counted = np.where(some, length if weight == "tokens" else 1.0, 0.0)
            rows = np.column_stack([shares * counted[:, None], counted, some, length])
            for total, (name, own) in zip(sums, groupings, strict=True):
                code = own.code[first : first + len(rows)]
                _require_as_many(name, len(own.code), first + len(rows), len(code) == len(rows))
                np.add.at(total, code[code >= 0], rows[code >= 0])
            first += len(rows)
    for name, own in groupings:
        _require_as_many(name, len(own.code), first, len(own.code) == first)
    names = _names(posterior)
    return [_finished(posterior, names, *both, total, weight) for both, total in zip(groupings, sums, strict=True)]


def _finished(
    posterior: Posterior, names: tuple[str, ...], by: str, own: Grouping, total: np.ndarray, weight: Weight
) -> TopicShares:
    k = posterior.n_clusters
    counted = total[:, k : k + 1]
    share = np.divide(total[:, :k], counted, out=np.full((len(total), k), np.nan), where=counted > 0)
    documents, tokens = total[:, k + 1].astype(np.int64), total[:, k + 2]
    without = int((own.code < 0).sum())
    return TopicShares(
        by, own.values, own.labels, own.is_time, posterior.ids, names, share, documents, tokens, weight, without
    )


def _names(posterior: Posterior) -> tuple[str, ...]:
    """Topics by their foremost words, or by their ids."""
    if not counts_words(posterior.model) or posterior.feature_names is None:
        return tuple(f"topic {i}" for i in posterior.ids)
    found = top_words(posterior, 3)
    return tuple(" ".join(found.names(k)) for k in range(posterior.n_clusters))


def _shares_task(posterior: Posterior, reader: Reader) -> tuple[np.ndarray, np.ndarray]:
    """Task: shares of topics ``(g, K)`` and lengths ``(g,)`` of the documents of one batch."""
    return shares_of(posterior, reader())[:2]


def _column(source: Source, name: str) -> pa.ChunkedArray:
    try:
        table = load_documents(source)
    except DataError as error:
        raise DataError(
            f"by={name!r} is a column of metadata, but {error}; or give a value for each document"
        ) from error
    if name not in table.column_names:
        raise DataError(
            f"{source.name}: no column {name!r}{nearest(name, table.column_names)}; its documents have "
            f"{', '.join(table.column_names)}"
        )
    return table[name]


def _require_as_many(name: str, values: int, documents: int, enough: bool) -> None:
    if not enough:
        raise DataError(f"{name} has {values} values for {documents} documents; needs one for each document")


Calendar = Literal["day", "week", "month", "quarter", "year"]
"""Bins of times."""

MOST_VALUES = 60
"""Most values, or bins of times, by default."""

USUAL_BINS = 20
"""Default number of bins for numbers with more values."""

MOST_BINS = 10_000

_DATE = re.compile(r"\d{4}-\d\d(-\d\d([T ].*)?)?")
_MONDAY = 4
"""Days from the first of January 1970 to a Monday."""

MISSING = -1


@dataclass(frozen=True, eq=False)
class Grouping:
    """Groups of documents.

    Parameters
    ----------
    code
        Group of each document, ``(n,)``; -1 without a value.
    values
        Value of each group, or the start of its bin: text, float, or datetime64.
    labels
        The same as text.
    is_time
        Whether the values are times.
    """

    code: np.ndarray
    values: tuple[Any, ...]
    labels: tuple[str, ...]
    is_time: bool = False

    @property
    def on_line(self) -> bool:
        """Whether the groups lie on a line: times and numbers."""
        return self.is_time or not any(isinstance(value, str) for value in self.values)


def grouping_of(values: Any, name: str, bins: int | Calendar | None = None) -> Grouping:
    """Documents by their values.

    Parameters
    ----------
    values
        One for each document: texts, numbers, dates or times; texts that are all ISO dates are dates.
    name
        Name of the values, for messages.
    bins
        Number of intervals of equal length, or a period of the calendar.  None: each value is a separate group, but
        many numbers are cut into 20 intervals, and times into the shortest period of which there are at most 60.

    Raises
    ------
    DataError
        Values of no such kind, or too many different texts.
    SettingError
        Bins that do not apply to these values.
    """
    if isinstance(bins, str):
        one_of("bins", bins, get_args(Calendar))
    elif bins is not None:
        if not is_whole(bins):
            raise SettingError(f"bins={shown(bins)}: needs a number of bins, a period such as 'month', or None")
        whole_number("bins", bins, 1, MOST_BINS)
    held = _as_numpy(values, name, isinstance(bins, str))
    if held.dtype.kind == "M":
        return _times(held, bins)
    if isinstance(bins, str):
        raise DataError(f"{name} holds no dates or times to cut by bins={bins!r}; give a number of bins, or None")
    if held.dtype.kind == "f":
        return _numbers(held, bins)
    if bins is not None:
        raise DataError(f"{name} holds texts, which cannot be cut into bins={bins!r}; leave bins out")
    return _texts(held, name)


def _as_numpy(values: Any, name: str, as_dates: bool) -> np.ndarray:
    """Values as datetime64, floats, or texts (None where there is none)."""
    import pyarrow.compute as pc

    try:
        array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, from_pandas=True)
        if pa.types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"{name}={shown(values)}: needs a value for each document ({error})") from error
    kind = array.type
    if pa.types.is_temporal(kind) and not (pa.types.is_time(kind) or pa.types.is_duration(kind)):
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            array = pc.local_timestamp(array)
        return np.array(array.cast(pa.timestamp("us"), safe=False).to_numpy(zero_copy_only=False), "datetime64[us]")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.array([np.nan if v is None else v for v in array.to_pylist()], np.float64)
    if pa.types.is_nested(kind):
        raise DataError(f"{name} holds {kind}; needs texts, numbers, dates or times")
    texts = [None if v is None else str(v) for v in array.to_pylist()]
    known = [text for text in texts if text is not None]
    if as_dates or (known and all(_DATE.fullmatch(text) for text in known)):
        try:
            return np.array(["NaT" if text is None else text for text in texts], "datetime64[us]")
        except ValueError as error:
            if as_dates:
                raise DataError(f"{name}: {error}; needs dates such as 2024-05-31") from error
    return np.array(texts, object)


def _texts(held: np.ndarray, name: str) -> Grouping:
    values = sorted({text for text in held if text is not None})
    if len(values) > MOST_VALUES:
        raise DataError(
            f"{name} holds {len(values):,} different texts, more than {MOST_VALUES}; needs fewer, such as kinds"
        )
    place = {value: i for i, value in enumerate(values)}
    code = np.array([MISSING if text is None else place[text] for text in held], np.int64)
    return Grouping(code, tuple(values), tuple(values))


def _numbers(held: np.ndarray, bins: int | None) -> Grouping:
    there = np.isfinite(held)
    values = np.unique(held[there])
    if bins is None and len(values) <= MOST_VALUES:
        code = np.where(there, np.searchsorted(values, held), MISSING)
        return Grouping(code, tuple(values.tolist()), tuple(f"{v:.10g}" for v in values))
    edges = np.linspace(values[0], values[-1], (USUAL_BINS if bins is None else bins) + 1) if len(values) else values
    code, begins = _cut(held, there, edges)
    return Grouping(code, tuple(begins.tolist()), tuple(f"{v:.6g}" for v in begins))


def _times(held: np.ndarray, bins: int | Calendar | None) -> Grouping:
    there = ~np.isnat(held)
    if not there.any():
        return Grouping(np.full(len(held), MISSING), (), (), True)
    first, last = held[there].min(), held[there].max()
    if is_whole(bins):
        stamps, span = held.astype(np.int64), (first.astype(np.int64), last.astype(np.int64))
        code, begins = _cut(stamps, there, np.linspace(*span, bins + 1))
        starts = begins.astype(np.int64).astype("datetime64[us]")
        unit: Any = "D" if last - first >= np.timedelta64(bins, "D") else "s"
        return Grouping(code, tuple(starts), tuple(np.datetime_as_string(starts, unit)), True)
    period = _shortest(first, last) if bins is None else bins
    number, origin = _periods(held, str(period)), int(_periods(first, str(period)))
    size = int(_periods(last, str(period))) - origin + 1
    if size > MOST_BINS:
        raise SettingError(f"bins={period!r}: these times span {size:,} of them, more than {MOST_BINS:,}")
    starts = _begins(np.arange(origin, origin + size), str(period))
    return Grouping(np.where(there, number - origin, MISSING), tuple(starts), _names_of_bins(starts, str(period)), True)


def _cut(held: np.ndarray, there: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bin of each value, ``(n,)``, and the starts of the bins; the last bin includes its end."""
    if not len(edges):
        return np.full(len(held), MISSING), edges
    code = np.clip(np.searchsorted(edges, held, side="right") - 1, 0, len(edges) - 2)
    return np.where(there, code, MISSING), edges[:-1]


def _shortest(first: np.datetime64, last: np.datetime64) -> str:
    """The shortest period of which the times span at most 60; years if there is none."""
    for period in get_args(Calendar):
        if int(_periods(last, period)) - int(_periods(first, period)) < MOST_VALUES:
            return str(period)
    return "year"


def _periods(times: Any, period: str) -> Any:
    """Number of the period that each time is in."""
    if period in ("day", "week"):
        days = times.astype("datetime64[D]").astype(np.int64)
        return days if period == "day" else (days - _MONDAY) // 7
    months = times.astype("datetime64[M]").astype(np.int64)
    return months // {"month": 1, "quarter": 3, "year": 12}[period]


def _begins(number: np.ndarray, period: str) -> np.ndarray:
    """First days of periods by their numbers, datetime64."""
    if period in ("day", "week"):
        return (number if period == "day" else 7 * number + _MONDAY).astype("datetime64[D]")
    months = number * {"month": 1, "quarter": 3, "year": 12}[period]
    return months.astype("datetime64[M]").astype("datetime64[D]")


def _names_of_bins(starts: np.ndarray, period: str) -> tuple[str, ...]:
    if period == "quarter":
        return tuple(f"{str(day)[:4]} Q{(int(str(day)[5:7]) + 2) // 3}" for day in starts)
    return tuple(str(day)[: {"month": 7, "year": 4}.get(period, 10)] for day in starts)


def worth_showing(table: pa.Table, left_out: Sequence[str], most: int) -> list[tuple[str, Grouping]]:
    """The first columns of metadata by which documents fall into some groups, not into as many as there are."""
    found: list[tuple[str, Grouping]] = []
    for name in table.column_names:
        if name in left_out or len(found) == most:
            continue
        try:
            own = grouping_of(table[name], name)
        except DataError:
            continue
        known = int((own.code != MISSING).sum())
        # numbers that are all different may well be ids
        some = own.is_time or (own.on_line and len(table[name].unique()) < known)
        few = some or len(own.values) <= known / 3
        if len(own.values) > 1 and few and known > table.num_rows / 2:
            found.append((name, own))
    return found
