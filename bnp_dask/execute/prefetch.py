"""Reading for the next task, or for the next part of a task, while this one computes.

Tasks read with a :class:`Load`.  If one task calls several, one after another (:func:`in_turn`), each reads while the
data before it are computed.  If a worker knows its next task (:func:`looking_ahead`), reading overlaps from task to
task.  Both happen only if reading is mostly waiting: two threads that share an interpreter do not speed up a read that
computes, and slow down the reading of small batches several times.

Reading ahead is only a guess.  Its result is found by the very object that the task would have called, so it can only
be the data that the task would have read.  It is dropped when that task has gone to another worker.  A failed attempt
is forgotten: the task meets the error itself, which is then named and retried.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

logger = logging.getLogger("bnp_dask.execute")

T = TypeVar("T")

THREAD_NAME = "bnp-dask-ahead"

LEAST_SECONDS = 0.01
"""Waiting time of a read below which another thread does not pay."""

WAITING = 0.75
"""Share of a read's time that must have been waiting.  Files in the page cache are copied and unpacked without waiting:
they are not read ahead, and no batch is held for them."""

BEYOND = 3
"""Peak memory of a read as a multiple of its result: pieces as they are stored, and unpacked."""

REMEMBERED = 100
"""Number of reads whose sizes are remembered: the largest estimates the size of the next."""

LOOK_SECONDS = 0.02
"""Seconds between two looks for a next task: a scheduler may send it only when the last one is done."""

HOLD_SECONDS = 0.1
"""Seconds between two checks whether data read ahead are still wanted."""


class Load(ABC, Generic[T]):
    """Reads immutable data; tasks call it, and another thread may have called :meth:`fetch` for them."""

    @property
    def key(self) -> str | None:
        """Name of the data that it reads, unique within a run; None if unknown."""
        return None

    @abstractmethod
    def fetch(self) -> T:
        """Read the data in this thread, now."""

    def __call__(self) -> T:
        """Result of :meth:`fetch`, possibly read ahead."""
        return _load(self)


def load_of(argument: Any) -> Load[Any] | None:
    """Load of a task's argument: the argument itself or its ``first_load``; None without one."""
    found = argument if isinstance(argument, Load) else getattr(argument, "first_load", None)
    return found if isinstance(found, Load) else None


@dataclass(frozen=True, eq=False)
class Coming:
    """Read of a waiting task; ``is_wanted`` tells later whether that task still waits or runs here."""

    load: Load[Any]
    is_wanted: Callable[[], bool]


class Outlook(Protocol):
    """Knowledge of a task about its worker.  Answers may be wrong a moment later."""

    def coming(self) -> Sequence[Coming]:
        """Reads of tasks that wait here and have not begun: the next one first."""
        ...

    def has_room(self, nbytes: int) -> bool:
        """Whether ``nbytes`` more may be taken beside the memory of the tasks that run here."""
        ...


@contextmanager
def looking_ahead(outlook: Outlook | None) -> Iterator[None]:
    """Run a task inside; while it computes, the batch of the next one is read, where that pays."""
    task = _Task(outlook)
    with _LOCK:
        _PLACE.running += 1
    token = _TASK.set(task)
    try:
        yield
    finally:
        _TASK.reset(token)
        with _LOCK:
            task.is_over = True
            _PLACE.running -= 1


@contextmanager
def in_turn(loads: Sequence[Any]) -> Iterator[None]:
    """Overlap the loads that a task calls one after another: each but the first is read while the data before it are
    computed, if reading is mostly waiting."""
    if len(loads) < 2:
        yield
        return
    turn = _Turn([x for x in loads if isinstance(x, Load)])
    token = _TURN.set(turn)
    try:
        yield
    finally:
        _TURN.reset(token)
        turn.is_over = True


@contextmanager
def reading_once() -> Iterator[None]:
    """Inside, several loads of one key share the data that the first of them reads."""
    token = _ONCE.set({})
    try:
        yield
    finally:
        _ONCE.reset(token)


def n_held() -> int:
    """Number of reads ahead that this process holds, under way or complete."""
    return len(_HELD)


class _Task:
    """A running task, and the thread that looks ahead for it."""

    def __init__(self, outlook: Outlook | None) -> None:
        self.outlook = outlook
        self.is_over = False
        self.watcher: threading.Thread | None = None


class _Turn:
    """Loads of one task, in the order of its calls."""

    def __init__(self, loads: list[Load[Any]]) -> None:
        self._loads = loads
        self.is_over = False

    def after(self, load: Load[Any]) -> Coming | None:
        for this, later in zip(self._loads, self._loads[1:], strict=False):
            if this is load:
                return Coming(later, lambda: not self.is_over)
        return None


