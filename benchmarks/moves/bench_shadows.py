"""What shadows cost and win: ``python -m benchmarks.moves.bench_shadows [mixtures|laps|kos|priors|kos_priors]``.

``laps``: CPU seconds of a lap with a shadow over those of a lap without, of a run that makes no births meanwhile.
``mixtures``: objective, clusters and CPU seconds of runs with and without shadows, in turns, on mixtures where births
get stuck.  ``kos``: the same of topics.  ``priors``: of shadows with a quarter and four times the prior's scale, where
the prior stays and where it is learned, with the held-out score of a fifth of the rows, nats per row.  ``kos_priors``:
of shadows with other priors of words.  Ratios are of one process; machines are busy.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import bnp_dask as bnp
from benchmarks.learned_priors import SETS
from benchmarks.topics.corpora import kos
from bnp_dask.execute import SerialExecutor

SEEDS = range(3)

PLAIN = bnp.Shadow()


def overlapping(k: int, n: int, spread: float, seed: int) -> np.ndarray:
    """Points of ``k`` round clusters in two dimensions."""
    rng = np.random.default_rng(seed)
    centres, which = rng.normal(0, spread, (k, 2)), rng.integers(k, size=n)
    return np.asarray(centres[which] + rng.normal(size=(n, 2)))


def rotated(k: int, d: int, n: int, seed: int) -> np.ndarray:
    """Points of ``k`` clusters with covariances of their own."""
    rng = np.random.default_rng(seed)
    centres, which = rng.normal(0, 1.5, (k, d)), rng.integers(k, size=n)
    shapes = rng.normal(size=(k, d, d)) / np.sqrt(d)
    return np.asarray(centres[which] + np.einsum("nij,nj->ni", shapes[which], rng.normal(size=(n, d))))


MIXTURES: dict[str, tuple[Callable[[], np.ndarray], Any]] = {
    "60 overlapping, full": (lambda: overlapping(60, 6000, 6.0, 0), bnp.Gaussian()),
    "60 overlapping, diagonal": (lambda: overlapping(60, 6000, 6.0, 0), bnp.DiagGaussian()),
    "20 covariances of 4 x 4": (lambda: rotated(20, 4, 8000, 2), bnp.Gaussian()),
}


def run(model: bnp.Model, data: Any, seed: int, shadow: bnp.Shadow | None, **settings: Any) -> tuple[Any, float]:
    """Result and CPU seconds of one run."""
    before = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        result = bnp.train(model, data, rng=seed, shadow=shadow, client=SerialExecutor(), **settings)
    return result, time.process_time() - before


def compare(
    name: str,
    model: bnp.Model,
    data: Any,
    shadow: bnp.Shadow = PLAIN,
    held: Any = None,
    seeds: Iterable[int] = SEEDS,
    **settings: Any,
) -> None:
    """One line for each seed: without, with, what they won, and what became of each."""
    for seed in seeds:
        plain, seconds = run(model, data, seed, None, **settings)
        found, more = run(model, data, seed, shadow, **settings)
        told = [f"{m['gain']:+.1f}" + (" yes" if m["accepted"] else " no") for m in shadows_of(found)]
        gain = found.history[-1]["elbo"] - plain.history[-1]["elbo"]
        scores = "" if held is None else " -> ".join(f"{bnp.score(r.posterior, held):.3f}" for r in (plain, found))
        print(
            f"{name}, seed {seed}: {scores} K {plain.posterior.n_clusters} -> {found.posterior.n_clusters}, "
            f"{plain.history[-1]['elbo']:.1f} {gain:+.1f} nats, CPU {seconds:.1f} -> {more:.1f} s, shadows {told}",
            flush=True,
        )


def shadows_of(result: bnp.TrainResult) -> list[dict[str, Any]]:
    """Rows of the history about shadows."""
    return [dict(move) for move in result.history.moves() if move["kind"] == "shadow"]


def laps() -> None:
    """CPU seconds of laps with a shadow of as many clusters over laps without, in turns."""
    points = overlapping(60, 100_000, 6.0, 0)
    model = bnp.Model(bnp.FiniteMixture(), bnp.Gaussian())
    schedule = bnp.Memoized(laps=100, tolerance=0.0, count_tolerance=0.0)
    ratios = []
    for seed in SEEDS:
        times: list[float] = []

        class Clock:
            def on_start(self, info: Any) -> None: ...
            def on_batch(self, done: int) -> None: ...
            def on_lap(self, row: Any, posterior: Any, times: list[float] = times) -> None:
                times.append(time.process_time())

            def on_end(self, reason: str) -> None: ...

        shadow = bnp.Shadow(laps=8, tries=1, init=bnp.RandomExamples(60))
        init = bnp.BregmanKMeans(60)
        result, _ = run(model, points, seed, shadow, init=init, schedule=schedule, batch_size=5000, callbacks=[Clock()])
        if not result.alternatives:
            continue
        begun, lived = result.alternatives[0]["begun"], result.alternatives[0]["lap"]
        each = np.diff(times)
        with_shadow, without = each[begun + 1 : begun + lived - 1], each[2 : begun - 1]
        ratios.append(float(np.median(with_shadow) / np.median(without)))
        print(
            f"seed {seed}: {np.median(without):.3f} s a lap, {np.median(with_shadow):.3f} s with a shadow", flush=True
        )
    print("laps with a shadow over laps without:", np.round(ratios, 2))


def mixtures() -> None:
    for name, (make, observation) in MIXTURES.items():
        compare(name, bnp.Model(bnp.DPMixture(), observation), make(), batch_size=1000, schedule=bnp.Memoized(laps=100))


def topics() -> None:
    x = kos()
    model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial())
    for name, init in (("KOS", None), ("KOS from K=1", bnp.RandomExamples(1))):
        compare(name, model, x, init=init, batch_size=400)


def priors() -> None:
    data = {name: SETS[name]()[0] for name in ("iris", "wine", "crabs", "faithful", "galaxies")}
    data["60 overlapping"] = overlapping(60, 6000, 6.0, 0)
    for name, x in data.items():
        held = np.random.default_rng(0).permutation(len(x)) < len(x) // 5
        default = 0.1 * x[~held].var(axis=0)
        shadow = bnp.Shadow(prior=[bnp.Gaussian(B=times * default) for times in (0.25, 4.0)])
        for learn in ("never", "auto"):
            model = bnp.Model(bnp.DPMixture(), bnp.Gaussian(), learn_prior=learn)
            settings = {"batch_size": 1000, "schedule": bnp.Memoized(laps=200)}
            compare(f"{name}, prior {learn} learned", model, x[~held], shadow, x[held], **settings)


def priors_of_words() -> None:
    model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial())
    shadow = bnp.Shadow(prior=[bnp.Multinomial(0.05, common=0.5), bnp.Multinomial(0.45, common=0.5)])
    compare("KOS", model, kos(), shadow, seeds=[0], batch_size=400)


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["laps", "mixtures"]
    known = {"laps": laps, "mixtures": mixtures, "kos": topics, "priors": priors, "kos_priors": priors_of_words}
    for each, function in known.items():
        if each in wanted:
            function()
    print(Path(__file__).name, "done")
