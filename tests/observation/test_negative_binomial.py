"""NegativeBinomial: the shipped suite, and scipy's negative binomial."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse, stats

from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import SettingError
from bnp_dask.observation.negative_binomial import NegativeBinomial
from bnp_dask.observation.poisson import Poisson
from bnp_dask.testing import ObservationSuite, random_resp, survey_of

SIZES = np.array([0.5, 3.0, 8.0])


class TestNegativeBinomial(ObservationSuite):
    def model(self):
        return NegativeBinomial(size=SIZES)

    def batch(self, rng, n_atoms):
        return Batch(rng.poisson([0.2, 4.0, 40.0], (n_atoms, 3)).astype(float))

    def draw(self, params, k, rng):
        return rng.beta(params.a[k], params.b[k])

    def log_density(self, p, x):
        return stats.nbinom.logpmf(x, SIZES, 1.0 - p).sum(axis=1)


class TestSparseNegativeBinomial(TestNegativeBinomial):
    def model(self):
        return NegativeBinomial(size=SIZES, a=[0.5, 1.0, 2.0], b=3.0)

    def batch(self, rng, n_atoms):
        return Batch(sparse.csr_array(super().batch(rng, n_atoms).x))

    def log_density(self, p, x):
        return super().log_density(p, x.toarray())


def fitted(model, x, k=2):
    batch = Batch(x)
    model = model.with_prior(survey_of(batch))
    summary = TestNegativeBinomial().summary(model, batch, random_resp(np.random.default_rng(1), batch.n_atoms, k))
    return model, batch, summary, model.global_step(summary)


def test_the_prior_expects_the_mean_of_the_data():
    x = TestNegativeBinomial().batch(np.random.default_rng(0), 30).x
    model, *_ = fitted(NegativeBinomial(size=2.0, a=3.0), x)
    assert_allclose(model.size * model.a / (model.b - 1.0), x.mean(axis=0))


def test_a_b_of_one_or_less_has_no_mean_and_is_refused():
    with pytest.raises(SettingError, match="needs numbers above 1"):
        fitted(NegativeBinomial(b=1.0), np.ones((4, 2)))


@pytest.mark.parametrize("size", [0.5, 2.0, 8.0])
def test_the_size_is_found_in_counts_of_two_clusters(size):
    rng = np.random.default_rng(3)
    mean = np.repeat([3.0, 60.0], 2000)
    x = rng.negative_binomial(size, size / (size + mean)).astype(float)
    model = NegativeBinomial().with_prior(survey_batch(Batch(x[:, None])))
    assert size / 2 <= model.size[0] <= size * 2


def test_with_a_great_size_it_is_a_poisson():
    x = np.random.default_rng(0).poisson(3.0, (40, 2)).astype(float)
    great, batch, _, params = fitted(NegativeBinomial(size=1e7), x)
    plain, _, _, rates = fitted(Poisson(), x)
    assert_allclose(great.log_predictive(params, batch), plain.log_predictive(rates, batch), rtol=1e-4)
    assert_allclose(params.rate, rates.a / rates.b, rtol=1e-5)


def test_draws_have_the_predictive_mean():
    rng = np.random.default_rng(0)
    model, _, _, params = fitted(NegativeBinomial(size=3.0), rng.poisson(5.0, (400, 2)).astype(float))
    drawn = model.draw(params, np.zeros(20_000, int), rng)
    assert_allclose(drawn.mean(axis=0), params.rate[0], rtol=0.05)


def test_drawn_parameters_are_those_of_their_estimates():
    model, _, _, params = fitted(NegativeBinomial(size=3.0), np.random.default_rng(0).poisson(5.0, (40, 2)) * 1.0)
    drawn = model.at_draw(params, np.random.default_rng(1))
    assert_allclose(drawn.log_p, np.log(drawn.a))
    assert_allclose(drawn.rate, 3.0 * drawn.a / drawn.b)
    assert_array_equal(drawn.a, model.at_draw(params, np.random.default_rng(1)).a)


def test_the_density_is_that_of_the_mixture_over_the_odds_with_entries_missing_or_not():
    """By quadrature over p in each of three columns, with a size of its own."""
    rng = np.random.default_rng(0)
    x = rng.poisson([2.0, 9.0, 0.5], (30, 3)).astype(float)
    size = np.array([1.5, 4.0, 0.7])
    model, _, _, params = fitted(NegativeBinomial(size=size, missing="marginalise"), x)
    rows = np.array([[0.0, 3.0, 1.0], [5.0, 0.0, 0.0], [2.0, np.nan, 4.0], [np.nan, 11.0, np.nan]])
    found = model.log_predictive(params, Batch(rows))
    nodes, weights = np.polynomial.legendre.leggauss(500)
    p = 0.5 * (nodes + 1.0)
    for k in range(len(params.a)):
        beta = stats.beta.pdf(p[:, None], params.a[k], params.b[k])
        count = stats.nbinom.pmf(np.nan_to_num(rows)[:, None], size, 1.0 - p[:, None])
        each = np.log(0.5 * np.einsum("p,npd->nd", weights, count * beta))
        assert_allclose(found[:, k], np.where(np.isnan(rows), 0.0, each).sum(axis=1), rtol=1e-7)
