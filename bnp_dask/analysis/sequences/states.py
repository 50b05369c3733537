"""The states of the steps of a batch, and the columns in which they are written with the names of their sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from bnp_dask.analysis.sequences.lags import for_recorded
from bnp_dask.core.batch import Batch
from bnp_dask.data.base import Reader, Source, batch_reader
from bnp_dask.data.groups import GroupedSource
from bnp_dask.data.output import Compute, Layout, Outputs
from bnp_dask.data.sources.dask_collections import DaskFrameSource
from bnp_dask.execute.prefetch import Load, load_of
from bnp_dask.model import Posterior
from bnp_dask.structure.answers.density import path_densities

Namer = Callable[[], tuple[pa.Array, np.ndarray]]
"""Gives the id of each sequence of a batch, and its first step there (for blocks of a longer one)."""


def state_path(posterior: Posterior, batch: Batch) -> np.ndarray:
    """Most likely states of the sequences of a batch, each as a whole (Viterbi), positions ``(n,)``."""
    parts = [place for _, place in posterior.model.structure.labels(posterior.model, posterior, batch)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def state_ids(posterior: Posterior, batch: Batch) -> np.ndarray:
    """Ids of the most likely states of all sequences of a batch, ``(n,)``; sequences are looked at tile by tile."""
    return decoded(posterior, lambda: batch)[0]


def decoded(posterior: Posterior, reader: Reader) -> tuple[np.ndarray, np.ndarray]:
    """Task: ids of the most likely states of all sequences of a batch ``(n,)``, and the log density of each path.

    The densities ``(G,)``, nats, are joint ones of a path and the data that it leads through; see
    :func:`~bnp_dask.structure.answers.density.path_densities`.
    """
    values = np.zeros(0)

    def found(posterior: Posterior, rows: Batch) -> Outputs:
        nonlocal values
        posterior.model.observation.check(rows)
        path = state_path(posterior, rows)
        values = path_densities(posterior.model, posterior, rows, path)
        return {"label": posterior.ids[path]}

    labels = np.asarray(for_recorded(posterior, reader(), found)["label"])
    return labels, values


# -- names of sequences ------------------------------------------------------------------------------------------
def namer_of(source: Source, index: int) -> Namer | None:
    """Function that names the sequences of a batch; None where the source has no names."""
    if isinstance(source, GroupedSource) or (isinstance(source, DaskFrameSource) and source.keys):
        return source.batch_names(index)
    return None


def names_of(batch: Batch, namer: Namer | None, index: int) -> tuple[pa.Array, np.ndarray]:
    """Ids ``(G,)`` and first steps ``(G,)`` of the sequences of a batch; without names, ``"batch 3, 0"``."""
    if namer is not None:
        return namer()
    ids = pa.array([f"batch {index}, {g}" for g in range(batch.n_groups)], pa.string())
    return ids, np.zeros(batch.n_groups, np.int64)


@dataclass(frozen=True, eq=False)
class StepReader:
    """A batch and the names of its sequences."""

    reader: Reader
    namer: Namer | None
    index: int

    @property
    def first_load(self) -> Load[Batch] | None:
        """The reader, if it may be called ahead of the task."""
        return load_of(self.reader)

    def __call__(self) -> Batch:
        return self.reader()


@dataclass(frozen=True)
class NameSteps:
    """Task: the result of another task, with the sequence and the step of each row."""

    compute: Compute

    def __call__(self, shared: Any, reader: Any) -> Outputs:
        batch = reader()
        found = self.compute(shared, lambda: batch)
        ids, begin = names_of(batch, reader.namer, reader.index)
        offsets = batch.group_offsets
        lengths = np.diff(offsets)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        columns: dict[str, Any] = {"sequence": ids.take(pa.array(owner))}
        columns["step"] = np.arange(batch.n_atoms) - (offsets[:-1] - begin)[owner]
        return {**columns, **{"state" if name == "label" else name: value for name, value in found.items()}}


def name_steps(
    source: Source, layouts: Sequence[Layout], compute: Compute
) -> tuple[tuple[Layout, ...], Compute, list[Reader]]:
    """Layouts, task and readers to write ``sequence``, ``step`` and ``state`` (in place of ``label``) of each step."""
    named = [replace(x, name="state") if x.name == "label" else x for x in layouts]
    readers: list[Reader] = [
        StepReader(batch_reader(source, i), namer_of(source, i), i) for i in range(source.n_batches)
    ]
    # ids have the type that they have in the data
    return (Layout("sequence", "", None), Layout("step", "<i8", None), *named), NameSteps(compute), readers
