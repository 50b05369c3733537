"""Fold of a group of batches: new statistics replace the older ones, and the objective does not fall.

Batches that went bad leave first, exactly, even if their data are gone too.  Then the change is attempted; if it would
lower the objective, it is undone and the group is visited again with the current posterior.  The results are kept for
the next visits, and births that batches tried by themselves are decided.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bnp_dask.core import Forget, InsertEmpty, RunningTotal, with_pairs
from bnp_dask.errors import DataError, StoreError
from bnp_dask.inference.bad_batches import leave_out
from bnp_dask.inference.batch_memo import is_assigned
from bnp_dask.inference.local_steps import Taken
from bnp_dask.inference.reduction import Change
from bnp_dask.inference.state import Memo, State, Work, logger, recall, remember
from bnp_dask.moves.base import named_by, record
from bnp_dask.moves.judge import Judge
from bnp_dask.moves.memory import close, note
from bnp_dask.structure import Visit, noun_of

Remember = Callable[[Work, State, int, Visit, int], None]
"""Keeps the results of a batch; arguments: run, state, batch, visit, number of changes of clusters in the visit."""

Folded = tuple[str, float | None, list[dict[str, Any]]]
"""Action, gain in nats (None if the objective before covered other data), history rows of births at batches."""


def fold_again(work: Work, state: State, taken: Taken, pends: bool = False) -> Folded:
    """Replace the batches' statistics and take the global step, without letting the objective fall.

    ``pends``: births that do not pay at their batch are kept for a trial on all data.
    """
    taken = lose_with_step(work, state, taken)
    action, before = "folded", state.elbo
    if not _is_folded(state, taken):
        taken, action = lose_with_step(work, state, taken.by.again(taken.batches)), "recomputed"
        before = state.elbo
        if not _is_folded(state, taken):
            state.void = True
            return "kept", 0.0, []  # the two differ by rounding only: the old summaries are as good
    gain = state.elbo - before
    return action, gain, _keep(work, state, taken, remember, pends=pends)


def _is_folded(state: State, taken: Taken) -> bool:
    return state.attempt(taken.change.with_clusters(state.total.high.ids).delta)


def lose_with_step(work: Work, state: State, taken: Taken) -> Taken:
    """Leave out batches that have gone bad: from here on the objective covers the others."""
    rest = lose(work, state, taken, remember)
    if rest is not taken and state.lap > 0:
        state.settle()
    return rest


def lose(work: Work, state: State, taken: Taken, remember: Remember, keeps: bool = True) -> Taken:
    """Leave out the batches of a group that have gone bad; returns the group without them.

    Their last statistics leave the total, if it ``keeps`` the statistics of every batch.  From now on they are kept as
    batches without atoms, so nothing is subtracted twice, whether or not the rest of the group is folded.
    """
    lost = dict(taken.change.lost)
    if not lost:
        return taken
    if keeps:
        subtract(work, state, [batch for batch in lost if state.visits[batch] >= 0])
    leave_out(work, state, lost)
    for batch, kept in taken.written.items():
        if batch in lost:
            state.note(batch, kept.visit, taken.seen, kept.receipt)
    for batch, found in taken.visits:
        if batch in lost:
            remember(work, state, batch, found, taken.seen)
    return replace(
        taken,
        change=replace(taken.change, lost=()),
        written={b: kept for b, kept in taken.written.items() if b not in lost},
        visits=[(b, found) for b, found in taken.visits if b not in lost],
    )


def _keep(work: Work, state: State, taken: Taken, remember: Remember, pends: bool = False) -> list[dict[str, Any]]:
    """Remember the visits, and decide births at them; returns history rows of the births."""
    rows = []
    for batch, found in keep(work, state, taken, remember):
        visits, more = try_split(work, state, [found], pends=pends)
        remember(work, state, batch, visits[0], len(state.edits))
        rows.extend(more)
    return rows


def keep(work: Work, state: State, taken: Taken, remember: Remember) -> list[tuple[int, Visit]]:
    """Take over the results of a group of batches, and ``remember`` them for the next visits.

    Returns the visits that first try a birth at their batch; these are not yet remembered.
    """
    add_trials(work, state, taken.change)
    for batch, kept in taken.written.items():
        state.note(batch, kept.visit, taken.seen, kept.receipt)
    for batch, found in taken.visits:
        if batch not in state.plan.splits:
            remember(work, state, batch, found, taken.seen)
    return [(batch, found) for batch, found in taken.visits if batch in state.plan.splits]


def add_trials(work: Work, state: State, change: Change) -> None:
    """Add the statistics of some batches for the lap's trials, and the atoms that they gathered."""
    for name, part in change.parts.items():
        state.trials[name].join(part)
    for target, atoms in change.atoms.items():
        state.gathered.add(target, atoms)
    if state.gathered.held > work.room:
        state.gathered.write(work.memo.part_files())


