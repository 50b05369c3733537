"""Data that arrive by position: each is taken once, whatever is delivered again."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bnp_dask as bnp
from bnp_dask.errors import DataError, SettingError, StoreError
from bnp_dask.training.growing import incoming
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


# -- pieces by hand --------------------------------------------------------------------------------------------------
def test_a_folder_is_taken_by_name_without_what_is_hidden_or_unfinished(tmp_path):
    for name in ("b.npy", "a/2.npy", "a/1.npy", ".h.npy", "_i.npy", "c.npy.tmp", "d.part", "e.npy.crdownload"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "s.zarr" / "x").mkdir(parents=True)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / ".zgroup").touch()

    def names(data):
        return [piece.place.removeprefix(f"{tmp_path}/") for piece in incoming.pieces_of(data)]

    assert names(tmp_path) == ["a/1.npy", "a/2.npy", "b.npy", "s.zarr", "t"]
    assert names(f"{tmp_path}/b*") == ["b.npy"]
    assert names(f"{tmp_path}/[ab]*") == ["a/1.npy", "a/2.npy", "b.npy"]
    with pytest.raises(DataError, match="no file has such a name"):
        incoming.pieces_of(f"{tmp_path}/*.csv")
    assert [piece.place for piece in incoming.pieces_of(np.zeros((2, 1)))] == [None]


def test_what_a_run_has_is_known_by_place_and_content_and_of_feeds_by_position():
    first = {"place": "/in", "fingerprint": [1], "files": ["a.npy", "b.npy"]}
    taken = [
        {"place": "/x.npy", "fingerprint": [2], "content": 22, "item": None},
        {"place": None, "content": 33, "item": None},
        {"place": None, "content": 44, "item": ["queue", "7"]},
        {"place": "/y.npy", "fingerprint": None, "content": 55},
    ]
    known = incoming.Known.of(first, np.array([1, 2]), taken)
    assert known.in_memory == {33}
    at = lambda place, item=None: incoming.Piece(None, place, item)  # noqa: E731
    assert known.has_place(at("/x.npy"), [2]) and not known.has_place(at("/x.npy"), [3])
    assert known.has_place(at("/in/a.npy"), [9])  # of a folder that was compared as a whole
    assert not known.has_place(at("/y.npy"), None)  # nothing is known of its files
    assert not known.has_place(at("/z.npy"), None) and not known.has_place(at(None), [2])
    assert known.has_content(at("/x.npy"), 22, False) and known.has_content(at("/x.npy"), 22, True)
    assert not known.has_content(at("/x.npy"), 23, True) and not known.has_content(at("/z.npy"), 22, False)
    with pytest.raises(StoreError, match="taken in before with another content"):
        known.has_content(at("/x.npy"), 23, False)
    assert known.has_content(at(None), 33, False) and not known.has_content(at(None), 44, False)
    assert not known.has_content(at(None, ("queue", "8")), 33, False)
    assert not known.without(["/x.npy"]).has_place(at("/x.npy"), [2])
    alone = incoming.Known.of(None, np.array([1, 2]), [])
    assert alone.in_memory == {incoming.content_of([1, 2])} != {incoming.content_of([2, 1])} and not alone.by_place


def test_a_feed_goes_on_after_its_own_last_position_and_gives_none_twice():
    asked = []
    feed = bnp.Feed("queue", lambda after: asked.append(after) or ["b", "c", "d", "d", "e"], lambda one: one * 2)
    taken = [{"item": ["queue", "a"]}, {"item": ["queue", "c"]}, {"item": ["other", "z"]}, {"item": None}, {}]
    pieces = list(feed.pieces(taken))
    assert asked == ["c"] and [piece.item for piece in pieces] == [("queue", p) for p in "bde"]
    assert [piece.data() for piece in pieces] == ["bb", "dd", "ee"] and pieces[0].name == "queue:b"
    list(feed.pieces([{"item": ["other", "z"]}]))
    assert asked[-1] is None


def test_times_in_names_are_the_first_that_is_a_date():
    day = 86400.0
    for text, seconds in (
        ("x_2000-01-01.npy", 946684800.0), ("20000102", 946684800.0 + day), ("2000-01-01T01h30", 946684800.0 + 5400.0),
        ("2000-13-01_2000-01-02", 946684800.0 + day), ("2000-01-01-00-00-05", 946684800.0 + 5.0),
    ):  # fmt: skip
        assert incoming.time_in(text) == seconds, text
    for text in ("", "12000-01-01x", "2000-02-30", "1850-01-01"):
        assert np.isnan(incoming.time_in(text)), text
    rows = [2, 1]
    assert incoming.times_of(None, "/2000-01-01/x.npy", rows, None).tolist() == [946684800.0] * 2
    of_file = incoming.times_of(None, "/2000-01-01/2000-01-02.npy", rows, None)  # and not of its folder
    assert of_file.tolist() == [946684800.0 + day] * 2
    assert np.isnan(incoming.times_of(None, "/2000-01-01/a/x.npy", rows, None)).all()
    assert np.isnan(incoming.times_of(None, None, rows, None)).all()


def test_a_batch_is_as_old_as_its_newest_row():
    frame = pd.DataFrame(
        {"t": [5, 1, 7, 2, 3], "d": pd.to_datetime(["1970-01-01 00:00:05"] * 4 + ["1970-01-02 00:00:00"])}
    )
    found = incoming.times_of(frame, None, [3, 0, 2], "t")
    assert found[[0, 2]].tolist() == [7.0, 3.0] and np.isnan(found[1])
    assert incoming.times_of(frame, None, [4, 1], "d").tolist() == [5.0, 86400.0]
    for rows, column, message in (([3, 3], "t", "has 5 rows, and its batches 6"), ([5], "no", "has no column 'no'")):
        with pytest.raises(DataError, match=message):
            incoming.times_of(frame, None, rows, column)


def test_a_file_is_cut_if_it_begins_as_its_kind_and_ends_otherwise(tmp_path):
    for name, data, is_cut in (("a.parquet", b"PAR1abcPAR1", False), ("b.parquet", b"PAR1abc", True),
                               ("c.parquet", b"", True), ("d.parquet", b"PA", True), ("e.parquet", b"xyz", False),
                               ("f.npy", b"PAR1abc", False), ("g.arrow", b"ARROW1..", True)):  # fmt: skip
        (tmp_path / name).write_bytes(data)
        assert incoming._is_cut(str(tmp_path / name)) == is_cut, name
    (tmp_path / "h.zarr").mkdir()
    assert incoming._is_cut(str(tmp_path / "h.zarr"))
    (tmp_path / "h.zarr" / "zarr.json").touch()
    assert not incoming._is_cut(str(tmp_path / "h.zarr"))


@pytest.mark.parametrize(
    ("name", "seconds"),
    [("2000-01-01_2000-01-07.csv", 0.0), ("2000-01-01-2000-01-07", 0.0), ("2000-01-01 2000.01.07", 0.0),
     ("20000101_20000107", 0.0), ("20000101_201530", 72_930.0), ("2000-01-01_20-15-30", 72_930.0),
     ("2000-01-01T20:15:30", 72_930.0), ("2000-01-01_2015", 72_900.0)],
)  # fmt: skip
def test_the_second_date_of_a_range_is_no_time_of_day(name, seconds):
    assert incoming.time_in(name) == 946684800.0 + seconds
