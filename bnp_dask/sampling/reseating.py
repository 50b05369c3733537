"""The task that opens clusters and gives them up: the atoms of one batch, each seated again given all others.

Weights and parameters are integrated out, so that a cluster which no atom has come from yet is one more choice.
Documents are drawn from their conditional distribution.  Atoms of other likelihoods are proposed a cluster given the
data without a few of them, in one pass of arrays, and the proposal is accepted as Metropolis & Hastings have it; where
the cluster is that which the atom is in, which is most often so, there is nothing to accept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bnp_dask.allocation.base import UrnAllocation
from bnp_dask.core.batch import Batch
from bnp_dask.core.finite import require_finite_arrays
from bnp_dask.core.summary import Summary, add_in_place
from bnp_dask.data.base import Reader
from bnp_dask.inputs.protocols import as_a
from bnp_dask.kernels.streaming.reseating import reseat_counts
from bnp_dask.kernels.streaming.urn import Urn
from bnp_dask.model import Model
from bnp_dask.observation import Multinomial
from bnp_dask.observation.checks import as_csr
from bnp_dask.sampling.proposals import reseat_few
from bnp_dask.sampling.visit import RESEAT, Assigned, Labels, Swept, Task, generator, pins_of, statistics, visited

CHUNK_SHARE = 1 / 16
"""Share of all atoms that are proposed clusters at once, given the others.  A first guess; draws are exact for any."""


@dataclass(frozen=True, eq=False)
class Others:
    """The atoms of all other batches in one chain.

    Parameters
    ----------
    chain, lap
        Numbers from 0; with the seed and the batch they are the key of all random numbers.
    summary
        Their statistics; clusters that only the batch itself has are there, and hold nothing.
    next_id
        Id of the next cluster.
    """

    chain: int
    lap: int
    summary: Summary
    next_id: int

    @property
    def ids(self) -> np.ndarray:
        """Clusters, ``(K,)``."""
        return self.summary.ids


def reseat(
    model: Model, others: tuple[Others, ...], reader: Reader, task: Task, before: tuple[Labels, ...] | None
) -> Swept:
    """The task: read a batch and seat its atoms again, in every chain."""
    return visited(model, others, reader, task, before, seat_again)


def seat_again(model: Model, others: Others, atoms: Batch, task: Task, before: Labels | None) -> Assigned:
    """Draw a cluster for each of some atoms given those of all others."""
    assert before is not None
    places = before.places_in(others.ids, atoms).astype(np.int64)
    whole = others.summary + _statistics(model, others.ids, atoms, places)
    rng = generator(task.seed, others.chain, others.lap, RESEAT, task.number)
    k = others.summary.n_clusters
    if whole["N"].sum() > 1.0 and len(places):
        draw = _reseat_counts if isinstance(model.observation, Multinomial) else _reseat_any
        k = draw(model, whole, atoms, places, rng)
    ids = np.concatenate([others.ids, others.next_id + np.arange(k - len(others.ids))])
    own = _statistics(model, ids, atoms, places)
    require_finite_arrays(own.values, f"{atoms.name}: statistic", own.ids)
    return Assigned(own, pins_of(others, task, places, k), Labels.of(ids, places))


def _statistics(model: Model, ids: np.ndarray, atoms: Batch, places: np.ndarray) -> Summary:
    total, start = model.empty_summary(ids), 0
    for tile in model.allocation.tiles(atoms, len(ids)):
        add_in_place(total, statistics(model, ids, tile, places[start : start + tile.n_atoms]))
        start += tile.n_atoms
    return total


def urn_of(model: Model) -> Urn:
    """Predictive rule of a model, whatever approximation a filter takes."""
    urn = as_a(model.allocation, UrnAllocation).urn
    return Urn(urn.a, urn.sigma, urn.tau)


def _reseat_counts(model: Model, whole: Summary, atoms: Batch, places: np.ndarray, rng: np.random.Generator) -> int:
    counts, urn = as_csr(atoms), urn_of(model)
    rows = (counts.indptr.astype(np.int64), counts.indices.astype(np.int64), np.asarray(counts.data, np.float64))
    prior = np.ascontiguousarray(as_a(model.observation, Multinomial).lam, np.float64)
    table = whole["x"]
    tables = (np.ascontiguousarray(table.T), table.sum(axis=1), whole["N"].copy())
    order, uniform = rng.permutation(len(places)), rng.random(len(places))
    return int(reseat_counts(rows, prior, (urn.a, urn.sigma, urn.tau), tables, places, order, uniform))


def _reseat_any(model: Model, whole: Summary, atoms: Batch, places: np.ndarray, rng: np.random.Generator) -> int:
    n = len(places)
    order, uniform = rng.permutation(n), rng.random((3, n))
    for rows in np.array_split(order, min(n, math.ceil(n / (CHUNK_SHARE * whole["N"].sum())))):
        own = statistics(model, whole.ids, atoms.take(rows), places[rows])
        base = _without(whole, own)
        few = atoms.take(rows)
        places[rows], k = reseat_few(model, urn_of(model), base, few, places[rows], uniform[:, rows])
        base = base.insert_empty(int(whole.ids.max(initial=-1)) + 1 + np.arange(k - base.n_clusters))
        whole = base + statistics(model, base.ids, few, places[rows])
    return whole.n_clusters


def _without(whole: Summary, own: Summary) -> Summary:
    """Statistics without those of some atoms; exactly nothing of clusters that hold no other."""
    rest = whole - own
    empty = rest["N"] < 0.5
    for name, declared in rest.fields.items():
        if declared.dims[:1] == ("cluster",):
            rest.values[name][empty] = 0.0
    return rest
