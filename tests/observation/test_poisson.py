"""Poisson: the shipped suite, and scipy's Poisson and negative binomial."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse, stats

from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError
from bnp_dask.observation.poisson import Poisson
from bnp_dask.testing import ObservationSuite, random_resp, survey_of


class TestPoisson(ObservationSuite):
    def model(self):
        return Poisson()

    def batch(self, rng, n_atoms):
        return Batch(rng.poisson([0.2, 4.0, 40.0], (n_atoms, 3)).astype(float))

    def draw(self, params, k, rng):
        return rng.gamma(params.a[k], 1.0 / params.b[k])

    def log_density(self, phi, x):
        return stats.poisson.logpmf(x, phi).sum(axis=1)


class TestSparsePoisson(TestPoisson):
    def model(self):
        return Poisson(a=[0.5, 1.0, 2.0], b=0.25)

    def batch(self, rng, n_atoms):
        return Batch(sparse.csr_array(super().batch(rng, n_atoms).x))

    def log_density(self, phi, x):
        return super().log_density(phi, x.toarray())


def fitted(x, k=2):
    batch = Batch(x)
    model = Poisson().with_prior(survey_of(batch))
    summary = TestPoisson().summary(model, batch, random_resp(np.random.default_rng(1), batch.n_atoms, k))
    return model, batch, summary, model.global_step(summary)


def test_against_scipy():
    model, batch, _, params = fitted(TestPoisson().batch(np.random.default_rng(0), 30).x)
    mode = model.expected_log_lik(model.at_mode(params), batch)
    base = TestPoisson().log_base(model, batch)
    for k in range(2):
        rate = params.a[k] / params.b[k]
        assert_allclose(mode[:, k] + base, stats.poisson.logpmf(batch.x, rate).sum(axis=1))
        p = params.b[k] / (params.b[k] + 1)
        expected = stats.nbinom.logpmf(batch.x, params.a[k], p).sum(axis=1)
        assert_allclose(model.log_predictive(params, batch)[:, k], expected, rtol=1e-9)


def test_prior_expects_the_mean_of_the_data():
    batch = TestPoisson().batch(np.random.default_rng(0), 30)
    model = Poisson(a=3.0).with_prior(survey_of(batch))
    assert_allclose(model.a / model.b, batch.x.mean(axis=0))


def test_column_of_zeros_is_said_and_harmless():
    x = TestPoisson().batch(np.random.default_rng(0), 30).x
    x[:, 1] = 0
    with pytest.warns(UserWarning, match=r"1 column\(s\) hold only zeros \(first: \[1\]\)"):
        model, batch, _, params = fitted(x)
    for values in (model.expected_log_lik(params, batch), model.log_predictive(params, batch), model.kl(params)):
        assert np.isfinite(values).all()


def test_rows_of_zeros_are_observations():
    x = np.zeros((5, 2))
    x[0] = 3
    model, batch, _, params = fitted(x)
    model.check(batch)
    assert_allclose(model.log_predictive(params, batch)[1:], model.log_predictive(params, batch)[[1]].repeat(4, 0))


def test_huge_counts_are_finite():
    x = np.floor(np.random.default_rng(0).random((10, 3)) * 1e9)
    model, batch, _, params = fitted(x)
    for values in (model.expected_log_lik(params, batch), model.log_predictive(params, batch), model.kl(params)):
        assert np.isfinite(values).all()
    # a count far from what is expected costs what the negative binomial says
    p = params.b[0] / (params.b[0] + 1)
    assert_allclose(
        model.log_predictive(params, batch)[:, 0],
        stats.nbinom.logpmf(x, params.a[0], p).sum(axis=1),
        rtol=1e-5,
    )


def test_refuses_what_are_no_counts():
    batch = TestPoisson().batch(np.random.default_rng(0), 10)
    model = Poisson().with_prior(survey_of(batch))
    for value in (-1.0, 0.5, np.nan):
        x = batch.x.copy()
        x[3, 1] = value
        with pytest.raises(DataError, match=rf"row \(document\) 3, column \(word\) 1 is {value}"):
            model.check(Batch(x))


def test_dense_and_sparse_rows_are_the_same():
    model, batch, _, params = fitted(TestPoisson().batch(np.random.default_rng(0), 30).x)
    rows = Batch(sparse.csr_array(batch.x))
    assert_allclose(model.expected_log_lik(params, rows), model.expected_log_lik(params, batch))
    assert_allclose(model.log_predictive(params, rows), model.log_predictive(params, batch))
    ones = np.ones((30, 1))
    assert_array_equal(model.summarize(rows, ones)["log_base"], model.summarize(batch, ones)["log_base"])
