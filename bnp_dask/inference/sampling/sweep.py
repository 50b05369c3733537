"""Tasks of a sweep: atoms of one batch assigned given weights and parameters, or seated again given all other atoms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bnp_dask.allocation import UrnAllocation
from bnp_dask.core import Batch, Summary, add_in_place, require_finite_arrays
from bnp_dask.errors import NumericalError
from bnp_dask.inference.chains import Pins
from bnp_dask.inference.sampling.visit import ASSIGN, RESEAT, Assigned, Labels, Swept, generator, pins_of, visited
from bnp_dask.inference.sides import statistics
from bnp_dask.inference.visit import Request
from bnp_dask.inputs import as_a
from bnp_dask.kernels import (
    NOBODY,
    ScreenedWeights,
    Seats,
    Urn,
    choose_among_all,
    choose_from_lists,
    propose,
    reseat_counts,
    split_and_merge,
)
from bnp_dask.model import Model
from bnp_dask.observation import Density, Multinomial, QuadraticObservation, as_csr, sequential_predictive
from bnp_dask.structure import screened_pieces

# =====================================================================================================================
# The task of a sweep: one batch, each atom assigned to a cluster drawn given weights and parameters.
#
# If the number of clusters is unbounded, a sweep keeps it: one atom of each cluster, chosen uniformly, stays in its
# place, and all others move among the existing clusters.  The choice has probability ``prod 1 / n_k``, which weights
# the partitions before and after.  A variate ``t_k ~ Exponential(n_k)`` of each cluster compensates for it, so that
# weights are ``J_k exp(-t_k)``, with J the jumps given the partition.  Clusters are opened and given up by
# :mod:`bnp_dask.inference.sampling.sweep`.
# =====================================================================================================================


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


# =====================================================================================================================
# The task that opens clusters and gives them up: atoms of one batch, each seated again given all others.
#
# Weights and parameters are integrated out, so that a new cluster is one more choice.  Clusters of documents are drawn
# from their conditional distribution.  For other likelihoods, clusters are proposed to a few atoms at a time given the
# data without them, in one pass over arrays, and each proposal is accepted by the Metropolis-Hastings rule; if it is
# the atom's own cluster, the most frequent case, there is nothing to accept.  In a batch that is a large part of the
# data, a few atoms chosen at random are seated again, and the others are swept before that.
# =====================================================================================================================

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
    """Predictive rule of a model; its :meth:`~bnp_dask.kernels.predictive.urns.Urn.given` is exact, also
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


# -- clusters proposed to a few atoms ------------------------------------------------------------------------------
NEW = -1
"""Position of a cluster that holds no other atom."""


def reseat_few(
    model: Model, seats: Seats, base: Summary, atoms: Batch, places: np.ndarray, uniform: np.ndarray
) -> tuple[np.ndarray, int]:
    """Move a few atoms between clusters, one after the other.

    A cluster is proposed to each from its conditional distribution given the atoms of ``base``.  A cluster that holds
    others of the few but no atom of ``base`` may be proposed too, with the prior's density in place of its own.  The
    proposal does not depend on the atom's current cluster.  So its acceptance probability is
    ``min(1, p(new) q(old) / (p(old) q(new)))``.

    Parameters
    ----------
    model, seats
        Model, and the weights of clusters by numbers of atoms.
    base
        Statistics of all other atoms, K clusters.
    atoms, places
        The few, and positions of their clusters, ``(m,)``.
    uniform
        Numbers in [0, 1), ``(3, m)``.

    Returns
    -------
    places, n_clusters
        Positions after the moves, and the number of positions; some clusters may be empty.
    """
    moves = _Moves.of(model, seats, base, atoms, places, uniform[0])
    settled = (np.array(moves.proposed) == places) & (base["N"][places] > 0.0)
    for i in moves.in_turn(settled, uniform[1]):
        moves.turn(i, float(uniform[1, i]), float(uniform[2, i]))
    return np.array(moves.places, np.int64), len(moves.counts)


