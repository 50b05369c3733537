"""DiagGaussian: the shipped suite, and scipy's normal and Student t."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from bnp_dask.core.batch import Batch
from bnp_dask.errors import SettingError
from bnp_dask.observation.diag_gaussian import DiagGaussian
from bnp_dask.testing import ObservationSuite, random_resp, survey_of


class TestDiagGaussian(ObservationSuite):
    def model(self):
        return DiagGaussian()

    def batch(self, rng, n_atoms):
        return Batch(rng.normal([3.0, -1.0], [0.5, 3.0], (n_atoms, 2)))

    def draw(self, params, k, rng):
        lam = rng.gamma(params.nu[k] / 2, 2.0 / params.beta[k])
        return rng.normal(params.m[k], 1.0 / np.sqrt(params.kappa[k] * lam)), lam

    def log_density(self, phi, x):
        return stats.norm.logpdf(x, phi[0], 1.0 / np.sqrt(phi[1])).sum(axis=1)


class TestGivenPrior(TestDiagGaussian):
    def model(self):
        return DiagGaussian(nu=5.0, beta=[1.0, 20.0], m=[0.0, 1.0], kappa=2.0, center=[1.0, -9.0])


def fitted(x, **settings):
    batch = Batch(x)
    model = DiagGaussian(**settings).with_prior(survey_of(batch))
    summary = TestDiagGaussian().summary(model, batch, random_resp(np.random.default_rng(1), len(x), 2))
    return model, batch, summary, model.global_step(summary)


def test_against_scipy():
    x = TestDiagGaussian().batch(np.random.default_rng(0), 30).x
    model, batch, _, params = fitted(x)
    mode = model.expected_log_lik(model.at_mode(params), batch)
    for k in range(2):
        scale = np.sqrt(params.beta[k] / params.nu[k])
        assert_allclose(mode[:, k], stats.norm.logpdf(x, params.m[k], scale).sum(axis=1))
        wider = scale * np.sqrt(1 + 1 / params.kappa[k])
        expected = stats.t.logpdf(x, params.nu[k], params.m[k], wider).sum(axis=1)
        assert_allclose(model.log_predictive(params, batch)[:, k], expected)


def test_offsets_cost_no_precision():
    x = np.random.default_rng(0).normal(size=(50, 2))
    near_model, near, _, near_params = fitted((x + 1e8) - 1e8)
    model, batch, _, params = fitted(x + 1e8)
    assert_allclose(model.kl(params), near_model.kl(near_params), rtol=1e-6)
    expected = near_model.log_predictive(near_params, near)
    assert_allclose(model.log_predictive(params, batch), expected, rtol=1e-6, atol=1e-6)


def test_tight_clusters_far_apart_stay_finite():
    """Two points 1e9 spreads apart: sums of squares cancel to less than nothing, the objective must not."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-1e5, 1e-6, (20, 3)), rng.normal(1e5, 1e-6, (20, 3))])
    batch = Batch(x)
    model = DiagGaussian(beta=1e-12).with_prior(survey_of(batch))
    resp = np.repeat(np.eye(2), 20, axis=0)
    params = model.global_step(TestDiagGaussian().summary(model, batch, resp))
    assert np.all(params.beta >= 1e-12)
    for values in (model.expected_log_lik(params, batch), model.kl(params), model.log_predictive(params, batch)):
        assert np.isfinite(values).all()


def test_scales_are_never_below_the_prior_where_sums_of_squares_cancel_to_less_than_nothing():
    """A tight cluster at the prior's mean, far from the center: the prior does not pull, and rounding decides."""
    at = np.random.default_rng(0).uniform(1e5, 2e5, 40)
    batch, others = Batch(np.tile(at, (23, 1))), Batch(np.vstack([at, np.zeros(40)]))
    model = DiagGaussian(beta=1e-12, m=at, center=np.zeros(40)).with_prior(survey_of(others))
    params = model.global_step(TestDiagGaussian().summary(model, batch, np.ones((23, 1))))
    assert np.all(params.beta >= 1e-12)


def test_constant_column_is_said_and_harmless():
    x = np.random.default_rng(0).normal(size=(20, 2))
    x[:, 1] = 7.0
    with pytest.warns(UserWarning, match=r"\[1\] are constant"):
        model, batch, _, params = fitted(x)
    assert np.isfinite(model.expected_log_lik(params, batch)).all()
    assert np.isfinite(model.kl(params)).all()


def test_refuses_impossible_priors():
    survey = survey_of(Batch(np.random.default_rng(0).normal(size=(9, 2))))
    for setting in ({"nu": 0.0}, {"beta": -1.0}, {"kappa": np.nan}, {"m": [0.0, np.inf]}, {"center": [1.0, 2.0, 3.0]}):
        with pytest.raises(SettingError, match=next(iter(setting))):
            DiagGaussian(**setting).with_prior(survey)
