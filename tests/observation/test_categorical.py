"""Categorical: the shipped suite, counting by hand, and the sum over all levels."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.observation.categorical import Categorical
from bnp_dask.testing import ObservationSuite, survey_of

SHARES = ([0.7, 0.3], [0.1, 0.2, 0.7], [0.25, 0.25, 0.25, 0.25], [1.0])


class TestCategorical(ObservationSuite):
    def model(self):
        return Categorical()

    def batch(self, rng, n_atoms):
        return Batch(np.column_stack([rng.choice(len(p), n_atoms, p=p).astype(float) for p in SHARES]))

    def draw(self, params, k, rng):
        mass = np.split(rng.standard_gamma(params.lam[k]), np.cumsum([len(p) for p in SHARES])[:-1])
        return [own / own.sum() for own in mass]

    def log_density(self, phi, x):
        return np.sum([np.log(own[x[:, d].astype(int)]) for d, own in enumerate(phi)], axis=0)


def with_holes(seed=0):
    """A model that takes missing entries, and its parameters of three clusters of such rows."""
    suite, rng = TestCategorical(), np.random.default_rng(seed)
    x = suite.batch(rng, 40).x
    x[rng.random(x.shape) < 0.3] = np.nan
    x[2] = np.nan
    model = Categorical(missing="marginalise").with_prior(survey_batch(Batch(x), may_miss=True))
    model.check(Batch(x))
    return model, model.global_step(suite.summary(model, Batch(x), rng.dirichlet([0.5] * 3, 40)))


def test_statistics_and_predictive_are_counts_by_hand():
    batch = TestCategorical().batch(np.random.default_rng(0), 30)
    model = Categorical(lam=[0.5, 1.0, 2.0, 3.0]).with_prior(survey_of(batch))
    resp = np.random.default_rng(1).dirichlet([1.0, 1.0], 30)
    summary = TestCategorical().summary(model, batch, resp)
    params = model.global_step(summary)
    by_hand = np.zeros((30, 2))
    for k, d in itertools.product(range(2), range(4)):
        counts = [resp[batch.x[:, d] == level, k].sum() for level in range(len(SHARES[d]))]
        chance = (np.array(counts) + model.lam[d]) / (sum(counts) + model.lam[d] * len(counts))
        by_hand[:, k] += np.log(chance[batch.x[:, d].astype(int)])
    assert_allclose(model.log_predictive(params, batch), by_hand)
    assert_allclose(model.expected_log_lik(model.at_mode(params), batch), by_hand)
    assert_allclose(summary["x"].sum(axis=1), 4 * summary["N"])


def test_prior_counts_as_one_atom_in_each_column():
    model = Categorical().with_prior(survey_of(TestCategorical().batch(np.random.default_rng(0), 30)))
    assert_allclose(model.lam, [1 / 2, 1 / 3, 1 / 4, 1.0])


def test_two_levels_are_bernoulli():
    x = (np.random.default_rng(0).random((40, 3)) < 0.3).astype(float)
    data, resp = Batch(x), np.random.default_rng(1).dirichlet([0.5, 0.5, 0.5], 40)
    found = []
    for observation in (Categorical(), bnp.Bernoulli()):
        model = observation.with_prior(survey_of(data))
        summary = TestCategorical().summary(model, data, resp)
        params = model.global_step(summary)
        found.append([model.expected_log_lik(params, data).T, model.score(params, summary), model.kl(params)])
    for ours, theirs in zip(*found, strict=True):
        assert_allclose(ours, theirs, rtol=1e-10)


def test_predictive_of_a_missing_entry_sums_over_its_levels():
    model, params = with_holes()
    row = np.array([[0.0, np.nan, np.nan, 0.0]])
    full = np.array([[0.0, a, b, 0.0] for a in range(3) for b in range(4)])
    terms = model.log_predictive(params, Batch(full))
    assert_allclose(model.log_predictive(params, Batch(row))[0], np.log(np.exp(terms).sum(axis=0)))


def test_with_nothing_missing_all_numbers_are_the_same_bits():
    batch = TestCategorical().batch(np.random.default_rng(0), 30)
    resp = np.random.default_rng(1).dirichlet([1.0, 1.0], 30)
    found = []
    for missing in (None, "marginalise"):
        model = Categorical(missing=missing).with_prior(survey_batch(batch))
        summary = TestCategorical().summary(model, batch, resp)
        params = model.global_step(summary)
        found.append([summary["x"], model.expected_log_lik(params, batch), model.score(params, summary)])
    for one, other in zip(*found, strict=True):
        assert_array_equal(one, other)


def test_missing_levels_are_filled_with_the_most_probable():
    model, params = with_holes()
    row = Batch(np.array([[1.0, np.nan, np.nan, 0.0]]))
    filled = model.impute(params, row, np.array([[1.0, 0.0, 0.0]]))
    shares = np.split(params.lam[0], [2, 5, 9])
    assert_array_equal(filled, [[1.0, shares[1].argmax(), shares[2].argmax(), 0.0]])


def test_drawn_levels_are_as_frequent_as_the_posterior_mean_says():
    model, _, _, _, params = TestCategorical().fitted()
    x = model.draw(params, np.zeros(20_000, int), np.random.default_rng(0))
    shares = params.lam[0, 2:5] / params.lam[0, 2:5].sum()
    assert_allclose(np.bincount(x[:, 1].astype(int), minlength=3) / len(x), shares, atol=0.02)


@pytest.mark.parametrize("value", [-1.0, 0.5, 3.0, np.inf, np.nan])
def test_refuses_all_but_places_of_levels(value):
    batch = TestCategorical().batch(np.random.default_rng(0), 30)
    model = Categorical().with_prior(survey_of(batch))
    x = batch.x.copy()
    x[2, 1] = value
    with pytest.raises(DataError, match=rf"row 2, column 1 is {value}.*0 to 2"):
        model.check(Batch(x))


def test_refuses_impossible_settings():
    batch = TestCategorical().batch(np.random.default_rng(0), 30)
    for wrong in ({"lam": 0.0}, {"lam": [1.0, 2.0]}, {"levels": [(0, 1)]}):
        with pytest.raises(SettingError):
            Categorical(**wrong).with_prior(survey_of(batch))
    with pytest.raises(SettingError, match="marginalise"):
        Categorical(missing="drop")


def test_descriptions_name_columns_and_levels():
    model, _, _, _, params = TestCategorical().fitted()
    model = Categorical(model.lam, levels=[("no", "yes"), ("a", "b", "c"), range(4), ("x",)])
    text = model.describe(params, 0, ["spam", "size", "n", "one"])
    assert text.startswith("spam: ") and "no 0." in text and "one: x 1" in text
    axis = model.estimates(params, ["spam", "size", "n", "one"])["probability"].axes[0]
    assert axis.labels[:3] == ["spam=no", "spam=yes", "size=a"]
