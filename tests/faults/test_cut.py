"""A network that loses everything, without a word, is told in time wherever the process that trains waits.

Machines are network namespaces, which only root can make.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from distributed import Client

from bnp_dask.errors import ExecutionError
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.store import RunStore
from tests.faults.machines import Network, OneProcess, start, why_no_networks
from tests.faults.parts import BOUND, Faulty, atoms, bits, go, quiet

pytestmark = pytest.mark.skipif(bool(why_no_networks()), reason=why_no_networks() or "networks can be made")

CONNECT = 6.0
"""Dask's limit for making a connection in these tests, seconds; 30 unless set."""

SLACK = 3.0
"""Seconds that a loaded machine may take beyond it."""

VICTIM = "from tests.faults.test_cut import victim; import sys; victim(*sys.argv[1:])"


def victim(address: str, folder: str, place: str) -> None:
    """Train, and say when the run is at a place; the error that ends it, and how long that took, go to stdout."""
    struck: list[float] = []

    def strike() -> None:
        if not struck:
            print("now", flush=True)
            sys.stdin.readline()
            struck.append(time.monotonic())

    def send(self, names, *more):
        handles = sent(self, names, *more)
        if names[0].startswith(place):
            strike()
        return handles

    def write(self, prepared):
        if place == "checkpoint" and prepared.number > 2:
            strike()
        written(self, prepared)

    sent, written = DaskExecutor._send, RunStore.write
    DaskExecutor._send, RunStore.write = send, write  # type: ignore[method-assign]
    try:
        with Client(address, set_as_default=False) as client:
            data = Faulty(atoms(), folder, seconds=0.01)
            go(client, data=data, store=Path(folder) / "run", checkpoint_minutes=1e-9)
    except ExecutionError as error:
        print(f"{time.monotonic() - struck[0]:.1f} s: {error}", flush=True)


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    with (
        Network.of(["cluster", "coordinator"]) as network,
        OneProcess(tmp_path_factory.mktemp("cluster"), network).running() as cluster,
    ):
        yield network, cluster


PLACES = {
    "in a lap": "local_step-lap2",
    "in a checkpoint": "checkpoint",
    "in the survey": "survey",
    "in the planning of moves": "propose",
}
QUICK = list(PLACES)[:1]


@pytest.mark.long
@pytest.mark.parametrize("place", [p if p in QUICK else pytest.param(p, marks=pytest.mark.long) for p in PLACES])
def test_training_when_the_network_is_cut(machines, tmp_path, place):
    network, cluster = machines
    settings = {**os.environ, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": f"{CONNECT}s"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = ["-c", VICTIM, cluster.address, str(tmp_path), PLACES[place]]
    process = start(words, network, "coordinator", env=settings, **pipes)
    try:
        assert process.stdout.readline() == "now\n", process.communicate()
        network.cut("coordinator")
        said, noise = process.communicate("go on\n", timeout=BOUND)
    finally:
        network.mend("coordinator")
        process.kill()
    seconds, _, error = said.partition(" s: ")
    assert error.startswith("lost the Dask cluster while") and error.endswith("call train(..., resume=True).\n"), said
    assert float(seconds) < CONNECT + SLACK
    assert noise == ""
    run = tmp_path / "run"
    assert bits(go(store=run, resume=run.exists())) == quiet("memoized with moves")
