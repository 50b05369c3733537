"""Gaussian mixtures made up for the benchmarks, and the models that start at them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import bnp_dask as bnp
from bnp_dask.core.location import Location
from bnp_dask.core.survey import survey_batch
from bnp_dask.data.ingestion.writers import RowsWriter
from bnp_dask.kernels.mixture import SparseResp


@dataclass(frozen=True)
class Size:
    """N atoms of D features from K clusters whose means lie ``spread`` apart; 0.5 overlaps, 4 separates."""

    n: int
    d: int
    k: int
    spread: float

    @property
    def label(self) -> str:
        """For the name of a figure."""
        return f"N={self.n} D={self.d} K={self.k} {'separated' if self.spread > 1 else 'overlapping'}"

    @property
    def flop(self) -> float:
        """Least operations of a lap: 4 P per atom and cluster, P = 1 + D + D (D + 1) / 2."""
        return 4.0 * self.n * self.k * (1 + self.d + self.d * (self.d + 1) / 2)


def clusters(size: Size, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of the clusters along the features, both ``(K, D)``."""
    means = size.spread * rng.normal(size=(size.k, size.d))
    return means, rng.uniform(0.5, 1.5, size=(size.k, size.d))


def pieces(size: Size, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Atoms and their clusters, some at a time."""
    rng = np.random.default_rng(0)
    means, scale = clusters(size, rng)
    for start in range(0, size.n, rows):
        label = rng.integers(size.k, size=min(rows, size.n - start))
        yield means[label] + scale[label] * rng.normal(size=(len(label), size.d)), label


def sample(size: Size, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The first ``n`` atoms and their clusters."""
    return next(pieces(size, n))


def write(path: Path, size: Size, rows: int) -> None:
    """A Zarr store with batches of ``rows`` atoms."""
    writer = RowsWriter(Location.of(path), size.d, np.dtype("f8"), rows)
    for x, _ in pieces(size, rows):
        writer.add(x)
    writer.close({}, "made up")


def posterior_at_truth(size: Size, n: int = 40_000) -> bnp.Posterior:
    """A posterior that holds the true clusters, scaled to N atoms: laps from it are those of a settled run."""
    x, label = sample(size, min(n, size.n))
    batch = bnp.Batch(x)
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian()).with_prior(survey_batch(batch))
    resp = SparseResp(label[:, None], np.ones((len(label), 1)), size.k)
    summary = model.summarize(np.arange(size.k), batch, resp)
    return model.global_step(summary.scale(size.n / len(x)))


def posterior_of_moments(size: Size, batch: bnp.Batch) -> bnp.Posterior:
    """A posterior of as many atoms in each true cluster, with its true moments: for more clusters than a sample holds.

    ``batch`` are atoms from which the prior is set.
    """
    means, scale = clusters(size, np.random.default_rng(0))
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian()).with_prior(survey_batch(batch))
    away = means - model.observation.center
    products = np.einsum("ki,kj->kij", away, away)
    products[:, np.arange(size.d), np.arange(size.d)] += scale**2
    rows, columns = np.triu_indices(size.d)
    n = np.full(size.k, size.n / size.k)
    empty = model.empty_summary(np.arange(size.k))
    found = {"N": n, "x": away * n[:, None], "xx": products[:, rows, columns] * n[:, None]}
    return model.global_step(replace(empty, values={**empty.values, **found}))
