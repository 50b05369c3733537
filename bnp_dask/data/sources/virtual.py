"""Rows that exist nowhere: each batch of a Gaussian mixture is computed from its number and a seed when it is read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.registry import register
from bnp_dask.data.base import (
    Reader,
    Span,
    Stored,
    batch_name,
    batch_rows,
    check_batch_size,
    check_index,
    check_width,
    spans,
)
from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import MOST, SEEDS, hold, number_from, whole_number

NARROWEST, WIDEST = 0.5, 1.5
"""Range of the standard deviations of a cluster along the columns."""

MEANS, LABELS, NOISE = 0, 1, 2
"""Purposes of random numbers."""


@register
@dataclass(frozen=True, repr=False)
class VirtualMixture(Stored):
    """Rows of a Gaussian mixture, computed when they are read: data of any size for runs without a disk.

    Cluster k is equally likely as all others.  Its mean is normal around zero with standard deviation ``spread`` in
    each column; its columns are independent, with standard deviations uniform on 0.5 to 1.5.  The rows of a batch
    depend on the seed, the settings and the number of the batch alone, so that every reading gives the same bits.

    Parameters
    ----------
    n_rows
        Rows in all.
    n_columns
        Columns D.
    n_clusters
        True clusters.
    spread
        Standard deviation of the clusters' means: 4 separates them in 16 columns, 0.5 lets them overlap.
    seed
        Seed of all random numbers, 0 to 2**128 - 1.
    batch_size
        Rows of a batch; default: batches of about 32 MB.

    Examples
    --------
    >>> import bnp_dask as bnp
    >>> data = bnp.VirtualMixture(1_000_000_000, 16, 64)
    >>> data
    VirtualMixture(virtual mixture: 1,000,000,000 rows, 16 columns, 3,815 batches)
    >>> data.reader(3814)().x.shape
    (182784, 16)
    """

    n_rows: int
    n_columns: int
    n_clusters: int
    spread: float = 4.0
    seed: int = 0
    batch_size: int | None = None
    name = "virtual mixture"
    kind = "virtual mixture"

    def __post_init__(self) -> None:
        for setting in ("n_rows", "n_columns", "n_clusters"):
            hold(self, setting, whole_number(setting, getattr(self, setting), 1, MOST))
        hold(self, "spread", number_from("spread", self.spread, 0.0))
        hold(self, "seed", whole_number("seed", self.seed, 0, SEEDS - 1))
        check_width(self.n_columns, "n_columns")
        if self.batch_size is not None:
            hold(self, "batch_size", check_batch_size(self.batch_size))
        if self.n_clusters > self.n_rows:
            raise SettingError(f"n_clusters={self.n_clusters}: there are only n_rows={self.n_rows}")

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.n_columns

    @property
    def spans(self) -> list[Span]:  # type: ignore[override]
        """First row of each batch and one past its last."""
        return spans(self.n_rows, self._size)

    @property
    def n_batches(self) -> int:
        """Number of batches B."""
        return -(-self.n_rows // self._size)

    @property
    def n_atoms(self) -> int:
        """Rows in all."""
        return self.n_rows

    def reader(self, index: int) -> Reader:
        """Reader of batch ``index``."""
        check_index(index, self.n_batches, self.name)
        return self.block(index, batch_name(self.name, index, self._span(index)))

    def block(self, index: int, name: str) -> Reader:
        """Reader of batch ``index``, which messages call ``name``."""
        return partial(_rows, self, index, name)

    def facts(self) -> dict[str, Any]:
        """Settings that the rows depend on."""
        return {"n_clusters": self.n_clusters, "spread": self.spread, "seed": self.seed, "batch_size": self._size}

    @property
    def means(self) -> np.ndarray:
        """Means of the true clusters, ``(K, D)``."""
        return self._clusters()[0]

    def labels(self, index: int) -> np.ndarray:
        """True cluster of each row of batch ``index``, ``(n,)``."""
        start, stop = self._span(index)
        return self._rng(LABELS, index).integers(self.n_clusters, size=stop - start)

    @property
    def _size(self) -> int:
        return batch_rows(self.n_columns, self.batch_size)

    def _span(self, index: int) -> Span:
        return index * self._size, min((index + 1) * self._size, self.n_rows)

    def _clusters(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of the clusters, both ``(K, D)``."""
        rng, shape = self._rng(MEANS), (self.n_clusters, self.n_columns)
        return self.spread * rng.standard_normal(shape), rng.uniform(NARROWEST, WIDEST, shape)

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(self.seed, spawn_key=key)))


def _rows(source: VirtualMixture, index: int, name: str) -> Batch:
    """The rows of one batch."""
    label = source.labels(index)
    means, scale = source._clusters()
    x = source._rng(NOISE, index).standard_normal((len(label), source.n_columns))
    for start in range(0, len(label), 8192):  # so that little is held beside the rows
        own, rows = label[start : start + 8192], x[start : start + 8192]
        rows *= scale[own]
        rows += means[own]
    return Batch(x, name=name)
