"""New batches are read once where there is room to hold them, and are what was looked at in any case."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from bnp_dask.core.batch import Batch
from bnp_dask.data.sources import arrays as npy
from bnp_dask.errors import DataError, StoreError
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.training.growing import growing_run as holding
from bnp_dask.training.growing import update
from bnp_dask.training.growing.growing_run import HoldingReader, Room
from tests.growing.parts import begin, bits_of, day, files, grow

BATCH = 60 * 3 * 8
"""Bytes of one of the four batches of a day."""


@pytest.fixture
def reads(monkeypatch):
    """Spans of all rows that are read in this process."""
    found, real = [], npy.NpyFile.read

    def read(self, span, dtype):
        found.append(span)
        return real(self, span, dtype)

    monkeypatch.setattr(npy.NpyFile, "read", read)
    return found


def bits(tmp_path, name, paths, client=None):
    begin(tmp_path / name, paths[0])
    found = grow(tmp_path / name, paths[1], client)
    return found, bits_of(tmp_path / name)[2]


@pytest.mark.first_case
@pytest.mark.parametrize(("room", "expected"), [(None, 4), (0, 8), (2 * BATCH, 6), (BATCH - 1, 8)])
def test_batches_are_read_once_as_far_as_there_is_room(tmp_path, monkeypatch, reads, room, expected):
    paths = files(tmp_path / "in", 2)
    begin(tmp_path / "run", paths[0])
    if room is not None:
        monkeypatch.setattr(holding, "HELD", room)
    reads.clear()
    assert grow(tmp_path / "run", paths[1], revisit=0).version == 1
    assert len(reads) == expected


def test_bits_are_those_of_reading_again(tmp_path, monkeypatch, dask_client):
    paths = files(tmp_path / "in", 2)
    held, wanted = bits(tmp_path, "held", paths)
    assert bits(tmp_path, "threads", paths, ThreadExecutor(2))[1] == wanted
    assert bits(tmp_path, "dask", paths, dask_client(1))[1] == wanted
    monkeypatch.setattr(holding, "HELD", 0)
    again, found = bits(tmp_path, "again", paths)
    assert found == wanted and again.fresh == held.fresh


@pytest.fixture
def changing(tmp_path, monkeypatch):
    """A run, and a file whose content changes between the look at it and its visit."""
    paths = files(tmp_path / "in", 2)
    begin(tmp_path / "run", paths[0])
    visits = update.visit_arrivals

    def changed_first(*args, leaves):
        np.save(paths[1], day(7))
        return visits(*args, leaves=leaves)

    monkeypatch.setattr(update, "visit_arrivals", changed_first)
    return tmp_path / "run", paths


@pytest.mark.parametrize("room", [0, 2 * BATCH])
def test_a_file_that_changes_while_it_is_taken_is_refused(changing, monkeypatch, room):
    """Also where some of its batches are held, and others are read again."""
    store, paths = changing
    before = bits_of(store)
    monkeypatch.setattr(holding, "HELD", room)
    with pytest.raises(DataError, match="the data changed"):
        grow(store, paths[1])
    assert bits_of(store) == before


def test_a_file_that_is_held_is_taken_as_it_was_looked_at(changing, tmp_path):
    store, paths = changing
    looked_at = day(1)
    np.testing.assert_array_equal(np.load(paths[1]), looked_at)
    found = grow(store, paths[1])
    begin(tmp_path / "other", paths[0])
    wanted = grow(tmp_path / "other", looked_at)
    assert found.posterior.summary["N"].tobytes() == wanted.posterior.summary["N"].tobytes()
    with pytest.raises(StoreError, match="with another content"):
        grow(store, paths[1])


def test_what_is_known_already_leaves_its_room(tmp_path, monkeypatch, reads):
    paths = files(tmp_path / "in", 2)
    begin(tmp_path / "run", paths[0])
    os.utime(paths[0], (1, 1))  # another time, and the same content, which only reading tells
    monkeypatch.setattr(holding, "HELD", 4 * BATCH)
    reads.clear()
    found = grow(tmp_path / "run", tmp_path / "in", revisit=0)
    assert (found.known, found.new) == ((str(paths[0]),), (str(paths[1]),))
    assert len(reads) == 8  # four of each file


def test_another_process_gets_the_reader_alone():
    reader = HoldingReader(np.float64, Room(0))
    assert pickle.loads(pickle.dumps(reader)) is np.float64


def test_room_is_given_back():
    room = Room(100)
    assert room.take(60) and not room.take(60) and room.take(40) and room.left == 0
    reader = HoldingReader(lambda: Batch(np.zeros((2, 2))), Room(31))
    assert reader() is not reader() and reader.batch is None
    reader = HoldingReader(lambda: Batch(np.zeros((2, 2))), Room(32))
    assert reader() is reader() is reader.batch
