"""FixedVarianceGaussian: the shipped suite, scipy's normal, and k-means as a special case."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from bnp_dask.allocation.finite_mixture import FiniteMixture
from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.model import Model
from bnp_dask.observation.fixed_variance_gaussian import FixedVarianceGaussian
from bnp_dask.testing import ObservationSuite, random_resp, survey_of

VARIANCE = np.array([0.3, 2.0, 40.0])


class TestFixedVarianceGaussian(ObservationSuite):
    def model(self):
        return FixedVarianceGaussian(variance=VARIANCE, kappa=0.5)

    def batch(self, rng, n_atoms):
        return Batch(rng.normal([3.0, -1.0, 0.0], 2.0 * np.sqrt(VARIANCE), (n_atoms, 3)))

    def draw(self, params, k, rng):
        return rng.normal(params.m[k], np.sqrt(VARIANCE / params.kappa[k]))

    def log_density(self, phi, x):
        return stats.norm.logpdf(x, phi, np.sqrt(VARIANCE)).sum(axis=1)


class TestOffCenter(TestFixedVarianceGaussian):
    def model(self):
        return FixedVarianceGaussian(variance=VARIANCE, kappa=0.5, m=[1.0, 2.0, 3.0], center=[0.0, -4.0, 9.0])


def fitted(x, **settings):
    batch = Batch(x)
    model = FixedVarianceGaussian(**settings).with_prior(survey_of(batch))
    summary = TestFixedVarianceGaussian().summary(model, batch, random_resp(np.random.default_rng(1), len(x), 2))
    return model, batch, summary, model.global_step(summary)


def test_against_scipy():
    x = TestFixedVarianceGaussian().batch(np.random.default_rng(0), 30).x
    model, batch, _, params = fitted(x, variance=VARIANCE, m=1.0, kappa=2.0)
    mode = model.expected_log_lik(model.at_mode(params), batch)
    base = TestFixedVarianceGaussian().log_base(model, batch)
    for k in range(2):
        expected = stats.norm.logpdf(x, params.m[k], np.sqrt(VARIANCE)).sum(axis=1)
        assert_allclose(mode[:, k] + base, expected)
        wider = np.sqrt(VARIANCE * (1 + 1 / params.kappa[k]))
        expected = stats.norm.logpdf(x, params.m[k], wider).sum(axis=1)
        assert_allclose(model.log_predictive(params, batch)[:, k], expected)


def test_default_prior_is_a_tenth_of_the_variance():
    x = TestFixedVarianceGaussian().batch(np.random.default_rng(0), 30).x
    model, *_ = fitted(x)
    assert_allclose(model.variance, 0.1 * x.var(axis=0))
    assert_allclose(model.variance / model.kappa, x.var(axis=0))
    assert_allclose(model.m, x.mean(axis=0))


def test_offsets_cost_no_precision():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2))
    # what the offset leaves of the digits of x
    far = (x + 1e8) - 1e8
    near_model, near, _, near_params = fitted(far)
    model, batch, _, params = fitted(x + 1e8)
    assert_allclose(model.kl(params), near_model.kl(near_params), rtol=1e-6)
    assert_allclose(
        model.log_predictive(params, batch), near_model.log_predictive(near_params, near), rtol=1e-6, atol=1e-6
    )


def test_hard_point_estimates_are_k_means():
    """With a negligible prior, labels and means are those of Lloyd's algorithm."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(c, 1.0, (30, 2)) for c in (-3.0, 0.0, 4.0)])
    batch = Batch(x)
    observation = FixedVarianceGaussian(variance=1.0, kappa=1e-12)
    # so much prior mass makes the weights equal
    model = Model(FiniteMixture(gamma=1e10, top=1), observation, "map").with_prior(survey_of(batch))
    means = x[[0, 1, 2]]
    posterior = model.global_step(model.summarize(np.arange(3), batch.rows(0, 3), np.eye(3)))
    for _ in range(20):
        labels = np.argmin(((x[:, None] - means) ** 2).sum(axis=2), axis=1)
        step = model.assign(posterior, batch)
        assert_array_equal(step.resp.index[:, 0], labels)
        means = np.array([x[labels == k].mean(axis=0) for k in range(3)])
        posterior = model.global_step(model.local_step(posterior, batch))
        assert_allclose(posterior.observation.m, means, rtol=1e-9)


def test_refuses_bad_input():
    survey = survey_of(Batch(np.random.default_rng(0).normal(size=(9, 3))))
    for setting in ({"variance": 0.0}, {"variance": [1.0, -1.0, 1.0]}, {"kappa": 0.0}, {"m": np.nan}):
        with pytest.raises(SettingError, match=next(iter(setting))):
            FixedVarianceGaussian(**setting).with_prior(survey)
    with pytest.raises(DataError, match="row 1, column 2 is inf"):
        FixedVarianceGaussian().with_prior(survey).check(Batch(np.array([[0.0, 0, 0], [0, 0, np.inf]])))
