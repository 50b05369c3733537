"""Sweeps of Gibbs sampling beside laps of variational inference, per CPU second; and whether sweeps find all clusters.

``python -m benchmarks.sampling``: JSON lines with CPU seconds of a lap after the first ones, in one thread, and
their ratio.  Both start from the same clusters; clusters are far apart, so that laps do the same work.  ``round`` is
what splits and unions take where a lap ends with them, and ``with_rounds`` the ratio with their share of late laps.

``python -m benchmarks.sampling reach [LIKELIHOOD ...] [--seeds N] [--laps N] [--rows N] [--batches N]``: JSON lines
with the numbers of clusters after 50 laps, from 1 cluster and from 25, for six well separated clusters of each
likelihood.

``python -m benchmarks.sampling propagation [LIKELIHOOD ...] [--seeds N] [--laps N] [--rows N] [--batches N]``: of the
same data, clusters after a pass of the filter and after laps of expectation propagation, in as many batches, with a
Dirichlet process and a normalized generalized gamma process; only clusters that hold atoms count.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy import sparse
from sklearn.metrics import adjusted_rand_score

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


# -- well separated clusters ----------------------------------------------------------------------------------------
TRUE = 6
"""Clusters of each data set."""

Drawn = Callable[[np.random.Generator, np.ndarray], np.ndarray]
"""Rows of clusters ``(n,)``."""


def centers(rng: np.random.Generator, d: int, least: float = 5.8) -> np.ndarray:
    """Places at least so many deviations apart, ``(6, d)``."""
    while True:
        found = 6.0 * rng.normal(size=(TRUE, d))
        apart = np.linalg.norm(found[:, None] - found, axis=2)
        if apart[np.triu_indices(TRUE, 1)].min() >= least:
            return found


def blobs(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
    """Points in three dimensions, at least 5.8 deviations apart."""
    return centers(rng, 3)[label] + rng.normal(size=(len(label), 3))


def covariances(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
    """Points about zero in ten dimensions: three large directions, others for each cluster."""
    wide = rng.normal(size=(TRUE, 3, 10)) * 3.0
    return np.einsum("nj,njd->nd", rng.normal(size=(len(label), 3)), wide[label]) + rng.normal(size=(len(label), 10))


def bits(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
    """Thirty bits, each .9 or .1."""
    chance = np.where(rng.random((TRUE, 30)) < 0.5, 0.9, 0.1)
    return (rng.random((len(label), 30)) < chance[label]).astype(float)


def documents(rng: np.random.Generator, label: np.ndarray) -> Any:
    """Documents of sixty words out of fifty."""
    topics = rng.dirichlet(np.full(50, 0.2), size=TRUE)
    return sparse.csr_array([rng.multinomial(60, topics[k]).astype(float) for k in label])


def whole_numbers(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
    """Eight counts with rates between 1 and 30."""
    rate = np.exp(rng.uniform(0.0, np.log(30.0), size=(TRUE, 8)))
    return rng.poisson(rate[label]).astype(float)


def steps(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
    """Steps in two dimensions beside the steps before them, with dynamics of their own."""
    before, drift = 3.0 * rng.normal(size=(len(label), 2)), 3.0 * rng.normal(size=(TRUE, 2, 2))
    after = np.einsum("nij,nj->ni", drift[label], before) + 0.3 * rng.normal(size=(len(label), 2))
    return np.concatenate([after, before], axis=1)


def directions(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
    """Vectors of length one in eight dimensions, about means at least 60 degrees apart."""
    while True:
        mean = rng.normal(size=(TRUE, 8))
        mean /= np.linalg.norm(mean, axis=1, keepdims=True)
        if (mean @ mean.T)[np.triu_indices(TRUE, 1)].max() < 0.5:
            break
    x = mean[label] + 0.12 * rng.normal(size=(len(label), 8))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def mixed(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
    """Three counts, and points in two dimensions."""
    rate = np.exp(rng.uniform(0.0, np.log(30.0), size=(TRUE, 3)))
    return np.concatenate([rng.poisson(rate[label]), centers(rng, 2)[label] + rng.normal(size=(len(label), 2))], axis=1)


def more_counts(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
    """Eight counts with means between 1 and 60, of a variance that is the mean and half its square."""
    mean = np.exp(rng.uniform(0.0, np.log(60.0), size=(TRUE, 8)))
    return rng.poisson(rng.gamma(2.0, mean[label] / 2.0)).astype(float)


def levels(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
    """Twelve columns of four levels, one of which has probability .85."""
    n, chief = len(label), rng.integers(4, size=(TRUE, 12))
    return np.where(rng.random((n, 12)) < 0.8, chief[label], rng.integers(4, size=(n, 12))).astype(float)


SEPARATE: dict[str, tuple[Any, Drawn]] = {
    "AutoRegressiveGaussian": (bnp.AutoRegressiveGaussian(), steps),
    "Bernoulli": (bnp.Bernoulli(), bits),
    "Categorical": (bnp.Categorical(), levels),
    "DiagGaussian": (bnp.DiagGaussian(), blobs),
    "FixedVarianceGaussian": (bnp.FixedVarianceGaussian(variance=1.0), blobs),
    "Gaussian": (bnp.Gaussian(), blobs),
    "Multinomial": (bnp.Multinomial(), documents),
    "NegativeBinomial": (bnp.NegativeBinomial(), more_counts),
    "Poisson": (bnp.Poisson(), whole_numbers),
    "Product": (bnp.Product({(0, 1, 2): bnp.Poisson(), (3, 4): bnp.DiagGaussian()}), mixed),
    "SemiConjugateGaussian": (bnp.SemiConjugateGaussian(), blobs),
    "VonMisesFisher": (bnp.VonMisesFisher(), directions),
    "ZeroMeanGaussian": (bnp.ZeroMeanGaussian(), covariances),
}
"""Likelihoods, and what their clusters generate."""


def reach(likelihood: str, start: int, seed: int, rows: int, laps: int, batches: int) -> dict[str, Any]:
    """Clusters that a chain ends with: the mean of the last ten laps, the last ten, clusters in the partition that
    stands for all draws (``point``) and in it of more than three rows (``large``), and the adjusted Rand index of the
    last draw.

    Draws of a Dirichlet process have single rows apart, which come and go: ``last`` may be above the truth where the
    chain is where it should be.
    """
    observation, draw = SEPARATE[likelihood]
    rng = np.random.default_rng(seed)
    label = rng.integers(TRUE, size=rows)
    schedule = bnp.Gibbs(laps=laps, burn_in=max(laps - 10, 0), thin=1, rows=rows)
    began = time.process_time()
    result = bnp.train(
        bnp.Model(bnp.DPMixture(), observation),
        draw(rng, label),
        schedule=schedule,
        init=bnp.RandomExamples(start),
        batch_size=-(-rows // batches),
        client=SerialExecutor(),
        rng=seed,
    )
    last = [row["n_clusters"] for row in result.history if row["action"] == "sampled"][-10:]
    score = adjusted_rand_score(label, result.draws.labels[0, -1])
    sizes = result.posterior.summary["N"]
    out = {"likelihood": likelihood, "start": start, "seed": seed, "mean": float(np.mean(last)), "last": last}
    out |= {"point": int(np.sum(sizes > 0.0)), "large": int(np.sum(sizes > 3.0))}
    return out | {"ari": round(float(score), 3), "cpu": round(time.process_time() - began, 2)}


def propagated(likelihood: str, prior: str, seed: int, rows: int, laps: int, batches: int) -> dict[str, Any]:
    """Clusters that the filter and expectation propagation end with, and their adjusted Rand indices."""
    observation, draw = SEPARATE[likelihood]
    rng = np.random.default_rng(seed)
    label = rng.integers(TRUE, size=rows)
    x, model = draw(rng, label), bnp.Model(PRIORS[prior][0], observation)
    out: dict[str, Any] = {"likelihood": likelihood, "prior": prior, "seed": seed}
    for name, schedule in (("filter", bnp.Filter()), ("propagation", bnp.ExpectationPropagation(laps=laps))):
        began = time.process_time()
        found = bnp.train(
            model, x, schedule=schedule, batch_size=-(-rows // batches), client=SerialExecutor(), rng=seed
        ).posterior
        score = adjusted_rand_score(label, bnp.predict(found, x))
        out |= {name: int(np.sum(found.summary["N"] > 0.0)), f"{name}_ari": round(float(score), 3)}
        out |= {f"{name}_cpu": round(time.process_time() - began, 2)}
    return out


def asked(what: str, arguments: list[str], laps: int, batches: int) -> argparse.Namespace:
    """Likelihoods and sizes on the command line."""
    parser = argparse.ArgumentParser(prog=f"benchmarks.sampling {what}")
    parser.add_argument("likelihoods", nargs="*", default=[])
    for name, default in (("seeds", 2), ("laps", laps), ("rows", 1500), ("batches", batches), ("first", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args(arguments)


def all_propagated(arguments: list[str]) -> None:
    """A line for each likelihood, prior and seed."""
    chosen = asked("propagation", arguments, laps=2, batches=6)
    for likelihood in chosen.likelihoods or SEPARATE:
        for prior in ("DP", "NGGP"):
            for seed in range(chosen.first, chosen.first + chosen.seeds):
                found = propagated(likelihood, prior, seed, chosen.rows, chosen.laps, chosen.batches)
                print(json.dumps(found), flush=True)


def all_reach(arguments: list[str]) -> None:
    """A line for each likelihood, start and seed."""
    chosen = asked("reach", arguments, laps=50, batches=1)
    for likelihood in chosen.likelihoods or SEPARATE:
        for start in (1, 25):
            for seed in range(chosen.first, chosen.first + chosen.seeds):
                found = reach(likelihood, start, seed, chosen.rows, chosen.laps, chosen.batches)
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["reach"]:
        all_reach(sys.argv[2:])
    elif sys.argv[1:2] == ["propagation"]:
        all_propagated(sys.argv[2:])
    else:
        main()
