"""A source of batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from bnp_dask.batch import Batch

Reader = Callable[[], Batch]
"""Reads one batch; small and picklable, so that it can travel to a worker, which reads the data itself."""


@runtime_checkable
class Source(Protocol):
    """A data set cut into batches that never change.

    ``name`` is what the user passed (path, URL or "array").
    """

    @property
    def name(self) -> str:
        """What the user passed: path, URL, or the kind of object."""
        ...

    @property
    def n_batches(self) -> int:
        """Number of batches B."""
        ...

    @property
    def n_features(self) -> int:
        """Number of columns D, or words V."""
        ...

    @property
    def is_sparse(self) -> bool:
        """Whether batches are sparse counts."""
        ...

    @property
    def n_atoms(self) -> int | None:
        """Number of atoms, or None where only reading tells."""
        ...

    def reader(self, index: int) -> Reader:
        """How to read batch ``index``."""
        ...

    def describe(self) -> dict[str, Any]:
        """What identifies the data, JSON-able: kind, path, sizes; compared when a run is resumed."""
        ...
