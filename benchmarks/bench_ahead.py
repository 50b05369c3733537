"""What reading ahead is worth: a lap over batches that take 0.2 s to come and 0.2 s to compute, with it and without.

``python -m benchmarks.bench_ahead [--wait 0.2] [--step 0.2] [--workers 1 2] [--batches 12]``: one JSON line per
number of workers.  ``--wait 0`` shows that nothing changes, and nothing is read ahead, where nobody waits.  Runs with
and without it take turns.  Waiting stands for computing too, so that the figure is the same on a machine that others
use; ``--busy`` computes instead, for so many CPU seconds, without the interpreter's lock as kernels do.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from distributed import Client

import bnp_dask as bnp
from benchmarks.timing import workers
from bnp_dask.core.batch import Batch
from bnp_dask.execute import prefetch as ahead
from bnp_dask.inference import local_steps

N_ATOMS, N_FEATURES, N_CLUSTERS = 1000, 512, 4
LEAST_SECONDS = ahead.LEAST_SECONDS


@cache
def rows() -> np.ndarray:
    """The same for all batches, made once in a process; 4 MB, above what one task visits several of."""
    return np.random.default_rng(0).normal(size=(N_ATOMS, N_FEATURES))


@dataclass(frozen=True)
class SlowReader:
    """Waits, as for an object store."""

    wait: float

    def __call__(self) -> Batch:
        time.sleep(self.wait)
        return Batch(rows())


@dataclass(frozen=True)
class SlowSource:
    """Batches that are long in coming."""

    n_batches: int
    wait: float
    name: str = "slow"
    n_features: int = N_FEATURES
    is_sparse: bool = False

    @property
    def n_atoms(self) -> int:
        return self.n_batches * N_ATOMS

    def reader(self, index: int) -> SlowReader:
        return SlowReader(self.wait)

    def describe(self) -> dict[str, Any]:
        return {"kind": "slow"}


def compute(seconds: float) -> None:
    """So many CPU seconds of this thread, in calls that let go of the interpreter."""
    x, end = rows(), time.thread_time() + seconds
    while time.thread_time() < end:
        np.dot(x, x[:64].T)


def slow_down(step: float, is_busy: bool) -> None:
    """On a worker: from now on local steps take so long."""
    visit_batch = local_steps.visit_batch

    def slowly(*args: Any) -> Any:
        (compute if is_busy else time.sleep)(step)
        return visit_batch(*args)

    local_steps.visit_batch = slowly


def switch(is_on: bool) -> None:
    """On a worker: let no read count as waiting, or those that do."""
    ahead.LEAST_SECONDS = LEAST_SECONDS if is_on else np.inf


def laps(client: Client, source: SlowSource, args: argparse.Namespace, window: int) -> list[float]:
    """Seconds of all laps but the first."""
    result = bnp.train(
        bnp.Model(bnp.FiniteMixture(1.0), bnp.FixedVarianceGaussian()),
        source,
        init=bnp.RandomExamples(N_CLUSTERS),
        schedule=bnp.Memoized(laps=args.laps, window=window, tolerance=0.0),
        client=client,
    )
    ends = {row["lap"]: row["seconds"] for row in result.history}
    return list(np.diff([ends[lap] for lap in sorted(ends)]))


def measure(args: argparse.Namespace, n_workers: int) -> dict[str, object]:
    """Median seconds of laps with and without, and the least that reading and computing in turn, or at once, take."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with workers(n_workers) as client:
        client.run(slow_down, args.step, args.busy)
        for is_on in (True, False) * args.repeats:
            client.run(switch, is_on)
            seconds[is_on] += laps(client, SlowSource(args.batches, args.wait), args, 4 * n_workers)
    on, off = (float(np.median(seconds[is_on])) for is_on in (True, False))
    each = args.batches / n_workers
    return {
        "bench": "ahead",
        "workers": n_workers,
        "batches": args.batches,
        "wait": args.wait,
        "step": args.step,
        "lap": round(on, 2),
        "lap without": round(off, 2),
        "ratio": round(on / off, 2),
        "at once": round(each * max(args.wait, args.step), 2),
        "in turn": round(each * (args.wait + args.step), 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait", type=float, default=0.2)
    parser.add_argument("--step", type=float, default=0.2)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--laps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--busy", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for n in args.workers:
        print(json.dumps(measure(args, n)), flush=True)


if __name__ == "__main__":
    main()
