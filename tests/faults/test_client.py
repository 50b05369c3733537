"""The process that calls ``train`` is killed, interrupted or terminated; a resumed run ends in the same bits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.store import RunStore
from bnp_dask.training.callbacks import RunInfo
from tests.faults.parts import MOVES, ROOT, SCHEDULES, Faulty, atoms, bits, go, quiet, until

pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")

VICTIM = """
import os, signal, sys, threading
sys.path.insert(0, {root!r})
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from tests.faults.parts import Faulty, atoms, go

executor = SerialExecutor() if {workers} == 0 else ThreadExecutor({workers})
print("ready", flush=True)
data = Faulty(atoms(), {folder!r}, seconds=0.005)
go(executor, {name!r}, data, store={store!r}, resume=True, checkpoint_minutes=1e-9)
print("done", flush=True)
"""


def start(tmp_path: Path, name: str, workers: int) -> subprocess.Popen:
    """A process that trains, or goes on training, into ``tmp_path / "run"``."""
    (tmp_path / "calls").mkdir(parents=True, exist_ok=True)
    values = {"root": str(ROOT), "folder": str(tmp_path / "calls"), "name": name, "store": str(tmp_path / "run")}
    code = VICTIM.format(workers=workers, **values)
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def kill_at(tmp_path: Path, name: str, moments: list[float], workers: list[int]) -> None:
    """Train; each time kill the process that many seconds after it is ready."""
    for moment, n in zip(moments, workers, strict=True):
        process = start(tmp_path, name, n)
        timer = None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            timer = threading.Timer(moment, process.kill)
            timer.start()
            process.wait(60)
        finally:
            if timer is not None:
                timer.cancel()
            process.kill()
            process.wait(30)
            process.stdout.close()


def check_killed(tmp_path: Path, name: str, moments: list[float], workers: list[int]) -> None:
    kill_at(tmp_path, name, moments, workers)
    executor = ThreadExecutor(2)
    try:
        rest = go(executor, name, Faulty(atoms()), store=tmp_path / "run", resume=True)
    finally:
        executor.close()
    assert bits(rest) == quiet(name)


MOMENTS = st.lists(st.floats(0.0, 1.2), min_size=1, max_size=3)


@pytest.mark.long
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(sorted(SCHEDULES)), moments=MOMENTS, seed=st.integers(0, 3))
def test_client_killed_at_a_random_moment(tmp_path, name, moments, seed):
    place = tmp_path / f"{time.monotonic_ns()}"
    check_killed(place, name, moments, [(seed + i) % 4 for i in range(len(moments))])
    shutil.rmtree(place)


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(sorted(SCHEDULES)), moments=MOMENTS, seed=st.integers(0, 3))
def test_client_killed_at_many_random_moments(tmp_path, name, moments, seed):
    test_client_killed_at_a_random_moment.hypothesis.inner_test(tmp_path, name, moments, seed)


@pytest.mark.long
def test_killed_on_a_cluster_and_resumed_on_one_of_another_size(dask_client, tmp_path):
    """The client of a cluster that goes on living dies; the next one has more workers."""

    class Dead(BaseException):
        """What SIGKILL would do to the run: no handler of the package sees it."""

    class DieAfter:
        def on_start(self, info):
            pass

        def on_batch(self, done):
            self.n = getattr(self, "n", 0) + 1
            if self.n == 13:
                raise Dead

        def on_lap(self, row, posterior):
            pass

        def on_end(self, reason):
            pass

    with pytest.raises(Dead):
        go(dask_client(1), store=tmp_path / "run", callbacks=[DieAfter()], checkpoint_minutes=1e-9)
    assert bits(go(dask_client(2), store=tmp_path / "run", resume=True)) == quiet("memoized with moves")


# -- signals, on the command line -----------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with data and a job that would run for very long."""
    np.save(tmp_path / "atoms.npy", atoms(3000))
    job = {
        "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
        "data": {"path": "atoms.npy", "batch_size": 100},
        "init": {"type": "BregmanKMeans", "n_clusters": 3},
        "schedule": {"type": "Memoized", "laps": 100_000, "tolerance": 0, "count_tolerance": 0},
        "store": "run",
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(job))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def program(*words: str, **more) -> subprocess.Popen:
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bnp_dask", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, **more)


