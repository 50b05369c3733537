"""Merge moves: two clusters become one (thesis 4.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnp_dask.errors import SettingError
from bnp_dask.moves.base import PlanContext, Proposal
from bnp_dask.moves.scores import all_pairs, allocation_gains, data_gains
from bnp_dask.summary import Merge as MergeEdit


@dataclass(frozen=True)
class Merge:
    """Propose to unite pairs of clusters whose union explains the data nearly as well.

    Parameters
    ----------
    per_lap
        Pairs tracked in one lap at most; many of them may be accepted, as long as they share no cluster.
    per_cluster
        Pairs that one cluster may be in.
    change
        A rejected pair is tried again when the count of one of its clusters has changed by this share.

    Notes
    -----
    Candidates are ranked by the m-score (eq. 4.10) over all pairs.  It bounds the gain from above, since uniting
    clusters can only lower the entropy, so pairs with a negative score are never worth tracking.
    """

    per_lap: int = 50
    per_cluster: int = 3
    change: float = 0.05
    kind = "merge"

    def __post_init__(self) -> None:
        if self.per_lap < 1 or self.per_cluster < 1 or not self.change >= 0:
            raise SettingError(f"{self}: needs at least one pair per lap and per cluster, and change >= 0")

    @property
    def at_batch(self) -> bool:
        return False

    def plan(self, context: PlanContext) -> None:
        ids = context.free_ids()
        pairs = all_pairs(ids)
        if len(pairs) == 0:
            return
        value = context.value
        score = data_gains(context.model, context.posterior, value, pairs)
        # the allocation term is worth at most a few nats per cluster: look only at pairs it could save
        near = np.argsort(-score, kind="stable")[: 8 * self.per_lap]
        pairs = pairs[near]
        score = score[near] + allocation_gains(context.model, context.posterior, value, pairs)
        used: dict[int, int] = {}
        taken = 0
        for m in np.argsort(-score, kind="stable"):
            a, b = int(pairs[m, 0]), int(pairs[m, 1])
            if score[m] <= 0 or taken == self.per_lap:
                break
            if max(used.get(a, 0), used.get(b, 0)) >= self.per_cluster:
                continue
            if context.memory.failed(self.kind, (a, b), context.counts((a, b)), self.change):
                continue
            used[a], used[b] = used.get(a, 0) + 1, used.get(b, 0) + 1
            taken += 1
            context.pairs.append((a, b))
            context.proposals.append(Proposal(self.kind, (a, b), (), MergeEdit(a, b)))
        context.free -= set(used)
