"""Time that passes: all batches of a run fade together, so that totals are scaled and stay exact.

A batch weighs ``2 ** (-age / half_life)``.  The objective is computed on the weighted data.  Fading changes it only
when time passes; otherwise it never falls.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bnp_dask.core.edits import Fade
from bnp_dask.inference.drive import history_row
from bnp_dask.inference.state import State

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
        state.edits[-1] = Fade(last.factor * edit.factor)
    else:
        state.edits.append(edit)
    if state.sealed is not None:
        state.sealed.seen = len(state.edits)
