"""Sources of counts whose columns are moved to the positions of their words in a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from bnp_dask.core.batch import Batch
from bnp_dask.data.base import Reader, Source, spans_of
from bnp_dask.data.identity import fingerprint_of

LEFT_OUT = -1
"""Position of a column that is left out."""


@dataclass(frozen=True, eq=False)
class PlacedReader:
    """A batch of ``width`` columns, with column v of the original batch at ``place[v]``; None keeps the order."""

    atoms: Reader
    width: int
    place: np.ndarray | None

    def __call__(self) -> Batch:
        batch = self.atoms()
        if self.place is None:
            return batch.widened(self.width)
        kept, width = self.place != LEFT_OUT, batch.n_features
        x: Any = batch.x
        if isinstance(x, np.ndarray):
            out: Any = np.zeros((x.shape[0], self.width))
            out[:, self.place[kept]] = x[:, kept]
            width = int(self.place.max(initial=LEFT_OUT)) + 1
        else:
            out = _placed_counts(x, self.place, self.width)
        return replace(batch, x=out, names=None, read_width=width)


def _placed_counts(x: sparse.csr_array, place: np.ndarray, width: int) -> sparse.csr_array:
    index = place[x.indices]
    held = index != LEFT_OUT
    before = np.concatenate([[0], np.cumsum(held)])
    out = sparse.csr_array((x.data[held], index[held], before[x.indptr]), shape=(x.shape[0], width))
    out.sort_indices()
    return out


@dataclass(frozen=True, eq=False)
class PlacedSource:
    """A source of counts, ``n_features`` wide, with column v of another at ``place[v]``; None keeps the order."""

    atoms: Source
    n_features: int
    place: np.ndarray | None = None

    @property
    def name(self) -> str:
        return self.atoms.name

    @property
    def n_batches(self) -> int:
        return self.atoms.n_batches

    @property
    def n_atoms(self) -> int | None:
        return self.atoms.n_atoms

    @property
    def is_sparse(self) -> bool:
        return self.atoms.is_sparse

    @property
    def spans(self) -> Sequence[tuple[int, int]] | None:
        return spans_of(self.atoms)

    def reader(self, index: int) -> Reader:
        return PlacedReader(self.atoms.reader(index), self.n_features, self.place)

    def fingerprint(self) -> Any:
        return fingerprint_of(self.atoms)

    def describe(self) -> dict[str, Any]:
        return {**self.atoms.describe(), "n_features": self.n_features}


def placed(source: Source, width: int, place: np.ndarray | None) -> Source:
    """The source with its columns at positions ``place (V,)`` among ``width``; the source itself if nothing moves."""
    if place is not None and np.array_equal(place, np.arange(len(place))):
        place = None
    return source if place is None and source.n_features == width else PlacedSource(source, width, place)
