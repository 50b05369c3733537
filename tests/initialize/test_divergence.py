"""The smoothed Bregman divergence against closed forms and brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import rel_entr
from scipy.stats import norm

from bnp_dask.core.batch import Batch
from bnp_dask.initialize.kmeans import (
    best_joint,
    best_joint_by_clusters,
    distances_between,
    divergence,
    log_joint,
    nearest,
    single_atoms,
)
from tests.initialize.cases import OBSERVATIONS, context, cut, mixture


def setting(name):
    observation, batch = OBSERVATIONS[name]
    return context(mixture(observation), cut(batch, 1)).model, batch


def all_pairs(model, batch):
    return divergence(best_joint(model, batch), log_joint(model, single_atoms(model, batch), batch))


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_zero_at_the_atom_itself_and_positive_elsewhere(name):
    model, batch = setting(name)
    best = best_joint(model, batch)
    gap = best.value[:, None] - log_joint(model, single_atoms(model, batch), batch)
    assert np.isfinite(gap).all()
    assert (gap >= -best.rounding[:, None]).all()
    assert (np.abs(np.diag(gap)) <= best.rounding).all()
    dense = batch.x.toarray() if batch.is_sparse else batch.x
    different = (dense[:, None] != dense[None]).any(axis=2)
    # zero-mean Gaussians see x and -x as the same atom
    distance = divergence(best, log_joint(model, single_atoms(model, batch), batch))
    assert (distance[different] > 0).all()
    assert (distance[~different] == 0).all()


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_closed_forms_agree_with_clusters_of_one_atom(name):
    model, batch = setting(name)
    found, slow = best_joint(model, batch), best_joint_by_clusters(model, batch)
    assert (np.abs(found.value - slow.value) <= slow.rounding).all()
    np.testing.assert_allclose(found.rounding, slow.rounding, rtol=1e-9)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_distances_in_closed_form_are_those_of_clusters_of_one_atom(name):
    model, batch = setting(name)
    found = distances_between(model, batch)(np.arange(0, batch.n_atoms, 7))
    slow = all_pairs(model, batch)[:, ::7]
    least = best_joint_by_clusters(model, batch).rounding[:, None]
    np.testing.assert_allclose(found, slow, rtol=1e-9, atol=10 * least.max())


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_no_parameters_beat_the_atoms_own(name):
    model, batch = setting(name)
    best = best_joint(model, batch)
    rng = np.random.default_rng(0)
    resp = rng.dirichlet(np.full(20, 0.2), batch.n_atoms)
    params = model.observation.at_mode(model.observation.global_step(model.summarize(np.arange(20), batch, resp)))
    joint = model.observation.expected_log_lik(params, batch) + model.observation.log_prior(params)
    assert (best.value[:, None] > joint - best.rounding[:, None]).all()


def test_fixed_variance_gaussian_is_squared_euclidean():
    model, batch = setting("FixedVarianceGaussian")
    prior = model.observation
    smooth = (batch.x + prior.kappa * prior.m) / (1 + prior.kappa)
    square = ((smooth[:, None] - smooth[None]) ** 2 / prior.variance).sum(axis=2)
    expected = (1 + prior.kappa) * square / 2
    np.testing.assert_allclose(all_pairs(model, batch), expected, rtol=1e-9, atol=1e-9)


def test_multinomial_is_kullback_leibler_of_smoothed_frequencies():
    model, batch = setting("Multinomial")
    counts = batch.x.toarray() + model.observation.lam
    length = counts.sum(axis=1)
    frequency = counts / length[:, None]
    expected = length[:, None] * rel_entr(frequency[:, None], frequency[None]).sum(axis=2)
    np.testing.assert_allclose(all_pairs(model, batch), expected, rtol=1e-9, atol=1e-8)


def test_bernoulli_is_binary_kullback_leibler():
    model, batch = setting("Bernoulli")
    one, zero = batch.x + model.observation.lam1, 1 - batch.x + model.observation.lam0
    p = one / (one + zero)
    kl = rel_entr(p[:, None], p[None]) + rel_entr(1 - p[:, None], 1 - p[None])
    expected = ((one + zero)[:, None] * kl).sum(axis=2)
    np.testing.assert_allclose(all_pairs(model, batch), expected, rtol=1e-9, atol=1e-9)


def test_poisson_is_generalised_kullback_leibler():
    model, batch = setting("Poisson")
    a, b = model.observation.a, model.observation.b
    rate = (batch.x + a) / (1 + b)
    kl = rel_entr(rate[:, None], rate[None]) - rate[:, None] + rate[None]
    expected = ((1 + b) * kl).sum(axis=2)
    np.testing.assert_allclose(all_pairs(model, batch), expected, rtol=1e-9, atol=1e-9)


def test_diag_gaussian_is_the_log_joint_gap():
    model, batch = setting("DiagGaussian")
    batch = batch.rows(0, 30)
    prior, x = model.observation, batch.x
    kappa = 1 + prior.kappa
    m = (prior.kappa * prior.m + x) / kappa
    beta = prior.beta + prior.kappa / kappa * (x - prior.m) ** 2
    precision = (prior.nu + 1) / beta

    def joint(n, k):
        lik = norm.logpdf(x[n], m[k], precision[k] ** -0.5).sum()
        spread = prior.beta + prior.kappa * (m[k] - prior.m) ** 2
        return lik + 0.5 * np.sum(prior.nu * np.log(precision[k]) - spread * precision[k])

    expected = [[joint(n, n) - joint(n, k) for k in range(30)] for n in range(30)]
    np.testing.assert_allclose(all_pairs(model, batch), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_copies_are_at_distance_zero_even_far_from_the_origin(name):
    observation, batch = OBSERVATIONS[name]
    twice = batch.take(np.repeat(np.arange(10), 2))
    if name in ("DiagGaussian", "FixedVarianceGaussian", "Gaussian"):
        twice = Batch(twice.x * 1e3 + 1e8)
    model = context(mixture(observation), cut(twice, 1)).model
    pair = np.arange(20) ^ 1
    for distance in (all_pairs(model, twice), distances_between(model, twice)(np.arange(20))):
        assert (distance[np.arange(20), pair] == 0).all()


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_nearest_does_not_depend_on_tiles_and_ignores_weights(name, monkeypatch):
    model, batch = setting(name)
    centres = batch.take(np.arange(0, 240, 10))
    expected = divergence(best_joint(model, batch), log_joint(model, single_atoms(model, centres), batch))
    weighted = replace(batch, weights=np.random.default_rng(0).random(240))
    monkeypatch.setattr("bnp_dask.initialize.kmeans.TILE_NUMBERS", 50)
    labels, joint = nearest(model, weighted, replace(centres, weights=np.ones(24) * 5))
    distance = divergence(best_joint(model, weighted), joint[:, None])[:, 0]
    np.testing.assert_allclose(distance, expected.min(axis=1), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(expected[np.arange(240), labels], expected.min(axis=1), rtol=1e-9, atol=1e-9)
