"""What schedules share: steps, the stopping rule, and the checks of their settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bnp_dask.moves.base import CALM, CALM_GAIN
from bnp_dask.schedules.losing import remaining_weight
from bnp_dask.schedules.pipeline import Pipeline
from bnp_dask.schedules.state import State, Work
from bnp_dask.settings import hold, number_from, whole_number


@dataclass(frozen=True)
class Step:
    """What a schedule yields: the state may be looked at and saved now.

    Parameters
    ----------
    state
        The state after this step.
    pipeline
        The lap's batches in flight; a saved state holds what is :meth:`Pipeline.outstanding`.
    row
        A history row, or None when nothing changed that a user would look at.
    lap_end
        Whether this step completed a lap.
    """

    state: State
    pipeline: Pipeline
    row: dict[str, Any] | None
    lap_end: bool


class Schedule(Protocol):
    """In which order batches are visited and when global steps are taken."""

    laps: int
    window: int

    def run(self, work: Work, state: State) -> Iterator[Step]:
        """Go on from ``state`` until it is finished, changing it in place."""
        ...


def hold_common(schedule: Any) -> None:
    """Take over what all schedules are given; SettingError for laps, windows or tolerances out of range."""
    for name in ("laps", "window"):
        hold(schedule, name, whole_number(name, getattr(schedule, name), 1))
    for name in ("tolerance", "count_tolerance"):
        hold(schedule, name, number_from(name, getattr(schedule, name), 0.0))


def end_lap(work: Work, state: State, laps: int, tolerance: float, count_tolerance: float, n_proposed: int) -> None:
    """Count the lap and decide whether to stop.

    Converged when over one lap the objective changed by less than ``tolerance`` nats per unit of weight and no
    N_k by more than ``count_tolerance`` of the total weight, and the moves found nothing new to propose.
    """
    quiet = not work.moves or (state.lap > 0 and n_proposed == 0)
    state.lap += 1
    state.position = 0
    counts = state.total.value_of("N")
    weight = remaining_weight(work, state.lost)
    same = all(loss.lap != state.lap for loss in state.lost.values())  # another objective says nothing about this one
    state.calm = False
    if same and state.lap_elbo is not None and state.lap_counts is not None and len(counts) == len(state.lap_counts):
        gain = abs(state.elbo - state.lap_elbo)
        moved = np.abs(counts - state.lap_counts)
        steady = (moved <= np.maximum(CALM * state.lap_counts, count_tolerance * weight)).all()
        state.calm = bool(steady) and gain <= max(CALM_GAIN, tolerance) * weight
        if quiet and gain <= tolerance * weight and moved.max(initial=0.0) <= count_tolerance * weight:
            state.finished = "converged"
    state.lap_elbo, state.lap_counts = state.elbo, counts
    if state.finished is None and state.lap >= laps:
        state.finished = "laps"


def history_row(state: State, lap: int, batches: Sequence[int] | None, **extra: Any) -> dict[str, Any]:
    """One row of the history, from the state after a step of 0-based lap ``lap`` that folded some batches (all).

    Schedules with an exact objective add ``gain``: the nats by which assigning these batches anew raised it, before
    clusters were changed; None where the objective before was that of other batches.  Each row's ``elbo`` is that of
    the row before plus its ``gain`` and the gains of its accepted ``moves``, to rounding.
    """
    return {
        "step": state.step,
        "lap": lap + 1,
        "batch": None if batches is None else int(batches[-1]),
        "n_batches": None if batches is None else len(batches),
        "elbo": state.elbo,
        **state.terms,
        "n_clusters": state.posterior.n_clusters,
        "atoms": float(state.total.value_of("N").sum()),
        **extra,
        **_lost_now(state),
    }


def _lost_now(state: State) -> dict[str, Any]:
    """What a row says about batches that were left out since the last one."""
    now = [{"batch": b, "why": loss.why} for b, loss in sorted(state.lost.items()) if loss.step == state.step]
    return {"lost": now} if now else {}
