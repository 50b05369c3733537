"""Columns of levels: taken as they are from every kind of table, by the levels of training whatever the new order."""

import json

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal

import bnp_dask as bnp
from bnp_dask.core.columns import Columns
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs.columns import MOST_LEVELS, Codes, ordered_levels

LEVELS = {"colour": ("blue", "green", "red"), "shape": ("square", "round", "flat"), "spam": (False, True)}
KEYS = ["colour, shape", "spam"]


def frame(n=60, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(size=n),
            "colour": rng.choice(["red", "green", "blue"], n),
            "shape": pd.Categorical(rng.choice(["round", "square"], n), categories=["square", "round", "flat"]),
            "spam": rng.random(n) < 0.5,
        }
    )


def codes(table, levels=LEVELS):
    """The features by hand, ``(n, 4)``."""
    own = [table[c].map({v: i for i, v in enumerate(known)}).astype(float) for c, known in levels.items()]
    return np.column_stack([table["age"], *own])


def rows(source):
    return np.concatenate([source.reader(b)().x for b in range(source.n_batches)])


def as_stored(table, kind, path):
    """The table in one of the forms that data come in."""
    if kind == "frame":
        return table
    if kind == "arrow":
        return pa.Table.from_pandas(table, preserve_index=False)
    if kind == "dask":
        return dd.from_pandas(table, npartitions=3)
    if kind == "csv":
        table.to_csv(path / "t.csv", index=False)
        return str(path / "t.csv")
    if kind == "parquet folder":
        (path / "t").mkdir()
        for part in range(3):
            table.iloc[part * 20 : part * 20 + 20].to_parquet(path / "t" / f"{part}.parquet", row_group_size=7)
        return str(path / "t")
    table.to_parquet(path / "t.parquet", row_group_size=7)
    return str(path / "t.parquet")


STORED = ("frame", "arrow", "dask", "csv", "parquet", "parquet folder")


@pytest.mark.parametrize("kind", STORED)
def test_every_table_gives_places_of_levels(kind, tmp_path):
    source = bnp.as_source(as_stored(frame(), kind, tmp_path), levels=KEYS)
    found = source.columns.coded
    # only pandas declares levels, and their order; elsewhere they are those that occur, sorted
    kept = kind in ("frame", "dask")
    levels = LEVELS if kept else {**LEVELS, "shape": ("round", "square")}
    assert found == levels
    assert_array_equal(rows(source), codes(frame(), levels))


@pytest.mark.parametrize("kind", STORED)
def test_new_tables_are_read_by_the_levels_of_training(kind, tmp_path):
    trained = bnp.as_source(frame(), levels=KEYS).columns
    new = frame(seed=1)[["spam", "shape", "age", "colour"]]
    new = new[new.colour != "green"].iloc[:60]
    new["colour"] = new["colour"].astype("category").cat.reorder_categories(["red", "blue"])
    source = bnp.as_source(as_stored(new, kind, tmp_path), columns=trained)
    assert source.columns.coded == LEVELS
    assert_array_equal(rows(source), codes(new))


@pytest.mark.parametrize("kind", STORED)
def test_an_unseen_level_is_named_with_its_row(kind, tmp_path):
    trained = bnp.as_source(frame(), levels=KEYS).columns
    new = frame()
    new.loc[1, "colour"] = "gren"
    with pytest.raises(DataError, match=r"row 1, column 'colour' is 'gren'.*'blue', 'green', 'red'.*'green'.*Correct"):
        rows(bnp.as_source(as_stored(new, kind, tmp_path), columns=trained))


@pytest.mark.parametrize("kind", STORED)
def test_missing_entries_are_no_level(kind, tmp_path):
    table = frame()
    table.loc[3, ["colour", "shape"]] = None
    table["spam"] = table["spam"].astype("boolean")
    table.loc[4, "spam"] = pd.NA
    x = rows(bnp.as_source(as_stored(table, kind, tmp_path), levels=KEYS))
    assert_array_equal(np.argwhere(np.isnan(x)), [[3, 1], [3, 2], [4, 3]])


def test_a_source_with_other_levels_is_read_by_those_of_training():
    trained = bnp.as_source(frame(), levels=KEYS).columns
    new = frame(seed=1).query("colour != 'green'").drop(columns="shape").assign(shape="flat")
    source = bnp.as_source(bnp.as_source(new, levels=KEYS), columns=trained)
    assert_array_equal(rows(source), codes(new))
    grey = bnp.as_source(new.assign(colour="grey"), levels=KEYS)
    with pytest.raises(DataError, match="'colour' is 'grey'"):
        rows(bnp.as_source(grey, columns=trained))


