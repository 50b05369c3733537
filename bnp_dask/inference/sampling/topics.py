"""Chains of HDP topics by direct assignment: shares of documents are integrated out, the top level is drawn.

    tables -> beta drawn -> batch -> a topic drawn for each token -> tables drawn, summary -> total

Given the weights ``beta`` of the top level and the words of topics, a token of word v in document d comes from topic k
with probability in proportion to ``(N_dk + alpha beta_k) phi_kv``, N_dk from all other tokens of the document (Teh,
Jordan, Beal & Blei 2006, 5.3).  So batches are swept side by side, among the existing topics.  A sweep keeps them as a
sweep of a mixture does (:mod:`bnp_dask.inference.sampling.sweep`): one token of each topic stays in its place, and a
token of topic k has the factor ``exp(-t_k)``, ``t_k ~ Exponential(N_k)``.

Then the tokens of one batch are seated again, words of topics integrated out.  A new topic has the weight ``alpha
beta_rest``, of which it gets the share ``b ~ Beta(1, gamma)``; the weight of a topic that loses its last token goes
back to the rest.

Tables of a topic in a document, m_dk, are drawn given N_dk with weights of the lap, and ``beta`` of the next lap from
Dirichlet(m_.1, ..., m_.K, gamma).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import gammaln

from bnp_dask.allocation import SampledTopics
from bnp_dask.core import Batch, Summary
from bnp_dask.errors import DataError
from bnp_dask.inference.chains import TABLES, Chain, Pins, chain_fields
from bnp_dask.inference.sampling.chain import drawn_parameters, shares, top_generator
from bnp_dask.inference.sampling.visit import (
    ASSIGN,
    PARAMETERS,
    RESEAT,
    TABLE,
    Assigned,
    Labels,
    Numbered,
    Swept,
    generator,
    pins_of,
    visited,
)
from bnp_dask.inference.visit import Request
from bnp_dask.inputs import as_a
from bnp_dask.kernels import draw_tables, exp, log, matmul, sweep_documents, sweep_topics
from bnp_dask.model import Model
from bnp_dask.observation import LOG_BASE, Multinomial, TokenObservation, as_csr
from bnp_dask.structure import summarize_words

MORE = 16
"""Places for topics that a batch opens, at first."""


@dataclass(frozen=True, eq=False)
class DrawnTopics:
    """One chain's topics in a sweep.

    Parameters
    ----------
    chain, lap
        Numbers from 0; with the seed and the batch they are the key of all random numbers.
    ids
        ``(K,)``.
    beta
        Weights at the top level, ``(K,)``.
    observation
        Words of topics at the draw.
    log_factor
        Log of the factor of each token of a topic, ``-t_k``, ``(K,)``.
    pins
        Token of each topic that stays in its place; None: all move.
    """

    chain: int
    lap: int
    ids: np.ndarray
    beta: np.ndarray
    observation: Any
    log_factor: np.ndarray
    pins: Pins | None


@dataclass(frozen=True, eq=False)
class OtherTopics:
    """The tokens of all other batches in one chain.

    ``summary`` are their statistics, ``next_id`` the id of the next topic, ``beta (K,)`` the weights at the top level.
    """

    chain: int
    lap: int
    summary: Summary
    next_id: int
    beta: np.ndarray

    @property
    def ids(self) -> np.ndarray:
        """Topics, ``(K,)``."""
        return self.summary.ids


@dataclass(frozen=True, eq=False)
class _Tokens:
    """Tokens one by one.

    ``offsets (G + 1,)`` delimit documents; ``row (T,)`` is each token's word, a position among ``words (R,)``.
    """

    offsets: np.ndarray
    row: np.ndarray
    words: np.ndarray

    @classmethod
    def of(cls, batch: Batch) -> _Tokens:
        """DataError for counts that are no whole numbers, or dense rows."""
        if not batch.is_sparse:
            raise DataError(
                f"{batch.name}: dense rows; Gibbs() of HDPTopics draws topics of word tokens and needs sparse counts "
                "(scipy.sparse.csr_array) with a document in each row"
            )
        x = as_csr(batch)
        if (x.data != np.floor(x.data)).any():
            raise DataError(
                f"{batch.name}: some counts are fractions; Gibbs() draws a topic for every single token. Use whole "
                "numbers, or another schedule"
            )
        words, place = np.unique(x.indices, return_inverse=True)
        times = x.data.astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(times)])[x.indptr].astype(np.int64)
        return cls(offsets, np.repeat(place.astype(np.int64), times), words)


# -- tasks ---------------------------------------------------------------------------------------------------------
def sweep_of_topics(
    model: Model, drawn: tuple[DrawnTopics, ...], request: Request, rows: np.ndarray, before: tuple[Labels, ...] | None
) -> Swept:
    """The task: read a batch and draw a topic for each token in every chain."""
    return visited(model, drawn, request, rows, before, assign_tokens)


def reseat_topics(
    model: Model, others: tuple[OtherTopics, ...], request: Request, rows: np.ndarray, before: tuple[Labels, ...] | None
) -> Swept:
    """The task: read a batch and seat its tokens again, in every chain."""
    return visited(model, others, request, rows, before, seat_tokens)


def assign_tokens(model: Model, drawn: DrawnTopics, batch: Batch, request: Request, before: Labels | None) -> Assigned:
    """Draw a topic for each token given the words of topics; ``before`` are the former topics."""
    tokens = _Tokens.of(batch)
    n = len(tokens.row)
    topic = np.full(n, -1) if before is None else before.places_in(drawn.ids, batch, n).astype(np.int64)
    stays = np.zeros(n, np.bool_)
    if drawn.pins is not None:
        stays[drawn.pins.row[drawn.pins.batch == request.batch]] = True
    table = as_a(model.observation, TokenObservation).token_log_lik(drawn.observation, tokens.words) + drawn.log_factor
    table = np.ascontiguousarray(exp(table - table.max(axis=1, keepdims=True)))
    prior = as_a(model.allocation, SampledTopics).alpha * drawn.beta
    uniform = generator(request.seed, drawn.chain, drawn.lap, ASSIGN, request.batch).random(n)
    sweep_documents(tokens.offsets, tokens.row, table, prior, stays, uniform, topic)
    return _assigned(model, drawn, drawn.ids, drawn.beta, batch, request, tokens, topic)


def seat_tokens(model: Model, others: OtherTopics, batch: Batch, request: Request, before: Labels | None) -> Assigned:
    """Draw a topic for each token given the topics of all others."""
    assert before is not None
    tokens, known = _Tokens.of(batch), len(others.ids)
    n, allocation = len(tokens.row), as_a(model.allocation, SampledTopics)
    prior = np.ascontiguousarray(as_a(model.observation, Multinomial).lam, np.float64)
    # topics of other batches come first: they cannot lose their last token
    elsewhere = others.summary["N"] > 0.5
    order = np.argsort(~elsewhere, kind="stable")
    place = np.empty(known, np.int64)
    place[order] = np.arange(known)
    topic = place[before.places_in(others.ids, batch, n)]
    room = known + MORE
    weight, own = np.zeros(room), np.ascontiguousarray(prior[tokens.words])
    weight[:known] = others.beta[order]
    members = np.bincount(topic, minlength=room)
    table = np.tile(own[:, None], (1, room))
    table[:, :known] += others.summary["x"].T[tokens.words][:, order]
    table += _counts(tokens, topic, room)
    totals = prior.sum() + members
    totals[:known] += others.summary["N"][order]
    gone = members[:known] == 0
    gone &= ~elsewhere[order]
    weight[:known][gone] = 0.0
    kept = np.zeros(room, np.bool_)
    kept[:known] = True  # their ids are not given to others
    state = generator(request.seed, others.chain, others.lap, RESEAT, request.batch).integers(
        1, 2**63, 1, dtype=np.uint64
    )
    rest = max(1.0 - float(weight.sum()), 0.0)
    found = sweep_topics(
        (tokens.offsets, tokens.row, topic), (own, float(prior.sum())), np.ones(len(tokens.offsets) - 1),
        (weight, rest, float(allocation.alpha), float(allocation.gamma)), (table, totals),
        (int(elsewhere.sum()), known, members, kept), state,
    )  # fmt: skip
    n_topics, weight = int(found[0]), found[1]
    beta = np.concatenate([weight[place], weight[known:n_topics]])
    back = np.concatenate([order, np.arange(known, n_topics)])
    ids = np.concatenate([others.ids, others.next_id + np.arange(n_topics - known)])
    out = _assigned(model, others, ids, np.maximum(beta, np.finfo(float).tiny), batch, request, tokens, back[topic])
    return replace(out, opened=beta[known:])


def _counts(tokens: _Tokens, topic: np.ndarray, n_topics: int) -> np.ndarray:
    """Tokens by word and topic, ``(R, K)``."""
    flat = np.bincount(tokens.row * n_topics + topic, minlength=len(tokens.words) * n_topics)
    return flat.reshape(len(tokens.words), n_topics).astype(np.float64)


def _assigned(
    model: Model, known: Numbered, ids: np.ndarray, beta: np.ndarray, batch: Batch, request: Request, tokens: _Tokens,
    topic: np.ndarray,
) -> Assigned:  # fmt: skip
    """Statistics of a batch whose tokens have topics, with tables drawn."""
    allocation, k = as_a(model.allocation, SampledTopics), len(ids)
    lengths = np.diff(tokens.offsets)
    document = np.repeat(np.arange(len(lengths)), lengths)
    held = sparse.coo_array((np.ones(len(topic)), (document, topic)), shape=(len(lengths), k)).tocsr()
    counts = _counts(tokens, topic, k)
    state = generator(request.seed, known.chain, known.lap, TABLE, request.batch).integers(1, 2**63, 1, dtype=np.uint64)
    share = allocation.alpha * beta
    empty = model.empty_summary(ids)
    values = {
        **empty.values,
        "N": counts.sum(axis=0),
        **summarize_words(model.observation, batch, counts, tokens.words),
        **allocation.certain_values(held.data, held.indices.astype(np.int64), lengths.astype(np.float64), beta),
        TABLES: draw_tables(tokens.offsets, topic, np.ones(len(lengths)), share, k, state),
    }
    fields = chain_fields(model)
    summary = replace(empty, fields=fields, values={name: np.asarray(values[name]) for name in fields})
    return Assigned(summary, pins_of(known, request, topic, k), Labels.of(ids, topic), _largest(held, ids))


def _largest(held: sparse.csr_array, ids: np.ndarray) -> np.ndarray:
    """Id of the largest topic of each document, ``(G,)``; -1 for one without tokens."""
    out = np.full(held.shape[0], -1)
    some = np.diff(held.indptr) > 0
    if some.any():
        out[some] = ids[np.asarray(held[some].argmax(axis=1)).ravel()]
    return out


# -- the coordinator ----------------------------------------------------------------------------------------------
def unite_topics(model: Model, chain: Chain) -> dict[int, int]:
    """Unite topics as long as that raises the log probability of tokens, tables and topics.

    Tables stay, and serve the united topic.  With m_k tables the gain is, in nats,

        log Gamma(m_a + m_b) - log Gamma(m_a) - log Gamma(m_b) - log gamma + data(a + b) - data(a) - data(b).

    This climbs and does not sample: it shortens the way from a start with copies of topics, and is used before the
    first draw.  Each topic is compared with the topic whose words are most like its own.

    Returns
    -------
    into
        For each topic that went: the topic that has its tokens.
    """
    into: dict[int, int] = {}
    while chain.total.n_clusters > 1:
        total, pins = chain.total, chain.pins
        pairs, gains = _unions(model, total)
        left = np.ones(total.n_clusters, np.bool_)
        used: set[int] = set()
        for p in np.argsort(-gains, kind="stable"):
            a, b = (int(place) for place in pairs[p])
            if not gains[p] > 0.0 or {a, b} & used:
                continue
            used |= {a, b}
            left[b] = False
            keep, drop = int(total.ids[a]), int(total.ids[b])
            into = {gone: keep if own == drop else own for gone, own in into.items()} | {drop: keep}
            for name in ("N", "x", TABLES):
                total.values[name][a] += total.values[name][b]
            if pins is not None:
                one = np.array([a])
                pins = pins.put(one, pins.take(one).or_less(pins.take(np.array([b]))))
        if not used:
            break
        chain.total, chain.pins = total.take(total.ids[left]), None if pins is None else pins.take(np.flatnonzero(left))
    return into


def _unions(model: Model, total: Summary) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of topics with similar words, the larger first, ``(J, 2)``, and the gains of their unions, ``(J,)``."""
    x, m = total["x"], total[TABLES]
    length = np.sqrt(np.einsum("kv,kv->k", x, x))
    alike = matmul(x, x.T) / np.outer(length, length)
    np.fill_diagonal(alike, -1.0)
    nearest = alike.argmax(axis=1)
    both = np.unique(np.sort(np.stack([np.arange(len(m)), nearest], axis=1), axis=1), axis=0)
    larger = total["N"][both[:, 0]] >= total["N"][both[:, 1]]
    pairs = np.where(larger[:, None], both, both[:, ::-1])
    empty = model.empty_summary(np.arange(len(pairs)))
    sums = {name: total[name][pairs[:, 0]] + total[name][pairs[:, 1]] for name in ("N", "x")}
    own = model.best_data_terms(total)
    gains = model.best_data_terms(replace(empty, values={**empty.values, **sums})) - own[pairs].sum(axis=1)
    gains += gammaln(m[pairs].sum(axis=1)) - gammaln(m[pairs]).sum(axis=1)
    return pairs, gains - float(log(as_a(model.allocation, SampledTopics).gamma))


