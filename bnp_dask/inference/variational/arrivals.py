"""Visits when data arrive: new batches in their order, then some that were visited longest ago.

Proposals about all data are tracked over rounds.  A round ends once every batch has been visited since it began, in one
update or in ten.  Its proposals are decided then, on the exact objective of all data.  Births at new batches are
decided at once, because no other batch holds mass of the newborn clusters.  They take precedence: a round's proposals
about a cluster that is split are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.core.edits import Forget
from bnp_dask.inference.drive import Flight, Step, Told, drive_lap
from bnp_dask.inference.fold import fold_again, pass_over
from bnp_dask.inference.gathered import Gathered
from bnp_dask.inference.lap import begin_lap, settle_lap
from bnp_dask.inference.local_steps import LocalSteps, Taken
from bnp_dask.inference.state import State, Work, recall_counts, remember
from bnp_dask.inference.variational.births_on_arrival import births_of_new, fold_new, size_of_new, splits_of_new
from bnp_dask.inference.variational.lineage import COUNTS, Lineage
from bnp_dask.moves.base import Plan
from bnp_dask.moves.birth import Birth

REGAINED = "regained"
"""Action of a history row in which atoms return that had left the model with their clusters."""

SHORT = 1e-9
"""Share of a batch's atoms that may be missing by rounding."""


@dataclass
class Round:
    """Which batches were visited, and when.

    Parameters
    ----------
    seen
        Whether a batch was visited since the round began, ``(B,)`` bool.
    last
        Step of the last visit of each batch, ``(B,)`` int64; -1 before the first.
    short
        Whether clusters left the model, perhaps with atoms of this batch, since its last visit, ``(B,)`` bool.
    is_open
        Whether proposals wait for the end of the round.
    """

    seen: np.ndarray
    last: np.ndarray
    short: np.ndarray
    is_open: bool = False

    @classmethod
    def begin(cls, n_batches: int, step: int) -> Round:
        """Return the record before the first round, with all batches visited by ``step``."""
        return cls(np.zeros(n_batches, np.bool_), np.full(n_batches, step, np.int64), np.zeros(n_batches, np.bool_))

    def extended(self, count: int) -> Round:
        """This round with ``count`` batches more, never visited."""
        seen, short = (np.concatenate([old, np.zeros(count, np.bool_)]) for old in (self.seen, self.short))
        return Round(seen, np.concatenate([self.last, np.full(count, -1, np.int64)]), short, self.is_open)

    def note(self, batches: Sequence[int], step: int) -> None:
        """Record that batches were visited."""
        self.seen[list(batches)] = True
        self.last[list(batches)] = step
        self.short[list(batches)] = False

    def due(self, may: np.ndarray, most: int) -> list[int]:
        """Batches to visit next among the allowed ones, ``may (B,)`` bool: longest ago first, none twice in a round."""
        chosen = np.flatnonzero(may & ~self.seen) if self.is_open else np.flatnonzero(may)
        order = np.lexsort((chosen, self.last[chosen]))
        return [int(b) for b in chosen[order[:most]]]


def visit_arrivals(
    work: Work,
    state: State,
    turn: Round,
    n_new: int,
    n_again: int,
    may: np.ndarray,
    window: int,
    laps: int,
    lineage: Lineage,
    leaves: bool = True,
) -> Iterator[dict[str, Any]]:
    """Visit new batches, then others once more, then all; changes ``state`` and ``turn`` in place.

    Parameters
    ----------
    work
        All batches of the run, the new ones last.
    state
        State of the run, extended by the new batches.
    turn
        The round under way, extended by the new batches too.
    n_new, n_again
        New batches, and older ones to visit.
    may
        Which older batches can be read again, ``(B,)`` bool.  If some cannot, no round is begun, as it would never end.
    window
        Batches in flight, as for :class:`~bnp_dask.inference.variational.memoized.Memoized`.
    laps
        Laps over all batches that can be read, after that.
    lineage
        Follows clusters.
    leaves
        Whether anything is kept of the new batches by themselves.

    Yields
    ------
    dict
        A row of the history for each group of batches.
    """
    n_batches = work.source.n_batches
    new, may = list(range(n_batches - n_new, n_batches)), may.copy()
    everything = [b for b in range(n_batches) if may[b] or b >= n_batches - n_new] if laps else []
    may[new] = False
    rounds = bool(work.moves) and n_again > 0 and bool(may[: n_batches - n_new].all())
    state.finished, state.calm, state.calm_laps = None, False, 0.0
    # failed splits were judged without the new data; topics of whole documents are tried again once there are twice as
    # many tokens
    state.memory.failures = {key: n for key, n in state.memory.failures.items() if key[0] != Birth.kind}
    if turn.is_open and n_again and not rounds:
        abandon(state, turn)
    _plan(work, state, turn, new, rounds)

    def stretch(batches: Sequence[int], is_new: bool = False, leaves: bool = True) -> Iterator[dict[str, Any]]:
        visits = Stretch(turn, lineage, window, batches, is_new, leaves)
        return (dict(step.row) for step in visits.run(work, state) if step.row is not None)

    yield from stretch(new, is_new=True, leaves=leaves)
    state.plan = replace(state.plan, splits={})
    while n_again:
        chosen = turn.due(may, n_again)
        if not chosen:
            break
        if rounds and not turn.is_open:
            _begin_round(work, state, turn)
            chosen = turn.due(may, n_again)
        yield from stretch(chosen)
        n_again -= len(chosen)
        may[chosen] = False
    if laps and turn.is_open:  # a round ends with the last visit of a stretch, never within one
        rest = [b for b in everything if not turn.seen[b]]
        yield from stretch(rest)
    for _ in range(laps):
        if work.moves and len(everything) == n_batches and not turn.is_open:
            _begin_round(work, state, turn)
        yield from stretch(everything)


