"""Visit of a batch whose atoms are rows: tiles -> responsibilities -> a summary, with trials beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary, add_in_place
from bnp_dask.kernels.mixture.resp import Resp, cluster_sums
from bnp_dask.structure.asking import Beliefs, WholeModel
from bnp_dask.structure.assignments import Collector
from bnp_dask.structure.base import Trial, Visit
from bnp_dask.structure.linked import units_in
from bnp_dask.structure.steps import LocalStep
from bnp_dask.structure.trials import Shares
from bnp_dask.structure.verbs import linear_sums

MOSTLY = 0.1
"""Responsibility above which an atom is taken to belong to a cluster (Hughes & Sudderth 2013, supplement, eq. 23)."""


class Run(Protocol):
    """Trial on one batch: it sees each tile beside the local step."""

    trial: Trial
    needed: np.ndarray
    """Positions of the clusters whose responsibilities the trial looks up, ``(J,)``."""

    def see(self, start: int, tile: Batch, step: LocalStep, shares: Shares) -> None:
        """Process a tile whose first row is ``start`` in the batch; tiles come in order."""
        ...

    def finish(self, batch: Batch, total: Summary) -> Summary:
        """Statistics of the receivers, given the batch's own summary; statistics of the atoms are zero."""
        ...


def visit_rows(
    model: WholeModel,
    posterior: Beliefs,
    batch: Batch,
    steps: Iterable[tuple[Batch, LocalStep]],
    pairs: np.ndarray,
    runs: Sequence[Run],
    sought: Sequence[int],
    room: int = 0,
) -> Visit:
    """Sum the local steps of all tiles of a batch, show them to trials, and note the atoms of requested clusters.

    Parameters
    ----------
    model, posterior
        The model, and the posterior under which the batch is assigned.
    batch
        The atoms.
    steps
        Its tiles with their local steps; in row order if there are trials or requested clusters.
    pairs
        Ids whose union is tracked, ``(M, 2)``.
    runs
        Trials.
    sought
        Ids of the requested clusters, whose rows are noted.
    room
        Bytes below which responsibilities are kept, which needs tiles in row order; 0 to keep none.
    """
    total = model.empty_summary(posterior.ids, pairs)
    members: dict[int, list[np.ndarray]] = {int(i): [] for i in sought}
    is_watched = bool(members or runs)
    places_sought = posterior.positions(np.array(list(members), np.int64)) if is_watched else np.zeros(0, np.int64)
    needed = np.unique(np.concatenate([places_sought, *(run.needed for run in runs)])) if is_watched else places_sought
    start, collector = 0, Collector(len(posterior.ids), room)
    for tile, step in steps:
        collector.see(step.resp)
        own = model.summary_of(posterior.ids, tile, step, posterior.observation, pairs)
        if tile.n_atoms == batch.n_atoms:  # no copy: of thousands of clusters these are hundreds of megabytes
            pair_values = own.pair_values if own.n_pairs else total.pair_values
            total = replace(total, values={**total.values, **own.values}, pair_values=pair_values)
        else:
            add_in_place(total, own)
        if not is_watched:
            continue
        shares = Shares(step.resp, needed)
        for run in runs:
            run.see(start, tile, step, shares)
        least = MOSTLY * (1.0 if tile.weights is None else tile.weights)
        for rows, mass in zip(members.values(), shares.of(places_sought).T, strict=True):
            here = np.flatnonzero(mass > least)
            rows.append(np.stack([start + here, mass[here]]))
        start += tile.n_atoms
    found = {cluster: np.concatenate([np.zeros((2, 0)), *rows], axis=1) for cluster, rows in members.items()}
    parts = {run.trial.name: run.finish(batch, total) for run in runs}
    return Visit(total, parts, members=found, assignments=collector.assignments())


def summarize_rows(model: WholeModel, ids: np.ndarray, batch: Batch, resp: Resp) -> Summary:
    """Summary of atoms that are rows, with given responsibilities (times weights); their entropy counts as zero."""
    empty = model.empty_summary(ids)
    own = linear_sums(model.allocation, batch, resp)
    values = {
        **empty.values,
        "N": cluster_sums(resp),
        **units_in(model, batch, resp),
        **own,
        **model.observation.summarize(batch, resp),
    }
    return replace(empty, values=values)
