"""The task that opens clusters and gives them up: atoms of one batch, each seated again given all others.

Weights and parameters are integrated out, so that a new cluster is one more choice.  Clusters of documents are drawn
from their conditional distribution.  For other likelihoods, clusters are proposed to a few atoms at a time given the
data without them, in one pass over arrays, and each proposal is accepted by the Metropolis-Hastings rule; if it is the
atom's own cluster, the most frequent case, there is nothing to accept.  In a batch that is a large part of the data, a
few atoms chosen at random are seated again, and the others are swept before that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bnp_dask.allocation.base import UrnAllocation
from bnp_dask.core.batch import Batch
from bnp_dask.core.finite import require_finite_arrays
from bnp_dask.core.summary import Summary, add_in_place
from bnp_dask.inference.sampling.proposals import reseat_few
from bnp_dask.inference.sampling.sweep import Drawn, drawn_places
from bnp_dask.inference.sampling.visit import RESEAT, Assigned, Labels, Swept, generator, pins_of, statistics, visited
from bnp_dask.inference.visit import Request
from bnp_dask.inputs.protocols import as_a
from bnp_dask.kernels.streaming.reseating import reseat_counts
from bnp_dask.kernels.streaming.split_merge import split_and_merge
from bnp_dask.kernels.streaming.urn import Urn
from bnp_dask.model import Model
from bnp_dask.observation import Multinomial
from bnp_dask.observation.checks import as_csr

CHUNK_SHARE = 1 / 16
"""Share of all atoms to which clusters are proposed at once, given the others; draws are exact for any share.

6,000 points of four features about twelve centers, four batches, two chains of 300 laps: shares of 1/64,
1/16, 1/4 took 30, 18, 18 ms a lap, and the number of clusters stayed correlated for 11.3, 11.8, 11.1 laps."""

SEATED_SHARE, LEAST_SEATED = 1 / 32, 1000
"""Atoms that are seated again in a lap, at most: this share of all, or this number if it is more.

40,000 points of 16 and of four features and diagonal ones, four batches: shares of 1, 1/16, 1/32 leave sweeps of a
Dirichlet process at 0.56, 0.43, 0.35; 0.75, 0.59, 0.63; and 0.84, 0.66, 0.75 of the speed of laps.  The fewer atoms are
seated, the longer the number of clusters stays correlated (6,000 points: 0.21, 0.38, 0.41 CPU seconds) and the shorter
pairs of atoms do (0.63, 0.43, 0.16).  Hence few data are all seated."""

SPLIT_SHARE = 1 / 32
"""Splits and unions of clusters of documents attempted in a lap, as a share of the documents.

