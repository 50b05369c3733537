"""Visit of one batch by all chains: reading, labels, statistics, and the handling of a batch that went bad."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from bnp_dask.allocation import SampledStates
from bnp_dask.core import Batch, Summary
from bnp_dask.errors import DataError
from bnp_dask.inference.chains import Pins, empty_of_chain
from bnp_dask.inference.state import State, Work
from bnp_dask.inference.visit import Request, request_of, visit
from bnp_dask.model import Model
from bnp_dask.structure import sequence_offsets, sequence_weights

ASSIGN, PIN, WEIGHTS, PARAMETERS, RESEAT, ROUND, ALLOCATE, DECIDE, TABLE = range(9)
"""Purposes of random numbers."""


def generator(seed: int, chain: int, lap: int, purpose: int, batch: int = 0) -> np.random.Generator:
    """Random numbers of a chain that depend on the seed, the lap, the batch and their purpose, and on nothing else."""
    key = (*b"gibbs", chain, lap, purpose, batch)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


class Numbered(Protocol):
    """Numbers of a chain and of a lap, from 0: with the seed and the batch they are the key of all random numbers."""

    @property
    def chain(self) -> int:
        """Number of the chain."""
        ...

    @property
    def lap(self) -> int:
        """Number of the lap."""
        ...


class Known(Numbered, Protocol):
    """Clusters of one chain that a visit starts from."""

    @property
    def ids(self) -> np.ndarray:
        """Clusters, ``(K,)``."""
        ...


@dataclass(frozen=True, eq=False)
class Labels:
    """Clusters of the atoms of a batch in one chain: ``names[places]`` are their ids, ``(n,)``."""

    names: np.ndarray
    places: np.ndarray

    @staticmethod
    def of(ids: np.ndarray, places: np.ndarray) -> Labels:
        """Labels from places ``(n,)`` among all clusters ``ids (K,)``, stored in as few bytes as possible."""
        used = np.bincount(places, minlength=len(ids)) > 0
        fewest = np.min_scalar_type(max(int(used.sum()) - 1, 0))
        return Labels(ids[used], (np.cumsum(used) - 1).astype(fewest)[places])

    @property
    def ids(self) -> np.ndarray:
        """Id of each atom's cluster, ``(n,)`` int64."""
        return self.names[self.places]

    def renamed(self, into: Mapping[int, int]) -> Labels:
        """Labels with some clusters in others; a name may then occur twice."""
        return Labels(np.array([into.get(int(name), int(name)) for name in self.names], np.int64), self.places)

    def places_in(self, ids: np.ndarray, atoms: Batch, n_tokens: int | None = None) -> np.ndarray:
        """Place of each atom's cluster among ``ids``, which contain all of them, ``(n,)``; labels of ``n_tokens``.

        Raises
        ------
        DataError
            The number of atoms in the batch differs from the number of labels.
        """
        n, noun = (atoms.n_atoms, "atoms") if n_tokens is None else (n_tokens, "tokens")
        if len(self.places) != n:
            raise DataError(
                f"{atoms.name}: {n} {noun}, but {len(self.places)} in the last sweep; the data have changed under the "
                "run"
            )
        return positions(ids, self.names)[self.places]


@dataclass(frozen=True, eq=False)
class Assigned:
    """A batch in one chain after a visit.

    Parameters
    ----------
    summary
        Statistics by cluster; clusters that the batch opened come last.
    pins
        Atom of the batch in each cluster of ``summary`` that the next sweep may keep in its place.
    labels
        Cluster of each atom, or of each token.
    of_rows
        Id of the largest topic of each document, ``(n,)``, -1 for one without tokens; None if labels are of rows.
    opened
        The top level's weights of the topics that the batch opened.
    """

    summary: Summary
    pins: Pins
    labels: Labels
    of_rows: np.ndarray | None = None
    opened: np.ndarray = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, eq=False)
class Swept:
    """A batch after a visit by every chain.

    Parameters
    ----------
    chains
        Result of each chain.
    rows
        Ids of the clusters of the requested rows, ``(chains, R)``; -1 for a row of weight zero.
    lost
        Why the batch is left out; empty if it is used.
    """

    chains: tuple[Assigned, ...]
    rows: np.ndarray
    lost: str = ""


Assign = Callable[[Model, Any, Batch, Request, Labels | None], Assigned]
"""Draws clusters for the atoms of a batch in one chain: model, clusters known, atoms, request, labels before."""