def top_of_topics(model: Model, chain: Chain, rng: np.random.Generator) -> np.ndarray:
    """Draw the weights of topics at the top level, ``(K,)``; the rest to one belongs to unused topics."""
    gamma = as_a(model.allocation, SampledTopics).gamma
    return shares(np.append(chain.total[TABLES], gamma), rng)[:-1]


def draw_topics(model: Model, chain: Chain, number: int, lap: int, seed: int, n_atoms: int) -> DrawnTopics:
    """Draw weights and words of a chain's topics for a sweep; see :func:`~.chain.draw_clusters`."""
    rng = top_generator(number, lap, seed)
    beta, factor = top_of_topics(model, chain, rng), np.zeros(chain.total.n_clusters)
    if chain.pins is not None:
        factor -= rng.standard_exponential(len(factor)) / chain.total["N"]
    words = model.lean(drawn_parameters(model, chain.total, generator(seed, number, lap, PARAMETERS)), n_atoms)
    return DrawnTopics(number, lap, chain.total.ids, beta, words, factor, chain.pins)


def other_topics(model: Model, chain: Chain, number: int, lap: int, seed: int) -> OtherTopics:
    """Statistics of a sweep's batches so far, among which the tokens of its last batch are seated."""
    assert chain.sweep is not None
    beta = top_of_topics(model, chain, top_generator(number, lap, seed))
    return OtherTopics(number, lap, chain.sweep.total.value(), chain.next_id, beta)


def end_topics(model: Model, chain: Chain, number: int, lap: int, seed: int) -> np.ndarray:
    """Make the sums the chain's total, without topics that have no token; returns the topics of the noted rows."""
    assert chain.sweep is not None
    allocation, value = as_a(model.allocation, SampledTopics), chain.sweep.total.value()
    beta = np.append(top_of_topics(model, chain, top_generator(number, lap, seed)), chain.sweep.opened)
    kept = np.flatnonzero(value["N"] > 0.5)
    value = value.take(value.ids[kept])
    data = model.best_data_terms(value).sum() + value.values.get(LOG_BASE, 0.0)
    chain.log_joint = float(allocation.log_assignments(value) + data)
    chain.total, chain.pins = allocation.completed(value, beta[kept]), chain.sweep.pins.take(kept)
    rows, chain.sweep = chain.sweep.rows, None
    return rows
