"""A pure stream: only the sum of new batches is kept, so the state of a run does not grow with its data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnp_dask.core.totals import RunningTotal
from bnp_dask.inference.lap import trim
from bnp_dask.inference.sealed import SEALED, Sealed
from bnp_dask.inference.state import State


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
