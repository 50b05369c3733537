"""Drawing from a posterior, runs side by side, and equal settings."""

import copy
import pickle
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.allocation.lda import TopicShares
from bnp_dask.structure import answers

LIKELIHOODS = [bnp.Gaussian, bnp.DiagGaussian, bnp.FixedVarianceGaussian, bnp.ZeroMeanGaussian]


def fit(model, data, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        return bnp.train(model, data, moves=(), schedule=bnp.Memoized(laps=2), **settings)


def gaussians(n=200, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)) * 0.5 + rng.choice([-4.0, 4.0], n)[:, None]


def mixture(likelihood, data, k=2):
    return fit(bnp.Model(bnp.DPMixture(1.0), likelihood), data, init=bnp.BregmanKMeans(k))


@pytest.mark.first_case
@pytest.mark.parametrize("likelihood", [*LIKELIHOODS, bnp.Poisson, bnp.Bernoulli], ids=lambda c: c.__name__)
def test_the_mean_log_density_of_draws_is_the_entropy_that_importance_weights_give(likelihood):
    data = gaussians() if likelihood in LIKELIHOODS else (gaussians() > 0).astype(float)
    posterior = mixture(likelihood(), data).posterior
    drawn = bnp.sample(posterior, 4000, rng=1)
    assert set(np.unique(drawn.labels)) <= set(posterior.ids.tolist())
    shares = [(drawn.labels == i).mean() for i in posterior.ids]
    assert_allclose(shares, posterior.weights / posterior.weights.sum(), atol=0.05)
    # where x is from p_a, the mean of p_b(x) / p_a(x) is one
    log_p = posterior.model.observation.log_predictive(posterior.observation, bnp.Batch(drawn.x))
    a, b = 0, 1
    own = drawn.labels == posterior.ids[a]
    mixed = np.log(0.5 * np.exp(log_p[own, a]) + 0.5 * np.exp(log_p[own, b]))
    others = drawn.labels == posterior.ids[b]
    mixed_b = np.log(0.5 * np.exp(log_p[others, a]) + 0.5 * np.exp(log_p[others, b]))
    ratio = 0.5 * np.exp(log_p[own, a] - mixed).mean() + 0.5 * np.exp(log_p[others, a] - mixed_b).mean()
    assert_allclose(ratio, 1.0, atol=0.05)
    assert_array_equal(drawn.x, bnp.sample(posterior, 4000, rng=1).x)


def test_draws_are_labelled_by_the_ids_of_clusters_in_whatever_order_they_are():
    posterior = mixture(bnp.DiagGaussian(), gaussians()).posterior
    place = np.array([1, 0])
    other = posterior.model.global_step(replace(posterior.summary.take(posterior.ids[place]), ids=np.array([70, 8])))
    drawn = bnp.sample(other, 200)
    near = np.abs(drawn.x[:, :1] - other.observation.m[:, 0]).argmin(axis=1)
    assert_array_equal(drawn.labels, np.array([70, 8])[near])


def test_draws_of_a_gaussian_have_its_predictive_moments():
    posterior = mixture(bnp.Gaussian(), gaussians(), k=1).posterior
    params, drawn = posterior.observation, bnp.sample(posterior, 20_000)
    nu, d = params.nu[0], 3
    assert_allclose(drawn.x.mean(axis=0), params.m[0], atol=0.15)
    expected = params.B[0] * (1 + 1 / params.kappa[0]) / (nu - d - 1)
    assert_allclose(np.cov(drawn.x.T), expected, rtol=0.1)


def test_documents_and_groups_are_drawn_with_as_many_words_or_atoms_as_asked_for():
    counts = np.random.default_rng(0).poisson(2.0, (40, 6)).astype(float)
    topics = fit(
        bnp.Model(bnp.LDA(0.5), bnp.Multinomial()), sparse.csr_array(counts), init=bnp.RandomExamples(3)
    ).posterior
    drawn = bnp.sample(topics, 10, length=25)
    assert drawn.x.shape == (10, 6)
    assert_array_equal(drawn.x.sum(axis=1), 25)
    mixed = mixture(bnp.Multinomial(), counts).posterior
    assert_array_equal(bnp.sample(mixed, 4, length=9).x.sum(axis=1), 9)
    with pytest.raises(bnp.BnpDaskError, match="length"):
        bnp.sample(mixed, 4)
    groups = bnp.as_source(gaussians(), groups=np.arange(0, 201, 20))
    dense = fit(bnp.Model(bnp.LDA(0.5), bnp.DiagGaussian()), groups, init=bnp.BregmanKMeans(2)).posterior
    assert bnp.sample(dense, 5, length=7).x.shape == (35, 3)
    with pytest.raises(bnp.BnpDaskError, match="length"):
        bnp.sample(mixture(bnp.Gaussian(), gaussians()).posterior, 3, length=4)


