"""Sweeps of Gibbs sampling beside laps of variational inference, per CPU second.

``python -m benchmarks.sampling``: JSON lines with CPU seconds of a lap after the first ones, in one thread, and
their ratio.  Both start from the same clusters; clusters are far apart, so that laps do the same work.  ``round`` is
what splits and unions take where a lap ends with them, and ``with_rounds`` the ratio with their share of late laps.
"""

from __future__ import annotations

import json
import time
from typing import Any
from unittest.mock import patch

import numpy as np

import bnp_dask as bnp
from bnp_dask.execute import SerialExecutor
from bnp_dask.inference.sampling import split_merge

LAPS = 6


def data(n: int, d: int, k: int) -> np.ndarray:
    """Points about random centers."""
    rng = np.random.default_rng(0)
    return rng.normal(scale=4.0, size=(k, d))[rng.integers(k, size=n)] + rng.normal(size=(n, d))


class Clock:
    """CPU seconds at the end of each lap."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def on_start(self, info: Any) -> None: ...

    def on_batch(self, done: int) -> bool:
        return False

    def on_lap(self, row: Any, posterior: Any) -> bool:
        self.at.append(time.process_time())
        return False

    def on_end(self, reason: str) -> None: ...


def seconds(schedule: Any, model: bnp.Model, x: np.ndarray, k: int) -> float:
    """Median CPU seconds of a lap."""
    clock, start, client = Clock(), bnp.BregmanKMeans(k), SerialExecutor()
    bnp.train(model, x, schedule=schedule, init=start, moves=(), callbacks=[clock], client=client, batch_size=10_000)
    return float(np.median(np.diff(clock.at)[1:]))


PRIORS = {
    "finite": (bnp.FiniteMixture(1.0), bnp.FiniteMixture(1.0)),
    "DP": (bnp.DPMixture(1.0), bnp.DPMixture(1.0)),
    "NGGP": (bnp.NGGPMixture(1.0, 0.5, 1.0), bnp.DPMixture(1.0)),
}
"""Priors that are sampled, and those that the laps beside them have."""


def main() -> None:
    """Gaussians of full covariance, screened and not, and diagonal ones."""
    full = bnp.FullBatch(laps=LAPS, tolerance=0.0, count_tolerance=0.0)
    for likelihood, d, k in ((bnp.Gaussian(), 16, 50), (bnp.Gaussian(), 4, 8), (bnp.DiagGaussian(), 16, 50)):
        x = data(40_000, d, k)
        for prior, (drawn, variational) in PRIORS.items():
            model, late = bnp.Model(drawn, likelihood), split_merge.LATE
            with patch.multiple(split_merge, EARLY=1e-9, LATE=0.0):
                ours = seconds(bnp.Gibbs(laps=LAPS), model, x, k)
            with patch.multiple(split_merge, EARLY=1e-9, LATE=1.0):
                more = seconds(bnp.Gibbs(laps=LAPS), model, x, k) - ours
            theirs = seconds(full, bnp.Model(variational, likelihood), x, k)
            line = {"features": d, "clusters": k, "sweep": ours, "lap": theirs, "speed": theirs / ours}
            line |= {"round": more, "with_rounds": theirs / (ours + late * more)}
            print(json.dumps({"name": f"gibbs {type(likelihood).__name__} {prior}", **line}), flush=True)


if __name__ == "__main__":
    main()
