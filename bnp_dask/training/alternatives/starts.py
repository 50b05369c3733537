"""Several starts of one run: all take some laps side by side, and the best by the exact objective goes on alone.

Each start has a state and random numbers of its own, so the best start has the bits of a run of that start alone.
All visit batches in one order, so that each is read once for all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from bnp_dask.inference import Schedule, State, Step, Work
from bnp_dask.inference.shared_reads import SharedReads
from bnp_dask.inference.state import Memo
from bnp_dask.inputs.settings import start_of_seed
from bnp_dask.store import MemoryStore, RunStore
from bnp_dask.structure.nouns import noun_of
from bnp_dask.training.callbacks import Callback, logger, tell_of_batches, tell_of_lap
from bnp_dask.training.history import Rows

LAPS = 10
"""Laps after which the best of several starts goes on alone: a guess that was not compared with others."""

WENT_ON, LEFT = "went on alone", "another start was ahead"
"""Reasons of starts that had not ended by then."""

START = "start"
"""Kind of alternatives that are starts."""

SETTLED = "settled"
"""Name under which checkpoints keep the outcome of the starts."""


@dataclass(frozen=True)
class Settled:
    """Outcome of several starts.

    Parameters
    ----------
    seed
        Seed of the start that goes on.
    starts
        Outcome of each, in order: see :attr:`bnp_dask.TrainResult.alternatives`.
    """

    seed: int
    starts: Sequence[Mapping[str, Any]]


@dataclass
class Track:
    """Track of a run: its state and its history."""

    state: State
    rows: Rows


class Start(Protocol):
    """A run, as far as its several starts need it."""

    work: Work
    schedule: Schedule
    memo: RunStore | MemoryStore
    n_init: int
    room: int

    def with_parts(self, work: Work, memo: MemoryStore) -> Self:
        """The run as one of its starts, with a seed and a memory of its own."""
        ...

    def lap_steps(self, track: Track, clock: float) -> Generator[Step]:
        """Steps of one lap, without checkpoints and without calls of callbacks."""
        ...


S = TypeVar("S", bound=Start)
"""Type of a run."""


def starts_of(run: S) -> tuple[list[S], SharedReads]:
    """A run for each start, with a seed and a memory of its own, and the executor that joins their reads.

    Together they hold as much as the run may hold.
    """
    out, shared = [], SharedReads(run.work.executor)
    for number in range(run.n_init):
        own = run.room // run.n_init
        memo = MemoryStore(own - own // 4)
        seed = start_of_seed(run.work.seed, number)
        work = replace(
            run.work, seed=seed, memo=memo, shelf=None, room=own // 4, executor=shared.for_one(), in_ensemble=True,
        )  # fmt: skip
        out.append(run.with_parts(work, memo))
    return out, shared


def settle(
    runs: Sequence[Start], tracks: Sequence[Track], shared: SharedReads, callbacks: Sequence[Callback], clock: float
) -> tuple[int, Settled, str]:
    """Take laps with all starts; return the best one's number, the outcome, and why a callback stops it, if so."""
    stopped = ""
    for _ in range(LAPS):
        going = [number for number, track in enumerate(tracks) if track.state.finished is None]
        stopped = _lap_of_all([(runs[n], tracks[n]) for n in going], shared, callbacks, clock)
        if going and not stopped:
            leader = tracks[_best(tracks)]
            stopped = tell_of_lap(callbacks, leader.rows[-1], leader.state.posterior)
        if stopped or not going:
            break
    best = _best(tracks)
    facts = [_facts(run, track, n == best, stopped) for n, (run, track) in enumerate(zip(runs, tracks, strict=True))]
    for number, fact in enumerate(facts):
        logger.info(
            "start %d of %d: objective %.10g nats, %s, %s", number + 1, len(runs), fact["elbo"],
            noun_of(runs[number].work.model).count(fact["n_clusters"]),
            fact["reason"],
        )  # fmt: skip
        if number != best:
            runs[number].memo.close()
    return best, Settled(runs[best].work.seed, facts), stopped


def _lap_of_all(
    going: Sequence[tuple[Start, Track]], shared: SharedReads, callbacks: Sequence[Callback], clock: float
) -> str:
    """Take one lap of all starts, step by step; return why a callback stops the run, if one does."""
    with contextlib.ExitStack() as stack:
        laps = [stack.enter_context(contextlib.closing(run.lap_steps(track, clock))) for run, track in going]
        n_batches = going[0][0].work.source.n_batches if going else 0
        while laps:
            steps = [next(steps) for steps in laps]
            shared.send()
            if any(step.opens for step in steps):
                continue
            done = min(n_batches if step.lap_end else step.state.position for step in steps)
            if why := tell_of_batches(callbacks, done):
                return why
            laps = [lap for lap, step in zip(laps, steps, strict=True) if not step.lap_end]
    return ""


def take_over(memo: Memo, ours: Memo, state: State, room: int, after: np.ndarray | None = None) -> None:
    """Move everything that a state refers to from ``memo`` into ``ours``; ``room`` as in the work.

    ``after`` are the visits ``(B,)`` of the state that it replaces: its own visits come after them.
    """
    for batch in np.flatnonzero(state.visits >= 0).tolist():
        visit = int(state.visits[batch])
        arrays, meta = memo.get_summary(batch, visit, state.receipt(batch))
        new = visit if after is None else max(visit, int(after[batch]) + 1)
        state.note(batch, new, int(state.seen[batch]), ours.put_summary(batch, new, arrays, meta))
    if state.gathered.parts():
        state.gathered.move(memo.part_files(), ours.part_files())
    if state.gathered.held > room:
        state.gathered.write(ours.part_files())


def ended(state: State, schedule: Schedule) -> str:
    """Reason why a run has ended."""
    return state.finished if state.finished not in (None, "laps") else f"limit of {schedule.laps} laps"


def _best(tracks: Sequence[Track]) -> int:
    """The start with the highest objective, the first of equals; the first start if none has taken a lap."""
    values = [track.state.elbo if track.state.lap > 0 else -np.inf for track in tracks]
    return int(np.argmax(values))


def _facts(run: Start, track: Track, is_best: bool, stopped: str) -> dict[str, Any]:
    state = track.state
    if state.finished is not None:
        reason = ended(state, run.schedule)
    else:
        reason = stopped or (WENT_ON if is_best else LEFT)
    return alternative(START, run.work.seed, 0, state, reason)


def alternative(kind: str, seed: int, begun: int, state: State, reason: str) -> dict[str, Any]:
    """Row of :attr:`~bnp_dask.TrainResult.alternatives` for a state before which ``begun`` laps were taken."""
    return {
        "kind": kind, "seed": seed, "begun": begun, "lap": state.lap, "elbo": state.elbo,
        "n_clusters": state.posterior.n_clusters, "reason": reason,
    }  # fmt: skip


def settled_from_saved(saved: Mapping[str, Any]) -> Settled:
    """Outcome of several starts from a checkpoint; older checkpoints know no kinds."""
    return Settled(saved["seed"], [{"kind": START, "begun": 0, **start} for start in saved["starts"]])
