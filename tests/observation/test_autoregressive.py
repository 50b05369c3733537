"""Autoregressive Gaussian: the shipped suite, conventions, and how rows are made of sequences."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.observation import AutoRegressiveGaussian, with_previous
from bnp_dask.testing import ObservationSuite, random_resp, survey_of

D = 2


class TestAutoRegressiveGaussian(ObservationSuite):
    def model(self):
        return AutoRegressiveGaussian(nu=5.5, M=0.8)

    def batch(self, rng, n_atoms):
        return Batch(rng.normal(size=(n_atoms, 2 * D)) * [1.0, 3.0, 0.7, 2.0] + 0.5)

    def draw(self, params, k, rng):
        lam = stats.wishart(params.nu[k], np.linalg.inv(params.B[k])).rvs(random_state=rng)
        rows = np.linalg.cholesky(np.linalg.inv(lam))
        columns = np.linalg.cholesky(np.linalg.inv(params.V[k]))
        return params.M[k] + rows @ rng.normal(size=(D, D)) @ columns.T, np.linalg.inv(lam)

    def log_density(self, phi, x):
        a, cov = phi
        return stats.multivariate_normal(np.zeros(D), cov).logpdf(x[:, :D] - x[:, D:] @ a.T)


class TestThreeLags(ObservationSuite):
    n_draws = 400

    def model(self):
        return AutoRegressiveGaussian(nu=5.5, M=0.8, lags=3)

    def batch(self, rng, n_atoms):
        return Batch(rng.normal(size=(n_atoms, 4 * D)) * np.tile([1.0, 0.7], 4) + 0.5)

    def draw(self, params, k, rng):
        lam = stats.wishart(params.nu[k], np.linalg.inv(params.B[k])).rvs(random_state=rng)
        rows = np.linalg.cholesky(np.linalg.inv(lam))
        columns = np.linalg.cholesky(np.linalg.inv(params.V[k]))
        return params.M[k] + rows @ rng.normal(size=(D, 3 * D)) @ columns.T, np.linalg.inv(lam)

    def log_density(self, phi, x):
        a, cov = phi
        return stats.multivariate_normal(np.zeros(D), cov).logpdf(x[:, :D] - x[:, D:] @ a.T)


def test_evidence_of_two_lags_is_that_of_a_regression():
    """The objective of one cluster is the log integral of the likelihood, here of one column, over the prior."""
    rng = np.random.default_rng(3)
    x = np.cumsum(rng.normal(size=(30, 1)), axis=0)
    rows, offsets = with_previous(x, np.array([0, 30]), 2)
    batch = Batch(rows, groups=offsets)
    model = AutoRegressiveGaussian(nu=4.0, B=1.5, M=np.array([[0.7, 0.1]]), V=np.array([0.5, 2.0]), lags=2)
    model = model.with_prior(survey_of(batch))
    summary = TestThreeLags().summary(model, batch, np.ones((28, 1)))
    params = model.global_step(summary)
    found = float((model.score(params, summary) - model.kl(params))[0])
    y, p = rows[:, 0], rows[:, 1:]
    # given the noise, y is Gaussian; the noise integrated out makes it a Student t of 4 degrees of freedom
    shape = (np.eye(28) + p @ np.diag([2.0, 0.5]) @ p.T) * 1.5 / 4.0
    assert found == pytest.approx(stats.multivariate_t(p @ [0.7, 0.1], shape, df=4.0).logpdf(y), abs=1e-9)


def test_posterior_is_a_regression():
    rng = np.random.default_rng(0)
    batch = Batch(rng.normal(size=(50, 2 * D)))
    prior = {"nu": 6.0, "B": np.array([[2.0, 0.3], [0.3, 1.0]]), "M": rng.normal(size=(D, D)), "V": np.diag([0.5, 2.0])}
    model = AutoRegressiveGaussian(**prior).with_prior(survey_of(batch))
    suite = TestAutoRegressiveGaussian()
    resp = random_resp(rng, 50, 3)
    params = model.global_step(suite.summary(model, batch, resp))
    x, p = batch.x[:, :D], batch.x[:, D:]
    for k in range(3):
        r = resp[:, k, None]
        v = prior["V"] + p.T @ (r * p)
        mean = (prior["M"] @ prior["V"] + x.T @ (r * p)) @ np.linalg.inv(v)
        scale = prior["B"] + x.T @ (r * x) + prior["M"] @ prior["V"] @ prior["M"].T - mean @ v @ mean.T
        assert_allclose(params.V[k], v)
        assert_allclose(params.M[k], mean, atol=1e-12)
        assert_allclose(params.B[k], scale, atol=1e-10)
        assert params.nu[k] == pytest.approx(6.0 + r.sum())


def test_far_from_the_origin_nothing_is_lost():
    rng = np.random.default_rng(1)
    x, offsets = with_previous(np.cumsum(rng.normal(size=(80, D)), axis=0) + 1e6, np.array([0, 80]))
    batch = Batch(x, groups=offsets)
    model = AutoRegressiveGaussian(nu=5.0, B=1.0, V=1.0).with_prior(survey_of(batch))
    suite = TestAutoRegressiveGaussian()
    params = model.global_step(suite.summary(model, batch, np.ones((79, 1))))
    assert params.whiten.all()
    by_features = replace(params, whiten=np.zeros(1, bool))
    errors = model.expected_log_lik(by_features, batch) - model.expected_log_lik(params, batch)
    assert np.abs(errors).max() < 1.0
    assert 0.5 < np.linalg.det(params.B[0] / params.nu[0]) < 2.0


def test_squares_that_rounding_left_below_zero_are_none():
    """Stochastic steps scale and subtract: an empty cluster keeps squares of -1e-20 or so."""
    rng = np.random.default_rng(3)
    batch = Batch(rng.normal(size=(20, 2 * D)))
    model = AutoRegressiveGaussian(nu=5.0, B=1.0, V=1.0).with_prior(survey_of(batch))
    full = TestAutoRegressiveGaussian().summary(model, batch, np.ones((20, 1)))
    empty = replace(full, values={name: np.full_like(value, -1e-20) for name, value in full.values.items()})
    params, prior = model.global_step(empty), model.global_step(full.zeros())
    for name in ("nu", "B", "M", "V"):
        assert_allclose(getattr(params, name), getattr(prior, name), rtol=1e-12, atol=1e-12)


def test_rows_of_sequences():
    x = np.arange(14.0).reshape(7, 2)
    rows, offsets = with_previous(x, np.array([0, 3, 3, 4, 7]))
    assert offsets.tolist() == [0, 2, 2, 2, 4]
    assert rows[:, 0].tolist() == [2, 4, 10, 12]
    assert_array_equal(rows[:, 0] - rows[:, 2], 2.0)
    batch = Batch(rows, groups=offsets)
    AutoRegressiveGaussian().check(batch)
    with pytest.raises(DataError, match="row 1 is not the first half of the row before; .*with_previous"):
        AutoRegressiveGaussian().check(Batch(rows[:, [0, 1, 0, 1]], groups=offsets))
    with pytest.raises(DataError, match="odd number"):
        AutoRegressiveGaussian().check(Batch(rows[:, :3]))
    with pytest.raises(DataError, match="odd number"):
        AutoRegressiveGaussian().with_prior(survey_of(Batch(rows[:, :3])))
    rows, offsets = with_previous(x, np.array([0, 3, 3, 4, 7]), 2)
    assert offsets.tolist() == [0, 1, 1, 1, 2]
    assert rows.tolist() == [[4, 5, 2, 3, 0, 1], [12, 13, 10, 11, 8, 9]]


@pytest.mark.parametrize("setting, text", [({"M": [1.0, 2.0]}, "M="), ({"V": -1.0}, "V in place"), ({"B": -1.0}, "B=")])
def test_bad_settings(setting, text):
    with pytest.raises(SettingError, match=text):
        AutoRegressiveGaussian(**setting).with_prior(survey_of(Batch(np.random.default_rng(0).normal(size=(9, 4)))))


@pytest.mark.parametrize("lags", [1, 2])
def test_the_density_of_a_step_is_the_t_distribution_of_the_regression(lags):
    """In three dimensions, for clusters of different sizes, about a prior that is not zero."""
    rng = np.random.default_rng(0)
    batch = Batch(rng.normal(size=(40, 3 * (1 + lags))) * 2.0 + 1.0)
    model = AutoRegressiveGaussian(nu=6.0, M=0.3, lags=lags).with_prior(survey_of(batch))
    resp = np.column_stack([np.arange(40) < 9, np.arange(40) >= 9]).astype(float)
    params = model.global_step(TestThreeLags().summary(model, batch, resp))
    found = model.log_predictive(params, batch)
    for k in range(2):
        df = params.nu[k] - 2.0
        for row, value in zip(batch.x[::7], found[::7, k], strict=True):
            x, p = row[:3], row[3:]
            shape = params.B[k] * (1.0 + p @ np.linalg.solve(params.V[k], p)) / df
            assert value == pytest.approx(stats.multivariate_t(params.M[k] @ p, shape, df=df).logpdf(x), rel=1e-9)
