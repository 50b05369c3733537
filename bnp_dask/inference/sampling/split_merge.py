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
clusters of all earlier proposals, so that these atoms do not depend on which proposals are accepted.

**Detailed balance.** Let x be a partition, and A all pairs of anchors.  A round draws A from P(A | x), and changes x by
steps that each leave ``pi(x) P(A | x)`` invariant, pi the posterior; then A is forgotten.  So pi is invariant.  A step
takes a partition ``one`` in which the anchors of a pair share a cluster to ``two``, in which they are apart, or back.
``two`` is drawn with the probability q(two) of the allocation, ``one`` with probability one.  A split is accepted with
the probability ``min(1, r)``, a union with ``min(1, 1 / r)``,

    r = pi(two) P(A | two) / (pi(one) P(A | one) q(two)).

P(A | x) is a product over pairs, in the order in which they were drawn.  The first anchor is an atom drawn uniformly,
which depends on no partition.  The second one is with probability u in another cluster, chosen by
:func:`partner_shares`, else in the same cluster, and uniform among the atoms of the chosen cluster.  Both u and the
shares of a pair depend on the clusters that later pairs split or unite.  So the step of a pair changes its own factor
of P(A | x) and the factors of all earlier pairs; :class:`Choices` has them.

Such a round reads the data once more, the leading batch before all others, and looks at the atoms of a few clusters.
The coordinator decides.  If a proposal is accepted, totals, labels, the atoms that stay in their places and the noted
rows follow.  Random numbers depend on the seed, the lap and the batch, sums are taken in the order of batches, and all
changes are made at the end of a round, so that bits are the same on any cluster of workers and after any
interruption.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from scipy.special import gammaln

from bnp_dask.allocation import SampledAllocation, UrnAllocation
from bnp_dask.core import Batch, Summary
from bnp_dask.execute import in_order
from bnp_dask.inference.chains import Chain, Pins
from bnp_dask.inference.sampling.sweep import is_counted, urn_of
from bnp_dask.inference.sampling.visit import (
    ALLOCATE,
    DECIDE,
    ROUND,
    Labels,
    first_atoms,
    generator,
    keep_labels,
    labels_of,
    pins_of,
    repeated,
    visit_of,
)
from bnp_dask.inference.sides import Sides, given, sequentially
from bnp_dask.inference.state import State, Work
from bnp_dask.inference.visit import Request, visit
from bnp_dask.inputs import as_a
from bnp_dask.model import Model
from bnp_dask.moves import evidence_gains, unions


@dataclass(frozen=True, eq=False)
class Proposals:
    """Splits of one cluster and unions of two, as proposed by their leading batch.

    Parameters
    ----------
    first, second
        Ids of the clusters of the two anchors, ``(P,)``; equal for a split.
    sizes
        Atoms of the leading batch on either side, ``(P, 2)``.
    rivals
        Ids of the other clusters that might be the second one of a union, by proposal.
    start
        Statistics of the atoms of the leading batch on either side: clusters 2 p and 2 p + 1 for proposal p.
    """

    first: np.ndarray
    second: np.ndarray
    sizes: np.ndarray
    rivals: tuple[np.ndarray, ...]
    start: Summary

    def __len__(self) -> int:
        return len(self.first)

    @property
    def is_split(self) -> np.ndarray:
        """Which proposals are splits, ``(P,)``."""
        return self.first == self.second


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
        if chosen is None:  # nor are there more: one cluster is left, with one atom
            break
        own = left & np.isin(ids, ids[list(chosen)])
        left &= ~own
        own[list(chosen)] = False
        anchors.append(chosen)
        rivals.append(np.unique(ids[left]))
        orders.append(rng.permutation(np.flatnonzero(own)))
    pair = np.array(anchors, np.int64).reshape(-1, 2)
    first, second = ids[pair].T
    sides = sequentially(model, sigma, atoms, pair, orders, ids, rng)
    size = np.bincount(sides.place, minlength=2 * len(pair)).reshape(-1, 2)
    return Proposals(first, second, size, tuple(rivals), sides.held), sides


