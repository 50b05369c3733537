"""A lap with moves: plan at its start, gather trials during it, decide at its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bnp_dask.core.edits import Edit, Forget, InsertEmpty
from bnp_dask.core.frozen import frozen
from bnp_dask.core.totals import RunningTotal
from bnp_dask.errors import NumericalError
from bnp_dask.moves.base import Plan, PlanContext, named_by, record
from bnp_dask.moves.births.at_batch import consider_split
from bnp_dask.moves.births.pending import close, note
from bnp_dask.moves.engine import decide, plan_lap
from bnp_dask.schedules.engine.bad_batches import leave_out, usable
from bnp_dask.schedules.engine.gathered import Gathered, GatheredAtoms
from bnp_dask.schedules.engine.leaving import subtract
from bnp_dask.schedules.engine.local_steps import Taken
from bnp_dask.schedules.engine.prior import learn_prior
from bnp_dask.schedules.engine.pure_streams.sealed import are_sealed
from bnp_dask.schedules.engine.reduction import Change
from bnp_dask.schedules.engine.state import State, Work
from bnp_dask.structure.base import Visit

Remember = Callable[[Work, State, int, Visit, int], None]


def begin_lap(work: Work, state: State, total: RunningTotal, pends: bool = False) -> None:
    """Plan the lap's proposals, once whole-data statistics exist, and start their sums beside ``total``.

    ``pends``: what single batches found in the lap before
    is tried on all data now.
    """
    context = replace(plan_context(work, state), pending=state.pending if pends else None)
    state.plan, state.pending = plan_lap(work.moves, context) if work.moves else Plan(), {}
    work.memo.forget_parts(state.gathered.parts())
    state.gathered = Gathered()
    state.void = False
    total.track(state.plan.pairs)
    state.trials = {t.name: RunningTotal(state.model.empty_summary(t.beliefs.ids)) for t in state.plan.trials}


def add_trials(work: Work, state: State, change: Change) -> None:
    """Add what some batches found for the lap's trials, and the atoms that they gathered."""
    for name, part in change.parts.items():
        state.trials[name].join(part)
    for target, atoms in change.atoms.items():
        state.gathered.add(target, atoms)
    if state.gathered.held > work.room:
        state.gathered.write(work.memo.part_files())


def keep(work: Work, state: State, taken: Taken, remember: Remember) -> list[tuple[int, Visit]]:
    """Take over what was found in a group of batches, and ``remember`` it for their next visits.

    Returns those visits that are to try a birth at their batch first.
    """
    add_trials(work, state, taken.change)
    for batch, kept in taken.written.items():
        state.note(batch, kept.visit, taken.seen, kept.receipt)
    for batch, found in taken.visits:
        if batch not in state.plan.splits:
            remember(work, state, batch, found, taken.seen)
    return [(batch, found) for batch, found in taken.visits if batch in state.plan.splits]


