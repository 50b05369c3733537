"""Memoized variational inference (thesis Alg. 3.3), full-batch ascent (Alg. 3.1), and the end of their laps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from bnp_dask.core import RunningTotal, register
from bnp_dask.core.survey import without
from bnp_dask.errors import SettingError
from bnp_dask.inference.batch_memo import Keeps
from bnp_dask.inference.drive import Flight, Step, Told, drive, in_flight
from bnp_dask.inference.fold import fold_again, keep, settle_without_lost
from bnp_dask.inference.lap import begin_lap, settle_lap
from bnp_dask.inference.local_steps import LocalSteps, Taken
from bnp_dask.inference.state import Sample, State, Work, remember
from bnp_dask.inference.visit import remaining_weight
from bnp_dask.initialize import FromSample, Initialization
from bnp_dask.inputs import hold, number_from, one_of, whole_number
from bnp_dask.model import Model
from bnp_dask.moves import LAP, is_to_come, note
from bnp_dask.observation import numbers_per_cluster

# =====================================================================================================================
# Laps on growing samples of the batches (:class:`~bnp_dask.initialize.FromSample`).
#
# A run on a sample is the run itself: its total is the sum of the batches visited so far.  When a sample grows, one
# lap visits its new batches, which enter the total as in a first lap; no proposal is tracked then, since that takes a
# visit of every batch in the total.
# =====================================================================================================================


def first_sample(init: Initialization, work: Work) -> Sample | None:
    """The first sample of a run; None if it begins on all data."""
    if not isinstance(init, FromSample):
        return None
    sizes = init.sizes(work.source.n_batches)
    return Sample(sizes, init.laps) if len(sizes) > 1 else None


def on_sample(work: Work, sample: Sample | None) -> Work:
    """The facts of a run as if its data were the sample."""
    if sample is None or sample.is_whole:
        return work
    order = _order(work)
    chosen = np.sort(order[: sample.size])
    survey = without(work.survey, order[sample.size :].tolist())
    return replace(work, survey=survey, batches=chosen)


def of_lap(work: Work, state: State, order: np.ndarray) -> np.ndarray:
    """Batches that the present lap visits, in this order of all: of the sample, or of the part by which it grew."""
    sample = state.sample
    if sample is None:
        return order
    rank = np.empty(len(order), np.int64)
    rank[_order(work)] = np.arange(len(order))
    return order[(rank[order] >= _known(state)) & (rank[order] < sample.size)]


def n_of_lap(state: State) -> int:
    """Number of batches that the present lap visits, of those that are left."""
    return len(state.visits) if state.sample is None else state.sample.size - _known(state)


def adds(state: State) -> bool:
    """Whether the present lap visits batches for the first time."""
    return state.lap == (0 if state.sample is None else state.sample.begun)


def grow(state: State, is_quiet: bool) -> None:
    """Go on to the next sample, at the end of a lap after which the present one has no more to teach.

    ``is_quiet``: whether no move had anything to propose.
    """
    sample = state.sample
    if sample is None or sample.is_whole:
        return
    is_last = sample.stage == len(sample.sizes) - 2
    is_settled = state.finished == "converged" or (state.calm and is_quiet)
    is_settled = is_settled or (not is_last and state.calm_laps >= CALM)
    is_settled = is_settled or sample.still >= (PATIENCE if is_last else CALM)
    if is_settled or state.lap + 1 >= sample.begun + sample.laps:
        calm = min(state.calm_laps, COUNTED) if is_last else 0.0
        state.sample = replace(sample, stage=sample.stage + 1, begun=state.lap + 1, calm=calm, still=0)
        # objectives and counts of different data cannot be compared
        state.lap_elbo = state.lap_counts = None
        state.calm, state.calm_laps = False, 0.0
    state.finished = None


CALM = 2.0
"""Calm laps in a row, or still ones (:func:`sampling_error`), after which a sample grows, even if moves still have
something to propose; the last sample before all data stays for as many still laps as end a run.  A guess."""

COUNTED = 3.0
"""Most calm laps on the last sample that count for all data, of the five in a row that end a run: a guess."""


def sampling_error(model: Model, counts: np.ndarray) -> float:
    """Nats by which the objective of as many other atoms would differ at its maximum: half a nat for each number of a
    cluster, of which it shows no more than it has atoms (``counts``, ``(K,)``).

    The log likelihood ratio of p fitted numbers and the true ones has the mean p / 2 (Wilks 1938).  What a lap gains
    beyond that is of the clusters, what it gains less may be of the sample.
    """
    return 0.5 * float(np.minimum(counts, numbers_per_cluster(model.observation)).sum())


def _known(state: State) -> int:
    """Batches of the sample that the present lap does not visit, because it grew by the others."""
    sample = state.sample
    return sample.before if sample is not None and state.lap == sample.begun else 0


def _order(work: Work) -> np.ndarray:
    """All batches in the order in which samples take them, ``(B,)``."""
    return work.rng_of_all(0, "sample").permutation(work.source.n_batches)


# -- the end of a lap of schedules with an objective, the stopping rule, and the checks of its settings ---------------


TOLERANCE = 1e-6
"""Default tolerance: nats per unit of weight; a run may end once a lap changes the objective by less."""

PATIENCE = 5
"""Calm laps in a row after which a run ends, if no tolerance was given.

