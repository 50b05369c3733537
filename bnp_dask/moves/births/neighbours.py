"""Attempts of births that look at neighbours: which clusters these are, and the tasks of one lap.

Nothing is looked at before clusters are calm: until then other moves take the neighbours, and clusters that still
change forget what failed.  A run of 12 overlapping Gaussians made 140 attempts in 64 laps and could try 2 of the 69
splits that these found (47 s of processor time, 13 without them); now it makes 25 or so, in 18 s, and ends as high.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

import numpy as np

from bnp_dask.core.summary import Summary
from bnp_dask.execute.base import Task
from bnp_dask.moves.base import PlanContext
from bnp_dask.moves.births.surroundings import Surroundings, create_beside, most_steps
from bnp_dask.moves.policy import BirthPolicy
from bnp_dask.moves.pools import counting
from bnp_dask.moves.random_keys import BIRTH_BESIDE
from bnp_dask.observation.base import numbers_per_cluster
from bnp_dask.structure.base import at_most

Found = dict[int, Summary | None]
"""Clusters found by target, None where there are none."""


def neighbours(context: PlanContext, target: int, policy: BirthPolicy) -> list[int]:
    """Clusters that are looked at with a target, nearest first; none where it hardly overlaps."""
    overlaps, place = overlap(context, policy), context.value.position(target)
    if not overlaps[place]:
        return []
    gains = np.where(overlaps, context.pair_gains()[place], -np.inf)  # rows far from all have no neighbours
    near = np.argsort(-gains, kind="stable")[: policy.neighbours]
    return [int(i) for i in context.value.ids[near[gains[near] > -np.inf]]]


def overlap(context: PlanContext, policy: BirthPolicy) -> np.ndarray:
    """Whether each cluster shares its atoms with others, ``(K,)``."""
    return np.asarray(context.value["H"] >= policy.overlap * context.value["N"])


def work_beside(context: PlanContext, target: int, near: list[int], sample: int, policy: BirthPolicy) -> float:
    """Atom-cluster pairs of a try on ``sample`` atoms of a target beside neighbours, about."""
    atoms = sum(min(_most(context, policy), context.count(i)) for i in near) + min(sample, context.count(target))
    return most_steps(policy.small_run) * atoms * (2 + len(near)) if near else 0.0


def look_beside(
    context: PlanContext, near: Mapping[int, list[int]], sample: int, policy: BirthPolicy
) -> Generator[list[Task], list[Summary | None], Found]:
    """Clusters found for targets together with their neighbours ``near``, all of which can be tried in one lap.

    Targets that no two have a neighbour in common are looked at side by side, then those that are left.  What would
    change a cluster that another one has taken already is not looked at: it is not in the result.
    """
    found: Found = {}
    waiting, taken = dict(near), set[int]()
    while waiting:
        now: dict[int, list[int]] = {}
        for target, others in waiting.items():
            if not {target, *others} & {i for t, ids in now.items() for i in (t, *ids)}:
                now[target] = others
        results = yield [_task(context, target, others, sample, policy) for target, others in now.items()]
        found |= dict(zip(now, results, strict=True))
        for target, summary in zip(now, results, strict=True):
            taken |= set() if summary is None else {target, *receivers(summary)}
        left = {target: others for target, others in waiting.items() if target not in now}
        waiting = {target: others for target, others in left.items() if taken.isdisjoint((target, *others))}
    return found


def receivers(found: Summary) -> tuple[int, ...]:
    """Clusters there are among those that a small run re-estimated; its newborn have negative ids beside others."""
    return tuple(found.ids[found.ids >= 0].tolist()) if (found.ids < 0).any() else ()


def _task(context: PlanContext, target: int, near: list[int], sample: int, policy: BirthPolicy) -> Task:
    sizes = [sample, *[_most(context, policy)] * len(near)]
    pool = tuple(
        counting(at_most(context.atoms[i], most, context.rng(BIRTH_BESIDE, target, i)), context.count(i))
        for i, most in zip((target, *near), sizes, strict=True)
    )
    around = Surroundings(pool, context.value.without_pairs().take([target, *near]))
    args = (context.model, around, context.seed, (context.lap, BIRTH_BESIDE, target), policy.small_run)
    return f"propose-lap{context.lap}-birth-beside-cluster{target}", create_beside, args


def _most(context: PlanContext, policy: BirthPolicy) -> int:
    """Atoms of each neighbour that are looked at, at most."""
    return context.at_most_sampled(max(policy.neighbour_atoms, numbers_per_cluster(context.model.observation)))
