"""Merges in a pure stream, decided on totals alone: entropies of unions are bounded from below.

For batches that are not kept it is unknown which atoms two clusters share.  With a bound in place of the union's
entropy, the objective after a merge is bounded from below, so a merge that raises this bound raises the objective.  The
bound is exact for clusters that share all of their atoms evenly, and for clusters that share none
(:meth:`Summary.unite`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bnp_dask.core.edits import Unite
from bnp_dask.core.summary import Summary
from bnp_dask.inference.drive import history_row
from bnp_dask.inference.lap import plan_context
from bnp_dask.inference.state import State, Work
from bnp_dask.inference.variational.lineage import Lineage
from bnp_dask.moves import Merge
from bnp_dask.moves.base import MergeProposal, Plan
from bnp_dask.moves.judge import Judge
from bnp_dask.moves.merge import pair_empty

UNITED = "united"
"""Action of a history row in which merges were decided on totals."""

LEAST = 1e-12
"""Share of an empty cluster, so that it has a logarithm."""


def unite(work: Work, state: State, lineage: Lineage) -> Iterator[dict[str, Any]]:
    """Decide merges on totals; yields the history row that records them, nothing if no merge is proposed."""
    merges = [move for move in work.moves if isinstance(move, Merge)]
    if not merges or not work.model.structure.policy.bounds_unions:
        return
    value, context = state.total.value(), plan_context(work, state)
    for _ in merges[0].plan(context):
        raise AssertionError("merges need no tasks")
    pair_empty(context)
    proposals = []
    for proposal in context.proposals:
        assert isinstance(proposal, MergeProposal)
        keep, drop = proposal.targets
        proposals.append(replace(proposal, edit=Unite(keep, drop, best_share(value, keep, drop))))
    if not proposals:
        return
    found = Judge(state.model, state.memory).decide(value, {}, Plan(proposals=tuple(proposals)))
    if found.edits:
        lineage.edited(found.edits)
        state.edits.extend(found.edits)
        state.total.apply(found.edits)
        state.settle()
    state.step += 1
    row = history_row(state, state.lap, None, exact=True, action=UNITED, gain=0.0, moves=found.records)
    yield {**row, "n_batches": 0}


def best_share(value: Summary, keep: int, drop: int) -> float | None:
    """Share with which :meth:`Summary.unite` bounds an entropy best: the share of ``keep`` in both; None for zero."""
    pair = value.without_pairs().take([keep, drop])
    counts = np.maximum(pair["N"], 0.0)
    share = min(max(float(counts[0] / max(counts.sum(), LEAST)), LEAST), 1.0 - LEAST)
    tracked = [name for name, field in pair.fields.items() if field.merge == "tracked"]
    union = pair.unite(keep, drop, share)
    return share if sum(float(union[name].sum()) for name in tracked) > 0 else None
