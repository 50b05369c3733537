"""A soak: training for hours with random kills, stragglers and resumes ends in the bits of the quiet run.

``BNP_SOAK_MINUTES=120 pytest -m long tests/faults/test_soak.py -s`` prints what happened; 10 minutes by default.
Runs with moves follow one another, each from another seed, because the moves have all to do at the start of a run.
"""

from __future__ import annotations

import itertools
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
from tests.faults.parts import MOVES, ROOT, Faulty, atoms, bits, go, worker_pids

MINUTES = float(os.environ.get("BNP_SOAK_MINUTES", "10"))
LAPS = 60
WORKERS = 3

SOAK = """
import sys
sys.path.insert(0, {root!r})
from tests.faults.test_soak import many
many({address!r}, {folder!r})
"""


def data(folder: str | None, seconds: float) -> Faulty:
    """40 batches; one of them dawdles."""
    return Faulty(atoms(8000, 4, 9), folder, slow=None if folder is None else (7, 0.2), seconds=seconds, n_batches=40)


def soaked(client, source, number, store=None):
    """One of the runs, from its start or from where it stands, to its end."""
    import bnp_dask as bnp

    schedule = {"schedule": bnp.Memoized(laps=LAPS, window=6), "moves": MOVES}
    if number % 3 == 2:
        schedule = {"schedule": bnp.Stochastic(laps=LAPS // 3, window=6), "moves": ()}
    return go(
        client, data=source, store=store, resume=store is not None, checkpoint_minutes=0.05, rng=number, **schedule
    )


def many(address, folder):
    """One run after the other, for as long as there is time; what had ended before is not begun again."""
    from distributed import Client

    client, folder = Client(address, set_as_default=False), Path(folder)
    for number in itertools.count():
        if not (folder / f"ended{number}").exists():
            soaked(client, data(str(folder / "calls"), 0.002), number, folder / f"run{number}")
            (folder / f"ended{number}").touch()


def start(address: str, folder: Path) -> subprocess.Popen:
    code = SOAK.format(root=str(ROOT), address=address, folder=str(folder))
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL)


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
            if not pids:  # all at once are on their way back: others come in their place
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
    assert (tmp_path / "ended0").exists(), "not one run came to its end"
    executor = ThreadExecutor(2)
    began, laps = time.monotonic(), 0
    ended = len(list(tmp_path.glob("ended*")))
    for number in range(ended):
        disturbed = soaked(executor, data(None, 0.0), number, tmp_path / f"run{number}")  # reads what there is
        quiet = soaked(executor, data(None, 0.0), number)
        assert bits(disturbed) == bits(quiet), f"run {number}"
        assert np.isfinite(disturbed.history["elbo"]).all()
        laps += int(disturbed.history[-1]["lap"])
    executor.close()
    memory = psutil.Process().memory_info().rss / 1e6
    print(f"\n{MINUTES} minutes, {ended} runs, {laps} laps of 40 batches, {dict(happened)}")
    print(f"the quiet runs {time.monotonic() - began:.0f} s, {memory:.0f} MB here")
