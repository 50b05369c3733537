"""Classes of documents: bounds by quadrature and of the exact evidence, statistics of trials, and runs."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.linalg import null_space
from scipy.special import log_softmax, logsumexp, roots_hermitenorm

import bnp_dask as bnp
from bnp_dask.allocation.response import LEVEL, PRODUCTS, SQUARES, ClassCoefficients, products_of, response_fields
from bnp_dask.core.summary import Exchange, Merge, Summary, replay, replay_states
from bnp_dask.errors import DataError, SettingError
from bnp_dask.structure.base import Trial
from bnp_dask.structure.protocols import Tokens
from bnp_dask.structure.tokens import lay_out
from bnp_dask.training.train import ConvergenceWarning
from tests.topics import test_response as numbers

RESPONSE = bnp.CategoricalResponse(("a", "b", "c"), (0.5, 0.2, 0.3), kappa=0.5)


def nodes(n_axes, n=30):
    """Nodes ``(Q, n_axes)`` and weights of a quadrature for standard normal variables."""
    x, w = roots_hermitenorm(n)
    w = w / w.sum()
    grid = np.array(list(itertools.product(x, repeat=n_axes)))
    return grid, np.prod(list(itertools.product(w, repeat=n_axes)), axis=1)


def documents(labels):
    """Long documents of one token each time, in whose place shares are given."""
    n = len(labels)
    return Tokens(np.arange(n + 1), np.zeros(n, int), np.ones(n), np.ones(n), response=np.array(labels, float))


def test_the_term_of_a_document_is_below_the_exact_one_and_equal_for_certain_coefficients():
    rng = np.random.default_rng(0)
    turn, (grid, weight) = null_space(np.ones((1, 3))), nodes(2)
    for spread in (0.0, 1.0, 30.0):
        m = 3.0 * rng.normal(size=(4, 3))
        root = np.sqrt(spread) * rng.normal(size=(4, 4))
        params = ClassCoefficients(m - m.mean(axis=1, keepdims=True), root @ root.T, 1.0)
        z = rng.dirichlet(np.ones(4), 3)
        mean, v = z @ params.m, ((z @ params.V) * z).sum(axis=1)
        for u in (mean, mean + rng.normal(size=mean.shape), np.zeros_like(mean)):
            facts, lines = RESPONSE.facts(params, documents([0, 1, 2]), u), RESPONSE.lines(params)
            second = lines.curve * lines.m @ lines.m.T + lines.spread
            own = (facts.target * (z @ lines.m)).sum(axis=1) - 0.5 * ((z @ second) * z).sum(axis=1) - facts.level
            for d in range(3):
                f = RESPONSE._offset + mean[d] + np.sqrt(v[d]) * grid @ turn.T
                exact = weight @ log_softmax(f, axis=1)[:, d]
                assert own[d] <= exact + 1e-9
                if u is mean and spread == 0.0:
                    assert_allclose(own[d], exact, rtol=1e-10)
            assert (facts.level >= 0.0).all()


def test_the_global_step_is_the_best_and_the_term_its_bound():
    rng = np.random.default_rng(1)
    z, k = rng.dirichlet(np.ones(4), 30), 4
    labels = rng.integers(3, size=30)
    facts = RESPONSE.facts(None, documents(labels), rng.normal(size=(30, 3)))
    values = {SQUARES: z.T @ z, PRODUCTS: z.T @ facts.target, "responses": np.array(30.0)}
    summary = Summary(np.arange(k), response_fields(RESPONSE), {**values, LEVEL: facts.level.sum()})
    best = RESPONSE.global_step(summary)
    top = RESPONSE.term(best, summary)
    for _ in range(20):
        m, root = 0.1 * rng.normal(size=(k, 3)), np.eye(k) + 0.1 * rng.normal(size=(k, k))
        other = ClassCoefficients(best.m + m - m.mean(axis=1, keepdims=True), root @ best.V @ root.T, 30.0)
        assert RESPONSE.term(other, summary) < top
    mean, variance = RESPONSE.predict(best, z, np.full(30, 10.0))
    assert_allclose(mean.sum(axis=1), 1.0, rtol=1e-12)
    assert_allclose(variance, mean * (1.0 - mean))


TWO = bnp.CategoricalResponse((0, 1), (0.6, 0.4), kappa=0.5)
LABELS = np.array([1.0, 0.0, np.nan, 0.0])


@cache
def log_labels(bars):
    """Log probability of the classes of documents with shares ``bars`` of two topics, by quadrature."""
    grid, weight = nodes(2, 40)
    own = [(b, int(y)) for b, y in zip(bars, LABELS, strict=True) if not np.isnan(y)]
    f = np.log(0.4 / 0.6) + np.sqrt(2.0 / TWO.kappa) * grid @ np.array([b for b, _ in own]).T
    sign = np.array([1.0 if y else -1.0 for _, y in own])
    return float(logsumexp(-np.logaddexp(0.0, -sign * f).sum(axis=1), b=weight))


def test_the_objective_never_falls_and_is_below_the_evidence_of_all_assignments(monkeypatch):
    def log_response(z, doc, k, y=None, response=None):
        bars = tuple(tuple(np.bincount(z[doc == d], minlength=k) / (doc == d).sum()) for d in range(len(LABELS)))
        return log_labels(bars)

    monkeypatch.setattr(numbers, "log_response", log_response)
    tokens = numbers.tokens_of(numbers.DOCS)
    every = itertools.product(range(2), repeat=len(tokens))
    evidence = logsumexp([numbers.log_joint(np.array(z), tokens, 2, 3) for z in every])
    for seed in range(3):
        model, batch, summary = numbers.started(2, seed, y=LABELS, response=TWO)
        values, states = [], None
        for _ in range(60):
            posterior = model.global_step(summary)
            visit = model.visit(posterior, batch, states=states)
            summary, states = visit.summary, visit.states[""]
            values.append(sum(model.elbo(model.global_step(summary), summary).values()))
        assert (np.diff(values[1:]) > -1e-9).all()
        assert evidence - 6.0 < values[-1] <= evidence
        assert_allclose(model.best_objective(summary), values[-1], rtol=1e-12)


@pytest.mark.parametrize("kind", [bnp.LDA(0.8, response=RESPONSE), bnp.HDPTopics(3.0, 0.8, response=RESPONSE)])
def test_unions_and_two_trials_have_exactly_the_statistics_of_their_documents(kind):
    x, _ = numbers.corpus()
    y = np.where(np.arange(24) % 5 == 0, np.nan, np.arange(24) % 3)
    model, batch, summary = numbers.started(5, 1, x, y, allocation=kind)
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
    tokens, params = lay_out(batch).tokens, posterior.allocation.response

    def by_place(states, ids):
        place = {int(i): j for j, i in enumerate(ids)}
        return replace(states, cluster=np.array([place.get(int(i), -1) for i in states.cluster]))

    u = products_of(by_place(found.states[""], posterior.ids), params.m, tokens.length)
    facts = RESPONSE.facts(params, tokens, u)
    shares = products_of(by_place(states, after.ids), np.eye(after.n_clusters), tokens.length)
    assert_allclose(after[PRODUCTS], (shares * batch.weights[:, None]).T @ facts.target, rtol=1e-9, atol=1e-11)
    assert_allclose(after[LEVEL], batch.weights @ facts.level, rtol=1e-12)
    squares, _ = numbers.squares_of(states, after.ids, batch)
    assert_allclose(after[SQUARES], squares, rtol=1e-10, atol=1e-12)


# -- runs -----------------------------------------------------------------------------------------------------------
@cache
def corpus(n=120, k=4, n_words=24):
    """Documents of clear topics, whose class is the parity of their largest topic; one in four is unknown."""
    rng = np.random.default_rng(0)
    phi = np.kron(np.eye(k), np.ones(n_words // k)) + 0.02
    share = rng.dirichlet(np.full(k, 0.2), n)
    x = np.array([rng.multinomial(30, p) for p in share @ (phi / phi.sum(axis=1, keepdims=True))]).astype(np.float64)
    y = np.array(["odd" if j % 2 else "even" for j in share.argmax(axis=1)], object)
    known = y.copy()
    known[3::4] = None
    return sparse.csr_array(x), y, known


def trained(x, y, laps=8, response=None, **more):
    response = bnp.CategoricalResponse() if response is None else response
    model = bnp.Model(bnp.HDPTopics(2.0, response=response), bnp.Multinomial())
    facts = {"init": bnp.SampledTopics(7), "batch_size": 30, "schedule": bnp.Memoized(laps=laps), **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return bnp.train(model, x, responses=y, **facts)


def values_of(result):
    return [row["elbo"] for row in result.history]


@pytest.mark.long
def test_classes_of_documents_are_learned_with_all_moves_and_predicted():
    x, y, known = corpus()
    moves = [bnp.Birth(), bnp.DocumentBirth(every=2, passes=10), bnp.Merge(), bnp.Delete()]
    found = trained(x, known, laps=12, moves=moves)
    laps = [row["elbo"] for row in found.history if row["lap"] >= 1]
    assert (np.diff(laps) > -1e-7).all()
    assert_allclose(found.posterior.summary[SQUARES].sum(), 90.0, rtol=1e-10)
    assert_allclose(found.posterior.summary[PRODUCTS].sum(axis=1), 0.0, atol=1e-9)
    guess = bnp.predict_response(found.posterior, x)
    hidden = np.array([label is None for label in known])
    assert np.mean(guess.best[hidden] == y[hidden]) > 0.8
    assert_allclose(guess.mean.sum(axis=1), 1.0, rtol=1e-12)
    assert_array_equal(guess.classes, ["even", "odd"])
    estimates = found.posterior.to_xarray()
    assert estimates["response"].dims == ("cluster", "class")


@pytest.mark.long
def test_names_of_classes_last_through_files_resumes_updates_and_jobs(tmp_path):
    from bnp_dask.cli.jobfile import parse_job

    x, _, known = corpus()
    whole = trained(x, known)
    bnp.ingest(x, tmp_path / "x.zarr", batch_size=30)
    np.save(tmp_path / "y.npy", np.array([label or "" for label in known], str))
    place, labels = str(tmp_path / "x.zarr"), str(tmp_path / "y.npy")
    trained(place, labels, laps=3, store=tmp_path / "run", batch_size=None)
    again = trained(place, labels, store=tmp_path / "run", resume=True, batch_size=None)
    assert_array_equal(values_of(again), values_of(whole))
    loaded = bnp.load(tmp_path / "run" / "posterior.zarr")
    assert loaded.model.allocation.response.classes == ("even", "odd")
    assert_array_equal(bnp.predict_response(loaded, x).mean, bnp.predict_response(whole.posterior, x).mean)
    found = bnp.update(tmp_path / "run", x[:60], responses=["odd"] * 60, revisit=1)  # opens the first data again
    assert_allclose(found.posterior.summary["responses"], 90 + 60, rtol=1e-12)
    with pytest.raises(DataError, match="'none' is no label of this run"):
        bnp.update(tmp_path / "run", x[:60], responses=["none"] * 60)
    content = {
        "model": {
            "allocation": {"type": "LDA", "response": {"type": "CategoricalResponse", "kappa": 0.2}},
            "observation": "Multinomial",
        },
        "data": {"path": "x.zarr", "responses": "y.npy"},
        "init": {"type": "SampledTopics", "n_clusters": 3},
        "schedule": {"type": "Memoized", "laps": 1},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        job = parse_job(content, tmp_path).train()
    assert job.posterior.model.allocation.response.classes == ("even", "odd")


def test_the_estimator_predicts_classes_and_their_probabilities():
    x, y, known = corpus()
    made = bnp.TopicModel(5, response="categorical", max_laps=40, tol=0.1, random_state=0).fit(x, known)
    assert np.mean(made.predict(x) == y) > 0.85
    assert_allclose(made.predict_proba(x).sum(axis=1), 1.0, rtol=1e-12)
    assert_array_equal(made.classes_, ["even", "odd"])
    assert not hasattr(bnp.TopicModel(response="gaussian"), "predict_proba")
    made.partial_fit(x[:20], y[:20])
    assert float(made.posterior_.summary["responses"]) == 110
    with pytest.raises(SettingError, match="predict_proba"):
        made.predict(x, return_std=True)
    numbered = bnp.TopicModel(3, response="categorical", max_laps=40, tol=1e3).fit(x, np.where(y == "odd", 7, 2))
    assert set(numbered.predict(x)) <= {2, 7}


@pytest.mark.parametrize(
    ("responses", "message"),
    [
        (["a"] * 120, "needs two or more"),
        ([None] * 120, "no class is known"),
        (np.full(120, 0.5), "whole numbers"),
        (["a", "b"], "2 responses for the 120 documents"),
    ],
)
def test_responses_that_are_no_classes(responses, message):
    with pytest.raises(DataError, match=message):
        trained(corpus()[0], responses)


def test_settings_of_classes_are_checked():
    for settings in ({"classes": ("a",)}, {"classes": ("a", "a")}, {"classes": ("a", 1)}, {"shares": (0.5, 0.5)}):
        with pytest.raises(SettingError, match="needs"):
            bnp.CategoricalResponse(**settings)


def test_prior_shares_of_classes_have_one_document_more_of_each():
    made = bnp.CategoricalResponse().with_prior(np.array([0.0, 2.0, 2.0, 2.0]), ("a", "b", "c"))
    assert made.shares == pytest.approx((2 / 7, 1 / 7, 4 / 7))
    given = bnp.CategoricalResponse(("a", "b"), shares=(3.0, 1.0)).with_prior(np.zeros(5))
    assert_allclose(given._offset, np.log([0.75, 0.25]))


def test_probabilities_of_classes_are_less_certain_where_coefficients_are():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(2, 2))
    m = rng.normal(size=(2, 3)) * 2.0
    params = ClassCoefficients(m - m.mean(axis=1, keepdims=True), root @ root.T + np.eye(2), 9.0)
    response = bnp.CategoricalResponse(("a", "b", "c"), shares=(0.2, 0.5, 0.3))
    z = np.array([[1.0, 0.0], [0.3, 0.7]])
    mean, variance = response.predict(params, z, np.ones(2))
    for g in range(2):
        v = z[g] @ params.V @ z[g]
        score = np.log([0.2, 0.5, 0.3]) + z[g] @ params.m / np.sqrt(1.0 + np.pi * v / 8.0)
        assert_allclose(mean[g], np.exp(score) / np.exp(score).sum())
        assert_allclose(variance[g], mean[g] * (1.0 - mean[g]))
    coefficients, deviation = response.coefficients(params)
    assert_array_equal(coefficients, params.m)
    # of a coefficient less the mean of three that are independent: two thirds of the variance
    assert_allclose(deviation, np.repeat(np.sqrt(np.diag(params.V) * 2 / 3)[:, None], 3, axis=1))
