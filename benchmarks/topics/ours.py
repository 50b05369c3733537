"""Trains topic models of this package in the process that calls, and says what came out, lap by lap.

Figures behind the default prior of words: KOS, seed 0, start and moves at their defaults; nats per held-out token by
``completion`` here (symmetric prior), ``bnp.score`` in brackets; one run each.

==================  ===  ====  ==========  ==================  =====================
Multinomial(...)    K    laps  objective   score at the end    score after laps 1, 6
==================  ===  ====  ==========  ==================  =====================
0.1                 107  35    -3,173,019  -7.4342 (-7.3853)   -7.4172, -7.4294
0.15, common=0.5    109  28    -3,145,576  -7.3985 (-7.3720)   -7.3824, -7.3949
0.4, common=0.6     101  7     -3,144,079  stopped by hand     -7.4303, -7.4378
==================  ===  ====  ==========  ==================  =====================

A tenth of the training documents kept apart, 8 laps without moves, K=101-102: 0.1 -7.4816 (-7.3779), 0.15 and 0.5
-7.4515 (-7.3803), 0.05 and 0.5 -7.5180 (-7.4212): the two scores disagree about the first two.  1,000 documents in a
``DPMixture`` of 25 clusters, 12 laps without moves, nats per held-out document: 0.1 -525.71, 0.15 and 0.5 -512.91.
More laps lower the score with each of the priors, by 0.016 with the default.

These had 100 passes of the sampler at the start, 20 averaged, and a sixth of the square root of the tokens as topics.
With 200 passes, 100 averaged, and a quarter (the default now), and the default prior: K 152, 28 laps, objective
-3,134,825, score -7.3771, after lap 1 -7.3517, after lap 8 -7.3743; 117 CPU seconds (78 before).
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

import bnp_dask as bnp
from benchmarks.timing import workers
from benchmarks.topics.corpora import Corpus
from benchmarks.topics.score import figures
from bnp_dask.allocation import LDA, DocumentStep, HDPTopics
from bnp_dask.execute import SerialExecutor
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.initialize import AnchorWords, Initialization, SampledTopics


@dataclass(frozen=True)
class Ours:
    """One way to train."""

    n_clusters: int = 50
    start: str = "random"
    laps: int = 20
    moves: bool = False
    where: str = "serial"
    kind: str = "hdp"
    alpha: float = 0.5
    gamma: float = 10.0
    lam: float = 0.1
    common: float = 0.0
    noise: float = 1.0
    passes: int = 100
    document_start: str = "best"
    restarts: int = 5
    batch_docs: int = 2000
    window: int = 4
    seed: int = 0

    def model(self) -> bnp.Model:
        """The model; by default priors as in the thesis (7.4): alpha 0.5, lambda 0.1."""
        step = DocumentStep(start=self.document_start, restarts=self.restarts)  # type: ignore[arg-type]
        allocation = LDA(self.alpha, step) if self.kind == "lda" else HDPTopics(self.gamma, self.alpha, step)
        return bnp.Model(allocation, bnp.Multinomial(self.lam, self.common))

    def init(self) -> Initialization:
        """Where training starts."""
        if self.start == "anchors":
            return AnchorWords(self.n_clusters, noise=self.noise)
        if self.start == "sampled":
            return SampledTopics(self.n_clusters, self.passes)
        starts = {"random": bnp.RandomExamples, "kmeans": bnp.BregmanKMeans}
        return starts[self.start](self.n_clusters)

    @contextmanager
    def executor(self) -> Iterator[Any]:
        """Where tasks run."""
        if self.where == "dask":
            with workers(2) as client:
                yield client
            return
        executor = ThreadExecutor(2) if self.where == "threads" else SerialExecutor()
        try:
            yield executor
        finally:
            executor.close()


class Watch:
    """Keeps the topics of each lap, to score them when the clock has stopped."""

    def __init__(self) -> None:
        self.laps: list[tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray]] = []

    def on_start(self, info: Any) -> None:
        """Nothing to do."""

    def on_batch(self, done: int) -> None:
        """Nothing to do."""

    def on_lap(self, row: dict[str, Any], posterior: bnp.Posterior) -> None:
        """Note sizes, topics and weights."""
        phi = posterior.observation.lam
        said = f"lap {row['lap']}: {row['seconds']:.1f} s, K={len(phi)}, elbo {row['elbo']:.0f}"
        print(f"{said}, accepted {row.get('accepted')}", file=sys.stderr, flush=True)
        self.laps.append((dict(row), phi, posterior.summary["N"].copy(), posterior.weights.copy()))

    def on_end(self, reason: str) -> None:
        """Nothing to do."""


def topics_of(lam: np.ndarray) -> np.ndarray:
    """Expected word probabilities, ``(K, V)``."""
    return lam / lam.sum(axis=1, keepdims=True)


def cpu_seconds() -> float:
    """CPU time of this process and those it started, which on a shared machine says more than the clock."""
    me = psutil.Process()
    times = [p.cpu_times() for p in (me, *me.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def warm_up(ours: Ours, corpus: Corpus) -> None:
    """Load what is compiled: seconds are those of a process that has trained before."""
    few = corpus.train[:40]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bnp.train(
            ours.model(), few, init=bnp.RandomExamples(3), schedule=bnp.Memoized(laps=3), moves=moves_of(ours),
            client=SerialExecutor(), batch_size=20,
        )  # fmt: skip


def moves_of(ours: Ours) -> list[Any]:
    """Births from gathered documents, merges and deletes; or none."""
    return [bnp.Birth(), bnp.Merge(), bnp.Delete()] if ours.moves else []


def run(ours: Ours, corpus: Corpus) -> dict[str, Any]:
    """Train, then score every lap; seconds do not include scoring."""
    warm_up(ours, corpus)
    watch = Watch()
    with ours.executor() as executor, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started, used = time.perf_counter(), cpu_seconds()
        result = bnp.train(
            ours.model(), corpus.train, init=ours.init(),
            schedule=bnp.Memoized(laps=ours.laps, window=ours.window),
            moves=moves_of(ours), client=executor, batch_size=ours.batch_docs, callbacks=[watch], rng=ours.seed,
        )  # fmt: skip
        seconds, cpu = time.perf_counter() - started, cpu_seconds() - used
    laps = []
    for row, lam, sizes, weights in watch.laps:
        # after the last lap the posterior is that of its own summary: "seconds" count from the start of the run
        found = figures(corpus.test, topics_of(lam), sizes, corpus.truth, _prior(ours, weights))
        laps.append({"lap": row["lap"], "seconds": round(row["seconds"], 2), "elbo": row["elbo"], **found})
    return {
        "program": "bnp_dask", **ours.__dict__, "corpus": corpus.name, "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2), "reason": result.reason,
        **{k: v for k, v in laps[-1].items() if k not in ("lap", "seconds")},
        "n_laps": laps[-1]["lap"], "laps_run": laps,
    }  # fmt: skip


def _prior(ours: Ours, weights: np.ndarray) -> np.ndarray:
    return ours.alpha * weights / weights.sum()
