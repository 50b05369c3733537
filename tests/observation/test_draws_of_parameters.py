"""Parameters that Gibbs sampling draws: the mean of their likelihoods is the predictive density."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.inference.streaming.unite import rows
from bnp_dask.observation.labelled import Labelled
from bnp_dask.structure.prior import scale_shape
from bnp_dask.testing import survey_of

RNG = np.random.default_rng(8)
N, DRAWS = 24, 20_000


def reals() -> np.ndarray:
    return np.concatenate([RNG.normal(size=(N, 2)) * [1.0, 2.0] + 0.7, RNG.normal(size=(N, 2)) - 0.5])


def counts() -> np.ndarray:
    return np.concatenate([RNG.poisson([2.0, 6.0], (N, 2)), RNG.poisson([4.0, 1.0], (N, 2))]).astype(np.float64)


def bits() -> np.ndarray:
    x = (RNG.random((2 * N, 3)) < np.repeat([[0.3, 0.6, 0.5], [0.6, 0.4, 0.7]], N, axis=0)).astype(np.float64)
    x[[0, N]], x[[1, N + 1]] = 1.0, 0.0  # both values in all columns of both clusters
    return x


def directions() -> np.ndarray:
    x = np.concatenate([RNG.normal(size=(N, 3)) + [3.0, 0.0, 0.0], RNG.normal(size=(N, 3)) + [0.0, 2.0, 0.0]])
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def with_holes(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[::3, 0], x[1::4, 1] = np.nan, np.nan
    return x


KINDS = {
    "gaussian": (bnp.Gaussian(), reals()),
    "diagonal": (bnp.DiagGaussian(), reals()),
    "diagonal, missing": (bnp.DiagGaussian(missing="marginalise"), with_holes(reals())),
    "known variance": (bnp.FixedVarianceGaussian(), reals()),
    "known variance, missing": (bnp.FixedVarianceGaussian(missing="marginalise"), with_holes(reals())),
    "bits": (bnp.Bernoulli(), bits()),
    "bits, missing": (bnp.Bernoulli(missing="marginalise"), with_holes(bits())),
    "rates": (bnp.Poisson(), counts()),
    "rates, missing": (bnp.Poisson(missing="marginalise"), with_holes(counts())),
    "directions": (bnp.VonMisesFisher(), directions()),
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "directions"])
def test_likelihoods_of_drawn_parameters_have_the_predictive_density_as_their_mean(kind):
    likelihood, x = KINDS[kind]
    model = bnp.Model(bnp.FiniteMixture(), likelihood).with_prior(survey_of(Batch(np.nan_to_num(x, nan=1.0))))
    summary = model.summarize(np.arange(2), Batch(x), np.eye(2)[np.repeat([0, 1], N)])
    own = model.observation
    near = np.argsort(np.nan_to_num(np.abs(x - np.nanmean(x, axis=0))).max(axis=1))[:6]  # rare draws decide far away
    some = Batch(x[near])
    want = own.log_predictive(own.global_step(summary), some)
    # terms that are the same for all clusters are left out of log likelihoods: two clusters are compared
    many = own.global_step(rows(summary, np.repeat([0, 1], DRAWS)))
    found = own.expected_log_lik(own.at_draw(many, np.random.default_rng(0)), some).reshape(-1, 2, DRAWS)
    mean = np.exp(found - found.max(axis=(1, 2), keepdims=True)).mean(axis=2)
    assert_allclose(np.log(mean[:, 0] / mean[:, 1]), want[:, 0] - want[:, 1], atol=0.12)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gaussian"])
def test_the_mode_of_the_parameters_is_in_the_density_that_many_atoms_make_certain(kind):
    """With a million times the atoms, expected parameters, their mode and the predictive density are one."""
    likelihood, x = KINDS[kind]
    model = bnp.Model(bnp.FiniteMixture(), likelihood).with_prior(survey_of(Batch(np.nan_to_num(x, nan=1.0))))
    summary = model.summarize(np.arange(2), Batch(x), np.eye(2)[np.repeat([0, 1], N)]).scale(1e6)
    own, params = model.observation, model.observation.global_step(summary)
    want = own.log_predictive(params, Batch(x))
    for log_lik in (own.expected_log_lik(params, Batch(x)), own.expected_log_lik(own.at_mode(params), Batch(x))):
        assert_allclose(log_lik[:, 0] - log_lik[:, 1], want[:, 0] - want[:, 1], atol=1e-3)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.split(",")[0] not in ("gaussian", "directions")])
def test_drawn_rows_have_the_moments_of_the_predictive_density(kind):
    likelihood, x = KINDS[kind]
    model = bnp.Model(bnp.FiniteMixture(), likelihood).with_prior(survey_of(Batch(np.nan_to_num(x, nan=1.0))))
    own = model.observation
    params = own.global_step(model.summarize(np.arange(2), Batch(x), np.eye(2)[np.repeat([0, 1], N)]))
    place = np.repeat([1, 0], DRAWS)
    drawn = own.draw(params, place, np.random.default_rng(0))
    for k in (0, 1):
        if kind.startswith("diagonal"):
            nu, kappa = (n[k] if n.ndim > 1 else n[k, None] for n in (params.nu, params.kappa))
            mean, variance = params.m[k], params.beta[k] * (1.0 + 1.0 / kappa) / (nu - 2.0)
        elif kind.startswith("known"):
            mean, variance = params.m[k], own.variance * (1.0 + 1.0 / params.kappa[k])
        elif kind.startswith("rates"):
            mean = params.a[k] / params.b[k]
            variance = mean * (1.0 + 1.0 / params.b[k])
        else:
            mean = params.lam1[k] / (params.lam1[k] + params.lam0[k])
            variance = mean * (1.0 - mean)
        found = drawn[place == k]
        assert_allclose(found.mean(axis=0), mean, atol=6.0 * np.sqrt(variance.max() / DRAWS))
        assert_allclose(found.var(axis=0), variance, rtol=0.08)


def test_a_likelihood_with_labels_asks_its_part_for_all_that_is_not_about_labels():
    x = reals()
    part = bnp.DiagGaussian(missing="marginalise")
    model = bnp.Model(bnp.DPMixture(), Labelled(part, ("a", "b")), learn_prior="diagonal")
    model = model.with_prior(survey_of(Batch(x)))
    summary = model.summarize(np.arange(2), Batch(x), np.eye(2)[np.repeat([0, 1], N)])
    own, used, shape = model.observation, np.array([True, True]), scale_shape(model)
    params = own.global_step(summary)
    for method in ("learned", "learned_when_calm"):
        found = getattr(own, method)(params, used, model.reference, shape)
        wanted = getattr(own.part, method)(params.part, used, model.reference.part, shape)
        assert found.names == own.names
        for name in ("nu", "beta", "m", "kappa"):
            assert_allclose(getattr(found.part, name), getattr(wanted, name))
        assert found.log_hyperprior(model.reference) == wanted.log_hyperprior(model.reference.part)
    holed, resp = Batch(with_holes(x)), np.eye(2)[np.repeat([0, 1], N)]
    assert_allclose(own.impute(params, holed, resp), own.part.impute(params.part, holed, resp))
    place, rng = np.array([0, 1, 1]), np.random.default_rng
    assert_allclose(own.draw(params, place, rng(1)), own.part.draw(params.part, place, rng(1)))
