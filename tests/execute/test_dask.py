"""The Dask executor: keys, memory of the cluster, and what dies."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from dask.utils import key_split
from distributed import Client, LocalCluster, default_client

from bnp_dask.errors import ExecutionError, SettingError
from bnp_dask.execute import SerialExecutor
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.execute.local import ANY_PORT
from bnp_dask.execute.reach import open_executor
from tests.execute.tasks import (
    MEETINGS,
    count_call,
    kill_own_process,
    meet,
    pid_then_go,
    sleep_then_touch,
    where_and_when_after,
)

BOUND = 60.0


def until(condition, what):
    """Poll for a state, in bounded time."""
    deadline = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < deadline, f"waited {BOUND} s for {what}"
        time.sleep(0.02)


def keys_of(client):
    """Keys that the scheduler knows."""
    return set(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks)))


@pytest.fixture
def client(dask_client):
    return dask_client(2)


@pytest.mark.parametrize("run_name", ["patches", "a1b2c3d4", "run-7"])
def test_keys_are_readable_and_grouped(client, run_name):
    executor = DaskExecutor(client, run_name)
    handle = executor.submit("local_step-lap3-batch17", operator.add, 1, 2)
    until(lambda: any(run_name in k for k in keys_of(client)), "the key")
    (key,) = [k for k in keys_of(client) if run_name in k]
    assert key.startswith("local_step-lap3-batch17-")
    assert key_split(key) == "local_step"
    assert executor.result(handle) == 3
    assert key_split(f"posterior-1-{run_name}") == "posterior"


def test_two_runs_of_one_name_do_not_meet(client):
    first, second = DaskExecutor(client, "run"), DaskExecutor(client, "run")
    a, b = first.submit("task-1", operator.add, 1, 1), second.submit("task-1", operator.add, 5, 5)
    assert (first.result(a), second.result(b)) == (2, 10)


def test_result_is_released(client):
    executor = DaskExecutor(client, "released")
    shared = executor.share("posterior-1", np.zeros(10))
    handle = executor.submit("task-1", operator.add, shared, 1)
    executor.result(handle)
    until(lambda: not any(k.startswith("task-1-") for k in keys_of(client)), "the release of the task")
    assert any(k.startswith("posterior-1-") for k in keys_of(client))
    del shared
    until(lambda: not any("released" in k for k in keys_of(client)), "the release of the shared value")


def test_failed_task_is_released(client):
    executor = DaskExecutor(client, "failed", retries=0)
    with pytest.raises(ZeroDivisionError):
        executor.result(executor.submit("divide-1", operator.truediv, 1, 0))
    until(lambda: not any("failed" in k for k in keys_of(client)), "the release")


def test_some_go_before_all_that_wait(dask_client, tmp_path):
    client = dask_client(1)
    executor = DaskExecutor(client, "first")
    busy = executor.submit("busy", pid_then_go, str(tmp_path), 0, True)
    until(lambda: list(tmp_path.glob("pid-*")), "the task before them")
    tasks = [(f"turn-{i}", count_call, (str(tmp_path), 7)) for i in range(5)]
    later = executor.submit_together(tasks)
    first = executor.submit_together(tasks[:2], first=True)
    until(lambda: sum("first" in key for key in keys_of(client)) == 8, "the tasks on the scheduler")
    (tmp_path / "go").touch()
    turns = [executor.result(handle) for handle in (*first, *later)]
    assert sorted(turns) == list(range(7))
    assert max(turns[:2]) <= 2  # one that a worker holds already may go before them
    executor.result(busy)


def test_close_cancels_what_is_out(client, tmp_path):
    executor = DaskExecutor(client, "cancelled")
    handles = [executor.submit(f"wait-{i}", sleep_then_touch, str(tmp_path), i) for i in range(20)]
    executor.close()
    until(lambda: not any("cancelled" in k for k in keys_of(client)), "the cancellation")
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) < len(handles)


def test_sharing_a_large_value_does_not_warn(client):
    executor = DaskExecutor(client, "large")
    with warnings.catch_warnings(), dask.config.set({"distributed.admin.large-graph-warning-threshold": "1kB"}):
        warnings.simplefilter("error")
        shared = executor.share("posterior-1", np.zeros(10_000))
    assert executor.result(shared).shape == (10_000,)


@pytest.mark.parametrize("direct", [None, False, True])
def test_ways_of_gathering(client, direct):
    executor = DaskExecutor(client, "direct", direct=direct)
    np.testing.assert_array_equal(executor.result(executor.submit("ones-1", np.ones, 1000)), np.ones(1000))


def test_a_value_that_does_not_come_is_asked_for_again(client, monkeypatch):
    """Whoever held it may have died since the task was done; then Dask's own wait has no end."""
    monkeypatch.setattr("bnp_dask.execute.dask.FETCH_SECONDS", 0.05)
    asked, gather = [], client.gather

    async def at_first_never(*args, **more):
        asked.append(time.monotonic())
        if len(asked) < 3:
            await asyncio.Event().wait()
        return await gather(*args, **more)

    monkeypatch.setattr(client, "gather", at_first_never)
    executor = DaskExecutor(client, "again")
    assert executor.result(executor.submit("add", operator.add, 2, 3)) == 5
    assert len(asked) == 3


