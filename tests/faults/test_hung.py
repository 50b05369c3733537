"""A scheduler that hangs or is cut off is told in time, wherever this process waits; a hung worker is replaced."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import dask
import numpy as np
import pytest
import yaml

import bnp_dask as bnp
from bnp_dask.errors import ExecutionError
from bnp_dask.execute.dask import CLOSE_SECONDS, SHARE, DaskExecutor, Pulse, SilenceError
from bnp_dask.execute.local import local_client
from tests.faults.machines import OneProcess
from tests.faults.parts import BOUND, ROOT, After, Faulty, atoms, bits, go, quiet, until, worker_pids

CONNECT = 4.0
"""Dask's limit for making a connection in these tests, seconds; 30 unless set."""

SLACK = 3.0
"""Seconds that a loaded machine may take beyond it."""


@pytest.fixture(autouse=True)
def soon():
    with dask.config.set({"distributed.comm.timeouts.connect": f"{CONNECT}s"}):
        yield


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One that is stopped by many tests, and goes on after each."""
    with OneProcess(tmp_path_factory.mktemp("cluster")).running() as made:
        yield made


@contextmanager
def hung_when(monkeypatch, process, begins):
    """The scheduler stops once a task is sent whose name ``begins`` so; the error comes in time and says what to do."""
    send, struck = DaskExecutor._send, []

    def strike(self, names, *more):
        handles = send(self, names, *more)
        if not struck and names[0].startswith(begins):
            process.signal(signal.SIGSTOP)
            struck.append(time.monotonic())
        return handles

    with monkeypatch.context() as patch:
        patch.setattr(DaskExecutor, "_send", strike)
        try:
            with pytest.raises(ExecutionError, match="lost the Dask cluster.*has not answered") as found:
                yield found
            assert time.monotonic() - struck[0] < CONNECT + SLACK
        finally:
            process.signal(signal.SIGCONT)


PLACES = {
    "the survey": "survey",
    "the initialisation": "init",
    "compilation on workers": "warm-up",
    "the first lap": "local_step-lap0",
    "the planning of moves": "propose",
    "a later lap": "local_step-lap2",
}


QUICK = ("a later lap",)


@pytest.mark.parametrize("place", [p if p in QUICK else pytest.param(p, marks=pytest.mark.long) for p in PLACES])
def test_training_when_the_scheduler_hangs(cluster, tmp_path, monkeypatch, place):
    run = tmp_path / "run"
    with hung_when(monkeypatch, cluster, PLACES[place]) as found, cluster.connect() as client:
        go(client, data=Faulty(atoms(), str(tmp_path), seconds=0.01), store=run, checkpoint_minutes=1e-9)
    assert str(found.value).endswith("call train(..., resume=True).")
    with cluster.connect() as client:
        assert bits(go(client, store=run, resume=run.exists())) == quiet("memoized with moves")


@pytest.fixture(scope="module")
def posterior():
    return go().posterior


CALLS = {
    "predict": lambda posterior, client, folder: bnp.predict(posterior, atoms(), batch_size=100, client=client),
    "predict into a file": lambda posterior, client, folder: bnp.predict(
        posterior, atoms(), batch_size=100, client=client, out=folder / "out.zarr"
    ),
    "score": lambda posterior, client, folder: bnp.score(posterior, atoms(), batch_size=100, client=client),
    "a grouped Dask DataFrame": lambda posterior, client, folder: bnp.as_source(grouped(), groups="g"),
}


def grouped():
    pandas, frames = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    return frames.from_pandas(
        pandas.DataFrame({"g": np.repeat(np.arange(8), 5), "x": np.arange(40.0) ** 2}), npartitions=4
    )


SEVERAL = ("predict into a file", "a grouped Dask DataFrame")
"""Calls of which one sends its tasks as most do and writes, and one through Dask's own collections."""


@pytest.mark.long
@pytest.mark.parametrize("call", [c if c in SEVERAL else pytest.param(c, marks=pytest.mark.long) for c in CALLS])
def test_other_calls_when_the_scheduler_hangs(cluster, posterior, tmp_path, monkeypatch, call):
    with hung_when(monkeypatch, cluster, "") as found, cluster.connect() as client, client.as_current():
        CALLS[call](posterior, client, tmp_path)
    assert str(found.value).endswith("Start a cluster and make the call again.")
    assert not list(tmp_path.iterdir())


