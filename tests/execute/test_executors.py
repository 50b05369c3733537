"""What every executor promises: the same bits, the same errors, the same life of handles."""

from __future__ import annotations

import gc
import operator
import weakref

import numpy as np
import pytest

from bnp_dask.errors import DataError, ExecutionError, SettingError, StoreError
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.execute.base import in_order
from bnp_dask.execute.dask import DaskExecutor
from tests.execute.tasks import NamedError, add, blas_threads, count_call, fails_on, gemm_task, type_names

KINDS = ["serial", "threads", "dask"]


@pytest.fixture
def make(dask_client):
    """``make(kind, retries)``: an executor, closed at the end."""
    made = []

    def build(kind, retries=0):
        if kind == "serial":
            executor = SerialExecutor(retries)
        elif kind == "threads":
            executor = ThreadExecutor(2, retries)
        else:
            executor = DaskExecutor(dask_client(2), "test", retries)
        made.append(executor)
        return executor

    yield build
    for executor in made:
        executor.close()


@pytest.fixture(params=KINDS)
def executor(request, make):
    return make(request.param)


@pytest.mark.first_case
def test_value_of_a_task(executor):
    assert executor.result(executor.submit("add-1", operator.add, 2, 3)) == 5


def test_shared_value_serves_many_tasks(executor):
    shared = executor.share("posterior-1", np.arange(4.0))
    handles = [executor.submit(f"scale-{i}", operator.mul, shared, i) for i in range(5)]
    for i, handle in enumerate(handles):
        np.testing.assert_array_equal(executor.result(handle), np.arange(4.0) * i)
    np.testing.assert_array_equal(executor.result(shared), np.arange(4.0))


def test_handles_of_tasks_among_the_arguments(executor):
    """A tree of sums; results of inner tasks may be asked for before, or never."""
    leaves = [executor.submit(f"leaf-{i}", operator.mul, i, 0.1) for i in range(8)]
    pairs = [executor.submit(f"pair-{i}", add, a, b) for i, (a, b) in enumerate(zip(leaves[::2], leaves[1::2]))]
    top = executor.submit("top-1", add, *pairs)
    assert executor.result(pairs[0]) == 0 * 0.1 + 1 * 0.1
    del leaves, pairs
    values = [i * 0.1 for i in range(8)]
    assert executor.result(top) == add(*(a + b for a, b in zip(values[::2], values[1::2])))


def test_arguments_arrive_as_they_were(executor):
    """Containers are not taken apart, and a text that equals a key stays a text."""
    shared = executor.share("shared-1", 7)
    sent = ([1, 2], {"a": 1}, (3,), None, "shared-1", shared)
    assert executor.result(executor.submit("types-1", type_names, *sent)) == (
        "list", "dict", "tuple", "NoneType", "str", "int",
    )  # fmt: skip


def test_function_that_no_worker_can_import(executor):
    offset = 10
    assert executor.result(executor.submit("local-1", lambda x: x + offset, 1)) == 11


def test_same_name_again(executor):
    """Another visit may use the name of an earlier one, with another value."""
    first = executor.submit("step-1", operator.add, 1, 1)
    second = executor.submit("step-1", operator.add, 2, 2)
    assert (executor.result(second), executor.result(first)) == (4, 2)
    assert executor.result(executor.submit("step-1", operator.add, 3, 3)) == 6


def test_error_keeps_type_and_message_and_names_the_task(executor, tmp_path):
    handle = executor.submit("local_step-batch3", fails_on, str(tmp_path), 3, (0,))
    with pytest.raises(NamedError, match="task 3") as caught:
        executor.result(handle)
    assert str(caught.value) == "task 3 call 0"
    assert caught.value.__notes__ == ["raised by task local_step-batch3"]


