"""``plan``: time, memory, messages and disk of a run, before it starts; a lap simulated on any number of workers."""

from __future__ import annotations

import heapq
import math
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bnp_dask.analysis.base import listed, needs_of
from bnp_dask.data.base import spans_of
from bnp_dask.data.groups import taking_lags
from bnp_dask.data.sources.open import opened
from bnp_dask.execute.base import one_blas_thread
from bnp_dask.execute.posted import KEPT
from bnp_dask.inference import Memoized, Schedule
from bnp_dask.inference.drive import in_flight
from bnp_dask.inference.local_steps import is_slight
from bnp_dask.inference.reduction import FAN, reduced_for_us, sums_left
from bnp_dask.initialize import Initialization
from bnp_dask.inputs.settings import whole_number
from bnp_dask.model import Model
from bnp_dask.moves import Move
from bnp_dask.training.defaults import check_schedule
from bnp_dask.training.memory_plan import COPIES, KILLED_AT, MEMORY_BYTES, PROGRAM_BYTES, parse_memory
from bnp_dask.training.planning.probe import Sample, UnitCosts, probe, sample_of
from bnp_dask.training.run_settings import check_parts

BANDWIDTH = 1e9
"""Bytes a second between processes; messages of Dask on one machine measured .9 to 1.2e9."""

WRITTEN, CHECKED = 5e8, 1e9
"""Bytes a second of the posterior that the coordinator writes into a file with its checksum, and that a worker maps and
checks, its first read included."""

FILE = 0.001
"""Seconds for making a file, and for opening one."""

TASK = 0.001
"""Seconds of the coordinator for submitting a task, and of the scheduler for handling one (measured: .9 to 1.3 ms)."""

COORDINATOR_COPIES = 12
"""Summaries that the coordinator holds at a time: total, posterior, statistics at the last fold, and changes that
arrive (measured: 12 to 20 with proposals of moves)."""

LEAST_SECONDS, MOST_SECONDS = 0.5, 5.0
"""Seconds of a task that a batch size is advised for: scheduling costs little beside it, and so does a lost worker."""

SHORT_SECONDS = 0.05
"""Seconds of a task below which its way through the scheduler, some milliseconds, is worth a larger batch."""

ROUNDS = 4
"""Batches for each worker, at least: with fewer, the last ones of a lap leave many workers idle."""

IN_FLIGHT = 4
"""Tasks in flight for each worker that a window is advised for."""

SIMULATED = 20_000
"""Batches of a simulated lap; one of more batches takes time in proportion."""


