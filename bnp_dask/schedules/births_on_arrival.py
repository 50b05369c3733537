"""Births at batches that are new to a run, decided when these are folded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bnp_dask.moves.base import Split, named_by
from bnp_dask.moves.births.move import Birth
from bnp_dask.moves.when import acts
from bnp_dask.observation.base import numbers_per_cluster
from bnp_dask.schedules.engine.fold import Folded, lose_with_step
from bnp_dask.schedules.engine.lap import (
    Remember,
    add_trials,
    keep,
    newer_clusters,
    plan_context,
    try_split,
    void_pairs,
    with_newer_clusters,
)
from bnp_dask.schedules.engine.local_steps import Taken
from bnp_dask.schedules.engine.state import State, Work
from bnp_dask.schedules.new_batches import NewBatches
from bnp_dask.structure.base import Visit

TOGETHER = 2**24
"""Numbers in the statistics of new batches that are folded together, 128 MB, at most where those are more than half a
window."""


def births_of_new(work: Work, state: State) -> Birth | None:
    """The births that all batches of a group seek together where they are new; None where each seeks its own, or none.

    Of topics none do: documents elsewhere would have no weight for them.  Of states of sequences each: steps to and
    from newborn ones are counted apart.
    """
    policy = work.model.structure.policy
    if not (policy.splits_at_batches and policy.splits_beside_trials):
        return None
    return next((move for move in work.moves if isinstance(move, Birth) and acts(move, state.lap)), None)


def splits_of_new(work: Work, state: State, new: Sequence[int]) -> dict[int, Split]:
    """Births that new batches seek each by itself: of states of sequences, while no trial counts steps to each state
    there is."""
    births = [move for move in work.moves if isinstance(move, Birth) and acts(move, state.lap)]
    plan, policy = state.plan, work.model.structure.policy
    if not births or not policy.splits_at_batches or policy.splits_beside_trials or plan.trials:
        return {}
    taken = {i for p in plan.proposals for i in named_by(p)} | set(plan.pairs.ravel().tolist())
    context = plan_context(work, state, taken)
    replace(births[0], where="batch").plan_at(context, new)
    return context.splits


def size_of_new(work: Work, state: State, new: Sequence[int], window: int) -> int:
    """Batches of a group, of those that are new: half a window, or as many as show all that a small run looks at."""
    half, birth = max(1, window // 2), births_of_new(work, state)
    if birth is None or len(new) <= half:
        return half
    atoms = float(np.mean([work.survey.batch_atoms[batch] for batch in new]))
    numbers = state.posterior.n_clusters * numbers_per_cluster(work.model.observation)
    most = min(len(new), math.ceil(birth.sample / max(atoms, 1.0)), TOGETHER // numbers)
    return half if most <= half else math.ceil(len(new) / math.ceil(len(new) / most))


def fold_new(work: Work, state: State, taken: Taken, birth: Birth | None, window: int, remember: Remember) -> Folded:
    """Add batches that were never visited, take the global step, and decide their births.

    The objective is that of more data then.

    Parameters
    ----------
    work, state, taken
        The run, and the batches.
    birth, window
        Births that all of the batches seek together, with so many tasks in flight; None: each seeks its own.
    remember
        Keeps their visits for the next, or passes over them where there will be none.
    """
    if birth is not None and any(_is_behind(state, found) for _, found in taken.visits):
        taken = taken.by.again(taken.batches)
    taken = lose_with_step(work, state, taken)
    state.total.join(taken.change.with_clusters(state.total.high.ids).delta)
    state.settle()
    if birth is None:
        known = dict(keep(work, state, taken, remember))
        rows = _decided(work, state, known)
    else:
        add_trials(work, state, taken.change)
        together = NewBatches(work, state, birth, dict(taken.visits), window)
        rows = together.settle()
        known = together.known
    for batch, found in known.items():
        remember(work, state, batch, with_newer_clusters(state, found), len(state.edits))
    return "new", None, rows


def _is_behind(state: State, found: Visit) -> bool:
    """Whether clusters were born since a batch was sent out."""
    return bool(newer_clusters(state, found)) or bool(void_pairs(state, found))


def _decided(work: Work, state: State, known: dict[int, Visit]) -> list[dict[str, Any]]:
    """Decide births that single batches found; history rows.  Changes ``known`` in place."""
    rows: list[dict[str, Any]] = []
    for batch, found in known.items():
        (known[batch],), more = try_split(work, state, [found], is_new=True)
        rows += more
    return rows
