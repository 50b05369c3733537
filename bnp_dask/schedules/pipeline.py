"""Batches in flight: submitted in groups, taken in order, a fixed number at a time.

The posterior a group of batches is computed with is that after folding the groups before those in flight, whoever
computes it and however long that takes: a run depends on data, settings, seed and window only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bnp_dask.batch import Batch
from bnp_dask.data.base import Reader, naming_batch
from bnp_dask.data.skipping import read_or_why
from bnp_dask.data.together import SMALL_BYTES
from bnp_dask.execute.ahead import Load, in_turn, load_of
from bnp_dask.execute.base import Handle, Task
from bnp_dask.execute.ordered import collected, submitted
from bnp_dask.finite import require_finite_arrays
from bnp_dask.model import Posterior
from bnp_dask.moves.base import Gather, Split
from bnp_dask.moves.birth import gather_atoms, visit_and_split
from bnp_dask.observation.base import numbers_per_cluster
from bnp_dask.schedules.change import FAN, Change, change_of, joined, reduced, reduced_for_us, sums_left
from bnp_dask.schedules.kept import Errand
from bnp_dask.schedules.losing import fault_of, instead, reader_of
from bnp_dask.schedules.state import State, Work, recall, recall_states
from bnp_dask.states import GroupStates
from bnp_dask.summary import Summary
from bnp_dask.visits import Trial, Visit

SMALL_EFFORT = 1e8
"""Products that the local step of a batch takes below which some 20 ms for a task of its own are too many."""

ROUND_EFFORT = 4 * SMALL_EFFORT
"""The same of all batches of a task, up to which it visits more than ``FAN``: a tenth of a second or so."""

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


@dataclass(frozen=True, eq=False)
class Job:
    """What the tasks of one lap do beside the local step; see :class:`~bnp_dask.moves.base.Plan`.

    ``empty`` is read in place of a batch that has gone bad; None: that is an error.
    """

    name: str
    pairs: np.ndarray
    split: Split | None
    gather: Gather
    seed: int
    empty: Reader | None = None


def visit(
    posterior: Posterior, reader: Reader, trials: tuple[Trial, ...], job: Job, states: GroupStates | None
) -> Visit:
    """The task: read one batch, assign its atoms, summarize them, and carry out the lap's trials."""
    if job.empty is None:
        return visit_batch(posterior, reader(), trials, job, states)
    batch = read_or_why(reader)
    if isinstance(batch, str):
        return lose_batch(posterior, job.empty, trials, job, batch)
    try:
        return visit_batch(posterior, batch, trials, job, states)
    except Exception:
        why = fault_of(posterior.model, batch)
        if why is None:  # nothing is wrong with the batch
            raise
        return lose_batch(posterior, job.empty, trials, job, why)


def lose_batch(posterior: Posterior, empty: Reader, trials: tuple[Trial, ...], job: Job, why: str) -> Visit:
    """What is found in a batch that is left out."""
    return replace(visit_batch(posterior, empty(), trials, replace(job, split=None), None), lost=why)


def visit_batch(
    posterior: Posterior, batch: Batch, trials: tuple[Trial, ...], job: Job, states: GroupStates | None
) -> Visit:
    """The same for a batch in memory."""
    with naming_batch(job.name):
        if job.split is not None:
            found = visit_and_split(posterior, batch, job.pairs, trials, job.split, job.seed)
        else:
            start = () if states is None else (states,)
            found = posterior.model.visit(posterior, batch, job.pairs, trials, job.gather.targets, *start)
            found = gather_atoms(posterior.model, found, batch, job.gather, job.seed)
    sums = {"": found.summary, **{f"trial {name}: ": part for name, part in found.parts.items()}}
    for name, summary in (sums if found.newborn is None else {**sums, "newborn clusters: ": found.newborn}).items():
        require_finite_arrays(summary.values, f"{job.name}: {name}statistic", summary.ids)
        require_finite_arrays(summary.pair_values, f"{job.name}: {name}statistic of pairs")
    return found


@dataclass(frozen=True, eq=False)
class Stop:
    """One batch on the round of a task: how to read it, what to do there, and where its statistics are kept."""

    reader: Reader
    job: Job
    errand: Errand

    @property
    def first_load(self) -> Load[Batch] | None:
        """The reader, where somebody else may call it before."""
        return load_of(self.reader)