def test_error_of_a_needed_task_names_that_task(executor, tmp_path):
    inner = executor.submit("inner-1", fails_on, str(tmp_path), 1, (0,))
    outer = executor.submit("outer-1", operator.add, inner, 1)
    with pytest.raises(NamedError, match="task 1") as caught:
        executor.result(outer)
    assert caught.value.__notes__ == ["raised by task inner-1"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("retries", [0, 2])
def test_failure_table(make, tmp_path, kind, retries):
    """Task i fails on the calls in row i: it succeeds exactly when its leading failures are within the retries."""
    table = {0: (), 1: (0,), 2: (0, 1), 3: (0, 1, 2), 4: (1, 2), 5: (0, 1, 2, 3)}
    executor = make(kind, retries)
    handles = {i: executor.submit(f"task-{i}", fails_on, str(tmp_path), i, row) for i, row in table.items()}
    for i, row in table.items():
        leading = 0
        while leading in row:
            leading += 1
        if leading <= retries:
            assert executor.result(handles[i]) == i
        else:
            with pytest.raises(NamedError) as caught:
                executor.result(handles[i])
            assert str(caught.value) == f"task {i} call {retries}"
        assert count_call(str(tmp_path), i) == min(leading, retries) + 1  # tries made, no more


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kind_of_error", [ValueError, DataError, TypeError, FileNotFoundError, StoreError])
def test_what_is_the_same_at_every_try_is_tried_once_and_not_logged(make, tmp_path, kind, kind_of_error, caplog):
    executor = make(kind, 2)
    with pytest.raises(kind_of_error, match="task 1 call 0"):
        executor.result(executor.submit("task-1", fails_on, str(tmp_path), 1, (0,), kind_of_error))
    assert count_call(str(tmp_path), 1) == 1
    assert not [r for r in caplog.records if r.name.startswith("bnp_dask")]


@pytest.mark.parametrize("kind", KINDS)
def test_what_may_pass_is_tried_again_and_the_log_says_why(make, tmp_path, kind, caplog):
    executor = make(kind, 2)
    assert executor.result(executor.submit("task-1", fails_on, str(tmp_path), 1, (0, 1), ConnectionError)) == 1
    said = [r.getMessage() for r in caplog.records if r.name.startswith("bnp_dask")]
    assert said == [
        "task task-1 failed, 2 tries left: ConnectionError: task 1 call 0",
        "task task-1 failed, 1 try left: ConnectionError: task 1 call 1",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_each_task_that_another_needs_has_tries_of_its_own(make, tmp_path, kind):
    executor = make(kind, 2)
    needed = [executor.submit(f"task-{i}", fails_on, str(tmp_path), i, (0, 1)) for i in range(3)]
    assert executor.result(executor.submit("add-1", add, *needed)) == 3
    assert [count_call(str(tmp_path), i) for i in range(3)] == [3, 3, 3]


def test_void_handles_are_refused(executor):
    handle = executor.submit("add-1", operator.add, 2, 3)
    executor.result(handle)
    for use in (lambda: executor.result(handle), lambda: executor.submit("x", operator.neg, handle)):
        with pytest.raises(ExecutionError, match="'add-1' is void"):
            use()


def test_handles_of_another_executor_are_refused(executor):
    other = SerialExecutor()
    with pytest.raises(ExecutionError, match="belongs to another executor"):
        executor.submit("x", operator.neg, other.share("value", 1))


def test_nothing_works_after_close(executor):
    handle = executor.submit("add-1", operator.add, 2, 3)
    executor.close()
    executor.close()
    with pytest.raises(ExecutionError, match="void"):
        executor.result(handle)
    with pytest.raises(ExecutionError, match="closed"):
        executor.submit("add-2", operator.add, 2, 3)
    with pytest.raises(ExecutionError, match="closed"):
        executor.share("x", 1)


def test_one_blas_thread_in_every_task(executor):
    assert executor.result(executor.submit("threads-1", blas_threads)) == 1


def test_same_bits_everywhere(dask_client):
    """Serial, threads, Dask workers in 1, 2 and 4 processes, Dask workers in threads: equal bits."""
    executors = [SerialExecutor(), ThreadExecutor(2), ThreadExecutor(3)]
    executors += [DaskExecutor(dask_client(n), "bits") for n in (1, 2, 4)]
    executors.append(DaskExecutor(dask_client(2, processes=False), "bits"))
    expected = None
    for executor in executors:
        handles = [executor.submit(f"gemm-{seed}", gemm_task, seed, 300) for seed in range(4)]
        found = [executor.result(h).tobytes() for h in handles]
        expected = expected or found
        assert found == expected
        executor.close()


# -- each one's own -----------------------------------------------------------------------------------------------
def test_serial_runs_a_task_when_it_is_asked_for():
    ran = []
    executor = SerialExecutor()
    handles = [executor.submit(f"task-{i}", ran.append, i) for i in range(3)]
    assert ran == []
    executor.result(handles[1])
    assert ran == [1]


def test_serial_holds_no_value_that_was_handed_out():
    class Big:
        pass

    executor = SerialExecutor()
    handle = executor.submit("big-1", Big)
    value = executor.result(handle)
    ref = weakref.ref(value)
    del value
    gc.collect()
    assert ref() is None


def test_serial_long_chain():
    executor = SerialExecutor()
    handle = executor.share("start", 0)
    for i in range(5000):
        handle = executor.submit(f"add-{i}", operator.add, handle, 1)
    assert executor.result(handle) == 5000


def test_threads_run_side_by_side():
    import threading

    barrier = threading.Barrier(3)
    executor = ThreadExecutor(3)
    handles = [executor.submit(f"meet-{i}", barrier.wait, 20) for i in range(3)]
    assert sorted(executor.result(h) for h in handles) == [0, 1, 2]
    executor.close()


def test_threads_that_need_queued_tasks_do_not_lock_up():
    executor = ThreadExecutor(1)
    handle = executor.share("start", 0)
    for i in range(200):
        handle = executor.submit(f"add-{i}", operator.add, handle, 1)
    assert executor.result(handle) == 200
    executor.close()


@pytest.mark.parametrize("n_workers", [0, -1, 1.5, True])
def test_bad_number_of_threads(n_workers):
    with pytest.raises(SettingError, match="n_workers"):
        ThreadExecutor(n_workers)


@pytest.mark.parametrize("retries", [-1, 0.5, None])
def test_bad_retries(retries):
    for build in (SerialExecutor, lambda r: ThreadExecutor(1, r)):
        with pytest.raises(SettingError, match="retries"):
            build(retries)


@pytest.mark.parametrize("window", [0, 1, 2, 5, 20])
@pytest.mark.parametrize("slight", [False, True])
def test_in_order(window, slight):
    """Also where a window of twice the workers is none, because all of them are gone for the moment."""
    tasks = [(f"count-{i}", divmod, (i, 3)) for i in range(7)]
    assert list(in_order(SerialExecutor(), tasks, window, slight)) == [divmod(i, 3) for i in range(7)]
    assert list(in_order(SerialExecutor(), [], window, slight)) == []


@pytest.mark.parametrize("window", [1, 3, 20])
def test_tasks_in_order_are_sent_before_results_are_asked_for(window, monkeypatch):
    sent, submit = [], SerialExecutor.submit
    monkeypatch.setattr(SerialExecutor, "submit", lambda self, *task: sent.append(task[0]) or submit(self, *task))
    names = [f"count-{i}" for i in range(7)]
    found = in_order(SerialExecutor(), [(name, divmod, (7, 3)) for name in names], window)
    assert sent == names[:window]
    assert list(found) == [(2, 1)] * 7 and sent == names


@pytest.mark.parametrize(("slight", "seen"), [(False, [4, 4, 5, 6, 7]), (True, [4, 4, 4, 6, 6])])
def test_of_slight_tasks_half_a_window_stays_out_while_results_come_back(slight, seen, monkeypatch):
    """How many tasks were sent before the first results were asked for, and when each of them had come back."""
    sent, submit = [], SerialExecutor.submit
    monkeypatch.setattr(SerialExecutor, "submit", lambda self, *task: sent.append(task[0]) or submit(self, *task))
    found = in_order(SerialExecutor(), [(f"count-{i}", divmod, (7, 3)) for i in range(9)], 4, slight)
    counts = [len(sent)]
    for _ in range(4):
        next(found)
        counts.append(len(sent))
    assert counts == seen
