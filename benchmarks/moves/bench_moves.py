"""What moves cost: CPU seconds of a lap with all of them over those of a lap without, at K = 50.

``python -m benchmarks.moves.bench_moves [--atoms 200000] [--cases all] [--models full]``: one JSON line per
figure.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.execute import SerialExecutor, one_blas_thread
from bnp_dask.inference import Memoized, State, Work
from bnp_dask.initialize import BregmanKMeans, InitContext
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.moves.base import Move
from bnp_dask.observation import DiagGaussian, Gaussian
from bnp_dask.observation.base import Observation
from tests.moves.parts import Batches, DictMemo

LAPS = 7
ALL: tuple[Move, ...] = (Birth(), Merge(), Delete())
CASES: dict[str, tuple[Move, ...]] = {
    "births": ALL[:1],
    "merges": ALL[1:2],
    "deletes": ALL[2:],
    "all": ALL,
}
MODELS: dict[str, tuple[Observation, int]] = {"diag": (DiagGaussian(), 20), "full": (Gaussian(), 25)}


def cloud(n: int, d: int, k: int, n_batches: int) -> list[Batch]:
    """Overlapping clusters of many shapes, so that no number of clusters is obviously right."""
    rng = np.random.default_rng(0)
    means = rng.normal(scale=1.5, size=(k, d))
    labels = rng.integers(k, size=n)
    shapes = rng.normal(size=(k, d, d)) / np.sqrt(d)
    x = means[labels] + np.einsum("nij,nj->ni", shapes[labels], rng.standard_t(5, size=(n, d)))
    return [Batch(part) for part in np.array_split(x, n_batches)]


def laps(model: Model, batches: list[Batch], moves: tuple[Move, ...], n_clusters: int) -> Iterator[tuple[float, int]]:
    """CPU seconds of laps 2 to ``LAPS``, one at a time, and the number of clusters that each began with."""
    source = Batches(batches)
    survey = combine([survey_batch(b) for b in batches])
    work = Work(model.with_prior(survey), source, survey, SerialExecutor(), DictMemo(), 0, moves)
    context = InitContext(work.model, source, survey, work.executor, np.random.default_rng(0))
    state = State.start(work.model, BregmanKMeans(n_clusters, laps=2).start(context), source.n_batches)
    steps = Memoized(laps=LAPS, tolerance=0.0, count_tolerance=0.0).run(work, state)
    while not next(steps).lap_end:
        pass
    for _ in range(LAPS - 1):
        began, before = time.process_time(), state.posterior.n_clusters
        while not next(steps).lap_end:
            pass
        yield time.process_time() - began, before


def cost(model: Model, batches: list[Batch], moves: tuple[Move, ...], n_clusters: int) -> dict[str, Any]:
    """Laps with moves over laps without, taken in turns, so that a machine that slows down slows both.

    A lap costs in proportion to its clusters, and moves change how many there are.
    """
    ratios, plain, clusters = [], [], []
    both = zip(laps(model, batches, (), n_clusters), laps(model, batches, moves, n_clusters), strict=True)
    for (alone, k), (seconds, now) in both:
        ratios.append(seconds / now / (alone / k))
        plain.append(alone)
        clusters.append(now)
    return {
        "median": round(float(np.median(ratios)), 2),
        "mean": round(float(np.mean(ratios)), 2),
        "ratios": np.round(ratios, 2).tolist(),
        "clusters": clusters,
        "seconds without": round(float(np.median(plain)), 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--atoms", type=int, default=200_000)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    args = parser.parse_args()
    for name in args.models:
        observation, d = MODELS[name]
        batches = cloud(args.atoms, d, 50, 40)
        with one_blas_thread():
            for case in args.cases:
                found = cost(Model(DPMixture(5.0), observation), batches, CASES[case], 50)
                print(json.dumps({"bench": f"lap with {case}, {name} D={d}, N={args.atoms}", **found}), flush=True)


if __name__ == "__main__":
    main()
