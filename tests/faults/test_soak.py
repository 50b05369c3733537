"""A soak: training for hours with random kills, stragglers and resumes ends in the bits of the quiet run.

``BNP_SOAK_MINUTES=120 pytest -m long tests/faults/test_soak.py -s`` prints what happened; 10 minutes by default.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest

from bnp_dask.execute import ThreadExecutor
from bnp_dask.store import RunStore
from tests.faults.parts import MOVES, ROOT, Faulty, atoms, bits, go, worker_pids

MINUTES = float(os.environ.get("BNP_SOAK_MINUTES", "10"))
LAPS = 100_000
WORKERS = 3

SOAK = """
import sys
sys.path.insert(0, {root!r})
import bnp_dask as bnp
from tests.faults.test_soak import data, soaked
soaked({address!r}, data({folder!r}, {seconds!r}), {store!r}, {laps})
"""


def data(folder: str | None, seconds: float) -> Faulty:
    """40 batches; one of them dawdles."""
    return Faulty(atoms(8000, 4, 9), folder, slow=None if folder is None else (7, 0.2), seconds=seconds, n_batches=40)


def soaked(client, source, store, laps):
    """The run of the soak, or as much of it as there is time for.

    A small tolerance would end it in minutes: the moves go on proposing, and every lap visits all batches.
    """
    import bnp_dask as bnp

    if isinstance(client, str):
        from distributed import Client

        client = Client(client, set_as_default=False)
    schedule = bnp.Memoized(laps=laps, window=6, tolerance=0.0, count_tolerance=0.0)
    more = {"schedule": bnp.Stochastic(laps=laps, window=6, tolerance=0.0, count_tolerance=0.0), "moves": ()}
    if os.environ.get("BNP_SOAK_SCHEDULE", "stochastic") == "memoized":
        more = {"schedule": schedule, "moves": MOVES}
    return go(client, data=source, store=store, resume=store is not None, checkpoint_minutes=0.05, **more)


def start(address: str, folder: Path) -> subprocess.Popen:
    values = {"root": str(ROOT), "address": address, "folder": str(folder / "calls"), "store": str(folder / "run")}
    code = SOAK.format(seconds=0.002, laps=LAPS, **values)
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL)


def last_lap(folder: Path) -> int:
    return -1 if not RunStore.exists(folder / "run") else (RunStore.view(folder / "run").load() or Nothing).state["lap"]


class Nothing:
    """No checkpoint yet."""

    state = {"lap": -1}  # noqa: RUF012


@pytest.mark.long
@pytest.mark.timeout(MINUTES * 60 * 3 + 900)
def test_soak(warm_cluster, tmp_path):
    cluster, client = warm_cluster(WORKERS)
    (tmp_path / "calls").mkdir()
    rng, happened = random.Random(1), Counter()
    stop = time.monotonic() + MINUTES * 60
    process = start(cluster.scheduler_address, tmp_path)
    try:
        while time.monotonic() < stop:
            time.sleep(rng.uniform(0.2, 8.0))
            for path in (tmp_path / "calls").iterdir():
                path.unlink(missing_ok=True)
            what = rng.choices(["worker", "stopped worker", "all workers", "client", "terminated"], [8, 3, 1, 1, 1])[0]
            pids = worker_pids(client)
            if not pids:  # nannies give up on workers that never got as far as to start
                cluster.scale(0)
                cluster.scale(WORKERS)
                happened["new machines"] += 1
            if what in ("worker", "all workers"):
                for pid in pids if what == "all workers" else pids[:1]:
                    os.kill(pid, signal.SIGKILL)
            elif what == "stopped worker" and pids:
                os.kill(pids[0], signal.SIGSTOP)
                time.sleep(rng.uniform(0.1, 3.0))
                os.kill(pids[0], signal.SIGCONT)
            else:
                process.send_signal(signal.SIGKILL if what == "client" else signal.SIGTERM)
            if process.poll() is not None or what in ("client", "terminated"):
                process.wait(60)
                process = start(cluster.scheduler_address, tmp_path)
                happened["resumed"] += 1
            happened[what] += 1
    finally:
        process.kill()
        process.wait(60)
    laps = last_lap(tmp_path)
    assert laps >= 1
    executor = ThreadExecutor(2)
    began = time.monotonic()
    # the soaked run and the quiet one are both led to the end of the lap that was under way
    rest = soaked(executor, data(None, 0.0), tmp_path / "run", laps + 1)
    quiet = soaked(executor, data(None, 0.0), None, laps + 1)
    executor.close()
    memory = psutil.Process().memory_info().rss / 1e6
    quiet_seconds = time.monotonic() - began
    print(f"\n{MINUTES} minutes, {laps} laps of 40 batches, {dict(happened)}")
    print(f"last laps and the quiet run {quiet_seconds:.0f} s, {memory:.0f} MB here")
    assert rest.history[-1]["lap"] == quiet.history[-1]["lap"] == laps + 1
    assert bits(rest) == bits(quiet)
    assert np.isfinite(rest.history["elbo"]).all()
