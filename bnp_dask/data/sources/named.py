"""Sources whose features get names, or another order: data held against the columns that a model was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import Columns
from bnp_dask.data.base import Reader, Source, columns_of, spans_of
from bnp_dask.data.grouped.offsets import GroupedSource
from bnp_dask.data.identity import fingerprint_of
from bnp_dask.data.skipping import WithoutBatches
from bnp_dask.data.sources.arrays import WeightedSource
from bnp_dask.data.sources.collections import DaskFrameSource
from bnp_dask.errors import DataError
from bnp_dask.inputs.sparse_rows import as_counts


@dataclass(frozen=True, eq=False)
class OrderedReader:
    """A batch with its features at the positions ``index (D,)``, in that order; None: as they lie."""

    atoms: Reader
    names: tuple[str, ...]
    index: np.ndarray | None

    def __call__(self) -> Batch:
        batch = self.atoms()
        if self.index is not None:
            x = batch.x[:, self.index]
            # products round as those of a batch that was read in this order
            ordered = np.ascontiguousarray(x) if isinstance(x, np.ndarray) else as_counts(x, batch.name)
            batch = replace(batch, x=ordered)
        return replace(batch, names=self.names)


@dataclass(frozen=True, eq=False)
class OrderedSource:
    """A source with named features, taken from the positions ``index`` of another, or as they lie there."""

    atoms: Source
    columns: Columns
    index: np.ndarray | None

    @property
    def name(self) -> str:
        return self.atoms.name

    @property
    def n_batches(self) -> int:
        return self.atoms.n_batches

    @property
    def n_features(self) -> int:
        return self.columns.n_features

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
        return OrderedReader(self.atoms.reader(index), self.columns.features, self.index)

    def fingerprint(self) -> Any:
        return fingerprint_of(self.atoms)

    def describe(self) -> dict[str, Any]:
        return {**self.atoms.describe(), "n_features": self.n_features, "columns": list(self.columns.names)}


def matched(source: Source, columns: Columns) -> Source:
    """The data with the features that a model was trained on, in its order; without names they lie in that order.

    Raises
    ------
    DataError
        A column is missing, or there is one more; of data without names only the number is checked.
    """
    found = columns_of(source)
    if found is None:
        if source.n_features != columns.n_features:
            raise DataError(
                f"{source.name} has {source.n_features} columns without names; needs {columns.n_features}, in the "
                f"order of training: {columns}"
            )
        return ordered(source, columns, None)
    index = columns.positions(found, source.name)
    return source if index is None else ordered(source, replace(columns, roles=found.roles), index)


def ordered(source: Source, columns: Columns, index: np.ndarray | None) -> Source:
    """The data with named features, from the positions ``index`` of what there is, or as they lie."""
    match source:
        case GroupedSource() | WeightedSource():
            return replace(source, atoms=ordered(source.atoms, columns, index))
        case WithoutBatches():
            return replace(source, whole=ordered(source.whole, columns, index))
        case DaskFrameSource():
            return replace(source, columns=columns)
        case _:
            return OrderedSource(source, columns, index)