def lose(work: Work, state: State, taken: Taken, remember: Remember, keeps: bool = True) -> Taken:
    """Leave out those batches of a group that have gone bad; the group without them.

    Their last statistics leave the total, where it ``keeps`` those of every batch.  What is kept of them from now on
    is that of a batch without atoms, so nothing is taken out twice, whether or not the rest of the group is folded.
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


def with_newer_clusters(state: State, found: Visit) -> Visit:
    """Results from a batch, with empty rows for clusters born after its posterior was sent out, and no void pairs."""
    missing, void = newer_clusters(state, found), void_pairs(state, found)
    if not missing and not void:
        return found
    return found.with_summary(found.summary.without_pairs_of(void).insert_empty(missing))


def void_pairs(state: State, found: Visit) -> list[int]:
    """Clusters that results from a batch track in pairs, all of which are void since one of them was split."""
    pairs, held = state.total.high.pairs, found.summary.pairs
    return np.setdiff1d(held, pairs).tolist() if len(held) > len(pairs) else []


def newer_clusters(state: State, found: Visit) -> list[int]:
    """Ids of clusters that the posterior behind ``found`` did not know: its batch holds no mass of them."""
    ids = state.total.high.ids
    return [int(i) for i in ids[~np.isin(ids, found.summary.ids)]]


def try_split(
    work: Work, state: State, visits: Sequence[Visit], is_new: bool = False, pends: bool = False
) -> tuple[list[Visit], list[dict[str, Any]]]:
    """Decide a birth at batches just folded; what is known of each after it, and its history row.

    The newborn clusters of several batches are the same ones.  At those that are ``is_new`` to the run, the target may
    keep a part of them.  ``pends``: what does not pay at its batches is kept, for all data to try in the next lap.
    """
    recent = newer_clusters(state, visits[0])
    visits = [with_newer_clusters(state, found) for found in visits]
    target = visits[0].split
    if target is None:
        return visits, []
    parts = [(found.summary, found.newborn) for found in visits if found.newborn is not None]
    if not parts:
        state.memory.remember_failure("birth", (target,), _counts(state, target))
        why = "no split of this batch's atoms is better than none"
        return visits, [record("birth", (target,), (), None, False, why)]
    if pends and not state.model.structure.policy.splits_at_batches:
        for found in visits:
            note(state.model, state.pending, found)
        return visits, [record("birth", (target,), (), None, False, "what this batch found all data are to try")]
    try:
        born, gain = consider_split(state.model, state.total, state.terms, parts, target, recent, state.memory, is_new)
    except NumericalError as error:  # what is not finite is no gain; the state is as it was
        state.memory.remember_failure("birth", (target,), _counts(state, target))
        return visits, [record("birth", (target,), (), None, False, f"refused: {error}")]
    if born is None and pends:
        for found in visits:
            note(state.model, state.pending, found)
        return visits, [record("birth", (target,), (), gain, False, "the objective would fall with this batch alone")]
    if born is None:
        state.memory.remember_failure("birth", (target,), _counts(state, target))
        return visits, [record("birth", (target,), (), gain, False, "the objective would fall")]
    state.memory.failures.pop(("birth", (target,)), None)
    if pends:
        close(state.pending, target)
    state.total, state.posterior, state.terms = born.total, born.posterior, born.terms
    dropped = drop_proposals(state, target)
    state.edits.append(InsertEmpty(born.new_ids))
    why = "the objective rises" + (f"; united with {list(born.united)} of other batches" if born.united else "")
    row = record("birth", (target,), (*born.new_ids, *born.united), gain, True, why)
    both = zip(visits, born.summaries, strict=True)
    back = [record("return", (cluster,), (), None, True, "it was laid away before") for cluster in born.returned]
    return [found.with_summary(summary) for found, summary in both], [row, *back, *dropped]


def drop_proposals(state: State, target: int) -> list[dict[str, Any]]:
    """Drop the proposals that name a cluster which was split at a batch; their history rows.

    They would be decided on what all batches held of it.  Its trials go on to the end of the round, for nobody.
    """
    plan = state.plan
    gone = [p for p in plan.proposals if target in named_by(p)]
    kept = ~np.isin(plan.pairs, target).any(axis=1)
    if not kept.all():
        state.edits.append(Forget((target,)))
    proposals = tuple(p for p in plan.proposals if target not in named_by(p))
    state.plan = replace(plan, proposals=proposals, pairs=plan.pairs[kept])
    why = f"not decided: cluster {target} was split at new data"
    return [record(p.kind, p.targets, p.others, None, False, why) for p in gone]


def _counts(state: State, cluster: int) -> list[float]:
    value = state.total.value()
    return [float(value["N"][value.position(cluster)])]


def settle_lap(work: Work, state: State, gain: float | None) -> list[dict[str, Any]]:
    """Decide the lap's proposals on ``state.total``, then learn the prior; history rows, one per proposal.

    ``gain`` is that of the lap's last step in nats, None where it is not known.
    """
    return [*_decide_moves(work, state, gain), *learn_prior(state)]


def _decide_moves(work: Work, state: State, gain: float | None) -> list[dict[str, Any]]:
    plan = state.plan
    if not work.moves:
        return []
    if state.void:
        why = "not decided: a batch of this lap kept its older summary"
        records = [record(p.kind, p.targets, p.others, None, False, why) for p in plan.proposals]
        _end(work, state, [])
        return records
    parts = {name: trial.value() for name, trial in state.trials.items()}
    decision = decide(state.model, state.total.value(), parts, plan, state.memory, gain or 0.0)
    _end(work, state, decision.edits)
    return decision.records


def _end(work: Work, state: State, edits: list[Edit]) -> None:
    edits = [*edits, Forget()] if len(state.plan.pairs) else edits
    state.total.apply(edits, state.trials)
    state.edits.extend(edits)
    if edits:
        state.settle()
    state.plan, state.trials, state.void = Plan(), {}, False
    trim(state)


def trim(state: State) -> None:
    """Drop edits that every stored summary has seen."""
    done = int(np.min(state.seen[~are_sealed(state.visits)], initial=len(state.edits)))
    if state.sealed is not None:
        done = min(done, state.sealed.seen)
        state.sealed.seen -= done
    del state.edits[:done]
    state.seen = np.maximum(state.seen - done, 0)


def plan_context(work: Work, state: State, taken: Collection[int] = ()) -> PlanContext:
    """Facts that moves may use to plan now; clusters that are ``taken`` are not free."""
    value = state.posterior.summary
    assert value is not None
    return PlanContext(
        model=state.model,
        posterior=frozen(state.posterior),
        value=frozen(value.without_pairs()),
        source=usable(work, state),
        survey=work.survey,
        executor=work.executor,
        memory=state.memory,
        lap=state.lap,
        seed=work.seed,
        free={int(i) for i in value.ids} - set(taken),
        atoms=GatheredAtoms(state.gathered, work.memo.part_files, work.room, work.source.n_features),
        calm=state.calm,
    )
