"""Parts of schedules: steps, the stopping rule, and the checks of their settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bnp_dask.core.frozen import frozen
from bnp_dask.core.summary import Summary
from bnp_dask.inputs.settings import hold, number_from, whole_number
from bnp_dask.moves.lap_policy import LAP
from bnp_dask.moves.when import is_to_come
from bnp_dask.schedules.engine.bad_batches import remaining_weight
from bnp_dask.schedules.engine.state import State, Work


class InFlight(Protocol):
    """Batches that were submitted and not folded yet."""

    def outstanding(self) -> list[tuple[Summary, int]]:
        """Summaries behind posteriors, and numbers of edits, with which batches in flight were submitted."""
        ...


@dataclass(frozen=True)
class Idle:
    """Nothing is in flight between two steps."""

    def outstanding(self) -> list[tuple[Summary, int]]:
        return []


IDLE = Idle()


@dataclass(frozen=True)
class Step:
    """Moment at which the state may be looked at and saved; schedules yield it.

    Parameters
    ----------
    state
        The state after this step.
    pipeline
        The lap's batches in flight; a saved state holds what is :meth:`InFlight.outstanding`.
    row
        A history row, or None when nothing changed that a user would look at.
    lap_end
        Whether this step completed a lap.
    opens
        Whether nothing was done but to send out the first batches of a lap, or of the rest of one: a moment to send
        out those of other states, and none to save the state.
    """

    state: State
    pipeline: InFlight
    row: Mapping[str, Any] | None
    lap_end: bool
    opens: bool = False

    def __post_init__(self) -> None:
        hold(self, "row", frozen(self.row))


def opening(work: Work, state: State, pipeline: InFlight) -> Iterator[Step]:
    """The step at which the first batches of a lap are out, where other states want to know."""
    if work.lockstep:
        yield Step(state, pipeline, None, lap_end=False, opens=True)


class Schedule(Protocol):
    """In which order batches are visited and when global steps are taken."""

    @property
    def laps(self) -> int:
        """Passes over the data at most."""
        ...

    @property
    def window(self) -> int:
        """Batches in flight at most."""
        ...

    @property
    def decides_moves(self) -> bool:
        """Whether it has an exact objective, with which moves are decided."""
        ...

    def run(self, work: Work, state: State) -> Iterator[Step]:
        """Go on from ``state`` until it is finished, changing it in place."""
        ...


TOLERANCE = 1e-6
"""Nats per unit of weight by which a lap changes the objective of a run that has come to its end, by default."""

PATIENCE = 5
"""Calm laps in a row after which a run ends, where no tolerance was given.

In nine runs on the toys of the thesis (bars, edges, letters) and two on clusters in 16 dimensions nothing was lost by
it; in two on 32 overlapping clusters 0.6 and 1.2 nats of what a run to the strict end gained, in two on heavy tails 2
and 7, in two on digits 0 and 33 (a merge found late).  Three laps lost up to 157.
"""

REFINING = 0.25
"""As how much of a calm lap one counts in which deletes were still being refined: they may be about to pay."""


def hold_common(schedule: Any) -> None:
    """Take over what all schedules are given; SettingError for laps, windows or tolerances out of range."""
    for name in ("laps", "window"):
        hold(schedule, name, whole_number(name, getattr(schedule, name), 1))
    if schedule.tolerance is not None:
        hold(schedule, "tolerance", number_from("tolerance", schedule.tolerance, 0.0))
    hold(schedule, "count_tolerance", number_from("count_tolerance", schedule.count_tolerance, 0.0))


def end_lap(
    work: Work, state: State, laps: int, tolerance: float | None, count_tolerance: float, n_proposed: int
) -> None:
    """Count the lap and decide whether to stop.

    Converged when over one lap the objective changed by less than ``tolerance`` nats per unit of weight and no
    N_k by more than ``count_tolerance`` of all atoms, and the moves found nothing new to propose.  Where no tolerance
    was given it is :data:`TOLERANCE`, and :data:`PATIENCE` calm laps in a row are an end too: those in which no cluster
    came, went or changed its count by more than ``LAP.calm_count``, and which raised the objective by less than
    ``LAP.calm_gain`` nats per atom (of topics: token).  Those in which deletes are refined count as :data:`REFINING` of
    one.  A run whose moves have not all begun to act is not converged.
    """
    exact = TOLERANCE if tolerance is None else tolerance
    waits = any(is_to_come(move, state.lap) for move in work.moves)
    quiet = not work.moves or (state.lap > 0 and n_proposed == 0)
    state.lap += 1
    state.position = 0
    counts = state.total.value_of("N")
    weight, mass = remaining_weight(work, state.lost), float(counts.sum())
    same = all(loss.lap != state.lap for loss in state.lost.values())  # another objective says nothing about this one
    state.calm = False
    if same and state.lap_elbo is not None and state.lap_counts is not None and len(counts) == len(state.lap_counts):
        gain = abs(state.elbo - state.lap_elbo)
        moved = np.abs(counts - state.lap_counts)
        steady = (moved <= np.maximum(LAP.calm_count * state.lap_counts, count_tolerance * mass)).all()
        state.calm = bool(steady) and gain <= max(LAP.calm_gain * mass, exact * weight)
        if quiet and not waits and gain <= exact * weight and moved.max(initial=0.0) <= count_tolerance * mass:
            state.finished = "converged"
    state.calm_laps = state.calm_laps + (REFINING if state.memory.sweeps else 1.0) if state.calm else 0.0
    if tolerance is None and not waits and state.calm_laps >= PATIENCE:
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
    """Columns of a row about batches that were left out since the last one."""
    now = [{"batch": b, "why": loss.why} for b, loss in sorted(state.lost.items()) if loss.step == state.step]
    return {"lost": now} if now else {}