@dataclass
class _Moves:
    """Clusters of the few atoms, and the proposal to each.

    By cluster: ``counts`` of all atoms, ``held`` atoms of the base, ``members`` among the few.  By atom: ``proposed``
    position given the base (K: a new cluster); ``odds``, the sum of the weights it was drawn from over its density
    under the prior; ``fresh``, the log of that density; ``here`` and ``there``, its log densities given the base under
    its first cluster and under the proposed one.
    """

    seats: Seats
    density: Density
    n_known: int
    places: list[int]
    counts: list[float]
    held: list[float]
    members: list[list[int]]
    proposed: list[int]
    odds: list[float]
    fresh: list[float]
    here: list[float]
    there: list[float]
    log_price: float
    occupied: int
    spare: int
    prices: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: Model, seats: Seats, base: Summary, atoms: Batch, places: np.ndarray, uniform: np.ndarray
    ) -> _Moves:
        held, k = base["N"], base.n_clusters
        own = np.bincount(places, minlength=k)
        by_cluster = np.split(np.argsort(places, kind="stable"), np.cumsum(own)[:-1])
        rest = float(held.sum()) + len(places) - 1.0
        price = seats.price(rest, float(np.sum(held > 0.0)))
        weight = np.append(np.where(held > 0.0, seats.weight(held), 0.0), price)
        columns, density = _columns(model, base, atoms, places, weight, uniform)
        proposed, level, fresh, here, there = columns
        odds = np.exp(np.minimum(level - fresh, 700.0))
        return cls(
            seats=seats,
            density=density,
            n_known=k,
            places=places.tolist(),
            counts=(held + own).tolist(),
            held=held.tolist(),
            members=[rows.tolist() for rows in by_cluster],
            proposed=proposed.tolist(),
            odds=odds.tolist(),
            fresh=fresh.tolist(),
            here=here.tolist(),
            there=there.tolist(),
            log_price=math.log(price),
            occupied=int(np.sum(held + own > 0.0)),
            spare=int(own[held == 0.0].sum()),
        )

    def in_turn(self, settled: np.ndarray, first: np.ndarray) -> Iterator[int]:
        """Atoms to which a cluster other than their own is proposed, in order, while others move.

        ``settled (m,)`` marks atoms whose proposal given the base is their own cluster: there is nothing to accept
        unless others of the few hold clusters without atoms of the base.
        """
        others, i = np.flatnonzero(~settled), 0
        while i < len(settled):
            if not self.spare:
                after = int(np.searchsorted(others, i))
                if after == len(others):
                    return
                i = int(others[after])
            if not settled[i] or first[i] < self.share_of_few(i, self.spare):
                yield i
            i += 1

    def turn(self, i: int, first: float, last: float) -> None:
        """Propose a cluster to an atom and move it there, or not."""
        place = self.places[i]
        now = place if self.counts[place] > 1.0 else NEW
        target, there = self._target(i, place, first)
        if target == now:
            return
        rise = self._excess(i, target, there) - self._excess(i, now, self.here[i])
        if rise >= 0.0 or last < math.exp(rise):
            self._move(i, place, target)

    def _target(self, i: int, place: int, uniform: float) -> tuple[int, float]:
        """Proposed position, and the log density of the atom there given the base."""
        spare = self.spare - (self.held[place] == 0.0)
        share = self.share_of_few(i, spare)
        if uniform < share:
            left = int(uniform / share * spare)
            for k, own in enumerate(self.members):
                size = len(own) - (k == place) if self.held[k] == 0.0 else 0
                if left < size:
                    return k, self.fresh[i]
                left -= size
        target = self.proposed[i]
        return (NEW if target == self.n_known else target), self.there[i]

    def share_of_few(self, i: int, spare: int) -> float:
        """Probability of proposing the cluster of another of the few; ``spare`` others share no cluster with the
        base."""
        return spare / (spare + self.odds[i]) if spare else 0.0

    def _excess(self, i: int, k: int, of_base: float) -> float:
        """Log of the conditional probability of a cluster over its proposal probability, up to a constant."""
        if k == NEW:
            alone = self.counts[self.places[i]] == 1.0
            return self._price(self.occupied - alone) - self.log_price
        others = [j for j in self.members[k] if j != i]
        if not others:
            return 0.0
        count = self.held[k] + len(others)
        density = self.density(i, k if self.held[k] > 0.0 else self.n_known, others)
        if self.held[k] == 0.0:
            proposed = math.log(count) + self.fresh[i]
        else:
            proposed = self._log_weight(self.held[k]) + of_base
        return self._log_weight(count) + density - proposed

    def _price(self, occupied: int) -> float:
        """Log weight of a new cluster, if the weight of any other is its count minus the discount."""
        if occupied not in self.prices:
            self.prices[occupied] = math.log(self.seats.price(sum(self.counts) - 1.0, float(occupied)))
        return self.prices[occupied]

    def _log_weight(self, count: float) -> float:
        """Log weight of a cluster of so many atoms."""
        return math.log(self.seats.weight_at(count))

    def _move(self, i: int, place: int, target: int) -> None:
        if target == NEW:
            target = len(self.counts)
            self.counts.append(0.0)
            self.held.append(0.0)
            self.members.append([])
        self.occupied += (self.counts[target] == 0.0) - (self.counts[place] == 1.0)
        self.spare += (self.held[target] == 0.0) - (self.held[place] == 0.0)
        self.counts[place] -= 1.0
        self.counts[target] += 1.0
        self.members[place].remove(i)
        self.members[target].append(i)
        self.places[i] = target


