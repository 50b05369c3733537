"""The only loop: the batches of a lap are sent out in groups, folded in order, and the lap is ended.

A schedule is three functions: ``groups`` chooses the batches that are visited together, and their tasks; ``fold`` takes
a group that came back into the state, or sends it back once; ``end_lap`` closes a lap.  This module keeps the loop, the
window, the step, the lap and the position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from bnp_dask.core import Summary, frozen
from bnp_dask.execute import Handle, Task, collected, submitted
from bnp_dask.inference.state import State, Work
from bnp_dask.inference.visit import leave_out
from bnp_dask.inputs import hold
from bnp_dask.model import Posterior

Told = dict[str, Any]
"""Columns of a row of the history; empty if a step has no row."""


class Group(Protocol):
    """Batches that came back together."""

    @property
    def batches(self) -> tuple[int, ...]:
        """In the order of the lap."""
        ...


G = TypeVar("G", bound=Group)
Back = TypeVar("Back", bound=Group, covariant=True)


class Schedule(Protocol[G]):
    """Order in which batches are visited, and times of global steps."""

    @property
    def laps(self) -> int:
        """Passes over the data at most."""
        ...

    @property
    def window(self) -> int | None:
        """Batches in flight at most; None: see :func:`in_flight`."""
        ...

    @property
    def decides_moves(self) -> bool:
        """Whether it has an exact objective, on which moves are decided."""
        ...

    def run(self, work: Work, state: State) -> Iterator[Step]:
        """Continue from ``state`` until it is finished, changing it in place: :func:`drive`."""
        ...

    def groups(self, work: Work, state: State) -> Flight[G]:
        """Begin a lap, or continue it from ``state.position``; returns the flight of its remaining batches."""
        ...

    def fold(self, work: Work, state: State, group: G) -> Told | None:
        """Take the results of a group into the state; returns the row of the history, or an empty one.

        None: nothing was taken; the group is to be visited once more, with the current posterior.
        """
        ...

    def end_lap(self, work: Work, state: State, told: Told) -> Told:
        """End lap ``state.lap``; set ``state.finished`` if the run ends with it.

        Returns the row of the history that replaces the last fold's row, ``told``.
        """
        ...


LEAST_WINDOW = 8
"""Batches in flight of data in few batches."""

SHARE_IN_FLIGHT = 8
"""One batch in so many is in flight, if the user sets no number: a guess.  The more, the more workers are busy, and the
older is the posterior of a batch when it is folded."""


def in_flight(window: int | None, n_batches: int) -> int:
    """Number of batches in flight at most: as set, or an eighth of the batches and at least 8.

    It depends on nothing but the data, because results depend on it.
    """
    return max(LEAST_WINDOW, n_batches // SHARE_IN_FLIGHT) if window is None else window


@dataclass(frozen=True)
class Step:
    """Moment at which the state may be inspected and saved; schedules yield it.

    Parameters
    ----------
    state
        The state after this step.
    row
        A history row, or None if nothing of interest to a user changed.
    lap_end
        Whether this step completed a lap.
    in_flight
        Summary behind the posterior, and number of edits, of each group in flight whose posterior is older than the
        state's; saved with the state.
    opens
        Whether the step only sent out the first batches of a lap, or of the rest of one.  Other states may then send
        theirs, and the state is not saved.
    """

    state: State
    row: Mapping[str, Any] | None
    lap_end: bool
    in_flight: Sequence[tuple[Summary, int]] = ()
    opens: bool = False

    def __post_init__(self) -> None:
        hold(self, "row", frozen(self.row))


def drive(schedule: Schedule[G], work: Work, state: State) -> Iterator[Step]:
    """Laps of a schedule until the state is finished; the state is changed in place."""
    while state.finished is None:
        yield from drive_lap(schedule, work, state)


def drive_lap(schedule: Schedule[G], work: Work, state: State) -> Iterator[Step]:
    """One lap, or the rest of one."""
    lap, flight = state.lap, schedule.groups(work, state)
    flight.fill()
    if work.in_ensemble:
        yield Step(state, None, lap_end=False, opens=True)
    while flight.is_left:
        group = flight.take()
        told = schedule.fold(work, state, group)
        if told is None:
            told = schedule.fold(work, state, flight.again(group))
        assert told is not None, "a group is sent back once"
        batches = group.batches if told else None  # without a row for each group, the lap has one
        if flight.is_left:
            state.step += bool(told)
            flight.fill()
        else:
            state.step += 1
            told = schedule.end_lap(work, state, told)
            state.lap, state.position = lap + 1, 0
        row = history_row(state, lap, batches, **told) if told else None
        yield Step(state, row, lap_end=not flight.is_left, in_flight=flight.outstanding())


class Visits(Protocol[Back]):
    """Tasks of a group, and their results."""

    def submit(self, batches: tuple[int, ...], basis: Posterior, seen: int, attempt: int = 1) -> Any:
        """Start the tasks; the posterior ``basis`` includes the first ``seen`` changes of clusters."""
        ...

    def collect(self, submitted: Any) -> Back:
        """Wait for the tasks that :meth:`submit` started; batches that went bad leave the run."""
        ...


@dataclass
class Flight(Generic[G]):
    """Batches of one lap in groups: submitted and taken in order, a fixed number in flight.

    The posterior of a group is the one after the fold of all groups before the groups in flight, no matter which worker
    computes it and however long it takes.  So a run depends on data, settings, seed and window only.

    Parameters
    ----------
    work, state
        Facts of the run, and its state.
    order
        Batches in the order of this lap, ``(B,)``.
    window
        Batches in flight at most.
    size
        Batches of a group.
    visits
        Tasks of a group.
    last
        Batches that are submitted only when all batches before them are folded.
    """

    work: Work
    state: State
    order: np.ndarray
    window: int
    size: int
    visits: Visits[G]
    last: Collection[int] = ()
    _queue: deque[tuple[Posterior, int, Any]] = field(default_factory=deque)
    _next: int = 0
    _taken: int = 0

    def __post_init__(self) -> None:
        self._next = self._taken = self.state.position
        for basis, seen in self.state.in_flight:
            self._submit(self.state.model.global_step(basis), seen)
        self.state.in_flight = []

    @property
    def is_left(self) -> bool:
        """Whether some batches of this lap were not taken yet."""
        return self._taken < len(self.order)

    def fill(self) -> None:
        """Submit groups, to be computed with the current posterior, until the window is full or the lap ends."""
        while self._next < len(self.order):
            size = min(self.size, len(self.order) - self._next)
            is_full = self._next + size - self._taken > self.window
            if self._queue and (is_full or self.order[self._next] in self.last):
                return
            self._submit(self.state.posterior, len(self.state.edits))

    def take(self) -> G:
        """Wait for the next group of the lap."""
        _, _, tasks = self._queue.popleft()
        group = self.visits.collect(tasks)
        self._taken = self.state.position = self._taken + len(group.batches)
        return group

    def again(self, group: G) -> G:
        """Visit a group once more, with the current posterior."""
        basis, seen = self.state.posterior, len(self.state.edits)
        return self.visits.collect(self.visits.submit(group.batches, basis, seen, attempt=2))

    def outstanding(self) -> list[tuple[Summary, int]]:
        """Summary and number of edits behind each group in flight whose posterior is older than the state's."""
        out = []
        for basis, seen, _ in self._queue:
            if basis is not self.state.posterior:
                assert basis.summary is not None
                out.append((basis.summary, seen))
        return out

    def _submit(self, basis: Posterior, seen: int) -> None:
        batches = tuple(int(b) for b in self.order[self._next : self._next + self.size])
        self._next += len(batches)
        self._queue.append((basis, seen, self.visits.submit(batches, basis, seen)))


