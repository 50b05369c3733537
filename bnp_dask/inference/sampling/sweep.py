"""The task of a sweep: one batch, each atom assigned to a cluster drawn given weights and parameters.

If the number of clusters is unbounded, a sweep keeps it: one atom of each cluster, chosen uniformly, stays in its
place, and all others move among the existing clusters.  The choice has probability ``prod 1 / n_k``, which weights the
partitions before and after.  A variate ``t_k ~ Exponential(n_k)`` of each cluster compensates for it, so that weights
are ``J_k exp(-t_k)``, with J the jumps given the partition.  Clusters are opened and given up by
:mod:`bnp_dask.inference.sampling.reseating`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnp_dask.core import Batch, add_in_place, require_finite_arrays
from bnp_dask.errors import NumericalError
from bnp_dask.inference.chains import Pins
from bnp_dask.inference.sampling.visit import ASSIGN, Assigned, Labels, Swept, generator, pins_of, visited
from bnp_dask.inference.sides import statistics
from bnp_dask.inference.visit import Request
from bnp_dask.inputs import as_a
from bnp_dask.kernels import NOBODY, ScreenedWeights, choose_among_all, choose_from_lists
from bnp_dask.model import Model
from bnp_dask.observation import QuadraticObservation
from bnp_dask.structure import screened_pieces


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
    log_weight
        Log weights of the clusters, not normalized, ``(K,)``.
    pins
        Atom of each cluster that stays in its place; None: all move.
    """

    chain: int
    lap: int
    ids: np.ndarray
    observation: Any
    log_weight: np.ndarray
    pins: Pins | None


def sweep(
    model: Model, drawn: tuple[Drawn, ...], request: Request, rows: np.ndarray, before: tuple[Labels, ...] | None
) -> Swept:
    """The task: read a batch and draw a cluster for each atom in every chain."""
    return visited(model, drawn, request, rows, before, assign)


def assign(model: Model, drawn: Drawn, atoms: Batch, request: Request, before: Labels | None) -> Assigned:
    """Draw a cluster for each of some atoms; ``before`` are their former clusters."""
    if before is not None:
        before.places_in(drawn.ids, atoms)
    total, labels = model.empty_summary(drawn.ids), [np.zeros(0, np.int64)]
    for piece, places in drawn_places(model, drawn, atoms, request):
        labels.append(places)
        add_in_place(total, statistics(model, drawn.ids, piece, places))
    require_finite_arrays(total.values, f"{atoms.name}: statistic", total.ids)
    places = np.concatenate(labels)
    return Assigned(total, pins_of(drawn, request, places, len(drawn.ids)), Labels.of(drawn.ids, places))


def drawn_places(model: Model, drawn: Drawn, atoms: Batch, request: Request) -> Iterator[tuple[Batch, np.ndarray]]:
    """Pieces of a batch, in the order of rows, with the places of the clusters drawn for their atoms."""
    uniform = generator(request.seed, drawn.chain, drawn.lap, ASSIGN, request.batch).random(atoms.n_atoms)
    pinned = np.full(atoms.n_atoms, NOBODY)
    if drawn.pins is not None:
        held = np.flatnonzero(drawn.pins.batch == request.batch)
        pinned[drawn.pins.row[held]] = held
    start = 0
    for piece, screened in _pieces(model, drawn, atoms):
        own = slice(start, start + piece.n_atoms)
        chosen = _chosen(model, drawn, piece, screened, uniform[own])
        yield piece, np.where(pinned[own] == NOBODY, chosen, pinned[own])
        start += piece.n_atoms


def _pieces(model: Model, drawn: Drawn, atoms: Batch) -> Iterator[tuple[Batch, ScreenedWeights | None]]:
    """Tiles in the order of rows, with the weights of the clusters that matter; None if all clusters are considered."""
    if not model.screens:
        for tile in model.allocation.tiles(atoms, len(drawn.ids)):
            yield tile, None
        return
    forms = as_a(model.observation, QuadraticObservation).forms(drawn.observation)
    for piece, screened in screened_pieces(drawn, forms, drawn.log_weight, atoms, model.marginalises):
        if screened is not None:
            yield piece, screened
            continue
        for tile in model.allocation.tiles(piece, len(drawn.ids)):
            yield tile, None


def _chosen(
    model: Model, drawn: Drawn, piece: Batch, screened: ScreenedWeights | None, uniform: np.ndarray
) -> np.ndarray:
    """Places of the clusters of some atoms."""
    left = np.arange(piece.n_atoms)
    out = np.full(piece.n_atoms, NOBODY)
    if screened is not None:
        out = choose_from_lists(screened, uniform)
        left = np.flatnonzero(out == NOBODY)
    if len(left):
        whole = len(left) == piece.n_atoms
        log_lik = model.observation.expected_log_lik(drawn.observation, piece if whole else piece.take(left))
        out[left] = choose_among_all(log_lik, drawn.log_weight, uniform[left])
    if (out == NOBODY).any():
        raise NumericalError(
            f"{piece.name}: the log likelihood of an atom is not finite under any cluster; rescale the columns"
        )
    return out
