"""Price and worth of each feature that only makes runs faster: CPU seconds with it and without, in turns.

``python -m benchmarks.features [names] [--repeats 5]``: one JSON line per feature.  ``frames``, ``rounds`` and
``fan_in`` are switched off on a client and two workers that write a run directory; ``lanes`` replaces vector code by
plain loops in a process of its own; reading ahead has a script of its own (:mod:`benchmarks.bench_ahead`).
Seconds of the coordinator hold the scheduler, which runs in the same process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client
from numba import njit

import bnp_dask as bnp
from benchmarks.timing import workers
from bnp_dask.execute import message, one_blas_thread
from bnp_dask.inference import local_steps

WORKERS = 2
LAPS = 6

SMALL, SMALL_EFFORT, REDUCED = message.SMALL, local_steps.SMALL_EFFORT, local_steps.reduced_for_us


def frames(is_on: bool) -> None:
    """Small arrays of a task in one frame, or each in its own."""
    message.SMALL = SMALL if is_on else 0


def rounds(is_on: bool) -> None:
    """Several small batches in a task, or one."""
    local_steps.SMALL_EFFORT = SMALL_EFFORT if is_on else 0.0


def fan_in(is_on: bool) -> None:
    """Changes added on workers, or all by the coordinator."""
    local_steps.reduced_for_us = REDUCED if is_on else lambda items, join_all, most: list(items)


@dataclass(frozen=True)
class Case:
    """A run that a feature was made for: rows, columns, clusters, rows of a batch, batches in flight."""

    switch: Callable[[bool], None]
    n: int
    d: int
    k: int
    batch_size: int
    window: int


CASES = {
    "frames": Case(frames, 60_000, 8, 20, 500, 32),
    "rounds": Case(rounds, 60_000, 8, 20, 500, 32),
    "fan_in": Case(fan_in, 51_200, 64, 150, 800, 32),
}


def run(case: Case, client: Client) -> tuple[float, float, float]:
    """Seconds of the coordinator's CPU, of the workers' CPU, and of the clock, for all laps."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 3, (case.k, case.d))[rng.integers(case.k, size=case.n)] + rng.normal(size=(case.n, case.d))
    before = sum(client.run(time.process_time).values())
    with tempfile.TemporaryDirectory() as folder:
        wall, own = time.perf_counter(), time.process_time()
        bnp.train(
            bnp.Model(bnp.FiniteMixture(1.0), bnp.Gaussian()), x, init=bnp.RandomExamples(case.k), client=client,
            schedule=bnp.Memoized(laps=LAPS, window=case.window, tolerance=0.0), batch_size=case.batch_size,
            store=os.path.join(folder, "run"), checkpoint_minutes=60.0,
        )  # fmt: skip
        own, wall = time.process_time() - own, time.perf_counter() - wall
    return own, sum(client.run(time.process_time).values()) - before, wall


def measure(name: str, repeats: int) -> dict[str, Any]:
    """Medians with a feature and without."""
    case, found = CASES[name], {True: [], False: []}
    with workers(WORKERS) as client:
        run(case, client)  # compiles
        for is_on in (True, False) * repeats:
            case.switch(is_on)
            client.run(case.switch, is_on)
            found[is_on].append(run(case, client))
        case.switch(True)
    on, off = (np.median(found[is_on], axis=0) for is_on in (True, False))
    both = np.median([sum(one[:2]) for one in found[False]]) / np.median([sum(one[:2]) for one in found[True]])
    names = ("coordinator", "workers", "clock")
    parts = {f"{part} without/with": round(float(a / b), 3) for part, a, b in zip(names, off, on, strict=True)}
    seconds = {part: round(float(value), 2) for part, value in zip(names, on, strict=True)}
    return {"bench": "feature", "name": name, **parts, "CPU without/with": round(float(both), 3), "with": seconds}


# -- vector code --------------------------------------------------------------------------------------------------
@njit(nogil=True, error_model="numpy", fastmath=True)
def plain_times(vector, matrix, out):
    """:func:`bnp_dask.kernels.hmm.times` as a compiler makes it of plain loops."""
    out[:] = 0.0
    for k in range(len(matrix)):
        for j in range(len(out)):
            out[j] += vector[k] * matrix[k, j]


@njit(nogil=True, error_model="numpy", fastmath=True)
def plain_times_some(vector, index, matrix, out):
    """:func:`bnp_dask.kernels.hmm.times_some` likewise."""
    out[:] = 0.0
    for k in index:
        for j in range(len(out)):
            out[j] += vector[k] * matrix[k, j]


@njit(nogil=True, error_model="numpy", fastmath=True)
def plain_distances(y, shift, roots):
    """:func:`bnp_dask.kernels.gaussian.quadratic.cluster_distances` likewise."""
    n, d = y.shape
    out, away = np.empty((n, len(shift))), np.empty(d)
    for k in range(len(shift)):
        for i in range(n):
            total = 0.0
            for a in range(d):
                away[a] = y[i, a] - shift[k, a]
                z = 0.0
                for b in range(a + 1):
                    z += roots[k, a, b] * away[b]
                total += z * z
            out[i, k] = total
    return out


def chain_seconds(k: int) -> float:
    """CPU seconds of forward-backward on 2,000 steps."""
    from benchmarks.chains.bench_forward_backward import problem
    from benchmarks.timing import median
    from bnp_dask.kernels import hmm as kernel

    start, trans, log_lik = problem(k, 2000)
    given = np.log(start), np.log(trans), log_lik, np.array([0, 2000]), np.ones(1)
    return median(lambda: kernel.forward_backward(*given).pair_sums(), 9)


def lanes(is_on: bool) -> dict[str, float]:
    """CPU seconds of kernels in this process, where nothing was compiled before."""
    from benchmarks.timing import median
    from bnp_dask.kernels import hmm
    from bnp_dask.kernels.gaussian.quadratic import cluster_distances

    if not is_on:
        hmm.times = plain_times
        hmm.times_some = plain_times_some
    with one_blas_thread():
        found = {f"forward-backward, K={k}": chain_seconds(k) for k in (10, 50, 200)}
        rng = np.random.default_rng(0)
        y, shift, roots = rng.normal(size=(2000, 16)), rng.normal(size=(50, 16)), np.tril(rng.normal(size=(50, 16, 16)))
        distances = cluster_distances if is_on else plain_distances
        found["distances, K=50, D=16"] = median(lambda: distances(y, shift, roots), 9)
    return found


def measure_lanes(repeats: int) -> dict[str, Any]:
    """Ratios of seconds in processes that take turns, each state with compiled code of its own."""
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        for is_on in (True, False) * repeats:
            environment = {**os.environ, "NUMBA_CACHE_DIR": os.path.join(folder, str(is_on))}
            command = [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "benchmarks.features",
                "--own-lanes",
                str(int(is_on)),
            ]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found[is_on].append(json.loads(done.stdout))
    names = found[True][0]
    on, off = ({name: np.median([one[name] for one in found[is_on]]) for name in names} for is_on in (True, False))
    return {"bench": "feature", "name": "lanes", **{f"{n} without/with": round(off[n] / on[n], 2) for n in names}}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=[*CASES, "lanes"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--own-lanes", type=int, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.own_lanes is not None:
        print(json.dumps(lanes(bool(args.own_lanes))))
        return
    for name in args.names:
        found = measure_lanes(args.repeats) if name == "lanes" else measure(name, args.repeats)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
