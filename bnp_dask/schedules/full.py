"""Full-batch variational coordinate ascent (thesis Alg. 3.1): one global step per lap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bnp_dask.core.registry import register
from bnp_dask.core.totals import RunningTotal
from bnp_dask.errors import SettingError
from bnp_dask.schedules.base import Step, end_lap, history_row, hold_common, opening
from bnp_dask.schedules.engine.lap import begin_lap, keep, lose, settle_lap
from bnp_dask.schedules.engine.pipeline import Pipeline
from bnp_dask.schedules.engine.state import State, Work, remember_states
from bnp_dask.schedules.memoized import lap_order


@register
@dataclass(frozen=True)
class FullBatch:
    """Assign all batches with one posterior, add their summaries, take one global step.

    Parameters
    ----------
    laps
        Passes over the data at most.
    window
        Batches in flight; here it changes nothing but how busy workers are.
    tolerance, count_tolerance
        As in :class:`~bnp_dask.schedules.memoized.Memoized`.
    """

    laps: int = 100
    window: int = 8
    tolerance: float | None = None
    count_tolerance: float = 1e-4
    decides_moves = True

    def __post_init__(self) -> None:
        hold_common(self)

    def run(self, work: Work, state: State) -> Iterator[Step]:
        n_batches = work.source.n_batches
        for move in work.moves:
            if move.at_batch:
                raise SettingError(f"{move}: changes clusters within a lap; use Memoized(), or where='data'")
        while state.finished is None:
            lap = state.lap
            if state.partial is None:
                state.partial = RunningTotal(work.model.empty_summary(state.posterior.ids))
                begin_lap(work, state, state.partial)
            order = lap_order(work, lap, "fixed")
            pipeline = Pipeline(work, state, lap, order, self.window, max(1, self.window // 2), keeps=False)
            pipeline.fill()
            yield from opening(work, state, pipeline)
            for _ in range(pipeline.n_left):
                taken = lose(work, state, pipeline.take(), remember_states, keeps=False)
                state.partial.join(taken.change.delta)
                keep(work, state, taken, remember_states)
                pipeline.fill()
                if state.position < n_batches:
                    yield Step(state, pipeline, None, lap_end=False)
            before = state.elbo if lap > 0 and all(loss.lap <= lap for loss in state.lost.values()) else None
            self._global_step(work, state)
            gain = None if before is None else state.elbo - before
            n_proposed = state.plan.n_proposed
            moves = settle_lap(work, state, gain)
            end_lap(work, state, self.laps, self.tolerance, self.count_tolerance, n_proposed)
            row = history_row(state, lap, None, exact=True, action="folded", gain=gain, moves=moves)
            yield Step(state, pipeline, row, lap_end=True)

    def _global_step(self, work: Work, state: State) -> None:
        assert state.partial is not None
        state.total, state.partial = state.partial, None
        state.settle()
        state.step += 1
