"""Batches of a run as tasks of sampling take them, and the labels that each visit leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bnp_dask.sampling.visit import Labels, Task
from bnp_dask.schedules.engine.bad_batches import instead, reader_of
from bnp_dask.schedules.engine.state import State, Work


def visit_of(work: Work, state: State, batch: int, places: np.ndarray) -> tuple[Any, ...]:
    """Reader, task and labels of a visit to a batch."""
    assert state.sampler is not None
    labels = labels_of(work, state, batch, len(state.sampler.chains))
    return reader_of(work, state, batch), _task(work, state, batch, places), labels


def _task(work: Work, state: State, batch: int, places: np.ndarray) -> Task:
    alive = batch not in state.lost
    rows = places[places[:, 0] == batch, 1] if alive else np.zeros(0, np.int64)
    checksum = None
    if work.unread is not None and work.unread[batch] and alive:
        checksum = int(work.survey.checksums[batch])
    empty = instead(work, batch) if work.skips and alive else None
    return Task(f"{work.source.name} batch {batch}", batch, work.seed, rows, checksum, empty)


def labels_of(work: Work, state: State, batch: int, n_chains: int) -> tuple[Labels, ...] | None:
    """Clusters of a batch's atoms after its last sweep; None before the first."""
    if state.visits[batch] < 0:
        return None
    arrays, _ = work.memo.get_summary(batch, int(state.visits[batch]), state.receipt(batch))
    return tuple(Labels(arrays[f"names{c}"], arrays[f"places{c}"]) for c in range(n_chains))


def keep_labels(work: Work, state: State, batch: int, chains: Sequence[Labels]) -> None:
    """Keep the clusters of a batch's atoms in every chain."""
    arrays: dict[str, np.ndarray] = {}
    for number, labels in enumerate(chains):
        arrays |= {f"names{number}": labels.names, f"places{number}": labels.places}
    visit = int(state.visits[batch]) + 1
    state.note(batch, visit, len(state.edits), work.memo.put_summary(batch, visit, arrays))
