"""Responses of documents: bounds of the exact evidence, statistics of unions and trials, and runs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from scipy.special import gammaln, logsumexp
from scipy.stats import multivariate_t

import bnp_dask as bnp
from bnp_dask.allocation.response import (
    PRODUCTS,
    SQUARES,
    ClassCoefficients,
    Coefficients,
    Facts,
    Lines,
    document_pull,
    known_facts,
    products_of,
    receivers_pull,
    response_fields,
)
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Exchange, Field, GroupStates, Merge, Summary, replay, replay_states
from bnp_dask.structure.base import Trial
from bnp_dask.structure.protocols import Receivers, Tokens
from bnp_dask.testing import survey_of

DOCS = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [1.0, 0.0, 2.0], [0.0, 0.0, 1.0]])
Y = np.array([1.5, -1.0, np.nan, 0.3])
ALPHA, LAM = 0.8, 0.7
RESPONSE = bnp.GaussianResponse(mean=0.2, kappa=0.5, shape=1.5, rate=0.4)


def batch_of(x=DOCS, y=Y, weights=None):
    return Batch(sparse.csr_array(np.asarray(x, np.float64)), weights, responses=y)


def tokens_of(x):
    """Document and word of each token."""
    return np.array([(d, v) for d, row in enumerate(x) for v, n in enumerate(row) for _ in range(int(n))])


def log_response(z, doc, k, y=Y, response=RESPONSE):
    """Exact marginal of the responses given the topics of all tokens: a multivariate t distribution."""
    known = np.flatnonzero(~np.isnan(y))
    bar = np.array([np.bincount(z[doc == d], minlength=k) / (doc == d).sum() for d in known])
    a, b = response.shape, response.rate
    spread = b / a * (np.eye(len(known)) + bar @ bar.T / response.kappa)
    return multivariate_t.logpdf(y[known], np.full(len(known), response.mean), spread, df=2.0 * a)


def log_joint(z, tokens, k, n_words):
    """log p(z, w, y) of LDA, topics and shares of documents integrated out."""
    doc, word = tokens.T
    value = log_response(z, doc, k)
    for d in range(doc.max() + 1):
        n = np.bincount(z[doc == d], minlength=k)
        value += gammaln(ALPHA) - gammaln(ALPHA + n.sum()) + (gammaln(ALPHA / k + n) - gammaln(ALPHA / k)).sum()
    for j in range(k):
        n = np.bincount(word[z == j], minlength=n_words)
        value += gammaln(n_words * LAM) - gammaln(n_words * LAM + n.sum()) + (gammaln(LAM + n) - gammaln(LAM)).sum()
    return value


def started(k, seed, x=DOCS, y=Y, response=RESPONSE, allocation=None):
    model = bnp.Model(allocation or bnp.LDA(ALPHA, response=response), bnp.Multinomial(LAM, 0.0), learn_prior="never")
    batch = batch_of(x, y)
    model = model.with_prior(survey_of(batch))
    rng = np.random.default_rng(seed)
    summary = model.summarize(np.arange(k), batch, rng.dirichlet(np.ones(k), size=x.shape[0]))
    return model, batch, summary


def test_the_objective_never_falls_and_is_below_the_evidence_of_all_assignments():
    tokens = tokens_of(DOCS)
    evidence = logsumexp(
        [log_joint(np.array(z), tokens, 2, 3) for z in itertools.product(range(2), repeat=len(tokens))]
    )
    for seed in range(3):
        model, batch, summary = started(2, seed)
        values, states = [], None
        for _ in range(60):
            posterior = model.global_step(summary)
            visit = model.visit(posterior, batch, states=states)
            summary, states = visit.summary, visit.states[""]
            values.append(sum(model.elbo(model.global_step(summary), summary).values()))
        assert (np.diff(values[1:]) > -1e-9).all()
        assert values[-1] <= evidence
        assert values[-1] > evidence - 6.0
        assert_allclose(model.best_objective(summary), values[-1], rtol=1e-12)


def corpus(n=24, seed=0, n_words=9, k=3):
    """Documents of three clear topics, whose responses follow their shares."""
    rng = np.random.default_rng(seed)
    phi = np.kron(np.eye(k), np.ones(n_words // k)) * 3 / n_words + 0.01
    phi /= phi.sum(axis=1, keepdims=True)
    share = rng.dirichlet(np.full(k, 0.4), n)
    x = np.array([rng.multinomial(rng.integers(0, 40), p) for p in share @ phi]).astype(np.float64)
    y = share @ np.linspace(-2.0, 2.0, k) + 0.2 * rng.normal(size=n)
    y[::5] = np.nan
    return x, y


def squares_of(states, ids, batch):
    """Sums of S_d and of y_d z_d from counts, by dense matrices."""
    total, products = np.zeros((len(ids), len(ids))), np.zeros(len(ids))
    times = np.ones(batch.n_atoms) if batch.weights is None else batch.weights
    place = {int(i): j for j, i in enumerate(ids)}
    for d, y in enumerate(batch.responses):
        n = np.zeros(len(ids))
        for s in range(states.offsets[d], states.offsets[d + 1]):
            n[place[int(states.cluster[s])]] += states.count[s]
        if np.isnan(y) or n.sum() == 0:
            continue
        z, size = n / n.sum(), n.sum()
        total += times[d] * ((1 - 1 / size) * np.outer(z, z) + np.diag(z) / size)
        products += times[d] * (y - RESPONSE.mean) * z
    return total, products


@pytest.mark.parametrize(
    "allocation", [bnp.LDA(ALPHA, response=RESPONSE), bnp.HDPTopics(3.0, ALPHA, response=RESPONSE)]
)
def test_unions_and_two_trials_have_exactly_the_statistics_of_their_documents(allocation):
    x, y = corpus()
    model, batch, summary = started(5, 1, x, y, allocation=allocation)
    batch = replace(batch, weights=np.arange(24) % 3 + 0.5)
    posterior = model.global_step(model.local_step(model.global_step(summary), batch))
    rng = np.random.default_rng(2)

    def beliefs(ids):
        return model.global_step(model.summarize(np.array(ids), batch, rng.dirichlet(np.ones(len(ids)), size=len(x))))

    trials = [Trial("a", (1,), beliefs([7, 8])), Trial("b", (3, 4), beliefs([4, 9]))]
    found = model.visit(posterior, batch, np.array([[0, 2]]), trials)
    edits = [Exchange("a", (1,)), Exchange("b", (3, 4)), Merge(0, 2)]
    after = replay(found.summary, edits, found.parts)
    states = replay_states(found.states[""], edits, found.states)
    squares, products = squares_of(states, after.ids, batch)
    assert_allclose(after[SQUARES], squares, rtol=1e-10, atol=1e-12)
    assert_allclose(after[PRODUCTS], products, rtol=1e-10, atol=1e-12)
    known = ~np.isnan(y) & (x.sum(axis=1) > 0)
    assert_allclose(after["responses"], batch.weights[known].sum())
    assert_allclose(after["response_level"], (batch.weights * (y - RESPONSE.mean) ** 2)[known].sum())
    everything = Trial("c", tuple(range(5)), beliefs([0, 1, 2, 11]))
    found = model.visit(posterior, batch, trials=[everything])
    edits = [Exchange("c", everything.donors)]
    after, states = replay(found.summary, edits, found.parts), replay_states(found.states[""], edits, found.states)
    assert_allclose(after[SQUARES], squares_of(states, after.ids, batch)[0], rtol=1e-10, atol=1e-12)


def test_predictions_at_given_shares_are_those_of_the_exact_conjugate_regression():
    rng = np.random.default_rng(0)
    z, y = rng.dirichlet(np.ones(3), 12), rng.normal(size=12)
    fields = response_fields(RESPONSE)
    centred = y - RESPONSE.mean
    values = {SQUARES: z.T @ z, PRODUCTS: z.T @ centred, "responses": np.array(12.0)}
    summary = Summary(np.arange(3), fields, {**values, "response_level": np.asarray(centred @ centred)})
    params = RESPONSE.global_step(summary)
    # with certain shares the term is the exact log evidence
    spread = RESPONSE.rate / RESPONSE.shape * (np.eye(12) + z @ z.T / RESPONSE.kappa)
    exact = multivariate_t(np.full(12, RESPONSE.mean), spread, df=2 * RESPONSE.shape)
    assert_allclose(RESPONSE.term(params, summary), exact.logpdf(y), rtol=1e-10)
    # predictive: the conditional of the joint t distribution
    new = rng.dirichlet(np.ones(3))
    whole = RESPONSE.rate / RESPONSE.shape * (np.eye(13) + np.vstack([z, new]) @ np.vstack([z, new]).T / RESPONSE.kappa)
    solved = np.linalg.solve(spread, whole[:12, 12])
    mean = RESPONSE.mean + solved @ centred
    freedom = 2 * RESPONSE.shape
    factor = (freedom + centred @ np.linalg.solve(spread, centred)) / (freedom + 12)
    scale = factor * (whole[12, 12] - whole[12, :12] @ solved)
    variance = scale * (freedom + 12) / (freedom + 10)
    found = RESPONSE.predict(params, new[None], np.array([1e15]))
    assert_allclose(found[0], mean, rtol=1e-10)
    assert_allclose(found[1], variance, rtol=1e-10)


def test_a_trial_is_pulled_by_what_the_term_of_a_document_changes_by_when_its_donors_tokens_move():
    """The term of a document by its definition, with all topics, of which only the donors' tokens move."""
    rng = np.random.default_rng(8)
    n_old, donors, places = 5, np.array([1, 3]), np.array([2, -1, 0])  # receivers: two old topics and a new one
    m = rng.normal(size=(n_old, 2))
    scale, curve = 1.7, 0.9
    lines = Lines(m, scale, curve, np.zeros((n_old, n_old)))
    target, length = rng.normal(size=(2, 2)), np.array([6.0, 9.0])

    class Known:
        def lines(self, params):
            return lines

        def facts(self, params, tokens, shares):
            assert_allclose(shares, counts @ m / length[:, None], rtol=1e-12)
            return Facts(target, np.zeros(2))

    counts = np.array([[1.0, 2.0, 0.5, 1.5, 1.0], [2.0, 3.0, 0.0, 1.0, 3.0]])
    states = GroupStates(np.array([0, 5, 10]), np.tile(np.arange(5), 2), counts.ravel())
    tokens = Tokens(
        np.array([0, 6, 15]), np.zeros(15, np.int64), np.ones(15), np.ones(2), response=np.array([0.4, 1.0])
    )
    pull = receivers_pull(
        Known(), SimpleNamespace(known=2.0), tokens, donors, Receivers(params=None, places=places, counts=states)
    )

    def term(d, moved):
        """``moved (3,)``: tokens of the donors that each receiver has."""
        every, n = np.concatenate([m, m[donors].mean(axis=0, keepdims=True)]), length[d]
        z = np.append(counts[d], 0.0)
        z[donors] = 0.0
        z[[2, 5, 0]] += moved
        z /= n
        square = curve * every @ every.T
        return target[d] @ (scale * every.T @ z) - ((1.0 - 1.0 / n) * z @ square @ z + np.diag(square) @ z / n) / 2.0

    def pulled(d, moved):
        y, n = moved / length[d], length[d]
        return pull.first[d] @ y - ((1.0 - 1.0 / n) * y @ pull.second @ y + np.diag(pull.second) @ y / n) / 2.0

    for d in range(2):
        one, other = counts[d, donors].sum() * rng.dirichlet(np.ones(3), size=2)
        assert_allclose(pulled(d, one) - pulled(d, other), term(d, one) - term(d, other), rtol=1e-10)


