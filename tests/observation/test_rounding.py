"""Rounded data: the bound on the probability of cells, its exact conjugacy, and the grain that surveys find."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal, norm

from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import combine, grain_of, survey_batch
from bnp_dask.errors import SettingError
from bnp_dask.model import Model
from bnp_dask.observation import DiagGaussian, Gaussian, ZeroMeanGaussian

LIKELIHOODS = [Gaussian, ZeroMeanGaussian, DiagGaussian]


def surveyed(x, parts=1):
    return combine([survey_batch(Batch(part, None, f"b{i}")) for i, part in enumerate(np.array_split(x, parts))])


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_rounding_is_as_if_every_atom_stood_for_its_cell(kind):
    """Two atoms for each, at a standard deviation of the cell on either side, have its first two moments."""
    rng = np.random.default_rng(0)
    x, grain = np.round(rng.normal(scale=3.0, size=(40, 2))), np.array([1.0, 0.5])
    model = kind(grain=0.0).with_prior(surveyed(x))
    rounded = type(model)(**{**vars(model), "grain": grain})
    cell = grain / np.sqrt(12.0) * np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    spread = Batch((x[:, None, :] + cell).reshape(-1, 2), np.full(160, 0.25))
    whole = [Model(DPMixture(), o) for o in (rounded, model)]
    own = whole[0].summarize(np.arange(1), Batch(x), np.ones((40, 1)))
    apart = whole[1].summarize(np.arange(1), spread, np.full((160, 1), 0.25))
    ours, theirs = whole[0].observation_step(own), whole[1].observation_step(apart)
    assert_allclose(whole[0].data_terms(ours, own), whole[1].data_terms(theirs, apart), rtol=1e-12)
    each = rounded.expected_log_lik(ours, Batch(x))[:, 0]
    assert_allclose(each, model.expected_log_lik(theirs, spread)[:, 0].reshape(-1, 4).mean(axis=1), rtol=1e-9)
    assert_allclose(whole[0].best_data_terms(own), whole[0].data_terms(ours, own), rtol=1e-10)


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_the_log_likelihood_of_a_cell_is_a_lower_bound(kind):
    x = np.round(np.random.default_rng(1).normal(scale=1.5, size=(200, 2)))
    model = Model(DPMixture(), kind(), estimate="map").with_prior(surveyed(x))
    params = model.observation_step(model.summarize(np.arange(1), Batch(x), np.ones((200, 1))))
    bound = model.observation.expected_log_lik(params, Batch(x))[:, 0]
    nu, scale = params.nu[0], params.beta[0] if kind is DiagGaussian else params.B[0].diagonal()
    deviation = np.sqrt(scale / nu)
    mean = np.zeros(2) if kind is ZeroMeanGaussian else params.m[0]
    if kind is DiagGaussian:
        cells = norm.cdf(x + 0.5, mean, deviation) - norm.cdf(x - 0.5, mean, deviation)
        exact = np.log(cells).sum(axis=1)
    else:
        exact = _log_cells(x, mean, params.B[0] / nu)
    assert (bound <= exact + 1e-9).all()
    assert np.mean(exact - bound) < 0.2


def _log_cells(x, mean, covariance):
    corners = [(a, b) for a in (0.5, -0.5) for b in (0.5, -0.5)]
    signs = [1.0, -1.0, -1.0, 1.0]
    density = multivariate_normal(mean, covariance)
    return np.log(sum(s * density.cdf(x + np.array(c)) for s, c in zip(signs, corners, strict=True)))


GRIDS = {
    "integers": (lambda z: np.round(5 * z), 1.0),
    "tenths": (lambda z: np.round(z, 1), 0.1),
    "thirds_far_away": (lambda z: 1e6 + np.round(3 * z) / 3, 1 / 3),
    "single_precision": (lambda z: np.round(z + 20.0, 2).astype(np.float32).astype(float), 0.01),
    "even_numbers": (lambda z: 2 * np.round(5 * z), 2.0),
    "zero_and_one": (lambda z: (z > 0).astype(float), 1.0),
    "continuous": (lambda z: z, 0.0),
    "continuous_single": (lambda z: z.astype(np.float32).astype(float), 0.0),
    "exponential": (lambda z: np.exp(2 * z), 0.0),
    "mostly_zero": (lambda z: np.maximum(z - 1.0, 0.0), 0.0),
    "finer_than_matters": (lambda z: np.round(z, 5), 0.0),
    "constant": (lambda z: np.full_like(z, 3.0), 0.0),
}


@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize("name", GRIDS)
def test_surveys_find_the_grain_of_a_column(name, parts):
    make, expected = GRIDS[name]
    for seed in range(5):
        z = np.random.default_rng(seed).normal(size=(700, 1))
        assert_allclose(grain_of(surveyed(make(z), parts))[0], expected, rtol=1e-5, err_msg=f"seed {seed}")


def test_a_row_far_away_does_not_hide_the_grain():
    x = np.round(3 * np.random.default_rng(0).normal(size=(300, 1)))
    x[17] = 1e12 + 0.3
    assert_allclose(grain_of(surveyed(x)), 1.0, rtol=1e-9)


def test_numbers_whose_rounding_hides_any_step_have_no_grain():
    """Far from zero: float64 holds eighths there, and no finer step can be told from its rounding."""
    x = np.random.default_rng(0).normal(size=(200, 2)) + 1e15
    np.testing.assert_array_equal(grain_of(surveyed(x)), 0.0)


def test_few_distinct_rows_are_no_grid():
    for seed in range(20):
        x = np.random.default_rng(seed).normal(size=(7, 3))
        assert_allclose(grain_of(surveyed(x)), 0.0)


@pytest.mark.parametrize(("n_rows", "expected"), [(7, 0.0), (13, 0.0), (14, 1.0)])
def test_few_distinct_values_are_a_grid_once_they_occur_twice_on_average(n_rows, expected):
    x = np.resize([0.0, 1.0, 3.0, 4.0, 7.0, 9.0, 10.0], (n_rows, 1))
    assert_allclose(grain_of(surveyed(x)), expected)


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_a_grain_that_was_given_stays_and_nonsense_is_refused(kind):
    x = np.round(np.random.default_rng(0).normal(size=(100, 2)))
    assert kind(grain=0.25).with_prior(surveyed(x)).grain.tolist() == [0.25, 0.25]
    assert kind(grain=0.0).with_prior(surveyed(x)).grain.tolist() == [0.0, 0.0]
    for wrong in (-1.0, [1.0, 2.0, 3.0], np.nan):
        with pytest.raises(SettingError, match="grain"):
            kind(grain=wrong).with_prior(surveyed(x))
