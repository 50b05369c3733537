"""Expectation propagation on two workers against one.

``python -m benchmarks.streaming.propagation [LAPS]``: one JSON line.  Points of 16 dimensions about 100 centers,
sixteen batches in windows of eight; the runs take turns, a lap each, and their objectives must be equal bits.  Laps are
wall seconds, which a busy machine spoils; ``cpu`` are CPU seconds of the one worker, of the two, and of the coordinator
of each run, from which ``free`` is what two workers gain where each process has a core to itself.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from distributed import Client

import bnp_dask as bnp
from benchmarks.streaming.filters import points
from benchmarks.timing import workers
from benchmarks.turns import Turn, in_turns
from bnp_dask.execute import SerialExecutor

BATCHES, ATOMS = 16, 25_000
MODEL = bnp.Model(bnp.NGGPMixture(1.0, 0.5, 1.0), bnp.Gaussian())


def train(path: Path, laps: int, client: Client | None, results: list[bnp.TrainResult], *turn: Turn) -> None:
    """One run, whose result is put beside the others."""
    schedule = bnp.ExpectationPropagation(laps=laps, window=8, count_tolerance=0.0)
    results.append(bnp.train(MODEL, path, schedule=schedule, client=client, callbacks=turn, batch_size=ATOMS))


def warm_up() -> None:
    """Compile what a process needs."""
    warnings.simplefilter("ignore")
    schedule = bnp.ExpectationPropagation(laps=2)
    bnp.train(MODEL, points(300), schedule=schedule, client=SerialExecutor())


def spent(client: Client) -> float:
    """CPU seconds of the workers so far."""
    return float(sum(client.run(time.process_time).values()))


def main(laps: int = 5) -> None:
    warm_up()
    results: list[bnp.TrainResult] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "points.npy"
        np.save(path, points(BATCHES * ATOMS))
        clients = [stack.enter_context(workers(n)) for n in (1, 2)]
        for client in clients:
            client.run(warm_up)
        before, own = [spent(client) for client in clients], time.process_time()
        turns = in_turns([partial(train, path, laps, client, results) for client in clients])
        cpu = [spent(client) - old for client, old in zip(clients, before, strict=True)]
        cpu.append((time.process_time() - own) / 2)
    assert len({result.history[-1]["elbo"] for result in results}) == 1  # the same bits
    one, two = (np.array(turn.seconds) for turn in turns)
    line = {"clusters": results[0].posterior.n_clusters, "one": one.round(2).tolist(), "two": two.round(2).tolist()}
    line |= {"cpu": np.round(cpu, 2).tolist(), "free": (cpu[0] + cpu[2]) / (cpu[1] / 2 + cpu[2])}
    print(json.dumps({"name": "propagation, two workers over one", "speed": float(np.median(one / two)), **line}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
