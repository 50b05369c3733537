"""Data that arrive by position: each is taken once, whatever is delivered again."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bnp_dask as bnp
from bnp_dask.errors import DataError, SettingError
from tests.growing.parts import begin, bits_of, day, gap, grow

EXAMPLE = Path(__file__).parents[2] / "examples" / "feeds.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("feeds", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_queue_is_taken_in_once_also_where_it_repeats_goes_back_or_sends_equal_rows(tmp_path, example):
    begin(tmp_path / "run", day(0))
    log, feed = tmp_path / "log", example.queue_feed(tmp_path / "log")
    assert grow(tmp_path / "run", feed).new == ()

    def send(*offsets):
        with open(log, "a") as file:
            for offset in offsets:
                file.write(json.dumps({"offset": offset, "rows": day(1, n=60).tolist()}) + "\n")

    send(0, 1)
    assert grow(tmp_path / "run", feed).new == ("orders:0", "orders:1")
    asked = []
    again = bnp.Feed("orders", lambda position: asked.append(position) or ["0", "1", "1", "2"], feed.read)
    send(2)
    assert grow(tmp_path / "run", again).new == ("orders:2",)
    assert asked == ["1"] and grow(tmp_path / "run", again).new == ()
    assert bnp.load(tmp_path / "run").summary["N"].sum() == pytest.approx(240 + 3 * 60)
    assert gap(tmp_path / "run") < 1e-12


def test_a_bad_message_is_named_and_nothing_of_the_call_is_taken(tmp_path):
    begin(tmp_path / "run", day(0))
    before, rows = bits_of(tmp_path / "run"), {"a": day(1, n=60), "b": day(2, n=60)[:, :2]}
    with pytest.raises(DataError, match="queue:b: .*2 features.*; nothing of this call was taken"):
        grow(tmp_path / "run", bnp.Feed("queue", lambda position: list(rows), rows.get))
    rows["b"] = np.full((3, 3), np.nan)
    with pytest.raises(DataError, match="queue:b: .*nan"):
        grow(tmp_path / "run", bnp.Feed("queue", lambda position: list(rows), rows.get))
    assert bits_of(tmp_path / "run") == before
    with pytest.raises(SettingError, match="after=3: needs a function"):
        bnp.Feed("queue", 3, rows.get)


def test_micro_batches_of_spark_are_files_that_are_taken_once(tmp_path, example):
    class Frame:
        def toPandas(self):
            return pd.DataFrame(day(1, n=60), columns=list("abc"))

    inbox = example.Inbox(tmp_path / "inbox")
    pd.DataFrame(day(0), columns=list("abc")).to_parquet(tmp_path / "first.parquet")
    begin(tmp_path / "run", tmp_path / "first.parquet")
    for number in (0, 1, 1):
        inbox(Frame(), number)
    assert grow(tmp_path / "run", tmp_path / "inbox").new_batches == 2
    inbox(Frame(), 1)
    assert grow(tmp_path / "run", tmp_path / "inbox").new == ()
    assert np.isfinite(bnp.load(tmp_path / "run").summary["N"]).all()