def pass_over(work: Work, state: State, batch: int, found: Visit, seen: int | None = None) -> None:
    """No-op in place of :func:`remember`, for batches that are never visited again."""


# -- births at batches ---------------------------------------------------------------------------------------------
def try_split(
    work: Work, state: State, visits: Sequence[Visit], is_new: bool = False, pends: bool = False
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
    parts = [(found.summary, found.newborn) for found in visits if found.newborn is not None]
    judge = Judge(state.model, state.memory)
    decision = judge.decide_split(state.total, state.terms, parts, target, recent, stays=is_new, pends=pends)
    if decision.waits:
        for found in visits:
            note(state.model, state.pending, found)
    born = decision.born
    if born is None:
        return visits, decision.records
    if pends:
        close(state.pending, target)
    state.total, state.posterior, state.terms = born.total, born.posterior, born.terms
    dropped = drop_proposals(state, target)
    state.edits.append(InsertEmpty(born.new_ids))
    both = zip(visits, born.summaries, strict=True)
    return [found.with_summary(summary) for found, summary in both], [*decision.records, *dropped]


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


def drop_proposals(state: State, target: int) -> list[dict[str, Any]]:
    """Drop the proposals that name a cluster which was split at a batch; returns their history rows.

    They would be decided on the cluster's statistics before the split.  Its trials go on, unused, to the end of the
    round.
    """
    plan = state.plan
    gone = [p for p in plan.proposals if target in named_by(p)]
    kept = ~np.isin(plan.pairs, target).any(axis=1)
    if not kept.all():
        state.edits.append(Forget((target,)))
    proposals = tuple(p for p in plan.proposals if target not in named_by(p))
    state.plan = replace(plan, proposals=proposals, pairs=plan.pairs[kept])
    why = f"not decided: {noun_of(state.model).one} {target} was split at new data"
    return [record(p.kind, p.targets, p.others, None, False, why) for p in gone]


# -- batches leave the total ---------------------------------------------------------------------------------------
def take_data(memo: Memo, state: State, batches: Collection[int]) -> bool:
    """Whether the statistics of some batches must be recomputed from their data."""
    kept = (memo.get_summary(b, int(state.visits[b]), state.receipt(b))[0] for b in batches if state.visits[b] >= 0)
    return any(is_assigned(arrays) for arrays in kept)


def subtract(work: Work, state: State, batches: Sequence[int]) -> None:
    """Take the statistics of some batches out of the total.

    If a batch left assignments, and its data are gone or have changed, the total is summed again from all other
    batches; of these, batches that left assignments are read.

    Raises
    ------
    StoreError
        The data of another batch that left assignments are gone too.
    """
    why = ""
    for batch in batches:
        try:
            state.total.subtract(recall(work, state, batch))
        except (DataError, OSError) as error:
            why = why or str(error)
    if why:
        logger.info("the total is summed again from all other batches: %s", why)
        state.total = _of_others(work, state, {*batches, *state.lost}, why)


def _of_others(work: Work, state: State, out: Collection[int], why: str) -> RunningTotal:
    total = RunningTotal(state.total.high.zeros())
    if state.sealed is not None:
        state.sealed.catch_up(state.edits)
        total.join(state.sealed.total)
    for batch in np.flatnonzero(state.visits >= 0).tolist():
        if batch in out:
            continue
        try:
            own = recall(work, state, batch)
        except (DataError, OSError) as error:
            raise StoreError(
                f"the statistics of a batch cannot be taken out: {why}. They take its data, or the data of all other "
                f"batches, and one of these cannot be used either: {error}. Put the data of one of them back"
            ) from error
        total.add(with_pairs(own, total.high.pairs))
    return total
