"""Reading for the next task, or for the next part of a task, while this one computes.

What tasks read with is a :class:`Load`.  Where one task calls several, one after another (:func:`in_turn`), each is at
work while what was read before is computed.  Where a worker knows its next task (:func:`looking_ahead`), the same goes
from task to task.  Both only if reading means waiting: what is computed anyway is not done sooner by two threads that
share an interpreter, and small batches are read several times slower by them.

What is read ahead is a guess and no more.  It is found again by the very object that the task would have called, so
that it can only be what the task would have read; it is dropped when that task has gone elsewhere; and an attempt that
fails is forgotten, so that a task meets errors itself, where they are named and tried again.
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
"""Waiting of a read below which another thread is not worth its trouble."""

WAITING = 0.75
"""Share of a read's time that must have been waiting.  Files in the page cache are copied and unpacked all the time:
they are left to their tasks, and no batch is held for them."""

BEYOND = 3
"""Reading takes up to so many times what it gives: pieces as they are stored, and unpacked."""

REMEMBERED = 100
"""Reads whose sizes are remembered: the largest of them stands for one that nobody has read yet."""

LOOK_SECONDS = 0.02
"""How often a task looks for the next while there is none: a scheduler may send it only when the last one is done."""

HOLD_SECONDS = 0.1
"""How often somebody looks whether what was read ahead is still wanted."""


class Load(ABC, Generic[T]):
    """Reads something that never changes; tasks call it, and others may have called :meth:`fetch` for them."""

    @property
    def key(self) -> str | None:
        """Name of what it reads, which is one of its own within a run; None where nobody can say."""
        return None

    @abstractmethod
    def fetch(self) -> T:
        """Read it, here and now."""

    def __call__(self) -> T:
        """Result of :meth:`fetch`, or that of whoever read it ahead."""
        return _load(self)


def load_of(argument: Any) -> Load[Any] | None:
    """The load that an argument of a task is, or that it names as its ``first_load``."""
    found = argument if isinstance(argument, Load) else getattr(argument, "first_load", None)
    return found if isinstance(found, Load) else None


@dataclass(frozen=True, eq=False)
class Coming:
    """Read of a task that waits; ``is_wanted`` tells later whether that task is still to come, or at work."""

    load: Load[Any]
    is_wanted: Callable[[], bool]


class Outlook(Protocol):
    """Knowledge of a task about the place where it runs.  Answers may be wrong a moment later."""

    def coming(self) -> Sequence[Coming]:
        """Reads of tasks that wait here and have not begun: the next one first."""
        ...

    def has_room(self, nbytes: int) -> bool:
        """Whether so many bytes may be taken beside all that the tasks which run here will take."""
        ...


@contextmanager
def looking_ahead(outlook: Outlook | None) -> Iterator[None]:
    """Around a task: while it computes, the next one's batch is read, where that pays."""
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
    """Inside, each but the first of what a task calls one after another is read while the one before is computed, if
    reading means waiting."""
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
    """Inside, what several loads of one key read is read by the first of them."""
    token = _ONCE.set({})
    try:
        yield
    finally:
        _ONCE.reset(token)


def n_held() -> int:
    """How many things this process reads ahead now, or has read and holds."""
    return len(_HELD)


class _Task:
    """A task that is running, and who looks ahead for it."""

    def __init__(self, outlook: Outlook | None) -> None:
        self.outlook = outlook
        self.is_over = False
        self.watcher: threading.Thread | None = None


class _Turn:
    """Loads of one task, in the order in which it calls them."""

    def __init__(self, loads: list[Load[Any]]) -> None:
        self._loads = loads
        self.is_over = False

    def after(self, load: Load[Any]) -> Coming | None:
        for this, later in zip(self._loads, self._loads[1:], strict=False):
            if this is load:
                return Coming(later, lambda: not self.is_over)
        return None


class _Place:
    """Reads of this process, and how many tasks run in it."""

    def __init__(self) -> None:
        self.running = 0
        self.is_waiting = False
        self._sizes: deque[int] = deque(maxlen=REMEMBERED)

    def note_size(self, value: Any) -> None:
        nbytes = getattr(value, "nbytes", None)
        if isinstance(nbytes, int):
            self._sizes.append(nbytes)

    def note_times(self, wall: float, cpu: float, running: int) -> None:
        """Judge by one read: CPU time is that of the process, of which other tasks take all they can get."""
        waited = min(running * wall - cpu, wall)
        self.is_waiting = waited >= max(LEAST_SECONDS, WAITING * wall)

    @property
    def largest(self) -> int | None:
        """Bytes of the largest thing read lately; None where nobody can say."""
        return max(self._sizes, default=None)


class _Ahead:
    """One thing that a thread reads, and holds until somebody asks for it or nobody will."""

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
        """Read, then wait for whoever wants it."""
        try:
            self._value = self.load.fetch()
        except BaseException as error:
            logger.debug("could not read ahead, the task will try itself: %r", error)
            self._failed = True
        self.is_read.set()
        while not self._failed and not self._is_taken.wait(HOLD_SECONDS) and self._is_wanted():
            pass
        with _LOCK:
            if _HELD.get(id(self.load)) is self:  # nobody has it, and now nobody will
                del _HELD[id(self.load)]
                self._value = None

    def _is_wanted(self) -> bool:
        try:
            return self._coming.is_wanted()
        except Exception as error:  # of a worker that is closing, all may be gone
            logger.debug("dropping what was read ahead: %r", error)
            return False

    def take(self) -> tuple[bool, Any]:
        """Whether it could be read, and what was; once, by whoever took it out of what is held."""
        self._is_taken.set()
        self.is_read.wait()
        value, self._value = self._value, None
        return not self._failed, value


_LOCK = threading.Lock()
_PLACE = _Place()
_HELD: dict[int, _Ahead] = {}
"""By the id of the load, which lives as long as it is in here."""

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
    """Wait until a next task is there, or this one is over; then read for it."""
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
    """Read to begin now, if any.

    The lock is held: a task that has not begun when the outlook is asked cannot look for what it needs before it is
    written down here.  So nothing is read ahead that its task reads itself.
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
    """Write down that this is read ahead; the lock is held."""
    _HELD[id(coming.load)] = ahead = _Ahead(coming)
    return ahead


def _start(function: Callable[[], None], ahead: _Ahead | None = None) -> threading.Thread | None:
    """A thread that nobody waits for at the end; None, and nothing is read ahead, where the system has no more."""
    thread = threading.Thread(target=function, name=THREAD_NAME, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        if ahead is not None:
            with _LOCK:
                _HELD.pop(id(ahead.load), None)
        return None
    return thread