def test_number_of_workers(client, monkeypatch):
    executor, asked = DaskExecutor(client, "workers"), []
    ncores = client.scheduler.ncores
    monkeypatch.setattr(client.scheduler, "ncores", lambda: asked.append(1) or ncores(), raising=False)
    assert [executor.n_workers for _ in range(100)] == [2] * 100
    assert 1 <= len(asked) < 100
    executor._look_again = 0.0  # later
    assert executor.n_workers == 2


def test_wrong_client():
    with pytest.raises(SettingError, match=r"needs a distributed\.Client"):
        DaskExecutor("tcp://127.0.0.1:8786", "run")


def test_error_that_pickles_itself_keeps_its_task(client):
    class Stubborn(Exception):
        def __reduce__(self):
            return type(self), self.args

    def fail():
        raise Stubborn("no")

    executor = DaskExecutor(client, "stubborn", retries=0)
    with pytest.raises(Exception, match="no") as caught:
        executor.result(executor.submit("fail-7", fail))
    assert caught.value.__notes__ == ["raised by task fail-7"]


# -- deaths -------------------------------------------------------------------------------------------------------
def test_killed_worker_loses_nothing(own_cluster, tmp_path):
    """A worker dies by SIGKILL in the middle of a task: every result arrives, shared values included."""
    executor = DaskExecutor(own_cluster(2), "killed")
    shared = executor.share("folder-1", str(tmp_path))
    handles = [executor.submit(f"wait-{i}", pid_then_go, shared, i, i == 5) for i in range(12)]
    assert executor.result(handles[0])[1] == 0
    until(lambda: list(tmp_path.glob("pid-*-5")), "the task that waits")
    killed = int(next(tmp_path.glob("pid-*-5")).name.split("-")[1])
    os.kill(killed, signal.SIGKILL)
    (tmp_path / "go").touch()
    found = [executor.result(h) for h in handles[1:]]
    assert [task for _, task in found] == list(range(1, 12))
    assert found[4][0] != killed
    # What was shared before the death still serves new tasks.
    pid, task = executor.result(executor.submit("wait-99", pid_then_go, shared, 99, False))
    assert task == 99
    assert pid != killed
    executor.close()


def test_tasks_run_in_the_order_of_submission(client, tmp_path):
    executor = DaskExecutor(client, "order")
    gates = [executor.submit(f"gate-{i}", pid_then_go, str(tmp_path), i, True) for i in range(2)]
    handles = [executor.submit(f"time-{30 - i}", where_and_when_after, 0.005) for i in range(20)]
    (tmp_path / "go").touch()
    found = [executor.result(h) for h in gates + handles][2:]
    # A busy machine may leave one of the workers behind, but what it does it does in order.
    for worker in {pid for pid, _ in found}:
        times = [time for pid, time in found if pid == worker]
        assert times == sorted(times)


def test_task_that_kills_its_workers(own_cluster):
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        executor = DaskExecutor(own_cluster(1), "killer", worker_losses=0)
        with pytest.raises(ExecutionError, match=r"1 workers died .* ran task kill-1;.*memory.*make the call again"):
            executor.result(executor.submit("kill-1", kill_own_process))


def test_no_workers(own_cluster):
    executor = DaskExecutor(own_cluster(0), "nobody", worker_timeout=0.5)
    assert executor.n_workers == 0
    with pytest.raises(ExecutionError, match=r"no worker has been connected for \d+ s, so task add-1"):
        executor.result(executor.submit("add-1", operator.add, 1, 1))


