"""The end of a lap of schedules with an objective, the stopping rule, and the checks of its settings."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from bnp_dask.inference.bad_batches import remaining_weight
from bnp_dask.inference.lap import settle_lap
from bnp_dask.inference.state import State, Work
from bnp_dask.inference.variational.sampled import grow
from bnp_dask.inputs import hold, number_from, whole_number
from bnp_dask.moves import LAP, is_to_come

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
    state.calm_laps = state.calm_laps + (REFINING if refines else 1.0) if state.calm else 0.0
    before = 0.0 if state.sample is None else state.sample.calm
    if tolerance is None and not waits and state.calm and state.calm_laps + before >= PATIENCE:
        state.finished = "converged"
    state.lap_elbo, state.lap_counts = state.elbo, counts
    if state.finished is None and state.lap + 1 >= rule.laps + state.laps_before:
        state.finished = "laps"
    grow(state, quiet)