In nine runs on the toys of the thesis (bars, edges, letters) and two on clusters in 16 dimensions nothing was lost by
it.  Of the gain of a run to the strict end, two runs on 32 overlapping clusters lost 0.6 and 1.2 nats, two on heavy
tails 2 and 7, and two on digits 0 and 33 (a merge found late).  Three laps lost up to 157.
"""

REFINING = 0.25
"""Weight, in calm laps, of a calm lap that refined a delete which may be about to pay.  A lap in which it only waits,
because births or other deletes take its clusters, counts in full: one waited ten laps in a row (100,000 points of 32
overlapping Gaussians), and won nothing then."""


def hold_common(schedule: Any) -> None:
    """Check and set the settings common to all schedules; SettingError for laps, windows or tolerances out of range."""
    hold(schedule, "laps", whole_number("laps", schedule.laps, 1))
    if schedule.window is not None or type(schedule).window is not None:  # None where that is the default
        hold(schedule, "window", whole_number("window", schedule.window, 1))
    if schedule.tolerance is not None:
        hold(schedule, "tolerance", number_from("tolerance", schedule.tolerance, 0.0))
    hold(schedule, "count_tolerance", number_from("count_tolerance", schedule.count_tolerance, 0.0))


class Stopping(Protocol):
    """Settings of the stopping rule; see :class:`~bnp_dask.inference.variational.memoized.Memoized`."""

    @property
    def laps(self) -> int: ...

    @property
    def tolerance(self) -> float | None: ...

    @property
    def count_tolerance(self) -> float: ...


def end_exact_lap(rule: Stopping, work: Work, state: State, gain: float | None) -> list[dict[str, Any]]:
    """End a lap with the exact objective: decide its proposals, learn the prior, and decide whether to stop.

    Returns rows of the moves; ``gain`` is the gain of the lap's last step in nats, None if it is not known.
    """
    n_proposed, before = state.plan.n_proposed, dict(state.memory.sweeps)
    moves = settle_lap(work, state, gain)
    refines = any(sweep is not before.get(target) for target, sweep in state.memory.sweeps.items())
    decide_to_stop(rule, work, state, n_proposed, refines)
    return moves


def decide_to_stop(rule: Stopping, work: Work, state: State, n_proposed: int, refines: bool = False) -> None:
    """Decide at the end of a lap whether to stop.

    Converged if over one lap the objective changed by less than ``tolerance`` nats per unit of weight and no
    N_k by more than ``count_tolerance`` of all atoms, and the moves found nothing new to propose.  If no tolerance was
    given it is :data:`TOLERANCE`, and :data:`PATIENCE` calm laps in a row end the run too.  In a calm lap no cluster
    comes, goes or changes its count by more than ``LAP.calm_count``, and the objective rises by less than
    ``LAP.calm_gain`` nats per atom (in topic models: token).  A calm lap that refined a change which is tried again
    (``refines``) counts as :data:`REFINING` of one.  A run whose moves have not all begun to act is not converged.
    A run on a sample of the data goes on with a larger one when it would stop, or before (:func:`grow`).
    """
    tolerance, count_tolerance = rule.tolerance, rule.count_tolerance
    exact = TOLERANCE if tolerance is None else tolerance
    waits = any(is_to_come(move, state.lap) for move in work.moves)
    quiet = not work.moves or (state.lap > 0 and n_proposed == 0)
    counts = state.total.value_of("N")
    weight, mass = remaining_weight(work, state.lost), float(counts.sum())
    # objectives of different data cannot be compared
    same = all(loss.lap != state.lap + 1 for loss in state.lost.values())
    state.calm = False
    if same and state.lap_elbo is not None and state.lap_counts is not None and len(counts) == len(state.lap_counts):
        gain = abs(state.elbo - state.lap_elbo)
        moved = np.abs(counts - state.lap_counts)
        steady = (moved <= np.maximum(LAP.calm_count * state.lap_counts, count_tolerance * mass)).all()
        state.calm = bool(steady) and gain <= max(LAP.calm_gain * mass, exact * weight)
        if quiet and not waits and gain <= exact * weight and moved.max(initial=0.0) <= count_tolerance * mass:
            state.finished = "converged"
        if state.sample is not None:
            is_still = bool(steady) and not waits and gain <= sampling_error(state.model, counts)
            state.sample = replace(state.sample, still=state.sample.still + 1 if is_still else 0)
    elif state.sample is not None:
        state.sample = replace(state.sample, still=0)
    state.calm_laps = state.calm_laps + (REFINING if refines else 1.0) if state.calm else 0.0
    before = 0.0 if state.sample is None else state.sample.calm
    if tolerance is None and not waits and state.calm and state.calm_laps + before >= PATIENCE:
        state.finished = "converged"
    state.lap_elbo, state.lap_counts = state.elbo, counts
    if state.finished is None and state.lap + 1 >= rule.laps + state.laps_before:
        state.finished = "laps"
    grow(state, quiet)


# -- memoized: exact global steps after every few batches -------------------------------------------------------------


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
    Thesis Alg. 3.3 and 3.5; Hughes & Sudderth 2013, "Memoized online variational inference for Dirichlet process
    mixture models".
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


# -- full batch: one global step per lap ------------------------------------------------------------------------------


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
    Thesis Alg. 3.1.
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
