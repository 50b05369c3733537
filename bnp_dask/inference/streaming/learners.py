"""Learners of truncation-free inference: clusters of the atoms of a minibatch are drawn, and move the beliefs.

In mixtures, atoms are drawn; in topic models, tokens, tables and top-level weights of a minibatch are drawn
together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from bnp_dask.allocation import StickAllocation
from bnp_dask.core import Batch, Summary
from bnp_dask.errors import DataError
from bnp_dask.inference.streaming.task import columns_of
from bnp_dask.inputs import as_a
from bnp_dask.kernels import (
    NONE,
    add_documents,
    add_tokens,
    choose_cluster,
    draw_tables,
    free_position,
    gather_words,
    gibbs_counts,
    gibbs_gaussian,
    prior_weights,
    sweep_topics,
)
from bnp_dask.model import Model
from bnp_dask.observation import LOG_BASE, Gaussian, Multinomial, as_csr, unrecorded_covariance

ROOM = 8
"""Room for new clusters beyond the existing ones, at first."""

LEAST_SCALE = 1e-100
"""Scale of the added statistics below which it is multiplied out."""


@dataclass(frozen=True)
class Draws:
    """Numbers of sweeps of a minibatch: ``burn_in``, and then ``samples`` that count."""

    burn_in: int
    samples: int

    def sweeps(self, n_atoms: int) -> int:
        """Sweeps of ``n_atoms`` atoms; a single atom is drawn exactly and needs no burn-in."""
        return self.samples + (self.burn_in if n_atoms > 1 else 0)


class Learner(Protocol):
    """Beliefs while the minibatches of one batch are visited."""

    def step(self, rows: np.ndarray, keep: float, size: float) -> float:
        """Draw the hidden variables of some rows given ``size`` times the beliefs; scales beliefs by ``keep``, adds
        draws.

        Returns the log predictive density of the rows, each given the rows before it, nats.
        """
        ...

    def added(self) -> tuple[Summary, np.ndarray | None]:
        """Statistics added since the start, with clusters opened appended under provisional ids; for topics also
        their tables, ``(K + J,)``."""
        ...


def mixture_learner(model: Model, held: Summary, batch: Batch, draws: Draws, rng: np.random.Generator) -> Learner:
    """A learner that starts from ``held``, K >= 0 clusters."""
    if isinstance(model.observation, Multinomial):
        return CountLearner.of(model, held, batch, draws, rng)
    return SummaryLearner(model, batch, weights_of(batch), draws, rng, held, held.zeros())


def weights_of(batch: Batch) -> np.ndarray:
    """Weights of the rows, ``(n,)``."""
    return np.ones(batch.n_atoms) if batch.weights is None else np.asarray(batch.weights, np.float64)


def by_size(counts: np.ndarray) -> np.ndarray:
    """Positions by falling counts, ``(K,)``."""
    return np.argsort(-counts, kind="stable")


def provisional(held: Summary, n_new: int) -> np.ndarray:
    """Ids of the clusters of ``held`` and of new ones after them."""
    first = int(held.ids.max(initial=-1)) + 1
    return np.concatenate([held.ids, np.arange(first, first + n_new)])


# -- words -------------------------------------------------------------------------------------------------------
@dataclass
class WordSums:
    """Words of clusters: ``fade`` times ``base (V, K)`` plus ``scale`` times ``added (V, C)``, and their sums."""

    base: np.ndarray
    base_totals: np.ndarray
    added: np.ndarray
    added_totals: np.ndarray
    fade: float = 1.0
    scale: float = 1.0

    @classmethod
    def of(cls, x: np.ndarray) -> WordSums:
        """From words of the known clusters, ``(K, V)``."""
        wide = len(x) + ROOM
        return cls(np.ascontiguousarray(x.T), x.sum(axis=1), np.zeros((x.shape[1], wide)), np.zeros(wide))

    def table(self, words: np.ndarray, n_clusters: int, size: float) -> tuple[np.ndarray, np.ndarray]:
        """Counts of some words in all clusters ``(R, C)``, and totals ``(C,)``, all times ``size``, with room for more
        clusters than ``n_clusters``."""
        known, room = len(self.base_totals), n_clusters + ROOM
        out, totals = np.zeros((len(words), room)), np.zeros(room)
        gather_words(self.base, size * self.fade, self.added[:, :n_clusters], size * self.scale, words, out)
        totals[:n_clusters] = size * self.scale * self.added_totals[:n_clusters]
        totals[:known] += size * self.fade * self.base_totals
        return out, totals

    def weigh(self, keep: float, n_clusters: int) -> None:
        """Keep the share ``keep`` of all counts, and make room for ``n_clusters`` clusters."""
        self.fade *= keep
        self.scale *= keep
        if self.scale < LEAST_SCALE:
            self.added *= self.scale
            self.added_totals *= self.scale
            self.scale = 1.0
        more = n_clusters - len(self.added_totals)
        if more > 0:
            more += len(self.added_totals) + ROOM
            self.added = np.concatenate([self.added, np.zeros((len(self.added), more))], axis=1)
            self.added_totals = np.concatenate([self.added_totals, np.zeros(more)])

    def values(self, n_clusters: int) -> np.ndarray:
        """Counts that were added, ``(K, V)``."""
        return self.scale * np.ascontiguousarray(self.added[:, :n_clusters].T)


@dataclass
class Counted:
    """A number of each cluster as it is learned: ``known`` fades, ``added`` grows, ``(K,)`` both."""

    known: np.ndarray
    added: np.ndarray

    @classmethod
    def of(cls, known: np.ndarray) -> Counted:
        return cls(np.maximum(known, 0.0), np.zeros(len(known)))

    @property
    def value(self) -> np.ndarray:
        return self.known + self.added

    def move(self, keep: float, more: np.ndarray) -> None:
        """Keep the share ``keep`` and add ``more (K + J,)``, J of which are new."""
        new = np.zeros(len(more) - len(self.known))
        self.known = np.concatenate([keep * self.known, new])
        self.added = np.concatenate([keep * self.added, new]) + more


@dataclass
class CountLearner:
    """Learner of documents that come from one cluster each."""

    model: Model
    rows: Any
    weights: np.ndarray
    log_base: float
    draws: Draws
    rng: np.random.Generator
    held: Summary
    words: WordSums
    counts: Counted
    prior: np.ndarray
    seen: float = 0.0

    @classmethod
    def of(cls, model: Model, held: Summary, batch: Batch, draws: Draws, rng: np.random.Generator) -> CountLearner:
        weights, observation = weights_of(batch), as_a(model.observation, Multinomial)
        log_base = float(observation.summarize(batch, weights[:, None])[LOG_BASE])
        prior = np.ascontiguousarray(observation.lam, np.float64)
        words, counts = WordSums.of(held["x"]), Counted.of(held["N"])
        return cls(model, as_csr(batch), weights, log_base, draws, rng, held, words, counts, prior)

    def step(self, rows: np.ndarray, keep: float, size: float) -> float:
        x, weights = self.rows[rows], self.weights[rows]
        words, place = np.unique(x.indices, return_inverse=True)
        data = np.asarray(x.data, np.float64)
        local = x.indptr.astype(np.int64), place.astype(np.int64), data
        counts = size * self.counts.value
        believed = (by_size(counts), counts, *self.words.table(words, len(counts), size))
        uniform = self.rng.random((self.draws.sweeps(len(rows)), len(rows)))
        labels = np.full((self.draws.samples, len(rows)), NONE)
        prior = np.ascontiguousarray(self.prior[words]), float(self.prior.sum())
        gamma = float(as_a(self.model.allocation, StickAllocation).gamma)
        k, logs = gibbs_counts(local, prior, weights, believed, gamma, uniform, labels)
        self.words.weigh(keep, k)
        times = weights / len(labels)
        self.counts.move(keep, tally(labels, times, k))
        args = self.words.added, self.words.added_totals
        add_documents(local, words, labels, times / self.words.scale, *args)
        self.seen = keep * self.seen + float(weights.sum())
        # the coefficients of a mean document
        return float(logs) + self.log_base * float(weights.sum() / self.weights.sum())

    def added(self) -> tuple[Summary, np.ndarray | None]:
        k = len(self.counts.added)
        ids = provisional(self.held, k - self.held.n_clusters)
        base = np.asarray(self.log_base * self.seen / max(float(self.weights.sum()), 1e-300))
        own = {"N": self.counts.added, "x": self.words.values(k), LOG_BASE: base}
        empty = self.model.empty_summary(ids)
        return replace(empty, values={**empty.values, **own}), None


def tally(labels: np.ndarray, times: np.ndarray, n_clusters: int) -> np.ndarray:
    """Sum of ``times (n,)`` by position over samples ``labels (samples, n)``, ``(K,)``."""
    out = np.zeros(n_clusters)
    for z in labels:
        out += np.bincount(z[z != NONE], times[z != NONE], n_clusters)
    return out


# -- any likelihood ------------------------------------------------------------------------------------------------
@dataclass
class SummaryLearner:
    """Learner of atoms of any likelihood, by its summaries."""

    model: Model
    batch: Batch
    weights: np.ndarray
    draws: Draws
    rng: np.random.Generator
    base: Summary
    own: Summary
    fade: float = field(default=1.0)

    def step(self, rows: np.ndarray, keep: float, size: float) -> float:
        atoms, weights = replace(self.batch.take(rows), weights=None), self.weights[rows]
        current = self.base.scale(size * self.fade) + self.own.scale(size)
        uniform = self.rng.random((self.draws.sweeps(len(rows)), len(rows)))
        labels = np.full((self.draws.samples, len(rows)), NONE)
        draw = gibbs_points if is_plain_gaussian(self.model) else gibbs_any
        k, logs = draw(self.model, current, atoms, weights, uniform, labels)
        new = provisional(current, k - current.n_clusters)[current.n_clusters :]
        self.base, self.own = self.base.insert_empty(new), self.own.insert_empty(new)
        resp = np.zeros((len(rows), k))
        for z in labels:
            there = np.flatnonzero(z != NONE)
            resp[there, z[there]] += weights[there] / len(labels)
        self.own = self.own.scale(keep) + statistics(self.model, self.own.ids, atoms, resp)
        self.fade *= keep
        return float(logs)

    def added(self) -> tuple[Summary, np.ndarray | None]:
        return self.own, None


def is_plain_gaussian(model: Model) -> bool:
    """Whether rotations of factors may move points between clusters: factors lack the unrecorded parts of atoms."""
    observation = model.observation
    return isinstance(observation, Gaussian) and unrecorded_covariance(observation.grain, observation.null) is None


def statistics(model: Model, ids: np.ndarray, atoms: Batch, resp: np.ndarray) -> Summary:
    """Statistics of atoms with responsibilities times weights, ``(n, K)``."""
    empty = model.empty_summary(ids)
    own = {"N": resp.sum(axis=0), **model.observation.summarize(atoms, resp)}
    return replace(empty, values={**empty.values, **{name: np.asarray(v, np.float64) for name, v in own.items()}})


def gibbs_points(
    model: Model, current: Summary, atoms: Batch, weights: np.ndarray, uniform: np.ndarray, labels: np.ndarray
) -> tuple[int, float]:
    """Clusters of points under Gaussians of full covariance; see
    :func:`~bnp_dask.kernels.predictive.gaussian.gibbs_gaussian`."""
    observation = as_a(model.observation, Gaussian)
    nothing = columns_of(observation.global_step(model.empty_summary(np.zeros(1, np.int64))), atoms.n_features)
    start = nothing
    if current.n_clusters:
        known = columns_of(observation.global_step(current), atoms.n_features)
        start = [np.concatenate(both, axis=-1) for both in zip(known, nothing, strict=True)]
    x = np.ascontiguousarray(atoms.x - observation.center, np.float64)
    believed = by_size(current["N"]), np.maximum(current["N"], 0.0)
    gamma = float(as_a(model.allocation, StickAllocation).gamma)
    contiguous = tuple(np.ascontiguousarray(table) for table in start)
    found: tuple[int, float] = gibbs_gaussian(x, weights, believed, contiguous, gamma, uniform, labels)
    return found


def gibbs_any(
    model: Model, current: Summary, atoms: Batch, weights: np.ndarray, uniform: np.ndarray, labels: np.ndarray
) -> tuple[int, float]:
    """Clusters of atoms by ``log_predictive`` and ``summarize`` of their likelihood; see
    :func:`~bnp_dask.kernels.predictive.counts.gibbs_counts`."""
    places = _Places.of(model, current, atoms, weights)
    known, gamma = current.n_clusters, float(as_a(model.allocation, StickAllocation).gamma)
    order, counts = by_size(current["N"]), np.maximum(current["N"], 0.0)
    z, logs, k, first = np.full(atoms.n_atoms, NONE), 0.0, known, len(uniform) - len(labels)
    kept = np.zeros(known + (len(labels) + 1) * atoms.n_atoms, np.bool_)
    for sweep, numbers in enumerate(uniform):
        for i in np.flatnonzero(weights).tolist():
            old, before = int(z[i]), None
            if old != NONE:
                before = places.take_out(i, old)
            share, part = np.empty(k + 1), np.empty(k + 1)
            prior_weights(order, counts, places.own(), k, gamma, share)
            new, level = choose_cluster(places.of_atom(i, k), share, k, numbers[i], part)
            if new == k:
                new = int(free_position(places.sizes(), kept, known, k))
                k = max(k, new + 1)
            if sweep == 0:
                logs += weights[i] * level
            places.put(i, new, before if new == old else None)
            z[i] = new
        if sweep >= first:
            labels[sweep - first] = z
            kept[z[z != NONE]] = True
    return k, logs


@dataclass
class _Places:
    """Clusters of the atoms of a minibatch, and log predictive densities under each cluster given its atoms."""

    model: Model
    current: Summary
    atoms: Batch
    weights: np.ndarray
    members: list[list[int]]
    table: list[np.ndarray]
    fresh: np.ndarray
    singles: dict[int, Summary] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model, current: Summary, atoms: Batch, weights: np.ndarray) -> _Places:
        observation, k = model.observation, current.n_clusters
        nothing = observation.global_step(model.empty_summary(np.zeros(1, np.int64)))
        fresh = observation.log_predictive(nothing, atoms)[:, 0]
        table = list(observation.log_predictive(observation.global_step(current), atoms).T) if k else []
        return cls(model, current, atoms, weights, [[] for _ in range(k)], table, fresh)

    def own(self) -> np.ndarray:
        """Weight of the atoms in each cluster, ``(C,)``."""
        return np.array([self.weights[m].sum() if m else 0.0 for m in self.members])

    def sizes(self) -> np.ndarray:
        """Numbers of atoms in each cluster, ``(C,)``."""
        return np.array([len(m) for m in self.members], np.int64)

    def of_atom(self, i: int, n_clusters: int) -> np.ndarray:
        """Log predictive density of an atom under each cluster, and under a new one, ``(K + 1,)``."""
        return np.array([*(column[i] for column in self.table[:n_clusters]), self.fresh[i]])

    def take_out(self, i: int, k: int) -> np.ndarray:
        """Take an atom out of a cluster; returns the densities before."""
        before = self.table[k]
        self.members[k].remove(i)
        self.table[k] = self._column(k)
        return before

    def put(self, i: int, k: int, column: np.ndarray | None) -> None:
        """Put an atom into a cluster; ``column`` holds the cluster's densities with it, None if they are not known."""
        if k == len(self.members):
            self.members.append([])
            self.table.append(self.fresh)
        self.members[k].append(i)
        self.members[k].sort()
        self.table[k] = self._column(k) if column is None else column

    def _column(self, k: int) -> np.ndarray:
        one, observation = self._believed(k), self.model.observation
        members = np.array(self.members[k], np.int64)
        if len(members):
            weights = self.weights[members, None]
            own = {"N": weights.sum(axis=0), **observation.summarize(self.atoms.take(members), weights)}
            one = replace(one, values={**one.values, **{name: one[name] + value for name, value in own.items()}})
        return observation.log_predictive(observation.global_step(one), self.atoms)[:, 0]

    def _believed(self, k: int) -> Summary:
        """A cluster without the atoms of the minibatch; all new ones are alike."""
        place = min(k, self.current.n_clusters)
        if place not in self.singles:
            known = place < self.current.n_clusters
            ids = self.current.ids[[place]] if known else np.zeros(1, np.int64)
            self.singles[place] = self.current.take(ids) if known else self.model.empty_summary(ids)
        return self.singles[place]


# -- topics --------------------------------------------------------------------------------------------------------
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
        return cls(
            model,
            rows,
            weights=weights_of(batch),
            draws=draws,
            rng=rng,
            held=held,
            words=WordSums.of(held["x"]),
            counts=Counted.of(held["N"]),
            tables=Counted.of(tables),
            prior=prior,
        )

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