def _anchors(
    model: Model, rows: np.ndarray, ids: np.ndarray, clusters: Summary, rng: np.random.Generator
) -> tuple[int, int] | None:
    """Two of some atoms: from one cluster, or from two; None if there is only one.

    The second cluster is probably one whose union with the first costs little, and is the more probably chosen the less
    that is.
    """
    if not len(rows):
        return None
    i = int(rng.choice(rows))
    own = ids[rows] == ids[i]
    others = np.unique(ids[rows[~own]])
    gains = union_gains(model, clusters.take(ids[[i]]), clusters.take(others))
    if rng.random() < union_chance(gains, int(own.sum())):
        pool = rows[ids[rows] == rng.choice(others, p=partner_shares(gains))]
    else:
        pool = rows[own & (rows != i)]
    return (i, int(rng.choice(pool))) if len(pool) else None


HOPEFUL, HOPELESS = 0.9, 0.1
"""Probability of proposing a union of a cluster that is more probable united with some other one, and of any other.

A union is accepted at a gain of about minus the log probability of its allocation, which is positive.  Six Gaussians
in three dimensions at least 5.8 deviations apart, 3,000 rows in four batches: with one half for all clusters, a
cluster that was two was proposed as one in every eighth lap."""


def union_chance(gains: np.ndarray, n_atoms: int) -> float:
    """Probability of proposing a union of a cluster, from its ``gains (K,)`` with others in nats, rather than a split;
    ``n_atoms`` are its atoms in the leading batch."""
    if not len(gains):
        return 0.0
    if n_atoms == 1:
        return 1.0
    return HOPEFUL if gains.max() > 0.0 else HOPELESS


def union_gains(model: Model, one: Summary, others: Summary) -> np.ndarray:
    """About how much more probable one cluster is when united with each of some others, ``(K,)`` nats.

    The log evidence of the union minus the log evidence of both, and the gain in probability of the partition under a
    Dirichlet process.  Only the order matters.
    """
    if not others.n_clusters:
        return np.zeros(0)
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


Gains = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Gains of unions of a cluster with clusters that no proposal concerns; with the second side of its own pair and both
sides of all later pairs; and with the unions of later pairs."""


@dataclass
class Choices:
    """Probabilities of the anchors of all proposals, in any of the partitions that a round may lead to.

    Parameters
    ----------
    proposals
        The proposals.
    together
        Whether the clusters of each pair are one, ``(P,)``; changes as proposals are decided.
    gains
        For each pair, gains of its first side, and gains of its union.
    """

    proposals: Proposals
    together: np.ndarray
    gains: list[tuple[Gains, Gains]]

    @classmethod
    def of(cls, model: Model, proposals: Proposals, sides: Summary, total: Summary) -> Choices:
        """Choices before any proposal is decided, from statistics of all ``sides`` and all clusters over all
        batches."""
        changing = np.concatenate([proposals.first, proposals.second])
        first = np.arange(0, 2 * len(proposals), 2)
        wholes = unions(sides, first, first + 1)

        def gains(own: Summary, q: int) -> Gains:
            fixed = total.take(proposals.rivals[q][~np.isin(proposals.rivals[q], changing)])
            apart, later = sides.take(sides.ids[2 * q + 1 :]), wholes.take(wholes.ids[q + 1 :])
            return union_gains(model, own, fixed), union_gains(model, own, apart), union_gains(model, own, later)

        pairs = [
            (gains(sides.take(sides.ids[[2 * q]]), q), gains(wholes.take(wholes.ids[[q]]), q))
            for q in range(len(proposals))
        ]
        return cls(proposals, proposals.is_split.copy(), pairs)

    def log_ratio(self, p: int) -> float:
        """Log of the probability of all anchors if the clusters of pair ``p`` are two, over that if they are one."""
        n_one, n_other = self.proposals.sizes[p].tolist()
        own = math.log(n_one + n_other - 1.0) - math.log(n_other)
        return own + sum(self._log(q, p, False) - self._log(q, p, True) for q in range(p + 1))

    def _log(self, q: int, p: int, together: bool) -> float:
        """Log probability of the clusters of the anchors of pair ``q``, given its first anchor, nats; the clusters of
        pair ``p`` are one or two."""
        state = self.together.copy()
        state[p] = together
        n_one, n_other = self.proposals.sizes[q].tolist()
        fixed, apart, later = self.gains[q][int(state[q])]
        rest = state[q + 1 :]
        rivals = np.concatenate([fixed, apart[1:][np.repeat(~rest, 2)], later[rest]])
        if state[q]:
            return math.log1p(-union_chance(rivals, n_one + n_other))
        gains = np.append(apart[:1], rivals)
        return math.log(union_chance(gains, n_one)) + math.log(partner_shares(gains)[0])


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


def joined(parts: Sequence[Sides]) -> tuple[Summary, np.ndarray]:
    """Statistics of all sides over batches, and log probabilities of the allocations, ``(P,)`` nats."""
    total, log_q = parts[0].held, parts[0].log_q
    for part in parts[1:]:
        total, log_q = total + part.held, log_q + part.log_q
    return total, log_q


def log_gains(model: Model, sides: Summary, log_q: np.ndarray) -> np.ndarray:
    """Log evidence of two clusters minus that of one, and minus the log probability of the allocation, ``(P,)``."""
    first = np.arange(0, sides.n_clusters, 2)
    two = model.best_data_terms(sides).reshape(-1, 2).sum(axis=1)
    one = model.best_data_terms(unions(sides, first, first + 1))
    return np.asarray(two - one - log_q)


def log_prior_ratio(model: Model, sizes: np.ndarray, counts: np.ndarray) -> float:
    """Log ratio of the probabilities of a partition with two clusters of ``sizes (2,)`` atoms and of one with their
    union, nats; ``counts (K,)`` are the atoms of all other clusters, none of them empty."""
    allocation = as_a(model.allocation, SampledAllocation)
    apart, whole = np.append(counts, sizes), np.append(counts, sizes.sum())
    return allocation.log_partition(apart) - allocation.log_partition(whole)


# -- rounds over all batches ---------------------------------------------------------------------------------------
EARLY, LATE = 256, 1 / 16
"""A lap, counted from 0, ends with a round with probability EARLY / (EARLY + lap), but at least LATE.