def test_shares_of_a_drawn_document_vary_as_the_prior_of_topics_says():
    """Of two topics without a word in common, the share of one has the variance of a Dirichlet, and of its words."""
    counts, n, length = np.repeat([[9.0, 9.0, 0.0, 0.0], [0.0, 0.0, 9.0, 9.0]], 20, axis=0), 4000, 50
    model = bnp.Model(bnp.LDA(0.2), bnp.Multinomial(lam=1e-6))
    posterior = fit(model, sparse.csr_array(counts), init=bnp.Responsibilities(np.repeat([0, 1], 20))).posterior
    first = np.asarray(bnp.sample(posterior, n, length=length).x.todense())[:, :2].sum(axis=1) / length
    each = posterior.model.allocation.alpha / 2
    spread = 0.25 / (2 * each + 1)
    assert_allclose(first.mean(), 0.5, atol=0.04)
    assert_allclose(first.var(), spread + (0.25 - spread) / length, rtol=0.1)


def test_sequences_are_drawn_along_the_transitions():
    x = np.repeat([[-4.0], [4.0], [-4.0], [4.0]], 60, axis=0) + np.random.default_rng(0).normal(size=(240, 1))
    posterior = fit(bnp.Model(bnp.FiniteHMM(), bnp.Gaussian()), [x], init=bnp.BregmanKMeans(2)).posterior
    drawn = bnp.sample(posterior, 3000)
    stays = (drawn.labels[1:] == drawn.labels[:-1]).mean()
    assert abs(stays - bnp.transitions(posterior).stay.mean()) < 0.05
    rows, offsets = np.concatenate([x[1:], x[:-1]], axis=1), np.array([0, 239])
    lagged = bnp.as_source(rows, groups=offsets)
    model = bnp.Model(bnp.FiniteHMM(), bnp.AutoRegressiveGaussian())
    path = bnp.sample(fit(model, lagged, init=bnp.ContiguousBlocks(2)).posterior, 50)
    assert path.x.shape == (50, 1)
    assert np.isfinite(path.x).all()


def test_products_draw_every_part():
    data = np.concatenate([gaussians(), (gaussians() > 0).astype(float)], axis=1)
    likelihood = bnp.Product({"0:3": bnp.Gaussian(), "3:6": bnp.Bernoulli()})
    drawn = bnp.sample(mixture(likelihood, data).posterior, 50)
    assert set(np.unique(drawn.x[:, 3:])) <= {0.0, 1.0}
    assert drawn.x[:, :3].std() > 1.0


def test_runs_are_compared_side_by_side(tmp_path):
    one, two = (mixture(bnp.Gaussian(), gaussians(), k) for k in (1, 2))
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian())
    fit(model, gaussians(), init=bnp.BregmanKMeans(2), store=tmp_path / "run")
    found = bnp.compare(one, two.posterior, tmp_path / "run", heldout=gaussians(50, seed=1))
    assert [line.n_clusters for line in found] == [1, 2, 2]
    assert found[0].objective == one.history["elbo"][-1]
    assert found[1].objective is None
    assert found[2].heldout == pytest.approx(found[1].heldout)
    assert found[1].heldout > found[0].heldout
    text = str(bnp.compare({"single": one, "pair": two}))
    assert "single" in text
    assert "objective" in text
    assert list(found.to_pandas()["n_clusters"]) == [1, 2, 2]
    assert found._repr_html_().count("<tr>") == 4
    nasty = bnp.compare({"<b>one</b>": one})._repr_html_()
    assert "&lt;b&gt;one&lt;/b&gt;" in nasty and "<b>" not in nasty
    with pytest.raises(bnp.BnpDaskError, match="needs runs"):
        bnp.compare()