KOS, split 1, from one cluster: after 7 to 8 CPU seconds shares of 1/128, 1/32, 1/8 are at log probabilities of
-1,372,250, -1,370,820 and about -1,370,900; 86 attempts cost a quarter of seating all documents."""


def is_counted(model: Model) -> bool:
    """Whether atoms are documents, which a compiled loop seats again at less than the cost of a sweep."""
    return isinstance(model.observation, Multinomial)


@dataclass(frozen=True, eq=False)
class Others:
    """The atoms of all other batches in one chain.

    Parameters
    ----------
    chain, lap
        Numbers from 0; with the seed and the batch they are the key of all random numbers.
    summary
        Their statistics; clusters that only the batch itself holds are included, and empty.
    next_id
        Id of the next cluster.
    drawn
        The clusters with which the other batches were swept; None if all atoms are seated again.
    """

    chain: int
    lap: int
    summary: Summary
    next_id: int
    drawn: Drawn | None = None

    @property
    def ids(self) -> np.ndarray:
        """Clusters, ``(K,)``."""
        return self.summary.ids


def reseat(
    model: Model, others: tuple[Others, ...], request: Request, rows: np.ndarray, before: tuple[Labels, ...] | None
) -> Swept:
    """The task: read a batch and seat its atoms again, in every chain."""
    return visited(model, others, request, rows, before, seat_again)


def seat_again(model: Model, others: Others, atoms: Batch, request: Request, before: Labels | None) -> Assigned:
    """Draw a cluster for each of some atoms given the clusters of all others."""
    assert before is not None
    places = before.places_in(others.ids, atoms).astype(np.int64)
    rng = generator(request.seed, others.chain, others.lap, RESEAT, request.batch)
    rows = _seated(model, len(places), float(others.summary["N"].sum()), rng)
    swept = np.delete(np.arange(len(places)), rows)
    if len(swept):
        assert others.drawn is not None
        places[swept] = np.concatenate([own for _, own in drawn_places(model, others.drawn, atoms, request)])[swept]
    kept = _statistics(model, others.ids, atoms.take(swept), places[swept])
    few, own = atoms if not len(swept) else atoms.take(rows), places[rows]
    rest = others.summary + kept
    k = rest.n_clusters
    if len(own) and rest["N"].sum() + len(own) > 1.0:
        draw = _reseat_counts if is_counted(model) else _reseat_any
        k = draw(model, rest, few, own, rng)
    places[rows] = own
    new = others.next_id + np.arange(k - len(others.ids))
    ids = np.concatenate([others.ids, new])
    held = kept.insert_empty(new) + _statistics(model, ids, few, own)
    require_finite_arrays(held.values, f"{atoms.name}: statistic", held.ids)
    return Assigned(held, pins_of(others, request, places, k), Labels.of(ids, places))


def _seated(model: Model, n_atoms: int, n_others: float, rng: np.random.Generator) -> np.ndarray:
    """Rows of a batch that are seated again, in increasing order, ``(m,)``; all others are swept."""
    most = n_atoms if is_counted(model) else max(LEAST_SEATED, math.ceil(SEATED_SHARE * (n_atoms + n_others)))
    if n_atoms <= most:
        return np.arange(n_atoms)
    return np.sort(rng.choice(n_atoms, most, replace=False))


def _statistics(model: Model, ids: np.ndarray, atoms: Batch, places: np.ndarray) -> Summary:
    total, start = model.empty_summary(ids), 0
    for tile in model.allocation.tiles(atoms, len(ids)):
        add_in_place(total, statistics(model, ids, tile, places[start : start + tile.n_atoms]))
        start += tile.n_atoms
    return total


def urn_of(model: Model) -> Urn:
    """Predictive rule of a model; its :meth:`~bnp_dask.kernels.streaming.urn.Urn.given` is exact, also
    if a filter uses an approximation."""
    return as_a(model.allocation, UrnAllocation).urn


def _reseat_counts(model: Model, rest: Summary, atoms: Batch, places: np.ndarray, rng: np.random.Generator) -> int:
    counts, n = as_csr(atoms), len(places)
    whole = rest + _statistics(model, rest.ids, atoms, places)
    rows = (counts.indptr.astype(np.int64), counts.indices.astype(np.int64), np.asarray(counts.data, np.float64))
    prior = np.ascontiguousarray(as_a(model.observation, Multinomial).lam, np.float64)
    rule = urn_of(model).given(whole["N"], rng).packed()
    if whole["N"].sum() == n > 1:  # no cluster has documents elsewhere
        state, tries = rng.integers(1, 2**63, 1).astype(np.uint64), math.ceil(SPLIT_SHARE * n)
        k = int(split_and_merge(rows, prior, rule, places, whole.n_clusters, tries, state))
        more = int(whole.ids.max(initial=-1)) + 1 + np.arange(k - whole.n_clusters)
        whole = _statistics(model, np.concatenate([whole.ids, more]), atoms, places)
    table = whole["x"]
    tables = (np.ascontiguousarray(table.T), table.sum(axis=1), whole["N"].copy())
    order, uniform = rng.permutation(n), rng.random(n)
    return int(reseat_counts(rows, prior, rule, tables, places, order, uniform))


def _reseat_any(model: Model, rest: Summary, atoms: Batch, places: np.ndarray, rng: np.random.Generator) -> int:
    n, k = len(places), rest.n_clusters
    order, uniform = rng.permutation(n), rng.random((3, n))
    own = np.bincount(places, minlength=k).astype(np.float64)
    seats = urn_of(model).given(rest["N"] + own, rng)
    chunks = np.array_split(order, min(n, math.ceil(n / (CHUNK_SHARE * (rest["N"].sum() + n)))))
    whole = rest if len(chunks) == 1 else rest + _statistics(model, rest.ids, atoms, places)
    for rows in chunks:
        few = atoms.take(rows)
        base = rest if len(chunks) == 1 else _without(whole, statistics(model, whole.ids, few, places[rows]))
        places[rows], k = reseat_few(model, seats, base, few, places[rows], uniform[:, rows])
        if len(chunks) > 1:
            base = base.insert_empty(int(whole.ids.max(initial=-1)) + 1 + np.arange(k - base.n_clusters))
            whole = base + statistics(model, base.ids, few, places[rows])
    return k


def _without(whole: Summary, own: Summary) -> Summary:
    """Statistics minus the statistics of some atoms; exactly zero for clusters that hold no other atom."""
    rest = whole - own
    empty = rest["N"] < 0.5
    for name, declared in rest.fields.items():
        if declared.dims[:1] == ("cluster",):
            rest.values[name][empty] = 0.0
    return rest
