"""Batches that cannot be read are left out, and everything else goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from bnp_dask.batch import Batch
from bnp_dask.data.base import Reader, Source


@dataclass(frozen=True)
class EmptyReader:
    """Gives a batch without atoms, in place of one that cannot be read.

    ``n_features``, ``is_sparse`` and ``is_grouped`` are those of the other batches.
    """

    name: str
    n_features: int
    is_sparse: bool
    is_grouped: bool

    def __call__(self) -> Batch:
        shape = (0, self.n_features)
        x = sparse.csr_array(shape, dtype=np.float64) if self.is_sparse else np.zeros(shape)
        return Batch(x, None, self.name, np.zeros(1, np.int64) if self.is_grouped else None)


@dataclass(frozen=True)
class WithoutBatches:
    """A source of which some batches are left out: they keep their numbers, and have no atoms.

    Parameters
    ----------
    whole
        The source.
    bad
        Numbers of the batches to leave out, and why: ascending.
    is_grouped
        Whether its rows come in groups.
    """

    whole: Source
    bad: tuple[tuple[int, str], ...]
    is_grouped: bool = False

    @property
    def name(self) -> str:
        return self.whole.name

    @property
    def n_batches(self) -> int:
        return self.whole.n_batches

    @property
    def n_features(self) -> int:
        return self.whole.n_features

    @property
    def is_sparse(self) -> bool:
        return self.whole.is_sparse

    @property
    def n_atoms(self) -> int | None:
        """Unknown: nobody can say how many atoms a batch has that cannot be read."""
        return None

    def reader(self, index: int) -> Reader:
        if any(index == b for b, _ in self.bad):
            return EmptyReader(f"{self.name} batch {index}", self.n_features, self.is_sparse, self.is_grouped)
        return self.whole.reader(index)

    def describe(self) -> dict[str, Any]:
        return self.whole.describe()
