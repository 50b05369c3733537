"""Worker processes that see the run directory otherwise: not at all, read-only, or late; the bits are the same.

Each worker has a mount namespace of its own, so that one path means something else to each.
"""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from distributed import Client, LocalCluster

from bnp_dask.execute.local import ANY_PORT, LEAN
from tests.faults.parts import BOUND, until
from tests.schedules.test_groups import CASES, bits, undisturbed

WORKER = "exec {python} -m distributed.cli.dask_worker {address} --nthreads 1 --no-nanny --no-dashboard --name {name}"
SETUP = {
    "sees it": "",
    "does not see it": "mount -t tmpfs none {folder} && ",
    "may not write": "mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} && ",
}
KINDS = ["mixture", "topics", "chains"]


def can_unshare() -> bool:
    """Whether this system lets a process have mounts of its own."""
    try:
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /tmp"], capture_output=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


pytestmark = pytest.mark.skipif(not can_unshare(), reason="needs the right to mount, in a namespace of its own")


class Cluster:
    """A scheduler, and workers that see ``folder`` as their names say."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = []
        self.cluster = LocalCluster(
            n_workers=0,
            host="127.0.0.1",
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": ANY_PORT},
        )
        self.client = Client(self.cluster, set_as_default=False)

    def start(self, *names):
        for name in names:
            setup = SETUP[name].format(folder=self.folder)
            worker = WORKER.format(python=sys.executable, address=self.client.scheduler.address, name=f"'{name}'")
            command = ["unshare", "-m", "sh", "-c", setup + worker]
            self.processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd="/"))
        until(lambda: set(names) <= self.workers().keys(), "the workers")

    def workers(self):
        """Address of each worker, by its name."""
        return {info["name"]: address for address, info in self.client.scheduler_info(n_workers=-1)["workers"].items()}

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait(BOUND)
        self.client.close()
        self.cluster.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    import dask

    with dask.config.set(LEAN):
        made = Cluster(tmp_path_factory.mktemp("shared"))
        try:
            made.start(*SETUP)
            yield made
        finally:
            made.close()


def run(name, cluster, **more):
    make, schedule, moves = CASES[name]
    return make(schedule, moves, client=cluster.client, store=cluster.folder / name, **more)


@pytest.mark.long
def test_workers_see_what_they_should(cluster):
    """A test of the test: the three of them differ."""
    (cluster.folder / "there").touch()

    def look(path):
        import os

        try:
            os.close(os.open(f"{path}/by-{os.getpid()}", os.O_CREAT))
        except OSError as error:
            return os.path.exists(f"{path}/there"), error.strerror
        return os.path.exists(f"{path}/there"), ""

    found = cluster.client.run(look, str(cluster.folder))
    assert {name: found[address] for name, address in cluster.workers().items()} == {
        "sees it": (True, ""),
        "does not see it": (False, ""),
        "may not write": (True, "Read-only file system"),
    }


OTHERS_ARE_LONG = [pytest.param(name, marks=() if name == "mixture" else pytest.mark.long) for name in KINDS]
"""Where nothing is compiled yet, three workers that compile kernels of topics or chains take minutes."""


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS_ARE_LONG)
def test_the_bits_do_not_depend_on_what_workers_see(cluster, caplog, name):
    with caplog.at_level(logging.INFO, "bnp_dask"):
        assert bits(run(name, cluster)) == undisturbed(name)
    assert any("does not keep its batches' statistics itself" in message for message in caplog.messages)


class Late:
    """A callback that waits in the first lap for a worker without the directory, and stops all others."""

    def __init__(self, cluster):
        self.cluster, self.seen = cluster, 0

    def on_start(self, info):
        pass

    def on_batch(self, done):
        self.seen += 1
        if self.seen == 2:
            self.cluster.start("does not see it")
            self.cluster.client.retire_workers([self.cluster.workers()["sees it"]])

    def on_lap(self, row, posterior):
        pass

    def on_end(self, reason):
        pass


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS_ARE_LONG)
def test_one_that_joins_late_takes_over(tmp_path, name):
    """All that the first worker wrote is read by the coordinator for the second, which never sees the directory."""
    import dask

    with dask.config.set(LEAN):
        made = Cluster(tmp_path / "shared")
        made.folder.mkdir()
        try:
            made.start("sees it")
            assert bits(run(name, made, callbacks=[Late(made)])) == undisturbed(name)
            assert made.workers().keys() == {"does not see it"}
        finally:
            made.close()
