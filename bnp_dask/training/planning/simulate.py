"""A run on W workers, simulated from measured costs: its time, and the part that limits it.

The parts are those of :class:`~bnp_dask.inference.local_steps.LocalSteps`: the coordinator submits groups of batches
and folds them in order, the scheduler handles one task after the other, workers visit batches and add up changes, a few
at a time, on a free worker that holds one of them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bnp_dask.execute.posted import KEPT
from bnp_dask.inference.local_steps import is_slight
from bnp_dask.inference.reduction import reduced_for_us, sums_left

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
