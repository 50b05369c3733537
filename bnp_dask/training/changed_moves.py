"""Moves of a run that is resumed with others: they act from its next lap on, and its history says so.

A note beside the run says which moves it is to have, from the moment at which somebody asks for them.  Which ones it
had so far its history says: a run that was stopped before its next lap changes its moves when it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bnp_dask.core.encoding import from_spec, to_spec, with_added
from bnp_dask.moves import Move
from bnp_dask.schedules import Schedule, State, Step, Work
from bnp_dask.store import RunStore

CHANGED = "changed_moves"
"""Entry of the history's row of the first step with other moves: their descriptions."""


@dataclass(frozen=True)
class OtherMoves:
    """Moves that a run has from its next lap on, and those that it finishes a lap with that it is in."""

    before: tuple[Move, ...]
    specs: list[Any]

    def steps(self, schedule: Schedule, work: Work, state: State) -> Iterator[Step]:
        """Steps of a schedule; that with which the moves change tells of it."""
        if state.position > 0:
            for step in schedule.run(replace(work, moves=self.before), state):
                yield step
                if step.lap_end:
                    break
        if state.finished == "converged" and state.lap < schedule.laps:  # with the moves of before
            state.finished = None
        state.calm_laps = 0.0
        told = False
        for step in schedule.run(work, state):
            row = step.row
            yield step if told or row is None else replace(step, row={**row, CHANGED: self.specs})
            told = told or row is not None


def other_moves(store: Any, rows: Iterable[Mapping[str, Any]], moves: Sequence[Move]) -> OtherMoves | None:
    """The change of moves that a run in a directory is resumed with; None where it has had these ones already.

    Parameters
    ----------
    store
        Where the run is kept.
    rows
        Its history.
    moves
        Those that it is to have.
    """
    if not isinstance(store, RunStore):
        return None
    specs = [to_spec(move)[0] for move in moves]
    before = store.settings["moves"]
    for row in rows:
        before = row.get(CHANGED, before)
    if with_added(before, list(moves)) == specs:
        return None
    return OtherMoves(tuple(from_spec(spec, {}) for spec in before), specs)
