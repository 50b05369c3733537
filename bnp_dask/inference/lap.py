"""A lap with moves: proposals are planned at its start and decided at its end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from bnp_dask.core.edits import Edit, Forget
from bnp_dask.core.frozen import frozen
from bnp_dask.core.totals import RunningTotal
from bnp_dask.inference.bad_batches import usable
from bnp_dask.inference.gathered import Gathered, GatheredAtoms
from bnp_dask.inference.prior import learn_prior
from bnp_dask.inference.sealed import are_sealed
from bnp_dask.inference.state import State, Work
from bnp_dask.moves.base import Plan, PlanContext, record
from bnp_dask.moves.engine import decide, plan_lap


def begin_lap(work: Work, state: State, total: RunningTotal, pends: bool = False) -> None:
    """Plan the lap's proposals, once whole-data statistics exist, and start their sums beside ``total``.

    ``pends``: births that single batches found in the last lap are now tried on all data.
    """
    context = replace(plan_context(work, state), pending=state.pending if pends else None)
    state.plan, state.pending = plan_lap(work.moves, context) if work.moves else Plan(), {}
    work.memo.forget_parts(state.gathered.parts())
    state.gathered = Gathered()
    state.void = False
    total.track(state.plan.pairs)
    state.trials = {t.name: RunningTotal(state.model.empty_summary(t.beliefs.ids)) for t in state.plan.trials}


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
    """Facts from which moves plan now; clusters in ``taken`` are not free."""
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
