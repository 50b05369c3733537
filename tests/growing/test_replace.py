"""Data that were corrected take the place of what a run has from there."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.store import RunStore
from tests.growing.parts import MODELS, begin, bits_of, day, files, gap, grow, stored_day
from tests.growing.test_update import COMMITTED, RECORDED, dying


@pytest.fixture
def run(tmp_path):
    """A run of three days of four batches, the second of which holds wrong rows, and the paths of its data."""
    paths = files(tmp_path / "in", 3)
    np.save(paths[1], day(7) + 3.0)
    begin(tmp_path / "run", paths[0])
    for path in paths[1:]:
        grow(tmp_path / "run", path, revisit=0.5)  # a round is open
    np.save(paths[1], day(1, n=300))
    return tmp_path / "run", paths


def again(store, source, **more):
    return bnp.replace(store, source, client=SerialExecutor(), **more)


def test_totals_are_those_of_the_data_as_they_are_now(run):
    store, paths = run
    ids = set(bnp.load(store).ids)
    found = again(store, paths[1])
    assert (found.new, found.new_batches, found.version) == ((str(paths[1]),), 5, 3)
    assert found.posterior.summary["N"].sum() == pytest.approx(780, rel=1e-12)
    assert gap(store) < 1e-12
    assert ids <= set(found.posterior.ids)
    assert [row["action"] for row in found.history][:2] == ["retired", "new"]
    assert grow(store, paths[0].parent).new == ()
    assert again(store, paths[1]).known == (str(paths[1]),)


@pytest.mark.parametrize("kill", [(RECORDED, "after"), (COMMITTED, "after")])
def test_one_that_is_killed_is_repeated_to_the_same_bits(run, tmp_path, kill, monkeypatch):
    store, paths = run
    shutil.copytree(store, tmp_path / "other")
    (owner, name), when = kill
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, name, dying(getattr(owner, name), when))
        again(store, paths[1])
    again(store, paths[1])
    again(tmp_path / "other", paths[1])
    assert bits_of(store) == bits_of(tmp_path / "other")


def test_the_first_data_are_replaced_by_themselves_and_all_of_them(tmp_path):
    paths = files(tmp_path / "in", 1)
    begin(tmp_path / "run", paths[0])
    ids = set(bnp.load(tmp_path / "run").ids)
    np.save(paths[0], np.concatenate([day(0), day(5)]))
    found = again(tmp_path / "run", paths[0])
    assert found.posterior.summary["N"].sum() == pytest.approx(480, rel=1e-12)
    assert ids <= set(found.posterior.ids) and gap(tmp_path / "run") < 1e-12


def test_a_folder_that_was_trained_on_is_replaced_with_what_came_into_it(tmp_path):
    import pandas as pd

    def write(number, *more):
        rows = np.concatenate([day(number), *more])
        pd.DataFrame(rows, columns=list("abc")).to_parquet(tmp_path / "in" / f"{number}.parquet")

    (tmp_path / "in").mkdir()
    write(0)
    write(1)
    begin(tmp_path / "run", tmp_path / "in")
    write(2)
    grow(tmp_path / "run", tmp_path / "in")
    write(0, day(5))
    write(3)
    with pytest.raises(SettingError, match="has no data from .*0.parquet by itself; it has .*in"):
        again(tmp_path / "run", tmp_path / "in" / "0.parquet")
    found = again(tmp_path / "run", tmp_path / "in")
    assert found.posterior.summary["N"].sum() == pytest.approx(5 * 240, rel=1e-12)
    assert grow(tmp_path / "run", tmp_path / "in").new == ()
    assert gap(tmp_path / "run") < 1e-12


def test_what_was_retired_comes_back(run):
    store, paths = run
    bnp.retire(store, paths[2])
    found = again(store, paths[2])
    assert found.new == (str(paths[2]),)
    assert found.posterior.summary["N"].sum() == pytest.approx(720, rel=1e-12)


def test_bad_data_and_unknown_places_are_named_and_nothing_is_replaced(run, tmp_path):
    store, paths = run
    before = bits_of(store)
    np.save(paths[1], day(1)[:, :2])
    with pytest.raises(DataError, match=r"day1\.npy"):
        again(store, paths[1])
    np.save(paths[1], day(1)[:0])
    with pytest.raises(DataError, match=r"day1\.npy has no rows"):
        again(store, paths[1])
    other = files(tmp_path / "other", 1)
    with pytest.raises(SettingError, match=r"has no data from .*other/day0.npy by itself; .*update\(\) takes in"):
        again(store, other[0])
    assert bits_of(store) == before


def test_sequences_are_replaced_too(tmp_path):
    kind = "chains"
    days = [stored_day(kind, number, tmp_path) for number in (0, 1)]
    begin(tmp_path / "run", days[0], model=MODELS[kind], laps=1, batch_size=None)
    grow(tmp_path / "run", days[1], batch_size=None)
    before = bnp.load(tmp_path / "run").summary["N"].sum()
    shutil.rmtree(days[1])
    stored_day(kind, 2, tmp_path).rename(days[1])
    found = again(tmp_path / "run", days[1])
    assert found.posterior.summary["N"].sum() == pytest.approx(before, rel=1e-12)
    assert gap(tmp_path / "run") < 1e-12


def test_the_command_line_replaces(run, capsys):
    store, paths = run
    assert main(["replace", str(store), str(paths[0].parent), "--quiet"]) == 0
    assert "version 3, 1 new, 2 known already, 5 batches" in capsys.readouterr().out
    assert RunStore.view(store).load().history[-1]["atoms"] == pytest.approx(780)
