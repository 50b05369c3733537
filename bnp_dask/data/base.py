"""A source of batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from bnp_dask.batch import Batch

Reader = Callable[[], Batch]
"""Reads one batch; small and picklable, so that it can travel to a worker, which reads the data itself."""


class Source(Protocol):
    """A data set cut into batches that never change.

    ``name`` is what the user passed (path, URL or "array"); ``n_atoms`` may be None where only reading tells.
    """

    name: str
    n_batches: int
    n_features: int
    is_sparse: bool

    def reader(self, index: int) -> Reader:
        """How to read batch ``index``."""
        ...

    def describe(self) -> dict[str, Any]:
        """What identifies the data, JSON-able: kind, path, sizes; compared when a run is resumed."""
        ...
