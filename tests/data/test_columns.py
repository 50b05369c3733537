"""Columns have names: every kind of table is held against the columns that a model was trained on."""

from __future__ import annotations

import json
import re
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import bnp_dask as bnp
from bnp_dask.analysis.score import score_samples
from bnp_dask.core.columns import Columns, Cutting, Roles
from bnp_dask.data.base import columns_of
from bnp_dask.data.view import OrderedSource
from bnp_dask.errors import DataError, SettingError, StoreError
from tests.data.reading import rows

pd = pytest.importorskip("pandas")

# runs of a few laps stop at their limit
pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")

WAYS = ("pandas", "arrow", "parquet", "csv", "tsv", "dask", "zarr", "source", "list")
"""Tables with names, in memory and on disk."""


def people(n: int = 300) -> pd.DataFrame:
    """Two kinds of people: age and visits, whose scales differ, and a column of whole weights."""
    rng = np.random.default_rng(0)
    old = np.arange(n) % 2
    age = rng.normal(30.0 + 30.0 * old, 3.0)
    return pd.DataFrame({"age": age, "visits": rng.poisson(2.0 + 8.0 * old), "w": rng.integers(1, 4, n)})


def given_as(way: str, frame: pd.DataFrame, tmp_path):
    """The frame as another kind of table."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    if way in ("parquet", "zarr", "source"):
        pq.write_table(table, tmp_path / "t.parquet", row_group_size=100)
    if way in ("csv", "tsv"):
        sep = "," if way == "csv" else "\t"
        pyarrow.csv.write_csv(table, tmp_path / f"t.{way}", pyarrow.csv.WriteOptions(delimiter=sep))
    match way:
        case "pandas":
            return frame
        case "arrow":
            return table
        case "parquet" | "csv" | "tsv":
            return tmp_path / f"t.{way}"
        case "dask":
            return pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=3, sort=False)
        case "zarr":
            bnp.ingest(tmp_path / "t.parquet", tmp_path / "t.zarr", batch_size=100, overwrite=True)
            return tmp_path / "t.zarr"
        case "source":
            return bnp.as_source(tmp_path / "t.parquet")
        case _:
            return [frame.iloc[:100], frame.iloc[100:]]


def trained(data, observation=None, laps=3, **settings):
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian() if observation is None else observation)
    init = settings.pop("init", bnp.BregmanKMeans(2))
    return bnp.train(model, data, init=init, schedule=bnp.Memoized(laps=laps), moves=(), **settings)


@pytest.fixture(scope="module")
def posterior():
    return trained(people()[["age", "visits"]]).posterior


# -- predict and score ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", WAYS)
def test_swapped_columns_are_put_in_order(way, posterior, tmp_path):
    frame = people()[["age", "visits"]]
    expected = bnp.score(posterior, frame)
    wrong = bnp.score(posterior, frame[["visits", "age"]].to_numpy())
    swapped = frame[["visits", "age"]]
    assert wrong < expected - 5
    assert bnp.score(posterior, given_as(way, swapped, tmp_path)) == pytest.approx(expected, rel=1e-12)
    labels = bnp.predict(posterior, given_as(way, swapped, tmp_path))
    np.testing.assert_array_equal(np.asarray(labels), bnp.predict(posterior, frame))


@pytest.mark.parametrize("way", WAYS)
def test_a_column_that_is_missing_is_named(way, posterior, tmp_path):
    frame = people()[["age", "visits"]]
    for change, message in (
        (frame.rename(columns={"visits": "visit"}), "no column 'visits'.*trained on 'age', 'visits'.*nearest.*'visit'"),
        (frame[["visits"]].assign(ages=1.0), "no column 'age'.*nearest.*'ages'"),
    ):
        with pytest.raises(DataError, match=message):
            np.asarray(bnp.predict(posterior, given_as(way, change, tmp_path)))


@pytest.mark.parametrize("way", WAYS)
def test_more_columns_than_in_training_are_left_out_with_a_line(way, posterior, tmp_path):
    """The named ones are taken in their order; training and updates refuse others."""
    frame = people()[["age", "visits"]]
    data = given_as(way, frame.assign(ages=1.0)[["ages", "visits", "age"]], tmp_path)
    for verb in (bnp.predict, bnp.score):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = verb(posterior, data)
        assert [str(w.message).partition(": ")[2] for w in said] == [
            "column(s) 'ages' were not in training and are left out; the model was trained on 'age', 'visits'"
        ]
        np.testing.assert_allclose(np.asarray(found), verb(posterior, frame), rtol=1e-12)
    assert not posterior.columns.ignores_extra


def test_data_without_names_are_taken_as_they_lie(posterior, tmp_path):
    x = people()[["age", "visits"]].to_numpy()
    np.save(tmp_path / "x.npy", x)
    np.savetxt(tmp_path / "x.csv", x, delimiter=",")
    expected = bnp.score(posterior, x)
    for data in (x, tmp_path / "x.npy", tmp_path / "x.csv", pd.DataFrame(x), [x[:100], x[100:]]):
        assert bnp.score(posterior, data) == pytest.approx(expected, rel=1e-12)
    for data in (x[:, :1], pd.DataFrame(x[:, :1])):
        with pytest.raises(DataError, match=r"1 columns.*age, visits|1 columns.*'age', 'visits'"):
            bnp.score(posterior, data)


def test_labels_that_are_numbers_are_names_too():
    x = people()[["age", "visits"]].to_numpy()
    posterior = trained(pd.DataFrame(x)).posterior
    expected = bnp.score(posterior, x)
    assert bnp.score(posterior, pd.DataFrame(x)[[1, 0]]) == expected
    assert bnp.score(posterior, people()[["age", "visits"]]) == expected  # names that say nothing about 0 and 1
    assert "mean (" in str(bnp.inspect(posterior)) and "column" not in str(bnp.inspect(posterior))


def test_columns_that_were_chosen_are_found_among_others(tmp_path):
    frame = people().assign(label="a", noise=np.nan)
    posterior = trained(bnp.as_source(frame, columns=["visits", "age"])).posterior
    assert posterior.columns.names == ("visits", "age") and posterior.columns.chosen
    for way in ("pandas", "arrow", "parquet", "csv"):
        found = bnp.score(posterior, given_as(way, frame, tmp_path))  # and no warning about what is left out
        assert found == pytest.approx(bnp.score(posterior, frame[["visits", "age"]].to_numpy()), rel=1e-12)
    # or chosen where they are read
    plain = trained(people()[["age", "visits"]]).posterior
    source = bnp.as_source(frame, columns=["visits", "age"])
    assert bnp.score(plain, source) == bnp.score(plain, frame[["age", "visits"]])


def test_weights_are_no_feature_and_weigh_the_score():
    frame = people()
    posterior = trained(frame, weights="w").posterior
    assert posterior.columns.names == ("age", "visits") and posterior.columns.roles == Roles("w")
    each = score_samples(posterior, frame[["visits", "w", "age"]])
    assert bnp.score(posterior, frame) == pytest.approx(np.average(each, weights=frame.w), rel=1e-12)
    np.testing.assert_array_equal(bnp.predict(posterior, frame), bnp.predict(posterior, frame[["age", "visits"]]))
    with pytest.raises(DataError, match=r"no column 'w' for the weights of rows.*as_source"):
        bnp.score(posterior, frame[["age", "visits"]])
    unweighted = bnp.as_source(frame[["age", "visits"]])
    assert bnp.score(posterior, unweighted) == pytest.approx(each.mean(), rel=1e-12)


def test_dask_frames_stay_lazy_and_are_put_in_order(posterior):
    dd = pytest.importorskip("dask.dataframe")
    frame = people()[["visits", "age"]]
    lazy = bnp.predict(posterior, dd.from_pandas(frame, npartitions=2), soft=True)
    assert type(lazy).__module__.startswith("dask")
    np.testing.assert_array_equal(lazy.compute(), bnp.predict(posterior, frame, soft=True))


# -- sequences and groups ---------------------------------------------------------------------------------------
def recording() -> pd.DataFrame:
    """Two recordings of two phases; the second has a gap."""
    rng = np.random.default_rng(1)
    phase = np.tile(np.repeat([0, 1], 30), 2)
    step = np.concatenate([np.arange(60), np.arange(60) + (np.arange(60) >= 40) * 7])
    frame = pd.DataFrame(
        {"rec": np.repeat([3, 8], 60), "t": step, "x": rng.normal(9.0 * phase), "y": rng.normal(-phase)}
    )
    return frame.assign(weight=np.repeat([1.0, 2.0], 60))


@pytest.mark.parametrize("way", ["pandas", "arrow", "parquet", "csv", "dask"])
@pytest.mark.parametrize("observation", [bnp.Gaussian(), bnp.Product({"x": bnp.Gaussian(), "y": bnp.DiagGaussian()})])
def test_sequences_are_read_as_they_were_in_training(way, observation, tmp_path):
    frame = recording()[["x", "t", "y", "rec"]]
    source = bnp.as_source(frame, groups="rec", order="t", gaps="cut")
    model = bnp.Model(bnp.FiniteHMM(kappa=10.0), observation)
    result = bnp.train(model, source, init=bnp.ContiguousBlocks(2), schedule=bnp.Memoized(laps=3))
    columns = result.posterior.columns
    assert columns.names == ("x", "y")
    assert columns.roles == Roles(None, "rec", "t", Cutting(None, "cut", None))
    expected = bnp.predict(result.posterior, source)
    other = given_as(way, frame[["rec", "y", "x", "t"]], tmp_path)
    if way == "dask":
        other = other.repartition(divisions=(0, 60, 119))
    np.testing.assert_array_equal(bnp.predict(result.posterior, other), expected)
    assert bnp.score(result.posterior, other) == pytest.approx(bnp.score(result.posterior, source), rel=1e-12)
    survey = bnp.survey_sequences(result.posterior, other)
    assert (survey.n_sequences, survey.n_steps) == (3, 120)
    with pytest.raises(DataError, match=r"no column 'rec' for the groups of rows"):
        bnp.predict(result.posterior, frame[["x", "y", "t"]])


def test_groups_of_topic_models_are_read_as_they_were_in_training():
    frame = recording()[["x", "y", "rec"]]
    model = bnp.Model(bnp.LDA(), bnp.DiagGaussian())
    source = bnp.as_source(frame, groups="rec")
    posterior = bnp.train(model, source, init=bnp.RandomExamples(2), schedule=bnp.Memoized(laps=2)).posterior
    swapped = frame[["rec", "y", "x"]]
    np.testing.assert_array_equal(bnp.predict(posterior, swapped), bnp.predict(posterior, source))
    assert bnp.predict(posterior, swapped, soft=True).shape == (2, 2)
    assert bnp.score(posterior, swapped) == bnp.score(posterior, source)


def test_a_mixture_needs_no_groups():
    frame = recording()
    source = bnp.as_source(frame[["x", "y", "rec"]], groups="rec")
    posterior = trained(source).posterior
    shuffled = frame.sample(frac=1.0, random_state=0)
    for data in (shuffled[["rec", "y", "x"]], shuffled[["y", "x"]]):
        np.testing.assert_array_equal(
            bnp.predict(posterior, data), bnp.predict(posterior, shuffled[["x", "y"]].to_numpy())
        )


def test_a_list_of_frames_is_a_list_of_sequences():
    frame = recording()
    parts = [frame.iloc[:60][["x", "y"]], frame.iloc[60:][["y", "x"]]]
    source = bnp.as_source(parts)
    assert source.n_groups == 2 and columns_of(source).names == ("x", "y")
    np.testing.assert_array_equal(rows(source), frame[["x", "y"]].to_numpy())
    with pytest.raises(DataError, match="group 1: column 'x'"):
        bnp.as_source([parts[0], parts[1].rename(columns={"x": "z"})])
    with pytest.raises(DataError, match="leave out groups="):
        bnp.as_source(parts, groups=[0, 60, 120])


# -- stores and runs ----------------------------------------------------------------------------------------------
def test_a_posterior_keeps_its_columns_in_files(tmp_path):
    posterior = trained(people(), weights="w").posterior
    posterior.save(tmp_path / "p.zarr")
    back = bnp.load(tmp_path / "p.zarr")
    assert back.columns == posterior.columns and back.feature_names == ("age", "visits")
    assert bnp.score(back, people()[["w", "visits", "age"]]) == bnp.score(posterior, people())
    assert posterior.light().columns is None


def test_posteriors_without_names_are_written_as_before(tmp_path):
    posterior = trained(people()[["age", "visits"]].to_numpy()).posterior
    assert posterior.columns is None
    posterior.save(tmp_path / "p.zarr")
    root = json.loads((tmp_path / "p.zarr" / "zarr.json").read_text())
    assert "columns" not in root["attributes"]["bnp_dask"]["spec"]["fields"]
    assert bnp.score(bnp.load(tmp_path / "p.zarr"), people()[["age", "visits"]]) == pytest.approx(
        bnp.score(posterior, people()[["age", "visits"]].to_numpy())
    )


def test_ingest_keeps_names_groups_and_order(tmp_path):
    frame = recording().sample(frac=1.0, random_state=0)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pq.write_table(table, tmp_path / "t.parquet")
    pyarrow.csv.write_csv(table, tmp_path / "t.csv")
    settings = {"group_column": "rec", "order_column": "t", "gaps": "cut", "weights": "weight", "columns": ["y", "x"]}
    for name in ("t.parquet", "t.csv"):
        bnp.ingest(tmp_path / name, tmp_path / f"{name}.zarr", **settings)
        bnp.ingest(tmp_path / f"{name}.zarr", tmp_path / f"{name}.2.zarr", batch_size=70)
        for store in (f"{name}.zarr", f"{name}.2.zarr"):
            columns = columns_of(bnp.as_source(tmp_path / store))
            assert columns.names == ("y", "x") and columns.kinds == ("float64", "float64")
            assert columns.roles == Roles("weight", "rec", "t", Cutting(None, "cut", None))
    # a model that was trained on the store reads the table
    model = bnp.Model(bnp.FiniteHMM(kappa=10.0), bnp.Gaussian())
    result = bnp.train(model, tmp_path / "t.parquet.zarr", init=bnp.ContiguousBlocks(2), schedule=bnp.Memoized(laps=2))
    ordered = frame.sort_values(["rec", "t"])
    np.testing.assert_array_equal(
        bnp.predict(result.posterior, ordered),
        bnp.predict(
            result.posterior, bnp.as_source(ordered[["y", "x", "rec", "t"]], groups="rec", order="t", gaps="cut")
        ),
    )
    bnp.ingest(tmp_path / "t.csv", tmp_path / "p.zarr", columns=["x", "y"], project=1)
    assert columns_of(bnp.as_source(tmp_path / "p.zarr")) is None


@pytest.mark.parametrize("way", ["pandas", "parquet", "csv", "dask", "source"])
def test_a_resumed_run_puts_columns_in_order(way, tmp_path):
    frame = people()[["age", "visits"]]
    model = {"age": bnp.DiagGaussian(), "visits": bnp.Poisson()}
    whole = trained(given_as(way, frame, tmp_path), bnp.Product(model), laps=4).posterior
    trained(given_as(way, frame, tmp_path), bnp.Product(model), laps=2, store=tmp_path / "run")
    swapped = given_as(way, frame[["visits", "age"]], tmp_path)
    again = trained(swapped, bnp.Product(model), laps=4, store=tmp_path / "run", resume=True).posterior
    assert again.columns == whole.columns
    for name, value in whole.summary.values.items():
        np.testing.assert_array_equal(value, again.summary[name])
    for change, message in (
        (frame.rename(columns={"age": "Age"}), "no column 'age'.*'Age'"),
        (frame[["age"]], "visits"),
    ):
        with pytest.raises(DataError, match=message):
            trained(given_as(way, change, tmp_path), bnp.Product(model), store=tmp_path / "run", resume=True)


def test_other_values_under_the_same_names_are_still_noticed(tmp_path):
    frame = people()[["age", "visits"]]
    trained(frame, laps=2, store=tmp_path / "run")
    with pytest.raises(StoreError, match="the data changed"):
        trained(frame.rename(columns={"age": "visits", "visits": "age"}), store=tmp_path / "run", resume=True)


def test_a_start_from_a_posterior_needs_its_columns(posterior):
    frame = people()[["visits", "age"]]
    again = bnp.FromPosterior(posterior)
    with pytest.raises(SettingError, match=r"another order.*columns=posterior.columns"):
        bnp.train(posterior.model, frame, init=again)
    source = bnp.as_source(frame, columns=posterior.columns)
    result = bnp.train(posterior.model, source, init=again, schedule=bnp.Memoized(laps=1))
    assert result.posterior.columns.names == ("age", "visits")
    with pytest.raises(SettingError, match="no column 'age'"):
        bnp.train(posterior.model, frame.rename(columns={"age": "years"}), init=again)


# -- errors speak of names ----------------------------------------------------------------------------------------
def test_errors_about_values_name_the_column(posterior):
    frame = people()[["age", "visits"]]
    hole = frame.assign(visits=frame.visits.where(frame.index != 7, np.nan))
    for observation in (bnp.Gaussian(), bnp.Poisson(), bnp.Product({"age": bnp.Gaussian(), "visits": bnp.Poisson()})):
        with pytest.raises(DataError, match="'visits' is nan"):
            trained(hole, observation)
    with pytest.raises(DataError, match="row 7.*column 'visits' is nan"):
        bnp.score(posterior, hole[["visits", "age"]].to_numpy()[:, ::-1])
    with pytest.raises(DataError, match="column 'visits' is nan, which is row 7 of group 0"):
        bnp.as_source([hole, frame]).reader(0)()
    with pytest.warns(UserWarning, match=r"column\(s\) \['visits'\] are constant"):
        trained(frame.assign(visits=1.0))
    with pytest.raises(DataError, match="column 'age' is .*Bernoulli"):
        trained(frame, bnp.Bernoulli())


# -- the description itself ----------------------------------------------------------------------------------------
def test_names_for_an_array():
    x = people()[["age", "visits"]].to_numpy()
    columns = bnp.Columns.of(["age", "visits"])
    source = bnp.as_source(x, columns=columns, groups=[0, 100, 300])
    assert columns_of(source).names == ("age", "visits") and source.n_groups == 2
    posterior = trained(
        bnp.as_source(x, columns=columns), bnp.Product({"age": bnp.Gaussian(), "visits": bnp.Poisson()})
    )
    assert posterior.posterior.feature_names == ("age", "visits")
    with pytest.raises(DataError, match="2 columns without names; needs 3"):
        bnp.as_source(x, columns=bnp.Columns.of("abc"[i] for i in range(3)))
    for names, message in (
        (["a", "a"], "'a' more than once"),
        ([], "needs the names"),
        ("ab", "needs the names"),
        ([1], "n"),
        (["a", ""], "needs the names"),
    ):
        with pytest.raises(DataError, match=message):
            bnp.Columns.of(names)


@pytest.mark.parametrize("columns", ["age", 3, {"age": 1}.keys])
def test_columns_that_are_no_list_are_refused(columns):
    with pytest.raises(SettingError, match="needs a list of names"):
        bnp.as_source(people(), columns=columns)


def test_lists_are_columns_of_several_features(tmp_path):
    rng = np.random.default_rng(0)
    x = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=60)), 3)
    pq.write_table(pa.table({"x": x, "n": rng.normal(size=20)}), tmp_path / "t.parquet")
    source = bnp.as_source(tmp_path / "t.parquet", columns=["n", "x"])
    columns = columns_of(source)
    assert columns.layout == (("n", 1), ("x", 3)) and columns.features == ("n", "x[0]", "x[1]", "x[2]")
    turned = bnp.as_source(bnp.as_source(tmp_path / "t.parquet", columns=["x", "n"]), columns=columns)
    np.testing.assert_array_equal(rows(turned), rows(source))
    short = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=40)), 2)
    for data in (
        pa.table({"x": short, "n": np.ones(20)}),
        bnp.as_source(pa.table({"x": short, "n": np.ones(20)}), columns=["x", "n"]),
    ):
        with pytest.raises(DataError, match="'x' holds 2 numbers; in training it held 3"):
            bnp.as_source(data, columns=columns)


def test_columns_are_described_in_json():
    columns = Columns(("a", "b"), ("int64", ""), (1, 3), Roles("w", "g", "t", Cutting(5, "cut", 0.5)), True)
    assert Columns.from_json(json.loads(json.dumps(columns.to_json()))) == columns
    assert str(columns) == "a, b; weights w; groups g; order t"
    for damage in (
        {},
        {"names": ["a"]},
        {**columns.to_json(), "kinds": []},
        {**columns.to_json(), "names": [1, 2]},
        {**columns.to_json(), "roles": {"x": 1}},
    ):
        with pytest.raises(DataError, match="damaged description of columns"):
            Columns.from_json(damage)


def test_descriptions_of_earlier_versions_are_compared_by_what_they_say(tmp_path, monkeypatch):
    """Those of text tables had no names."""
    people()[["age", "visits"]].to_csv(tmp_path / "t.csv", index=False)
    with monkeypatch.context() as earlier:
        earlier.setattr(OrderedSource, "describe", lambda self: self.whole.describe())
        trained(tmp_path / "t.csv", laps=1, store=tmp_path / "run")
    again = trained(tmp_path / "t.csv", laps=2, store=tmp_path / "run", resume=True).posterior
    assert again.feature_names == ("age", "visits")


def test_predictions_say_which_columns_they_are_of(posterior, tmp_path):
    bnp.predict(posterior, people()[["visits", "age"]], out=tmp_path / "labels.zarr")
    assert "age" in (tmp_path / "labels.zarr" / "zarr.json").read_text()


def test_columns_whose_names_are_the_words_of_a_vocabulary_are_put_in_order(tmp_path):
    texts = [(f"d{i}", ("open socket listen", "read file write")[i % 2]) for i in range(40)]
    bnp.ingest(texts, tmp_path / "t.zarr", text=bnp.Text(min_df=1))
    model = bnp.Model(bnp.LDA(), bnp.Multinomial())
    posterior = bnp.train(
        model, tmp_path / "t.zarr", init=bnp.RandomExamples(2), schedule=bnp.Memoized(laps=2)
    ).posterior
    counts = bnp.load_vocabulary(tmp_path / "t.zarr").counts([text for _, text in texts])
    frame = pd.DataFrame(counts.toarray(), columns=posterior.feature_names)
    found = bnp.predict(posterior, frame[frame.columns[::-1]], soft=True)
    np.testing.assert_allclose(found, bnp.predict(posterior, counts, soft=True), rtol=1e-12)
    with pytest.raises(DataError, match="no column 'file'"):
        bnp.predict(posterior, frame.rename(columns={"file": "files"}))


def test_rows_with_those_before_them_know_the_levels_of_both():
    columns = Columns.of(["colour", "age"]).with_levels({"colour": ("blue", "red")}).with_previous()
    assert columns.names == ("colour", "age", "colour (t-1)", "age (t-1)")
    assert columns.coded == {"colour": ("blue", "red"), "colour (t-1)": ("blue", "red")}


@pytest.mark.parametrize(("cell", "sign"), [("12.5%", "%"), ("$5.00", "$"), ("€ 1,250", "€")])
def test_the_error_for_numbers_with_a_sign_says_how_to_take_it_off(cell, sign):
    frame = pd.DataFrame({"v": np.arange(30) / 7.0, "price": [cell] * 30})
    with pytest.raises(DataError, match=re.escape(f"take the sign off: df['price'].str.strip({sign!r})")):
        bnp.as_source(frame)
    with pytest.raises(DataError) as found:
        bnp.as_source(frame.assign(price=["1.0"] * 29 + ["oops"]))
    assert "take the sign off" not in str(found.value)


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_table_read_with_the_wrong_separator_is_no_list_of_documents(separator):
    frame = pd.DataFrame({separator.join(("a", "b", "c")): [separator.join(("1", "2.5", "x"))] * 30})
    with pytest.raises(DataError, match=re.escape(f"pandas.read_csv(path, sep={separator!r})")):
        bnp.DirichletProcessMixture("auto").fit(frame)
