"""The task of Gibbs sampling: one batch, each atom assigned to a cluster drawn given the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.allocation.base import DrawnWeights, SampledAllocation, SmallSlices
from bnp_dask.allocation.measure import SMALL, bound, heights, window_ends
from bnp_dask.core.batch import Batch
from bnp_dask.core.finite import require_finite_arrays
from bnp_dask.core.summary import Summary, add_in_place
from bnp_dask.data.base import Reader, naming_batch
from bnp_dask.data.skipping import read_or_why, require_checksum
from bnp_dask.errors import DataError, NumericalError
from bnp_dask.inputs.protocols import as_a
from bnp_dask.kernels.mixture.choose import NOBODY, Choice
from bnp_dask.kernels.mixture.resp import RaggedResp, ScreenedWeights, cluster_sums
from bnp_dask.kernels.numeric.arithmetic import exp
from bnp_dask.model import Model
from bnp_dask.observation.base import QuadraticObservation
from bnp_dask.schedules.engine.bad_batches import fault_of
from bnp_dask.structure.screened import screened_pieces

ASSIGN, SLICE, WEIGHTS, PARAMETERS = range(4)
"""Purposes of random numbers."""


def generator(seed: int, chain: int, lap: int, purpose: int, batch: int = 0) -> np.random.Generator:
    """Random numbers of a chain that depend on the seed, the lap, the batch and what they are for, and nothing else."""
    key = (*b"gibbs", chain, lap, purpose, batch)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


@dataclass(frozen=True, eq=False)
class Drawn:
    """One chain's clusters in a sweep.

    Parameters
    ----------
    chain, lap
        Numbers from 0; with the seed and the batch they are the key of all random numbers.
    ids
        ``(K,)``.
    observation
        Parameters of the likelihood at the draw.
    weights
        Weights of the clusters.
    """

    chain: int
    lap: int
    ids: np.ndarray
    observation: Any
    weights: DrawnWeights


@dataclass(frozen=True, eq=False)
class Labels:
    """Clusters of the atoms of a batch in one chain: ``names[places]`` are their ids, ``(n,)``."""

    names: np.ndarray
    places: np.ndarray

    @staticmethod
    def of(ids: np.ndarray, places: np.ndarray) -> Labels:
        """From places ``(n,)`` among all clusters ``ids (K,)``; they take as few bytes as they need."""
        used = np.bincount(places, minlength=len(ids)) > 0
        fewest = np.min_scalar_type(max(int(used.sum()) - 1, 0))
        return Labels(ids[used], (np.cumsum(used) - 1).astype(fewest)[places])

    @property
    def ids(self) -> np.ndarray:
        """Id of each atom's cluster, ``(n,)`` int64."""
        return self.names[self.places]


@dataclass(frozen=True, eq=False)
class Task:
    """Which batch a task sweeps.

    Parameters
    ----------
    name, number
        Of the batch.
    seed
        Of the run.
    rows
        Rows whose clusters are wanted, ``(R,)``.
    checksum
        CRC-32 that it must have; None: nobody looks.
    empty
        What is read in its place when it has gone bad; None: that is an error.
    """

    name: str
    number: int
    seed: int
    rows: np.ndarray
    checksum: int | None = None
    empty: Reader | None = None


@dataclass(frozen=True, eq=False)
class Assigned:
    """A batch in one chain after a sweep.

    Parameters
    ----------
    summary
        Statistics by cluster.
    small
        What the next sweep has to know of its slices; places are those of the clusters of ``summary``.
    labels
        Cluster of each atom.
    """

    summary: Summary
    small: SmallSlices
    labels: Labels


@dataclass(frozen=True, eq=False)
class Swept:
    """A batch after a sweep of every chain.

    Parameters
    ----------
    chains
        What each chain found.
    rows
        Ids of the clusters of the rows that were wanted, ``(chains, R)``; -1 for a row of weight zero.
    lost
        Why the batch is left out; empty where it is not.
    """

    chains: tuple[Assigned, ...]
    rows: np.ndarray
    lost: str = ""


