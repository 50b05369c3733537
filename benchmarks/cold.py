"""CPU seconds of a first run: three kinds of model on next to no data, without and with kernels kept on disk.

    python -m benchmarks.cold [KIND ...] [--compiled]

Each run is a process of its own: of Gaussian points, words, or sequences.  The package's bytecode is there before, as
pip leaves it.  ``--compiled`` lists which kernels were compiled, and the seconds that each took without those it calls.
"""

from __future__ import annotations

import argparse
import collections
import compileall
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np


def points() -> None:
    """600 points of three Gaussians, from the default start."""
    import bnp_dask as bnp

    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(c, 1.0, (200, 2)) for c in ([0, 0], [6, 1], [-5, 4])])
    bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x)


def words() -> None:
    """60 documents of 30 tokens out of 24 words: two topics."""
    import scipy.sparse

    import bnp_dask as bnp

    rng = np.random.default_rng(0)
    halves = [np.repeat([1.0, 0.0], 12), np.repeat([0.0, 1.0], 12)]
    counts = np.array([rng.multinomial(30, halves[d % 2] / 12) for d in range(60)])
    bnp.train(bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), scipy.sparse.csr_array(counts))


def sequences() -> None:
    """Two sequences of 240 steps through three states."""
    import bnp_dask as bnp

    rng = np.random.default_rng(0)
    walk = np.repeat([[0.0, 0.0], [9.0, 9.0], [0.0, 9.0]], 80, axis=0) + rng.normal(size=(240, 2))
    bnp.train(bnp.Model(bnp.HDPHMM(kappa=50.0), bnp.Gaussian()), [walk, walk[::-1]])


KINDS = {run.__name__: run for run in (points, words, sequences)}


def listen() -> dict[str, list[float]]:
    """Seconds for compiling by kernel and signature, filled while this process runs."""
    from numba.core import event

    found: dict[str, list[float]] = collections.defaultdict(list)

    class Compiling(event.Listener):
        def __init__(self) -> None:
            self.stack: list[list[float]] = []

        def on_start(self, event: event.Event) -> None:
            self.stack.append([time.process_time(), 0.0])

        def on_end(self, event: event.Event) -> None:
            start, inner = self.stack.pop()
            took = time.process_time() - start
            if self.stack:
                self.stack[-1][1] += took
            function = event.data["dispatcher"].py_func
            found[f"{function.__module__}.{function.__name__}{event.data['args']}"].append(took - inner)

    event.register("numba:compile", Compiling())
    return found


def once(kind: str, cache: str, compiled: bool) -> dict[str, float]:
    """CPU and wall seconds of a process that runs one kind."""
    command = [sys.executable, "-m", "benchmarks.cold", "--here", kind]
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command + ["--compiled"] * compiled, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu": round(cpu, 2), "wall": round(time.perf_counter() - start, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--filled", type=int, default=2, help="runs after the first")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        found = listen() if args.compiled else {}
        KINDS[args.here]()
        for name, seconds in sorted(found.items(), key=lambda item: -sum(item[1])):
            print(f"{sum(seconds):7.2f}  {name}")
        return
    for folder in ("bnp_dask", "benchmarks"):
        compileall.compile_dir(folder, quiet=1)
    with tempfile.TemporaryDirectory() as cache:
        for run in range(1 + args.filled):
            took = {kind: once(kind, cache, args.compiled and not run) for kind in args.kinds}
            total = round(sum(seconds["cpu"] for seconds in took.values()), 2)
            print(json.dumps({"cache": "filled" if run else "empty", "cpu": total, **took}), flush=True)


if __name__ == "__main__":
    main()
