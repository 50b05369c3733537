"""Runs that grow, and keep assignments of batches that can be read again."""

from __future__ import annotations

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.errors import StoreError
from bnp_dask.execute.serial import SerialExecutor
from tests.growing.parts import begin, bits_of, grow
from tests.memory.test_assignments import MODEL, K, kept, rows

SIZE = 220


def place(folder, seed):
    folder.mkdir(exist_ok=True)
    np.save(folder / f"{seed}.npy", rows(seed)[: 2 * SIZE])
    return folder / f"{seed}.npy"


@pytest.fixture
def run(tmp_path):
    """A run of three files of two batches, and their paths; assignments are kept of all."""
    paths = [place(tmp_path / "in", seed) for seed in range(3)]
    begin(tmp_path / "run", paths[0], 2, SIZE, MODEL, (), K)
    for path in paths[1:]:
        grow(tmp_path / "run", path, batch_size=SIZE)
    assert kept(tmp_path / "run")[0] == [True] * 6
    return tmp_path / "run", paths


@pytest.fixture
def summed(tmp_path, run):
    """The same of data in memory, which cannot be read again: statistics are kept."""
    begin(tmp_path / "summed", rows(0)[: 2 * SIZE], 2, SIZE, MODEL, (), K)
    for seed in (1, 2):
        grow(tmp_path / "summed", rows(seed)[: 2 * SIZE], batch_size=SIZE)
    assert not any(kept(tmp_path / "summed")[0])
    return tmp_path / "summed"


def of(posterior):
    return {name: value.tobytes() for name, value in posterior.summary.values.items()}


def close(one, other):
    both = [(one.summary[name], other.summary[name]) for name in one.summary.values]
    return all(np.allclose(a, b, rtol=1e-12, atol=1e-9) for a, b in both)


def test_what_is_retired_leaves_as_if_it_had_never_been_there(tmp_path):
    paths = [place(tmp_path / "in", seed) for seed in range(3)]
    found = []
    for name, keep in (("run", None), ("summed", "100 batches")):  # what is to go by age has its statistics kept
        store = tmp_path / name
        begin(store, paths[0], 2, SIZE, MODEL, (), K)
        grow(store, paths[1], batch_size=SIZE, keep=keep)
        assert kept(store)[0][2:] == [keep is None] * 2
        found.append(bnp.retire(store, paths[1]))
    assert of(found[0]) == of(found[1])
    assert found[0].summary["N"].sum() == pytest.approx(2 * SIZE, rel=1e-12)


def test_of_data_that_are_gone_the_total_is_summed_from_all_others(run):
    store, paths = run
    saved = paths[1].read_bytes()
    np.save(paths[1], rows(9)[: 2 * SIZE])
    found = bnp.retire(store, paths[1])
    other = store.parent / "other"
    paths[1].write_bytes(saved)
    begin(other, paths[0], 2, SIZE, MODEL, (), K)
    for path in paths[1:]:
        grow(other, path, batch_size=SIZE)
    assert close(found, bnp.retire(other, paths[1]))
    paths[2].unlink()
    paths[0].unlink()
    before = bits_of(store)
    with pytest.raises(StoreError, match="Put the data of one of them back"):
        bnp.retire(store, paths[2])
    assert bits_of(store) == before


def test_data_that_were_corrected_take_the_place_of_what_was_there(run):
    store, paths = run
    np.save(paths[1], rows(11)[: 3 * SIZE])
    found = bnp.replace(store, paths[1], client=SerialExecutor())
    assert found.new_batches == 3
    assert found.posterior.summary["N"].sum() == pytest.approx(7 * SIZE, rel=1e-12)
    data = np.concatenate([np.load(path) for path in paths])
    away = data - found.posterior.model.observation.center
    np.testing.assert_allclose(found.posterior.summary["x"].sum(axis=0), away.sum(axis=0), rtol=1e-9)


def test_batches_that_no_later_call_can_read_keep_statistics(summed):
    assert bnp.retire(summed, batches=[2]).summary["N"].sum() == pytest.approx(5 * SIZE, rel=1e-12)
