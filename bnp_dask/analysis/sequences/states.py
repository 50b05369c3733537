"""The states of the steps of a batch, and the columns in which they are written with the names of their sequences.

A model whose rows also hold the steps before each step gives its results for sequences as recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from bnp_dask.core import Batch
from bnp_dask.data import DaskFrameSource, GroupedSource, Layout, Outputs, Reader, Source, batch_reader
from bnp_dask.data.groups import lagged
from bnp_dask.data.output import Compute
from bnp_dask.execute.prefetch import Load, load_of
from bnp_dask.kernels.numeric.lags import lagged_rows, spread
from bnp_dask.model import Posterior
from bnp_dask.structure import path_densities

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
    :func:`~bnp_dask.structure.answers.path_densities`.
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


def for_recorded(posterior: Posterior, batch: Batch, compute: Callable[[Posterior, Batch], Outputs]) -> Outputs:
    """Columns of a batch as recorded, from columns of the model's rows.

    The first steps of each sequence, on which the others are conditioned, have the values of the step after them.
    Steps of a sequence that has no other get the model's expectation of a start: its states by their probability, the
    most probable as their label.
    """
    lags = posterior.model.lags
    if lags == 0:
        return compute(posterior, batch)
    rows = lagged(batch, lags)
    offsets = batch.group_offsets
    start = _start(posterior)
    rank = np.argsort(-start, kind="stable")
    found = {}
    for name, values in compute(posterior, rows).items():
        width = values.shape[1] if values.ndim == 2 else 1
        if name == "label":
            alone = posterior.ids[rank[:width]] if values.ndim == 2 else posterior.ids[rank[0]]
        else:
            alone = start if width == len(start) else start[rank[:width]]
        found[name] = spread(values, offsets, lags, np.asarray(alone))
    return found


def density_of_recorded(
    posterior: Posterior, batch: Batch, density: Callable[[Posterior, Batch], np.ndarray]
) -> np.ndarray:
    """Densities of the steps of a batch as recorded, ``(n,)``; NaN for steps on which the others are conditioned."""
    lags = posterior.model.lags
    if lags == 0:
        return density(posterior, batch)
    out = np.full(batch.n_atoms, np.nan)
    rows = lagged(batch, lags)
    out[lagged_rows(batch.group_offsets, lags)[0]] = density(posterior, rows)
    return out


def _start(posterior: Posterior) -> np.ndarray:
    """Prior probability of each cluster at a step without data, ``(K,)``."""
    shares = posterior.model.structure.shares(posterior)
    return shares / shares.sum()
