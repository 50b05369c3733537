"""``bnp.plan`` against real laps on worker processes of this machine.

``python -m benchmarks.coordinator.planned [workers]``: JSON lines, one a job: the planned and the measured seconds of a
lap, and their ratio.  The measured lap is the median of laps 3 and 4, those that the probe meters.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from benchmarks.coordinator.check import Clock

LAPS = 4


@dataclass(frozen=True)
class Job:
    """One job: a model, data, and settings of ``train``."""

    name: str
    model: bnp.Model
    data: Any
    settings: dict[str, Any]


def jobs() -> Iterator[Job]:
    """Ten jobs of all kinds, of some CPU seconds a lap."""
    rng = np.random.default_rng(0)
    gaussian = bnp.Model(bnp.DPMixture(), bnp.Gaussian())
    for n, d, k, spread in ((400_000, 16, 25, 3.0), (100_000, 64, 50, 2.0), (1_000_000, 4, 10, 5.0)):
        x = spread * rng.normal(size=(k, d))[rng.integers(k, size=n)] + rng.normal(size=(n, d))
        yield Job(f"Gaussian {n} x {d}", gaussian, x, {"batch_size": n // 24})
    diagonal = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    yield Job("diagonal", diagonal, x, {"batch_size": len(x) // 24})
    few = x[:60_000]
    yield Job("full batch", gaussian, few, {"schedule": bnp.FullBatch(), "batch_size": 2500})
    yield Job("Gibbs", gaussian, few, {"schedule": bnp.Gibbs(burn_in=0, thin=1), "batch_size": 2500})
    stream = bnp.Model(bnp.NGGPMixture(), bnp.DiagGaussian())
    yield Job("propagation", stream, few, {"schedule": bnp.ExpectationPropagation(), "batch_size": 2500})
    counts = topics(rng, 12_000)
    yield Job("topics", bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), counts, {"batch_size": 500})
    fixed = {"batch_size": 500, "init": bnp.SampledTopics(50)}
    yield Job("LDA", bnp.Model(bnp.LDA(), bnp.Multinomial()), counts, fixed)
    bits = (rng.random((200_000, 30)) < rng.random((20, 30))[rng.integers(20, size=200_000)]).astype(float)
    yield Job("bits", bnp.Model(bnp.DPMixture(), bnp.Bernoulli()), bits, {"batch_size": 8000})


def topics(rng: np.random.Generator, n: int) -> sparse.csr_array:
    """Documents of 60 words from 30 topics of 2,000 words."""
    words = rng.dirichlet(np.full(2000, 0.05), size=30)
    shares = rng.dirichlet(np.full(30, 0.1), size=n)
    return sparse.csr_array(np.array([rng.multinomial(60, share @ words) for share in shares], float))


def measured(job: Job, workers: int) -> float:
    """Median seconds of the last two of four laps."""
    clock = Clock()
    settings = dict(job.settings)
    schedule = replace(settings.pop("schedule", bnp.Memoized()), laps=LAPS)
    with bnp.local_client(workers) as client, tempfile.TemporaryDirectory() as folder:
        bnp.train(
            job.model, job.data, schedule=schedule, client=client, store=f"{folder}/run", callbacks=[clock], **settings
        )
    return float(np.median(np.diff(clock.marks)[-2:]))


def main() -> None:
    """Plan, measure, print."""
    warnings.simplefilter("ignore")
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    for job in jobs():
        found = bnp.plan(job.model, job.data, workers=workers, store="run", **job.settings)
        real = measured(job, workers)
        line = {
            "job": job.name,
            "K": found.n_clusters,
            "planned": round(found.lap_seconds, 2),
            "measured": round(real, 2),
            "planned / measured": round(found.lap_seconds / real, 2),
            "probe": round(found.costs.probe_seconds, 1),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
