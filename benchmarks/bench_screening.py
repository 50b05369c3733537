"""Mixed against double precision: local steps of full-covariance Gaussians; prints one JSON line per figure.

``python -m benchmarks.bench_screening``; asserts nothing.  ``roofline`` is the least work of a dense local step
and summary, 4 P operations per atom and cluster, at the dgemm rate of the same minute: the bars are 2.5 times its speed
on separated clusters and 0.9 on overlapping ones.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np

import bnp_dask as bnp
from benchmarks.mixtures import Size, posterior_at_truth, posterior_of_moments, sample
from benchmarks.timing import dgemm_rate, emit, median
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.execute import one_blas_thread
from bnp_dask.training.compiling.first_run import warm

LARGE = [Size(1_000_000, 64, 200, spread) for spread in (4.0, 1.0, 0.5, 0.25)]
SMALL = [Size(100_000, 16, 32, spread) for spread in (4.0, 0.5)]
VISITED = 32_768


def compare(size: Size) -> None:
    """Atoms per CPU second of both precisions, and how far apart their objectives and counts are."""
    posterior = posterior_at_truth(size)
    batch = Batch(sample(size, VISITED)[0])
    report(size.label, posterior, batch)


def patches(n_clusters: int = 200) -> None:
    """Zero-mean clusters of one shape and many covariances, as of image patches: nothing but covariance tells them."""
    rng = np.random.default_rng(0)
    d, n = 64, 2 * VISITED
    roots = rng.standard_normal((n_clusters, d, d)) / 8.0 * rng.gamma(1.0, 1.0, (n_clusters, 1, d))
    label = rng.integers(n_clusters, size=n)
    x = np.empty((n, d))
    for k in range(n_clusters):
        here = np.flatnonzero(label == k)
        x[here] = rng.standard_normal((len(here), d)) @ roots[k].T
    batch = Batch(x)
    model = bnp.Model(bnp.DPMixture(1.0), bnp.ZeroMeanGaussian()).with_prior(survey_batch(batch))
    resp = np.zeros((n, n_clusters))
    resp[np.arange(n), label] = 1.0
    posterior = model.global_step(model.summarize(np.arange(n_clusters), batch, resp))
    report(f"patches, D={d} K={n_clusters}", posterior, batch.rows(0, VISITED))


def many() -> None:
    """Thousands of separated clusters, a batch of 2**18 atoms: CPU per atom, and its ratio to that of a thousand."""
    for d, ks in ((16, (1_000, 3_000, 10_000)), (64, (1_000, 10_000))):
        first = 0.0
        for k in ks:
            size = Size(10_000_000, d, k, 4.0)
            batch = Batch(sample(size, 2**18)[0])
            posterior = posterior_of_moments(size, batch)
            warm(posterior, batch)
            seconds = median(lambda: posterior.model.visit(posterior, batch), 3)  # noqa: B023
            first = first or seconds
            facts = {"K": k, "D": d, "over_1000": round(seconds / first, 2)}
            emit(f"separated, D={d} K={k}", 1e6 * seconds / batch.n_atoms, "us CPU per atom", 3, **facts)


def report(name: str, posterior: bnp.Posterior, batch: Batch) -> None:
    """Emit the figures of one posterior and batch."""
    start = time.perf_counter()
    warm(posterior, batch)
    ready = time.perf_counter() - start
    mixed, double = posterior.model, replace(posterior.model, precision="double")
    one, other = mixed.visit(posterior, batch).summary, double.visit(posterior, batch).summary
    values = [sum(mixed.elbo(posterior, s).values()) for s in (one, other)]
    k, d = posterior.n_clusters, batch.n_features
    rate = dgemm_rate(3)
    roof = rate / (4.0 * k * (1 + d + d * (d + 1) / 2))
    speeds = [batch.n_atoms / median(lambda m=m: m.visit(posterior, batch), 5) for m in (mixed, double)]
    facts = {
        "over_double": round(speeds[0] / speeds[1], 2),
        "double_over_roofline": round(speeds[1] / roof, 2),
        "dgemm_gflops": round(rate / 1e9, 1),
        "objective_apart": float(f"{abs(values[0] / values[1] - 1):.1e}"),
        "counts_apart": float(f"{np.abs(one['N'] - other['N']).max() / other['N'].mean():.1e}"),
        "warm_seconds": round(ready, 2),
    }
    emit(f"mixed, {name}", speeds[0], "atoms/s", 5)
    emit(f"mixed over roofline, {name}", speeds[0] / roof, "times", 5, **facts)


def main(names: list[str]) -> None:
    """Run all, or those named: large, small, patches, many."""
    with one_blas_thread():
        for size in [
            *(LARGE if not names or "large" in names else []),
            *(SMALL if not names or "small" in names else []),
        ]:
            compare(size)
        if not names or "patches" in names:
            patches()
        if not names or "many" in names:
            many()


if __name__ == "__main__":
    main(sys.argv[1:])
