"""From the truth, training must not end more than a few nats above the default run: sixteen problems.

    python -m benchmarks.truth [--problems 0,3] [--seeds 2] [--out FILE]

Each problem is trained with default settings from the default start and from the true clusters of its atoms.  The gap
is the objective from the truth less the objective by default, nats; where it is more than a few, the objective knows a
better state that training does not find.  Seeds draw other data and other random numbers, both.  Wanted: a median gap
below 5 nats, and the largest below .01 % of the objective.  A negative gap says that the run from the truth stopped
short.  Known topics of words are in ``tests/topics/test_leftovers.py``.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

import bnp_dask as bnp
from benchmarks.certainty import (
    Problem,
    balls,
    bits,
    directions,
    documents,
    ellipses,
    lines,
    mixed,
    overdispersed,
    questions,
    skewed,
    spread,
    states,
)


def waves(seed: int, k: int, n: int) -> Problem:
    """Sequences whose sticky states are autoregressions of two features."""
    rng = np.random.default_rng([22, seed])
    turn = rng.uniform(-1.5, 1.5, k) + np.linspace(-1.0, 1.0, k)
    turns = 0.95 * np.array([[[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]] for a in turn])
    z, x = np.zeros(n, np.int64), np.zeros((n, 2))
    for t in range(1, n):
        z[t] = z[t - 1] if rng.random() < 0.95 else rng.integers(k)
        x[t] = turns[z[t]] @ x[t - 1] + rng.normal(size=2)
    source = bnp.as_source(x, groups=np.arange(0, n + 1, n // 8))
    return Problem(f"autoregressive {k}", bnp.Model(bnp.HDPHMM(kappa=20.0), bnp.AutoRegressiveGaussian()), source, k, z)


def images(seed: int, k: int, n: int) -> Problem:
    """Groups of points that share Gaussian topics in proportions of their own."""
    rng = np.random.default_rng([23, seed])
    shares = rng.dirichlet(np.full(k, 0.5), n // 50)
    z = np.concatenate([rng.choice(k, 50, p=share) for share in shares])
    x = spread(rng, k, 3, 4.0)[z] + rng.normal(size=(len(z), 3))
    source = bnp.as_source(x, groups=np.arange(0, len(z) + 1, 50))
    return Problem(f"topics of Gaussians {k}", bnp.Model(bnp.HDPTopics(), bnp.Gaussian()), source, k, z)


def many(seed: int, k: int, n: int) -> Problem:
    """Round clusters with a normalized generalized gamma process."""
    own = balls(seed, k, 3, 4.0, n, bnp.Gaussian())
    return Problem(f"NGGP {k}", bnp.Model(bnp.NGGPMixture(1.0, 0.3, 1.0), bnp.Gaussian()), own.data, k, own.truth)


PROBLEMS: list[Callable[[int], Problem]] = [
    lambda seed: balls(100 + seed, 5, 2, 3.0, 400, bnp.Gaussian()),
    lambda seed: ellipses(100 + seed, 7, 3, 700, 3.0),
    lambda seed: balls(200 + seed, 10, 4, 4.0, 800, bnp.DiagGaussian()),
    lambda seed: lines(3 + seed, 500),
    lambda seed: balls(300 + seed, 6, 3, 4.0, 600, bnp.FixedVarianceGaussian(variance=1.0)),
    lambda seed: documents(100 + seed, 6, 30, 12, 300),
    lambda seed: bits(100 + seed, 5, 8, 400),
    lambda seed: skewed(4 + seed, 400),
    lambda seed: overdispersed(seed, 4, 500),
    lambda seed: questions(4 + seed, 400),
    lambda seed: directions(5 + seed % 4, 400),
    lambda seed: mixed(5 + seed, 500),
    lambda seed: states(5 + seed, 800),
    lambda seed: waves(seed, 4, 1600),
    lambda seed: images(seed, 6, 2000),
    lambda seed: many(400 + seed, 8, 600),
]
"""Likelihoods, allocations, topics and chains, by seed of the data."""


def gap(problem: Problem, seed: int) -> dict[str, object]:
    """Objectives and clusters of both runs."""
    out: dict[str, object] = {"problem": problem.name, "seed": seed, "true": problem.k}
    for name, init in (("default", None), ("truth", bnp.Responsibilities(problem.truth))):
        begun = time.process_time()
        result = bnp.train(problem.model, problem.data, init=init, rng=seed)
        out |= {name: float(result.history[-1]["elbo"]), f"k_{name}": result.posterior.n_clusters}
        out |= {f"laps_{name}": int(result.history[-1]["lap"]), f"cpu_{name}": time.process_time() - begun}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default="", help="numbers from 0")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--out", type=Path, help="file to which each result is appended")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    numbers = [int(one) for one in chosen.problems.split(",")] if chosen.problems else range(len(PROBLEMS))
    gaps, shares = [], []
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        for number in numbers:
            found = gap(PROBLEMS[number](seed), seed)
            gaps.append(float(found["truth"]) - float(found["default"]))  # type: ignore[arg-type]
            shares.append(100.0 * gaps[-1] / abs(float(found["truth"])))  # type: ignore[arg-type]
            if chosen.out is not None:
                with chosen.out.open("a") as file:
                    file.write(json.dumps(found) + "\n")
            print(
                f"{number:2d} {found['problem']:34s} seed {seed}  gap {gaps[-1]:8.2f} ({shares[-1]:.4f} %)  "
                f"K {found['k_default']} and {found['k_truth']} for {found['true']}  "
                f"{found['cpu_default']:.1f} and {found['cpu_truth']:.1f} s",
                flush=True,
            )
    print(f"median gap {np.median(gaps):.2f} nats, largest {max(gaps):.2f}, {max(shares):.4f} % of the objective")


if __name__ == "__main__":
    main()