def test_the_prior_of_numbers_is_set_from_those_that_are_observed():
    y = np.array([1.0, 5.0, 9.0])
    made = bnp.GaussianResponse().with_prior(y)
    assert (made.mean, made.rate) == (5.0, pytest.approx(0.5 * 32.0 / 3.0))
    assert bnp.GaussianResponse().with_prior(np.full(3, 2.0)).rate == 1.0
    given = bnp.GaussianResponse(mean=1.0).with_prior(y)
    assert (given.mean, given.rate) == (1.0, pytest.approx(0.5 * 80.0 / 3.0))


def test_predicted_numbers_have_the_moments_of_shares_of_a_finite_number_of_tokens():
    """``E[zbar zbar^T]`` is (1 - 1/n) z z^T + diag(z) / n, as for n tokens that are drawn one by one."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    params = Coefficients(rng.normal(size=3), root @ root.T, 4.0, 6.0, 5.0)
    z, length = rng.dirichlet(np.ones(3), 4), np.array([1.0, 2.0, 7.0, np.inf])
    mean, variance = RESPONSE.predict(params, z, length)
    for g in range(4):
        second = np.outer(z[g], z[g]) * (1.0 - 1.0 / length[g]) + np.diag(z[g]) / length[g]
        noise = params.b / (params.a - 1.0)
        assert_allclose(mean[g], RESPONSE.mean + z[g] @ params.m)
        want = noise * (1.0 + np.sum(params.V * second)) + params.m @ second @ params.m - (z[g] @ params.m) ** 2
        assert_allclose(variance[g], want, rtol=1e-10)


def test_topics_that_are_gone_take_no_part_in_the_shares_of_documents():
    states = GroupStates(np.array([0, 3, 3, 5]), np.array([2, -1, 0, -1, 1]), np.array([1.0, 9.0, 2.0, 4.0, 6.0]))
    values = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    found = products_of(states, values, np.array([12.0, 0.0, 10.0]))
    assert_allclose(found, [[5.0 / 12.0, 50.0 / 12.0], [0.0, 0.0], [1.2, 12.0]])


# -- by hand -------------------------------------------------------------------------------------------------------
THREE = Tokens(np.array([0, 1, 2, 3]), np.zeros(3, int), np.array([0.5, 2.0, 4.0]), np.ones(3), response=np.zeros(3))
STATES = GroupStates(np.array([0, 2, 3, 5]), np.array([0, 1, -1, 2, -1]), np.array([0.25, 0.25, 2.0, 3.0, 1.0]))
"""The second group's topic is gone, and one of the third's."""


def test_shares_of_a_group_of_less_than_one_token_are_shares_too():
    values = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])
    found = products_of(STATES, values, THREE.length)
    assert_allclose(found, [[1.5, 15.0], [0.0, 0.0], [3.0, 30.0]], rtol=1e-14)


CLASSES = bnp.CategoricalResponse(("a", "b"), (0.25, 0.75), kappa=0.5)


def of_classes(known=3.0):
    m = np.array([[1.0, -1.0], [0.5, -0.5], [-2.0, 2.0]])
    root = np.array([[1.0, 0.0, 0.0], [0.5, 0.8, 0.0], [-0.3, 0.2, 1.1]])
    return ClassCoefficients(m, root @ root.T, known)


def test_documents_without_topics_of_the_last_visit_are_pulled_as_those_of_the_expected_weights():
    params, weights = of_classes(), np.array([2.0, 1.0, 1.0])
    expected = weights / 4.0
    last = np.array([[0.5, 0.5, 0.0], expected, [0.0, 0.0, 0.75]])  # what is left of the third counts
    for states, shares in ((None, np.tile(expected, (3, 1))), (STATES, last)):
        pull = document_pull(CLASSES, params, THREE, states, weights)
        facts, lines = CLASSES.facts(params, THREE, shares @ params.m), CLASSES.lines(params)
        assert_allclose(pull.first, facts.target @ params.m.T, rtol=1e-12)
        second = 0.5 * params.m @ params.m.T + lines.spread
        assert_allclose(pull.second, second, rtol=1e-12)
        own = np.diag(second)
        assert pull.steep == pytest.approx(0.25 * (own[:, None] + own - 2.0 * second).max(), rel=1e-12)
        assert pull.on.all() and pull.size.tolist() == [0.5, 2.0, 4.0]
    for none in ((None, params, THREE), (CLASSES, None, THREE), (CLASSES, of_classes(0.0), THREE),
                 (CLASSES, params, replace(THREE, response=None))):  # fmt: skip
        assert document_pull(*none, STATES, weights) is None


def test_coefficients_that_no_response_is_behind_say_nothing_of_shares():
    for known in (0.0, 3.0):
        facts = known_facts(CLASSES, of_classes(known), THREE, STATES)
        shares = products_of(STATES, of_classes().m, THREE.length) * (known > 0.0)
        wanted = CLASSES.facts(None, THREE, shares)
        assert_allclose(facts.target, wanted.target, rtol=1e-14)
        assert_allclose(facts.level, wanted.level, rtol=1e-14)
    assert_allclose(CLASSES.facts(None, THREE, None).target, CLASSES.facts(None, THREE, np.zeros((3, 2))).target)
    g = np.array([0.25, 0.75])
    assert_allclose(CLASSES.facts(None, THREE, None).target, np.tile(np.array([1.0, 0.0]) - g, (3, 1)))
    assert_allclose(CLASSES.facts(None, THREE, None).level, -np.log(0.25))


def test_a_trial_with_parameters_of_its_own_is_pulled_by_these():
    params, given = of_classes(), replace(of_classes(), m=-of_classes().m, V=2.0 * of_classes().V)
    model = SimpleNamespace(response=given)
    receivers = Receivers(model, np.array([0, 1, 2]), STATES)
    pull = receivers_pull(CLASSES, params, THREE, np.array([0]), receivers)
    lines = CLASSES.lines(given)
    assert_allclose(pull.second, 0.5 * given.m @ given.m.T + lines.spread, rtol=1e-12)
    assert_allclose(pull.first, known_facts(CLASSES, params, THREE, STATES).target @ given.m.T, rtol=1e-12)
    for unknown in (None, of_classes(0.0)):
        other = Receivers(SimpleNamespace(response=unknown), np.array([0, 1, 2]), STATES)
        assert receivers_pull(CLASSES, params, THREE, np.array([0]), other) is None


def test_a_new_topic_expects_what_its_donors_do_on_average():
    params, donors = of_classes(), np.array([0, 2])
    pull = receivers_pull(CLASSES, params, THREE, donors, Receivers(None, np.array([-1, 1, -1]), STATES))
    lines = CLASSES.lines(params)
    m = np.array([params.m[donors].mean(axis=0), params.m[1], params.m[donors].mean(axis=0)])
    spread = np.diag(lines.spread)
    wanted = np.diag([spread[donors].mean(), spread[1], spread[donors].mean()])
    assert_allclose(pull.second, 0.5 * m @ m.T + wanted, rtol=1e-12)


def test_a_prior_mean_of_zero_is_a_mean():
    y = np.array([1.0, 3.0])
    assert bnp.GaussianResponse(mean=0.0).with_prior(y).mean == 0.0
    assert bnp.GaussianResponse(mean=0.0).with_prior(y).rate == 2.5  # half the mean square about it
    assert bnp.GaussianResponse().with_prior(y).mean == 2.0 and bnp.GaussianResponse().with_prior(y).rate == 0.5
    assert bnp.GaussianResponse().with_prior(np.array([4.0])).rate == 1.0
    assert bnp.GaussianResponse(rate=0.25).with_prior(y).rate == 0.25


def test_coefficients_are_those_of_the_posterior_in_units_of_the_response():
    params = Coefficients(np.array([1.0, -2.0]), np.array([[0.5, 0.1], [0.1, 2.0]]), 3.0, 8.0, 4.0)
    mean, deviation = RESPONSE.coefficients(params)
    assert_allclose(mean, [1.2, -1.8])
    assert_allclose(deviation, np.sqrt([2.0, 8.0]))  # E[s2] = 8 / (3 - 1)
    assert RESPONSE.told(params) == ["1.2 ± 1.4", "-1.8 ± 2.8"]
    assert np.isinf(RESPONSE.coefficients(replace(params, a=1.0))[1]).all()


@pytest.mark.parametrize("response", [RESPONSE, CLASSES], ids=["numbers", "classes"])
def test_sums_that_rounding_made_unequal_give_the_coefficients_of_their_mean(response):
    rng = np.random.default_rng(0)
    squares = np.eye(3) + rng.random((3, 3))
    fields = {"N": Field(("cluster",)), **response_fields(response)}
    products = rng.normal(size=(3, 2) if response is CLASSES else 3)
    values = {"N": np.ones(3), SQUARES: squares, PRODUCTS: products, "responses": np.array(4.0)}
    values["response_level"] = np.array(50.0)
    found = response.global_step(Summary(np.arange(3), fields, values))
    curve = 0.5 if response is CLASSES else 1.0
    precision = curve * 0.5 * (squares + squares.T) + response.kappa * np.eye(3)
    assert_allclose(found.V, np.linalg.inv(precision), rtol=1e-10)
    m = np.linalg.solve(precision, products)
    m = m - m.mean(axis=1, keepdims=True) if response is CLASSES else m
    assert_allclose(found.m, m, rtol=1e-10)
    assert found.known == 4.0


def test_the_term_of_classes_has_the_divergence_from_the_prior_of_all_free_coefficients():
    params, kappa, free = replace(of_classes(), m=np.zeros((3, 3))), 0.5, 2
    three = bnp.CategoricalResponse(("a", "b", "c"), kappa=kappa)
    fields = {"N": Field(("cluster",)), **response_fields(three)}
    values = {"N": np.ones(3), SQUARES: np.zeros((3, 3)), PRODUCTS: np.zeros((3, 3)), "responses": np.array(0.0)}
    values["response_level"] = np.array(0.0)
    v = params.V
    apart = 0.5 * (kappa * np.trace(v) - 3 - np.linalg.slogdet(kappa * v)[1])
    assert three.term(params, Summary(np.arange(3), fields, values)) == pytest.approx(-free * apart, rel=1e-12)