def wait_for_lap(process: subprocess.Popen, lap: int) -> None:
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith(f"lap {lap}:"):
            return
    raise AssertionError(f"ended with {process.wait()}: {''.join(lines)}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("signum", "code", "word"),
    [(signal.SIGTERM, 143, "terminated"), pytest.param(signal.SIGINT, 130, "interrupted", marks=pytest.mark.long)],
)
def test_a_signal_leaves_a_checkpoint_of_the_moment(folder, signum, code, word):
    """Not that of the last lap: the batches of the lap under way are in it, and the run goes on to the same bits."""
    process = program("train", "run.yaml")
    wait_for_lap(process, 2)
    process.send_signal(signum)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == code, rest
    assert f"{word}: lap " in rest
    assert "saved in run; go on with: bnp-dask resume run" in rest
    assert "Traceback" not in rest
    found = RunStore.view("run").load()
    assert found.state["lap"] >= 2
    laps = found.state["lap"] + 2
    assert main(["resume", "run", "--laps", str(laps), "--quiet"]) == 0
    assert main(["train", "run.yaml", "--store", "whole", "--laps", str(laps), "--quiet"]) == 0
    parts, whole = bnp.load("run/posterior.zarr"), bnp.load("whole/posterior.zarr")
    for name, value in whole.summary.values.items():
        np.testing.assert_array_equal(parts.summary[name], value)


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_to_all_processes_of_a_local_cluster(folder, signum):
    """A terminal sends Ctrl-C to the workers too, and Slurm its SIGTERM: nobody is left behind."""
    process = program("train", "run.yaml", "--workers", "2", start_new_session=True)
    wait_for_lap(process, 1)
    os.killpg(process.pid, signum)
    _, rest = process.communicate(timeout=90)
    assert process.returncode == 128 + signum, rest
    assert "go on with: bnp-dask resume run" in rest
    assert RunStore.view("run").load().state["lap"] >= 1
    until(lambda: not members(process.pid), "the workers to end")


def members(group: int) -> list[int]:
    """Processes of a process group that are no zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(after[2]) == group and after[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    "signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_no_task_is_orphaned_on_a_cluster_that_stays(folder, warm_cluster, signum):
    cluster, client = warm_cluster(2)
    process = program("train", "run.yaml", "--scheduler", cluster.scheduler_address)
    wait_for_lap(process, 1)
    process.send_signal(signum)
    process.communicate(timeout=60)
    assert process.returncode == (128 + signum if signum != signal.SIGKILL else -signum)
    tasks = lambda: client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))  # noqa: E731
    until(lambda: tasks() == 0, "the tasks to be gone")
    assert len(client.scheduler_info(n_workers=-1)["workers"]) == 2


@pytest.mark.long
def test_a_second_signal_ends_a_run_at_once(folder):
    """The first is waiting for a batch that never comes.

    It waits in steps, as executors do: a signal that comes just before a sleep does not end it.
    """
    (folder / "slow.py").write_text(
        "import time, os, sys, pathlib\n"
        "from bnp_dask.inference.drive import Flight\n"
        "original = Flight.take\n"
        "def take(self, *args):\n"
        "    if self.state.lap == 2:\n"
        "        pathlib.Path('waiting').touch()\n"
        "        while True:\n"
        "            time.sleep(0.1)\n"
        "    return original(self, *args)\n"
        "Flight.take = take\n"
        "from bnp_dask.cli import main\n"
        "sys.exit(main(['train', 'run.yaml']))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "slow.py"], stderr=subprocess.PIPE, text=True, env=env)
    until(lambda: (folder / "waiting").exists(), "the batch")
    process.send_signal(signal.SIGINT)
    for line in process.stderr:
        if "Ctrl-C again stops at once" in line:
            break
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted; go on with: bnp-dask resume run" in rest
    assert RunStore.view("run").load().state["lap"] == 2


def test_a_run_that_cannot_stop_in_time_is_ended(monkeypatch):
    """After the grace period the signal is an exception after all."""
    from bnp_dask.cli.run import StopWhenAsked, Terminated

    stop = StopWhenAsked(grace=0.2)
    stop.on_start(RunInfo(8, 100, 5, 0, 0, "in this thread"))
    with pytest.raises(Terminated), stop.listening():
        signal.raise_signal(signal.SIGTERM)
        assert stop.on_batch(1) == "terminated by a signal"
        time.sleep(20)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


@contextmanager
def pressing(delay: float) -> Iterator[None]:
    """Ctrl-C, and again every second: Python drops one that comes within a finalizer or a callback from C."""
    done = threading.Event()

    def press() -> None:
        wait = delay
        while not done.wait(wait):
            os.kill(os.getpid(), signal.SIGINT)
            wait = 1.0

    finger = threading.Thread(target=press)
    finger.start()
    try:
        yield
    finally:  # whatever came: tests after this one are not to be interrupted
        done.set()
        finger.join()


@pytest.mark.parametrize("moves", [(), MOVES])
def test_interrupts_in_python_leave_the_last_checkpoint(request, tmp_path, moves):
    """Ctrl-C in a notebook: ``train`` raises KeyboardInterrupt, whatever it was doing."""
    # a process that a shell started in the background ignores it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    for delay in (0.01, 0.05, 0.1, 0.2):
        schedule = bnp.Memoized(laps=100, window=3, tolerance=0.0, count_tolerance=0.0)
        with pytest.raises(KeyboardInterrupt), pressing(delay):
            while True:
                go(SerialExecutor(), schedule=schedule, moves=moves, store=tmp_path / f"{delay}-{time.monotonic_ns()}")
    for run in tmp_path.iterdir():
        if RunStore.exists(run):
            RunStore.view(run).load()
