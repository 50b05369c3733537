"""Draws of truncation-free inference against enumeration, closed forms and each other."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from scipy.special import gammaln

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.inference.streaming import learners
from bnp_dask.inference.streaming.learners import Draws, TopicLearner, WordSums, _Minibatch
from bnp_dask.inference.streaming.task import columns_of
from bnp_dask.inference.streaming.truncation_free import Turn, change_of, kept_share
from bnp_dask.kernels.predictive.counts import draw_tables, gibbs_counts
from bnp_dask.kernels.predictive.gaussian import gibbs_gaussian
from bnp_dask.kernels.predictive.urns import prior_weights
from bnp_dask.observation.multinomial import Multinomial
from bnp_dask.testing import survey_of
from tests.pairwise import in_pairs
from tests.streaming.cases import LIKELIHOODS, case
from tests.streaming.oracle import Oracle, partitions


def nothing(model):
    return model.empty_summary(np.zeros(0, np.int64))


def turn(minibatch=100, burn_in=0, seen=0.0, total=20.0, samples=1):
    return Turn(0, minibatch, Draws(burn_in, samples), False, seen, total)


def rng():
    return np.random.default_rng(np.random.SeedSequence(0, spawn_key=(*b"free", 0, 0)))


def canonical(labels):
    names: dict[int, int] = {}
    return tuple(names.setdefault(int(k), len(names)) for k in labels)


# -- the local distribution ---------------------------------------------------------------------------------------
def test_integral_tells_components_apart_where_expected_logarithms_do_not():
    """Fig. 2 of Wang & Blei 2012, case B, three times the first word."""
    model = Multinomial(np.full(10, 0.1))
    summary = bnp.Model(bnp.DPMixture(), model).empty_summary(np.arange(2))
    summary.values["x"][0] = 0.9  # Dirichlet(1, ..., 1); the other is that of the prior
    params, document = model.global_step(summary), Batch(sparse.csr_array(3.0 * np.eye(1, 10)), None, "document")
    mean_field, collapsed = (
        verb(params, document)[0] @ [1.0, -1.0] for verb in (model.expected_log_lik, model.log_predictive)
    )
    assert_allclose(mean_field, 21.05, atol=0.005)
    assert_allclose(collapsed, -2.14, atol=0.005)


def test_prior_weights_are_expected_sticks_and_sum_to_one():
    counts, own = np.array([3.0, 10.0]), np.array([1.0, 0.0, 2.0, 1.0])
    out = np.empty(5)
    prior_weights(np.array([1, 0]), counts, own, 4, 1.5, out)
    first = 11.0 / (11.0 + 1.5 + 4.0 + 3.0)
    second = (1.0 - first) * 5.0 / (5.0 + 1.5 + 3.0)
    left = 1.0 - first - second
    assert_allclose(out, [second, first, left * 2 / 4.5, left * 1 / 4.5, left * 1.5 / 4.5])


def of_prior(model, batch):
    params = model.observation.global_step(model.empty_summary(np.zeros(1, np.int64)))
    return tuple(np.ascontiguousarray(table) for table in columns_of(params, batch.n_features))


def drawn(model, batch, uniform, samples=1):
    """Clusters of atoms of weight one that start from nothing, by the compiled loop."""
    weights, labels, prior = np.ones(batch.n_atoms), np.full((samples, batch.n_atoms), -1), model.observation
    if isinstance(prior, bnp.Multinomial):
        x, v = batch.x, batch.n_features
        rows = x.indptr.astype(np.int64), x.indices.astype(np.int64), x.data
        believed = np.zeros(0, np.int64), np.zeros(0), np.zeros((v, 2)), np.zeros(2)
        gibbs_counts(rows, (prior.lam, prior.lam.sum()), weights, believed, model.allocation.gamma, uniform, labels)
    else:
        believed = np.zeros(0, np.int64), np.zeros(0)
        x = batch.x - prior.center
        gibbs_gaussian(x, weights, believed, of_prior(model, batch), model.allocation.gamma, uniform, labels)
    return labels


@pytest.mark.parametrize("likelihood", ["Multinomial", "Gaussian"])
def test_a_minibatch_of_all_atoms_is_drawn_from_the_enumerated_posterior(likelihood, monkeypatch):
    model, batch = case(likelihood, bnp.DPMixture(1.5), 4)
    exact, n = Oracle(model, batch).posterior, 8000
    uniform = np.random.default_rng(0).random((n, 9, 4))
    monkeypatch.setattr("tests.streaming.test_minibatches.of_prior", functools.lru_cache(of_prior))
    found = Counter(canonical(drawn(model, batch, numbers)[0]) for numbers in uniform)
    assert 0.5 * sum(abs(found[p] / n - q) for p, q in exact.items()) < 0.02


@pytest.mark.parametrize(*in_pairs(samples=[1, 3], weighted=[False, True], likelihood=["Multinomial", "Gaussian"]))
def test_compiled_loops_draw_as_log_predictive_does(likelihood, weighted, samples, monkeypatch):
    """From nothing, then on top of what was found, with the numbers of one seed."""
    model, batch = case(likelihood, bnp.DPMixture(1.5), 20)
    weights = np.random.default_rng(1).integers(0, 3, 20).astype(float) if weighted else None
    batch, held, found = Batch(batch.x, weights, "rows"), nothing(model), []
    for _ in range(2):
        visit = turn(7, 2, seen=0.0 if not found else 20.0, samples=samples)
        fast = change_of(model, held, None, visit, batch, rng())
        with monkeypatch.context() as patch:
            patch.setattr(learners, "Multinomial", type(None))
            patch.setattr(learners, "is_plain_gaussian", lambda model: False)
            slow = change_of(model, held, None, visit, batch, rng())
        assert_allclose(fast.fade, slow.fade)
        assert_allclose(fast.added["N"], slow.added["N"], rtol=1e-9, atol=1e-12)
        assert_allclose(fast.added["x"], slow.added["x"], rtol=1e-9, atol=1e-9)
        assert_allclose(fast.log_predictive, slow.log_predictive, rtol=1e-9)
        held = replace(fast.added, fields=dict(fast.added.fields))
        found.append(fast)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_likelihood_gives_all_atoms_to_some_cluster(likelihood):
    model, batch = case(likelihood, bnp.DPMixture(1.0), 6)
    found = change_of(model, nothing(model), None, turn(3, 1, total=6.0), batch, rng())
    assert_allclose(found.added["N"].sum(), 6.0)
    assert np.isfinite(found.log_predictive)


def test_points_far_from_others_leave_no_error_behind():
    """Taking one out by rotations would lose all digits of its cluster."""
    x = np.random.default_rng(0).normal(size=(30, 3))
    x[7] = 1e9
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian(nu=5.0, B=1.0, m=0.0, kappa=1e-12, center=0.0, grain=0.0))
    model = model.with_prior(survey_of(Batch(x, None, "x")))
    labels = drawn(model, Batch(x, None, "x"), np.random.default_rng(1).random((6, 30)))[0]
    assert np.sum(labels == labels[7]) == 1


# -- the learning rate --------------------------------------------------------------------------------------------
def test_rate_is_that_of_the_paper():
    """Of statistics as believed, for the whole data: less by s / n_t, and more by that times n / s of those found."""
    n, s, believed, held = 10.0, 2.0, np.zeros(1), 0.0
    for step in range(9):
        seen, found = s * step, float(step + 1)
        rate = s / min(seen + s, n)
        believed = believed + rate * (n / s * found - believed)
        held = kept_share(seen, s, n) * held + found
        assert_allclose(held * n / min(seen + s, n), believed)


def test_one_minibatch_is_one_step_whatever_what_is_held():
    model, batch = case("Multinomial", bnp.DPMixture(1.0), 20)
    held = change_of(model, nothing(model), None, turn(), batch, rng()).added
    one = change_of(model, held, None, turn(20, seen=100.0, total=50.0), batch, rng())
    assert_allclose(one.fade, 30.0 / 50.0)
    assert_allclose(one.added["N"].sum(), 20.0)


def test_words_are_held_under_any_number_of_steps():
    sums = WordSums.of(np.array([[2.0, 4.0]]))
    for _ in range(400):
        sums.weigh(0.5, 2)
        sums.added[0, 1] += 1.0 / sums.scale
        sums.added_totals[1] += 1.0 / sums.scale
    table, totals = sums.table(np.array([0, 1]), 2, 1.0)
    assert_allclose(table[:, :2], [[0.0, 2.0], [0.0, 0.0]], atol=1e-12)
    assert_allclose(totals[:2], [0.0, 2.0], atol=1e-12)


# -- topics -------------------------------------------------------------------------------------------------------
def corpus():
    """Two documents of three tokens, of which two words are one word."""
    x = sparse.csr_array(np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]]))
    model = bnp.Model(bnp.HDPTopics(1.2, 0.8), bnp.Multinomial(0.4))
    batch = Batch(x, None, "corpus")
    return model.with_prior(survey_of(batch)), batch


def stirling(n):
    """Unsigned numbers of the first kind, ``(n + 1,)``."""
    row = np.array([1.0])
    for i in range(n):
        row = np.append(0.0, row) + np.append(i * row, 0.0)
    return row


def exact_topics(model, documents, words):
    """Probability of every partition of tokens into topics: sums over tables, and an urn of tables."""
    alpha, gamma, lam = model.allocation.alpha, model.allocation.gamma, model.observation.lam
    logs = {}
    for topics in partitions(len(words)):
        z = np.array(topics)
        own = [np.bincount(documents[z == k], minlength=2) for k in range(z.max() + 1)]
        numbers = [np.convolve(*(stirling(n) * alpha ** np.arange(n + 1) for n in pair)) for pair in own]
        total = 0.0
        for tables in itertools.product(*(range(1, len(number)) for number in numbers)):
            s = np.array(tables, float)
            urn = len(s) * np.log(gamma) + gammaln(gamma) - gammaln(gamma + s.sum()) + gammaln(s).sum()
            total += np.exp(urn) * np.prod([number[int(t)] for number, t in zip(numbers, tables, strict=True)])
        counts = np.array([np.bincount(words[z == k], minlength=3) for k in range(z.max() + 1)])
        evidence = (
            gammaln(lam.sum())
            - gammaln(lam.sum() + counts.sum(axis=1))
            + (gammaln(lam + counts) - gammaln(lam)).sum(axis=1)
        )
        logs[topics] = np.log(total) + evidence.sum()
    whole = np.logaddexp.reduce(list(logs.values()))
    return {topics: float(np.exp(value - whole)) for topics, value in logs.items()}


def minibatch(model, batch, seed=0):
    rng = np.random.default_rng(seed)
    learner = TopicLearner.of(model, nothing(model), np.zeros(0), batch, Draws(0, 1), rng)
    documents = np.repeat(np.arange(2), np.asarray(batch.x.sum(axis=1), np.int64))
    words = np.repeat(batch.x.indices, batch.x.data.astype(np.int64)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(documents))])
    tokens = offsets, words, np.full(len(words), -1)
    return _Minibatch.of(learner, np.arange(3), tokens, np.ones(2), 1.0), documents, words


def test_topics_of_a_minibatch_of_all_documents_are_drawn_from_the_enumerated_posterior():
    model, batch = corpus()
    gibbs, documents, words = minibatch(model, batch)
    found, n = [], 10_000
    for _ in range(n):
        gibbs.sweep()
        gibbs.resample(is_last=False)
        found.append(gibbs.tokens[2].copy())
    z, exact = np.array(found), exact_topics(model, documents, words)
    partition = np.array(list(exact))
    together = np.einsum("p,pij->ij", list(exact.values()), partition[:, :, None] == partition[:, None, :])
    assert_allclose((z[:, :, None] == z[:, None, :]).mean(axis=0), together, atol=0.02)


def test_tables_have_the_distribution_of_stirling_numbers():
    share, n = 0.7, 5
    state = np.array([12345], np.uint64)
    offsets, topics = np.array([0, n]), np.zeros(n, np.int64)
    found = [draw_tables(offsets, topics, np.ones(1), np.array([share]), 1, state)[0] for _ in range(20_000)]
    exact = stirling(n) * share ** np.arange(n + 1)
    assert_allclose(np.bincount(np.array(found, int), minlength=n + 1) / 20_000, exact / exact.sum(), atol=0.012)


def test_sticks_of_topics_follow_from_tables():
    params = bnp.HDPTopics(2.0, 0.5).from_counts(np.array([5.0, 1.0]))
    assert_allclose(params.u, [6.0 / (6.0 + 2.0 + 1.0), 2.0 / (2.0 + 2.0)])
    assert_allclose(params.omega, [9.0, 4.0])
    assert_allclose(params.pi.sum() + params.rest, 1.0)
