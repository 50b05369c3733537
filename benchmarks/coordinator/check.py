"""The simulator against real runs on W = 1, 2, 4, 8 workers, with sleeps standing in for compute.

``python -m benchmarks.coordinator.check [seconds]``: JSON lines.  The costs of a task and of a fold are measured
on a run of the same kind whose batches take no time at all.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.training.callbacks import RunInfo
from bnp_dask.training.planning import Costs, Simulation
from tests.moves.parts import Batches

LAPS = 4


def slowly(batch: Batch, seconds: float) -> Batch:
    """A reader that takes its time."""
    time.sleep(seconds)
    return batch


@dataclass
class Slow(Batches):
    """Batches that take some seconds each, from the second lap on."""

    seconds: float = 0.0

    @property
    def n_atoms(self) -> int:
        """Rows of all batches."""
        return sum(b.n_atoms for b in self.batches)

    def reader(self, index: int) -> Any:
        return partial(slowly, self.batches[index], self.seconds)


class Clock:
    """Notes when laps end."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_start(self, info: RunInfo) -> None:
        """Nothing to do."""

    def on_batch(self, done: int) -> None:
        """Nothing to do."""

    def on_lap(self, row: Any, posterior: bnp.Posterior) -> None:
        """A lap ended."""
        self.marks.append(time.perf_counter())

    def on_end(self, reason: str) -> None:
        """Nothing to do."""


def lap_seconds(n_workers: int, per_worker: int, n_batches: int, seconds: float) -> float:
    """Median seconds of a lap after the first."""
    rng = np.random.default_rng(0)
    batches = [Batch(rng.normal(size=(50, 3)), name=f"batch {b}") for b in range(n_batches)]
    clock, folder = Clock(), tempfile.mkdtemp()
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        bnp.train(
            bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian()),
            Slow(batches, seconds=seconds),
            init=bnp.RandomExamples(5),
            schedule=bnp.Memoized(laps=LAPS, window=per_worker * n_workers, tolerance=0.0, count_tolerance=0.0),
            client=client,
            store=folder + "/run",
            callbacks=[clock],
        )
    shutil.rmtree(folder)
    return float(np.median(np.diff(clock.marks)))


def main() -> None:
    """Measure, simulate, print."""
    warnings.simplefilter("ignore")
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.2
    # with nothing to wait for, a task costs its way through coordinator, scheduler and worker, one after the other
    task = lap_seconds(1, 8, 64, 0.0) / 64
    costs = Costs(
        visit=seconds + task / 2, spread=0.0, add=task / 2, submit=task / 8, schedule=task / 4, share=0.005,
        opening=0.0, fold=0.005, latency=0.005, lap=0.05,
        message=0.002, numbers=5 * 10,
    )  # fmt: skip
    print(json.dumps({"bench": "a task without work, ms", "all parts": round(1e3 * task, 1)}))
    for n_workers in (1, 2, 4, 8):
        n_batches = 24 * n_workers
        real = lap_seconds(n_workers, 4, n_batches, seconds)
        simulated = Simulation(costs, n_workers, n_batches, 4 * n_workers).run().seconds
        ideal = n_batches * seconds / n_workers
        figures = {
            "bench": "a lap, seconds",
            "workers": n_workers,
            "real": round(real, 2),
            "simulated": round(simulated, 2),
            "simulated / real": round(simulated / real, 2),
            "overhead": round(real / ideal - 1, 3),
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
