"""Delete moves: the atoms of one cluster are shared out among its neighbours (thesis 4.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.errors import SettingError
from bnp_dask.model import Trial
from bnp_dask.moves.base import HOPELESS, PlanContext, Proposal
from bnp_dask.moves.scores import rough_allocation_gain
from bnp_dask.summary import Exchange, Summary

SAMPLE = 500
"""Atoms of a target from which its absorbing set is chosen."""


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
    change
        A rejected target is tried again when its count has changed by this share.
    """

    per_lap: int = 5
    absorbers: int = 5
    sweeps: int = 6
    change: float = 0.1
    kind = "delete"

    def __post_init__(self) -> None:
        if min(self.per_lap, self.absorbers, self.sweeps) < 1 or not self.change >= 0:
            raise SettingError(f"{self}: needs at least one target, absorber and sweep, and change >= 0")

    @property
    def at_batch(self) -> bool:
        return False

    def prepare(self, context: PlanContext) -> None:
        wanted = [i for i in self._targets(context) if i not in context.memory.sweeps][: self.per_lap]
        known = context.gather
        limit = max(known.limit, -(-SAMPLE // context.source.n_batches))
        context.gather = replace(known, targets=tuple(dict.fromkeys((*known.targets, *wanted))), limit=limit)

    def plan(self, context: PlanContext) -> None:
        left = self.per_lap
        for target in sorted(context.memory.sweeps):
            sweep = context.memory.sweeps[target]
            if left and context.free.issuperset((target, *sweep.receivers)):
                self._propose(context, target, sweep.part)
                left -= 1
        for target in self._targets(context):
            if left == 0:
                return
            if target in context.atoms and target in context.free:
                left -= self._start(context, target)

    def _targets(self, context: PlanContext) -> list[int]:
        """Clusters that no attempt failed on since they changed, smallest first."""
        counts = dict(zip(context.value.ids.tolist(), context.value["N"], strict=True))
        if len(counts) < 2:
            return []
        eligible = [i for i in counts if not context.memory.failed(self.kind, (i,), [counts[i]], self.change)]
        return sorted(eligible, key=lambda i: counts[i])

    def _start(self, context: PlanContext, target: int) -> bool:
        value, atoms = context.value, context.atoms[target]
        free = np.array([int(i) for i in context.free_ids() if i != target], np.int64)
        if len(free) == 0:
            return False
        alone = value.take([target])
        if atoms.n_atoms == 0:
            heirs = value.take(free[:1])
        else:
            # who would take over the target's atoms if it were not there, judged from a sample of them
            rest = context.model.global_step(value.take(free))
            share = context.model.local_step(rest, atoms.take(np.arange(min(atoms.n_atoms, SAMPLE))))
            share = share.scale(context.count(target) / max(float(share["N"].sum()), 1e-300))
            best = np.argsort(-share["N"], kind="stable")[: self.absorbers]
            chosen = set(free[best[share["N"][best] > 0]].tolist())
            receivers = [int(i) for i in value.ids if int(i) in chosen]
            heirs = value.take(receivers) + share.take(receivers)
        terms = [self._data(context, part) for part in (heirs, value.take(heirs.ids), alone)]
        bound = terms[0] - terms[1] - terms[2] + rough_allocation_gain(alone["N"], heirs["N"])
        if bound < -HOPELESS * context.count(target):
            context.memory.remember_failure(self.kind, (target,), [context.count(target)])
            return False
        self._propose(context, target, heirs)
        return True

    @staticmethod
    def _data(context: PlanContext, part: Summary) -> float:
        return float(context.model.data_terms(context.model.observation_step(part), part).sum())

    def _propose(self, context: PlanContext, target: int, basis: Summary) -> None:
        receivers = tuple(int(i) for i in basis.ids)
        donors = (target, *receivers)
        name = f"delete-lap{context.lap}-cluster{target}"
        context.trials.append(Trial(name, donors, context.model.global_step(basis)))
        context.proposals.append(Proposal(self.kind, (target,), receivers, Exchange(name, donors), self.sweeps))
        context.free -= set(donors)