A round costs one to two laps if clusters are few.  Six Gaussians in three dimensions, at least 5.8 deviations apart,
3,000 rows in four batches, laps 41 to 50, seeds 1 and 2: an EARLY of 64 leaves 6.4 and 6.8 clusters from one and 8.6
and 7.0 from 25, one of 256 the same from one and 6.8 and 6.6 from 25."""

MOST = 16
"""Proposals of a round and chain, at most; no cluster is in two of them.  The same data: after 20 laps 8 and 16 leave 8
to 20 and 6 to 16 clusters, and after 50 laps 7 to 10 and 6 to 10 (eight runs)."""


@dataclass(frozen=True, eq=False)
class Asked:
    """A chain in a round.

    Parameters
    ----------
    chain, lap
        Number of the chain, and of the lap.
    clusters
        Statistics of all clusters, for the leading batch; None for the others.
    proposals
        The proposals; None for the leading batch, which makes them.
    """

    chain: int
    lap: int
    clusters: Summary | None = None
    proposals: Proposals | None = None


@dataclass(frozen=True, eq=False)
class Found:
    """A batch's atoms in the proposals of a chain.

    Parameters
    ----------
    sides
        The batch's atoms by side.
    pins
        Atom of each side that the next sweep may keep in its place.
    noted
        Sides of the noted rows, ``(R,)``; -1 for rows that no proposal concerns.
    """

    sides: Sides
    pins: Pins
    noted: np.ndarray


def lead(
    model: Model, asked: tuple[Asked, ...], request: Request, rows: np.ndarray, before: tuple[Labels, ...]
) -> tuple[tuple[Proposals, Found], ...] | None:
    """The task of the leading batch: proposals of each chain, and its own atoms in them; None if it went bad."""
    sigma = urn_of(model).sigma

    def sides_of(own: Asked, atoms: Batch, ids: np.ndarray, rng: np.random.Generator) -> tuple[Proposals, Sides]:
        assert own.clusters is not None
        return led(model, sigma, atoms, ids, own.clusters, MOST, rng)

    return _by_chain(model, asked, request, rows, before, sides_of)


def follow(
    model: Model, asked: tuple[Asked, ...], request: Request, rows: np.ndarray, before: tuple[Labels, ...]
) -> tuple[Found, ...] | None:
    """The task of any other batch: its atoms join the sides of each proposal; None if it went bad."""
    sigma = urn_of(model).sigma

    def sides_of(own: Asked, atoms: Batch, ids: np.ndarray, rng: np.random.Generator) -> tuple[Proposals, Sides]:
        assert own.proposals is not None
        return own.proposals, followed(model, sigma, own.proposals, atoms, ids, rng)

    found = _by_chain(model, asked, request, rows, before, sides_of)
    return None if found is None else tuple(own for _, own in found)


def _by_chain(
    model: Model,
    asked: tuple[Asked, ...],
    request: Request,
    rows: np.ndarray,
    before: tuple[Labels, ...],
    sides_of: Callable[[Asked, Batch, np.ndarray, np.random.Generator], tuple[Proposals, Sides]],
) -> tuple[tuple[Proposals, Found], ...] | None:
    """Proposals of each chain, and a batch's atoms in them as ``sides_of`` finds them; None if it went bad."""

    def by_chain(batch: Batch) -> tuple[tuple[Proposals, Found], ...] | None:
        atoms, found = repeated(batch), []
        for own, labels in zip(asked, before, strict=True):
            rng = generator(request.seed, own.chain, own.lap, ALLOCATE, request.batch)
            proposals, sides = sides_of(own, atoms, labels.ids, rng)
            found.append((proposals, _found(own, request, first_atoms(batch, rows), atoms, sides)))
        return tuple(found)

    return visit(model, request, by_chain, lambda why: None)


