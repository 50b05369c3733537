"""How workers are set, and the cluster that is started on this machine."""

from __future__ import annotations

import contextlib
import operator
import os
import signal
import socket
import subprocess
import sys
import threading
import types
import zlib

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster, default_client

from bnp_dask.cli.console import open_client
from bnp_dask.cli.jobfile import ClientSpec
from bnp_dask.errors import ExecutionError, SettingError
from bnp_dask.execute import local
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.execute.local import ANY_PORT, DASHBOARD, local_client, worker_settings
from bnp_dask.execute.message import Message
from bnp_dask.execute.serial import SerialExecutor
from tests.train.test_same_bits import SCHEDULES, bits, go

TRIM = "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_"


@pytest.mark.parametrize("limit, is_roomy", [("auto", True), (None, True), (0, True), ("4GB", True), ("200MB", False)])
def test_only_workers_with_memory_to_spare_keep_what_they_free(limit, is_roomy):
    found = worker_settings(limit)
    assert (TRIM in found) == is_roomy
    assert {"distributed.deploy.lost-worker-timeout", "distributed.scheduler.work-stealing-interval"} <= found.keys()
    with dask.config.set(found):
        assert dask.config.get("distributed.worker.profile.cycle") == "10s"
        assert dask.config.get("distributed.nanny.pre-spawn-environ.OMP_NUM_THREADS") == 1


@pytest.mark.parametrize("limit", [np.ones(3), np.array(["a", "b"]), np.ma.masked, [1], True, float("nan"), "lots"])
def test_a_memory_limit_that_is_no_size_is_refused(limit):
    with pytest.raises(SettingError, match="memory_limit=.*: needs a size"):
        worker_settings(limit)


def local_cluster():
    """A cluster of Dask's own making, whose scheduler takes any free port."""
    return LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": ANY_PORT},
    )


@pytest.mark.usefixtures("first_cluster")
def test_settings_reach_the_workers():
    with (
        dask.config.set(worker_settings()),
        local_cluster() as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        (found,) = client.run(
            lambda: (
                os.environ["MALLOC_TRIM_THRESHOLD_"],
                os.environ["MALLOC_MMAP_THRESHOLD_"],
                dask.config.get("distributed.admin.tick.interval"),
            )
        ).values()
    assert found == (str(2**27), str(2**25), "200ms")


@pytest.mark.first_case
@pytest.mark.parametrize("dashboard", [None, DASHBOARD])
def test_a_port_that_is_in_use_is_nobodys_concern(dashboard):
    """Dask warns of it, also where no dashboard is asked for; here warnings are errors."""
    with socket.socket() as other:
        with contextlib.suppress(OSError):  # another cluster on this machine has it already
            other.bind(("127.0.0.1", 8787))
            other.listen()
        with local_client(1, 0, dashboard) as client:
            assert client.submit(operator.add, 1, 2).result() == 3


@pytest.mark.usefixtures("first_cluster")
def test_clusters_that_we_start_leave_nothing_in_the_environment():
    before = dict(os.environ)
    with open_client(ClientSpec(workers=1), quiet=True):
        assert os.environ["MALLOC_TRIM_THRESHOLD_"] == str(2**27)
    assert dict(os.environ) == before


def test_results_that_dask_cuts_into_pieces_arrive_whole():
    """Arrays above 64 MiB, by the scheduler of this process, were "truncated"; statistics of large vocabularies are."""
    with local_client(1, dashboard=None) as client:
        found = client.submit(np.arange, 9 * 2**20, dtype=np.float64).result()
    assert found.nbytes > 64 * 2**20 and np.array_equal(found, np.arange(9 * 2**20))


def test_the_client_is_beside_the_scheduler_and_nobodys_default():
    with local_client(2, memory_limit="1GB", dashboard=None) as client:
        assert client.scheduler.address.startswith("inproc://")
        workers = client.scheduler_info(n_workers=-1)["workers"]
        assert all(name.startswith("tcp://127.0.0.1") for name in workers)
        assert [(w["nthreads"], w["memory_limit"]) for w in workers.values()] == [(1, 10**9)] * 2
        with pytest.raises(ValueError, match="No clients"):
            default_client()
        client.cluster.scale(3)
        client.wait_for_workers(3, timeout=60)
        executor = DaskExecutor(client, "run")
        assert executor.result(executor.submit("pid", os.getpid)) != os.getpid()
        assert executor.results_together(executor.submit_together([("add", operator.add, (1, 2))] * 2)) == [3, 3]


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, None])
def test_processes_are_counted(workers):
    with pytest.raises(SettingError, match="whole number of processes"):
        local_client(workers).__enter__()


