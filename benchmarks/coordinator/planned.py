"""``bnp.plan`` against real laps on worker processes of this machine.

``python -m benchmarks.coordinator.planned [--workers 2] [--jobs NAME ...] [--others]``: JSON lines, one a job: planned
and measured seconds of a lap, memory, messages and disk, and their ratios.  The measured lap is the mean of laps 3
to 8, those that the probe meters.  ``--others``: jobs that no constant of the model was chosen on.
"""

from __future__ import annotations

import argparse
import json
import pickle
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from benchmarks.coordinator.check import Clock
from bnp_dask.execute.dask import DaskExecutor

LAPS = 8


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


def topics(rng: np.random.Generator, n: int, n_topics: int = 30, n_words: int = 2000) -> sparse.csr_array:
    """Documents of 60 words."""
    words = rng.dirichlet(np.full(n_words, 0.05), size=n_topics)
    shares = rng.dirichlet(np.full(n_topics, 0.1), size=n)
    return sparse.csr_array(np.array([rng.multinomial(60, share @ words) for share in shares], float))


def others() -> Iterator[Job]:
    """Five more, of other sizes and kinds."""
    rng = np.random.default_rng(1)
    x = 2.5 * rng.normal(size=(40, 24))[rng.integers(40, size=150_000)] + rng.normal(size=(150_000, 24))
    yield Job("other Gaussian", bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, {"batch_size": 7000})
    yield Job("other diagonal", bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), x, {"batch_size": 7000})
    sampled = {"batch_size": 5000, "schedule": bnp.Gibbs(burn_in=0, thin=1)}
    yield Job("other Gibbs", bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), x[:80_000], sampled)
    counts = topics(rng, 8000, n_topics=60, n_words=5000)
    fixed = {"batch_size": 400, "init": bnp.SampledTopics(80)}
    yield Job("other LDA", bnp.Model(bnp.LDA(), bnp.Multinomial()), counts, fixed)
    events = rng.poisson(rng.gamma(1.0, 3.0, size=(15, 40))[rng.integers(15, size=120_000)]).astype(float)
    yield Job("other Poisson", bnp.Model(bnp.DPMixture(), bnp.Poisson()), events, {"batch_size": 5000})


@dataclass(frozen=True)
class Found:
    """Seconds of a lap, bytes that arrive in it, peak memory of the largest worker, bytes of the run directory."""

    lap: float
    messages: float
    worker: float
    disk: float


class Arrivals:
    """Bytes of all that comes to this process from tasks."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._one, self._many = DaskExecutor.result, DaskExecutor.results_together

    def __enter__(self) -> Arrivals:
        arrivals, one, many = self, self._one, self._many

        def result(executor: Any, handle: Any) -> Any:
            value = one(executor, handle)
            arrivals.note(value)
            return value

        def results_together(executor: Any, handles: Sequence[Any]) -> list[Any]:
            values = many(executor, handles)
            for value in values:
                arrivals.note(value)
            return values

        DaskExecutor.result, DaskExecutor.results_together = result, results_together  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        DaskExecutor.result, DaskExecutor.results_together = self._one, self._many  # type: ignore[method-assign]

    def note(self, value: Any) -> None:
        """Count it, without a copy of its arrays."""
        buffers: list[pickle.PickleBuffer] = []
        self.nbytes += len(pickle.dumps(value, protocol=5, buffer_callback=buffers.append))
        self.nbytes += sum(buffer.raw().nbytes for buffer in buffers)


class LapsAndArrivals(Clock):
    """Notes when laps end, and what had arrived by then."""

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__()
        self.arrivals, self.nbytes = arrivals, list[int]()

    def on_lap(self, row: Any, posterior: bnp.Posterior) -> None:
        super().on_lap(row, posterior)
        self.nbytes.append(self.arrivals.nbytes)


def peak() -> float:
    """Most bytes that this process has held."""
    status = Path("/proc/self/status").read_text()
    return 1024.0 * int(status.split("VmHWM:")[1].split()[0])


def measured(job: Job, workers: int) -> Found:
    """Means of the laps after the second, and the sizes at the end."""
    settings = dict(job.settings)
    schedule = replace(settings.pop("schedule", bnp.Memoized()), laps=LAPS)
    with (
        bnp.local_client(workers) as client,
        tempfile.TemporaryDirectory() as folder,
        Arrivals() as arrivals,
    ):
        clock = LapsAndArrivals(arrivals)
        bnp.train(
            job.model, job.data, schedule=schedule, client=client, store=f"{folder}/run", callbacks=[clock], **settings
        )
        disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        most = max(client.run(peak).values())
    lap, messages = (float(np.mean(np.diff(values)[1:])) for values in (clock.marks, clock.nbytes))
    return Found(lap, messages, most, float(disk))


def main() -> None:
    """Plan, measure, print."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--jobs", nargs="*", default=[])
    parser.add_argument("--others", action="store_true")
    options = parser.parse_args()
    for job in others() if options.others else jobs():
        if options.jobs and not any(name in job.name for name in options.jobs):
            continue
        plan = bnp.plan(job.model, job.data, workers=options.workers, store="run", **job.settings)
        real = measured(job, options.workers)
        pairs = {
            "lap, s": (plan.lap_seconds, real.lap),
            "messages, MB": (plan.message_bytes / 1e6, real.messages / 1e6),
            "worker, MB": (plan.worker_bytes / 1e6, real.worker / 1e6),
            "disk, MB": ((plan.disk_bytes or 0.0) / 1e6, real.disk / 1e6),
        }
        line = {"job": job.name, "K": plan.n_clusters, "probe": round(plan.costs.probe_seconds, 1)}
        figures = {
            what: [float(f"{planned:.3g}"), float(f"{found:.3g}"), round(planned / max(found, 1e-9), 2)]
            for what, (planned, found) in pairs.items()
        }
        print(json.dumps({**line, **figures}), flush=True)


if __name__ == "__main__":
    main()
