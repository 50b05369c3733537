"""Explains the topics of a document: the number of its tokens in each topic, and their words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse
from scipy.special import psi

from bnp_dask.analysis.base import computing_as, open_for, require_posterior
from bnp_dask.core import Table
from bnp_dask.core.columns import few
from bnp_dask.core.table import HEAD, listed
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs import number_from, plain, shown, whole_number
from bnp_dask.kernels.mixture.resp import resp_from_weights
from bnp_dask.model import Posterior
from bnp_dask.structure import as_documents, check_documents, counts_words, find_topics, own_step

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
