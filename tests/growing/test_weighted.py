"""Tables with a column of weights enter a run, are visited again, and are replaced with their weights."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import bnp_dask as bnp
from bnp_dask.errors import SettingError
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.training.growing.growing_run import weights_in_file
from tests.growing.parts import begin, day, gap, grow
from tests.growing.test_new_words import MODELS, WORDS, counts


def written(folder, number, words, often, seed=None):
    """Path of a table of counts, in which each row has a weight."""
    index = [WORDS.index(word) for word in words]
    frame = pd.DataFrame(counts(number if seed is None else seed, max(index) + 1)[:, index], columns=words)
    frame.assign(often=often)[frame.sum(axis=1) > 0].to_parquet(folder / f"{number}.parquet")
    return folder / f"{number}.parquet"


def sums(path):
    """Weighted counts of the words in a table."""
    frame = pd.read_parquet(path)
    return (frame.drop(columns="often").mul(frame["often"], axis=0)).sum()


def assert_holds(posterior, *paths):
    expected = sum(sums(path).reindex(posterior.columns.names, fill_value=0.0) for path in paths)
    np.testing.assert_allclose(posterior.summary["x"].sum(axis=0), expected, rtol=1e-9, atol=1e-9)


@pytest.fixture
def run(tmp_path):
    """A run on a table whose rows count twice, and its path."""
    path = written(tmp_path, 0, WORDS[:8], 2.0)
    begin(tmp_path / "run", path, model=MODELS["mixture"], batch_size=20, weights="often")
    return tmp_path / "run", path


@pytest.mark.parametrize("new_words", [None, "add"])
def test_weights_of_new_tables_count_in_the_order_of_the_runs_words(run, tmp_path, new_words):
    store, first = run
    words = WORDS[7::-1] if new_words is None else WORDS[10:3:-1]
    second = written(tmp_path, 1, words, 0.5)
    found = grow(store, second, batch_size=20, new_words=new_words)
    assert_holds(found.posterior, first, second)
    third = written(tmp_path, 2, WORDS[:8], 3.0)
    found = grow(store, third, batch_size=20, revisit=4, new_words=new_words)
    assert found.revisited >= 2
    assert_holds(found.posterior, first, second, third)
    assert gap(store) < 1e-12


def test_a_table_is_replaced_with_its_weights(run, tmp_path):
    store, first = run
    second = written(tmp_path, 1, WORDS[10:3:-1], 0.5)
    grow(store, second, batch_size=20, new_words="add")
    written(tmp_path, 1, WORDS[10:3:-1], 4.0, seed=5)
    found = bnp.replace(store, second, client=SerialExecutor(), new_words="add")
    assert found.new == (str(second),)
    assert_holds(found.posterior, first, second)
    assert gap(store) < 1e-12


def test_a_table_with_a_file_of_weights_is_replaced_after_words_have_come(tmp_path):
    """Its columns are the words that the run had with it."""
    paths = [written(tmp_path, number, WORDS[: 6 + 3 * number], 1.0) for number in (0, 1)]
    for path in paths:
        pd.read_parquet(path).drop(columns="often").to_parquet(path)
    n = len(pd.read_parquet(paths[0]))
    np.save(tmp_path / "weights.npy", np.arange(n) % 3 + 0.5)
    begin(tmp_path / "run", paths[0], model=MODELS["mixture"], batch_size=20, weights=str(tmp_path / "weights.npy"))
    grow(tmp_path / "run", paths[1], batch_size=20, new_words="add")
    more = pd.read_parquet(paths[0])[WORDS[:6]] + 1.0
    more.to_parquet(paths[0])
    found = bnp.replace(tmp_path / "run", paths[0], client=SerialExecutor(), new_words="add")
    expected = pd.read_parquet(paths[1]).sum().reindex(WORDS[:9], fill_value=0.0)
    expected[WORDS[:6]] += more.mul(np.arange(n) % 3 + 0.5, axis=0).sum()
    assert found.posterior.columns.names == tuple(WORDS[:9])
    np.testing.assert_allclose(found.posterior.summary["x"].sum(axis=0), expected, rtol=1e-9)
    assert gap(tmp_path / "run") < 1e-12


def test_weights_of_tables_of_points_count(tmp_path):
    total = 0.0
    for number in (0, 1):
        frame = pd.DataFrame(day(number, n=60), columns=list("abc")).assign(often=np.arange(60) % 3 + number)
        frame.to_parquet(tmp_path / f"{number}.parquet")
        total += frame["often"].sum()
    begin(tmp_path / "run", tmp_path / "0.parquet", batch_size=30, weights="often")
    found = grow(tmp_path / "run", tmp_path / "1.parquet", batch_size=30)
    assert found.posterior.summary["N"].sum() == pytest.approx(total, rel=1e-12)


def test_weights_from_a_file_of_their_own_stay_when_the_rows_are_replaced(tmp_path):
    rng = np.random.default_rng(0)
    place, weights = tmp_path / "0.npy", np.arange(40) % 3 + 0.5
    np.save(place, rng.normal(size=(40, 2)))
    np.save(tmp_path / "weights.npy", weights)
    begin(tmp_path / "run", place, batch_size=20, weights=str(tmp_path / "weights.npy"))
    np.save(place, rng.normal(size=(40, 2)) + 5.0)
    found = bnp.replace(tmp_path / "run", place, client=SerialExecutor())
    assert found.new == (str(place),)
    assert found.posterior.summary["N"].sum() == pytest.approx(weights.sum(), rel=1e-12)


def test_weights_that_a_run_names_are_a_column_or_a_file_that_a_file_may_name():
    for fine in (None, "w", "weights.csv", "/data/w.npy", "s3://bucket/w.npy"):
        assert weights_in_file(fine) == fine
    with pytest.raises(SettingError, match="weights that the run had"):
        weights_in_file("reference::s3://bucket/w.npy")
