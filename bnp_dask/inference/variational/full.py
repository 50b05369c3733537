"""Full-batch variational coordinate ascent (thesis Alg. 3.1): one global step per lap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bnp_dask.core import RunningTotal, register
from bnp_dask.errors import SettingError
from bnp_dask.inference.batch_memo import Keeps
from bnp_dask.inference.drive import Flight, Step, Told, drive, in_flight
from bnp_dask.inference.fold import keep
from bnp_dask.inference.lap import begin_lap
from bnp_dask.inference.local_steps import LocalSteps, Taken
from bnp_dask.inference.state import State, Work
from bnp_dask.inference.variational.memoized import lap_order
from bnp_dask.inference.variational.stopping import end_exact_lap, hold_common


@register
@dataclass(frozen=True)
class FullBatch:
    """Assign all batches with one posterior, add their summaries, take one global step.

    Parameters
    ----------
    laps
        Passes over the data at most.
    window
        Batches in flight; here it only changes how busy workers are.  Default: an eighth of the batches, at least 8.
    tolerance, count_tolerance
        As in :class:`~bnp_dask.inference.variational.memoized.Memoized`.

    References
    ----------
    Thesis 3.5.
    """

    laps: int = 100
    window: int | None = None
    tolerance: float | None = None
    count_tolerance: float = 1e-4
    decides_moves = True

    def __post_init__(self) -> None:
        hold_common(self)

    def run(self, work: Work, state: State) -> Iterator[Step]:
        return drive(self, work, state)

    def groups(self, work: Work, state: State) -> Flight[Taken]:
        """Groups of half a window; their summaries are added up in a separate total."""
        for move in work.moves:
            if move.at_batch:
                raise SettingError(f"{move}: changes clusters within a lap; use Memoized(), or where='data'")
        if state.partial is None:
            state.partial = RunningTotal(work.model.empty_summary(state.posterior.ids))
            begin_lap(work, state, state.partial)
        order = lap_order(work, state.lap, "fixed")
        visits = LocalSteps(work, state, len(order), keeps=Keeps.STATES)
        window = in_flight(self.window, work.source.n_batches)
        return Flight(work, state, order, window, size=max(1, window // 2), visits=visits)

    def fold(self, work: Work, state: State, group: Taken) -> Told:
        """Add the summaries; the posterior stays."""
        assert state.partial is not None
        state.partial.join(group.change.delta)
        keep(work, state, group)
        return {}

    def end_lap(self, work: Work, state: State, told: Told) -> Told:
        """Take one global step and decide the moves."""
        assert state.partial is not None
        is_same = state.lap > 0 and all(loss.lap <= state.lap for loss in state.lost.values())
        before = state.elbo if is_same else None
        state.total, state.partial = state.partial, None
        state.settle()
        gain = None if before is None else state.elbo - before
        moves = end_exact_lap(self, work, state, gain)
        return {"exact": True, "action": "folded", "gain": gain, "moves": moves}
