"""Likelihoods proposed for columns of whole numbers."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import bnp_dask as bnp
from bnp_dask.errors import DataError
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


def chosen(**columns):
    return {name: (kind, why) for name, kind, why in bnp.Product.choices(pd.DataFrame(columns)).rows}


def test_whole_numbers_without_ties_are_names_of_rows_only_if_they_are_dense():
    rng = np.random.default_rng(0)
    found = chosen(
        year=np.arange(1950, 2000),
        rank=rng.permutation(50) + 1,
        district=rng.choice(np.arange(61_000, 61_300), 50, replace=False),
        customer_id=rng.choice(10**7, 50, replace=False),
        votes=np.exp(rng.normal(11.0, 1.0, 50)).astype(int),
    )
    assert [name for name, (kind, _) in found.items() if not kind] == ["year", "rank", "district", "customer_id"]
    assert found["votes"][0] == "Gaussian()"


def test_few_numbers_are_levels_however_they_are_written():
    rng = np.random.default_rng(0)
    found = chosen(
        answer=np.minimum(rng.geometric(0.5, N), 6),  # its variance is above its mean, as that of counts
        flag=rng.choice([0.97, 1.03], N),
        price=rng.choice([0.0678, 0.0914, 0.1301, 0.2], N),
        weight=rng.normal(size=N),
    )
    assert [kind for kind, _ in found.values()] == ["Categorical()"] * 3 + ["Gaussian()"]
    # of few rows the same could be measurements
    assert chosen(dose=[0.5, 1.0, 2.0] * 4)["dose"][0] == "Gaussian()"


def test_texts_that_mostly_occur_once_are_names_of_rows():
    found = chosen(street=[f"no. {i % 50}" for i in range(60)], town=[f"t{i % 25}" for i in range(60)])
    assert found == {"street": ("", "50 distinct texts in 60 rows"), "town": ("Categorical()", "25 levels")}


@pytest.mark.parametrize(
    "cells", [["<25", "25-29", "30-35", ">35"], ["4", "6", "8", "rotary"]], ids=["ranges", "numbers and a word"]
)
def test_texts_of_which_some_are_numbers_are_levels_if_they_come_again(cells):
    table = pd.DataFrame({"x": np.arange(80) % 7 + 0.5 + np.arange(80) / 100, "kind": cells * 20})
    assert bnp.Product.of(table) == bnp.Product({"x": bnp.Gaussian(), "kind": bnp.Categorical()})
    found = bnp.DirichletProcessMixture("auto", random_state=0).fit(table)
    assert found.posterior_.columns.coded["kind"] == tuple(sorted(cells))
    # a few dirty cells among many numbers are an error that names one of them
    table["kind"] = [str(i) for i in range(79)] + ["<5"]
    with pytest.raises(DataError, match=r"row 79, column 'kind' is '<5', which is no number.*Categorical\(\)"):
        bnp.Product.of(table)


def test_a_likelihood_is_advised_only_for_columns_that_can_have_one():
    table = pd.DataFrame({"v": np.random.default_rng(0).normal(size=40), "one": 1})
    table = table.assign(when=pd.date_range("2024", periods=40), none=np.nan, vector=[np.ones(3)] * 40)
    with pytest.warns(UserWarning, match="columns are left out") as told:
        bnp.Product.of(table)
    (line,) = [str(each.message) for each in told]
    assert "give one a likelihood" not in line
    assert "'vector' (ndarrays; those of numbers are features of one Gaussian() for them alone)" in line
    with pytest.warns(UserWarning, match=r"Product.of\(table, name=Categorical\(\)\)"):
        bnp.Product.of(table.assign(name=[f"n{i}" for i in range(40)]))


@pytest.mark.parametrize("values", [[1.0, np.inf, 2.0], [0.5, -np.inf, 0.25], [1.0, np.inf]])
def test_infinite_numbers_are_no_levels(values):
    """Levels would take them silently; a Gaussian says in which row they are."""
    table = pd.DataFrame({"a": values * 20})
    ((_, kind, why),) = bnp.Product.choices(table).rows
    assert (kind, why) == ("Gaussian()", "infinite numbers")
    with pytest.raises(DataError, match="row 1, column 'a' is -?inf"):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.Product.of(table)), table)