def sweep(
    model: Model, drawn: tuple[Drawn, ...], reader: Reader, task: Task, before: tuple[Labels, ...] | None
) -> Swept:
    """The task: read a batch and draw a cluster for each atom in every chain."""
    batch = reader() if task.empty is None else read_or_why(reader)
    if isinstance(batch, str):
        return _lost(model, drawn, task, batch)
    with naming_batch(task.name):
        if task.checksum is not None:
            require_checksum(batch, task.checksum)
        try:
            atoms = repeated(batch)
            held = before if before is not None else (None,) * len(drawn)
            found = tuple(assign(model, d, atoms, task, b) for d, b in zip(drawn, held, strict=True))
            return Swept(found, _labels_of_rows(batch, found, task.rows))
        except Exception:
            why = None if task.empty is None else fault_of(model, batch)
            if why is None:
                raise
            return _lost(model, drawn, task, why)


def _labels_of_rows(batch: Batch, found: tuple[Assigned, ...], rows: np.ndarray) -> np.ndarray:
    """Clusters of some rows: of a row that is there several times that of its first atom."""
    if batch.weights is None:
        return np.array([one.labels.ids[rows] for one in found]).reshape(len(found), -1)
    times = batch.weights.astype(np.int64)
    first, there = (np.cumsum(times) - times)[rows], times[rows] > 0
    out = np.full((len(found), len(rows)), -1)
    out[:, there] = [one.labels.ids[first[there]] for one in found]
    return out


def _lost(model: Model, drawn: tuple[Drawn, ...], task: Task, why: str) -> Swept:
    nothing = Labels(np.zeros(0, np.int64), np.zeros(0, np.uint8))
    found = tuple(Assigned(model.empty_summary(d.ids), no_slices(), nothing) for d in drawn)
    return Swept(found, np.full((len(drawn), len(task.rows)), -1), why)


