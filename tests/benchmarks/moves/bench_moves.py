"""What moves cost: CPU seconds of a lap with all of them over those of a lap without, at K = 50.

``python -m tests.benchmarks.moves.bench_moves``: one JSON line per figure.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import sys
import time

import numpy as np

from bnp_dask.allocation import DPMixture
from bnp_dask.batch import Batch
from bnp_dask.execute import SerialExecutor, one_blas_thread
from bnp_dask.initialize import BregmanKMeans, InitContext
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.moves.base import Move
from bnp_dask.observation import DiagGaussian, Gaussian
from bnp_dask.schedules import Memoized, State, Work
from bnp_dask.survey import combine, survey_batch
from tests.moves.parts import Batches, DictMemo

LAPS = 7
ALL: tuple[Move, ...] = (Birth(), Merge(), Delete())
CASES: dict[str, tuple[Move, ...]] = {
    "births": ALL[:1],
    "merges": ALL[1:2],
    "deletes": ALL[2:],
    "all": ALL,
}


def cloud(n: int, d: int, k: int, n_batches: int) -> list[Batch]:
    """Overlapping clusters of many shapes, so that no number of clusters is obviously right."""
    rng = np.random.default_rng(0)
    means = rng.normal(scale=1.5, size=(k, d))
    labels = rng.integers(k, size=n)
    shapes = rng.normal(size=(k, d, d)) / np.sqrt(d)
    x = means[labels] + np.einsum("nij,nj->ni", shapes[labels], rng.standard_t(5, size=(n, d)))
    return [Batch(part) for part in np.array_split(x, n_batches)]


def lap_seconds(model: Model, batches: list[Batch], moves: tuple[Move, ...], n_clusters: int) -> np.ndarray:
    """CPU seconds of laps 2 to ``LAPS``, and the number of clusters after each."""
    source = Batches(batches)
    survey = combine([survey_batch(b) for b in batches])
    work = Work(model.with_prior(survey), source, survey, SerialExecutor(), DictMemo(), 0, moves)
    context = InitContext(work.model, source, survey, work.executor, np.random.default_rng(0))
    state = State.start(work.model, BregmanKMeans(n_clusters, laps=2).start(context), source.n_batches)
    marks = []
    for step in Memoized(laps=LAPS, tolerance=0.0, count_tolerance=0.0).run(work, state):
        if step.lap_end:
            marks.append((time.process_time(), state.posterior.n_clusters))
    times = np.array([m[0] for m in marks])
    return np.stack([np.diff(times), [m[1] for m in marks[1:]]])


def main(profile: bool) -> None:
    """Measure and print."""
    for name, observation, d in (("diag D=20", DiagGaussian(), 20), ("full D=25", Gaussian(), 25)):
        batches = cloud(40_000, d, 50, 40)
        model = Model(DPMixture(5.0), observation)
        with one_blas_thread():
            plain = lap_seconds(model, batches, (), 50)
            per_cluster = np.median(plain[0] / plain[1])
            print(json.dumps({"bench": f"lap, {name}", "seconds": round(float(np.median(plain[0])), 3)}), flush=True)
            for case, moves in CASES.items():
                watch = cProfile.Profile()
                if profile and case == "all":
                    watch.enable()
                seconds, clusters = lap_seconds(model, batches, moves, 50)
                watch.disable()
                # a lap costs in proportion to its clusters, and moves change how many there are
                before = np.concatenate([[50], clusters[:-1]])
                ratio = seconds / (per_cluster * before)
                figures = {
                    "bench": f"lap with {case}, {name}",
                    "ratio mean": round(float(ratio.mean()), 2),
                    "ratio": np.round(ratio, 2).tolist(),
                    "clusters": clusters.astype(int).tolist(),
                }
                print(json.dumps(figures), flush=True)
                if profile and case == "all":
                    pstats.Stats(watch).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    main("--profile" in sys.argv)