def test_closed_client(own_cluster):
    client = own_cluster(0)
    executor = DaskExecutor(client, "closed")
    handle = executor.submit("add-1", operator.add, 1, 1)
    client.close()
    with pytest.raises(ExecutionError, match=r"lost the Dask cluster while task add-1.*make the call again"):
        executor.result(handle)
    with pytest.raises(ExecutionError, match="lost the Dask cluster while task add-2"):
        executor.submit("add-2", operator.add, 1, 1)
    executor.close()


def test_killed_scheduler(tmp_path):
    """The scheduler dies by SIGKILL: waiting ends with an error that says to resume."""
    file = tmp_path / "scheduler.json"
    code = (
        "import asyncio, sys\n"
        "from distributed import Scheduler\n"
        "async def main():\n"
        "    async with Scheduler(host='127.0.0.1', port=0, dashboard=False, scheduler_file=sys.argv[1]) as s:\n"
        "        await s.finished()\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(file)])
    try:
        until(lambda: file.exists() and file.read_text().strip().endswith("}"), "the scheduler")
        with Client(scheduler_file=str(file), set_as_default=False, timeout=5) as client:
            executor = DaskExecutor(client, "orphan")
            handle = executor.submit("add-1", operator.add, 1, 1)
            until(lambda: keys_of(client), "the task")
            process.kill()
            started = time.monotonic()
            with pytest.raises(ExecutionError, match=r"lost the Dask cluster while task add-1.*make the call again"):
                executor.result(handle)
            assert time.monotonic() - started < 20
            executor.close()
    finally:
        process.kill()
        process.wait()


def test_only_one_module_of_the_executors_imports_dask():
    code = "import sys, bnp_dask.execute; print(any(m.split('.')[0] in ('dask', 'distributed') for m in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert found.stdout.strip() == "False"


def test_a_current_client_that_never_connected_is_named_and_not_used():
    with pytest.raises(TypeError) as kept:
        Client("tls://127.0.0.1:1", timeout=1)
    try:
        with pytest.raises(SettingError, match=r"tls://127.0.0.1:1, is not connected; .*SerialExecutor"):
            open_executor(None).__enter__()
        with open_executor(SerialExecutor()) as executor:
            assert executor.result(executor.submit("add", operator.add, 1, 2)) == 3
    finally:
        default_client().close()
    del kept
    with open_executor(None) as executor:
        assert isinstance(executor, SerialExecutor)


def test_a_current_client_whose_own_cluster_failed_is_named_too(monkeypatch):
    """Dask has no scheduler then."""
    broken = SimpleNamespace(status="connecting", asynchronous=False, scheduler=None)
    monkeypatch.setattr("bnp_dask.execute.dask.default_client", lambda: broken)
    with pytest.raises(SettingError, match="of a cluster that did not start, is not connected"):
        open_executor(None).__enter__()


def test_a_client_forgets_what_it_sent(own_cluster):
    """As it comes it keeps the last 1,000 messages below 1 MB: tasks and what they take."""
    client = own_cluster(1, processes=False)
    executor = DaskExecutor(client, "forgets")
    assert [executor.result(executor.submit(f"size-{i}", np.size, np.zeros(1000))) for i in range(20)] == [1000] * 20
    assert len(client.scheduler_comm.recent_message_log) == 0
    executor.close()


# -- who gets which task ------------------------------------------------------------------------------------------
def test_tasks_that_need_one_value_go_to_all_workers():
    """Tasks of a group wait for one another, and no worker may take over what waits at another."""
    with (
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        LocalCluster(
            processes=False,
            n_workers=4,
            threads_per_worker=1,
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": ANY_PORT},
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        executor = DaskExecutor(client, "spread")
        for number in range(8):  # from the fifth value on Dask gives them to its holder, unless they are marked
            MEETINGS[number] = threading.Barrier(4)
            shared = executor.share(f"posterior-{number}", number)
            tasks = [(f"local_step-{number}-{i}", meet, (number, shared, i)) for i in range(4)]
            assert executor.results_together(executor.submit_together(tasks)) == [number + i for i in range(4)]
        assert len(executor._values) == 1
        executor.close()
