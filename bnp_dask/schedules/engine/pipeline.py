"""Batches in flight: submitted in groups, taken in order, a fixed number at a time.

The posterior a group of batches is computed with is that after folding the groups before those in flight, whoever
computes it and however long that takes: a run depends on data, settings, seed and window only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bnp_dask.core.summary import Summary
from bnp_dask.data.coalesce import SMALL_BYTES
from bnp_dask.execute.base import Handle
from bnp_dask.execute.ordered import collected, submitted
from bnp_dask.model import Posterior
from bnp_dask.observation.base import numbers_per_cluster
from bnp_dask.schedules.engine.batch_memo import MemoSlot
from bnp_dask.schedules.engine.reduction import FAN, Change, change_of, joined, reduced, reduced_for_us, sums_left
from bnp_dask.schedules.engine.state import State, Work, recall, recall_left, recall_states
from bnp_dask.schedules.engine.tasks import LocalStep, Unkept, Unsummed, added, local_steps, unkept_of
from bnp_dask.schedules.engine.visit import request_of
from bnp_dask.store import Receipt
from bnp_dask.structure.base import Visit

SMALL_EFFORT = 1e8
"""Products that the local step of a batch takes below which some 20 ms for a task of its own are too many."""

ROUND_EFFORT = 4 * SMALL_EFFORT
"""Products of all batches of a task, up to which it visits more than ``FAN``: a tenth of a second or so."""

SLIGHT = 2**19
"""Numbers up to which parameters travel with each task, and changes come back from each: tasks of their own, to hand
those out and to add these, would wait for a worker that is free twice for every group of batches."""

SLIGHT_TRIALS = 2**24
"""Numbers up to which the parameters of a lap's trials, as often as there are batches (128 MB), travel with each task.
Dask gives a task to a worker that holds what it needs: all of a lap would begin where trials lie that were sent once,
and the other workers would have to take them over."""

FEW = 16
"""Tasks of a group up to which that holds; of more, the coordinator leaves what it can to others."""

AT_ONCE = 2**22
"""Numbers up to which the changes of a group come in one message (32 MB)."""


@dataclass(frozen=True)
class Kept:
    """A visit that a worker has written down: its number, and what its file is known by."""

    visit: int
    receipt: Receipt


@dataclass(frozen=True, eq=False)
class Taken:
    """A group of batches that were visited with one posterior.

    Parameters
    ----------
    batches
        In the order of the lap.
    seen
        How many changes of clusters that posterior had seen.
    change
        What they change together.
    written
        Those visits that workers have written down.
    visits
        The other visits, which are to be kept here.
    """

    batches: tuple[int, ...]
    seen: int
    change: Change
    written: dict[int, Kept]
    visits: list[tuple[int, Visit]]


@dataclass(frozen=True, eq=False)
class _Group:
    """A group in flight: its batches, the posterior behind it, and tasks that tell what it changes.

    ``numbers`` are those of the visits that workers may write down.  ``own`` are tasks of batches that try a birth of
    their own.  ``at_once``: whether there is room for all other changes.
    """

    batches: tuple[int, ...]
    basis: Posterior
    seen: int
    numbers: dict[int, int]
    changes: list[Handle]
    own: list[Handle]
    at_once: bool


@dataclass
class Pipeline:
    """The batches of one lap, from submission to folding.

    Parameters
    ----------
    work, state
        What does not change, and where the run stands.
    lap
        For the names of tasks.
    order
        Batches in the order of this lap, ``(B,)``.
    window
        Batches in flight at most.
    size
        Batches of a group.
    keeps
        Whether the statistics of a batch's last visit are kept, so that a visit changes by a difference.
    is_whole
        Whether visits are wanted whole, and not only what they change.
    leaves
        Whether visits leave anything for the next of their batches.
    """

    work: Work
    state: State
    lap: int
    order: np.ndarray
    window: int
    size: int = 1
    keeps: bool = True
    is_whole: bool = False
    leaves: bool = True
    _queue: deque[_Group] = field(default_factory=deque)
    _next: int = 0

    def __post_init__(self) -> None:
        plan = self.state.plan
        self._most_atoms = max(self.work.survey.batch_atoms, default=0)
        self._trials: Any = tuple(replace(t, beliefs=t.beliefs.for_visits(self._most_atoms)) for t in plan.trials)
        numbers = sum(t.beliefs.n_clusters for t in plan.trials) * numbers_per_cluster(self.work.model.observation)
        if numbers * len(self.order) > SLIGHT_TRIALS:
            self._trials = self.work.executor.share(f"trials-lap{self.lap}", self._trials)
        self._next = self.state.position
        for basis, seen in self.state.in_flight:
            self._queue.append(self._submit(self._next_group(), self.state.model.global_step(basis), seen))
        self.state.in_flight = []

    @property
    def n_left(self) -> int:
        """Groups of this lap that were not taken yet."""
        return -(-(len(self.order) - self.state.position) // self.size)

    def fill(self) -> None:
        """Submit groups computed with the current posterior until the window is full or the lap is."""
        while self._next < len(self.order):
            size = min(self.size, len(self.order) - self._next)
            if self._queue and self._next + size - self.state.position > self.window:
                return
            self._queue.append(self._submit(self._next_group(), self.state.posterior, len(self.state.edits)))

    def take(self) -> Taken:
        """Wait for the next group of the lap."""
        group = self._queue.popleft()
        self.state.position += len(group.batches)
        return self._open(group)

    def again(self, batches: Sequence[int], basis: Posterior | None = None) -> Taken:
        """Visit a group once more, with the current posterior unless another is given."""
        posterior = self.state.posterior if basis is None else basis
        return self._open(self._submit(tuple(batches), posterior, len(self.state.edits), attempt=2))

    def outstanding(self) -> list[tuple[Summary, int]]:
        """Facts with which the groups in flight were submitted; a checkpoint holds them, to compute these again."""
        out = []
        for group in self._queue:
            assert group.basis.summary is not None
            out.append((group.basis.summary, group.seen))
        return out

    def _next_group(self) -> tuple[int, ...]:
        found = tuple(int(b) for b in self.order[self._next : self._next + self.size])
        self._next += len(found)
        return found

    def _submit(self, batches: tuple[int, ...], basis: Posterior, seen: int, attempt: int = 1) -> _Group:
        executor = self.work.executor
        steps = [self._step(batch, seen, attempt) for batch in batches]
        last = [step for step in steps if step.split is not None]
        rounds = self._rounds([step for step in steps if step.split is None], basis.n_clusters)
        numbers = basis.n_clusters * numbers_per_cluster(self.work.model.observation)
        slight = is_slight(len(last) + len(rounds), numbers)
        beliefs: Any = basis.for_visits(self._most_atoms)
        if not slight:
            beliefs = executor.share(f"posterior-lap{self.lap}-batch{batches[0]}", beliefs)
        own = self._started(beliefs, [[step] for step in last])
        changes = self._started(beliefs, rounds)
        kept = {step.request.batch: step.slot.new for step in steps if step.slot is not None}
        by_workers = bool(kept) and not self.work.reach.is_rare
        if by_workers and not slight:
            most = sums_left(len(changes), executor.n_workers, numbers)
            changes = reduced_for_us(changes, self._add, most)
        at_once = by_workers and len(changes) * numbers <= AT_ONCE
        return _Group(batches, basis, seen, kept, changes, own, at_once)

    def _started(self, beliefs: Any, rounds: list[list[LocalStep]], first: bool = False) -> list[Handle]:
        """Tasks, one for each round of batches."""
        tasks = [(self._name(some[0].request.batch), local_steps, (beliefs, self._trials, *some)) for some in rounds]
        return submitted(self.work.executor, tasks, first)

    def _add(self, groups: list[Sequence[Handle]]) -> list[Handle]:
        """Tasks that each add some changes."""
        return submitted(self.work.executor, [(f"add-lap{self.lap}", added, tuple(some)) for some in groups])

    def _name(self, batch: int) -> str:
        return f"local_step-lap{self.lap}-batch{batch}"

    def _rounds(self, pieces: list[LocalStep], n_clusters: int) -> list[list[LocalStep]]:
        """Which batches one task visits: those whose changes would be added first anyway, where a task costs more.

        Every worker thread gets one of a group all the same.
        """
        if any(step.slot is None for step in pieces):  # what comes back whole is as much as a message should hold
            return [[step] for step in pieces]
        effort, n_workers = _effort(self.work, n_clusters), max(1, self.work.executor.n_workers)
        size = FAN if effort < SMALL_EFFORT and len(pieces) >= FAN * n_workers else 1
        numbers = n_clusters * numbers_per_cluster(self.work.model.observation)
        if size > 1 and is_slight(len(pieces) // size, numbers):
            most = min(len(pieces) // n_workers, ROUND_EFFORT / max(effort, 1.0))
            while 2 * size <= most:
                size *= 2
        return [pieces[i : i + size] for i in range(0, len(pieces), size)]

    def _step(self, batch: int, seen: int, attempt: int = 1, is_whole: bool = False) -> LocalStep:
        """Work on a batch; with what its last visit left, unless its worker reads that itself."""
        work, state, plan = self.work, self.state, self.state.plan
        split = plan.splits.get(batch)
        is_whole = is_whole or work.shelf is None or self.is_whole or split is not None
        slot = None if is_whole else self._slot(batch, seen, attempt)
        carries = slot is None or work.reach.is_rare
        return LocalStep(
            request=request_of(work, state, batch),
            pairs=plan.pairs,
            split=split,
            gather=replace(plan.gather, key=(self.lap, 13, batch)),
            weight=state.weight(batch),
            assigns=self._assigns(batch),
            slot=slot,
            states=recall_states(work, state, batch, seen) if carries else None,
            left=recall_left(work, state, batch, seen) if carries and self.keeps else None,
            has_states=carries,
        )

    def _slot(self, batch: int, seen: int, attempt: int) -> MemoSlot:
        state = self.state
        assert self.work.shelf is not None
        old = int(state.visits[batch])
        return MemoSlot(
            shelf=self.work.shelf,
            batch=batch,
            old=old,
            receipt=state.receipt(batch),
            new=old + attempt,
            edits=tuple(state.edits[int(state.seen[batch]) : seen]),
            is_full=self.keeps,
            leaves=self.leaves,
        )

    def _assigns(self, batch: int) -> bool:
        """Whether assignments of a batch may be kept; its data may be needed again whenever statistics are."""
        readable = self.work.readable
        return self.keeps and readable is not None and bool(readable[batch]) and batch not in self.state.lost

    def _open(self, group: _Group) -> Taken:
        """Wait for a group's tasks.  Batches that try a birth of their own are added last."""
        found: list[tuple[int, Visit]] = []
        unkept: list[str] = []

        def changes(handles: Sequence[Handle], at_once: bool) -> Iterator[Change]:
            for part in collected(self.work.executor, handles, at_once):
                missing = unkept_of([part])
                unkept.extend(one.why for one in missing if one.why)
                yield self._finished(group, part, self._found_at_last(group, missing), found)

        own = list(changes(group.own, False))
        main = reduced(changes(group.changes, group.at_once), lambda some: joined(*some))
        whole = joined(*([] if main is None else [main]), *own)
        self.work.reach.note(len(group.numbers) - len(unkept), unkept)
        if self.work.unread is not None:
            self.work.unread[list(group.batches)] = False
        written = {batch: Kept(group.numbers[batch], receipt) for batch, receipt in whole.written}
        return Taken(group.batches, group.seen, whole, written, found)

    def _keep_here(self, group: _Group, batch: int, seen: Visit, found: list[tuple[int, Visit]]) -> Change:
        """The change that a visit makes which came whole; it is noted under ``found``."""
        found.append((batch, replace(seen, before=None)))
        old = seen.before
        if old is None and self.keeps and self.state.visits[batch] >= 0:
            old = recall(self.work, self.state, batch, group.seen)
        return change_of(seen, old, batch)

    def _found_at_last(self, group: _Group, missing: Sequence[Unkept]) -> dict[int, Visit]:
        """Visits of batches whose results the coordinator keeps, made now where they were not."""
        late = [self._step(one.batch, group.seen, is_whole=True) for one in missing if one.found is None]
        beliefs = group.basis.for_visits(self._most_atoms) if late else None
        parts = [self.work.executor.result(h) for h in self._started(beliefs, [[step] for step in late], first=True)]
        return {one.batch: one.found for one in [*missing, *unkept_of(parts)] if one.found is not None}

    def _finished(
        self,
        group: _Group,
        part: Change | Unkept | Unsummed,
        visits: Mapping[int, Visit],
        found: list[tuple[int, Visit]],
    ) -> Change:
        """Change by some tasks, with what they left to be told here, added in the order in which they would."""
        if isinstance(part, Change):
            return part
        if isinstance(part, Unkept):
            return self._keep_here(group, part.batch, visits[part.batch], found)
        return joined(*[self._finished(group, one, visits, found) for one in part.parts])


def is_slight(n_tasks: int, numbers: int) -> bool:
    """Whether all that some tasks take and bring, so many numbers each, is so little that it may pass through here.

    What they bring is added here in the order in which tasks would add it: the bits are the same.
    """
    return n_tasks <= 1 or (n_tasks <= FEW and n_tasks * numbers <= SLIGHT)


def _effort(work: Work, n_clusters: int) -> float:
    """Products that the local step of a batch of average size takes; no end of them where none can be called small.

    Groups and sequences take many steps.
    """
    model, share = work.model, 1.0 / work.source.n_batches
    if work.survey.nbytes * share > SMALL_BYTES:
        return np.inf
    return model.structure.effort(model, work.survey.n_atoms * share, n_clusters)
