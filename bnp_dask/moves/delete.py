"""Delete moves: the atoms of one cluster are shared out among its neighbours (thesis 4.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnp_dask.errors import SettingError
from bnp_dask.model import Trial
from bnp_dask.moves.base import HOPELESS, PlanContext, Proposal
from bnp_dask.moves.scores import rough_allocation_gains
from bnp_dask.summary import Exchange, Summary


@dataclass(frozen=True)
class Delete:
    """Propose to do without a cluster.

    Parameters
    ----------
    per_lap
        Targets per lap; their absorbing sets are disjoint.
    absorbers
        Clusters that take over a target's atoms: those whose union with it costs the data term least.
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

    def plan(self, context: PlanContext) -> None:
        left = self.per_lap
        for target in sorted(context.memory.sweeps):
            sweep = context.memory.sweeps[target]
            if left and context.free.issuperset((target, *sweep.receivers)):
                self._propose(context, target, sweep.part)
                left -= 1
        ids = context.free_ids()
        for target in sorted(ids, key=lambda i: context.count(int(i))):
            if left == 0:
                return
            left -= self._start(context, int(target))

    def _start(self, context: PlanContext, target: int) -> bool:
        if target not in context.free:
            return False
        if context.memory.failed(self.kind, (target,), [context.count(target)], self.change):
            return False
        value = context.value
        place = value.position(target)
        gains = np.where(np.isin(value.ids, context.free_ids()), context.pair_gains()[place], -np.inf)
        best = np.argsort(-gains, kind="stable")[: self.absorbers]
        best = best[np.isfinite(gains[best])]
        if len(best) == 0:
            return False
        bound = gains[best[0]] + rough_allocation_gains(value["N"])[place, best[0]]
        if bound < -HOPELESS * context.count(target):
            return False
        chosen = set(value.ids[best].tolist())
        receivers = [int(i) for i in value.ids if int(i) in chosen]
        self._propose(context, target, _absorbed(value, target, int(value.ids[best[0]]), receivers))
        return True

    def _propose(self, context: PlanContext, target: int, basis: Summary) -> None:
        receivers = tuple(int(i) for i in basis.ids)
        donors = (target, *receivers)
        name = f"delete-lap{context.lap}-cluster{target}"
        context.trials.append(Trial(name, donors, context.model.global_step(basis)))
        context.proposals.append(Proposal(self.kind, (target,), receivers, Exchange(name, donors), self.sweeps))
        context.free -= set(donors)


def _absorbed(value: Summary, target: int, nearest: int, receivers: list[int]) -> Summary:
    """First guess of the receivers' statistics: the nearest one takes all that the target has."""
    tracked = value.with_pairs(np.array([[nearest, target]]))
    return tracked.merge(nearest, target).take(receivers).without_pairs()
