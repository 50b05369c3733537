"""Delete moves: the atoms of one cluster are shared out among its neighbours (thesis 4.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.batch import Batch, concatenate
from bnp_dask.errors import SettingError
from bnp_dask.execute.ordered import Task, in_order
from bnp_dask.model import Model, Trial
from bnp_dask.moves.base import HOPELESS, PlanContext, Proposal, at_most
from bnp_dask.summary import Exchange, Summary

SAMPLE = 400
"""Atoms of each cluster on which an absorbing set is chosen and re-estimated."""

ENOUGH = 1e-3
"""A sweep on the sample that makes up less than this share of what a delete lacks is the last."""


@dataclass(frozen=True)
class Delete:
    """Propose to do without a cluster.

    Parameters
    ----------
    per_lap
        Targets per lap; their absorbing sets are disjoint.
    absorbers
        Clusters that take over a target's atoms: those that would get most of them if it were not there, judged from
        a sample gathered in the lap before.
    sweeps
        Laps that a delete is refined for before it is given up: each re-estimates the absorbing clusters from the
        assignments of the one before (4.4.1 shows that one is not enough).  Stops early when a sweep gains little.
    refine
        Restricted local steps on a sample before the first lap, at most.
    change
        A rejected target is tried again when its count has changed by this share.
    tries
        Attempts on a cluster that does not change; each looks at other atoms.
    """

    per_lap: int = 5
    absorbers: int = 5
    sweeps: int = 12
    refine: int = 100
    change: float = 0.1
    tries: int = 2
    kind = "delete"

    def __post_init__(self) -> None:
        if min(self.per_lap, self.absorbers, self.sweeps, self.refine, self.tries) < 1 or not self.change >= 0:
            raise SettingError(f"{self}: needs at least one target, absorber, sweep and refine, and change >= 0")

    @property
    def at_batch(self) -> bool:
        return False

    def prepare(self, context: PlanContext) -> None:
        if context.value.n_clusters < 2:
            return
        wanted: list[int] = []
        for target in [i for i in self._targets(context) if i not in context.memory.sweeps][: self.per_lap]:
            near = np.argsort(-context.pair_gains()[context.value.position(target)], kind="stable")
            wanted += [target, *context.value.ids[near[: min(self.absorbers, len(near) - 1)]].tolist()]
        known = context.gather
        limit = max(known.limit, -(-2 * SAMPLE // context.source.n_batches))
        context.gather = replace(known, targets=tuple(dict.fromkeys((*known.targets, *wanted))), limit=limit)

    def plan(self, context: PlanContext) -> None:
        left = self.per_lap
        for target in sorted(context.memory.sweeps):
            sweep = context.memory.sweeps[target]
            if left and context.free.issuperset((target, *sweep.receivers)):
                self._propose(context, target, sweep.part)
                left -= 1
        begun: dict[int, Task] = {}
        for target in self._targets(context):
            if len(begun) == left:
                break
            if target in context.atoms and target in context.free:
                self._begin(context, target, begun)
        results = in_order(context.executor, begun.values(), 2 * context.executor.n_workers)
        for target, (heirs, gain) in zip(begun, results, strict=True):
            if gain < -HOPELESS * (1.0 + context.count(target)):
                context.give_up(self.kind, (target,), "on a sample its atoms are far better off with it")
            else:
                self._propose(context, target, heirs)

    def _targets(self, context: PlanContext) -> list[int]:
        """Clusters not known to fail, those that never failed first, then the smallest."""
        counts = dict(zip(context.value.ids.tolist(), context.value["N"], strict=True))
        if len(counts) < 2:
            return []
        failed = {i: context.memory.failed(self.kind, (i,), [n], self.change) for i, n in counts.items()}
        eligible = [i for i in counts if failed[i] < self.tries]
        return sorted(eligible, key=lambda i: (failed[i], counts[i]))

    def _begin(self, context: PlanContext, target: int, begun: dict[int, Task]) -> None:
        """Choose the absorbing set, and let a task re-estimate it on a sample."""
        value, rng = context.value, context.rng(19, target)
        free = np.array([int(i) for i in context.free_ids() if i != target], np.int64)
        if len(free) == 0:
            return
        own = at_most(context.atoms[target], SAMPLE, rng)
        places = np.array([value.position(int(i)) for i in free])
        order = np.argsort(-context.pair_gains()[value.position(target)][places], kind="stable")
        if own.n_atoms:
            # who would take over the target's atoms if it were not there
            rest = context.model.global_step(value.take(free))
            mass = context.model.local_step(rest, own)["N"]
            order = np.argsort(-mass, kind="stable")
            order = order[: max(1, int((mass > 0).sum()))]
        chosen = set(free[order[: self.absorbers]].tolist())
        receivers = [int(i) for i in value.ids if int(i) in chosen]
        pool = []
        for i in (target, *receivers):
            if i in context.atoms and context.atoms[i].n_atoms:
                atoms = at_most(context.atoms[i], SAMPLE, rng)
                pool.append(_counting(atoms, context.count(i)))
        args = (context.model, pool, value.take([target, *receivers]), self.refine)
        begun[target] = (f"refine-lap{context.lap}-cluster{target}", refine, args)
        context.free -= {target, *receivers}

    def _propose(self, context: PlanContext, target: int, basis: Summary) -> None:
        receivers = tuple(int(i) for i in basis.ids)
        donors = (target, *receivers)
        name = f"delete-lap{context.lap}-cluster{target}"
        context.trials.append(Trial(name, donors, context.model.global_step(basis)))
        context.proposals.append(Proposal(self.kind, (target,), receivers, Exchange(name, donors), self.sweeps))
        context.free -= set(donors)


def _counting(atoms: Batch, count: float) -> Batch:
    """Atoms that stand for ``count`` of their kind."""
    weights = np.ones(atoms.n_atoms) if atoms.weights is None else atoms.weights
    return replace(atoms, weights=weights * (count / weights.sum()))


def refine(model: Model, pool: list[Batch], summary: Summary, sweeps: int) -> tuple[Summary, float]:
    """Task: the absorbing clusters after some restricted local steps on a sample, without the target.

    Parameters
    ----------
    model
        The model.
    pool
        Atoms of the clusters concerned, weighted so that they stand for all of theirs.
    summary
        Statistics of these clusters; the target comes first.
    sweeps
        Restricted local steps (4.4.1 shows that one is not enough).

    Returns
    -------
    heirs, gain
        Statistics of the absorbing clusters, and what the delete gains on the sample, nats.
    """
    target, heirs = summary.ids[:1], summary.take(summary.ids[1:])
    if not pool:
        return heirs, 0.0
    atoms = concatenate(pool)
    with_target = model.local_step(model.global_step(summary.take([*heirs.ids, *target])), atoms)
    before = _objective(model, with_target)
    value = -np.inf
    for _ in range(sweeps):
        heirs = model.local_step(model.global_step(heirs), atoms)
        last, value = value, _objective(model, heirs)
        if value - last < ENOUGH * abs(value - before) or value > before:
            break
    return heirs, value - before


def _objective(model: Model, summary: Summary) -> float:
    return float(sum(model.elbo(model.global_step(summary), summary).values()))