def visit_and_keep(posterior: Posterior, trials: tuple[Trial, ...], *stops: Stop) -> Change:
    """The task where workers reach the run directory: only what changed goes back, of small batches of some at once."""
    changes = []
    with in_turn([stop.reader for stop in stops]):
        for stop in stops:
            old, states = stop.errand.read(posterior.model)
            found = visit(posterior, stop.reader, trials, stop.job, states)
            stop.errand.write(posterior.model, found)
            changes.append(change_of(found, old, stop.errand.batch))
    return joined(*changes).with_atoms_in_one()


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
        The numbers of those visits that workers have written down.
    visits
        The other visits, which are to be kept here.
    """

    batches: tuple[int, ...]
    seen: int
    change: Change
    written: dict[int, int]
    visits: list[tuple[int, Visit]]


@dataclass(frozen=True, eq=False)
class _Group:
    """A group in flight: its batches, the posterior behind it, what workers reduce, and visits that come whole.

    ``at_once``: whether there is room for all that workers reduce.
    """

    batches: tuple[int, ...]
    basis: Posterior
    seen: int
    written: dict[int, int]
    changes: list[Handle]
    visits: list[tuple[int, Handle]]
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
    """

    work: Work
    state: State
    lap: int
    order: np.ndarray
    window: int
    size: int = 1
    keeps: bool = True
    is_whole: bool = False
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
            self._queue.append(self._submit(self._next_group(), self.work.model.global_step(basis), seen))
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

    def again(self, batches: Sequence[int]) -> Taken:
        """Visit a group once more, with the current posterior."""
        return self._open(self._submit(tuple(batches), self.state.posterior, len(self.state.edits), attempt=2))

    def outstanding(self) -> list[tuple[Summary, int]]:
        """What the groups in flight were submitted with: a checkpoint holds it, and they are computed again."""
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
        stops: list[Stop] = []
        whole: list[tuple[int, Reader, Job]] = []
        written: dict[int, int] = {}
        for batch in batches:
            job, reader = self._job(batch), reader_of(self.work, self.state, batch)
            if self.work.shelf is None or self.is_whole or job.split is not None:
                whole.append((batch, reader, job))
                continue
            errand = self._errand(batch, attempt, seen)
            if self.keeps or self.work.model.keeps_states:
                written[batch] = errand.new
            stops.append(Stop(reader, job, errand))
        rounds = self._rounds(stops, basis.n_clusters)
        numbers = basis.n_clusters * numbers_per_cluster(self.work.model.observation)
        slight = is_slight(len(whole) + len(rounds), numbers)
        beliefs: Any = basis.for_visits(self._most_atoms)
        if not slight:
            beliefs = executor.share(f"posterior-lap{self.lap}-batch{batches[0]}", beliefs)
        tasks: list[Task] = []
        for batch, reader, job in whole:
            states = recall_states(self.work, self.state, batch)
            tasks.append((self._name(batch), visit, (beliefs, reader, self._trials, job, states)))
        visits = list(zip((batch for batch, _, _ in whole), submitted(executor, tasks), strict=True))
        tasks = [(self._name(r[0].errand.batch), visit_and_keep, (beliefs, self._trials, *r)) for r in rounds]
        changes = submitted(executor, tasks)
        if changes and not slight:
            most = sums_left(len(changes), executor.n_workers, numbers)
            changes = reduced_for_us(changes, self._add, most)
        at_once = len(changes) * numbers <= AT_ONCE
        return _Group(batches, basis, seen, written, changes, visits, at_once)

    def _add(self, groups: list[Sequence[Handle]]) -> list[Handle]:
        """Tasks that each add some changes."""
        return submitted(self.work.executor, [(f"add-lap{self.lap}", joined, tuple(some)) for some in groups])

    def _name(self, batch: int) -> str:
        return f"local_step-lap{self.lap}-batch{batch}"

    def _rounds(self, stops: list[Stop], n_clusters: int) -> list[list[Stop]]:
        """Which batches one task visits: those whose changes would be added first anyway, where a task costs more.

        Every worker thread gets one of a group all the same.
        """
        effort, n_workers = _effort(self.work, n_clusters), max(1, self.work.executor.n_workers)
        size = FAN if effort < SMALL_EFFORT and len(stops) >= FAN * n_workers else 1
        numbers = n_clusters * numbers_per_cluster(self.work.model.observation)
        if size > 1 and is_slight(len(stops) // size, numbers):
            most = min(len(stops) // n_workers, ROUND_EFFORT / max(effort, 1.0))
            while 2 * size <= most:
                size *= 2
        return [stops[i : i + size] for i in range(0, len(stops), size)]

    def _job(self, batch: int) -> Job:
        plan = self.state.plan
        gather = replace(plan.gather, key=(self.lap, 13, batch))
        name = f"{self.work.source.name} batch {batch}"
        empty = instead(self.work, batch) if self.work.skips and batch not in self.state.lost else None
        return Job(name, plan.pairs, plan.splits.get(batch), gather, self.work.seed, empty)

    def _errand(self, batch: int, attempt: int, seen: int) -> Errand:
        assert self.work.shelf is not None
        old, known = int(self.state.visits[batch]), int(self.state.seen[batch])
        return Errand(self.work.shelf, batch, old, old + attempt, tuple(self.state.edits[known:seen]), self.keeps)

    def _open(self, group: _Group) -> Taken:
        """Wait for a group's tasks.  Batches that try a birth of their own are added last."""
        found: list[tuple[int, Visit]] = []
        own: list[Change] = []

        def others() -> Iterator[Change]:
            for batch, handle in group.visits:
                seen: Visit = self.work.executor.result(handle)
                found.append((batch, seen))
                old = None
                if self.keeps and self.state.visits[batch] >= 0:
                    old = recall(self.work, self.state, batch, group.seen)
                change = change_of(seen, old, batch)
                if batch in self.state.plan.splits:
                    own.append(change)
                else:
                    yield change

        main = reduced(others(), lambda some: joined(*some))
        if group.changes:
            changes: Iterator[Change] = collected(self.work.executor, group.changes, group.at_once)
            main = reduced(changes, lambda some: joined(*some))
        whole = joined(*([] if main is None else [main]), *own)
        return Taken(group.batches, group.seen, whole, group.written, found)


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
    if model.chained or model.allocation.grouped or work.survey.nbytes * share > SMALL_BYTES:
        return np.inf
    return work.survey.n_atoms * share * n_clusters * numbers_per_cluster(model.observation)
