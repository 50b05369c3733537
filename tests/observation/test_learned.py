"""Priors that fit themselves: no better settings exist, and what they are raises the objective."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import SettingError
from bnp_dask.kernels.gaussian import learned as rules
from bnp_dask.model import Model
from bnp_dask.observation import DiagGaussian, Gaussian, Poisson, ZeroMeanGaussian, wishart
from bnp_dask.structure.prior import prior_terms, scale_shape
from tests.pairwise import in_pairs

D, K = 3, 12


def drawn(seed=0, spread=4.0):
    """Atoms of K clusters of unlike sizes, and about as wide as one another."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(K, size=600, p=rng.dirichlet(np.full(K, 2.0)))
    roots = (np.eye(D) + 0.3 * rng.normal(size=(K, D, D))) * np.array([0.2, 1.0, 3.0])[:, None]
    x = spread * rng.normal(size=(K, D))[labels] + np.einsum("nij,nj->ni", roots[labels], rng.normal(size=(600, D)))
    return x, np.eye(K)[labels]


def fitted(observation, seed=0, shape="diagonal", spread=4.0, times=1.0, shift=0.0):
    """A model to learn, and statistics of the clusters."""
    x, resp = drawn(seed, spread)
    batch = Batch(x * times + shift)
    model = Model(DPMixture(), observation, learn_prior=shape).with_prior(survey_batch(batch))
    return model, model.summarize(np.arange(K), batch, resp)


def objective(model, params, summary):
    """The part of the objective that depends on the prior's settings, at parameters that stay."""
    return model.data_terms(params, summary).sum() + prior_terms(model)["prior"]


def better(model, params, used=slice(None)):
    mask = np.zeros(K, np.bool_)
    mask[used] = True
    observation = model.observation.learned(params, mask, model.reference, scale_shape(model))
    return replace(model, observation=observation)


def with_settings(model, z, shape):
    """Settings from unconstrained numbers: log (nu - D), log diagonal or Cholesky factor of B / nu, m, log kappa."""
    nu = D + np.exp(z[0])
    if shape == "diagonal":
        scale, rest = np.diag(np.exp(z[1 : D + 1])), z[D + 1 :]
    else:
        root = np.zeros((D, D))
        root[np.tril_indices(D)] = z[1 : 1 + D * (D + 1) // 2]
        scale, rest = root @ root.T, z[1 + D * (D + 1) // 2 :]
    more = {"m": model.observation.center + rest[:D], "kappa": np.exp(rest[D])} if len(rest) else {}
    return replace(model, observation=replace(model.observation, nu=nu, B=nu * scale, **more))


@pytest.mark.parametrize("shape", ["diagonal", "full"])
@pytest.mark.parametrize("observation", [Gaussian(), ZeroMeanGaussian()])
def test_an_optimizer_finds_no_better_settings(observation, shape):
    model, summary = fitted(observation, shape=shape, spread=4.0 if isinstance(observation, Gaussian) else 0.0)
    params = model.observation_step(summary)
    found = better(model, params)
    for _ in range(20):  # m, kappa and the scale are each best given the others
        found = better(found, params)

    def loss(z):
        return -objective(with_settings(model, z, shape), params, summary)

    own = found.observation
    psi = own.B / own.nu
    scale = np.log(psi.diagonal()) if shape == "diagonal" else np.linalg.cholesky(psi)[np.tril_indices(D)]
    more = [*(own.m - own.center), np.log(own.kappa)] if isinstance(own, Gaussian) else []
    ours = np.array([np.log(own.nu - D), *scale, *more])
    start = ours + 0.3 * np.random.default_rng(1).normal(size=len(ours))
    theirs = minimize(loss, start, method="BFGS", options={"gtol": 1e-6, "maxiter": 2000})
    assert_allclose(-objective(found, params, summary), theirs.fun, rtol=1e-7)
    assert -objective(found, params, summary) <= theirs.fun + 1e-6


@pytest.mark.parametrize(
    *in_pairs(
        seed=range(3),
        observation=[Gaussian(), ZeroMeanGaussian(), Gaussian(nu=9.0, B=np.eye(3) + 0.3)],
        shape=["diagonal", "full"],
    )
)
def test_updates_raise_the_objective_with_clusters_refitted(observation, shape, seed):
    model, summary = fitted(observation, seed, shape)
    trace = []
    for _ in range(8):
        params = model.observation_step(summary)
        trace.append(objective(model, params, summary))
        model = better(model, params)
    assert np.diff(trace).min() >= -1e-12 * abs(trace[-1])
    assert trace[1] > trace[0] + 1.0


def test_units_and_offsets_of_the_data_make_no_difference():
    model, summary = fitted(Gaussian())
    found = better(model, model.observation_step(summary)).observation
    times, shift = np.array([1e-3, 7.0, 1e4]), np.array([5.0, -1e6, 3e7])
    other, summary = fitted(Gaussian(), times=times, shift=shift)
    there = better(other, other.observation_step(summary)).observation
    assert_allclose(there.nu, found.nu, rtol=1e-6)
    assert_allclose(there.kappa, found.kappa, rtol=1e-6)
    assert_allclose(there.B.diagonal(), found.B.diagonal() * times**2, rtol=1e-6)
    assert_allclose(there.m, found.m * times + shift, rtol=1e-6)


def test_few_clusters_get_no_strong_prior():
    model, summary = fitted(Gaussian(), spread=0.0)
    params = model.observation_step(summary)
    few = better(model, params, slice(0, 1)).observation
    assert few.nu <= rules.FEW_NU * D + 2.0


@pytest.mark.parametrize(("n_clusters", "most"), [(rules.FEW - 1, rules.FEW_NU * D + 2), (1000, rules.MOST_NU * D + 2)])
def test_degrees_of_freedom_of_clusters_that_are_alike_end_at_their_limit(n_clusters, most):
    found = rules.Precisions(n_clusters, n_clusters * np.eye(D), 0.0)
    assert rules.wishart_settings(found, 3.0, np.eye(D), False)[0] == most
    assert rules.most_nu(most + 5.0, n_clusters, D) == most + 5.0


def test_ten_clusters_are_no_longer_few():
    assert rules.most_nu(3.0, rules.FEW, D) == rules.MOST_NU * D + 2.0


def test_equal_rows_do_not_take_the_scale_to_nothing():
    x = np.repeat(np.random.default_rng(0).normal(size=(K, D)), 50, axis=0)
    batch = Batch(x)
    model = Model(DPMixture(), Gaussian(), learn_prior="diagonal").with_prior(survey_batch(batch))
    summary = model.summarize(np.arange(K), batch, np.repeat(np.eye(K), 50, axis=0))
    first = wishart.expected_scale(model.observation.nu, model.observation.B).diagonal()
    for _ in range(40):
        model = better(model, model.observation_step(summary))
    scale = model.observation.B.diagonal() / model.observation.nu
    assert (scale >= 0.99 * rules.LEAST_SCALE * first).all()


@pytest.mark.parametrize("observation", [DiagGaussian(), Poisson()])
def test_a_likelihood_without_a_rule_says_so(observation):
    with pytest.raises(SettingError, match="cannot be learned"):
        Model(DPMixture(), observation, learn_prior="diagonal")


def test_point_estimates_learn_no_prior():
    with pytest.raises(SettingError, match="point estimates"):
        Model(DPMixture(), Gaussian(), estimate="map", learn_prior="full")
