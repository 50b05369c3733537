"""Batches in memory as a source, each sent to tasks on its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bnp_dask.core.batch import Batch


@dataclass(eq=False)
class Batches:
    """A source of batches in memory; ``reads`` are the positions of those that this process read, in order."""

    batches: Sequence[Batch]
    name: str = "array"
    reads: list[int] = field(default_factory=list)

    @property
    def n_batches(self) -> int:
        return len(self.batches)

    @property
    def n_features(self) -> int:
        return self.batches[0].n_features

    @property
    def is_sparse(self) -> bool:
        return self.batches[0].is_sparse

    def reader(self, index: int) -> Callable[[], Batch]:
        return partial(_read, self.batches[index], self.reads, index)

    def describe(self) -> dict[str, Any]:
        return {"kind": "test"}


def _read(batch: Batch, reads: list[int], index: int) -> Batch:
    reads.append(index)
    return batch