@dataclass(frozen=True)
class Plan:
    """What a run would take; prints as a table, and :meth:`to_json` gives all numbers.

    Parameters
    ----------
    data
        Name of the data.
    n_atoms, n_features
        Size of the data.
    n_batches, batch_atoms, batch_bytes
        Number of batches, and size of the largest one.
    n_clusters
        Number of clusters that all is computed for.
    workers
        Workers; 0 for a run in this process.
    window
        Batches in flight at a time.
    survey_seconds, start_seconds
        Seconds of the pass that surveys the data, and of the start.
    lap_seconds
        Seconds of a lap, with moves.
    workers_busy, coordinator_busy, scheduler_busy
        Share of a lap that each of them works, 0 to 1.
    tasks
        Tasks of a lap.
    message_bytes
        Bytes that the coordinator receives in a lap.
    posterior_bytes
        Bytes of the posterior, as workers receive it.
    worker_bytes, coordinator_bytes
        Memory of a worker, and of the process that calls ``train``.
    memory
        Memory that a worker has, in bytes; None if it was not said.
    disk_bytes
        Bytes of the run directory; None without one.
    batch_size
        Atoms per batch that would suit the workers; None if the batches do.
    enough_workers
        Workers that would do: with more, each has less than some tasks of half a second; None if there are fewer.
    good_window
        Window that would keep the workers busy; None if the window does.
    n_atoms_is_estimated
        Whether the number of atoms is an estimate from the batches that were read.
    costs
        Unit costs, as measured.
    """

    data: str
    n_atoms: int
    n_features: int
    n_batches: int
    batch_atoms: int
    batch_bytes: int
    n_clusters: int
    workers: int
    window: int
    survey_seconds: float
    start_seconds: float
    lap_seconds: float
    workers_busy: float
    coordinator_busy: float
    scheduler_busy: float
    tasks: int
    message_bytes: float
    posterior_bytes: int
    worker_bytes: float
    coordinator_bytes: float
    memory: int | None
    disk_bytes: float | None
    batch_size: int | None
    enough_workers: int | None
    good_window: int | None
    n_atoms_is_estimated: bool
    costs: UnitCosts

    @property
    def fits(self) -> bool:
        """Whether a worker can hold its part."""
        return self.memory is None or self.worker_bytes <= KILLED_AT * self.memory

    @property
    def advice(self) -> tuple[str, ...]:
        """Sentences about settings that would do better; empty if none would."""
        out = []
        if not self.fits:
            out.append(
                f"A worker needs {_bytes(self.worker_bytes / KILLED_AT)}: give workers more memory, or cut smaller "
                "batches."
            )
        if self.batch_size is not None and self.enough_workers is None:
            why = "more batches for the workers" if self.batch_size < self.batch_atoms else "longer tasks"
            out.append(f"batch_size={self.batch_size} gives {why}.")
        if self.good_window is not None:
            out.append(
                f"window={self.good_window} keeps {self.workers} workers busy: with {self.window}, at most "
                f"{self.window} tasks are in flight."
            )
        if self.enough_workers is not None:
            out.append(f"A lap is little work: workers={self.enough_workers} would take about as long.")
        elif self.workers > 1 and self.window == 1:
            out.append("This schedule visits one batch after the other: one worker takes as long as many.")
        elif self.workers and self.workers_busy < 0.5 and not out:
            busiest = "coordinator" if self.coordinator_busy > self.scheduler_busy else "scheduler"
            out.append(f"Workers are {self.workers_busy:.0%} busy: the {busiest} limits the lap.")
        return tuple(out)

    def to_json(self) -> dict[str, Any]:
        """All numbers, with the advice, JSON-able; NaN is None."""
        found = {**asdict(self), "fits": self.fits, "advice": list(self.advice)}
        found["costs"] = {name: _number(value) for name, value in found["costs"].items()}
        return found

    def __str__(self) -> str:
        about = "about " if self.n_atoms_is_estimated else ""
        place = "in this process" if not self.workers else f"{self.workers} workers"
        has = "" if self.memory is None else f" of {_bytes(self.memory)}"
        memory = f"{_bytes(self.worker_bytes)} of memory{has and f', has{has[3:]}'}"
        messages = f"{_bytes(self.message_bytes)} a lap to this process; posterior {_bytes(self.posterior_bytes)}"
        busy = f"workers {self.workers_busy:.0%} busy, coordinator {self.coordinator_busy:.0%}"
        once = self.survey_seconds + self.start_seconds
        rows = {
            "data": f"{about}{self.n_atoms:,} x {self.n_features:,}: {self.data}",
            "batches": f"{self.n_batches:,} of up to {self.batch_atoms:,} ({_bytes(self.batch_bytes)} in memory)",
            "where": f"{place}, window {self.window}",
            "clusters": f"computed for {self.n_clusters}",
            "survey": f"{_time(self.survey_seconds)}, once",
            "start": f"{_time(self.start_seconds)}, once",
            "a lap": f"{_time(self.lap_seconds)}: {busy}",
            "20 laps": _time(once + 20 * self.lap_seconds),
            "tasks": f"{self.tasks:,} a lap",
            "messages": messages,
            "a worker": memory,
            "this process": f"{_bytes(self.coordinator_bytes)} of memory",
            "disk": "nothing is kept" if self.disk_bytes is None else f"{_bytes(self.disk_bytes)} in the run directory",
        }
        lines = [f"{name:<13} {text}" for name, text in rows.items()]
        return "\n".join([*lines, *(f"! {sentence}" for sentence in self.advice)])

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def plan(
    model: Model,
    data: Any,
    *,
    workers: int | None = None,
    memory: int | str | None = None,
    n_clusters: int | None = None,
    init: Initialization | None = None,
    schedule: Schedule | None = None,
    moves: Sequence[Move] | None = None,
    store: str | os.PathLike[str] | None = None,
    weights: Any = None,
    batch_size: int | None = None,
) -> Plan:
    """Estimate time, memory, messages and disk of a run, before it starts.

    A probe trains on a few megabytes of the data in this process and meters each part.  A lap on the workers is then
    simulated from these costs.  The machines of the workers are taken to be as fast as this one.  Laps on samples
    (:class:`bnp_dask.FromSample`) are not forecast: all laps are over all data.

    Parameters
    ----------
    model, data, init, schedule, moves, weights, batch_size
        As for :func:`bnp_dask.train`.
    workers
        Number of workers; None for a run in this process.
    memory
        Memory of a worker: bytes, or text such as ``"4GB"``; None if it is not limited.
    n_clusters
        Clusters to plan for; None for those that the probe ends with.  More than the probe's atoms allow (one for each
        20) are extrapolated.
    store
        Run directory; nothing is written there, but its size is estimated.  None: nothing is kept.

    Returns
    -------
    Plan
        Prints as a table; ``to_json()`` has all numbers.

    Raises
    ------
    DataError
        Data that cannot be read, or that the likelihood cannot have produced.
    SettingError
        Settings that contradict each other.
    """
    moves = None if moves is None else listed("moves", moves)
    check_parts(model, init, schedule, moves or (), ())
    schedule = Memoized() if schedule is None else schedule
    check_schedule(model, schedule, moves=moves)
    workers = 0 if workers is None else whole_number("workers", workers, 1)
    if n_clusters is not None:
        n_clusters = whole_number("n_clusters", n_clusters, 1)
    limit = None if memory is None else parse_memory(memory)
    source = opened(data, needs_of(model), batch_size, weights)
    with one_blas_thread():
        sample = sample_of(taking_lags(source, model.lags), n_clusters)
        costs = probe(model, sample, init, schedule, moves, n_clusters, keeps=store is not None)
    n_clusters = max(1, round(costs.n_clusters)) if n_clusters is None else n_clusters
    costs = costs.at(n_clusters)
    spans = spans_of(source)
    most = max((last - first for first, last in spans), default=0) if spans else 0
    batch_atoms = most or round(sample.largest_bytes / sample.atom_bytes)
    return _planned(sample, costs, schedule, source.n_batches, batch_atoms, n_clusters, workers, limit)


