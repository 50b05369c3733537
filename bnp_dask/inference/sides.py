"""A cluster in two: atoms join one of two sides, given the statistics of the atoms that joined before.

Samplers propose splits so (Dahl 2005, except for the groups), and expectation propagation looks so for clusters that
are two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.allocation import SampledAllocation
from bnp_dask.core import Batch, Summary
from bnp_dask.inputs import as_a
from bnp_dask.kernels import RaggedResp, cluster_sums
from bnp_dask.model import Model

GROWTH, ENOUGH = 0.3, 1000
"""Atoms of the leading batch that are allocated at once, relative to the atoms allocated before; and the number after
which all others are allocated at once.  Proposals are exact for any value.

6,000 points of three features about six centers at least 5.8 deviations apart, full covariances, from 25 clusters, one
batch and four: after 50 laps four seeds have 9, 12, 9, 9 clusters with a GROWTH of 1 (8 to 10 in four batches) and 6,
9, 8, 6 with .3 (7 to 10), as the chosen unions are accepted more often.  With ENOUGH of 250 and 1,000 there is no clear
difference; the larger one costs the leading batch some passes over arrays."""

AT_ONCE = 4096
"""Densities up to which the atoms and sides of all proposals are one table; beyond it each proposal has its own.

Each atom needs the densities under its two sides alone, so that of 16 proposals one table computes 16 times too many;
densities that are integrals take all of the time of a round.  The number is an estimate from the costs of calls; it
changes results by rounding alone."""


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


def sequentially(
    model: Model,
    sigma: float,
    atoms: Batch,
    anchors: np.ndarray,
    orders: Sequence[np.ndarray],
    ids: np.ndarray,
    rng: np.random.Generator,
) -> Sides:
    """Let atoms join the ``anchors (P, 2)`` of their proposals, one by one at first, then in growing groups.

    ``orders`` are the rows that join, in order, by proposal.  If the clusters of two anchors differ, by ``ids (n,)``,
    atoms take the side that is their cluster.
    """
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
    out, together = np.empty(len(pair)), len(pair) * held.n_clusters <= AT_ONCE
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


def statistics(model: Model, ids: np.ndarray, atoms: Batch, places: np.ndarray) -> Summary:
    """Summary of atoms whose clusters are at these ``places (n,)``."""
    resp = RaggedResp(np.arange(len(places) + 1), places, np.ones(len(places)), len(ids))
    total = model.summarize(ids, atoms, resp)
    certain = as_a(model.allocation, SampledAllocation).certain_values(cluster_sums(resp))
    return replace(total, values={**total.values, **certain})
