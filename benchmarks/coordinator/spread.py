"""Laps of real runs on many workers, with sleeps standing in for compute: lap over ideal, and workers used per group.

``python -m benchmarks.coordinator.spread [n_workers ...] [--batches 16] [--features 8] [--clusters 25] [--seconds 0.5]
[--moves] [--store] [--window W] [--steal 1s]``: JSON lines.  Workers are threads of this process, so that a machine of
two cores holds dozens; they do not sample their threads, which would take a core.  A copy of this file in another
checkout measures that.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from contextlib import ExitStack
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster, get_worker

import bnp_dask as bnp
from benchmarks.coordinator.check import Clock
from bnp_dask.execute.local import LEAN
from bnp_dask.inference import local_steps

ROWS = 50
"""Rows of a batch."""


class Watch:
    """Sleeps in each local step, and notes which worker made it and which batches were sent out together."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.groups: list[tuple[int, ...]] = []
        self.workers: dict[int, list[str]] = defaultdict(list)
        self._lock = threading.Lock()
        self._visit, self._submit = local_steps.visit_batch, local_steps.LocalSteps.submit

    def __enter__(self) -> Watch:
        watch, visit, submit = self, self._visit, self._submit

        def slow_visit(posterior: Any, batch: Any, trials: Any, step: Any, states: Any) -> Any:
            time.sleep(watch.seconds)
            with watch._lock:
                watch.workers[step.request.batch].append(get_worker().address)
            return visit(posterior, batch, trials, step, states)

        def noted_submit(steps: Any, batches: Any, *args: Any, **more: Any) -> Any:
            watch.groups.append(tuple(batches))
            return submit(steps, batches, *args, **more)

        local_steps.visit_batch = slow_visit
        local_steps.LocalSteps.submit = noted_submit  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        local_steps.visit_batch = self._visit
        local_steps.LocalSteps.submit = self._submit  # type: ignore[method-assign]

    def workers_per_group(self) -> list[int]:
        """Workers that visited the batches of each group, in order of submission."""
        place: dict[int, int] = defaultdict(int)
        out = []
        for batches in self.groups:
            used = set()
            for batch in batches:
                used.add(self.workers[batch][place[batch]])
                place[batch] += 1
            out.append(len(used))
        return out


def laps(n_workers: int, chosen: argparse.Namespace) -> dict[str, Any]:
    """Figures of one run."""
    rng = np.random.default_rng(0)
    n_batches = chosen.batches * n_workers
    means = rng.normal(scale=8.0, size=(chosen.clusters, chosen.features))
    x = means[rng.integers(chosen.clusters, size=ROWS * n_batches)]
    x = x + rng.normal(size=x.shape)
    clock, how = Clock(), {"laps": chosen.laps, "tolerance": 0.0, "count_tolerance": 0.0}
    if chosen.window:
        how["window"] = chosen.window
    more: dict[str, Any] = {} if chosen.moves else {"moves": ()}
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(LEAN))
        if chosen.steal:
            stack.enter_context(dask.config.set({"distributed.scheduler.work-stealing-interval": chosen.steal}))
        cluster = stack.enter_context(
            LocalCluster(
                processes=False, n_workers=n_workers, threads_per_worker=1, dashboard_address=None, memory_limit=0
            )
        )
        client = stack.enter_context(Client(cluster))
        if chosen.store:
            more["store"] = stack.enter_context(tempfile.TemporaryDirectory()) + "/run"
        watch = stack.enter_context(Watch(chosen.seconds))
        cpu = time.process_time()
        bnp.train(
            bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian()),
            x,
            init=bnp.RandomExamples(chosen.clusters),
            schedule=bnp.Memoized(**how),
            client=client,
            callbacks=[clock],
            rng=0,
            batch_size=ROWS,
            **more,
        )
        cpu = time.process_time() - cpu
    ideal = n_batches * chosen.seconds / n_workers
    found = np.diff(clock.marks)
    return {
        "bench": "a lap on many workers, over the ideal",
        "workers": n_workers,
        "batches": n_batches,
        "group": max(map(len, watch.groups)),
        "ideal, s": round(ideal, 2),
        "laps over ideal": [round(float(s / ideal), 3) for s in found],
        "median": round(float(np.median(found) / ideal), 3),
        "CPU s of all": round(cpu, 1),
        "workers used per group": watch.workers_per_group(),
    }


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """What the command line says, or ``arguments``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workers", nargs="*", type=int, default=[12, 32])
    parser.add_argument("--batches", type=int, default=16, help="batches for each worker")
    parser.add_argument("--features", type=int, default=8)
    parser.add_argument("--clusters", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--laps", type=int, default=4)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--moves", action="store_true")
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--steal", default="")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    chosen = options()
    for n_workers in chosen.workers:
        print(json.dumps(laps(n_workers, chosen)), flush=True)


if __name__ == "__main__":
    main()
