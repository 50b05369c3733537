"""Memoized folding: a group of batches takes the place of its older statistics."""

from __future__ import annotations

from typing import Any

from bnp_dask.schedules.engine.lap import Remember, keep, lose, try_split
from bnp_dask.schedules.engine.local_steps import Taken
from bnp_dask.schedules.engine.state import State, Work, remember
from bnp_dask.structure.base import Visit

Folded = tuple[str, float | None, list[dict[str, Any]]]
"""Action, gain in nats (None where the objective before was that of other data), history rows of births at batches."""


def pass_over(work: Work, state: State, batch: int, found: Visit, seen: int | None = None) -> None:
    """Keep nothing of a batch that is never visited again."""


def fold_again(work: Work, state: State, taken: Taken, pends: bool = False) -> Folded:
    """Replace the batches' statistics, take the global step, and see that the objective does not fall.

    ``pends``: births that do not pay at their batch are kept for a trial on all data.
    """
    taken = lose_with_step(work, state, taken)
    action, before = "folded", state.elbo
    if not _is_folded(state, taken):
        taken, action = lose_with_step(work, state, taken.by.again(taken.batches)), "recomputed"
        before = state.elbo
        if not _is_folded(state, taken):
            state.void = True
            return "kept", 0.0, []  # only rounding separates the two: the old summaries are as good
    gain = state.elbo - before
    return action, gain, _keep(work, state, taken, remember, pends=pends)


def lose_with_step(work: Work, state: State, taken: Taken) -> Taken:
    """Leave out batches that have gone bad: from here on the objective is that of the others."""
    rest = lose(work, state, taken, remember)
    if rest is not taken and state.lap > 0:
        state.settle()
    return rest


def _keep(work: Work, state: State, taken: Taken, remember: Remember, pends: bool = False) -> list[dict[str, Any]]:
    """Remember the visits, and decide births at them; history rows of these."""
    rows = []
    for batch, found in keep(work, state, taken, remember):
        visits, more = try_split(work, state, [found], pends=pends)
        remember(work, state, batch, visits[0], len(state.edits))
        rows.extend(more)
    return rows


def _is_folded(state: State, taken: Taken) -> bool:
    return state.attempt(taken.change.with_clusters(state.total.high.ids).delta)
