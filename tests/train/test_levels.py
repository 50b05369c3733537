"""Mixed tables from end to end: training, stores, job files, estimators, and what is read of a posterior."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import bnp_dask as bnp
from bnp_dask.__main__ import main
from bnp_dask.errors import DataError

MODEL = bnp.Model(
    bnp.DPMixture(1.0), bnp.Product({"age": bnp.Gaussian(), "colour, spam": bnp.Categorical(), "n": bnp.Poisson()})
)
SETTINGS = {"schedule": bnp.Memoized(laps=4, tolerance=0.0), "init": bnp.RandomExamples(4), "batch_size": 40}


def people(n=120, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.integers(0, 3, n)
    colours = np.array(["red", "blue", "green"])[np.where(rng.random(n) < 0.9, z, rng.integers(0, 3, n))]
    return pd.DataFrame({"age": rng.normal(10.0 * z), "colour": colours, "spam": z == 2, "n": rng.poisson(3 + 5 * z)})


@pytest.fixture(scope="module")
def result():
    with pytest.warns(bnp.ConvergenceWarning):
        return bnp.train(MODEL, people(), **SETTINGS)


def shuffled():
    return people().sample(frac=1.0, random_state=1)[["spam", "n", "colour", "age"]]


def test_labels_do_not_depend_on_the_order_of_rows_columns_or_levels(result, tmp_path):
    posterior, labels = result.posterior, bnp.predict(result.posterior, people())
    assert_array_equal(labels, bnp.predict(posterior, shuffled())[np.argsort(shuffled().index)])
    reversed_levels = people().assign(colour=pd.Categorical(people()["colour"], categories=["red", "green", "blue"]))
    assert_array_equal(labels, bnp.predict(posterior, reversed_levels))
    assert_array_equal(labels, bnp.predict(posterior, dd.from_pandas(people(), npartitions=3)).compute())
    posterior.save(tmp_path / "p.zarr")
    loaded = bnp.load(tmp_path / "p.zarr")
    assert loaded.columns == posterior.columns and loaded.model.observation == posterior.model.observation
    assert_array_equal(labels, bnp.predict(loaded, people()))
    text = str(bnp.inspect(loaded))
    assert "colour: " in str(text) and "green 0." in str(text)


def test_a_resumed_run_is_the_same_run(result, tmp_path):
    short = SETTINGS | {"schedule": bnp.Memoized(laps=2, tolerance=0.0)}
    with pytest.warns(bnp.ConvergenceWarning):
        bnp.train(MODEL, people(), store=tmp_path / "run", **short)
    with pytest.warns(bnp.ConvergenceWarning):
        found = bnp.train(
            MODEL, people()[["n", "spam", "age", "colour"]], store=tmp_path / "run", resume=True, **SETTINGS
        )
    assert found.history[-1]["elbo"] == result.history[-1]["elbo"]
    with pytest.raises(DataError, match="'colour' is 'grey'"):
        bnp.train(MODEL, people().replace("red", "grey"), store=tmp_path / "run", resume=True, **SETTINGS)


def test_drawn_rows_are_rows_of_the_table(result):
    drawn = bnp.sample(result.posterior, 20)
    assert list(drawn.x.columns) == list(people().columns)
    assert set(drawn.x["colour"]) <= {"red", "green", "blue"}
    assert bnp.score(result.posterior, drawn.x) > -20


@pytest.mark.first_case
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_job_files_train_on_mixed_tables(suffix, tmp_path):
    data = tmp_path / f"people.{suffix}"
    people().to_parquet(data) if suffix == "parquet" else people().to_csv(data, index=False)
    (tmp_path / "run.yaml").write_text(
        f"""
data: {{path: {data}, batch_size: 40}}
model:
  allocation: {{type: DPMixture, gamma: 1.0}}
  observation:
    type: Product
    others: ignore
    groups:
      age: Gaussian
      "colour, spam": {{type: Categorical}}
init: {{type: RandomExamples, n_clusters: 4}}
schedule: {{type: Memoized, laps: 30, tolerance: 1.0}}
store: {tmp_path / "run"}
"""
    )
    assert main(["train", str(tmp_path / "run.yaml"), "--quiet"]) in (0, None)
    posterior = bnp.load(tmp_path / "run" / "posterior.zarr")
    assert posterior.columns.names == ("age", "colour", "spam")
    assert posterior.columns.coded == {"colour": ("blue", "green", "red"), "spam": (False, True)}
    assert len(bnp.predict(posterior, people())) == 120


def test_a_proposal_is_code_that_makes_it():
    table = people().assign(who=[f"p{i}" for i in range(120)], one=1, stars=np.arange(120) % 5 + 1)
    table.loc[3, "colour"] = None
    with pytest.warns(UserWarning, match=r"'who' \(120 distinct texts\), 'one' \(always 1\)"):
        found = bnp.Product.of(table, n=bnp.Gaussian())
    colours = "\"colour, spam, stars\": Categorical(missing='marginalise')"
    assert repr(found) == f'Product({{"age": Gaussian(), {colours}, "n": Gaussian()}}, others="ignore")'
    assert eval(repr(found), vars(bnp) | {n: getattr(bnp, n) for n in ("Product", "Gaussian", "Categorical")}) == found
    with pytest.warns(bnp.ConvergenceWarning):
        result = bnp.train(bnp.Model(bnp.DPMixture(1.0), found), table, **SETTINGS)
    assert result.posterior.columns.names == ("age", "colour", "spam", "stars", "n")
    filled = bnp.impute(result.posterior, table)
    assert filled["colour"].notna().all() and (filled["colour"].drop(3) == table["colour"].drop(3)).all()


def test_proposals_for_columns_that_cannot_be():
    with pytest.raises(DataError, match=r"no column.*'a' \(always 1\)"):
        bnp.Product.of(pd.DataFrame({"a": [1, 1]}))
    with pytest.raises(bnp.BnpDaskError, match="no column 'agee'.*'age'"):
        bnp.Product.of(people(), agee=bnp.Gaussian())


def test_the_estimator_takes_a_mixed_frame():
    table = people().assign(who=[f"p{i}" for i in range(120)])
    with pytest.warns(UserWarning, match="'who'"):
        observation = bnp.Product.of(table)
    found = bnp.DirichletProcessMixture(observation, n_clusters=4, tol=1.0, random_state=0).fit(table)
    assert_array_equal(found.predict(table), found.labels_)
    assert list(found.feature_names_in_) == [*people().columns, "who"]


def test_states_of_levels_are_found():
    rng = np.random.default_rng(0)
    states = np.repeat([0, 1, 0, 1], 30)
    table = pd.DataFrame({"word": np.where(rng.random(120) < 0.9, np.array(["low", "high"])[states], "mid")})
    model = bnp.Model(bnp.FiniteHMM(), bnp.Categorical())
    result = bnp.train(model, [table[:60], table[60:]], init=bnp.ContiguousBlocks(2), schedule=bnp.Memoized(laps=30))
    labels = bnp.predict(result.posterior, [table[:60], table[60:]])
    assert max(np.mean(labels == states), np.mean(labels != states)) > 0.95