@pytest.mark.long
def test_same_bits_and_nothing_changes_that_was_sent(monkeypatch):
    """The scheduler keeps the very arrays that were sent, to compute again what is lost."""
    sent = []
    pack = Message.of.__func__

    def packed(cls, value):
        message = pack(cls, value)
        sent.extend((array, zlib.crc32(array)) for array in message._large)
        return message

    monkeypatch.setattr(Message, "of", classmethod(packed))
    monkeypatch.setattr("bnp_dask.execute.message.SMALL", 1)
    with local_client(2, memory_limit=0, dashboard=None) as client:
        for name, (schedule, moves) in SCHEDULES.items():
            assert bits(go(client, schedule, moves)) == bits(go(SerialExecutor(), schedule, moves)), name
    assert len(sent) > 1000
    assert all(zlib.crc32(array) == crc for array, crc in sent)


# -- scripts ------------------------------------------------------------------------------------------------------
START = """
import bnp_dask as bnp

def start():
    with bnp.local_client(1, dashboard=None) as client:
        print("sum", client.submit(sum, [1, 2]).result(), flush=True)

"""
UNGUARDED = {
    "none": "start()",
    "elsewhere": "if __name__ == '__main__':\n    pass\nstart()",
    "another": "import sys\nif sys.argv:\n    start()",
}
GUARDED = {
    "name": "if __name__ == '__main__':\n    start()",
    "else": "if __name__ != '__main__':\n    pass\nelse:\n    start()",
    "process": "import multiprocessing\nif multiprocessing.parent_process() is None:\n    start()",
}


def run_here(text, path, monkeypatch):
    """Run a script as the main module of this process."""
    path.write_text(START + text)
    main = types.ModuleType("__main__")
    main.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(path.read_text(), path, "exec"), vars(main))


@pytest.mark.parametrize("text", UNGUARDED.values(), ids=UNGUARDED)
def test_a_script_without_a_guard_is_refused_before_a_process_is_started(tmp_path, monkeypatch, text):
    monkeypatch.setattr(local, "LocalCluster", None)
    with pytest.raises(SettingError, match=r'script.py, line \d+\).* below if __name__ == "__main__":$'):
        run_here(text, tmp_path / "script.py", monkeypatch)


@pytest.mark.parametrize("text", GUARDED.values(), ids=GUARDED)
def test_a_script_with_a_guard_starts_processes(tmp_path, monkeypatch, text):
    class Started(Exception):
        pass

    def start(**settings):
        raise Started

    monkeypatch.setattr(local, "LocalCluster", start)
    with pytest.raises(Started):
        run_here(text, tmp_path / "script.py", monkeypatch)


def run_script(path, text):
    path.write_text(START + text)
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.long
def test_scripts_in_processes_of_their_own_start_workers_or_end_with_one_error(tmp_path):
    done = run_script(tmp_path / "script.py", UNGUARDED["none"])
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1 and done.stdout == ""
    assert "SettingError" in lines[-1] and 'if __name__ == "__main__":' in lines[-1]
    assert len(lines) < 20 and done.stderr.count("Traceback") == 1
    assert run_script(tmp_path / "script.py", GUARDED["name"]).stdout == "sum 3\n"


def test_a_process_that_is_being_started_starts_no_others(monkeypatch):
    monkeypatch.setattr(local.multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(SettingError, match='if __name__ == "__main__":'):
        local_client(1, dashboard=None).__enter__()


# -- workers that die while they start ----------------------------------------------------------------------------
class Failing:
    """A cluster whose first workers are killed while they start."""

    def __init__(self, n_times):
        self.n_left = n_times

    def __call__(self, **settings):
        self.n_left -= 1
        if self.n_left >= 0:
            raise RuntimeError("Nanny failed to start.") from RuntimeError("Nanny failed to start worker process")
        return self


def test_a_cluster_whose_worker_dies_at_its_start_is_tried_again(monkeypatch):
    cluster = Failing(2)
    monkeypatch.setattr(local, "LocalCluster", cluster)
    assert local._processes(1, 0, None) is cluster and cluster.n_left == -1
    monkeypatch.setattr(local, "LocalCluster", Failing(99))
    with pytest.raises(ExecutionError, match="Nanny failed to start worker process.*3 tries"):
        local._processes(1, 0, None)


@pytest.mark.long
def test_a_worker_that_is_killed_while_its_cluster_starts_is_replaced():
    killed, before = [], {child.pid for child in psutil.Process().children()}

    def kill_first():
        while not killed:
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    if child.pid not in before and "spawn_main" in " ".join(child.cmdline()):
                        child.send_signal(signal.SIGKILL)
                        killed.append(child.pid)
                        return

    killer = threading.Thread(target=kill_first)
    killer.start()
    with local_client(1, dashboard=None) as client:
        assert client.submit(operator.add, 1, 2).result() == 3
    killer.join()
    assert killed
