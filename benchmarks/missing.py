"""Speed of a Gaussian mixture with missing entries, against that of the same data with none missing.

    python -m benchmarks.missing [--share 0.05]

Laps of a run of memoized training in one process, four of each in turns, the fastest counts; CPU seconds.  On a loaded
machine, 5 % of the entries missing, K clusters of D columns:

        n    D    K   speed   before clusters stood side by side
    20000   16   20     .55   .44
    20000    8   10     .55   .48
    12000   32   30     .61   .44
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np

import bnp_dask as bnp

CASES = ((20_000, 16, 20), (20_000, 8, 10), (12_000, 32, 30))


def clusters(n: int, d: int, k: int) -> np.ndarray:
    """Rows of ``k`` clusters whose columns go together, ``(n, d)``."""
    rng = np.random.default_rng(0)
    mixing = np.eye(d) + 0.3 * rng.normal(size=(d, d))
    return rng.normal(size=(k, d))[rng.integers(k, size=n)] * 4.0 + rng.normal(size=(n, d)) @ mixing


def seconds_per_lap(x: np.ndarray, k: int) -> float:
    """CPU seconds of a run by its laps."""
    model = bnp.Model(bnp.DPMixture(gamma=5.0), bnp.Gaussian(missing="marginalise"), learn_prior="never")
    began = time.process_time()
    schedule, size = bnp.Memoized(laps=8), len(x) // 4
    result = bnp.train(model, x, init=bnp.RandomExamples(k), schedule=schedule, moves=(), batch_size=size)
    return (time.process_time() - began) / result.history[-1]["lap"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.05)
    share = parser.parse_args().share
    warnings.simplefilter("ignore", bnp.ConvergenceWarning)
    for n, d, k in CASES:
        whole = clusters(n, d, k)
        lacking = np.where(np.random.default_rng(1).random((n, d)) < share, np.nan, whole)
        turns = [(seconds_per_lap(whole, k), seconds_per_lap(lacking, k)) for _ in range(4)]
        best = np.min(turns, axis=0)
        print(f"{n:6d} {d:4d} {k:4d}  {best[0] / best[1]:.2f}", flush=True)


if __name__ == "__main__":
    main()
