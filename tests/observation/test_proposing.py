"""Likelihoods proposed for columns of whole numbers."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import bnp_dask as bnp
from bnp_dask.observation.negative_binomial import dispersion_of

N = 400


def columns():
    rng = np.random.default_rng(1)
    kind = rng.integers(0, 3, N)
    of = lambda *each: np.array(each)[kind]  # noqa: E731
    return {
        "calls": ("Poisson", rng.poisson(of(1.0, 20.0, 20.0))),
        "visits": ("Poisson", rng.poisson(of(2.0, 8.0, 40.0))),
        "children": ("Poisson", rng.poisson(1.2, N)),
        "inflated": ("Poisson", np.where(rng.random(N) < 0.5, 0, rng.poisson(5, N))),
        "claims": ("NegativeBinomial", rng.negative_binomial(1.5, 1.5 / (1.5 + of(2.0, 8.0, 8.0)))),
        "downloads": ("NegativeBinomial", rng.negative_binomial(0.7, 0.1, N)),
        "age": ("Gaussian", rng.normal(40, 12, N).round().clip(18)),
        "income": ("Gaussian", rng.lognormal(4.8, 0.6, N).round()),
        "pulse": ("Gaussian", rng.normal(75, 11, N).round()),
        "flipper": ("Gaussian", rng.normal(of(190.0, 217.0, 195.0), 6.0).round()),
        "correct": ("Gaussian", rng.binomial(16, of(0.05, 0.5, 0.9))),
        "balance": ("Gaussian", rng.normal(0, 40, N).round()),
        "duration": ("Categorical", rng.choice([12, 24, 36, 48, 60], N)),
        "answer": ("Categorical", rng.integers(1, 6, N)),
    }


def whole(name):
    return pd.DataFrame({name: columns()[name][1].astype(np.int64)})


@pytest.mark.parametrize("name", columns())
def test_whole_numbers_get_the_likelihood_of_their_kind(name):
    ((_, kind, _),) = bnp.Product.choices(whole(name)).rows
    assert kind == columns()[name][0] + "()"


def test_the_choices_are_one_table_and_those_that_are_made():
    table = pd.DataFrame({name: values.astype(np.int64) for name, (_, values) in columns().items()})
    table = table[["age", "claims", "duration"]].assign(spent=np.exp(np.linspace(-6, 6, N)), one=1)
    found = bnp.Product.choices(table, age=bnp.DiagGaussian())
    lines = repr(found).splitlines()
    assert [line.split()[0] for line in lines] == ["column", "age", "claims", "duration", "spent", "one"]
    assert lines[1].split() == ["age", "DiagGaussian()", "given"]
    assert lines[4].endswith("Gaussian()          fractions; a long tail: consider np.log")
    assert lines[5].endswith("left out            always 1")
    with pytest.warns(UserWarning, match="columns are left out: 'one'"):
        made = bnp.Product.of(table, age=bnp.DiagGaussian())
    parts = {"spent": bnp.Gaussian(), "claims": bnp.NegativeBinomial(), "duration": bnp.Categorical()}
    assert made == bnp.Product({**parts, "age": bnp.DiagGaussian()}, others="ignore")


def test_missing_entries_leave_the_choice_as_it_is():
    table = whole("claims").astype(float)
    table.loc[3, "claims"] = np.nan
    assert bnp.Product.of(table) == bnp.Product({"claims": bnp.NegativeBinomial(missing="marginalise")})


def test_criteria_of_one_component_are_those_of_scipy():
    values, weights = np.array([0.0, 1.0, 2.0]), np.array([5.0, 3.0, 1.0])
    mean = values @ weights / 9.0
    found = dispersion_of(values, weights)
    assert_allclose(found.poisson, np.log(9.0) - 2 * weights @ stats.poisson.logpmf(values, mean))
    tried = 0.25 * 2.0 ** np.arange(10)
    best = [2 * np.log(9.0) - 2 * weights @ stats.nbinom.logpmf(values, r, r / (r + mean)) for r in tried]
    assert_allclose(found.negative_binomial, min(best))


def test_measurements_in_whole_numbers_do_not_become_many_clusters():
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 2, 300)
    table = pd.DataFrame(
        {
            "pulse": rng.normal(np.array([60.0, 90.0])[kind], 5.0).round().astype(int),
            "claims": rng.negative_binomial(2.0, 2.0 / (2.0 + np.array([2.0, 30.0])[kind])),
        }
    )
    found = bnp.DirichletProcessMixture("auto", random_state=0).fit(table)
    assert found.n_clusters_ == 2
    assert np.mean(found.labels_ == (kind if found.labels_[0] == kind[0] else 1 - kind)) > 0.97
