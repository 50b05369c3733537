"""A feed survives its files: what cannot be taken in is set aside, what is not finished waits."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.training.growing import incoming
from bnp_dask.training.growing.update import follow
from tests.growing.parts import begin, bits_of, day, files, grow

HOUR = 3600


def table(number, **columns):
    """A day of three columns as a table; ``columns`` take the place of its own."""
    return pd.DataFrame(day(number, n=60), columns=list("abc")).assign(**columns)


def damaged_npy(path):
    path = path.with_suffix(".npy")
    np.save(path, day(1, n=60))
    path.write_bytes(path.read_bytes()[:-100])
    return path


def other_columns(path):
    path = path.with_suffix(".parquet")
    table(1).drop(columns="b").to_parquet(path)
    return path


def rubbish(path):
    path = path.with_suffix(".parquet")
    path.write_bytes(b"<html>no such week</html>")
    return path


def missing_number(path):
    path = path.with_suffix(".parquet")
    table(1, b=[np.nan] + [0.0] * 59).to_parquet(path)
    return path


def no_rows(path):
    path = path.with_suffix(".parquet")
    table(1).iloc[:0].to_parquet(path)
    return path


def stale_half(path):
    path = path.with_suffix(".parquet")
    table(1).to_parquet(path)
    path.write_bytes(path.read_bytes()[:-50])
    os.utime(path, (time.time() - HOUR,) * 2)
    return path


def stale_store(path):
    path = path.with_suffix(".zarr")
    (path / "c").mkdir(parents=True)
    (path / "c" / "0").write_bytes(bytes(80))
    for place in (path / "c" / "0", path / "c", path):
        os.utime(place, (time.time() - HOUR,) * 2)
    return path


BAD = (damaged_npy, other_columns, rubbish, missing_number, no_rows, stale_half, stale_store)


@pytest.fixture
def run(tmp_path):
    """A run of one day of Parquet, in whose folder there will be more."""
    (tmp_path / "in").mkdir()
    table(0).to_parquet(tmp_path / "in" / "week0.parquet")
    begin(tmp_path / "run", tmp_path / "in" / "week0.parquet", laps=2)
    return tmp_path / "run"


@pytest.mark.first_case
@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_the_good_file_behind_a_bad_one_is_taken_in_and_the_bad_one_is_set_aside_with_its_reason(run, make, caplog):
    inbox = run.parent / "in"
    bad = make(inbox / "week1")
    table(2).to_parquet(inbox / "week2.parquet")
    before = bits_of(run)
    with pytest.raises(DataError):
        grow(run, inbox)
    assert bits_of(run) == before
    with caplog.at_level(logging.INFO, "bnp_dask"):
        found = grow(run, inbox, on_bad="set aside")
    assert found.new == (str(inbox / "week2.parquet"),)
    assert [piece.name for piece in found.set_aside] == [str(bad)]
    assert found.set_aside[0].why and "nothing was taken" not in found.set_aside[0].why
    assert found.unfinished == ()
    assert f"set aside: {bad}: {found.set_aside[0].why}" in caplog.text
    assert bnp.set_aside(run) == found.set_aside
    again = grow(run, inbox, on_bad="set aside")
    assert (again.new, again.set_aside, again.version) == ((), (), found.version)
    assert bnp.set_aside(run) == found.set_aside


def test_the_run_is_as_if_the_bad_file_had_never_been_there(run):
    inbox, alone = run.parent / "in", run.parent / "alone"
    begin(alone, inbox / "week0.parquet", laps=2)
    other_columns(inbox / "week1")
    table(2).to_parquet(inbox / "week2.parquet")
    grow(run, inbox, on_bad="set aside")
    grow(alone, inbox / "week2.parquet")
    assert bits_of(alone)[2] == bits_of(run)[2]


def test_a_mended_file_is_tried_again_and_leaves_the_list(run):
    inbox = run.parent / "in"
    bad = other_columns(inbox / "week1")
    assert len(grow(run, inbox, on_bad="set aside").set_aside) == 1
    table(1).to_parquet(bad)
    found = grow(run, inbox, on_bad="set aside")
    assert (found.new, found.set_aside, bnp.set_aside(run)) == ((str(bad),), (), ())


def test_a_file_is_tried_again_where_it_is_named_and_where_bad_data_are_errors(run):
    inbox = run.parent / "in"
    bad = other_columns(inbox / "week1")
    first = grow(run, inbox, on_bad="set aside").set_aside
    named = grow(run, bad, on_bad="set aside").set_aside
    assert [piece.name for piece in named] == [piece.name for piece in first]
    with pytest.raises(DataError, match="week1"):
        grow(run, inbox)
    bad.unlink()
    grow(run, inbox, on_bad="set aside")
    assert bnp.set_aside(run) == ()  # what is gone is no matter any more


def test_a_place_with_another_content_than_before_is_set_aside(run):
    inbox = run.parent / "in"
    table(7).to_parquet(inbox / "week0.parquet")
    table(2).to_parquet(inbox / "week2.parquet")
    found = grow(run, inbox, on_bad="set aside")
    assert found.new == (str(inbox / "week2.parquet"),)
    assert "replace() takes the present content" in found.set_aside[0].why


def half_parquet(path):
    path = path.with_suffix(".parquet")
    table(1).to_parquet(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-50])
    return path, lambda: path.write_bytes(whole)


def half_store(path):
    place, rows = path.with_suffix(".zarr"), path.with_suffix(".part")
    table(1).to_parquet(path.parent / "rows.parquet.tmp")
    bnp.ingest(path.parent / "rows.parquet.tmp", place, format="parquet")
    (path.parent / "rows.parquet.tmp").unlink()
    (place / "zarr.json").rename(rows)
    return place, lambda: rows.rename(place / "zarr.json")


@pytest.mark.parametrize("make", [half_parquet, half_store], ids=lambda make: make.__name__)
def test_a_half_written_file_waits_and_is_taken_in_once_it_is_whole(run, make):
    inbox = run.parent / "in"
    half, finish = make(inbox / "week1")
    table(2).to_parquet(inbox / "week2.parquet")
    found = grow(run, inbox, on_bad="set aside")
    assert (found.new, found.set_aside) == ((str(inbox / "week2.parquet"),), ())
    assert found.unfinished == (str(half),)
    assert bnp.set_aside(run) == ()
    finish()
    assert grow(run, inbox, on_bad="set aside").new == (str(half),)


def test_a_file_that_grows_while_it_is_looked_at_waits(run, monkeypatch):
    """One that cannot be read yet, and one that can, as lines of a table can at any moment."""
    inbox = run.parent / "in"
    whole = damaged_npy(inbox / "week1")
    table(2).to_csv(inbox / "week2.csv", index=False)
    growing, stop = [whole, inbox / "week2.csv"], threading.Event()

    def write():
        while not stop.wait(0.001):
            for path in growing:
                with open(path, "ab") as file:
                    file.write(b"1,2,3\n")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = grow(run, inbox, on_bad="set aside")
    finally:
        stop.set()
        writer.join()
    assert (found.new, found.set_aside) == ((), ())
    assert sorted(found.unfinished) == sorted(map(str, growing))


def test_storage_that_does_not_answer_is_no_fault_of_the_data(run, monkeypatch):
    inbox = run.parent / "in"
    table(1).to_parquet(inbox / "week1.parquet")

    def silent(*args, **kwargs):
        raise DataError("no answer") from TimeoutError("no answer")

    monkeypatch.setattr("bnp_dask.training.growing.update.open_counts", silent)
    with pytest.raises(DataError, match="no answer"):
        grow(run, inbox, on_bad="set aside")
    assert bnp.set_aside(run) == ()


def test_a_file_that_may_not_be_read_yet_waits(run, monkeypatch):
    inbox = run.parent / "in"
    table(1).to_parquet(inbox / "week1.parquet")

    def refused(*args, **kwargs):
        raise DataError("cannot be read") from PermissionError("Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("bnp_dask.training.growing.update.open_counts", refused)
        found = grow(run, inbox, on_bad="set aside")
    assert (found.set_aside, len(found.unfinished)) == ((), 2)  # the one that the run has is opened too
    assert len(grow(run, inbox, on_bad="set aside").new) == 1


def test_items_of_a_feed_are_set_aside_and_tried_again_where_that_is_an_error(run):
    there = {"1": table(1).drop(columns="b"), "2": table(2)}
    feed = bnp.Feed("sensor", lambda position: list(there), there.get)
    looks = follow(run, feed, every=0.001, client=SerialExecutor(), revisit=0, on_bad="set aside")
    found = next(looks)
    assert (found.new, [piece.name for piece in found.set_aside]) == (("sensor:2",), ["sensor:1"])
    there["1"] = table(1)
    assert grow(run, feed, on_bad="set aside").new == ()
    assert grow(run, feed).new == ("sensor:1",)
    assert grow(run, feed, on_bad="set aside").new == ()
    assert bnp.set_aside(run) == ()


def test_a_feed_goes_on_past_a_bad_file(tmp_path):
    paths = files(tmp_path / "in", 3)
    begin(tmp_path / "run", paths[0], laps=2)
    paths[1].write_bytes(paths[1].read_bytes()[:-100])
    more = {"every": 0.01, "batch_size": 60, "client": SerialExecutor(), "revisit": 0, "on_bad": "set aside"}
    looks = follow(tmp_path / "run", tmp_path / "in", **more)
    found = next(looks)
    assert (found.new, [piece.name for piece in found.set_aside]) == ((str(paths[2]),), [str(paths[1])])
    np.save(tmp_path / "in" / "day4.npy", day(4))
    assert next(looks).new == (str(tmp_path / "in" / "day4.npy"),)


def test_only_known_ways_are_taken(run):
    with pytest.raises(SettingError, match="on_bad='skip'"):
        grow(run, run.parent / "in", on_bad="skip")


def test_the_command_line_sets_aside_and_tells(run, capsys):
    inbox = run.parent / "in"
    bad = other_columns(inbox / "week1")
    assert main(["update", str(run), str(inbox), "--quiet"]) == 2
    assert "week1" in capsys.readouterr().err
    assert main(["update", str(run), str(inbox), "--on-bad", "set-aside", "--quiet"]) == 0
    assert f"{bad}: " in capsys.readouterr().out
    for command in ("changes", "inspect"):
        main([command, str(run)])
        assert f"set aside {bnp.set_aside(run)[0].when}: {bad}: " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["update", str(run), str(inbox), "--on-bad", "ignore"])
    table(1).to_parquet(bad)
    assert main(["update", str(run), str(inbox), "--on-bad", "set aside", "--quiet"]) == 0
    assert "version 1, 1 new" in capsys.readouterr().out
    main(["changes", str(run)])
    assert "set aside" not in capsys.readouterr().out


@pytest.mark.long
def test_a_job_file_says_what_to_do_with_bad_files(tmp_path):
    """From outside: a weekly job in a process of its own, whose first file of the week is damaged."""
    paths = files(tmp_path / "in", 3)
    paths[0] = paths[0].rename(tmp_path / "day0.npy")
    job = {
        "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
        "data": {"path": str(paths[0]), "batch_size": 60},
        "schedule": {"type": "Memoized", "laps": 2},
        "store": str(tmp_path / "run"),
        "update": {"on_bad": "set aside", "batch_size": 60},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    paths[1].write_bytes(paths[1].read_bytes()[:-100])
    for words in (["train", "job.yaml"], ["update", "run", "in"]):
        command = [sys.executable, "-m", "bnp_dask", *words, "--quiet"]
        told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert told.returncode == 0, told.stderr
    assert "1 set aside" in told.stdout and "day1.npy" in told.stdout
    assert bnp.load(tmp_path / "run").summary["N"].sum() == pytest.approx(480), told.stdout


@pytest.mark.parametrize(("changes", "waits"), [(0, False), (1, True), (2, True)])
def test_a_young_file_that_changes_while_it_is_looked_at_waits(tmp_path, monkeypatch, changes, waits):
    """``changes``: before the first look, or between the two."""
    path = tmp_path / "day.npy"
    np.save(path, day(0))
    piece = incoming.Piece(path, str(path))
    whole, stamps = incoming.stamp_of(piece), iter([1, 1] if changes == 1 else [0, changes])
    monkeypatch.setattr(incoming, "PAUSE", 0.0)
    assert not incoming._is_unfinished(piece, whole)
    monkeypatch.setattr(incoming, "stamp_of", lambda piece: next(stamps))
    assert incoming._is_unfinished(piece, 0) is waits
    assert not incoming._is_unfinished(replace(piece, place=None), 0)
