"""CPU seconds of a lap of a mixture, of topics and of a chain, by two trees of the package in turns.

``python -m benchmarks.laps OTHER [--turns 5]``: OTHER is a folder with another version of the package.  Each turn
is a process of its own, first of this tree, then of the other; a line per model has the medians and the median of the
ratios of turns that follow each other.  CPU time, so that a busy machine disturbs little.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

LAPS = 12
"""Laps of a run; the first two, which load kernels, are left out."""


class Clock:
    """Callback: CPU seconds of this process at the end of each lap."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def on_start(self, info: Any) -> None:
        pass

    def on_batch(self, done: int) -> None:
        pass

    def on_lap(self, row: Any, posterior: Any) -> None:
        self.at.append(time.process_time())

    def on_end(self, reason: str) -> None:
        pass


def cases() -> dict[str, tuple[Any, Any, int]]:
    """Model, data and clusters at the start, by name."""
    from scipy import sparse

    import bnp_dask as bnp

    rng = np.random.default_rng(0)
    rows = rng.normal(0.0, 3.0, (25, 8))[rng.integers(25, size=240_000)] + rng.normal(size=(240_000, 8))
    words = sparse.csr_array(rng.poisson(0.05, (6000, 1000)).astype(float))
    steps = rng.normal(0.0, 3.0, (12, 2))[rng.integers(12, size=16_000).repeat(10)] + rng.normal(size=(160_000, 2))
    chain = bnp.as_source(steps, batch_size=20_000, groups=np.arange(0, 160_001, 1000))
    return {
        "mixture": (bnp.Model(bnp.DPMixture(), bnp.Gaussian()), rows, 25),
        "topics": (bnp.Model(bnp.HDPTopics(), bnp.Multinomial(np.full(1000, 0.1))), words, 20),
        "chain": (bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian()), chain, 16),
    }


def laps() -> dict[str, float]:
    """Median CPU seconds of a lap, by case, of the package that this process imports."""
    import bnp_dask as bnp

    out = {}
    for name, (model, data, n_clusters) in cases().items():
        clock = Clock()
        schedule = bnp.Memoized(laps=LAPS, tolerance=0.0, count_tolerance=0.0)
        start = bnp.RandomExamples(n_clusters)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bnp.train(model, data, init=start, schedule=schedule, moves=(), callbacks=[clock])
        out[name] = float(np.median(np.diff(clock.at)[1:]))
    return out


def of_tree(tree: Path) -> dict[str, float]:
    """The figures of one process that imports the package from a folder."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--here"]
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--here", action="store_true", help="measure the package that this process imports")
    args = parser.parse_args()
    if args.here:
        print(json.dumps(laps()))
        return
    if args.other is None:
        parser.error("OTHER: a folder with another version of the package")
    trees = (Path(__file__).resolve().parents[1], args.other.resolve())
    turns = [[of_tree(tree) for tree in trees] for _ in range(args.turns)]
    for name in turns[0][0]:
        own, other = (np.array([turn[i][name] for turn in turns]) for i in (0, 1))
        line = {"bench": "laps", "name": name, "seconds": np.median(own), "other": np.median(other)}
        print(json.dumps({**line, "ratio": np.median(own / other), "turns": args.turns}), flush=True)


if __name__ == "__main__":
    main()
