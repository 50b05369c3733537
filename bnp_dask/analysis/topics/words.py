"""What a topic is about: its words by probability, by lift, and by relevance; how large it is; which are alike."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from bnp_dask.analysis.arguments import require_posterior
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs.arrays import plain
from bnp_dask.inputs.settings import number_from, one_of, shown, whole_number
from bnp_dask.model import Posterior
from bnp_dask.observation import Multinomial

Ranking = Literal["probability", "lift", "relevance"]

RELEVANCE = 0.6
"""Weight of log probability against log lift that people liked best (Sievert and Shirley 2014)."""

HEAD = ("topic", "share", "tokens", "words")
"""Columns of a list of topics."""

LEAST_TOKENS = 5.0
"""Tokens of the corpus that a word needs to be listed by lift: the lift of a word seen once is the largest there is."""


def word_probabilities(posterior: Posterior) -> np.ndarray:
    """E[phi_k], the expected probability of each word in each topic, ``(K, V)``; rows sum to one.

    Raises
    ------
    SettingError
        Clusters that generate no words.
    """
    if not isinstance(require_posterior(posterior).model.observation, Multinomial):
        raise SettingError(
            f"clusters of {type(posterior.model.observation).__name__} have no words; this needs Multinomial()"
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


def marginal(posterior: Posterior) -> np.ndarray:
    """Probability of each word over all topics by their shares of the tokens, ``(V,)``."""
    return token_shares(posterior) @ word_probabilities(posterior)


def lift(posterior: Posterior) -> np.ndarray:
    """How many times more probable each word is in each topic than over all topics, ``(K, V)``."""
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
        What they were ranked by, ``(K, n)``.
    probability
        Of these words in the topic, ``(K, n)``.
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
    words: Sequence[str] | None = None,
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
        Of probability in relevance, 0 to 1.
    words
        Names of the columns, ``(V,)``; default: those that the posterior knows.
    least
        Tokens of the corpus that a word needs; default 5 for lift, else 0.

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


def names_of(posterior: Posterior, words: Sequence[str] | None) -> tuple[str, ...] | None:
    """Names of the columns: those given, or those that the posterior knows; DataError for a wrong number."""
    if words is None:
        return posterior.feature_names
    if isinstance(words, str) or not isinstance(words, Sized) or plain(words, "words").ndim != 1:
        raise SettingError(f"words={shown(words)}: needs a list of names, one for each column")
    names = tuple(str(w) for w in words)
    width = posterior.observation.lam.shape[1]
    if len(names) != width:
        raise DataError(f"{len(names)} words, but the model has {width} columns; give one for each")
    return names


def hellinger(posterior: Posterior) -> np.ndarray:
    """Hellinger distance of each pair of topics, ``(K, K)``: 0 for equal topics, 1 for those without a common word."""
    root = np.sqrt(word_probabilities(posterior))
    distance = np.sqrt(np.maximum(1.0 - np.minimum(root @ root.T, 1.0), 0.0))
    np.fill_diagonal(distance, 0.0)
    return np.maximum(distance, distance.T)


# -- for the prompt -------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class TopicLine:
    """One topic in a list: id, share of all tokens, tokens (None when unknown), words."""

    id: int
    share: float
    tokens: float | None
    words: list[str]


@dataclass(frozen=True, eq=False)
class TopicList(Sequence[TopicLine]):
    """Topics, largest first; a sequence that prints as a table."""

    lines: tuple[TopicLine, ...]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index):  # type: ignore[no-untyped-def,override]
        return TopicList(self.lines[index]) if isinstance(index, slice) else self.lines[index]

    def __iter__(self) -> Iterator[TopicLine]:
        return iter(self.lines)

    def __str__(self) -> str:
        return listed([(str(t.id), f"{t.share:.2%}", _tokens(t), " ".join(t.words)) for t in self.lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{t.id}</td><td>{t.share:.2%}</td><td>{_tokens(t)}</td>"
            f"<td style='text-align:left'>{html.escape(' '.join(t.words))}</td></tr>"
            for t in self.lines
        )
        head = "<tr><th>topic</th><th>share</th><th>tokens</th><th style='text-align:left'>words</th></tr>"
        return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def listed(rows: Sequence[tuple[str, str, str, str]]) -> str:
    """Lines of topic, share, tokens and words below one another."""
    cells = [HEAD, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(3)]
    lines = ["  ".join([*(c.rjust(w) for c, w in zip(row[:3], widths, strict=True)), row[3]]) for row in cells]
    lines.insert(1, "  ".join("-" * w for w in (*widths, 40)))
    return "\n".join(lines)


def _tokens(line: TopicLine) -> str:
    return "?" if line.tokens is None else f"{line.tokens:,.0f}"


def topic_list(
    posterior: Posterior,
    n: int = 10,
    by: Ranking = "relevance",
    weight: float = RELEVANCE,
    words: Sequence[str] | None = None,
) -> TopicList:
    """Topics, largest first, each with its ``n`` foremost words; see :func:`top_words` for the arguments."""
    found = top_words(posterior, n, by, weight, words)
    shares = token_shares(posterior)
    counts = None if posterior.summary is None else posterior.summary["N"]
    lines = [
        TopicLine(int(posterior.ids[k]), float(shares[k]), None if counts is None else float(counts[k]), found.names(k))
        for k in by_size(posterior).tolist()
    ]
    return TopicList(tuple(lines))
