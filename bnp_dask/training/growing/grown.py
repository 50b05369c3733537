"""All batches of a run that grew, as one source: the batches of its first data, then of each later piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bnp_dask.core.columns import Columns
from bnp_dask.core.survey import Survey
from bnp_dask.data.base import Reader, Source, columns_of
from bnp_dask.errors import DataError
from bnp_dask.training.survey_pass import PER_BATCH


@dataclass(frozen=True)
class Gone:
    """A reader of a batch that cannot be opened again: DataError says why."""

    why: str

    def __call__(self) -> Any:
        raise DataError(self.why)


@dataclass(frozen=True, eq=False)
class Absent:
    """A source in place of data that cannot be opened again.

    Parameters
    ----------
    name
        Name of the data.
    n_batches, n_features, is_sparse
        As they were.
    why
        Why the data cannot be opened.
    """

    name: str
    n_batches: int
    n_features: int
    is_sparse: bool
    why: str
    n_atoms: int | None = None

    def reader(self, index: int) -> Reader:
        return Gone(f"{self.name} batch {index}: {self.why}")

    def describe(self) -> dict[str, Any]:
        return {"kind": "absent", "path": self.name, "n_batches": self.n_batches}


@dataclass(frozen=True, eq=False)
class GrownSource:
    """Some sources of the same features, one after the other.

    Parameters
    ----------
    name
        Name of the run.
    parts
        The sources; at least one.
    starts
        Number of the first batch of each, and of all batches, ``(P + 1,)``.
    """

    name: str
    parts: Sequence[Source]
    starts: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", np.cumsum([0, *(part.n_batches for part in self.parts)]))

    @property
    def n_batches(self) -> int:
        return int(self.starts[-1])

    @property
    def n_features(self) -> int:
        return self.parts[0].n_features

    @property
    def is_sparse(self) -> bool:
        return self.parts[0].is_sparse

    @property
    def n_atoms(self) -> int | None:
        return None

    @property
    def columns(self) -> Columns | None:
        return columns_of(self.parts[0])

    @property
    def present(self) -> np.ndarray:
        """Which batches can be read, ``(B,)`` bool."""
        return np.repeat([not isinstance(part, Absent) for part in self.parts], np.diff(self.starts))

    def part_of(self, index: int) -> int:
        """Number of the source that a batch belongs to."""
        return int(np.searchsorted(self.starts, index, side="right")) - 1

    def reader(self, index: int) -> Reader:
        part = self.part_of(index)
        return self.parts[part].reader(index - int(self.starts[part]))

    def describe(self) -> dict[str, Any]:
        return {"kind": "grown", "path": self.name, "n_batches": self.n_batches}


def survey_of(first: Survey, rows: np.ndarray) -> Survey:
    """The survey of a run's first data with the batches of all later data; moments are of the first data alone.

    ``rows`` are the rows of a manifest, ``(N,)``.
    """
    per_batch: dict[str, Any] = {
        name: (*getattr(first, name), *rows[column].tolist()) for name, column in PER_BATCH.items()
    }
    return replace(
        first,
        n_atoms=first.n_atoms + int(rows["atoms"].sum()),
        total_weight=first.total_weight + float(rows["weight"].sum()),
        nbytes=first.nbytes + int(rows["nbytes"].sum()),
        n_groups=first.n_groups + int(rows["groups"].sum()),
        **per_batch,
    )
