"""One pass over documents: shares of each topic, its best documents, and co-occurrence of topics and words.

From these: topics, and pairs of topics, as tables, and as arguments of pyLDAvis, which itself is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from bnp_dask.analysis.base import WINDOW, open_for, require_posterior, runner_for, texts_in
from bnp_dask.analysis.topics import coherence
from bnp_dask.analysis.topics.coherence import Pairs, Windows, count_windows, require_texts
from bnp_dask.analysis.topics.words import hellinger, in_tables, names_of, token_shares, top_words, word_probabilities
from bnp_dask.core import Batch
from bnp_dask.data import Reader, batch_reader
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.base import Executor, in_order
from bnp_dask.inputs import plain, whole_number
from bnp_dask.kernels.numeric.arithmetic import matmul
from bnp_dask.model import Posterior
from bnp_dask.structure import (
    as_documents,
    check_documents,
    counts_words,
    find_topics,
    normalized,
    own_step,
    prior_mass,
    shares_of,
)
from bnp_dask.structure.nouns import in_use

if TYPE_CHECKING:
    from distributed import Client


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
        return coherence.npmi(*self._counted().first(n), float(max(1, self.n_documents - self.n_empty)))

    def umass(self, n: int | None = None) -> np.ndarray:
        """Coherence of Mimno et al. (2011), ``(K,)``: mean over pairs of log((D(v, w) + 1) / D(w)), w the foremost.

        0 is the best; words that occur in no document are left out.
        """
        return coherence.umass(*self._counted().first(n))

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
        return coherence.c_v(*self.windows.pairs.first(n), float(max(1, self.windows.total)))

    def _counted(self) -> Pairs:
        if self.pairs is None:
            raise SettingError("these topics have no words, so there is no coherence of words")
        return self.pairs


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
