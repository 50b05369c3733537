"""Topics as words: by probability, by lift, and by relevance; their sizes and similarities.

As points in the plane, topics are near one another if their words are alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from bnp_dask.analysis.base import require_posterior
from bnp_dask.core import TopicList
from bnp_dask.core.columns import in_order
from bnp_dask.core.table import TopicLine
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs import number_from, one_of, plain, shown, whole_number
from bnp_dask.model import Posterior
from bnp_dask.observation import Multinomial
from bnp_dask.structure import noun_of, unused_line
from bnp_dask.structure.nouns import in_use

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
        Ties go to the earlier column.
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
    words = in_order(words)
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