def visited(
    model: Model,
    known: Sequence[Known],
    request: Request,
    rows: np.ndarray,
    before: tuple[Labels, ...] | None,
    assign: Assign,
) -> Swept:
    """Read a batch and draw a cluster for each atom in every chain.

    ``rows (R,)`` are the rows whose clusters are noted; ``before`` are the labels of the last sweep.
    """

    def drawn(batch: Batch) -> Swept:
        by_sequence = isinstance(model.allocation, SampledStates)
        atoms = repeated(batch, by_sequence)
        held = before if before is not None else (None,) * len(known)
        found = tuple(assign(model, one, atoms, request, b) for one, b in zip(known, held, strict=True))
        return Swept(found, _labels_of_rows(found, first_atoms(batch, rows, by_sequence)))

    return visit(model, request, drawn, lambda why: _lost(model, known, rows, why))


def _labels_of_rows(found: tuple[Assigned, ...], first: np.ndarray) -> np.ndarray:
    """Clusters of some rows whose first atoms are ``first (R,)``, -1 for none."""
    out, there = np.full((len(found), len(first)), -1), first >= 0
    ids = [one.labels.ids if one.of_rows is None else one.of_rows for one in found]
    out[:, there] = [own[first[there]] for own in ids]
    return out


def first_atoms(batch: Batch, rows: np.ndarray, by_sequence: bool = False) -> np.ndarray:
    """First atom of each of some rows after rows, or sequences, are repeated, ``(R,)``; -1 for weight zero."""
    if batch.weights is None:
        return rows
    times = batch.weights.astype(np.int64)
    if not by_sequence:
        return np.where(times > 0, np.cumsum(times) - times, -1)[rows]
    offsets = sequence_offsets(batch)
    lengths = np.diff(offsets)
    group = np.repeat(np.arange(len(lengths)), lengths)
    held = sequence_weights(batch, offsets).astype(np.int64) * lengths
    place = (np.cumsum(held) - held)[group] + np.arange(batch.n_atoms) - offsets[group]
    return np.where(times > 0, place, -1)[rows]


def _lost(model: Model, known: Sequence[Known], rows: np.ndarray, why: str) -> Swept:
    nothing = Labels(np.zeros(0, np.int64), np.zeros(0, np.uint8))
    found = tuple(Assigned(empty_of_chain(model, one.ids), Pins.none(len(one.ids)), nothing) for one in known)
    return Swept(found, np.full((len(known), len(rows)), -1), why)


def repeated(batch: Batch, by_sequence: bool = False) -> Batch:
    """Batch with each atom or sequence repeated by its weight; DataError for weights that are not whole numbers."""
    if batch.weights is None:
        return batch
    times = batch.weights.astype(np.int64)
    if (times != batch.weights).any():
        row = int(np.argmax(times != batch.weights))
        raise DataError(
            f"{batch.name}: row {row} has weight {batch.weights[row]:g}; Gibbs() draws a cluster for every atom, so "
            "that weights are how often an atom is there: whole numbers. Use another schedule, or leave weights out"
        )
    if by_sequence:
        whole = sequence_weights(batch, sequence_offsets(batch)).astype(np.int64)
        return replace(batch.take_groups(np.repeat(np.arange(batch.n_groups), whole)), weights=None)
    return replace(batch.take(np.repeat(np.arange(batch.n_atoms), times)), weights=None)


def pins_of(known: Numbered, request: Request, places: np.ndarray, n_clusters: int) -> Pins:
    """Atom of a batch in each cluster whose random number is least, for the next lap."""
    number = generator(request.seed, known.chain, known.lap + 1, PIN, request.batch).random(len(places))
    least, row = np.full(n_clusters, np.inf), np.full(n_clusters, -1)
    np.minimum.at(least, places, number)
    own = np.flatnonzero(number == least[places])[::-1]  # the first of equals
    row[places[own]] = own
    return Pins(least, np.where(row >= 0, request.batch, -1), row)


def positions(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Positions of the ``wanted`` ids, all of which are among ``ids``, ``(J,)``."""
    order = np.argsort(ids, kind="stable")
    return order[np.searchsorted(ids, wanted, sorter=order)]


# -- the coordinator ----------------------------------------------------------------------------------------------
def visit_of(work: Work, state: State, batch: int) -> tuple[Any, ...]:
    """Request, noted rows and labels of a visit to a batch."""
    assert state.sampler is not None
    noted = state.sampler.noted
    rows = noted[noted[:, 0] == batch, 1] if batch not in state.lost else np.zeros(0, np.int64)
    return request_of(work, state, batch), rows, labels_of(work, state, batch, len(state.sampler.chains))


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
