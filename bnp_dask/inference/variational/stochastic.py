"""Stochastic variational inference (thesis Alg. 3.2): noisy global steps from one batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bnp_dask.core import Summary, register
from bnp_dask.errors import SettingError
from bnp_dask.inference.drive import Flight, Step, Told, drive
from bnp_dask.inference.local_steps import LocalSteps, Taken
from bnp_dask.inference.state import State, Work, remember
from bnp_dask.inference.variational.memoized import decide_to_stop, hold_common, lap_order
from bnp_dask.inference.visit import remaining_weight
from bnp_dask.inputs import hold, number_from, one_of
from bnp_dask.model import Posterior


@register
@dataclass(frozen=True)
class Stochastic:
    """Move the posterior a little towards each batch, taken for the whole data set.

    Step t = 1, 2, ... has learning rate ``(delay + t) ** -decay``.  Offered for comparison: it needs tuning, its
    objective goes up and down, and it takes no moves, so that the number of clusters stays as initialised.
    :class:`~bnp_dask.inference.variational.memoized.Memoized` needs no tuning, and its objective never falls.

    Parameters
    ----------
    laps
        Passes over the data at most.
    window
        Batches in flight; 1 is the textbook algorithm.  Results depend on it.
    delay
        delta >= 0: larger gives early batches less weight.
    decay
        kappa above 0.5, at most 1: larger lets the learning rate fall faster.
    order
        ``"shuffled"``: a new random order of the batches each lap.  ``"fixed"``: their order in the data.
    tolerance, count_tolerance
        As in :class:`~bnp_dask.inference.variational.memoized.Memoized`.

    Notes
    -----
    All natural parameters are the prior's plus a summary, so blending parameters is blending summaries.  The objective
    in the history is computed from the latest assignments of all batches under the current posterior; it is exact once
    every batch was visited.

    References
    ----------
    Thesis Alg. 3.2 and 3.5.
    """

    laps: int = 20
    window: int = 8
    delay: float = 1.0
    decay: float = 0.6
    order: Literal["shuffled", "fixed"] = "shuffled"
    tolerance: float | None = None
    count_tolerance: float = 1e-4
    decides_moves = False

    def __post_init__(self) -> None:
        hold_common(self)
        hold(self, "delay", number_from("delay", self.delay, 0.0))
        hold(self, "decay", number_from("decay", self.decay, 0.5, 1.0, "a number above 0.5, or it does not settle"))
        if self.decay == 0.5:
            raise SettingError("decay=0.5: needs a number above 0.5, at most 1, or it does not settle")
        one_of("order", self.order, ("shuffled", "fixed"))

    def learning_rate(self, step: int) -> float:
        """xi of the step after ``step`` steps."""
        return (self.delay + step + 1) ** -self.decay

    def run(self, work: Work, state: State) -> Iterator[Step]:
        return drive(self, work, state)

    def groups(self, work: Work, state: State) -> Flight[Taken]:
        """Groups of one batch each."""
        if work.moves:
            raise SettingError(
                "Stochastic() has no exact objective to decide moves with; use Memoized() or FullBatch()"
            )
        order = lap_order(work, state.lap, self.order)
        visits = LocalSteps(work, state, len(order), is_whole=True)
        return Flight(work, state, order, self.window, size=1, visits=visits)

    def fold(self, work: Work, state: State, group: Taken) -> Told:
        """Move the posterior towards the batch."""
        state.total.join(group.change.delta)
        rate = self.learning_rate(state.step)
        for batch, found in group.visits:  # one, unless it went bad
            remember(work, state, batch, found)
            state.posterior = self._blend(work, state, found.summary, rate)
        state.terms = work.model.elbo(state.posterior, state.total.value())
        return {"exact": state.lap > 0, "action": "folded", "moves": [], "learning_rate": rate}

    def end_lap(self, work: Work, state: State, told: Told) -> Told:
        decide_to_stop(self, work, state, n_proposed=0)
        return {**told, "exact": True}

    def _blend(self, work: Work, state: State, new: Summary, rate: float) -> Posterior:
        """Global step on ``(1 - rate)`` of the believed summary plus ``rate`` of the batch scaled to the data."""
        believed = state.posterior.summary
        assert believed is not None
        mass = work.model.weight_in(new, work.survey.is_sparse)
        if mass <= 0:
            return state.posterior
        return work.model.global_step(blend(believed, new, rate, remaining_weight(work, state.lost) / mass))


def blend(believed: Summary, new: Summary, rate: float, size: float) -> Summary:
    """``1 - rate`` of the believed summary plus ``rate`` of a batch that is taken ``size`` times."""
    return believed.scale(1.0 - rate) + new.scale(rate * size)