class _Place:
    """Reads of this process, and the number of tasks that run in it."""

    def __init__(self) -> None:
        self.running = 0
        self.is_waiting = False
        self._sizes: deque[int] = deque(maxlen=REMEMBERED)

    def note_size(self, value: Any) -> None:
        nbytes = getattr(value, "nbytes", None)
        if isinstance(nbytes, int):
            self._sizes.append(nbytes)

    def note_times(self, wall: float, cpu: float, running: int) -> None:
        """Judge by one read whether reading is waiting: CPU time is the process's, and other tasks use all they get."""
        waited = min(running * wall - cpu, wall)
        self.is_waiting = waited >= max(LEAST_SECONDS, WAITING * wall)

    @property
    def largest(self) -> int | None:
        """Bytes of the largest recent read; None before any."""
        return max(self._sizes, default=None)


class _Ahead:
    """One read ahead by a thread, held until it is taken or no longer wanted."""

    def __init__(self, coming: Coming) -> None:
        self._coming = coming
        self._value: Any = None
        self._failed = False
        self._is_taken = threading.Event()
        self.is_read = threading.Event()

    @property
    def load(self) -> Load[Any]:
        return self._coming.load

    def run(self) -> None:
        """Read, then hold the value until it is taken or no longer wanted."""
        try:
            self._value = self.load.fetch()
        except BaseException as error:
            logger.debug("could not read ahead, the task will try itself: %r", error)
            self._failed = True
        self.is_read.set()
        while not self._failed and not self._is_taken.wait(HOLD_SECONDS) and self._is_wanted():
            pass
        with _LOCK:
            if _HELD.get(id(self.load)) is self:  # not taken, and from now on it cannot be
                del _HELD[id(self.load)]
                self._value = None

    def _is_wanted(self) -> bool:
        try:
            return self._coming.is_wanted()
        except Exception as error:  # a closing worker may have lost all its attributes
            logger.debug("dropping batches read ahead: %r", error)
            return False

    def take(self) -> tuple[bool, Any]:
        """Whether it could be read, and its value; called once, by the caller that removed it from ``_HELD``."""
        self._is_taken.set()
        self.is_read.wait()
        value, self._value = self._value, None
        return not self._failed, value


_LOCK = threading.Lock()
_PLACE = _Place()
_HELD: dict[int, _Ahead] = {}
"""Reads ahead by the id of their load, which lives as long as its entry."""

_TASK: ContextVar[_Task | None] = ContextVar("bnp_dask_task", default=None)
_TURN: ContextVar[_Turn | None] = ContextVar("bnp_dask_turn", default=None)
_ONCE: ContextVar[dict[str, Any] | None] = ContextVar("bnp_dask_once", default=None)


def _load(load: Load[T]) -> T:
    once, key = _ONCE.get(), load.key
    if once is None or key is None:
        return _load_now(load)
    if key not in once:
        once[key] = _load_now(load)
    found: T = once[key]
    return found


def _load_now(load: Load[T]) -> T:
    task, turn = _TASK.get(), _TURN.get()
    if task is None and turn is None:
        return load.fetch()
    value = _taken_or_read(load)
    _PLACE.note_size(value)
    if not _PLACE.is_waiting:
        return value
    later = None if turn is None else turn.after(load)
    if later is not None:
        with _LOCK:
            ahead = _hold(later)
        _start(ahead.run, ahead)
    elif task is not None and task.outlook is not None and task.watcher is None:
        task.watcher = _start(lambda: _watch(task))
    return value


def _taken_or_read(load: Load[T]) -> T:
    with _LOCK:
        ahead = _HELD.pop(id(load), None)
    if ahead is not None:
        arrived, value = ahead.take()
        if arrived:
            return value
    running = _PLACE.running
    wall, cpu = time.perf_counter(), time.process_time()
    found = load.fetch()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    _PLACE.note_times(wall, cpu, max(1, min(running, _PLACE.running)))
    return found


def _watch(task: _Task) -> None:
    """Wait until there is a next task, and read for it; stop when this task is over."""
    while True:
        with _LOCK:
            if task.is_over:
                return
            ahead = _claim(task)
        if ahead is not None:
            ahead.run()
            return
        time.sleep(LOOK_SECONDS)


def _claim(task: _Task) -> _Ahead | None:
    """Read to begin now; None if there is none.

    The lock is held: a task that has not begun when the outlook is asked cannot look for its data before they are
    registered here.  So no data are read both ahead and by their task.
    """
    assert task.outlook is not None
    if len(_HELD) >= _PLACE.running or _PLACE.largest is None:
        return None
    for coming in task.outlook.coming():
        if id(coming.load) in _HELD:
            continue
        under_way = sum(not ahead.is_read.is_set() for ahead in _HELD.values())
        if not task.outlook.has_room(BEYOND * _PLACE.largest * (1 + under_way)):
            return None
        return _hold(coming)
    return None


def _hold(coming: Coming) -> _Ahead:
    """Register a read ahead; the lock is held."""
    _HELD[id(coming.load)] = ahead = _Ahead(coming)
    return ahead


def _start(function: Callable[[], None], ahead: _Ahead | None = None) -> threading.Thread | None:
    """Start a daemon thread; None, and nothing is read ahead, if the system has no more threads."""
    thread = threading.Thread(target=function, name=THREAD_NAME, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        if ahead is not None:
            with _LOCK:
                _HELD.pop(id(ahead.load), None)
        return None
    return thread