def _columns(
    model: Model, base: Summary, atoms: Batch, places: np.ndarray, weight: np.ndarray, uniform: np.ndarray
) -> tuple[tuple[np.ndarray, ...], Density]:
    """Proposals given the base, logs of sums, and three log densities of each atom, as in :class:`_Moves`; and the
    density of each atom in clusters that hold others of the few."""
    observation, m, k = model.observation, atoms.n_atoms, base.n_clusters
    base = base.insert_empty([int(base.ids.max(initial=-1)) + 1])
    params = observation.global_step(base)
    proposed, level, fresh = np.empty(m, np.int64), np.empty(m), np.empty(m)
    here, there, start = np.empty(m), np.empty(m), 0
    for tile in model.allocation.tiles(atoms, k + 1):
        own = slice(start, start + tile.n_atoms)
        table = np.ascontiguousarray(observation.log_predictive(params, tile), np.float64)
        propose(table, weight, uniform[own], proposed[own], level[own])
        rows = np.arange(tile.n_atoms)
        here[own], there[own], fresh[own] = table[rows, places[own]], table[rows, proposed[own]], table[:, k]
        start += tile.n_atoms
    return (proposed, level, fresh, here, there), density_of(model, base, params, atoms)


def density_of(model: Model, base: Summary, params: Any, atoms: Batch) -> Density:
    """The density of some atoms in the clusters of a summary.

    Parameters
    ----------
    model
        Its likelihood may have a closed form; otherwise summaries are used.
    base, params
        Statistics of the clusters without any of the atoms, and parameters at these.
    atoms
        The few.
    """
    closed = sequential_predictive(model.observation, params, atoms)
    return closed if closed is not None else _by_summaries(model, base, atoms)


def _by_summaries(model: Model, base: Summary, atoms: Batch) -> Density:
    """Densities by the summary of a cluster with the atoms that joined it."""
    singles: dict[int, Summary] = {}

    def density(i: int, k: int, others: list[int]) -> float:
        if k not in singles:
            singles[k] = base.take(base.ids[[k]])
        one, observation = singles[k], model.observation
        few = atoms.take(np.array(others, np.int64))
        whole = one + statistics(model, one.ids, few, np.zeros(len(others), np.int64))
        return float(observation.log_predictive(observation.global_step(whole), atoms.rows(i, i + 1))[0, 0])

    return density
