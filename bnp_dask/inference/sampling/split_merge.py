"""Splits and unions of clusters by Metropolis-Hastings, for any likelihood and over any number of batches.

Atoms that move one by one hardly ever take a large cluster apart, or give one up.  So two atoms of a leading batch are
chosen as anchors, the first at random.  The second is in the same cluster, and a split is proposed: every other atom of
the cluster joins one of the anchors.  Or it is in another cluster, probably in one whose union costs little (a choice
driven by the data, as in Wang & Russell 2015), and a union is proposed.
Atoms of the leading batch join first, in a random order and in growing groups, each given the atoms that joined before
(Dahl 2005, except for the groups).  Then the atoms of all other batches join, side by side, given the leading batch's
atoms on either side.  The split is accepted or not.  The reverse probability of a union is the probability of a split
with the present clusters as its outcome.  Everything is exact except for rounding: the proposal may be any distribution
whose probability is known.

Several proposals are made at once.  The anchors of each are chosen among the atoms of the leading batch outside the
clusters of all earlier proposals, so that neither these atoms nor their clusters depend on which proposals are
accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from bnp_dask.allocation.base import SampledAllocation
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.inference.sampling.visit import statistics
from bnp_dask.inputs.protocols import as_a
from bnp_dask.model import Model
from bnp_dask.moves.pairs import evidence_gains, unions

GROWTH, ENOUGH = 0.3, 1000
"""Atoms of the leading batch that are allocated at once, relative to the atoms allocated before; and the number after
which all others are allocated at once.  Proposals are exact for any value.

