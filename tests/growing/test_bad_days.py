"""What goes wrong with data that keep arriving: it is named, and nothing is half taken."""

from __future__ import annotations

import errno
import os
import threading
import time

import numpy as np
import pandas as pd
import pytest

import bnp_dask as bnp
from bnp_dask.errors import BnpDaskError, DataError, StoreError
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.training.growing.update import follow
from tests.growing.parts import begin, bits_of, day, files, grow


def table(number, **columns):
    """A day of three columns as a table; ``columns`` take the place of its own."""
    rows = pd.DataFrame(day(number, n=60), columns=list("abc"))
    return rows.assign(**columns)


CHANGED = {
    "a column is gone": lambda: table(30).drop(columns="b"),
    "a column is new": lambda: table(30, d=1.0),
    "a column has another name": lambda: table(30).rename(columns={"b": "beta"}),
    "numbers became words": lambda: table(30, b="warm"),
    "numbers became dates": lambda: table(30, b=pd.Timestamp("2026-11-30")),
    "one number is missing": lambda: table(30, b=[np.nan] + [0.0] * 59),
}


@pytest.fixture(scope="module")
def of_tables(tmp_path_factory):
    """A run of two days of Parquet, and their folder."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "in").mkdir()
    for number in (1, 2):
        table(number).to_parquet(folder / "in" / f"2026-11-{number:02d}.parquet")
    begin(folder / "run", folder / "in" / "2026-11-01.parquet")
    grow(folder / "run", folder / "in")
    return folder


@pytest.mark.parametrize("how", CHANGED)
def test_columns_that_change_one_day_are_named_and_nothing_is_taken(of_tables, how):
    store, last = of_tables / "run", of_tables / "in" / "2026-11-30.parquet"
    table(29).to_parquet(of_tables / "in" / "2026-11-29.parquet")
    CHANGED[how]().to_parquet(last)
    before = bits_of(store)
    with pytest.raises(DataError, match=r"2026-11-30\.parquet"):
        grow(store, of_tables / "in")
    assert bits_of(store) == before
    last.unlink()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_disk_that_is_full_at_any_step_of_an_update_leaves_a_whole_version(tmp_path, monkeypatch):
    paths = files(tmp_path / "in", 2)
    for name in ("quiet", "full"):
        begin(tmp_path / name, paths[0])
    quiet = grow(tmp_path / "quiet", paths[1])
    real, left = os.fsync, [0]

    def fsync(handle):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    store, counts, refusals = tmp_path / "full", [], []
    for steps in range(200):
        left[0] = steps
        try:
            found = grow(store, paths[1])
        except (StoreError, OSError) as error:
            refusals.append(str(error))
        else:
            break
        counts.append(float(round(bnp.load(store).summary["N"].sum())))
    left[0] = 10**6
    found = found if found.new else grow(store, paths[1])
    assert len(refusals) > 5 and all("No space left" in refusal for refusal in refusals)
    assert set(counts) <= {240.0, 480.0} and counts == sorted(counts)
    assert bnp.load(store).summary["N"].tobytes() == quiet.posterior.summary["N"].tobytes()
    assert grow(store, paths[1]).new == ()


def test_two_updates_with_one_file_at_once_take_it_once(tmp_path):
    paths = files(tmp_path / "in", 2)
    begin(tmp_path / "run", paths[0])
    start, out, refusals = threading.Barrier(2), [], []

    def write():
        start.wait()
        try:
            out.append(grow(tmp_path / "run", paths[1]).new)
        except BnpDaskError as error:
            refusals.append(str(error))
            out.append(())

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(out) == [(), (str(paths[1]),)]
    assert all("is being written by" in refusal for refusal in refusals)
    assert bnp.load(tmp_path / "run").summary["N"].sum() == pytest.approx(480)


def jumping(seconds):
    """A clock that has jumped for this thread alone: those of clusters that other tests use plan by it when to send."""
    clock, here = time.time, threading.get_ident()
    return lambda: clock() + (seconds if threading.get_ident() == here else 0.0)


def test_a_clock_of_the_computer_that_jumps_changes_no_bit(tmp_path, monkeypatch):
    dates = ("2026-11-02", "2026-11-03")
    out = []
    for name, jumps in (("steady", (0.0, 0.0)), ("jumping", (-4e8, 4e9))):
        begin(tmp_path / name, day(0))
        for number, (date, jump) in enumerate(zip(dates, jumps, strict=True), 1):
            with monkeypatch.context() as patch:
                patch.setattr(time, "time", jumping(jump))
                grow(tmp_path / name, day(number), time=date, half_life="1d", keep="30d")
        out.append(bits_of(tmp_path / name))
    assert out[0] == out[1]


def test_a_feed_that_stalls_fails_or_reorders_is_taken_once(tmp_path):
    begin(tmp_path / "run", day(0))
    before, there, answers = bits_of(tmp_path / "run"), {str(i): day(i, n=60) for i in range(1, 5)}, []

    def after(position):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    feed = bnp.Feed("sensor", after, there.get)
    answers += [[], [], ["3", "1"], ["1", "2", "3"], []]
    looks = follow(tmp_path / "run", feed, every=0.001, client=SerialExecutor(), revisit=0)
    assert next(looks).new == ("sensor:3", "sensor:1")
    assert next(looks).new == ("sensor:2",)
    between = bits_of(tmp_path / "run")
    assert between != before
    answers[:] = [TimeoutError("no answer from the sensor")]
    with pytest.raises(Exception, match="no answer from the sensor"):
        next(looks)
    assert bits_of(tmp_path / "run") == between
    answers[:] = [["4", "2"]]
    again = follow(tmp_path / "run", feed, every=0.001, client=SerialExecutor(), revisit=0)
    assert next(again).new == ("sensor:4",)
    assert bnp.load(tmp_path / "run").summary["N"].sum() == pytest.approx(240 + 4 * 60)
