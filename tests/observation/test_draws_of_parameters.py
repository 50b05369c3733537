"""Parameters that Gibbs sampling draws: the mean of their likelihoods is the predictive density."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.inference.streaming.unite import rows
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