def _found(own: Asked, request: Request, noted: np.ndarray, atoms: Batch, sides: Sides) -> Found:
    n_sides = sides.held.n_clusters
    places = np.full(atoms.n_atoms + 1, n_sides)  # the last is for missing rows
    places[sides.rows] = sides.place
    pins = pins_of(own, request, places[:-1], n_sides + 1).take(np.arange(n_sides))
    return Found(sides, pins, np.where(places[noted] < n_sides, places[noted], -1))


# -- the coordinator ----------------------------------------------------------------------------------------------
def split_and_unite(work: Work, state: State, window: int) -> None:
    """End a lap, with some probability, with a round: clusters are split and united in all chains.

    If a batch cannot be read, the round has no effect; the next sweep handles the batch.
    """
    assert state.sampler is not None
    n_batches, lap, chains = work.source.n_batches, state.lap, state.sampler.chains
    rng = generator(work.seed, 0, lap, ROUND)
    if not _has_rounds(work) or rng.random() >= max(LATE, EARLY / (EARLY + lap)):
        return
    leading = int(rng.integers(n_batches))
    asked = tuple(Asked(number, lap, clusters_of(chain)) for number, chain in enumerate(chains))
    args = (work.model, asked, *visit_of(work, state, leading))
    first = next(iter(in_order(work.executor, iter([(f"lead-lap{lap}-batch{leading}", lead, args)]), 1)))
    if first is None or not any(len(proposals) for proposals, _ in first):
        return
    asked = tuple(Asked(own.chain, lap, proposals=made) for own, (made, _) in zip(asked, first, strict=True))
    others = [batch for batch in range(n_batches) if batch != leading]

    def tasks() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
        for batch in others:
            args = (work.model, asked, *visit_of(work, state, batch))
            yield f"follow-lap{lap}-batch{batch}", follow, args

    found = {leading: tuple(own for _, own in first)}
    found |= dict(zip(others, in_order(work.executor, tasks(), window), strict=True))
    if any(one is None for one in found.values()):
        return
    rows = {batch: np.flatnonzero(state.sampler.noted[:, 0] == batch) for batch in found}
    changes = []
    for own, chain in zip(asked, chains, strict=True):
        by_batch = {batch: one[own.chain] for batch, one in found.items()}
        changes.append(decide(work.model, chain, own, by_batch, rows, work.seed))
    if any(changes):
        for batch in range(n_batches):
            labels = labels_of(work, state, batch, len(changes)) or ()
            after = [relabelled(*one) for one in zip(labels, changes, found[batch], strict=True)]
            keep_labels(work, state, batch, after)


def clusters_of(chain: Chain) -> Summary:
    """Statistics of the clusters of a chain after a sweep."""
    assert chain.sweep is not None
    value = chain.sweep.total.value()
    return value.take(value.ids[value["N"] > 0.0])


