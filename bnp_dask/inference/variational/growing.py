"""Changes of a state between the visits of a growing run: words, sealed and retired batches, unions, age, dormancy.

* Words new to a run: its statistics get columns for them, in which no older atom counts.
* A pure stream: only the sum of new batches is kept, so the state of a run does not grow with its data.
* Merges in a pure stream, decided on totals alone.  For batches that are not kept it is unknown which atoms two
  clusters share.  With a bound in place of the union's entropy, the objective after a merge is bounded from below, so a
  merge that raises this bound raises the objective.  The bound is exact for clusters that share all of their atoms
  evenly, and for clusters that share none (:meth:`Summary.unite`).
* Batches that are retired: their statistics leave the total, and a batch without atoms takes the place of each.
* Time that passes: all batches fade together, so that totals are scaled and stay exact.  A batch weighs
  ``2 ** (-age / half_life)``.  The objective is computed on the weighted data.  Fading changes it only when time
  passes; otherwise it never falls.
* Clusters that fade leave the model, and are laid away under their ids for as long as there is room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.core import NO_PARTS, WORDS, Fade, RunningTotal, Summary, Take, Unite, Widen
from bnp_dask.inference.drive import history_row
from bnp_dask.inference.lap import plan_context, trim
from bnp_dask.inference.local_steps import LocalStep, lose_batch
from bnp_dask.inference.state import SEALED, Loss, Sealed, State, Work, recall_parts, remember
from bnp_dask.inference.variational.arrivals import Round, abandon
from bnp_dask.inference.variational.lineage import Lineage
from bnp_dask.inference.visit import Request, instead, subtract
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import Judge, Merge, MergeProposal, Plan, best_share, pair_empty, record

# -- new words -----------------------------------------------------------------------------------------------------
WIDENED = "widened"
"""Action of a history row in which words were added."""


def widen(state: State, model: Model, size: int) -> dict[str, Any]:
    """Extend a run to ``size`` words, as in ``model``; returns the history row that records it.

    Kept statistics of batches are widened when they are next used, as after every change of clusters.  The objective
    changes by the prior of the new words, and equals the objective of a run that counted these words from its start.
    """
    edit = Widen(WORDS[1], size)
    count = size - state.model.observation.sizes[WORDS[1]]
    state.edits.append(edit)
    state.total.apply([edit])
    for trial in state.trials.values():
        trial.apply([edit])
    trials = tuple(replace(trial, beliefs=_widened(trial.beliefs.summary, model, edit)) for trial in state.plan.trials)
    state.plan = replace(state.plan, trials=trials)
    memory = state.memory
    memory.sweeps = {t: replace(sweep, part=edit.apply(sweep.part, NO_PARTS)) for t, sweep in memory.sweeps.items()}
    memory.dormant = {i: edit.apply(part, NO_PARTS) for i, part in memory.dormant.items()}
    state.gathered.widen(size)
    state.pending = {}  # found among the words of before
    state.settle(model)
    state.step += 1
    row = history_row(state, state.lap, None, exact=True, action=WIDENED, gain=None, moves=[])
    return {**row, "n_batches": 0, "words": count}


def _widened(summary: Summary | None, model: Model, edit: Widen) -> Posterior:
    assert summary is not None
    return model.global_step(edit.apply(summary, NO_PARTS))


# -- sealed batches ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Before:
    """The total before new batches are visited, and the number of changes of clusters so far."""

    total: RunningTotal
    n_edits: int

    @staticmethod
    def of(state: State) -> Before:
        """The current total and number of changes of a state."""
        return Before(state.total.copy(), len(state.edits))


def seal(state: State, before: Before, batches: np.ndarray) -> None:
    """Add everything that entered the total since ``before`` to the sealed sum: these new batches, and nothing else.

    Births at batches are the only changes of clusters in between.
    """
    before.total.apply(state.edits[before.n_edits :])
    if state.sealed is None:
        state.sealed = Sealed(RunningTotal(state.total.high.zeros()), len(state.edits))
    state.sealed.catch_up(state.edits)
    state.sealed.total.join(state.total)
    state.sealed.total.join(before.total, -1.0)
    state.visits[batches], state.seen[batches] = SEALED, 0


def settle(state: State) -> None:
    """Bring the sum of sealed batches up to date, so that no change of clusters is kept for it."""
    if state.sealed is not None:
        state.sealed.catch_up(state.edits)
        trim(state)


# -- merges in a pure stream ---------------------------------------------------------------------------------------
UNITED = "united"
"""Action of a history row in which merges were decided on totals."""


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


# -- batches that are retired --------------------------------------------------------------------------------------
RETIRED = "retired"
"""Action of a history row in which batches left, and the reason why they are left out."""


def take_out(
    work: Work, state: State, turn: Round, batches: Sequence[int], keeps_round: bool = False
) -> dict[str, Any]:
    """Subtract the statistics of batches from the total; returns the row of the history that records it.

    Statistics without atoms take the place of each batch.  An open round goes on without these batches if it is to be
    kept; otherwise it ends undecided, and its sums are dropped.
    """
    if turn.is_open and not keeps_round:
        abandon(state, turn)
    state.step += 1
    subtract(work, state, batches)
    for batch in batches:
        if turn.is_open and turn.seen[batch]:
            for name, part in recall_parts(work, state, batch).items():
                if name in state.trials:
                    state.trials[name].subtract(part)
        state.lost[batch] = Loss(RETIRED, state.lap, state.step)
        empty = instead(work, batch)
        step = LocalStep(Request(batch, f"batch {batch}", empty, work.seed, empty=empty), state.total.high.pairs)
        trials = state.plan.trials if turn.is_open else ()
        remember(work, state, batch, lose_batch(state.posterior, trials, step, RETIRED))
    turn.note(batches, state.step)
    state.settle()
    return history_row(state, state.lap, batches, exact=True, action=RETIRED, gain=None, moves=[])


# -- time that passes ----------------------------------------------------------------------------------------------
AGED = "aged"
"""Action of the history row that records that time passed."""


def fade(state: State, factor: float) -> dict[str, Any]:
    """Multiply the weight of all data of a run by ``factor``; returns the row of the history that records it.

    Kept statistics of batches are scaled when they are next used, as after every change of clusters.
    """
    edit = Fade(factor)
    _note(state, edit)
    state.total.apply([edit])
    for trial in state.trials.values():
        trial.apply([edit])
    memory = state.memory
    memory.sweeps = {t: replace(sweep, part=sweep.part.scale(factor)) for t, sweep in memory.sweeps.items()}
    memory.young = {i: weight * factor for i, weight in memory.young.items()}
    weights = np.ones(len(state.visits)) if state.weights is None else state.weights
    state.weights = weights * factor
    state.settle()
    state.step += 1
    row = history_row(state, state.lap, None, exact=True, action=AGED, gain=None, moves=[])
    return {**row, "n_batches": 0, "faded": factor}


def _note(state: State, edit: Fade) -> None:
    """Record that time has passed; merged with the previous fade if that was the last change and no batch has seen it.

    The record of a stream that only fades therefore does not grow.
    """
    if state.sealed is not None:
        state.sealed.catch_up(state.edits)
        state.sealed.total.apply([edit])
    last, is_kept = state.edits[-1] if state.edits else None, state.visits >= 0
    if isinstance(last, Fade) and not (state.seen[is_kept] == len(state.edits)).any():
        state.edits[-1] = last.then(edit)
    else:
        state.edits.append(edit)
    if state.sealed is not None:
        state.sealed.seen = len(state.edits)


# -- dormant clusters ----------------------------------------------------------------------------------------------
DORMANT = "dormant"
"""Action of a history row in which clusters were laid away, and kind of the moves in it."""

MOST = 100
"""Clusters laid away at most; the earliest to leave are dropped first."""

WORTH = 100.0
"""Least number of atoms that the statistics of a laid-away cluster stand for.

