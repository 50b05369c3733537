"""Held-out scores are probabilities: the shipped suite over every pair of allocation and likelihood."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.allocation.levy import GeneralizedGamma
from bnp_dask.analysis.score import log_density, score_of, score_samples
from bnp_dask.errors import SettingError
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.observation.labelled import Labelled
from bnp_dask.testing import ScoreSuite, circle, documents, levels, line, log_orders

ALLOCATIONS = {
    "FiniteMixture": bnp.FiniteMixture(),
    "DPMixture": bnp.DPMixture(2.0),
    "PitmanYorMixture": bnp.PitmanYorMixture(2.0, discount=0.4),
    "NGGPMixture": bnp.NGGPMixture(sigma=0.4),
    "NRMMixture": bnp.NRMMixture(GeneralizedGamma(sigma=0.4)),
    "LDA": bnp.LDA(),
    "HDPTopics": bnp.HDPTopics(),
    "FiniteHMM": bnp.FiniteHMM(),
    "HDPHMM": bnp.HDPHMM(),
    "sticky HDPHMM": bnp.HDPHMM(kappa=3.0),
    "FiniteHMT": bnp.FiniteHMT(),
}
SOME = {"missing": "marginalise"}
"""With no entry missing, all numbers are those of likelihoods that take none."""

LIKELIHOODS = {
    "Gaussian": bnp.Gaussian(**SOME),
    "ZeroMeanGaussian": bnp.ZeroMeanGaussian(),
    "DiagGaussian": bnp.DiagGaussian(**SOME),
    "FixedVarianceGaussian": bnp.FixedVarianceGaussian(variance=1.0, **SOME),
    "AutoRegressiveGaussian": bnp.AutoRegressiveGaussian(),
    "SemiConjugateGaussian": bnp.SemiConjugateGaussian(),
    "VonMisesFisher": bnp.VonMisesFisher(),
    "Bernoulli": bnp.Bernoulli(**SOME),
    "Categorical": bnp.Categorical(**SOME),
    "Poisson": bnp.Poisson(a=2.0, b=1.0, **SOME),
    "NegativeBinomial": bnp.NegativeBinomial(size=2.0, a=1.0, b=40.0, **SOME),
    "Multinomial": bnp.Multinomial(0.5),
    "Product": bnp.Product({"0": bnp.Gaussian(**SOME), "1": bnp.Categorical(**SOME)}),
}

ALIKE = ("PitmanYorMixture", "NRMMixture", "FiniteHMT")
"""Allocations whose densities are computed by the code of others: the first tier has two likelihoods of each."""


def is_long(allocation, likelihood):
    """Whether a pair is in the second tier: densities under independent priors are integrals, one for each atom."""
    if likelihood == "SemiConjugateGaussian":
        return allocation != "DPMixture"
    return allocation in ALIKE and likelihood not in ("Bernoulli", "DiagGaussian")


PAIRS = [
    pytest.param(a, own, marks=[pytest.mark.long] if is_long(a, own) else [])
    for own in LIKELIHOODS
    for a in ALLOCATIONS
]


class PairSuite(ScoreSuite):
    """The suite for a pair of :data:`ALLOCATIONS` and :data:`LIKELIHOODS`."""

    @property
    def is_tied(self):
        return self.allocation.structure.is_tied

    def model(self):
        return bnp.Model(self.allocation, LIKELIHOODS[self.kind])

    def batch(self, rng, n):
        size = 5 if self.is_tied else 1
        x = self.rows(rng, n * size)
        if self.is_tied and self.allocation.structure.has_shares and self.kind == "Multinomial":
            return bnp.Batch(sparse.csr_array(x))
        return bnp.Batch(x, groups=size * np.arange(n + 1) if self.is_tied else None)

    def rows(self, rng, n):
        """Rows ``(n, D)`` that the likelihood takes."""
        if self.kind == "AutoRegressiveGaussian":
            walk = rng.normal(size=(n, 1))
            return np.column_stack([walk, np.roll(walk, 1)])
        if self.kind == "VonMisesFisher":
            x = rng.normal(size=(n, 2)) + 1.0
            return x / np.linalg.norm(x, axis=1, keepdims=True)
        if self.kind == "Multinomial":
            return rng.multinomial(3, [0.6, 0.3, 0.1], n).astype(float)
        if self.kind in ("Bernoulli", "Categorical"):
            return rng.integers(2 if self.kind == "Bernoulli" else 3, size=(n, 2)).astype(float)
        if self.kind in ("Poisson", "NegativeBinomial"):
            return rng.poisson([0.5, 1.5] if self.kind == "Poisson" else 0.05, (n, 2)).astype(float)
        if self.kind == "Product":
            return np.column_stack([rng.normal(size=n), rng.integers(2, size=n)]).astype(float)
        return rng.normal(size=(n, 2)) @ np.array([[1.0, 0.4], [0.0, 0.9]])

    def space(self):
        if self.kind in ("Bernoulli", "Categorical"):
            return [levels(2 if self.kind == "Bernoulli" else 3)] * 2
        if self.kind == "Poisson":
            return [levels(60), levels(80)]
        if self.kind == "NegativeBinomial":
            return [levels(60)] * 2
        return [line(), levels(2)] if self.kind == "Product" else [line()] * 2

    def atoms(self, before):
        if self.kind == "AutoRegressiveGaussian":
            x, measure = line()
            return np.column_stack([x, np.full(len(x), 0.3 if before is None else before[0])]), measure
        if self.kind == "VonMisesFisher":
            return circle()
        if self.kind == "Multinomial":
            x = np.eye(3) if self.allocation.structure.has_shares else documents(3, 3)
            return x, np.zeros(len(x))
        return super().atoms(before)


@pytest.mark.parametrize(("allocation", "likelihood"), PAIRS)
class TestScores(PairSuite):
    @pytest.fixture(autouse=True)
    def choose(self, allocation, likelihood):
        self.allocation, self.kind = ALLOCATIONS[allocation], likelihood


# -- strata ------------------------------------------------------------------------------------------------------
STRATA = {
    "StrataMixture": bnp.StrataMixture(alpha=3.0),
    "ordered StrataMixture": bnp.StrataMixture(alpha=3.0, ordered=True),
    "DPMixture": bnp.DPMixture(2.0),
    "HDPTopics": bnp.HDPTopics(),
    "HDPHMM": bnp.HDPHMM(),
}
N_STRATA = 3
"""Strata, the last of which has no atoms: its parent predicts it."""

IN_PRODUCTS = tuple(own for own in LIKELIHOODS if own not in ("AutoRegressiveGaussian", "Multinomial", "Product"))
QUICK = ("StrataMixture-Bernoulli", "ordered StrataMixture-DiagGaussian", "DPMixture-Categorical")


@pytest.mark.parametrize("stratum", range(N_STRATA))
@pytest.mark.parametrize(
    ("allocation", "likelihood"),
    [
        pytest.param(a, own, marks=[] if f"{a}-{own}" in QUICK else [pytest.mark.long])
        for own in IN_PRODUCTS
        for a in STRATA
    ],
)
class TestScoresGivenAStratum(PairSuite):
    """A given column has probability one: the densities of all rows of one stratum sum to one."""

    never_missing = (0,)

    @pytest.fixture(autouse=True)
    def choose(self, allocation, likelihood, stratum):
        self.allocation, self.kind, self.stratum = STRATA[allocation], likelihood, float(stratum)

    def model(self):
        given = bnp.Given(levels=tuple(map(str, range(N_STRATA))))
        return bnp.Model(self.allocation, bnp.Product({"0": given, "1,2": LIKELIHOODS[self.kind]}))

    def rows(self, rng, n):
        return np.column_stack([np.arange(n) % (N_STRATA - 1), super().rows(rng, n)])

    def space(self):
        return [(np.array([self.stratum]), np.zeros(1)), *super().space()]

    def atoms(self, before):
        if self.kind != "VonMisesFisher":
            return super().atoms(before)
        x, measure = circle()
        return np.column_stack([np.full(len(x), self.stratum), x]), measure


# -- responses and labels ------------------------------------------------------------------------------------------
RESPONSES = {"numbers": bnp.GaussianResponse(), "classes": bnp.CategoricalResponse()}


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("allocation", [bnp.LDA, bnp.HDPTopics])
@pytest.mark.parametrize("likelihood", ["Multinomial", "Bernoulli"])
class TestScoresOfDocumentsWithResponses(PairSuite):
    """Topics that were learned with responses; the response of a held-out document is not looked at."""

    @pytest.fixture(autouse=True)
    def choose(self, allocation, response, likelihood):
        self.kind = likelihood
        known = np.tile([0.0, 1.0, 1.0, np.nan], 3)
        names = ("a", "b") if response == "classes" else None
        found = RESPONSES[response].with_prior(known[~np.isnan(known)], names)
        self.allocation, self.known = allocation(response=found), known

    def batch(self, rng, n):
        made = super().batch(rng, n)
        return replace(made, responses=np.resize(self.known, made.n_groups))


@pytest.mark.parametrize("likelihood", ["Bernoulli", "DiagGaussian", "Categorical"])
@pytest.mark.parametrize("allocation", ["FiniteMixture", "DPMixture", "HDPHMM"])
class TestScoresOfAtomsWithLabels(PairSuite):
    """Clusters that belong to labels; an atom without a label may come from every cluster."""

    @pytest.fixture(autouse=True)
    def choose(self, allocation, likelihood):
        self.allocation, self.kind = ALLOCATIONS[allocation], likelihood

    def model(self):
        return bnp.Model(self.allocation, Labelled(LIKELIHOODS[self.kind], ("a", "b")))

    def batch(self, rng, n):
        made = super().batch(rng, n)
        return replace(made, labels=rng.integers(-1, 2, made.n_atoms))


def test_predicted_classes_of_documents_have_probabilities_that_sum_to_one():
    rng = np.random.default_rng(0)
    x = sparse.csr_array(rng.multinomial(6, [0.5, 0.3, 0.2], 30).astype(float))
    model = bnp.Model(bnp.LDA(response=bnp.CategoricalResponse()), bnp.Multinomial(0.5))
    settings = {"init": bnp.SampledTopics(2), "schedule": bnp.FullBatch(laps=2), "responses": ["a", "b", "c"] * 10}
    with pytest.warns(bnp.ConvergenceWarning):
        posterior = bnp.train(model, x, **settings).posterior
    found = bnp.predict_response(posterior, x).mean
    assert (found >= 0).all()
    assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)


# -- pairs that are refused ----------------------------------------------------------------------------------------
REFUSED = {
    ("LDA", "AutoRegressiveGaussian(lags=1)"): bnp.LDA(),
    ("HDPTopics", "AutoRegressiveGaussian(lags=1)"): bnp.HDPTopics(),
}


@pytest.mark.parametrize("pair", REFUSED, ids=" x ".join)
def test_pairs_that_have_no_score_are_refused_by_name(pair):
    with pytest.raises(SettingError, match=rf"{pair[1][:22]}.*{pair[0]} is about groups without order"):
        bnp.Model(REFUSED[pair], bnp.AutoRegressiveGaussian(lags=1))


# -- the public functions ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def coins():
    """A chain of an unbounded number of states, trained on tosses as the defaults say."""
    rng = np.random.default_rng(0)
    tosses = [rng.integers(2, size=(12, 1)).astype(float) for _ in range(6)]
    return bnp.train(bnp.Model(bnp.HDPHMM(), bnp.Bernoulli()), tosses, init=bnp.ContiguousBlocks(2)).posterior


def _suite(allocation, likelihood):
    suite = PairSuite()
    suite.allocation, suite.kind = ALLOCATIONS[allocation], likelihood
    return suite


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_scores_of_all_binary_sequences_sum_to_one_by_default(coins, steps):
    every = [np.array(s, float)[:, None] for s in product((0, 1), repeat=steps)]
    values = score_samples(coins, every).reshape(-1, steps).sum(axis=1)
    assert_allclose(np.exp(values).sum(), 1.0, atol=1e-9)
    means = [bnp.score(coins, [one]) for one in every[:3]]
    assert_allclose(steps * np.array(means), values[:3], rtol=1e-12)


def test_an_unseen_state_is_one_of_infinitely_many_that_expect_the_same():
    """The last state stands for them all: many in its place, each with a share of the rest, give the same density."""
    posterior = _suite("sticky HDPHMM", "Bernoulli").fitted()[0]
    model, params, k, many = posterior.model, posterior.allocation, posterior.n_clusters, 40
    start, trans = model.allocation.expected_chain(params)
    share = np.random.default_rng(1).dirichlet(np.ones(many))
    top = model.allocation.concentrations.prior(params.u)[0]
    pi = top / top.sum()
    alpha, kappa = model.allocation.alpha, model.allocation.kappa
    spread = np.append(np.eye(k + 1)[:, :k], np.outer(np.eye(k + 1)[k], share), axis=1)  # (K + 1, K + many)
    rows = np.concatenate([trans[:k] @ spread, np.tile(alpha * pi @ spread, (many, 1))])
    rows[np.arange(k, k + many), np.arange(k, k + many)] += kappa
    rows[k:] /= alpha + kappa
    steps = np.array([[0, 1], [1, 1], [1, 0], [0, 0]], float)
    batch = bnp.Batch(steps, groups=np.array([0, 4]))
    unseen = model.observation.global_step(model.empty_summary(np.zeros(1, np.int64)))
    seen = model.observation.log_predictive(posterior.observation, batch)
    lik = np.exp(np.append(seen, np.repeat(model.observation.log_predictive(unseen, batch), many, axis=1), axis=1))
    forward = (start @ spread) * lik[0]
    for row in lik[1:]:
        forward = (forward @ rows) * row
    assert_allclose(log_density(posterior, batch).sum(), np.log(forward.sum()), rtol=1e-12)


def test_a_sequence_that_is_far_from_all_others_leaves_their_densities_alone():
    posterior, _ = _suite("HDPHMM", "FixedVarianceGaussian").fitted()
    near = np.random.default_rng(0).normal(size=(6, 2))
    both = np.concatenate([np.full((3, 2), 1e9), near])
    alone = log_density(posterior, bnp.Batch(near, groups=np.array([0, 6])))
    beside = log_density(posterior, bnp.Batch(both, groups=np.array([0, 3, 9])))[3:]
    assert_allclose(beside, alone, rtol=1e-13)


def test_a_score_of_documents_counts_their_orders_and_the_word_score_does_not():
    posterior, _ = _suite("DPMixture", "Multinomial").fitted()
    every = documents(3, 3)
    rows = [sparse.csr_array(row[None]) for row in every]
    executor = SerialExecutor()
    scores = np.array([score_of(posterior, bnp.Batch(row))[0] for row in rows])
    words = np.array([3.0 * bnp.word_score(posterior, row, client=executor) for row in rows])
    assert_allclose(np.exp(scores).sum(), 1.0, atol=1e-9)
    assert_allclose(np.exp(words + log_orders(every)).sum(), 1.0, atol=1e-9)


@pytest.mark.parametrize("allocation", ["LDA", "HDPTopics"])
def test_word_scores_of_all_documents_of_topics_sum_to_one_to_the_accuracy_of_their_draws(allocation):
    posterior, _ = _suite(allocation, "Multinomial").fitted()
    every = documents(3, 3)
    rows = [sparse.csr_array(row[None]) for row in every]
    words = np.array([3.0 * bnp.word_score(posterior, row, samples=400, burn_in=5) for row in rows])
    assert_allclose(np.exp(words + log_orders(every)).sum(), 1.0, atol=0.02)
