"""A move: the smallest clusters are proposed for union with those most like them."""

from dataclasses import dataclass

import numpy as np

import bnp_dask as bnp
from bnp_dask.core.summary import Merge
from bnp_dask.moves.base import Proposal


@bnp.register
@dataclass(frozen=True)
class UniteSmallest:
    """Propose, in each lap, to unite the smallest clusters with the ones that are most like them.

    Parameters
    ----------
    per_lap
        Clusters to try in one lap.
    change
        A union that failed is tried again when a count has changed by this share.
    """

    per_lap: int = 2
    change: float = 0.05
    kind = "unite"
    at_batch = False

    def is_urgent(self, context):
        """No: others may plan first."""
        return False

    def prepare(self, context):
        """Ask for no atoms of the lap before."""

    def plan(self, context):
        gains = context.pair_gains()  # exact change of the data term by uniting near clusters, nats
        ids = context.value.ids
        for k in np.argsort(context.value["N"], kind="stable")[: self.per_lap]:
            keep, drop = int(ids[gains[k].argmax()]), int(ids[k])
            failed = context.memory.failed(self.kind, (keep, drop), context.counts((keep, drop)), self.change)
            if failed or not {keep, drop} <= context.untouched():
                continue
            context.free -= {keep, drop}
            # the lap tracks the pair, so that the objective after the union is known exactly
            context.pairs.append((keep, drop))
            context.proposals.append(Proposal(self.kind, (keep, drop), (), Merge(keep, drop)))
        yield from ()  # needs no tasks
