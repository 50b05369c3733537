"""Words new to a run: its statistics get columns for them, in which no older atom counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bnp_dask.core.edits import NO_PARTS, Widen
from bnp_dask.core.summary import Summary
from bnp_dask.core.totals import WORDS
from bnp_dask.inference.drive import history_row
from bnp_dask.inference.state import State
from bnp_dask.model import Model, Posterior

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
