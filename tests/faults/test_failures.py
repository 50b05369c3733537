"""Reading fails on some calls: a run succeeds exactly when that stays within the retries."""

from __future__ import annotations

import multiprocessing
import re
import threading
import time
from _frozen_importlib import _DeadlockError

import pytest

from bnp_dask.data.base import batch_reader, naming_batch
from bnp_dask.errors import DataError
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.execute.base import plain_interrupts
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.execute.reach import open_executor
from bnp_dask.inference import Memoized
from tests.execute.tasks import count_call
from tests.faults.parts import Faulty, NamedError, atoms, bits, go, quiet
from tests.pairwise import in_pairs

KINDS = ["serial", "threads", "dask"]
BATCH = 5


@pytest.fixture
def make(dask_client):
    """``make(kind, retries)``: an executor, closed at the end."""
    made = []

    def build(kind, retries):
        if kind == "serial":
            executor = SerialExecutor(retries)
        elif kind == "threads":
            executor = ThreadExecutor(2, retries)
        else:
            executor = DaskExecutor(dask_client(2), "faults", retries)
        made.append(executor)
        return executor

    yield build
    for executor in made:
        executor.close()


TABLE = {
    "never": ((), 0),
    "first of all": ((0,), 1),
    "twice in a row": ((3, 4), 2),
    "again and again": ((1, 3, 5), 1),
    "three in a row": ((2, 3, 4), 3),
    "a new start after each": ((0, 1, 3, 4, 6, 7), 2),
}
"""Calls of one batch that fail, and how many in a row that is at most."""


@pytest.mark.parametrize(*in_pairs(row=TABLE, retries=[0, 2], kind=KINDS))
def test_a_run_succeeds_exactly_when_failures_stay_within_retries(make, tmp_path, kind, retries, row):
    calls, in_a_row = TABLE[row]
    data = Faulty(atoms(), str(tmp_path), fails=frozenset((BATCH, call) for call in calls))
    executor = make(kind, retries)
    if in_a_row <= retries:
        assert bits(go(executor, "stochastic", data)) == quiet("stochastic")
        return
    with pytest.raises(NamedError) as caught:
        go(executor, "stochastic", data)
    last = min(c for c in calls if all(c - i in calls for i in range(retries + 1)))
    assert str(caught.value) == f"batch {BATCH} call {last}"
    notes = " ".join(caught.value.__notes__)
    assert f"in /data/atoms.zarr batch {BATCH}" in notes
    first, final = re.search(r"raised by task \S*-batch(\d+)(?:-to-(\d+))?", notes).groups()
    assert int(first) <= BATCH <= int(final or first)  # small batches share tasks
    assert count_call(str(tmp_path), BATCH) == last + 1  # no try beyond the last


@pytest.mark.parametrize("retries", [1, 2])
def test_small_batches_that_share_a_task_share_its_retries(tmp_path, retries):
    schedule = Memoized(laps=3, window=8)
    data = Faulty(atoms(), str(tmp_path), fails=frozenset({(BATCH, 3), (BATCH, 4)}))
    disturbed = {"schedule": schedule, "data": data, "store": tmp_path / "run"}
    if retries == 2:
        assert bits(go(SerialExecutor(2), **disturbed)) == bits(go(SerialExecutor(), schedule=schedule))
        return
    with pytest.raises(NamedError, match=f"batch {BATCH} call 4") as caught:
        go(SerialExecutor(1), **disturbed)
    notes = " ".join(caught.value.__notes__)
    assert f"in /data/atoms.zarr batch {BATCH}" in notes
    assert "raised by task local_step-lap" in notes


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_while_computing_names_the_batch_and_its_source(make, monkeypatch, kind):
    """Not reading but the local step fails: the note names the data too."""
    from bnp_dask.inference import local_steps

    monkeypatch.setattr(local_steps, "local_steps", fails_after_reading)
    with pytest.raises(ZeroDivisionError) as caught:
        go(make(kind, 0), "stochastic", Faulty(atoms()))
    assert any("in /data/atoms.zarr batch" in note for note in caught.value.__notes__)


def fails_after_reading(posterior, trials, step):
    with naming_batch(step.request.reader().name):
        return 1 / 0


def test_data_errors_carry_the_batch_in_their_message():
    class Short:
        name = "x.zarr"

        def reader(self, index):
            def read():
                raise DataError("chunk c/3 is missing")

            return read

    with pytest.raises(DataError, match=r"^x.zarr batch 3: chunk c/3 is missing$"):
        batch_reader(Short(), 3)()


def raises_as_compiled_code_does(stop):
    raise SystemError("CPUDispatcher(<function>) returned a result with an exception set") from stop


@pytest.mark.parametrize("stop", [KeyboardInterrupt, type("Terminated", (KeyboardInterrupt,), {})])
def test_an_interrupt_in_compiled_code_is_an_interrupt_and_not_tried_again(stop):
    tried = []

    def task():
        tried.append(1)
        raises_as_compiled_code_does(stop())

    executor = SerialExecutor(retries=3)
    with pytest.raises(stop):
        executor.result(executor.submit("task-1", task))
    assert len(tried) == 1


def test_so_is_one_in_compiled_code_that_compiled_code_called_and_that_no_task_ran():
    def inner():
        raises_as_compiled_code_does(KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt), open_executor(SerialExecutor()):
        try:
            inner()
        except SystemError as error:
            raises_as_compiled_code_does(error)


def test_another_system_error_is_an_error():
    with pytest.raises(SystemError, match="no interrupt"), plain_interrupts():
        raise SystemError("no interrupt") from ValueError()
    executor = SerialExecutor(retries=1)
    with pytest.raises(SystemError):
        executor.result(executor.submit("task-1", raises_as_compiled_code_does, ValueError()))


class OpensInTasksOnly:
    """A value that the thread of a worker which receives it cannot open: another thread imports what it needs."""

    def __reduce__(self):
        return _open_in_tasks_only, ()


def _open_in_tasks_only():
    if multiprocessing.parent_process() is not None and threading.current_thread() is threading.main_thread():
        raise _DeadlockError("another thread imports this")
    return OpensInTasksOnly()


def _hold(value, seconds):
    time.sleep(seconds)
    return type(value).__name__


def test_a_value_that_the_receiving_thread_cannot_open_leaves_nobody_waiting(make):
    executor = make("dask", 2)
    for needed in (executor.share("value", OpensInTasksOnly()), executor.submit("made", OpensInTasksOnly)):
        handles = [executor.submit("hold", _hold, needed, 0.2) for _ in range(8)]
        assert [executor.result(handle) for handle in handles] == ["OpensInTasksOnly"] * 8
    assert isinstance(executor.result(needed), OpensInTasksOnly)
