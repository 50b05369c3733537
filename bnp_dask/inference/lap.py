"""A lap with moves: proposals are planned at its start and decided at its end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from bnp_dask.core import Edit, Forget, RunningTotal, frozen, thawed
from bnp_dask.execute import Task, in_order
from bnp_dask.inference.gathered import Gathered, GatheredAtoms
from bnp_dask.inference.prior import learn_prior
from bnp_dask.inference.state import State, Work
from bnp_dask.inference.visit import usable
from bnp_dask.inputs import is_a
from bnp_dask.model import Model
from bnp_dask.moves import (
    LAP,
    Draft,
    InTurn,
    Judge,
    Merge,
    Move,
    Plan,
    PlanContext,
    Planning,
    Turn,
    acts,
    gains_of_pairs,
    pair_empty,
    row_of,
)


def begin_lap(work: Work, state: State, total: RunningTotal, pends: bool = False, proposes: bool = True) -> None:
    """Plan the lap's proposals, once whole-data statistics exist, and start their sums beside ``total``.

    ``pends``: births that single batches found in the last lap are now tried on all data.  ``proposes``: whether the
    lap visits every batch in the total, so that proposals can be tracked; else it only prepares the next.
    """
    context = replace(plan_context(work, state), pending=state.pending if pends else None, proposes=proposes)
    state.plan, state.pending = plan_lap(work.moves, context) if work.moves else Plan(), {}
    work.memo.forget_parts(state.gathered.parts())
    state.gathered = Gathered()
    state.void = False
    total.track(state.plan.pairs)
    state.trials = {t.name: RunningTotal(state.model.empty_summary(t.beliefs.ids)) for t in state.plan.trials}


def plan_context(work: Work, state: State, taken: Collection[int] = ()) -> PlanContext:
    """Facts from which moves plan now; clusters in ``taken`` are not free."""
    value = state.posterior.summary
    assert value is not None
    model, posterior, slim = state.model, frozen(state.posterior), frozen(value.without_pairs())
    return PlanContext(
        model=model,
        posterior=posterior,
        value=slim,
        source=usable(work, state),
        survey=work.survey,
        executor=work.executor,
        memory=state.memory,
        lap=state.lap,
        seed=work.seed,
        pair_gains=cache(lambda: gains_of_pairs(model, thawed(posterior), thawed(slim))),
        draft=Draft(free={int(i) for i in value.ids} - set(taken)),
        atoms=GatheredAtoms(state.gathered, work.memo.part_files, work.room, work.source.n_features),
        calm=state.calm,
        batches=work.batches,
    )


# -- the plan -----------------------------------------------------------------------------------------------------
def plan_lap(moves: Sequence[Move], context: PlanContext) -> Plan:
    """Let every move plan; the clusters that it takes are then no longer free.

    They plan in the order of :class:`~bnp_dask.moves.base.Turn`; moves of the same place alternate in going first.  The
    first lap has no whole-data statistics yet, so it only prepares the next; so does a lap that does not visit all
    batches in the total (``context.proposes`` is False).  A move that does not act in this lap proposes
    nothing; a move that does not act in the next prepares nothing.
    """
    in_turn = list(moves) if context.lap % 2 else list(reversed(moves))
    order = [move for move in in_turn if acts(move, context.lap)]
    if context.lap > 0 and context.proposes:
        turns: dict[str, Turn] = {}
        for move in order:  # moves of one kind go together
            turns[move.kind] = min(_turn(move, context), turns.get(move.kind, Turn.USUAL))
        in_place = sorted(order, key=lambda move: turns[move.kind])
        _plan_in_turn([move.plan(context) for move in in_place], context)
        if any(isinstance(move, Merge) for move in order):
            pair_empty(context)
    for move in in_turn:
        if acts(move, context.lap + 1):
            move.prepare(context)
    return context.draft.plan()


def _turn(move: Move, context: PlanContext) -> Turn:
    """Place of a move among the moves that plan in a lap."""
    if is_a(move, InTurn):
        return move.turn(context)
    return Turn.URGENT if move.is_urgent(context) else Turn.USUAL


def _plan_in_turn(turns: Sequence[Planning], context: PlanContext) -> None:
    """Let moves plan one after the other, or let each begin while tasks of earlier moves run."""
    together = context.side_by_side
    under_way = []
    for place, planning in enumerate(turns):
        # tasks of the first move are running by then; the longest tasks are among the later ones, and workers would
        # idle beside a long task that begins last
        under_way.append((planning, _run(next(planning, None), context, first=place > 0)))
        if not together:
            _finish(*under_way.pop(), context)
    for planning, found in under_way:
        _finish(planning, found, context)


def _run(tasks: Iterable[Task] | None, context: PlanContext, first: bool = False) -> Iterator[Any] | None:
    """Submit tasks, ahead of waiting ones if ``first``; returns an iterator that waits for their results."""
    window = max(LAP.in_flight, 2 * context.executor.n_workers)
    return None if tasks is None else in_order(context.executor, tasks, window, first=first)


def _finish(planning: Planning, found: Iterator[Any] | None, context: PlanContext) -> None:
    """Wait for the results of a move's tasks, and run further tasks until it asks for none."""
    while found is not None:
        try:
            found = _run(planning.send(list(found)), context)
        except StopIteration:
            return


# -- the decision -------------------------------------------------------------------------------------------------
def settle_lap(work: Work, state: State, gain: float | None) -> list[dict[str, Any]]:
    """Decide the lap's proposals on ``state.total``, then learn the prior; returns history rows, one per proposal.

    ``gain`` is the gain of the lap's last step in nats, None if it is not known.
    """
    return [*_decide_moves(work, state, gain), *learn_prior(state)]


def _decide_moves(work: Work, state: State, gain: float | None) -> list[dict[str, Any]]:
    plan = state.plan
    if not work.moves:
        return []
    if state.void:
        why = "not decided: a batch of this lap kept its older summary"
        records = [row_of(proposal, None, False, why) for proposal in plan.proposals]
        _end(work, state, [])
        return records
    parts = {name: trial.value() for name, trial in state.trials.items()}
    decision = Judge(state.model, state.memory).decide(state.total.value(), parts, plan, gain or 0.0)
    _end(work, state, decision.edits, decision.model)
    return decision.records


def _end(work: Work, state: State, edits: list[Edit], model: Model | None = None) -> None:
    edits = [*edits, Forget()] if len(state.plan.pairs) else edits
    state.total.apply(edits, state.trials)
    state.edits.extend(edits)
    if edits:
        state.settle(model)
    state.plan, state.trials, state.void = Plan(), {}, False
    trim(state)


def trim(state: State) -> None:
    """Drop edits that every stored summary has seen."""
    done = int(np.min(state.seen[state.visits >= 0], initial=len(state.edits)))
    if state.sealed is not None:
        done = min(done, state.sealed.seen)
        state.sealed.seen -= done
    del state.edits[:done]
    state.seen = np.maximum(state.seen - done, 0)
