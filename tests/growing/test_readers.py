"""Readers in other processes while versions are published: whole versions only, and none after a later one."""

from __future__ import annotations

import multiprocessing
import zlib

import pytest

import bnp_dask as bnp
from tests.growing.parts import begin, day, grow

FIRST, MORE = 240, 40
"""Atoms of the first data, and of each update."""

READERS = 2


def seen_in(posterior):
    """Number of a version by its atoms, and a checksum of all its arrays."""
    arrays, crc = posterior.summary.to_arrays(), 0
    for name in sorted(arrays):
        crc = zlib.crc32(arrays[name].tobytes(), zlib.crc32(name.encode(), crc))
    return round((float(posterior.summary["N"].sum()) - FIRST) / MORE), crc


def read(store, ready, stop, found):
    """Load the version in force again and again; the numbers in turn without repetition, and what was wrong."""
    turns, crcs, wrong, n_read = {"": [], "/posterior.zarr": []}, set(), [], 0
    is_last = False
    while not is_last:
        is_last = stop.is_set()
        for place, turn in turns.items():
            try:
                number, crc = seen_in(bnp.load(f"{store}{place}"))
            except Exception as error:
                wrong.append(f"{type(error).__name__}: {error}")
                continue
            crcs.add((number, crc))
            if turn[-1:] != [number]:
                turn.append(number)
        n_read += 1
        ready.set()
    found.put((turns, crcs, wrong[:5], n_read))


@pytest.mark.long
@pytest.mark.parametrize("publishes", [8, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(3000)])])
def test_readers_in_other_processes_see_whole_versions_in_order(tmp_path, publishes):
    first = begin(tmp_path / "run", day(0, n=FIRST))
    published = {0: seen_in(first.posterior)[1]}
    context = multiprocessing.get_context("spawn")
    stop, found = context.Event(), context.Queue()
    readies = [context.Event() for _ in range(READERS)]
    readers = [context.Process(target=read, args=(str(tmp_path / "run"), ready, stop, found)) for ready in readies]
    for reader in readers:
        reader.start()
    try:
        for ready in readies:
            assert ready.wait(120)
        for number in range(1, publishes + 1):
            done = grow(tmp_path / "run", day(number, n=MORE), batch_size=MORE, versions=2, revisit=0)
            assert done.version == number
            published[number] = seen_in(done.posterior)[1]
    finally:
        stop.set()
    out = [found.get(timeout=120) for _ in readers]
    for reader in readers:
        reader.join(60)
    for turns, crcs, wrong, n_read in out:
        assert not wrong
        assert n_read > 1 and all(published[number] == crc for number, crc in crcs)
        for turn in turns.values():
            assert turn == sorted(turn) and turn[-1] == publishes
    print("loads of each reader:", [2 * n_read for *_, n_read in out])
