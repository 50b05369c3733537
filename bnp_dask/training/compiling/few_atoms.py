"""A short run as data: a model and its settings, and a few atoms of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import Columns
from bnp_dask.core.encoding import from_spec, to_spec
from bnp_dask.core.registry import REGISTRY
from bnp_dask.data.base import Reader
from bnp_dask.inference import Schedule
from bnp_dask.model import Model
from bnp_dask.moves import Move
from bnp_dask.store.files import pack, unpack

FEW = 240
"""Atoms of the short run: enough for clusters to be born, merged and deleted."""

GROUPS = 4
"""Groups of dense atoms, cut anew."""


@dataclass(frozen=True, eq=False)
class FewAtoms:
    """A few atoms of a batch as data; groups begin and end anywhere."""

    batch: Batch
    columns: Columns | None
    name = "a few atoms"
    n_batches = 1

    @staticmethod
    def of(batch: Batch, columns: Columns | None) -> FewAtoms:
        """The first atoms of a batch."""
        n = min(FEW, batch.n_atoms)
        weights = None if batch.weights is None else batch.weights[:n]
        groups = None if batch.groups is None else np.linspace(0, n, GROUPS + 1).astype(np.int64)
        return FewAtoms(replace(batch, x=batch.x[:n], weights=weights, groups=groups), columns)

    @property
    def n_features(self) -> int:
        return self.batch.n_features

    @property
    def n_atoms(self) -> int:
        return self.batch.n_atoms

    @property
    def is_sparse(self) -> bool:
        return self.batch.is_sparse

    def reader(self, index: int) -> Reader:
        return self._read

    def describe(self) -> dict[str, Any]:
        return {"kind": "a few atoms", "n": self.n_atoms}

    def _read(self) -> Batch:
        return self.batch


PARTS = ("x", "weights", "groups", "name", "names")
"""Fields of a batch that the short run needs."""


def packed(model: Model, data: FewAtoms, moves: Sequence[Move], schedule: Schedule) -> bytes:
    """A short run as data; StoreError for parts whose classes are not registered."""
    atoms = {name: getattr(data.batch, name) for name in PARTS}
    run = {"model": model, "atoms": atoms, "columns": data.columns, "moves": list(moves), "schedule": schedule}
    spec, arrays = to_spec(run, REGISTRY)
    return pack(arrays, {"run": spec})


def unpacked(content: bytes) -> tuple[Model, FewAtoms, list[Move], Schedule]:
    """Inverse of :func:`packed`."""
    arrays, meta = unpack(content, Path("short run"))
    run = from_spec(meta["run"], arrays)
    return run["model"], FewAtoms(Batch(**run["atoms"]), run["columns"]), run["moves"], run["schedule"]
