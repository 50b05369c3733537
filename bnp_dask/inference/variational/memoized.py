"""Memoized variational inference (thesis Alg. 3.3): exact global steps after every few batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bnp_dask.core import register
from bnp_dask.inference.drive import Flight, Step, Told, drive, in_flight
from bnp_dask.inference.fold import fold_again, keep, settle_without_lost
from bnp_dask.inference.lap import begin_lap
from bnp_dask.inference.local_steps import LocalSteps, Taken
from bnp_dask.inference.state import State, Work, remember
from bnp_dask.inference.variational.sampled import adds, n_of_lap, of_lap, on_sample
from bnp_dask.inference.variational.stopping import end_exact_lap, hold_common
from bnp_dask.inputs import hold, number_from, one_of
from bnp_dask.moves import note


@register
@dataclass(frozen=True)
class Memoized:
    """Visit batches again and again; replace each one's old summary by its new one.

    Parameters
    ----------
    laps
        Passes over the data at most.
    window
        Batches in flight at most.  Default: an eighth of the batches, at least 8.  They are submitted and folded in
        groups of half the window, rounded down (of one batch if it is 1), with one global step for each group.  With a
        window of at least twice the number of workers, workers hardly wait; if batches are so small that one task
        visits four or more, that takes eight times the number.  1: a global step after every batch, as the thesis has
        it.  Results depend on the window, not on the number of workers.
    order
        ``"shuffled"``: a new random order each lap.  ``"fixed"``: their order in the data.
    delay
        Share of the first lap, 0 to 1, during which the posterior stays as initialised (thesis 3.5.4): without
        it, clusters that the first batches lack are lost.
    tolerance, count_tolerance
        Stop when a lap changes the objective by less than ``tolerance`` nats per unit of weight and no cluster's
        count by more than ``count_tolerance`` of all atoms, and moves have nothing left to propose.  Moves hurry once
        clusters are calm: when a lap changes no count by more than 5 % and the objective by less than 1e-4 nats per
        atom (a token in topic models), or by less than these tolerances.  Default tolerance: 1e-6, or until clusters
        have been calm for five laps in a row.

    Notes
    -----
    The objective never falls after the first lap.  Batches computed with the current posterior and folded together
    cannot lower it; batches computed with an older posterior can.  So the exact objective is checked at every fold, and
    batches that would lower it are sent back and computed again with the current posterior.  The ``action`` of their
    history row is then ``"recomputed"``, or ``"kept"`` if they still would not raise the objective; else it is
    ``"folded"``.  Batches are sent back when two groups want to move to one cluster that can fit only one of them: in
    sorted rows, with few atoms a batch.  Of 400 runs of four laps on small sorted blobs, with settings drawn at random,
    15 sent a group back; of 1,500 on small sorted corpora 9, and of 1,500 on short sequences 10.

    For topic models this guarantee needs documents that start from their state at the last visit
    (``DocumentStep(start="best")`` or ``"warm"``): the counts of a batch's documents are kept beside its summary.

    References
    ----------
    Thesis 3.5; Hughes & Sudderth 2013, "Memoized online variational inference for Dirichlet process mixture
    models".
    """

    laps: int = 50
    window: int | None = None
    order: Literal["shuffled", "fixed"] = "shuffled"
    delay: float = 1.0
    tolerance: float | None = None
    count_tolerance: float = 1e-4
    decides_moves = True

    def __post_init__(self) -> None:
        hold_common(self)
        one_of("order", self.order, ("shuffled", "fixed"))
        hold(self, "delay", number_from("delay", self.delay, 0.0, 1.0, "a share of the first lap"))

    def run(self, work: Work, state: State) -> Iterator[Step]:
        return drive(self, work, state)

    def groups(self, work: Work, state: State) -> Flight[Taken]:
        """Groups of half a window."""
        order = of_lap(work, state, lap_order(work, state.lap, self.order))
        if state.position == 0:
            shown = on_sample(work, state.sample)
            begin_lap(shown, state, state.total, pends=True, proposes=not adds(state))
        visits = LocalSteps(work, state, len(order))
        window = in_flight(self.window, work.source.n_batches)
        return Flight(work, state, order, window, size=max(1, window // 2), visits=visits)

    def fold(self, work: Work, state: State, group: Taken) -> Told | None:
        """Replace the batches' summaries and take the global step; in the first lap, only add them at first."""
        folded = self._add(work, state, group) if adds(state) else fold_again(work, state, group, pends=True)
        if folded is None:
            return None
        sample = {} if state.sample is None or state.sample.is_whole else {"sample": state.sample.size}
        # exact: of all data, and comparable with the row before
        exact = not sample and not adds(state)
        return {"exact": exact, **folded, **sample}

    def end_lap(self, work: Work, state: State, told: Told) -> Told:
        """Decide the moves."""
        moves = end_exact_lap(self, on_sample(work, state.sample), state, told["gain"])
        return {**told, "exact": "sample" not in told, "moves": [*told["moves"], *moves]}

    def _add(self, work: Work, state: State, group: Taken) -> Told:
        """Add batches that were never visited; in the first lap the posterior stays until ``delay`` of them were."""
        settle_without_lost(state, group)
        state.total.join(group.change.delta)
        if state.lap > 0 or state.position / n_of_lap(state) >= self.delay:
            state.settle()
        else:
            state.terms = state.model.elbo(state.posterior, state.total.value())
        for batch, found in keep(work, state, group):  # no exact objective yet to decide births on
            note(state.model, state.pending, found)
            remember(work, state, batch, found, group.seen)
        return {"action": "folded", "gain": None, "moves": []}


def lap_order(work: Work, lap: int, order: str) -> np.ndarray:
    """Batches in the order in which this lap visits them, ``(B,)``."""
    if order == "fixed":
        return np.arange(work.source.n_batches)
    return work.rng_of_all(lap, "order").permutation(work.source.n_batches)
