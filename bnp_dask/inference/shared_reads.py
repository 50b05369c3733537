"""One read of a batch for all states that visit it: their tasks are joined.

Each state has an executor of its own.  Tasks that read wait there until :meth:`SharedReads.send`, which joins the tasks
of all states that read the same into one, or until the state asks for a result, which sends the state's own tasks.
Every function gets the arguments that it would get alone, so results have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from bnp_dask.errors import NumericalError
from bnp_dask.execute import Executor, GroupExecutor, Handle, Task, is_remote, load_of, reading_once, submitted


@dataclass(frozen=True)
class Part:
    """One of the tasks in a joint task: its function, and its number of arguments."""

    function: Callable[..., Any]
    n_args: int


@dataclass(frozen=True, eq=False)
class Refused:
    """In place of a result: one state met numbers that are not finite, which does not concern the others."""

    error: NumericalError


def all_of(parts: tuple[Part, ...], *args: Any) -> list[Any]:
    """The joint task of tasks that read the same: results in their order, with each read made once."""
    out: list[Any] = []
    first = 0
    with reading_once():
        for part in parts:
            try:
                out.append(part.function(*args[first : first + part.n_args]))
            except NumericalError as error:
                out.append(Refused(error))
            first += part.n_args
    return out


def accepted(value: Any) -> Any:
    """A result; raises its NumericalError if it was refused."""
    if isinstance(value, Refused):
        raise value.error
    return value


def pick(values: list[Any], place: int) -> Any:
    """The task that takes one result from :func:`all_of`, for a task that needs it."""
    return accepted(values[place])


@dataclass(eq=False)
class _Sent:
    """Task that was sent for one waiting task, or for several (``is_joint``), and its results once they are here."""

    handle: Handle
    is_joint: bool
    values: list[Any] | None = None


@dataclass(eq=False)
class _Waiting:
    """A task that reads, or needs a waiting task: its owner, the names of its reads, and the task sent for it."""

    task: Task
    reads: frozenset[str]
    first: bool
    owner: ExecutorOfOne
    sent: _Sent | None = None
    place: int = 0


@dataclass(eq=False)
class SharedReads:
    """Executor behind the executors of several states.

    Parameters
    ----------
    executor
        Runs their tasks.
    """

    executor: Executor
    _waiting: list[_Waiting] = field(default_factory=list)

    def for_one(self) -> ExecutorOfOne:
        """An executor for one more state."""
        return ExecutorOfOne(self)

    def send(self, only: ExecutorOfOne | None = None) -> None:
        """Start all waiting tasks, joining tasks that read the same; or only the tasks of one state."""
        chosen = [w for w in self._waiting if only is None or w.owner is only]
        self._waiting = [w for w in self._waiting if only is not None and w.owner is not only]
        for first in (True, False):
            groups = _groups_of([w for w in chosen if w.reads and w.first == first])
            handles = submitted(self.executor, [_task_of(group) for group in groups], first)
            for group, handle in zip(groups, handles, strict=True):
                sent = _Sent(handle, len(group) > 1)
                for place, waiting in enumerate(group):
                    waiting.sent, waiting.place = sent, place
        for waiting in chosen:
            if not waiting.reads:  # it needs results of others, which have been sent by now
                task = waiting.owner.as_known(waiting.task)
                waiting.sent = _Sent(submitted(self.executor, [task], waiting.first)[0], False)

    def wait(self, waiting: _Waiting) -> None:
        """Add a task to the waiting ones."""
        self._waiting.append(waiting)

    def value(self, waiting: _Waiting) -> Any:
        """Result of a task; may be asked for only once."""
        sent = self._sent_for(waiting)
        if not sent.is_joint:
            return self.executor.result(sent.handle)
        if sent.values is None:
            sent.values = list(self.executor.result(sent.handle))
        value, sent.values[waiting.place] = sent.values[waiting.place], None
        return accepted(value)

    def values(self, several: Sequence[_Waiting]) -> list[Any]:
        """Results of tasks, in as few messages as possible."""
        sents = list(dict.fromkeys(self._sent_for(waiting) for waiting in several))
        out = [sent for sent in sents if sent.values is None]
        if isinstance(self.executor, GroupExecutor) and out:
            for sent, value in zip(out, self.executor.results_together([sent.handle for sent in out]), strict=True):
                sent.values, sent.is_joint = (list(value), True) if sent.is_joint else ([value], True)
        return [self.value(waiting) for waiting in several]

    def handle(self, waiting: _Waiting) -> Handle:
        """Handle that stands for the result of a task among the arguments of another."""
        sent = self._sent_for(waiting)
        if not sent.is_joint:
            return sent.handle
        return self.executor.submit(waiting.task[0], pick, sent.handle, waiting.place)

    def _sent_for(self, waiting: _Waiting) -> _Sent:
        if waiting.sent is None:
            self.send(waiting.owner)
        assert waiting.sent is not None
        return waiting.sent


class ExecutorOfOne:
    """Executor of one of several states, whose reads are shared with the others.

    Parameters
    ----------
    shared
        The executor behind all of them.
    """

    def __init__(self, shared: SharedReads) -> None:
        self._shared = shared
        self._waiting: WeakKeyDictionary[Handle, _Waiting] = WeakKeyDictionary()

    @property
    def n_workers(self) -> int:
        """Number of tasks that can run at the same time."""
        return self._shared.executor.n_workers

    @property
    def memory_limit(self) -> int | None:
        """Bytes that a worker may take."""
        return self._shared.executor.memory_limit

    @property
    def is_remote(self) -> bool:
        """Whether arguments of tasks are sent to other processes."""
        return is_remote(self._shared.executor)

    def share(self, name: str, value: Any) -> Handle:
        """Put a value where tasks can use it."""
        return self._shared.executor.share(name, value)

    def submit(self, name: str, function: Callable[..., Any], *args: Any) -> Handle:
        """Start a task, or let it wait for the tasks of other states if it reads."""
        return self.submit_together([(name, function, args)])[0]

    def submit_together(self, tasks: Sequence[Task], first: bool = False) -> list[Handle]:
        """Start tasks, but let tasks that read, or need a waiting task, wait for the tasks of other states."""
        reads = [_reads_of(args) for _, _, args in tasks]
        waits = [bool(r) or self._needs_waiting(args) for r, (_, _, args) in zip(reads, tasks, strict=True)]
        now = [self.as_known(task) for task, wait in zip(tasks, waits, strict=True) if not wait]
        plain = iter(submitted(self._shared.executor, now, first))
        return [
            self._wait(task, r, first) if wait else next(plain)
            for task, r, wait in zip(tasks, reads, waits, strict=True)
        ]

    def result(self, handle: Handle) -> Any:
        """Wait for a task and return its value or raise its error."""
        waiting = self._taken(handle)
        return self._shared.executor.result(handle) if waiting is None else self._shared.value(waiting)

    def results_together(self, handles: Sequence[Handle]) -> list[Any]:
        """Wait for tasks and return their values."""
        found = [(handle, self._taken(handle)) for handle in handles]
        values = iter(self._shared.values([waiting for _, waiting in found if waiting is not None]))
        return [
            next(values) if waiting is not None else self._shared.executor.result(handle) for handle, waiting in found
        ]

    def as_known(self, task: Task) -> Task:
        """A task as the executor behind this one knows it; all tasks that it needs have been sent."""
        name, function, args = task
        return name, function, tuple(map(self._known, args))

    def close(self) -> None:
        """Do nothing: the executor behind this one is closed by its maker."""

    def _needs_waiting(self, args: Iterable[Any]) -> bool:
        found = (self._waiting.get(arg) for arg in args if isinstance(arg, Handle))
        return any(waiting is not None and waiting.sent is None for waiting in found)

    def _wait(self, task: Task, reads: frozenset[str], first: bool) -> Handle:
        waiting = _Waiting(task, reads, first, self)
        self._shared.wait(waiting)
        handle = Handle(task[0], self, waiting)
        self._waiting[handle] = waiting
        return handle

    def _taken(self, handle: Handle) -> _Waiting | None:
        """The task behind a handle of this executor, which becomes void; None for other handles."""
        waiting = self._waiting.pop(handle, None)
        if waiting is not None:
            handle.void()
        return waiting

    def _known(self, arg: Any) -> Any:
        """An argument as the executor behind this one knows it."""
        waiting = self._waiting.get(arg) if isinstance(arg, Handle) else None
        return arg if waiting is None else self._shared.handle(waiting)


def _reads_of(args: Iterable[Any]) -> frozenset[str]:
    """Names of a task's reads, as far as its arguments tell."""
    loads = (load_of(arg) for arg in args)
    return frozenset(load.key for load in loads if load is not None and load.key is not None)


def _groups_of(waiting: Sequence[_Waiting]) -> list[list[_Waiting]]:
    """Groups of tasks to join: each task with the first earlier group that shares a read with it."""
    groups: list[list[_Waiting]] = []
    reads: list[set[str]] = []
    for one in waiting:
        for group, known in zip(groups, reads, strict=True):
            if not known.isdisjoint(one.reads):
                group.append(one)
                known |= one.reads
                break
        else:
            groups.append([one])
            reads.append(set(one.reads))
    return groups


def _task_of(group: Sequence[_Waiting]) -> Task:
    """The task that is sent for a group."""
    if len(group) == 1:
        return group[0].task
    name = group[0].task[0]
    parts = tuple(Part(w.task[1], len(w.task[2])) for w in group)
    return name, all_of, (parts, *(arg for w in group for arg in w.task[2]))