Such clusters had many atoms before they faded, so their shape is known at least this well.  Set by judgement, not by
data.
"""

GROWN = 0.5
"""Weight of the batch at which a cluster was born, below which the cluster is no longer young: a half-life has passed.

By then it has half the atoms that it will ever have at its rate.
"""

ROUNDING = 1e-9
"""Relative difference between weights after a half-life, by rounding: they are products of many factors."""


def lay_away(state: State, turn: Round, least: float) -> dict[str, Any] | None:
    """Remove clusters of fewer than ``least`` (weighted) atoms, with their atoms; returns the history row for it.

    Returns None if there are none.  The largest cluster stays, and so does one that was born within the last half-life
    and never had that many.  If a cluster leaves, an open round ends undecided.  The gain of the row is the change of
    the objective, which from then on covers the remaining atoms only.  Atoms that left return when their batch is
    visited again.
    """
    value = state.total.value()
    counts = value["N"]
    faint = value.ids[counts < least].tolist()
    young = {i: weight for i, weight in state.memory.young.items() if weight > GROWN * (1.0 + ROUNDING) and i in faint}
    state.memory.young = young
    stays = (counts >= least) | np.isin(value.ids, list(young))
    stays[np.argmax(counts)] = True
    if stays.all():
        return None
    if turn.is_open:
        abandon(state, turn)
        value = state.total.value()
    gone, memory, before = value.ids[~stays].tolist(), state.memory, state.elbo
    for cluster in gone:
        part = value.without_pairs().take([cluster])
        count = float(part["N"][0])
        if count > 0:
            memory.dormant[cluster] = part.scale(max(1.0, WORTH / count))
    for cluster in list(memory.dormant)[:-MOST]:
        del memory.dormant[cluster]
    edit = Take(tuple(value.ids[stays].tolist()))
    state.edits.append(edit)
    state.total.apply([edit])
    memory.forget_dead(np.array(edit.ids))
    turn.short[turn.last >= 0] = True
    state.settle()
    state.step += 1
    why = f"fewer than {least:g} atoms"
    moves = [record(DORMANT, (cluster,), (), None, True, why) for cluster in gone]
    row = history_row(state, state.lap, None, exact=True, action=DORMANT, gain=state.elbo - before, moves=moves)
    return {**row, "n_batches": 0}