def test_a_scheduler_that_hangs_before_anything_is_sent(cluster):
    with cluster.connect() as client:
        cluster.signal(signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(ExecutionError, match="lost the Dask cluster while a question about workers was out"):
            go(client)
        assert time.monotonic() - started < CONNECT + SLACK
        cluster.signal(signal.SIGCONT)
        assert bits(go(client)) == quiet("memoized with moves")  # the same client


@pytest.mark.long
def test_a_scheduler_that_hangs_while_it_is_sent_much_is_left_in_time(cluster):
    """What nobody takes any more keeps no client from closing, and no error from being told."""
    started = time.monotonic()
    with pytest.raises(ExecutionError, match="has not answered"), cluster.connect() as client:
        executor = DaskExecutor(client, "much")
        cluster.signal(signal.SIGSTOP)
        executor.result(executor.share("much", np.zeros(2**24)))
    assert time.monotonic() - started < CONNECT + CLOSE_SECONDS + SLACK
    cluster.signal(signal.SIGCONT)


@pytest.mark.long
def test_a_scheduler_that_is_only_busy_is_waited_for(cluster, tmp_path):
    """Again and again it does not answer for half the time that would be too long."""
    pauses = 0

    class Pause:
        def on_start(self, info):
            pass

        def on_batch(self, done):
            nonlocal pauses
            if pauses < 3 and done % 3 == 0:
                pauses += 1
                cluster.signal(signal.SIGSTOP)
                threading.Timer(SHARE * CONNECT / 2, cluster.signal, [signal.SIGCONT]).start()

        def on_lap(self, row, posterior):
            pass

        def on_end(self, reason):
            pass

    with cluster.connect() as client:
        assert bits(go(client, data=Faulty(atoms(), str(tmp_path), seconds=0.01), callbacks=[Pause()])) == quiet(
            "memoized with moves"
        )
    assert pauses == 3


def test_time_in_which_this_process_did_not_listen_is_not_counted(cluster):
    """It was stopped itself, or unpacked something large: answers wait for it."""
    with cluster.connect() as client:
        pulse = Pulse(client, 1.5)
        client.loop.add_callback(time.sleep, 4.0)
        assert client.sync(pulse.wait_for, asyncio.sleep, 3.0, "slept") == "slept"
        cluster.signal(signal.SIGSTOP)
        with pytest.raises(SilenceError, match="has not answered for 2 s"):
            client.sync(pulse.wait_for, asyncio.sleep, 30.0)
        cluster.signal(signal.SIGCONT)


def test_silence_counts_on_from_one_wait_to_the_next(cluster):
    with cluster.connect() as client:
        pulse = Pulse(client, 1.5)
        cluster.signal(signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(SilenceError):
            while time.monotonic() - started < BOUND:
                client.sync(pulse.wait_for, asyncio.sleep, 0.6)
        assert time.monotonic() - started < CONNECT + SLACK
        cluster.signal(signal.SIGCONT)


def command(*words, **more):
    line = [sys.executable, "-m", "bnp_dask", *words]
    return subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, **more)


@pytest.mark.long
@pytest.mark.parametrize("blow", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_the_command_line_tells_a_lost_scheduler_in_one_line(one_process, tmp_path, blow):
    """Dask's own lines and tracebacks about the same are not heard."""
    np.save(tmp_path / "x.npy", atoms(20_000, 8, 20))
    job = {
        "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
        "data": {"path": "x.npy", "batch_size": 500},
        "schedule": {"type": "Memoized", "laps": 1000, "tolerance": 0, "count_tolerance": 0},
        "store": "run",
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": f"{CONNECT}s"}
    process = command(
        "train", "--quiet", "job.yaml", "--scheduler-file", str(one_process.file), cwd=tmp_path, env=settings
    )
    until(lambda: list(tmp_path.glob("run/checkpoints/*.json")), "a checkpoint")
    one_process.signal(blow)
    started = time.monotonic()
    said = process.communicate(timeout=BOUND)[1]
    assert time.monotonic() - started < CONNECT + CLOSE_SECONDS + SLACK
    assert process.returncode == 2
    why = "scheduler-connection-lost" if blow == signal.SIGKILL else "the scheduler at .* has not answered for .* s"
    pattern = rf"bnp-dask: error: lost the Dask cluster while .* was out \({why}\); go on with: bnp-dask resume run\n"
    assert re.fullmatch(pattern, said), said


@pytest.mark.long
def test_a_worker_that_hangs_for_ever_is_replaced(tmp_path):
    """Dask waits for its heartbeat for ``worker-ttl``, then its nanny starts another; the bits are the same."""
    with dask.config.set({"distributed.scheduler.worker-ttl": "5s"}), local_client(2, None, None) as client:
        client.wait_for_workers(2, timeout=BOUND)
        before = set(worker_pids(client))
        stroke = After(9, lambda: os.kill(min(before), signal.SIGSTOP))
        result = go(client, data=Faulty(atoms(), str(tmp_path), seconds=0.01), callbacks=[stroke])
        assert bits(result) == quiet("memoized with moves")
        until(lambda: len(pids := set(worker_pids(client))) == 2 and min(before) not in pids, "another worker")