def _has_rounds(work: Work) -> bool:
    """Whether clusters may be split, and are not split by the compiled loop over all documents already."""
    at_once = is_counted(work.model) and work.source.n_batches == 1
    return isinstance(work.model.allocation, UrnAllocation) and not at_once


def decide(
    model: Model, chain: Chain, asked: Asked, found: Mapping[int, Found], rows: Mapping[int, np.ndarray], seed: int
) -> dict[int, int]:
    """Accept proposals of a chain or not, one after the other, and change its sweep.

    Parameters
    ----------
    model, chain, asked
        The model, the chain after a sweep, and its proposals.
    found
        Each batch's atoms in the proposals, the leading batch first.
    rows
        Positions of the noted rows of each batch.
    seed
        Seed of the run.

    Returns
    -------
    accepted
        For each accepted proposal, by its position: the id of the cluster that holds the atoms of its second side.
    """
    assert chain.sweep is not None
    proposals, accepted = asked.proposals, {}
    if proposals is None or not len(proposals):
        return {}
    sides, log_q = joined([part.sides for part in found.values()])
    gains, rng = log_gains(model, sides, log_q), generator(seed, asked.chain, asked.lap, DECIDE)
    choices = Choices.of(model, proposals, sides, chain.sweep.total.value())
    pins = reduce(Pins.or_less, [part.pins for part in found.values()])
    for p, (first, second) in enumerate(zip(proposals.first.tolist(), proposals.second.tolist(), strict=True)):
        total, own = chain.sweep.total.value(), np.array([2 * p, 2 * p + 1])
        apart = (total["N"] > 0.0) & (total.ids != first) & (total.ids != second)
        ratio = gains[p] + choices.log_ratio(p) + log_prior_ratio(model, sides["N"][own], total["N"][apart])
        if -rng.standard_exponential() >= (ratio if first == second else -ratio):
            continue
        choices.together[p] = first != second
        if first == second:
            accepted[p] = chain.next_id
            _split(chain, first, sides.take(own[1:]), pins.take(own))
            for batch, part in found.items():
                chain.sweep.rows[rows[batch][part.noted == own[1]]] = accepted[p]
        else:
            accepted[p] = first
            _unite(chain, first, second, total)
    return accepted


def _split(chain: Chain, first: int, part: Summary, pins: Pins) -> None:
    """Open a cluster for a part of another; ``pins`` are the pins of the remainder and of the part."""
    assert chain.sweep is not None
    sweep, new = chain.sweep, chain.next_id
    chain.next_id += 1
    sweep.total = sweep.total.insert_empty(np.array([new]))
    total = sweep.total.high
    sweep.total.add(_moved(total, first, new, part))
    sweep.pins = sweep.pins.put(total.positions(np.array([first, new])), pins)


def _unite(chain: Chain, keep: int, drop: int, total: Summary) -> None:
    """Give the atoms of a cluster to another."""
    assert chain.sweep is not None
    sweep, here = chain.sweep, total.positions(np.array([keep, drop]))
    sweep.total.add(_moved(total, drop, keep, total.take([drop])))
    sweep.pins = sweep.pins.put(here[:1], sweep.pins.take(here[:1]).or_less(sweep.pins.take(here[1:])))
    sweep.rows[sweep.rows == drop] = keep


def _moved(total: Summary, source: int, target: int, part: Summary) -> Summary:
    """The change of a total when the atoms of ``part``, one cluster, go from one cluster to another."""
    change, a, b = total.zeros(), total.position(source), total.position(target)
    for name, declared in change.fields.items():
        if declared.dims[:1] == ("cluster",):
            change.values[name][a] = -part[name][0]
            change.values[name][b] = part[name][0]
    return change


def relabelled(labels: Labels, accepted: Mapping[int, int], found: Found) -> Labels:
    """Clusters of a batch's atoms after the proposals of a chain that :func:`decide` accepted."""
    ids = labels.ids
    for number, into in accepted.items():
        ids[found.sides.rows[found.sides.place == 2 * number + 1]] = into
    names, places = np.unique(ids, return_inverse=True)
    return Labels.of(names, places)
