"""Fold of a group of batches: new statistics replace the older ones, and the objective does not fall.

The update of thesis Alg. 3.3 for several batches at once: ``total - old + new``, then the global step.  A change that
would lower the objective is undone, and the group is visited again with the current posterior.  The visits of a folded
group are kept for the next ones, and births that batches tried by themselves are decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bnp_dask.core import Forget, InsertEmpty
from bnp_dask.inference.drive import Told
from bnp_dask.inference.local_steps import Taken
from bnp_dask.inference.state import State, Work, remember
from bnp_dask.moves import Judge, close, note, row_of
from bnp_dask.structure import Visit, noun_of


def fold_again(work: Work, state: State, taken: Taken, pends: bool = False) -> Told | None:
    """Replace the batches' statistics and take the global step, without letting the objective fall.

    Parameters
    ----------
    work, state, taken
        The run, and the group of batches.
    pends
        Whether births that do not pay at their batch are kept for a trial on all data.

    Returns
    -------
    told
        Columns of the history's row: ``action``, ``gain`` in nats, and ``moves``, the births at batches.  None if the
        group is to be visited again, because its change would lower the objective and was made with an older posterior.
    """
    settle_without_lost(state, taken)
    before = state.elbo
    if not state.attempt(taken.change.with_clusters(state.total.high.ids).delta):
        if taken.attempt == 1:
            return None
        state.void = True
        return {"action": "kept", "gain": 0.0, "moves": []}  # both differ by rounding only: the old are as good
    gain, moves = state.elbo - before, []
    for batch, found in keep(work, state, taken):
        visits, rows = try_split(state, [found], pends=pends)
        remember(work, state, batch, visits[0], keeps=taken.keeps)
        moves += rows
    return {"action": "folded" if taken.attempt == 1 else "recomputed", "gain": gain, "moves": moves}


def settle_without_lost(state: State, taken: Taken) -> None:
    """Take the global step if batches have left: from here on the objective covers the others."""
    if taken.has_lost and state.lap > 0:
        state.settle()


def keep(work: Work, state: State, taken: Taken) -> list[tuple[int, Visit]]:
    """Take over the results of a group of batches, and keep them for the next visits.

    Returns the visits that first try a birth at their batch; these are not yet kept.
    """
    add_trials(work, state, taken)
    for batch, kept in taken.written.items():
        state.note(batch, kept.visit, taken.seen, kept.receipt)
    for batch, found in taken.visits:
        if batch not in state.plan.splits:
            remember(work, state, batch, found, taken.seen, keeps=taken.keeps)
    return [(batch, found) for batch, found in taken.visits if batch in state.plan.splits]


def add_trials(work: Work, state: State, taken: Taken) -> None:
    """Add the statistics of some batches for the lap's trials, and the atoms that they gathered."""
    for name, part in taken.change.parts.items():
        state.trials[name].join(part)
    for target, atoms in taken.change.atoms.items():
        state.gathered.add(target, atoms)
    if state.gathered.held > work.room:
        state.gathered.write(work.memo.part_files())


# -- births at batches ---------------------------------------------------------------------------------------------
def try_split(
    state: State, visits: Sequence[Visit], is_new: bool = False, pends: bool = False
) -> tuple[list[Visit], list[dict[str, Any]]]:
    """Decide a birth at batches just folded; returns each batch's visit after it, and its history rows.

    The newborn clusters of several batches are the same ones.  If the batches are new to the run (``is_new``), the
    target may keep a part of them.  ``pends``: a birth that does not pay at its batches is kept, for a trial on all
    data in the next lap.
    """
    recent = newer_clusters(state, visits[0])
    visits = [with_newer_clusters(state, found) for found in visits]
    target = visits[0].split
    if target is None:
        return visits, []
    decision = Judge(state.model, state.memory).decide_split(
        total=state.total,
        terms=state.terms,
        parts=[(found.summary, found.newborn) for found in visits if found.newborn is not None],
        target=target,
        recent=recent,
        stays=is_new,
        pends=pends,
    )
    if decision.waits:
        for found in visits:
            note(state.model, state.pending, found)
    born = decision.born
    if born is None:
        return visits, decision.records
    if pends:
        close(state.pending, target)
    state.total, state.posterior, state.terms = born.total, born.posterior, born.terms
    # other proposals about the target would be decided on its statistics before the split; its trials go on, unused
    plan, dropped = state.plan.without(target)
    if len(plan.pairs) < len(state.plan.pairs):
        state.edits.append(Forget((target,)))
    state.plan = plan
    state.edits.append(InsertEmpty(born.new_ids))
    why = f"not decided: {noun_of(state.model).one} {target} was split at new data"
    both = zip(visits, born.summaries, strict=True)
    return (
        [found.with_summary(summary) for found, summary in both],
        [*decision.records, *[row_of(proposal, None, False, why) for proposal in dropped]],
    )


def with_newer_clusters(state: State, found: Visit) -> Visit:
    """Results from a batch, with empty rows for clusters born after its posterior was sent out, without void pairs."""
    missing, void = newer_clusters(state, found), void_pairs(state, found)
    if not missing and not void:
        return found
    return found.with_summary(found.summary.without_pairs_of(void).insert_empty(missing))


def newer_clusters(state: State, found: Visit) -> list[int]:
    """Ids of clusters missing in the posterior behind ``found``: its batch holds no mass of them."""
    ids = state.total.high.ids
    return [int(i) for i in ids[~np.isin(ids, found.summary.ids)]]


def void_pairs(state: State, found: Visit) -> list[int]:
    """Clusters tracked in pairs by the results from a batch, all void because one of them was split."""
    pairs, held = state.total.high.pairs, found.summary.pairs
    return np.setdiff1d(held, pairs).tolist() if len(held) > len(pairs) else []
