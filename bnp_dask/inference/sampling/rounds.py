"""Rounds of splits and unions: one batch leads, all others follow, and the coordinator decides.

A round reads the data once more, the leading batch before all others, and looks at the atoms of a few clusters.  If a
proposal is accepted, totals, labels, the atoms that stay in their places and the noted rows follow.  Random numbers
depend on the seed, the lap and the batch, sums are taken in the order of batches, and all changes are made at the end
of a round, so that bits are the same on any cluster of workers and after any interruption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from bnp_dask.allocation.base import UrnAllocation
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.execute.ordered import in_order
from bnp_dask.inference.chains import Chain, Pins
from bnp_dask.inference.sampling.reseating import is_counted, urn_of
from bnp_dask.inference.sampling.split_merge import (
    Proposals,
    Sides,
    followed,
    joined,
    led,
    log_gains,
    log_partner,
    log_prior_ratio,
)
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
from bnp_dask.inference.state import State, Work
from bnp_dask.inference.visit import Request, visit
from bnp_dask.model import Model

EARLY, LATE = 64, 1 / 16
"""A lap, counted from 0, ends with a round with probability EARLY / (EARLY + lap), but at least LATE.

A round costs one to two laps if clusters are few.  Data as for ``GROWTH`` of
:mod:`bnp_dask.inference.sampling.split_merge`: an EARLY of 8 and 64 leave 14 to 21 and 8 to 16 clusters of 25 after 50
laps (six runs, before unions were chosen by their cost)."""

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
    gains, rng = log_gains(model, proposals, sides, log_q), generator(seed, asked.chain, asked.lap, DECIDE)
    pins = reduce(Pins.or_less, [part.pins for part in found.values()])
    for p, (first, second) in enumerate(zip(proposals.first.tolist(), proposals.second.tolist(), strict=True)):
        total, own = chain.sweep.total.value(), np.array([2 * p, 2 * p + 1])
        apart = (total["N"] > 0.0) & (total.ids != first) & (total.ids != second)
        one, other = sides.take(own[:1]), sides.take(own[1:])
        partner = log_partner(model, one, other, total.take(proposals.rivals[p]))
        ratio = gains[p] + partner + log_prior_ratio(model, sides["N"][own], total["N"][apart])
        if -rng.standard_exponential() >= (ratio if first == second else -ratio):
            continue
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
