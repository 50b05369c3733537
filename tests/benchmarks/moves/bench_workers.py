"""What the coordinator costs: wall seconds and CPU seconds of one run on one and on two workers.

``python -m tests.benchmarks.moves.bench_workers STORE.zarr [--laps 12] [--fixed K] [--window 8] [--memory]``: one JSON
line per number of workers.  Two workers need at least 0.5 of the time of one; the coordinator, which works beside
them on the same cores here, sets how much more.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
import warnings

import numpy as np

import bnp_dask as bnp
from bnp_dask.execute import SerialExecutor
from tests.benchmarks.timing import workers


def measure(args: argparse.Namespace, n_workers: int) -> dict[str, object]:
    """One run."""
    moves = [] if args.fixed else [bnp.Birth(), bnp.Merge(), bnp.Delete()]
    folder = tempfile.mkdtemp()
    model = bnp.Model(bnp.DPMixture(gamma=10.0), bnp.Gaussian())
    with workers(n_workers) as client:
        client.run(warm_up)
        before, own, start = sum(client.run(time.process_time).values()), time.process_time(), time.perf_counter()
        result = bnp.train(
            model,
            args.store,
            init=bnp.BregmanKMeans(args.fixed or 1),
            schedule=bnp.Memoized(laps=args.laps, window=args.window, tolerance=0.0),
            moves=moves,
            client=client,
            store=None if args.memory else folder + "/run",
        )
        wall, own = time.perf_counter() - start, time.process_time() - own
        spent = sum(client.run(time.process_time).values()) - before
    shutil.rmtree(folder)
    return {
        "bench": "workers",
        "workers": n_workers,
        "wall": round(wall, 2),
        "coordinator CPU": round(own, 2),
        "workers CPU": round(spent, 2),
        "clusters": result.posterior.n_clusters,
        "elbo": result.history[-1]["elbo"],
        "laps": args.laps,
    }


def warm_up() -> None:
    """Compile what a worker needs."""
    data = np.random.default_rng(0).normal(size=(300, 3))
    model = bnp.Model(bnp.DPMixture(gamma=1.0), bnp.Gaussian())
    moves = [bnp.Birth(), bnp.Merge(), bnp.Delete()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bnp.train(model, data, init=bnp.BregmanKMeans(2), moves=moves, client=SerialExecutor())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("--laps", type=int, default=12)
    parser.add_argument("--fixed", type=int, default=0)
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    warm_up()
    for n in args.workers:
        print(json.dumps(measure(args, n)), flush=True)


if __name__ == "__main__":
    main()
