"""Bernoulli: the shipped suite, and scipy's Bernoulli and beta-binomial."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse, stats

from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.observation.bernoulli import Bernoulli
from bnp_dask.testing import ObservationSuite, survey_of


class TestBernoulli(ObservationSuite):
    def model(self):
        return Bernoulli()

    def batch(self, rng, n_atoms):
        return Batch((rng.random((n_atoms, 4)) < [0.05, 0.4, 0.9, 1.0]).astype(float))

    def draw(self, params, k, rng):
        return rng.beta(params.lam1[k], params.lam0[k])

    def log_density(self, phi, x):
        return stats.bernoulli.logpmf(x, phi).sum(axis=1)


class TestSparseBernoulli(TestBernoulli):
    def model(self):
        return Bernoulli(lam1=[0.5, 1.0, 2.0, 3.0], lam0=1.5)

    def batch(self, rng, n_atoms):
        return Batch(sparse.csr_array(super().batch(rng, n_atoms).x))

    def log_density(self, phi, x):
        return super().log_density(phi, x.toarray())


def test_mode_and_predictive_are_bernoulli_with_the_posterior_mean():
    batch = TestBernoulli().batch(np.random.default_rng(0), 30)
    model = Bernoulli(lam1=2.0, lam0=3.0).with_prior(survey_of(batch))
    summary = TestBernoulli().summary(model, batch, np.ones((30, 1)))
    params = model.global_step(summary)
    phi = (2.0 + batch.x.sum(axis=0)) / (5.0 + 30)
    expected = stats.bernoulli.logpmf(batch.x, phi).sum(axis=1)
    assert_allclose(model.expected_log_lik(model.at_mode(params), batch)[:, 0], expected)
    assert_allclose(model.log_predictive(params, batch)[:, 0], expected)


@pytest.mark.parametrize("value", [2.0, -1.0, 0.5, np.inf])
@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_array])
def test_refuses_all_but_zeros_and_ones(value, layout):
    x = np.eye(4)
    model = Bernoulli().with_prior(survey_of(Batch(x)))
    x[2, 3] = value
    with pytest.raises(DataError, match=rf"row 2, column 3 is {value}.*zeros and ones"):
        model.check(Batch(layout(x)))


def test_refuses_impossible_priors():
    survey = survey_of(Batch(np.eye(4)))
    for setting in ({"lam1": 0.0}, {"lam0": -1.0}, {"lam1": np.nan}, {"lam1": [1.0, 2.0]}):
        with pytest.raises(SettingError, match=next(iter(setting))):
            Bernoulli(**setting).with_prior(survey)
