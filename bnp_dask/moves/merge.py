"""Merge moves: two clusters become one (thesis 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bnp_dask.core import Merge as MergeEdit
from bnp_dask.core import register
from bnp_dask.inputs import hold, number_from, whole_number
from bnp_dask.moves.base import MergeProposal, PlanContext, Planning, hold_laps
from bnp_dask.moves.pairs import allocation_gains, best_first, rough_allocation_gains
from bnp_dask.moves.policy import LAP, MergePolicy, hold_policy


@register
@dataclass(frozen=True)
class Merge:
    """Propose to unite pairs of clusters whose union explains the data nearly as well.

    Parameters
    ----------
    per_lap
        Most pairs tracked in one lap; many of them may be accepted, as long as they share no cluster.
    per_cluster
        Most pairs that contain the same cluster.
    change
        A rejected pair is tried again when the count of one of its clusters has changed by this share.
    laps, start
        When the move acts: in these laps alone, such as ``range(0, 20)`` (in a job file ``[0, 20]``), not before lap
        ``start``.  Laps are counted from 0, including laps of updates; nothing is decided in the first.  A run does not
        end as converged before all its moves have begun.
    policy
        Numbers that few will want to change: :class:`bnp_dask.moves.policy.MergePolicy`.

    Notes
    -----
    Candidates are ranked by the m-score (eq. 4.10) over all pairs (of topics, and of more than 256 clusters: near
    pairs, :func:`bnp_dask.moves.pairs.near_pairs`).  It bounds the gain from above, since uniting clusters can only
    lower the entropy, so pairs with a negative score are never worth tracking.
    """

    per_lap: int = 50
    per_cluster: int = 3
    change: float = 0.05
    laps: range | tuple[int, int] | None = field(default=None, metadata={"optional": True})
    start: int = 0
    policy: MergePolicy = field(default_factory=MergePolicy, repr=False)
    kind = "merge"

    def __post_init__(self) -> None:
        hold(self, "per_lap", whole_number("per_lap", self.per_lap, 1))
        hold(self, "per_cluster", whole_number("per_cluster", self.per_cluster, 1))
        hold(self, "change", number_from("change", self.change, 0.0))
        hold_policy(self, "policy", MergePolicy)
        hold_laps(self)

    @property
    def at_batch(self) -> bool:
        return False

    def prepare(self, context: PlanContext) -> None:
        """Request nothing: merges need no atoms."""

    def is_urgent(self, context: PlanContext) -> bool:
        """False: the other moves may go first."""
        return False

    def plan(self, context: PlanContext) -> Planning:
        pairs, score = self._ranked(context)
        is_new = [not self._failed(context, pair) for pair in pairs.tolist()]
        pairs, score = pairs[is_new], score[is_new]
        for m in best_first(pairs, score, per_cluster=self.per_cluster, most=self.per_lap):
            keep, drop = pairs[m].tolist()
            context.propose(MergeProposal(MergeEdit(keep, drop)))
        yield from ()  # needs no tasks

    def _failed(self, context: PlanContext, pair: list[int]) -> int:
        """Number of times that a pair failed with about its present counts."""
        return context.memory.failed(self.kind, (pair[0], pair[1]), context.counts(pair), self.change)

    def _ranked(self, context: PlanContext) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of ids that may be worth tracking, ``(M, 2)``, and their m-scores, best first."""
        value, found = context.value, context.pair_gains()
        free = np.isin(value.ids, list(context.untouched()))
        rough = found.gains + rough_allocation_gains(value.units, found.first, found.second)
        rough[~(free[found.first] & free[found.second])] = -np.inf
        # the exact allocation term is computed only for pairs that it can decide
        near = np.argsort(-rough, kind="stable")[: 2 * self.per_lap]
        near = near[rough[near] > -self.policy.doubt * len(value.ids)]
        pairs = np.stack([value.ids[found.first[near]], value.ids[found.second[near]]], axis=1)
        exact = found.gains[near] + allocation_gains(context.model, value, pairs)
        order = np.argsort(-exact, kind="stable")
        return pairs[order], exact[order]


def pair_empty(context: PlanContext) -> None:
    """Pair clusters that stand for no atom with others, in every lap, whatever failed before.

    Such a merge may cost a little, which only gains of the lap can pay for.  Other proposals may name these clusters
    too.  Pairs are decided last, and are void if one of their clusters has changed by then, so partners that no other
    proposal names are preferred.
    """
    ids = context.value.ids.tolist()
    tracked = {frozenset(pair) for pair in context.pairs}
    named = context.claimed() | set().union(*tracked)
    empty = [i for i in ids if context.count(i) < LAP.unused]
    # a birth at one batch changes the statistics of its target there alone, but pairs are tracked over all batches
    left = set(ids) - context.draft.at_stake - {split.target for split in context.draft.splits.values()}
    for drop in empty[: LAP.empty_pairs]:
        others = left - {drop}
        if drop not in left or not others:
            continue
        near = dict(zip(ids, context.pair_gains()[context.value.position(drop)].tolist(), strict=True))
        keep = max(sorted(others), key=lambda i: (i not in named, i not in empty, near[i]))
        left = others - {keep}
        if {keep, drop} not in tracked:
            context.propose(MergeProposal(MergeEdit(keep, drop), again=True), takes=())
