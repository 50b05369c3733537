"""What a newcomer gets: every data set with default settings; prints one JSON line per run and asserts nothing.

``python -m benchmarks.first_use [CASE ...] [--seeds 3] [--data FOLDER] [--cache FOLDER]``.  Cases are mixtures
(``three``, ``outlier-1e6``, ``grid``, ``rounded``, ``iris``, ...) and topics of texts (``kos``, ``kos-from-one``,
``newsgroups20``, ...).  ``--data`` is where the real data sets lie.  Run it with another copy of the package on
``PYTHONPATH`` to compare two versions.  ``--peers`` adds scikit-learn's mixtures, fitted in the same process.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import bnp_dask as bnp
from benchmarks.topics import corpora
from benchmarks.topics.score import completion
from bnp_dask.execute import SerialExecutor

TABLES = {"iris": "Species", "crabs": "sp+sex", "faithful": "", "geyser": "", "galaxies": ""}
"""Columns that hold the classes; the others are the atoms."""

TEXTS = tuple(corpora.REAL)


@dataclass(frozen=True, eq=False)
class Rows:
    """Atoms ``(n, D)`` and the true cluster of each, where it is known."""

    x: np.ndarray
    labels: np.ndarray | None = None


def three(seed: int) -> Rows:
    """Three clear clusters in a plane."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=3000)
    return Rows(np.array([[0.0, 0], [8, 0], [0, 8]])[labels] + rng.normal(size=(3000, 2)), labels)


def twelve(seed: int) -> Rows:
    """Twelve well separated Gaussians of two features, 2,000 atoms each."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(np.arange(4.0), np.arange(3.0)), axis=-1).reshape(-1, 2)
    labels = np.repeat(np.arange(12), 2000)
    shapes = rng.uniform(0.5, 1.5, (12, 1, 2))
    return Rows(12.0 * grid[labels] + (rng.normal(size=(12, 2000, 2)) * shapes).reshape(-1, 2), labels)


def outlier(seed: int, size: float) -> Rows:
    """Twelve clusters, 24,000 atoms, and one row far away."""
    found = twelve(seed)
    x = np.array(found.x)
    x[1234] = size
    return Rows(x, found.labels)


def noisy(seed: int, share: float = 0.01, spread: float = 1000.0) -> Rows:
    """Twelve clusters, and a share of the rows spread over a much larger square."""
    found, rng = twelve(seed), np.random.default_rng([seed, 1])
    x = np.array(found.x)
    few = rng.choice(len(x), int(share * len(x)), replace=False)
    x[few] = rng.uniform(-spread, spread, (len(few), 2))
    return Rows(x, found.labels)


def rounded(seed: int) -> Rows:
    """Twelve Gaussians rounded to whole numbers."""
    found = twelve(seed)
    return Rows(np.round(found.x), found.labels)


def grid(seed: int) -> Rows:
    """Sensor-like: 20 levels of three channels, noise of about one step of the grid on which values lie."""
    rng = np.random.default_rng(seed)
    levels = rng.uniform(0, 10, (20, 3))
    labels = np.repeat(rng.integers(20, size=400), 25)
    return Rows(np.round((levels[labels] + 0.1 * rng.normal(size=(10_000, 3))) / 0.1) * 0.1, labels)


def tail(seed: int) -> Rows:
    """One cluster of heavy tails (Student t with two degrees of freedom), and one beside it."""
    rng = np.random.default_rng(seed)
    labels = np.repeat([0, 1], 5000)
    return Rows(rng.standard_t(2.0, (10_000, 2)) + 40.0 * labels[:, None], labels)


def mostly_zero(seed: int) -> Rows:
    """Four clusters of six features, of which four are zero in 90 % of the rows."""
    found, rng = twelve(seed), np.random.default_rng([seed, 2])
    rest = np.where(rng.random((len(found.x), 4)) < 0.1, rng.normal(50.0, 5.0, (len(found.x), 4)), 0.0)
    return Rows(np.hstack([found.x, rest]), found.labels)


def sixteen(seed: int) -> Rows:
    """32 clusters in 16 dimensions, 10,000 atoms."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(32, size=10_000)
    return Rows(rng.normal(0, 2.0, (32, 16))[labels] + rng.normal(size=(10_000, 16)), labels)


