"""Births beside neighbours: two clusters in place of one, re-estimated together with nearby clusters.

If clusters overlap, a split seldom pays while the others stay unchanged: they hold atoms that newborn clusters should
have.  On 60 Gaussians of two features, 3 to 4 deviations apart, splits of single clusters ended at 46 clusters.  Of
these, 14 splits pay when the two halves are re-estimated beside the others (by 12 to 50 nats each), and 6 of them at
the first step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.core.batch import Batch, concatenate
from bnp_dask.core.finite import unless_refused
from bnp_dask.core.summary import Summary
from bnp_dask.initialize.base import child_rng, summarize_assigned
from bnp_dask.initialize.kmeans import cluster_atoms
from bnp_dask.model import Model
from bnp_dask.moves.births.small_run import seed_atoms, without_empty
from bnp_dask.moves.policy import SmallRunPolicy
from bnp_dask.moves.pools import climb
from bnp_dask.moves.random_keys import BESIDE_START
from bnp_dask.observation.base import numbers_per_cluster
from bnp_dask.structure.base import at_most

NEWBORN = (-2, -1)
"""Temporary ids of the two clusters that would replace the target."""


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Samples of a target and of its neighbours, each standing for all of a cluster's atoms, and their statistics.

    ``pool`` holds the target's atoms, then the atoms of each neighbour; ``summary`` has the clusters in this order.
    """

    pool: tuple[Batch, ...]
    summary: Summary


def most_steps(policy: SmallRunPolicy) -> int:
    """Most local steps on a pool."""
    return policy.starts_beside * policy.first_steps + policy.steps_beside


def create_beside(
    model: Model, near: Surroundings, seed: int, key: tuple[int, ...], policy: SmallRunPolicy
) -> Summary | None:
    """Task: statistics of two clusters in place of a target and of its neighbours beside them, or None without gain.

    The target's atoms are split in two from several starts.  All atoms of the pool are then assigned anew: a few times
    for each start, and for the best start until a step gains little.  The gain on a sample must exceed half a nat for
    each number of the new cluster and each atom that was not seen, as in a forecast.
    """
    return unless_refused(_created, replace(model, precision="double"), near, seed, key, policy, otherwise=None)


def _created(
    model: Model, near: Surroundings, seed: int, key: tuple[int, ...], policy: SmallRunPolicy
) -> Summary | None:
    everything = concatenate(list(near.pool))
    before = model.best_objective(model.local_step(model.global_step(near.summary), everything))
    rest = near.summary.take(near.summary.ids[1:])
    best, most = None, -np.inf
    for start in range(policy.starts_beside):
        halves = _halves(model, near.pool[0], child_rng(seed, *key, BESIDE_START, start), policy)
        if halves is not None:
            both = _beside(model, halves, rest)
            found, gain = climb(model, both.zeros(), both, everything, before, policy.first_steps, 0.0)
            if gain > most:
                best, most = found, gain
    if best is None:
        return None
    best, gain = climb(model, best.zeros(), best, everything, before, policy.steps_beside, policy.enough_beside)
    unseen = max(0.0, near.pool[0].total_weight / near.pool[0].n_atoms - 1.0)
    if gain <= unseen * (1 + numbers_per_cluster(model.observation)) or best["N"][:2].min() < 1.0:
        return None
    model.global_step(best)  # statistics without a posterior are refused here, not during planning
    return _changed(best, near.summary, policy.stays * float(near.summary["N"][0]))


def _changed(found: Summary, before: Summary, little: float) -> Summary:
    """Newborn clusters, and neighbours whose counts changed by more than ``little``; the others may stay."""
    rest = before.ids[1:]
    change = np.abs(found["N"][len(NEWBORN) :] - before["N"][1:])
    return found.take([*NEWBORN, *rest[change > little].tolist()])


def _halves(model: Model, atoms: Batch, rng: np.random.Generator, policy: SmallRunPolicy) -> Summary | None:
    """Statistics of two clusters of a target's atoms alone, or None if they become one."""
    few = at_most(atoms, seed_atoms(model, policy) * len(NEWBORN), rng)
    labels, found = cluster_atoms(model, few, len(NEWBORN), rng, 1, policy.seed_laps)
    if found < len(NEWBORN):
        return None
    summary = summarize_assigned(model, few, labels, found)
    for _ in range(policy.first_steps):
        summary = without_empty(model.local_step(model.global_step(summary), atoms), policy.least_share)
        if summary.n_clusters < len(NEWBORN):
            return None
    return summary


def _beside(model: Model, halves: Summary, rest: Summary) -> Summary:
    """One summary of newborn clusters and neighbours, the newborn first."""
    out = model.empty_summary(np.concatenate([NEWBORN, rest.ids]))
    for name, declared in out.fields.items():
        if declared.n_cluster_axes:
            out.values[name][...] = np.concatenate([halves[name], rest[name]])
    return out