6,000 points of three features about six centers at least 5.8 deviations apart, full covariances, from 25 clusters, one
batch and four: after 50 laps four seeds have 9, 12, 9, 9 clusters with a GROWTH of 1 (8 to 10 in four batches) and 6,
9, 8, 6 with .3 (7 to 10), as the chosen unions are accepted more often.  With ENOUGH of 250 and 1,000 there is no clear
difference; the larger one costs the leading batch some passes over arrays."""

AT_ONCE = 20_000
"""Atoms up to which densities under the sides of all proposals are one table; beyond it each proposal has its own."""


@dataclass(frozen=True, eq=False)
class Proposals:
    """Splits of one cluster and unions of two, as proposed by their leading batch.

    Parameters
    ----------
    first, second
        Ids of the clusters of the two anchors, ``(P,)``; equal for a split.
    log_choice
        Log ratio of the probabilities of choosing these anchors after the split and before it, given their clusters,
        ``(P,)`` nats.
    rivals
        Ids of the other clusters that might be the second one of a union, by proposal.
    start
        Statistics of the atoms of the leading batch on either side: clusters 2 p and 2 p + 1 for proposal p.
    """

    first: np.ndarray
    second: np.ndarray
    log_choice: np.ndarray
    rivals: tuple[np.ndarray, ...]
    start: Summary

    def __len__(self) -> int:
        return len(self.first)

    @property
    def is_split(self) -> np.ndarray:
        """Which proposals are splits, ``(P,)``."""
        return self.first == self.second


@dataclass(frozen=True, eq=False)
class Sides:
    """The atoms of a batch that proposals concern.

    Parameters
    ----------
    rows, place
        Rows of the atoms, and the side of each: 2 p or 2 p + 1 for proposal p, ``(m,)``.  Sides of splits are drawn;
        sides of unions are the existing clusters.
    log_q
        Log probability of this allocation by proposal, ``(P,)`` nats.
    held
        Statistics of all sides.
    """

    rows: np.ndarray
    place: np.ndarray
    log_q: np.ndarray
    held: Summary


def led(
    model: Model, sigma: float, atoms: Batch, ids: np.ndarray, clusters: Summary, most: int, rng: np.random.Generator
) -> tuple[Proposals, Sides]:
    """Proposals from a leading batch, and its atoms in them.

    Parameters
    ----------
    model, sigma
        Model, and the discount of its predictive rule.
    atoms, ids
        The batch, and the id of each atom's cluster, ``(n,)``.
    clusters
        Statistics of all clusters, over all batches.
    most
        Proposals at most.
    rng
        Random number generator.
    """
    left = np.ones(len(ids), bool)
    anchors: list[tuple[int, int]] = []
    rivals: list[np.ndarray] = []
    orders: list[np.ndarray] = []
    for _ in range(most):
        chosen = _anchors(model, np.flatnonzero(left), ids, clusters, rng)
        if chosen is None:  # nor are there more: whether anchors exist does not depend on the proposals
            break
        own = left & np.isin(ids, ids[list(chosen)])
        left &= ~own
        own[list(chosen)] = False
        anchors.append(chosen)
        rivals.append(np.unique(ids[left]))
        orders.append(rng.permutation(np.flatnonzero(own)))
    pair = np.array(anchors, np.int64).reshape(-1, 2)
    first, second = ids[pair].T
    sides = _sequentially(model, sigma, atoms, pair, orders, ids, rng)
    size = np.bincount(sides.place, minlength=2 * len(pair)).reshape(-1, 2)
    log_choice = np.log(size.sum(axis=1) - 1.0) - np.log(size[:, 1])
    return Proposals(first, second, log_choice, tuple(rivals), sides.held), sides


def _anchors(
    model: Model, rows: np.ndarray, ids: np.ndarray, clusters: Summary, rng: np.random.Generator
) -> tuple[int, int] | None:
    """Two of some atoms: from one cluster, or with equal probability from two; None if the first has no such partner.

    The second cluster is probably one whose union with the first costs little.
    """
    if not len(rows):
        return None
    i, alike = int(rng.choice(rows)), rng.random() < 0.5
    own = ids[rows] == ids[i]
    if alike:
        pool = rows[own & (rows != i)]
    elif own.all():
        return None
    else:
        others = np.unique(ids[rows[~own]])
        chances = partner_shares(union_gains(model, clusters.take(ids[[i]]), clusters.take(others)))
        pool = rows[ids[rows] == rng.choice(others, p=chances)]
    return (i, int(rng.choice(pool))) if len(pool) else None


def union_gains(model: Model, one: Summary, others: Summary) -> np.ndarray:
    """About how much more probable one cluster is when united with each of some others, ``(K,)`` nats.

    The log evidence of the union minus the log evidence of both, and the gain in probability of the partition under a
    Dirichlet process.  Only the order matters.
    """
    n_one, n = float(one["N"][0]), others["N"]
    gains: np.ndarray = evidence_gains(model, others, one) + gammaln(n + n_one) - gammaln(n) - gammaln(n_one)
    return gains


def partner_shares(gains: np.ndarray) -> np.ndarray:
    """Probabilities of clusters as the partner of a union, from their ``gains (K,)`` in nats; they sum to one.

    In proportion to one over the squared rank, so that no scale is needed and any cluster may be chosen.  Equal gains
    share their ranks: then the probabilities do not depend on the order of clusters, and a split and its union agree on
    them.
    """
    _, place, count = np.unique(-np.round(gains, 6), return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    weight = np.concatenate([[0.0], np.cumsum(np.arange(1.0, len(gains) + 1) ** -2)])
    shares: np.ndarray = ((weight[ends] - weight[ends - count]) / count)[place]
    return shares / shares.sum()


def log_partner(model: Model, one: Summary, other: Summary, rivals: Summary) -> float:
    """Log probability that ``other`` is chosen as the partner of ``one`` beside ``rivals``, nats."""
    gains = np.append(union_gains(model, one, other), union_gains(model, one, rivals))
    return float(np.log(partner_shares(gains)[0]))


def _sequentially(
    model: Model,
    sigma: float,
    atoms: Batch,
    anchors: np.ndarray,
    orders: Sequence[np.ndarray],
    ids: np.ndarray,
    rng: np.random.Generator,
) -> Sides:
    """Let atoms join the ``anchors (P, 2)`` in the order of each proposal; sides of unions follow from ``ids``."""
    n_pairs, all_sides = len(anchors), np.arange(2 * len(anchors))
    rows, place, log_q, done = [anchors.ravel()], [all_sides], np.zeros(n_pairs), 0
    held = statistics(model, all_sides, atoms.take(rows[0]), all_sides) if n_pairs else model.empty_summary(all_sides)
    while done < max(map(len, orders), default=0):
        size = len(ids) if done >= ENOUGH else max(1, int(GROWTH * done))
        parts = [order[done : done + size] for order in orders]
        own, pair = np.concatenate(parts), np.repeat(np.arange(n_pairs), [len(part) for part in parts])
        there = ids[anchors]
        forced = np.where(there[pair, 0] == there[pair, 1], -1, ids[own] == there[pair, 1])
        sides = given(model, sigma, held, atoms, own, pair, forced, rng)
        held, log_q, done = held + sides.held, log_q + sides.log_q, done + size
        rows.append(own)
        place.append(sides.place)
    return Sides(np.concatenate(rows), np.concatenate(place), log_q, held)


def followed(
    model: Model, sigma: float, proposals: Proposals, atoms: Batch, ids: np.ndarray, rng: np.random.Generator
) -> Sides:
    """The atoms of a batch other than the leading one; arguments as in :func:`led`."""
    pair = np.full(len(ids), -1)
    for number, (first, second) in enumerate(zip(proposals.first, proposals.second, strict=True)):
        pair[(ids == first) | (ids == second)] = number
    rows = np.flatnonzero(pair >= 0)
    pair = pair[rows]
    forced = np.where(proposals.is_split[pair], -1, ids[rows] == proposals.second[pair])
    return given(model, sigma, proposals.start, atoms, rows, pair, forced, rng)


def given(
    model: Model,
    sigma: float,
    held: Summary,
    atoms: Batch,
    rows: np.ndarray,
    pair: np.ndarray,
    forced: np.ndarray,
    rng: np.random.Generator,
) -> Sides:
    """Let some rows of a batch join a side of their proposals, side by side.

    ``held`` are the statistics of the known atoms of either side, ``pair (m,)`` the proposals of the rows; ``forced``
    ``(m,)`` holds the sides that they take, 0 or 1, or -1 if the side is drawn.
    """
    if not len(rows):
        return Sides(rows, pair, np.zeros(held.n_clusters // 2), model.empty_summary(held.ids))
    few = atoms.take(rows)
    odds = _log_odds(model, held, few, pair) + np.diff(np.log(held["N"] - sigma).reshape(-1, 2))[pair, 0]
    log_first = -np.logaddexp(0.0, odds)
    second = np.where(forced < 0, rng.random(len(rows)) >= np.exp(log_first), forced == 1)
    log_q = np.bincount(pair, log_first + np.where(second, odds, 0.0), held.n_clusters // 2)
    place = 2 * pair + second
    return Sides(rows, place, log_q, statistics(model, held.ids, few, place))


def _log_odds(model: Model, held: Summary, few: Batch, pair: np.ndarray) -> np.ndarray:
    """Log density of each atom under the second side of its proposal, minus under the first, ``(m,)``."""
    out, together = np.empty(len(pair)), len(pair) <= AT_ONCE
    for number in range(1 if together else held.n_clusters // 2):
        own = np.arange(len(pair)) if together else np.flatnonzero(pair == number)
        sides = held if together else held.take(held.ids[2 * number : 2 * number + 2])
        atoms, first, start = few if together else few.take(own), 2 * pair if together else np.zeros_like(pair), 0
        params = model.observation_step(sides)
        for tile in model.allocation.tiles(atoms, sides.n_clusters):
            at, rows = np.arange(tile.n_atoms), own[start : start + tile.n_atoms]
            table = model.observation.log_predictive(params, tile)
            out[rows] = table[at, first[rows] + 1] - table[at, first[rows]]
            start += tile.n_atoms
    return out


def joined(parts: Sequence[Sides]) -> tuple[Summary, np.ndarray]:
    """Statistics of all sides over batches, and log probabilities of the allocations, ``(P,)`` nats."""
    total, log_q = parts[0].held, parts[0].log_q
    for part in parts[1:]:
        total, log_q = total + part.held, log_q + part.log_q
    return total, log_q


def log_gains(model: Model, proposals: Proposals, sides: Summary, log_q: np.ndarray) -> np.ndarray:
    """Log ratios by which splits are accepted, and unions by their inverse, without the probability of the partition.

    They add the log evidence of two clusters minus the log evidence of one to the log ratio of the reverse and the
    forward proposal probabilities, ``(P,)`` nats.
    """
    first = np.arange(0, sides.n_clusters, 2)
    two = model.best_data_terms(sides).reshape(-1, 2).sum(axis=1)
    one = model.best_data_terms(unions(sides, first, first + 1))
    return np.asarray(two - one + proposals.log_choice - log_q)


def log_prior_ratio(model: Model, sizes: np.ndarray, counts: np.ndarray) -> float:
    """Log ratio of the probabilities of a partition with two clusters of ``sizes (2,)`` atoms and of one with their
    union, nats; ``counts (K,)`` are the atoms of all other clusters, none of them empty."""
    allocation = as_a(model.allocation, SampledAllocation)
    apart, whole = np.append(counts, sizes), np.append(counts, sizes.sum())
    return allocation.log_partition(apart) - allocation.log_partition(whole)
