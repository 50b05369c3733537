"""Stand-ins for what is around moves: batches in memory, each sent to tasks on its own; a memo that forgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from bnp_dask.batch import Batch


def itself(batch: Batch) -> Batch:
    """A reader of a batch that is there already."""
    return batch


@dataclass
class Batches:
    """A source of batches in memory."""

    batches: list[Batch]
    name: str = "array"

    @property
    def n_batches(self) -> int:
        return len(self.batches)

    @property
    def n_features(self) -> int:
        return self.batches[0].n_features

    @property
    def is_sparse(self) -> bool:
        return self.batches[0].is_sparse

    def reader(self, index: int) -> Any:
        return partial(itself, self.batches[index])

    def describe(self) -> dict[str, Any]:
        return {"kind": "test"}


@dataclass
class DictMemo:
    """The latest summary of each batch."""

    kept: dict[int, tuple[int, dict[str, np.ndarray], dict[str, Any]]] = field(default_factory=dict)

    def put_summary(
        self, batch: int, visit: int, arrays: Mapping[str, np.ndarray], meta: dict[str, Any] | None = None
    ) -> None:
        self.kept[batch] = visit, {name: np.array(a) for name, a in arrays.items()}, meta or {}

    def get_summary(self, batch: int, visit: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        kept, arrays, meta = self.kept[batch]
        assert kept == visit
        return arrays, meta
