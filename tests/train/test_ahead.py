"""Runs whose batches are read ahead: the same bits, and a batch that is out of reach once is not lost."""

from __future__ import annotations

import threading
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.execute import SerialExecutor
from bnp_dask.execute import prefetch as ahead
from tests.execute.reading import WAIT, events, note, only_reads_count, until
from tests.faults.parts import Faulty, atoms
from tests.faults.parts import go as go_small
from tests.train.test_same_bits import bits, blobs

N_BATCHES = 9


@dataclass(frozen=True)
class SlowReader:
    """Waits, and gives rows; where it ``fails``, only other threads than those that read ahead get them."""

    folder: str
    index: int
    x: np.ndarray
    fails: bool

    def __call__(self) -> Batch:
        note(self.folder, "read", self.index)
        time.sleep(WAIT)
        if self.fails and threading.current_thread().name == ahead.THREAD_NAME:
            raise OSError("out of reach")
        return Batch(self.x, None, f"slow batch {self.index}")


@dataclass(frozen=True)
class SlowSource:
    """Rows that are long in coming."""

    folder: str
    fails: bool = False
    name: str = "slow"
    n_batches: int = N_BATCHES
    n_features: int = 4
    is_sparse: bool = False
    n_atoms: int = 1800

    def reader(self, index: int) -> SlowReader:
        return SlowReader(self.folder, index, np.array_split(blobs(self.n_atoms), N_BATCHES)[index], self.fails)

    def describe(self) -> dict[str, Any]:
        return {"kind": "slow"}


def go(source, client, store=None, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bnp.train(
            bnp.Model(bnp.DPMixture(3.0), bnp.Gaussian()),
            source,
            init=bnp.BregmanKMeans(3),
            schedule=bnp.Memoized(laps=3, window=8, tolerance=0.0),
            moves=[bnp.Birth(sample=200, refine=4), bnp.Merge(), bnp.Delete()],
            client=client,
            store=store,
            **more,
        )


def threads(folder):
    """How many reads there were, by whom."""
    names = [line[3] for line in events(folder)]
    return names.count(ahead.THREAD_NAME), len(names)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run in this thread, each batch by a task of its own."""
    folder = str(tmp_path_factory.mktemp("alone"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bnp_dask.data.base.TOGETHER", 1)
        result = go(SlowSource(folder), SerialExecutor())
    assert threads(folder)[0] == 0
    return bits(result)


@pytest.mark.first_case
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_the_same_bits(dask_client, tmp_path, alone, stored, fails):
    client = dask_client(2)
    found = go(SlowSource(str(tmp_path), fails), client, tmp_path / "run" if stored else None)
    assert bits(found) == alone
    n_ahead, n_reads = threads(tmp_path)
    assert n_ahead > 0.2 * n_reads
    until(lambda: sum(client.run(ahead.n_held).values()) == 0, "the end of all that is held")


def test_a_batch_that_was_read_ahead_in_vain_is_read_again(tmp_path, monkeypatch, alone):
    """One task visits several small batches."""
    monkeypatch.setattr("bnp_dask.inference.local_steps.SMALL_EFFORT", np.inf)
    monkeypatch.setattr(ahead, "time", ahead.time)  # as it is, again at the end
    only_reads_count()
    found = go(SlowSource(str(tmp_path), fails=True), SerialExecutor(retries=0), tmp_path / "run")
    assert threads(tmp_path)[0] > 0
    assert bits(found)[1] == alone[1]


def test_a_small_batch_that_is_out_of_reach_once_is_not_left_out(tmp_path, monkeypatch):
    """Every other call fails, whoever makes it."""
    monkeypatch.setattr("bnp_dask.inference.local_steps.SMALL_EFFORT", np.inf)
    fails = frozenset((batch, call) for batch in range(8) for call in range(1, 200, 2))
    schedule = bnp.Memoized(laps=3, window=8, tolerance=0.0)
    runs = []
    for name, failing in (("calm", frozenset()), ("failing", fails)):
        (tmp_path / name).mkdir()
        data = Faulty(atoms(), str(tmp_path / name), failing)
        store = tmp_path / f"run {name}"
        runs.append(go_small(SerialExecutor(), data=data, schedule=schedule, on_bad_batch="skip", store=store))
    assert not runs[1].skipped
    assert bits(runs[1]) == bits(runs[0])