@pytest.mark.parametrize(
    "likelihood",
    [
        bnp.Gaussian(),
        bnp.Gaussian(nu=5.0, m=[0.0, 1.0], B=np.eye(2)),
        bnp.Product({"a,b": bnp.Gaussian(), "c": bnp.Poisson()}),
        bnp.Multinomial(0.4),
    ],
    ids=lambda x: type(x).__name__,
)
def test_likelihoods_are_equal_where_their_settings_are(likelihood):
    for other in (copy.deepcopy(likelihood), pickle.loads(pickle.dumps(likelihood))):
        assert likelihood == other
        assert hash(likelihood) == hash(other)
    assert likelihood != bnp.Gaussian(nu=9.0)
    assert bnp.Model(bnp.DPMixture(1.0), likelihood) == bnp.Model(bnp.DPMixture(1.0), copy.deepcopy(likelihood))


# -- what is drawn, by hand ------------------------------------------------------------------------------------------
class OfPlaces:
    """A likelihood whose atoms are the positions of their clusters."""

    def draw(self, params, place, rng):
        return place[:, None].astype(float)


class OfSteps(OfPlaces):
    """A likelihood whose steps are one more than the step before, and keep what they were shown."""

    def __init__(self):
        self.seen = []

    def draw_step(self, params, place, before, rng):
        self.seen.append((place, before.tolist()))
        return before[:2] + 1.0


def walk(observation, lags=0):
    """A posterior whose path is 2, 0, 1, 2, ... for certain."""
    model = SimpleNamespace(observation=observation, allocation=None, lags=lags)
    return SimpleNamespace(model=model, observation=SimpleNamespace(B=np.zeros((3, 2, 2))))


@pytest.fixture
def certain(monkeypatch):
    matrix = np.roll(np.eye(3), 1, axis=1)  # from 0 to 1, from 1 to 2, from 2 to 0
    found = answers.Chances(np.array([0.0, 0.0, 1.0]), matrix, np.zeros(3))
    monkeypatch.setattr(answers, "chances_of", lambda posterior: found)


def test_a_path_begins_and_goes_on_as_the_chain_says(certain):
    x, place = answers.draw_path(walk(OfPlaces()), 5, None, np.random.default_rng(0))
    assert place.tolist() == [2, 0, 1, 2, 0] and x[:, 0].tolist() == [2.0, 0.0, 1.0, 2.0, 0.0]


@pytest.mark.parametrize("lags", [0, 2])
def test_a_step_is_drawn_after_the_steps_before_it_the_latest_first(certain, lags):
    observation = OfSteps()
    x, place = answers.draw_path(walk(observation, lags), 4, None, np.random.default_rng(0))
    assert x[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0] == x[:, 1].tolist()
    assert [k for k, _ in observation.seen] == place.tolist() == [2, 0, 1, 2]
    steps = [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    older = [[0.0, 0.0], *steps[:-1]]
    wanted = [[*now, *old] for now, old in zip(steps, older, strict=True)] if lags else steps
    assert [before for _, before in observation.seen] == wanted


def test_rows_are_drawn_from_clusters_by_their_weights():
    model = SimpleNamespace(observation=OfPlaces(), allocation=None)
    posterior = SimpleNamespace(model=model, observation=None, weights=np.array([0.0, 0.0, 0.3]))
    x, place = answers.draw_rows(posterior, 6, None, np.random.default_rng(0))
    assert place.tolist() == [2] * 6 and x[:, 0].tolist() == [2.0] * 6


def test_words_of_a_document_come_from_its_shares_of_topics_not_from_their_sizes():
    """Two topics of very different sizes, with half of each document, and a third with next to nothing."""
    pi = TopicShares(np.array([0.5, 0.5, 1e-9]), None)
    lam = SimpleNamespace(lam=np.array([[900.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 9.0]]))
    model = SimpleNamespace(observation=bnp.Multinomial(), allocation=bnp.LDA(1e9))
    posterior = SimpleNamespace(model=model, allocation=pi, observation=lam)
    x, _ = answers.draw_groups(posterior, 3, 1000, np.random.default_rng(0))
    assert_allclose(x.toarray()[:, :2], 500.0, atol=80.0)
    assert_array_equal(x.sum(axis=1), 1000.0)
    x, largest = answers.draw_groups(posterior, 2, 1, np.random.default_rng(0))  # of one word
    assert_array_equal(x.sum(axis=1), 1.0)
    assert set(largest) <= {0, 1}
