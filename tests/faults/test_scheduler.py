"""The scheduler dies, comes back, or is another: ``train`` says what to do, in time, and a resumed run is the same."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from distributed import Client

from bnp_dask.cli import main
from bnp_dask.errors import ExecutionError
from bnp_dask.store import RunStore
from tests.faults.parts import BOUND, Faulty, atoms, bits, go, quiet, until

STATED = 30.0
"""Seconds within which a run on a lost cluster fails: Dask's own limit for making a connection."""

SCHEDULER = """
import asyncio, sys
from distributed import Scheduler, Worker
async def main():
    async with Scheduler(host="127.0.0.1", port=int(sys.argv[2]), dashboard=False, scheduler_file=sys.argv[1]) as s:
        async with Worker(s.address, nthreads=1, memory_limit=0), Worker(s.address, nthreads=1, memory_limit=0):
            await s.finished()
asyncio.run(main())
"""


class Cluster:
    """A scheduler with two workers in one process, which can be killed and started again at the same address."""

    def __init__(self, folder):
        self.file = folder / "scheduler.json"
        self.process = None
        self.port = 0

    def start(self):
        self.file.unlink(missing_ok=True)
        command = [sys.executable, "-c", SCHEDULER, str(self.file), str(self.port)]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        until(lambda: self.file.exists() and self.file.read_text().strip().endswith("}"), "the scheduler")

    def connect(self):
        client = Client(scheduler_file=str(self.file), set_as_default=False, timeout=10)
        self.port = int(client.scheduler.address.rsplit(":", 1)[1])
        client.wait_for_workers(2, timeout=BOUND)
        return client

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait(BOUND)


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    made.start()
    yield made
    made.kill()


class After:
    """A callback that does something after some batches."""

    def __init__(self, batches, what):
        self.left = batches
        self.what = what
        self.when = None

    def on_start(self, info):
        pass

    def on_batch(self, done):
        self.left -= 1
        if self.left == 0:
            self.what()
            self.when = time.monotonic()

    def on_lap(self, row, posterior):
        pass

    def on_end(self, reason):
        pass


@pytest.mark.parametrize("comes_back", [False, True])
def test_scheduler_dies_or_restarts(cluster, tmp_path, comes_back):
    """A restarted scheduler has forgotten everything: that is a lost cluster too."""

    def strike():
        cluster.kill()
        if comes_back:
            cluster.start()

    data = Faulty(atoms(), str(tmp_path), seconds=0.01)
    stroke = After(13, strike)
    with cluster.connect() as client, pytest.raises(ExecutionError, match=r"lost the Dask cluster.*resume=True"):
        go(client, data=data, store=tmp_path / "run", callbacks=[stroke], checkpoint_minutes=1e-9)
    assert time.monotonic() - stroke.when < STATED
    assert RunStore.view(tmp_path / "run").load() is not None
    if not comes_back:
        cluster.start()
    with cluster.connect() as client:
        rest = go(client, store=tmp_path / "run", resume=True)
    assert bits(rest) == quiet("memoized with moves")


@pytest.mark.long
def test_a_scheduler_that_was_restarted_on_purpose(warm_cluster, tmp_path):
    """``client.restart()`` by somebody else on the same cluster: tasks are cancelled, which is told as a loss."""
    _, client = warm_cluster(2)
    with Client(client.scheduler.address, set_as_default=False) as other:
        stroke = After(9, lambda: other.restart(timeout=BOUND))
        with pytest.raises(ExecutionError, match=r"lost the Dask cluster.*resume=True"):
            go(client, store=tmp_path / "run", callbacks=[stroke], checkpoint_minutes=1e-9)
    assert bits(go(client, store=tmp_path / "run", resume=True)) == quiet("memoized with moves")


def test_the_command_line_names_its_own_command(tmp_path, monkeypatch, capsys):
    """An error of a lost cluster ends with what to type."""
    from bnp_dask.cli import run

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.yaml").write_text("{}")

    def lost(args):
        args.rundir = "run"
        raise ExecutionError("lost the Dask cluster while task local_step-lap1-batch3 was out")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "train_command", lost)
    assert main(["train", "run.yaml"]) == 2
    assert capsys.readouterr().err.endswith("was out; go on with: bnp-dask resume run\n")