def _planned(
    sample: Sample,
    costs: UnitCosts,
    schedule: Schedule,
    n_batches: int,
    batch_atoms: int,
    n_clusters: int,
    workers: int,
    memory: int | None,
) -> Plan:
    """The plan from unit costs."""
    window = in_flight(schedule.window, n_batches)
    at_once = max(1, workers)
    batch_bytes = round(batch_atoms * sample.atom_bytes)
    per_batch = sample.n_atoms / n_batches
    unit = simulated_costs(costs, per_batch, remote=workers > 0)
    n_simulated = min(n_batches, max(SIMULATED, ROUNDS * at_once))
    lap = Simulation(unit, at_once, n_simulated, window).run()
    scale = n_batches / n_simulated
    group = max(1, min(window // 2, n_batches))
    groups = math.ceil(n_batches / group)
    messages = min(group, sums_left(group, at_once, costs.numbers)) * groups
    visits_and_adds = n_batches + (n_batches // (FAN - 1) if group > FAN else 0)
    size = _good_batch(costs, sample, workers, memory, batch_atoms)
    work = costs.visit * sample.n_atoms
    enough = max(1, math.ceil(work / (ROUNDS * LEAST_SECONDS)))
    n_out = IN_FLIGHT * workers
    wanted = min(n_out, 2 * n_batches)
    return Plan(
        data=sample.source.name,
        n_atoms=sample.n_atoms,
        n_features=sample.source.n_features,
        n_batches=n_batches,
        batch_atoms=batch_atoms,
        batch_bytes=batch_bytes,
        n_clusters=n_clusters,
        workers=workers,
        window=window,
        survey_seconds=costs.survey * sample.n_atoms / min(at_once, n_batches),
        start_seconds=costs.start,
        lap_seconds=lap.seconds * scale,
        workers_busy=lap.workers,
        coordinator_busy=lap.coordinator,
        scheduler_busy=lap.scheduler,
        tasks=visits_and_adds,
        message_bytes=float(messages * costs.change_bytes),
        posterior_bytes=costs.posterior_bytes,
        worker_bytes=PROGRAM_BYTES + 2.0 * batch_bytes + COPIES * costs.summary_bytes,
        coordinator_bytes=PROGRAM_BYTES + MEMORY_BYTES + float(COORDINATOR_COPIES * costs.summary_bytes),
        memory=memory,
        disk_bytes=None if math.isnan(costs.kept_bytes) else n_batches * _kept_of_batch(costs, per_batch),
        batch_size=size,
        enough_workers=enough if workers > 2 * enough else None,
        good_window=wanted if schedule.decides_moves and window < min(workers, n_batches) else None,
        n_atoms_is_estimated=sample.is_estimated,
        costs=costs,
    )


def simulated_costs(costs: UnitCosts, batch_atoms: float, remote: bool) -> Costs:
    """Costs of a simulated lap of batches of so many atoms; ``remote``: workers are other processes."""
    travel = 1.0 / BANDWIDTH if remote else 0.0
    task = TASK if remote else 0.0
    return Costs(
        visit=costs.visit * batch_atoms,
        spread=0.1 if remote else 0.0,
        add=costs.add + FAN * travel * costs.change_bytes,
        submit=task,
        schedule=task,
        share=FILE + costs.posterior_bytes / WRITTEN if remote else 0.0,
        opening=FILE + costs.posterior_bytes / CHECKED if remote else 0.0,
        fold=costs.fold + travel * costs.change_bytes,
        message=travel * costs.change_bytes + costs.add / (FAN - 1),
        latency=0.005 if remote else 0.0,
        lap=costs.moves,
        numbers=costs.numbers,
    )


def _kept_of_batch(costs: UnitCosts, batch_atoms: float) -> float:
    """Bytes that the run directory keeps of a batch: states of its groups, else assignments or a summary."""
    grown = costs.kept_bytes * batch_atoms
    return grown if costs.keeps_states else min(grown, max(costs.summary_bytes, costs.kept_bytes))


def _good_batch(costs: UnitCosts, sample: Sample, workers: int, memory: int | None, batch_atoms: int) -> int | None:
    """Atoms per batch that suit the workers; None if those of now do."""
    if not workers:
        return None
    most = MOST_SECONDS / costs.visit
    if memory is not None:
        room = KILLED_AT * memory - PROGRAM_BYTES - COPIES * costs.summary_bytes
        most = min(most, room / 2 / sample.atom_bytes)
    shared = sample.n_atoms / (ROUNDS * workers)
    wanted = max(1.0, min(most, max(shared, LEAST_SECONDS / costs.visit)))
    short = SHORT_SECONDS / costs.visit
    if batch_atoms > 1.5 * max(wanted, short) or (batch_atoms < short and wanted > 2 * batch_atoms):
        return _rounded(wanted)
    return None


def _rounded(atoms: float) -> int:
    """Atoms with two leading digits, rounded down."""
    unit = 10 ** max(0, int(math.log10(max(atoms, 1.0))) - 1)
    return max(1, int(atoms // unit) * unit)


def _number(value: float) -> float | None:
    return None if isinstance(value, float) and math.isnan(value) else value


def _bytes(nbytes: float) -> str:
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if nbytes >= one:
            return f"{nbytes / one:.3g} {unit}"
    return f"{nbytes / 1e3:.3g} kB"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.2g} s"
    if seconds < 5400:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


VISIT, ADD = 0, 1


@dataclass(frozen=True)
class Costs:
    """Seconds; the defaults are for K = 200, D = 64 (``measure.py``).

    Parameters
    ----------
    visit, spread
        Of one batch on a worker, and the standard deviation of its logarithm.
    add
        Of adding the changes of some tasks, their transfer included.
    submit
        Of the coordinator for one task.
    schedule
        Of the scheduler for one task, from submission to release.
    share
        Of the coordinator for leaving one posterior in a file.
    opening
        Of a worker for opening that file, with its first task that needs this posterior.
    fold
        Of the coordinator for one group: its change received and added, the global step, the objective.
    message
        Of the coordinator for each change of a group after the first: received and added.
    latency
        Between the end of a task and that what waits for it can go on.
    lap
        Of the coordinator at the end of a lap: proposals, checkpoint.
    numbers
        In the statistics, which tell who adds them.
    """

    visit: float = 1.0
    spread: float = 0.1
    add: float = 0.1
    submit: float = 0.001
    schedule: float = 0.001
    share: float = 0.03
    opening: float = 0.01
    fold: float = 0.1
    message: float = 0.008
    latency: float = 0.005
    lap: float = 0.5
    numbers: int = 200 * 2146


@dataclass
class Outcome:
    """Seconds of a run, and the share of them that each part was busy."""

    seconds: float
    workers: float
    coordinator: float
    scheduler: float

    @property
    def ceiling(self) -> str:
        """The part that the others wait for."""
        busy = {"workers": self.workers, "coordinator": self.coordinator, "scheduler": self.scheduler}
        top = max(busy, key=lambda name: busy[name])
        return top if busy[top] > 0.9 else "waiting"


class Simulation:
    """One run; ``run()`` gives its outcome."""

    def __init__(self, costs: Costs, n_workers: int, n_batches: int, window: int, laps: int = 1, seed: int = 0) -> None:
        self.costs, self.n_batches, self.window, self.laps = costs, n_batches, window, laps
        self.size = max(1, window // 2)
        self.rng = np.random.default_rng(seed)
        self.idle, self.n_workers = set(range(n_workers)), n_workers
        self.now = self.scheduler_free = 0.0
        self.busy = {"workers": 0.0, "coordinator": 0.0, "scheduler": 0.0}
        self.ready: list[int] = []  # tasks: a number is an order of submission, and so a priority
        self.bound: list[list[int]] = [[] for _ in range(n_workers)]  # those that wait for one worker
        self.place: dict[int, int] = {}
        self.needs: dict[int, tuple[int, ...]] = {}
        self.events: list[tuple[float, int, str, int]] = []
        self.count = 0
        self.seconds: dict[int, float] = {}
        self.followers: dict[int, int] = {}
        self.missing: dict[int, int] = {}
        self.kind: dict[int, int] = {}
        self.done: set[int] = set()
        self.basis: dict[int, int] = {}  # the posterior of a visit, and those that each worker has open
        self.opened = [deque[int](maxlen=KEPT) for _ in range(n_workers)]
        self.n_groups = 0

    def run(self) -> Outcome:
        """Simulate all laps."""
        for _ in range(self.laps):
            position = submitted = 0
            queue: deque[tuple[list[int], int]] = deque()
            while position < self.n_batches:
                while submitted < self.n_batches:
                    size = min(self.size, self.n_batches - submitted)
                    if queue and submitted + size - position > self.window:
                        break
                    queue.append((self._submit_group(size), size))
                    submitted += size
                wanted, size = queue.popleft()
                for task in wanted:
                    self._wait_for(task)
                self._work("coordinator", self.costs.fold + (len(wanted) - 1) * self.costs.message)
                position += size
            self._work("coordinator", self.costs.lap)
        shares = {name: value / self.now for name, value in self.busy.items()}
        return Outcome(self.now, shares["workers"] / self.n_workers, shares["coordinator"], shares["scheduler"])

    def _submit_group(self, size: int) -> list[int]:
        """Submit the tasks of a group; those whose results are wanted."""
        self._work("coordinator", self.costs.share)
        self.n_groups += 1
        visits = [self._submit(VISIT, ()) for _ in range(size)]
        if is_slight(size, self.costs.numbers):
            return visits
        most = sums_left(size, self.n_workers, self.costs.numbers)
        return reduced_for_us(visits, lambda groups: [self._submit(ADD, some) for some in groups], most)

    def _submit(self, kind: int, needs: Sequence[int]) -> int:
        self._work("coordinator", self.costs.submit)
        task = self.count
        self.count += 1
        spread = self.costs.spread
        visit = self.costs.visit * float(np.exp(spread * self.rng.normal() - spread**2 / 2))
        self.seconds[task] = visit if kind == VISIT else self.costs.add
        self.kind[task], self.needs[task], self.basis[task] = kind, tuple(needs), self.n_groups
        waiting = [n for n in needs if n not in self.done]
        self.missing[task] = len(waiting)
        for n in waiting:
            self.followers[n] = task
        if not waiting:
            self._schedule(task, self.now)
        return task

    def _schedule(self, task: int, since: float) -> None:
        """The scheduler handles a task when it is free, and then a worker may take it."""
        start = max(since, self.scheduler_free)
        self.scheduler_free = start + self.costs.schedule
        self.busy["scheduler"] += self.costs.schedule
        heapq.heappush(self.events, (self.scheduler_free + self.costs.latency, task, "ready", task))

    def _work(self, part: str, seconds: float) -> None:
        self.busy[part] += seconds
        self._advance(self.now + seconds)

    def _wait_for(self, task: int) -> None:
        while task not in self.done:
            self._advance(self.events[0][0])
        self._advance(self.now + self.costs.latency)

    def _advance(self, until: float) -> None:
        """Let everything happen that happens until a time."""
        while self.events and self.events[0][0] <= until:
            time, _, what, task = heapq.heappop(self.events)
            self.now = max(self.now, time)
            if what == "ready":
                self._queue(task)
            else:
                self.idle.add(self.place[task])
                self.done.add(task)
                follower = self.followers.pop(task, None)
                if follower is not None:
                    self.missing[follower] -= 1
                    if not self.missing[follower]:
                        self._schedule(follower, time)
            self._start(time)
        self.now = max(self.now, until)

    def _queue(self, task: int) -> None:
        """A visit may go to any worker, what adds to one that holds something of it: the one with the least to do."""
        if self.kind[task] == VISIT:
            heapq.heappush(self.ready, task)
            return
        holders = {self.place[n] for n in self.needs[task]}
        best = min(holders, key=lambda w: (w not in self.idle, len(self.bound[w]), w))
        heapq.heappush(self.bound[best], task)

    def _start(self, time: float) -> None:
        """Give every idle worker what was submitted first of all that it may do."""
        for worker in sorted(self.idle):
            queues = [q for q in (self.ready, self.bound[worker]) if q]
            if not queues:
                continue
            task = heapq.heappop(min(queues, key=lambda q: q[0]))
            self.idle.remove(worker)
            self.place[task] = worker
            seconds = self.seconds[task] + self._opening(task, worker)
            self.busy["workers"] += seconds
            heapq.heappush(self.events, (time + seconds, task, "done", task))

    def _opening(self, task: int, worker: int) -> float:
        """Seconds in which a worker opens the posterior of a visit; 0 if it has it open."""
        if self.kind[task] != VISIT or self.basis[task] in self.opened[worker]:
            return 0.0
        self.opened[worker].append(self.basis[task])
        return self.costs.opening