def no_slices() -> SmallSlices:
    """Slices of no atom."""
    return SmallSlices(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


def repeated(batch: Batch) -> Batch:
    """Atoms as often as they count; DataError for weights that are no whole numbers."""
    if batch.weights is None:
        return batch
    times = batch.weights.astype(np.int64)
    if (times != batch.weights).any():
        row = int(np.argmax(times != batch.weights))
        raise DataError(
            f"{batch.name}: row {row} has weight {batch.weights[row]:g}; Gibbs() draws a cluster for every atom, so "
            "that weights are how often an atom is there: whole numbers. Use another schedule, or leave weights out"
        )
    return replace(batch.take(np.repeat(np.arange(batch.n_atoms), times)), weights=None)


def slice_numbers(seed: int, chain: int, lap: int, batch: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Uniform numbers of the atoms of a batch in a sweep: slices by their height, above 0, and offsets of windows."""
    drawn = generator(seed, chain, lap, SLICE, batch).random((2, n))
    return 1.0 - drawn[0], drawn[1]


def assign(model: Model, drawn: Drawn, atoms: Batch, task: Task, before: Labels | None) -> Assigned:
    """Draw a cluster for each of some atoms, which had others before."""
    n = atoms.n_atoms
    uniform = generator(task.seed, drawn.chain, drawn.lap, ASSIGN, task.number).random(n)
    choice = _choice(drawn, atoms, task, before)
    total = model.empty_summary(drawn.ids)
    labels = np.empty(n, np.int64)
    start = 0
    for piece, screened in _pieces(model, drawn, choice, atoms):
        own = slice(start, start + piece.n_atoms)
        labels[own] = _chosen(model, drawn, piece, screened, choice.rows(own), uniform[own])
        add_in_place(total, statistics(model, drawn.ids, piece, labels[own]))
        start += piece.n_atoms
    require_finite_arrays(total.values, f"{atoms.name}: statistic", total.ids)
    return Assigned(total, _small_slices(drawn, total["N"], task, labels), Labels.of(drawn.ids, labels))


def _choice(drawn: Drawn, atoms: Batch, task: Task, before: Labels | None) -> Choice:
    """Which clusters are open to the atoms of a batch."""
    weights, n = drawn.weights, atoms.n_atoms
    if weights.limit is None or before is None:
        return Choice(weights.log_size)
    if len(before.places) != n:
        raise DataError(
            f"{atoms.name}: {n} atoms, but {len(before.places)} in the last sweep; the data have changed under the run"
        )
    size = exp(weights.log_size)
    height = heights(size, weights.limit)
    log_weight = np.maximum(weights.log_size - np.log(weights.limit), 0.0)
    places = positions(drawn.ids, before.names)[before.places]
    uniform, offset = slice_numbers(task.seed, drawn.chain, drawn.lap, task.number, n)
    slices, shown = uniform * height[places], size / SMALL
    ends = window_ends(size[places], weights.mark[places], offset)
    return Choice(log_weight, height, shown, weights.mark, slices, ends, places)


def _small_slices(drawn: Drawn, counts: np.ndarray, task: Task, labels: np.ndarray) -> SmallSlices:
    """Numbers of the next sweep that the coordinator needs, given how many atoms of the batch each cluster has."""
    if drawn.weights.limit is None:
        return no_slices()
    uniform, offset = slice_numbers(task.seed, drawn.chain, drawn.lap + 1, task.number, len(labels))
    few = np.flatnonzero(uniform < bound(counts, drawn.weights.limit)[labels])
    return SmallSlices(labels[few], uniform[few], offset[few])


def positions(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Positions of some ids, ``(J,)``, all of which are there."""
    order = np.argsort(ids, kind="stable")
    return order[np.searchsorted(ids, wanted, sorter=order)]


def _pieces(model: Model, drawn: Drawn, choice: Choice, atoms: Batch) -> Iterator[tuple[Batch, ScreenedWeights | None]]:
    """Tiles in the order of rows, with the weights of the clusters that matter; None where all are looked at."""
    if not model.screens:
        for tile in model.allocation.tiles(atoms, len(drawn.ids)):
            yield tile, None
        return
    forms = as_a(model.observation, QuadraticObservation).forms(drawn.observation)
    for piece, screened in screened_pieces(forms, choice.log_weight, atoms, model.marginalises):
        if screened is not None:
            yield piece, screened
            continue
        for tile in model.allocation.tiles(piece, len(drawn.ids)):
            yield tile, None


def _chosen(
    model: Model,
    drawn: Drawn,
    piece: Batch,
    screened: ScreenedWeights | None,
    choice: Choice,
    uniform: np.ndarray,
) -> np.ndarray:
    """Places of the clusters of some atoms."""
    left = np.arange(piece.n_atoms)
    out = np.full(piece.n_atoms, NOBODY)
    if screened is not None:
        out = choice.from_lists(screened, uniform)
        left = np.flatnonzero(out == NOBODY)
    if len(left):
        whole = len(left) == piece.n_atoms
        log_lik = model.observation.expected_log_lik(drawn.observation, piece if whole else piece.take(left))
        out[left] = (choice if whole else choice.rows(left)).from_all(log_lik, uniform[left])
    if (out == NOBODY).any():
        raise NumericalError(
            f"{piece.name}: the log likelihood of an atom is not finite under any cluster; rescale the columns"
        )
    return out


def statistics(model: Model, ids: np.ndarray, atoms: Batch, places: np.ndarray) -> Summary:
    """Summary of atoms whose clusters are at these ``places (n,)``."""
    resp = RaggedResp(np.arange(len(places) + 1), places, np.ones(len(places)), len(ids))
    total = model.summarize(ids, atoms, resp)
    certain = as_a(model.allocation, SampledAllocation).certain_values(cluster_sums(resp))
    return replace(total, values={**total.values, **certain})
