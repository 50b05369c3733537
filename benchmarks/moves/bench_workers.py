"""How much sooner two workers end a whole run than one.

``python -m benchmarks.moves.bench_workers STORE.zarr [--laps 10] [--fixed K] [--window 32] [--memory]
[--share S] [--apart N]``: one JSON line per run.  The runs take turns, a lap each, so that both have the same minutes
of the machine; but the processes of each are there while the other computes.  With ``--apart 5`` each run has the
machine to itself, in a process of its own, five times in turn, and the last line is the median of the five ratios.

Two workers need at least 0.5 of the time of one.  How much more is set by the coordinator, where it works beside them
on the same cores; with ``--share 0.6`` each process has 0.6 of a core to itself, as if it had a machine of its own.
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
from contextlib import ExitStack
from functools import partial

import numpy as np
from distributed import Client

import bnp_dask as bnp
from benchmarks.shares import share_of_a_core
from benchmarks.timing import workers
from benchmarks.turns import Turn, in_turns
from bnp_dask.execute import SerialExecutor


def train(args: argparse.Namespace, client: Client, results: list[bnp.TrainResult], turn: Turn) -> None:
    """One run, whose result is put beside the others."""
    with tempfile.TemporaryDirectory() as folder:
        result = bnp.train(
            bnp.Model(bnp.DPMixture(), bnp.Gaussian()),
            args.store,
            init=bnp.BregmanKMeans(args.fixed or 1),
            schedule=bnp.Memoized(laps=args.laps, window=args.window, tolerance=0, count_tolerance=0),
            moves=[] if args.fixed else [bnp.Birth(), bnp.Merge(), bnp.Delete()],
            client=client,
            store=None if args.memory else folder + "/run",
            callbacks=[turn],
            rng=0,
        )
    results.append(result)


def warm_up() -> None:
    """Compile what a process needs."""
    data = np.random.default_rng(0).normal(size=(300, 3))
    model = bnp.Model(bnp.DPMixture(gamma=1.0), bnp.Gaussian())
    moves = [bnp.Birth(), bnp.Merge(), bnp.Delete()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bnp.train(model, data, init=bnp.BregmanKMeans(2), moves=moves, client=SerialExecutor())


def apart(pairs: int, options: list[str], counts: list[int]) -> None:
    """Runs in processes of their own, one after the other."""
    ratios = []
    for _ in range(pairs):
        runs = []
        for n in counts:
            command = [sys.executable, "-m", "benchmarks.moves.bench_workers", *options, "--workers", str(n)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
            print(json.dumps(runs[-1]), flush=True)
        assert len({run["elbo"] for run in runs}) == 1  # the same bits
        ratios.append([run["wall"] / runs[0]["wall"] for run in runs])
    medians = [round(float(m), 3) for m in np.median(ratios, axis=0)]
    print(json.dumps({"bench": "workers apart", "workers": counts, "of the first": medians, "median of": pairs}))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("--laps", type=int, default=10)
    parser.add_argument("--fixed", type=int, default=0)
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--share", type=float)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--apart", type=int, default=0)
    args = parser.parse_args()
    if args.apart:
        given = {"--laps": args.laps, "--fixed": args.fixed, "--window": args.window, "--share": args.share}
        options = [args.store, *(text for name, v in given.items() if v is not None for text in (name, str(v)))]
        apart(args.apart, options + ["--memory"] * args.memory, args.workers)
        return
    warnings.simplefilter("ignore")
    warm_up()
    results: list[bnp.TrainResult] = []
    with ExitStack() as stack:
        clients = [stack.enter_context(workers(n)) for n in args.workers]
        for client in clients:
            client.run(warm_up)
        if args.share:
            pids = [pid for client in clients for pid in client.run(os.getpid).values()]
            stack.enter_context(share_of_a_core(args.share, pids))
        before = [sum(client.run(time.process_time).values()) for client in clients]
        turns = in_turns([partial(train, args, client, results) for client in clients])
        spent = [sum(client.run(time.process_time).values()) for client in clients]
    assert len({result.history[-1]["elbo"] for result in results}) == 1  # the same bits
    for n, turn, cpu in zip(args.workers, turns, np.subtract(spent, before), strict=True):
        figures = {
            "bench": "workers",
            "workers": n,
            "wall": round(turn.whole, 2),
            "of the first": round(turn.whole / turns[0].whole, 3),
            "lap seconds": [round(s, 2) for s in turn.seconds],
            "workers CPU": round(float(cpu), 2),
            "clusters": results[0].posterior.n_clusters,
            "elbo": results[0].history[-1]["elbo"],
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
