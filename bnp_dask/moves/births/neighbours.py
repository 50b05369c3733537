"""Attempts of births that look at neighbours: choice of the neighbours, and the tasks of one lap.

Attempts wait until clusters are calm: until then other moves take the neighbours, and clusters that still change
forget their failures.  Without waiting, a run of 12 overlapping Gaussians made 140 attempts in 64 laps and could try 2
of the 69 splits found (47 s of processor time, 13 without such attempts); now it makes some 25 in 18 s, and its
objective ends as high.
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
"""Clusters found, by target; None if none were found."""


def neighbours(context: PlanContext, target: int, policy: BirthPolicy) -> list[int]:
    """Clusters that are looked at with a target, nearest first; none if it hardly overlaps."""
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
    """Approximate number of atom-cluster pairs of a try on ``sample`` atoms of a target beside neighbours."""
    atoms = sum(min(_most(context, policy), context.count(i)) for i in near) + min(sample, context.count(target))
    return most_steps(policy.small_run) * atoms * (2 + len(near)) if near else 0.0


def look_beside(
    context: PlanContext, near: Mapping[int, list[int]], sample: int, policy: BirthPolicy
) -> Generator[list[Task], list[Summary | None], Found]:
    """Clusters found for targets together with their neighbours ``near``, all of which can be tried in one lap.

    Targets without common neighbours are looked at side by side, then the remaining ones.  A target is skipped, and
    missing from the result, if it or a neighbour was already taken by another find.
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
    """Existing clusters among the clusters that a small run re-estimated; beside these, newborn have negative ids."""
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
    """Most atoms of each neighbour that are looked at."""
    return context.at_most_sampled(max(policy.neighbour_atoms, numbers_per_cluster(context.model.observation)))
