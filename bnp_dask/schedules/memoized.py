"""Memoized variational inference (thesis Alg. 3.3): exact global steps after every batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from bnp_dask.errors import SettingError
from bnp_dask.model import Visit
from bnp_dask.schedules.base import Step, check_common, end_lap, history_row
from bnp_dask.schedules.laps import add_trials, begin_lap, settle_lap, try_split, with_newer_clusters
from bnp_dask.schedules.pipeline import Pipeline
from bnp_dask.schedules.state import State, Work, recall, recall_states, remember
from bnp_dask.summary import RunningTotal, Summary

ROUNDING = 1e-12
"""Share of the objective's terms below which a change is rounding."""


@dataclass(frozen=True)
class Memoized:
    """Visit batches again and again; replace each one's old summary by its new one.

    Parameters
    ----------
    laps
        Passes over the data at most.
    window
        Batches in flight.  A batch is computed with the posterior of ``window`` folds before; with at least as
        many as workers nobody waits.  Results depend on it, and not on the number of workers.
    order
        ``"shuffled"``: a new random order each lap.  ``"fixed"``: as they lie.
    delay
        Share of the first lap, 0 to 1, during which the posterior stays as initialised (thesis 3.5.4): without
        it, clusters that the first batches lack are lost.
    tolerance, count_tolerance
        Stop when a lap changes the objective by less than ``tolerance`` nats per unit of weight and no cluster's
        count by more than ``count_tolerance`` of the total weight.

    Notes
    -----
    The objective never falls after the first lap.  A batch computed with the current posterior cannot lower it;
    one computed with an older posterior can, so the exact objective is checked at every fold, and a batch that
    would lower it is sent back and computed again with the current posterior.

    Topic models hold to that when their documents start from where they stood (``DocumentStep(start="best")`` or
    ``"warm"``): the counts of a batch's documents are kept beside its summary.
    """

    laps: int = 50
    window: int = 8
    order: Literal["shuffled", "fixed"] = "shuffled"
    delay: float = 1.0
    tolerance: float = 1e-6
    count_tolerance: float = 1e-4

    def __post_init__(self) -> None:
        check_common(self.laps, self.window, self.tolerance, self.count_tolerance)
        if self.order not in ("shuffled", "fixed"):
            raise SettingError(f'order={self.order!r}: needs "shuffled" or "fixed"')
        if not 0 <= self.delay <= 1:
            raise SettingError(f"delay={self.delay!r}: needs a share of the first lap, 0 to 1")

    def run(self, work: Work, state: State) -> Iterator[Step]:
        n_batches = work.source.n_batches
        kept = partial(recall_states, work, state)
        for move in work.moves:
            if move.at_batch and work.model.allocation.grouped:
                raise SettingError(
                    f"{move}: the documents of other batches would have no weight for newborn clusters; "
                    "use where='data' with topic models"
                )
        while state.finished is None:
            lap = state.lap
            order = lap_order(work, lap, self.order)
            if state.position == 0:
                begin_lap(work, state, state.total)
            pipeline = Pipeline(work, lap, order, self.window, state.position, state.pending, state.plan, kept)
            state.pending = []
            pipeline.fill(state.posterior)
            for _ in range(state.position, n_batches):
                batch, new = pipeline.take()
                action, moves = self._fold(work, state, pipeline, batch, new)
                state.position, state.step = pipeline.position, state.step + 1
                last = pipeline.position == n_batches
                if last:
                    n_proposed = state.plan.n_proposed
                    moves = [*moves, *settle_lap(work, state)]
                    end_lap(work, state, self.laps, self.tolerance, self.count_tolerance, n_proposed)
                else:
                    pipeline.fill(state.posterior)
                row = history_row(state, lap, batch, exact=lap > 0 or last, action=action, moves=moves)
                yield Step(state, pipeline, row, lap_end=last)

    def _fold(
        self, work: Work, state: State, pipeline: Pipeline, batch: int, new: Visit
    ) -> tuple[str, list[dict[str, Any]]]:
        """Replace the batch's summary, take the global step, and see that the objective does not fall.

        Returns what was done, and history rows of births at this batch.
        """
        if state.lap == 0:
            state.total.add(new.summary)
            add_trials(state, new)
            seen = (state.position + 1) / work.source.n_batches
            if seen >= self.delay:
                state.posterior = work.model.global_step(state.total.value())
            state.terms = work.model.elbo(state.posterior, state.total.value())
            remember(work, state, batch, new)
            return "folded", []
        old = recall(work, state, batch)
        found, action = new, "folded"
        if not self._try(work, state, old, with_newer_clusters(state, found)):
            found, action = pipeline.open(batch, pipeline.submit(state.posterior.light(), batch)), "recomputed"
            if not self._try(work, state, old, found):
                state.void = True
                return "kept", []  # only rounding separates the two: the old summary is as good
        add_trials(state, found)
        found, rows = try_split(work, state, found)
        remember(work, state, batch, found)
        return action, rows

    def _try(self, work: Work, state: State, old: Summary, new: Visit) -> bool:
        total = state.total.copy()
        swap(total, old, new.summary)
        value = total.value()
        posterior = work.model.global_step(value)
        terms = work.model.elbo(posterior, value)
        slack = ROUNDING * sum(abs(t) for t in terms.values())
        if sum(terms.values()) < state.elbo - slack:
            return False
        state.total, state.posterior, state.terms = total, posterior, terms
        return True


def lap_order(work: Work, lap: int, order: str) -> np.ndarray:
    """Batches in the order in which this lap visits them, ``(B,)``."""
    if order == "fixed":
        return np.arange(work.source.n_batches)
    return work.rng(lap, "order").permutation(work.source.n_batches)


def swap(total: RunningTotal, old: Summary | None, new: Summary) -> None:
    """Replace one batch's summary in a running total."""
    if old is not None:
        total.subtract(old)
    total.add(new)