def _plan(work: Work, state: State, turn: Round, new: Sequence[int], rounds: bool) -> None:
    """Begin a round if none is open, and plan births at the new batches."""
    if rounds and not turn.is_open:
        _begin_round(work, state, turn)
    elif not turn.is_open:
        begin_lap(replace(work, moves=()), state, state.total)
    state.plan = replace(state.plan, splits=splits_of_new(work, state, new))


def _begin_round(work: Work, state: State, turn: Round) -> None:
    begin_lap(work, state, state.total)
    turn.seen[:] = False
    turn.is_open = True


def abandon(state: State, turn: Round) -> None:
    """End a round without a decision: some of its batches cannot be visited any more."""
    state.edits.append(Forget())
    state.total.apply([Forget()])
    state.plan, state.trials, state.gathered = Plan(), {}, Gathered()
    turn.is_open = False


def _regains(work: Work, state: State, turn: Round, batches: Sequence[int]) -> bool:
    """Whether atoms of these batches return that left with their clusters: the objective covers more data then."""
    short = [batch for batch in batches if turn.short[batch] and batch not in state.lost]
    held = (float(recall_counts(work, state, batch)[COUNTS].sum()) for batch in short)
    full = (work.survey.batch_weights[batch] * state.weight(batch) for batch in short)
    return any(own < (1.0 - SHORT) * whole for own, whole in zip(held, full, strict=True))


@dataclass(frozen=True, eq=False)
class Stretch:
    """Visits of some batches in this order; the round's proposals are decided at its last one.

    Parameters
    ----------
    turn, lineage
        The round under way; follows clusters.
    window
        Batches in flight at most.
    batches
        Their numbers.
    is_new, leaves
        Whether they are visited for the first time, and whether anything is kept of them by themselves.
    """

    turn: Round
    lineage: Lineage
    window: int
    batches: Sequence[int]
    is_new: bool = False
    leaves: bool = True
    laps = 1
    decides_moves = True

    def run(self, work: Work, state: State) -> Iterator[Step]:
        """Visit the batches; this counts as a lap even if there are none."""
        if not self.batches:
            state.lap, state.position = state.lap + 1, 0
            return iter(())
        state.position = 0
        return drive_lap(self, work, state)

    def groups(self, work: Work, state: State) -> Flight[Taken]:
        """Groups of half a window, or of as many new batches as look for births together."""
        is_whole = self._births(work, state) is not None
        half = max(1, self.window // 2)
        size = size_of_new(work, state, self.batches, self.window) if self.is_new else half
        visits = LocalSteps(work, state, len(self.batches), is_whole=is_whole, leaves=self.leaves)
        return Flight(work, state, np.asarray(self.batches), self.window, size, visits)

    def fold(self, work: Work, state: State, group: Taken) -> Told:
        """Add new batches, or replace the summaries of others."""
        turn, batches = self.turn, group.batches
        with self.lineage.visited(state, batches):
            regains = not self.is_new and _regains(work, state, turn, batches)
            if self.is_new or regains:
                birth = self._births(work, state)
                kept = remember if self.leaves else pass_over
                action, gain, moves = fold_new(work, state, group, birth, self.window, kept)
            else:
                action, gain, moves = fold_again(work, state, group)
        turn.note(batches, state.step + 1)
        if turn.is_open and turn.seen.all():
            with self.lineage.settled(state):
                moves = [*moves, *settle_lap(work, state, gain)]
            turn.is_open = False
        return {"exact": True, "action": REGAINED if regains else action, "gain": gain, "moves": moves}

    def end_lap(self, work: Work, state: State, told: Told) -> Told:
        """Do nothing: a round may take many stretches."""
        return told

    def _births(self, work: Work, state: State) -> Birth | None:
        return births_of_new(work, state) if self.is_new else None