class Found(Protocol):
    """Result of a task on a batch."""

    @property
    def lost(self) -> str:
        """Reason why the batch is left out; empty if it is used."""
        ...


F = TypeVar("F", bound=Found)


@dataclass(frozen=True, eq=False)
class Results(Generic[F]):
    """Results of the tasks of a group, one for each batch: in order, while later ones are computed."""

    batches: tuple[int, ...]
    found: Iterator[tuple[int, F]]


@dataclass(frozen=True, eq=False)
class OneByOne(Generic[F]):
    """Tasks on one batch each, side by side; results are taken one after the other.

    Parameters
    ----------
    work, state
        Facts of the run, and its state.
    tasks
        Tasks on the batches of a group, in their order.
    """

    work: Work
    state: State
    tasks: Callable[[tuple[int, ...]], Sequence[Task]]

    def submit(
        self, batches: tuple[int, ...], basis: Posterior, seen: int, attempt: int = 1
    ) -> tuple[tuple[int, ...], list[Handle]]:
        return batches, submitted(self.work.executor, self.tasks(batches))

    def collect(self, submitted: tuple[tuple[int, ...], list[Handle]]) -> Results[F]:
        return Results(submitted[0], self._found(*submitted))

    def _found(self, batches: tuple[int, ...], handles: list[Handle]) -> Iterator[tuple[int, F]]:
        for batch, found in zip(batches, collected(self.work.executor, handles, False), strict=True):
            if found.lost:
                leave_out(self.work, self.state, {batch: found.lost})
            yield batch, found


def history_row(state: State, lap: int, batches: Sequence[int] | None, **extra: Any) -> dict[str, Any]:
    """One row of the history, from the state after a step of 0-based lap ``lap`` that folded ``batches`` (None: all).

    Schedules with an exact objective add ``gain``: the nats by which the new assignments of these batches raised it,
    before clusters were changed; None if the objective before covered other batches.  Each row's ``elbo`` is the
    previous row's plus its own ``gain`` and the gains of its accepted ``moves``, to rounding.
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