def table(seed: int, name: str, data: Path) -> Rows:
    """One of the small tables."""
    with open(data / "small_tables" / f"{name}.csv", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    classes = [c for c in TABLES[name].split("+") if c]
    skipped = {"", "rownames", "index", *classes}
    x = np.array([[float(v) for c, v in row.items() if c not in skipped] for row in found])
    labels = np.unique(["/".join(row[c] for c in classes) for row in found], return_inverse=True)[1]
    return Rows(x, labels if classes else None)


def wine(seed: int) -> Rows:
    """178 wines, 13 features on their own scales."""
    from sklearn.datasets import load_wine

    return Rows(*load_wine(return_X_y=True))


def digits(seed: int) -> Rows:
    """1,797 digits, 20 principal components."""
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA

    x, labels = load_digits(return_X_y=True)
    return Rows(PCA(20, random_state=0).fit_transform(x), labels)


def cases(data: Path) -> dict[str, Callable[[int], Rows]]:
    """All mixtures, by name."""
    far = {f"outlier-1e{power}": partial(outlier, size=10.0**power) for power in (4, 6, 8, 12)}
    tables = {name: partial(table, name=name, data=data) for name in TABLES}
    return {
        "three": three, "twelve": twelve, **far, "noise-1%": noisy, "rounded": rounded, "grid": grid, "tail": tail,
        "mostly-zero": mostly_zero, "sixteen": sixteen, **tables, "wine": wine, "digits": digits,
    }  # fmt: skip


def ari(labels: np.ndarray | None, found: np.ndarray) -> float | None:
    """Adjusted Rand index."""
    from sklearn.metrics import adjusted_rand_score

    return None if labels is None else round(float(adjusted_rand_score(labels, found)), 3)


def mixture(name: str, seed: int, rows: Rows, peers: bool) -> None:
    """``train`` and the estimator, both with nothing but data."""
    cpu = time.process_time()
    result = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), rows.x, client=SerialExecutor(), rng=seed)
    cpu = time.process_time() - cpu
    said = bnp.predict(result.posterior, rows.x)
    last = result.history[-1]
    emit(
        name, seed, "train", K=result.posterior.n_clusters, ari=ari(rows.labels, said), laps=last["lap"],
        reason=result.reason, cpu=round(cpu, 1), elbo=last["elbo"],
    )  # fmt: skip
    made: dict[str, Callable[[], Any]] = {"estimator": partial(bnp.DirichletProcessMixture, random_state=seed)}
    if peers:
        from sklearn.mixture import BayesianGaussianMixture

        made["BayesianGaussianMixture(30)"] = partial(
            BayesianGaussianMixture, min(30, len(rows.x) // 2), random_state=seed, max_iter=300
        )
    for program, make in made.items():
        cpu = time.process_time()
        labels = make().fit_predict(rows.x)
        emit(
            name, seed, program, K=len(np.unique(labels)), ari=ari(rows.labels, labels),
            cpu=round(time.process_time() - cpu, 1),
        )  # fmt: skip


def topics(name: str, seed: int, cache: Path | None, more: int) -> None:
    """Topics with nothing but counts; ``more`` laps beyond where the run stops say what stopping cost."""
    corpus_name, _, start = name.partition("-from-")
    corpus = corpora.load(corpus_name, seed, cache)
    starts = {"": None, "one": bnp.BregmanKMeans(1), "50": bnp.SampledTopics(50), "200": bnp.SampledTopics(200)}
    model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial())
    settings: dict[str, Any] = {"client": SerialExecutor(), "rng": seed, "init": starts[start]}
    cpu = time.process_time()
    result = bnp.train(model, corpus.train, **settings)
    cpu = time.process_time() - cpu
    watched = topic_figures(result, corpus)
    emit(name, seed, "train", cpu=round(cpu, 1), **watched)
    if more and result.converged:
        laps = watched["laps"] + more
        settings["schedule"] = bnp.Memoized(laps=laps, tolerance=0.0, count_tolerance=0.0)
        on = bnp.train(model, corpus.train, **settings)
        emit(name, seed, f"{more} more laps", **topic_figures(on, corpus))


def topic_figures(result: Any, corpus: corpora.Corpus) -> dict[str, Any]:
    """Number of topics, held-out score (document completion by a program of its own) and objective."""
    lam = result.posterior.observation.lam
    last = result.history[-1]
    return {
        "K": len(lam), "score": round(completion(corpus.test, lam / lam.sum(axis=1, keepdims=True)), 4),
        "elbo": round(last["elbo"]), "laps": last["lap"], "reason": result.reason,
    }  # fmt: skip


def emit(case: str, seed: int, program: str, **facts: Any) -> None:
    """Print one run."""
    line = {"case": case, "seed": seed, "program": program, **facts, "load": round(os.getloadavg()[0], 1)}
    print(json.dumps(line, default=float), flush=True)


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data", type=Path, default=corpora.SHARED)
    parser.add_argument("--cache", type=Path, help="folder that keeps the counts of real corpora")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--more", type=int, default=0, help="topics: laps beyond where the run stops")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    known = cases(args.data)
    bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), three(0).x[:200], client=SerialExecutor())  # compile
    for name in args.cases or [*known, *TEXTS]:
        for seed in range(args.seeds):
            if name in known:
                mixture(name, seed, known[name](seed), args.peers)
            else:
                topics(name, seed, args.cache, args.more)


if __name__ == "__main__":
    main()
