"""Topics in truncation-free inference: tokens, tables and top-level weights of a minibatch are drawn together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.errors import DataError
from bnp_dask.inference.streaming.learners import Counted, Draws, WordSums, by_size, provisional, tally, weights_of
from bnp_dask.inputs.protocols import as_a
from bnp_dask.kernels.streaming.counts_gibbs import NONE
from bnp_dask.kernels.streaming.topics_gibbs import draw_tables, sweep_topics
from bnp_dask.kernels.streaming.word_sums import add_tokens
from bnp_dask.model import Model
from bnp_dask.observation import Multinomial
from bnp_dask.observation.checks import as_csr

Tokens = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Offsets of documents, ``(G + 1,)``; place of the word, and topic, of each token, ``(T,)``."""

LEAST_SHARE = 1e-300
"""Weight of a topic at the top level, at least."""


@dataclass
class TopicLearner:
    """Learner of documents whose tokens come from topics."""

    model: Model
    rows: Any
    weights: np.ndarray
    draws: Draws
    rng: np.random.Generator
    held: Summary
    words: WordSums
    counts: Counted
    tables: Counted
    prior: np.ndarray

    @classmethod
    def of(
        cls, model: Model, held: Summary, tables: np.ndarray, batch: Batch, draws: Draws, rng: np.random.Generator
    ) -> TopicLearner:
        """A learner that starts from ``held`` with ``tables (K,)``; DataError for counts that are no whole numbers."""
        rows = as_csr(batch)
        if (rows.data != np.floor(rows.data)).any():
            raise DataError(
                f"{batch.name}: some counts are fractions; TruncationFreeSVI() draws a topic for every single token. "
                "Use whole numbers, or another schedule"
            )
        prior = np.ascontiguousarray(as_a(model.observation, Multinomial).lam, np.float64)
        sums = WordSums.of(held["x"]), Counted.of(held["N"]), Counted.of(tables)
        return cls(model, rows, weights_of(batch), draws, rng, held, *sums, prior)

    def step(self, rows: np.ndarray, keep: float, size: float) -> float:
        x, weights = self.rows[rows], self.weights[rows]
        words, place = np.unique(x.indices, return_inverse=True)
        times = x.data.astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(times)])[x.indptr].astype(np.int64)
        place = np.repeat(place.astype(np.int64), times)
        gibbs = _Minibatch.of(self, words, (offsets, place, np.full(len(place), NONE)), weights, size)
        logs = gibbs.sweep()
        burn_in = self.draws.burn_in if len(place) > 1 else 0
        drawn: list[tuple[np.ndarray, np.ndarray]] = []
        for turn in range(burn_in + self.draws.samples):
            tables = gibbs.resample(is_last=turn + 1 == burn_in + self.draws.samples)
            if turn >= burn_in:
                drawn.append((gibbs.note(), tables))
            if turn + 1 < burn_in + self.draws.samples:
                gibbs.sweep()
        k, share = gibbs.n_topics, weights / len(drawn)
        self.words.weigh(keep, k)
        n, s = np.zeros(k), np.zeros(k)
        for topics, tables in drawn:
            args = self.words.added, self.words.added_totals
            add_tokens(offsets, words, place, topics, share / self.words.scale, *args)
            n += tally(topics[None], np.repeat(share, np.diff(offsets)), k)
            s[: len(tables)] += tables / len(drawn)
        self.counts.move(keep, n)
        self.tables.move(keep, s)
        return logs

    def added(self) -> tuple[Summary, np.ndarray | None]:
        k = len(self.counts.added)
        empty = self.model.empty_summary(provisional(self.held, k - self.held.n_clusters))
        own = {"N": self.counts.added, "x": self.words.values(k)}
        return replace(empty, values={**empty.values, **own}), self.tables.added


@dataclass
class _Minibatch:
    """The hidden variables of a minibatch while they are drawn."""

    allocation: Any
    rng: np.random.Generator
    state: np.ndarray
    tokens: Tokens
    weights: np.ndarray
    prior: tuple[np.ndarray, float]
    known: np.ndarray
    order: np.ndarray
    n_topics: int
    weight: np.ndarray
    rest: float
    table: np.ndarray
    totals: np.ndarray
    members: np.ndarray
    kept: np.ndarray

    @classmethod
    def of(
        cls, learner: TopicLearner, words: np.ndarray, tokens: Tokens, weights: np.ndarray, size: float
    ) -> _Minibatch:
        known = size * learner.tables.value
        k = len(known)
        own = np.ascontiguousarray(learner.prior[words])
        table, totals = learner.words.table(words, k, size)
        prior = own, float(learner.prior.sum())
        room, state = len(totals), learner.rng.integers(1, 2**63, 1, dtype=np.uint64)
        found = cls(
            learner.model.allocation, learner.rng, state, tokens, weights, prior, known, by_size(known), k,
            np.zeros(room), 1.0, table + own[:, None], totals + prior[1], np.zeros(room, np.int64),
            np.zeros(room, np.bool_),
        )  # fmt: skip
        found._draw_sticks(np.zeros(k))
        return found

    def sweep(self) -> float:
        """Draw the topic of every token."""
        sticks = self.weight, self.rest, float(self.allocation.alpha), float(self.allocation.gamma)
        places = len(self.known), self.n_topics, self.members, self.kept
        found = sweep_topics(
            self.tokens, self.prior, self.weights, sticks, (self.table, self.totals), places, self.state
        )
        self.n_topics, self.weight, self.rest, self.table, self.totals, self.members, self.kept, logs = found
        return float(logs)

    def resample(self, is_last: bool) -> np.ndarray:
        """Draw tables given topics, and weights given tables unless this is the last time; returns tables, ``(K,)``."""
        share = float(self.allocation.alpha) * self.weight
        tables = draw_tables(self.tokens[0], self.tokens[2], self.weights, share, self.n_topics, self.state)
        if not is_last:
            self._draw_sticks(tables)
        return tables

    def note(self) -> np.ndarray:
        """Copy of the current topics, ``(T,)``; their positions are never given to other topics."""
        topics = self.tokens[2].copy()
        self.kept[topics[topics != NONE]] = True
        return topics

    def _draw_sticks(self, tables: np.ndarray) -> None:
        """Weights at the top level given the tables of the minibatch.

        Known topics have sticks Beta(1 + S_k, gamma + S_>k) by falling size (S.2.2, with the second exponent v_k - 1).
        The remaining weight is divided by a Dirichlet distribution with the tables of new topics and gamma.
        """
        known, gamma = len(self.known), float(self.allocation.gamma)
        own = (self.known + tables[:known])[self.order]
        newborn = tables[known:]
        later = np.cumsum(own[::-1])[::-1] - own + newborn.sum()
        sticks = self.rng.beta(1.0 + own, gamma + np.maximum(later, 0.0))
        before = np.concatenate([[1.0], np.cumprod(1.0 - sticks)])
        self.weight[:] = 0.0
        self.weight[self.order] = np.maximum(sticks * before[:-1], LEAST_SHARE)
        self.rest = max(float(before[-1]), LEAST_SHARE)
        there = np.flatnonzero(newborn)
        if len(there):
            drawn = self.rng.standard_gamma(np.append(newborn[there], gamma))
            shares = self.rest * drawn / drawn.sum()
            self.weight[known + there] = np.maximum(shares[:-1], LEAST_SHARE)
            self.rest = max(float(shares[-1]), LEAST_SHARE)
