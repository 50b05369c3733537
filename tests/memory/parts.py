"""Data sets that are made up batch by batch, on disk or out of thin air."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.location import Location
from bnp_dask.data.ingestion.writers import RowsWriter

N_FEATURES = 64


def write_rows(path: Path, n_batches: int, batch_bytes: int) -> np.ndarray:
    """A Zarr store of float64 rows from six clusters, written a batch at a time; the cluster of each row.

    Numbers are rounded to eighths, which packs well: the disk need not hold what the array does.
    """
    rng = np.random.default_rng(0)
    rows = batch_bytes // (8 * N_FEATURES)
    means = rng.integers(-40, 40, size=(6, N_FEATURES)) / 8
    noise = np.round(8 * rng.normal(size=(rows, N_FEATURES))) / 8
    writer = RowsWriter(Location.of(path), N_FEATURES, np.dtype("f8"), rows)
    truth = rng.integers(6, size=(n_batches, rows))
    for origin in truth:
        writer.add(np.roll(noise, rng.integers(noise.size)) + means[origin])
    writer.close({}, "made up")
    return truth.ravel()


@dataclass(frozen=True)
class MadeUpReader:
    """Makes one batch of rows up, from four clusters."""

    index: int
    n_atoms: int
    n_features: int

    def __call__(self) -> Batch:
        rng = np.random.default_rng(self.index)
        x = rng.normal(size=(self.n_atoms, self.n_features))
        x[:, 0] += 8.0 * rng.integers(4, size=self.n_atoms)
        return Batch(x, None, f"made up batch {self.index}")


@dataclass(frozen=True)
class MadeUp:
    """A source of any number of batches that takes no memory."""

    n_batches: int
    batch_atoms: int
    n_features: int
    name: str = "made up"
    is_sparse: bool = False

    @property
    def n_atoms(self) -> int:
        return self.n_batches * self.batch_atoms

    def reader(self, index: int) -> MadeUpReader:
        return MadeUpReader(index, self.batch_atoms, self.n_features)

    def describe(self) -> dict[str, Any]:
        return {"kind": "made up", "n_batches": self.n_batches}