@pytest.mark.parametrize("kind", ["array", "npy", "zarr", "dask"])
def test_numbers_become_places_of_their_values(kind, tmp_path):
    import dask.array as da
    import zarr

    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=50), rng.choice([10, 20, -3], 50), rng.choice([0.5, 1.5], 50)])
    data = x
    if kind == "dask":
        data = da.from_array(x, chunks=(20, 3))
    elif kind == "npy":
        data = str(tmp_path / "x.npy")
        np.save(data, x)
    elif kind == "zarr":
        data = str(tmp_path / "x.zarr")
        zarr.save_array(data, x)
    source = bnp.as_source(data, levels="1:", batch_size=20)
    assert source.columns.levels == (None, (-3, 10, 20), (0.5, 1.5))
    assert_array_equal(rows(source)[:, 1], np.searchsorted([-3, 10, 20], x[:, 1]))
    again = bnp.as_source(x[:5], columns=source.columns)
    assert_array_equal(rows(again), rows(source)[:5])
    with pytest.raises(DataError, match=r"row 0.*is 7, which is none.*-3, 10, 20"):
        rows(bnp.as_source(np.array([[0.0, 7.0, 0.5]]), columns=source.columns))


def test_whole_numbers_of_tables_are_levels_too():
    table = pd.DataFrame({"stars": [5, 1, 3, 1], "size": [1.5, 2.5, 3.5, 4.5]})
    source = bnp.as_source(table, levels=["stars"])
    assert source.columns.coded == {"stars": (1, 3, 5)}
    assert_array_equal(rows(source)[:, 0], [2, 0, 1, 0])
    # whatever their type is there
    other = pa.table({"stars": pa.array([3, None], pa.int8()), "size": [0.0, 1.0]})
    assert_array_equal(rows(bnp.as_source(other, columns=source.columns))[:, 0], [1, np.nan])


def test_groups_of_rows_have_levels(tmp_path):
    table = frame().assign(who=np.repeat(["b", "a", "c"], 20))
    table.to_parquet(tmp_path / "t.parquet")
    table.to_csv(tmp_path / "t.csv", index=False)
    plain = [frame().iloc[i : i + 20] for i in (0, 20, 40)]
    for data, groups in (
        (table, "who"),
        (str(tmp_path / "t.parquet"), "who"),
        (str(tmp_path / "t.csv"), "who"),
        (plain, None),
    ):
        source = bnp.as_source(data, groups=groups, levels=KEYS)
        assert source.n_groups == 3
        assert source.columns.coded["colour"] == LEVELS["colour"]
        assert_array_equal(rows(source)[:, 1], codes(frame())[:, 1])


def test_columns_keep_their_levels_as_json():
    columns = bnp.as_source(frame(), levels=KEYS).columns
    assert Columns.from_json(json.loads(json.dumps(columns.to_json()))) == columns
    assert "levels" not in Columns.of(["a"]).to_json()


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ([f"customer {i}" for i in range(MOST_LEVELS + 1)], "more than 1,000 distinct values, such as 'customer 0'"),
        (list(range(MOST_LEVELS + 1)), "more than 1,000 distinct values, such as 0, 1"),
        ([None, None], "no value in any row"),
        (["a", 1], r"neither all texts nor all numbers.*astype\(str\)"),
        (pd.to_datetime(["2024-01-01", "2024-01-02"]), "datetime64"),
    ],
)
def test_columns_that_are_no_levels_are_named(values, match):
    with pytest.raises(DataError, match=f"(?s)'a'.*{match}"):
        bnp.as_source(pd.DataFrame({"a": values, "b": 1.0}), levels=["a"])


def test_a_text_without_a_categorical_is_left_out_and_told_how():
    with pytest.warns(UserWarning, match=r"left out: 'colour' \(texts\), 'shape' \(categories\).*Categorical\(\)"):
        assert bnp.as_source(frame()).columns.names == ("age", "spam")
    with pytest.raises(DataError, match=r"'colour' is .*; needs numbers.*Categorical\(\)"):
        bnp.as_source(frame(), columns=["age", "colour"])
    with pytest.raises(SettingError, match=r"no column 'color'.*'colour'"):
        bnp.as_source(frame(), levels=["color"])


def test_numbers_and_texts_do_not_stand_for_one_another():
    texts = bnp.as_source(frame(), levels=KEYS).columns
    with pytest.raises(DataError, match="row 0, column 'colour' is 1, which is none of its levels"):
        rows(bnp.as_source(frame().assign(colour=1), columns=texts))
    with pytest.raises(DataError, match="'spam' holds levels; the model was trained on its numbers"):
        plain = bnp.as_source(frame()[["age", "spam"]]).columns
        bnp.as_source(bnp.as_source(frame()[["age", "spam"]], levels=["spam"]), columns=plain)


def test_numbers_are_places_of_levels_in_the_order_in_which_a_category_declared_them():
    found = Codes.of_numbers("size", (42, 38, 40)).apply(np.array([38.0, 40.0, np.nan, 42.0]), "rows")
    assert_array_equal(found, [1, 2, np.nan, 0])


def test_levels_of_two_kinds_are_named_whichever_there_are_more_of():
    for values in (["a", 1], ["a", 1, 2], ["a", "b", 1]):
        with pytest.raises(DataError, match=r"column 'c' holds texts \('.'\) and numbers \(1\)"):
            ordered_levels(values, "table", "c")
