"""Whether the range of K that ``bnp.certainty`` states holds the true K, on forty synthetic sets.

    python -m benchmarks.certainty A [--sets 3,4] [--starts 3] [--resamples 3]

``A`` are the ten sets on which constants were chosen, ``B`` ten others by other generators, and ``C`` twenty of other
likelihoods, separations, sizes and seeds, drawn after all constants.  Columns: true K, K of the run, the range by the
posterior and history alone (``+``: more may be as good), the range with the data, further starts and samples, and
seconds of processor time.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

import bnp_dask as bnp


@dataclass(frozen=True)
class Problem:
    """Data of ``k`` clusters with their model, and the true cluster of each atom, ``(n,)``."""

    name: str
    model: bnp.Model
    data: object
    k: int
    truth: np.ndarray


def spread(rng: np.random.Generator, k: int, d: int, apart: float) -> np.ndarray:
    """Centres ``(k, d)`` of which the nearest two are ``apart`` from each other."""
    centres = rng.normal(size=(k, d))
    gaps = np.linalg.norm(centres[:, None] - centres, axis=2) + np.eye(k) * 1e9
    return centres * (apart / gaps.min())


def balls(seed: int, k: int, d: int, apart: float, n: int, likelihood: object) -> Problem:
    """Round clusters of equal size and unit variance."""
    rng = np.random.default_rng([1, seed])
    centres = spread(rng, k, d, apart)
    z = rng.integers(0, k, n)
    x = centres[z] + rng.normal(size=(n, d))
    name = f"{type(likelihood).__name__} {k} x {d}, {apart:g} apart"
    return Problem(name, bnp.Model(bnp.DPMixture(), likelihood), x, k, z)


def documents(seed: int, k: int, v: int, length: int, n: int) -> Problem:
    """Documents of one topic each."""
    rng = np.random.default_rng([2, seed])
    topics = rng.dirichlet(np.full(v, 0.3), k)
    z = rng.integers(0, k, n)
    x = np.array([rng.multinomial(length, topics[i]) for i in z], np.float64)
    return Problem(f"Multinomial {k} x {v}", bnp.Model(bnp.DPMixture(), bnp.Multinomial()), sparse.csr_array(x), k, z)


def bits(seed: int, k: int, d: int, n: int) -> Problem:
    """Rows of bits."""
    rng = np.random.default_rng([3, seed])
    p = rng.beta(0.5, 0.5, (k, d))
    u = rng.random((n, d))
    z = rng.integers(0, k, n)
    x = (u < p[z]).astype(np.float64)
    return Problem(f"Bernoulli {k} x {d}", bnp.Model(bnp.DPMixture(), bnp.Bernoulli()), x, k, z)


def rates(seed: int, k: int, d: int, n: int) -> Problem:
    """Rows of counts."""
    rng = np.random.default_rng([4, seed])
    means = rng.gamma(1.0, 10.0, (k, d))
    z = rng.integers(0, k, n)
    x = rng.poisson(means[z]).astype(np.float64)
    return Problem(f"Poisson {k} x {d}", bnp.Model(bnp.DPMixture(), bnp.Poisson()), x, k, z)


def first_ten() -> list[Callable[[], Problem]]:
    """Sets on which constants were chosen."""
    return [
        lambda: balls(0, 3, 2, 3.5, 300, bnp.Gaussian()),
        lambda: balls(1, 5, 2, 3.0, 400, bnp.Gaussian()),
        lambda: balls(2, 8, 3, 3.5, 600, bnp.Gaussian()),
        lambda: balls(3, 4, 8, 3.0, 400, bnp.Gaussian()),
        lambda: balls(4, 6, 2, 2.8, 600, bnp.Gaussian()),
        lambda: balls(5, 5, 5, 3.0, 400, bnp.DiagGaussian()),
        lambda: balls(6, 10, 4, 4.0, 800, bnp.DiagGaussian()),
        lambda: documents(0, 6, 30, 12, 300),
        lambda: bits(0, 5, 8, 400),
        lambda: rates(0, 6, 2, 400),
    ]


# -- ten others, by other generators ----------------------------------------------------------------------------
def ellipses(seed: int, k: int, d: int, n: int, apart: float) -> Problem:
    """Clusters of unequal sizes with covariances from a Wishart distribution."""
    rng = np.random.default_rng([11, seed])
    sizes = np.maximum(rng.dirichlet(np.full(k, 3.0)), 0.5 / k)
    z = rng.choice(k, n, p=sizes / sizes.sum())
    factors = rng.normal(size=(k, d, d + 3)) / np.sqrt(d + 3)
    x = spread(rng, k, d, apart)[z] + np.einsum("nij,nj->ni", factors[z], rng.normal(size=(n, d + 3)))
    return Problem(f"ellipses {k} x {d}", bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, k, z)


def grid(k: int, n: int, step: float) -> Problem:
    """Clusters at the knots of a lattice, with random scales of each feature."""
    rng = np.random.default_rng([12, k])
    side = int(np.ceil(np.sqrt(k)))
    knots = np.array([(i // side, i % side) for i in range(k)]) * step
    z = rng.integers(0, k, n)
    x = (knots[z] + rng.normal(size=(n, 2))) * np.array([3.0, 0.2]) + 50.0
    return Problem(f"lattice {k}", bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), x, k, z)


def lines(k: int, n: int) -> Problem:
    """Crossing zero-mean clusters, told apart by their covariance alone."""
    rng = np.random.default_rng([13, k])
    axes = np.linalg.qr(rng.normal(size=(k, 4, 4)))[0]
    z = rng.integers(0, k, n)
    x = np.einsum("nij,nj->ni", axes[z], rng.normal(size=(n, 4)) * np.array([5.0, 1.0, 0.5, 0.2]))
    return Problem(f"lines {k}", bnp.Model(bnp.DPMixture(), bnp.ZeroMeanGaussian()), x, k, z)


def directions(k: int, n: int) -> Problem:
    """Caps on a sphere."""
    rng = np.random.default_rng([14, k])
    centres = np.linalg.qr(rng.normal(size=(8, 8)))[0][:k]
    z = rng.integers(0, k, n)
    x = 3.0 * centres[z] + rng.normal(size=(n, 8))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return Problem(f"directions {k}", bnp.Model(bnp.DPMixture(), bnp.VonMisesFisher()), x, k, z)


def questions(k: int, n: int) -> Problem:
    """Answers to eight questions with four choices each."""
    rng = np.random.default_rng([15, k])
    p = rng.dirichlet(np.full(4, 0.8), (k, 8))
    z = rng.integers(0, k, n)
    x = (rng.random((n, 8, 1)) > p[z].cumsum(axis=2)).sum(axis=2).clip(0, 3).astype(np.float64)
    return Problem(f"Categorical {k}", bnp.Model(bnp.DPMixture(), bnp.Categorical()), x, k, z)


def mixed(k: int, n: int) -> Problem:
    """Columns of several kinds."""
    rng = np.random.default_rng([16, k])
    z = rng.integers(0, k, n)
    x = np.column_stack([
        rng.normal(size=(k, 2))[z] * 1.5 + rng.normal(size=(n, 2)),
        rng.poisson(rng.gamma(2.0, 5.0, k)[z]),
        (rng.random((n, 3)) < rng.beta(0.4, 0.4, (k, 3))[z]),
    ])  # fmt: skip
    parts = {(0, 1): bnp.Gaussian(), 2: bnp.Poisson(), (3, 4, 5): bnp.Bernoulli()}
    return Problem(f"Product {k}", bnp.Model(bnp.DPMixture(), bnp.Product(parts)), x, k, z)


def states(k: int, n: int) -> Problem:
    """Sequences of sticky states."""
    rng = np.random.default_rng([17, k])
    centres, z = spread(rng, k, 2, 2.5), np.zeros(n, np.int64)
    for t in range(1, n):
        z[t] = z[t - 1] if rng.random() < 0.9 else rng.integers(k)
    x = centres[z] + rng.normal(size=(n, 2))
    source = bnp.as_source(x, groups=np.arange(0, n + 1, n // 8))
    return Problem(f"states {k}", bnp.Model(bnp.HDPHMM(kappa=20.0), bnp.Gaussian()), source, k, z)


def skewed(k: int, n: int) -> Problem:
    """Counts with rates on a geometric ladder and unequal sizes."""
    rng = np.random.default_rng([18, k])
    ladder = 2.0 * 1.5 ** np.array([rng.permutation(k) for _ in range(5)]).T
    z = rng.choice(k, n, p=np.arange(1, k + 1) / (k * (k + 1) / 2))
    x = rng.poisson(ladder[z]).astype(np.float64)
    return Problem(f"ladder {k}", bnp.Model(bnp.DPMixture(), bnp.Poisson()), x, k, z)


def second_ten() -> list[Callable[[], Problem]]:
    """Sets that chose nothing."""
    return [
        lambda: ellipses(0, 4, 2, 400, 3.0),
        lambda: ellipses(1, 7, 3, 700, 3.0),
        lambda: ellipses(2, 3, 6, 300, 2.5),
        lambda: grid(9, 700, 3.5),
        lambda: lines(3, 500),
        lambda: directions(5, 400),
        lambda: questions(4, 400),
        lambda: mixed(5, 500),
        lambda: states(5, 800),
        lambda: skewed(4, 400),
    ]


# -- twenty others ---------------------------------------------------------------------------------------------
def overdispersed(seed: int, k: int, n: int) -> Problem:
    """Negative binomial counts of three columns."""
    rng = np.random.default_rng([21, seed])
    means, z = rng.gamma(1.0, 20.0, (k, 3)) + 1.0, rng.integers(0, k, n)
    x = rng.poisson(means[z] * rng.gamma(8.0, 1.0 / 8.0, (n, 3))).astype(np.float64)
    return Problem(f"NegativeBinomial {k}", bnp.Model(bnp.DPMixture(), bnp.NegativeBinomial()), x, k, z)


def twenty_others() -> list[Callable[[], Problem]]:
    """Sets that chose nothing, drawn once."""
    return [
        lambda: balls(21, 4, 3, 3.2, 250, bnp.Gaussian()),
        lambda: balls(22, 7, 2, 3.5, 1000, bnp.Gaussian()),
        lambda: balls(23, 3, 10, 3.0, 300, bnp.Gaussian()),
        lambda: balls(24, 9, 5, 3.0, 900, bnp.Gaussian()),
        lambda: balls(25, 6, 4, 2.8, 500, bnp.DiagGaussian()),
        lambda: balls(26, 8, 2, 4.0, 1200, bnp.DiagGaussian()),
        lambda: balls(27, 5, 3, 3.0, 500, bnp.FixedVarianceGaussian(variance=1.0)),
        lambda: grid(6, 900, 3.5),
        lambda: ellipses(21, 5, 4, 500, 2.8),
        lambda: ellipses(22, 6, 2, 900, 3.5),
        lambda: documents(21, 8, 50, 15, 500),
        lambda: documents(22, 4, 20, 8, 400),
        lambda: bits(21, 6, 12, 500),
        lambda: rates(21, 5, 3, 500),
        lambda: skewed(6, 700),
        lambda: lines(4, 600),
        lambda: questions(6, 600),
        lambda: mixed(4, 800),
        lambda: overdispersed(21, 4, 500),
        lambda: states(4, 1200),
    ]


SETS = {"A": first_ten, "B": second_ten, "C": twenty_others}


def run(problem: Problem, starts: int = 3, resamples: int = 3) -> tuple[bool, str]:
    """Whether the range holds the true K, and a line about it."""
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        result = bnp.train(problem.model, problem.data, rng=0)
        alone = time.process_time() - begun
        cheap = bnp.certainty(result)
        full = bnp.certainty(result, problem.data, starts=starts, resamples=resamples)
    inside = full.low <= problem.k <= full.high
    ranges = f"{cheap.low}-{cheap.high}{'+' if cheap.is_open else ''}, {full.low}-{full.high}"
    near = {k: f"{loss:.1f} ({full.errors.get(k, float('nan')):.1f})" for k, loss in full.losses.items() if loss < 60.0}
    seconds = f"{alone:.1f} + {time.process_time() - begun - alone:.1f} s"
    verdict = "in " if inside else "OUT"
    return inside, f"{problem.name:32s} K={problem.k:2d} {verdict} [{ranges}] {full!r} {near} {seconds}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=sorted(SETS))
    parser.add_argument("--sets", default="", help="numbers from 0")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--resamples", type=int, default=3)
    chosen = parser.parse_args()
    problems = SETS[chosen.which]()
    numbers = [int(one) for one in chosen.sets.split(",")] if chosen.sets else range(len(problems))
    for number in numbers:
        print(number, run(problems[number](), chosen.starts, chosen.resamples)[1], flush=True)


if __name__ == "__main__":
    main()
