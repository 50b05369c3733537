"""Tasks and values as they are sent: pickled once, and opened only by the thread that needs them.

A scheduler unpickles a task and pickles it again for a worker, and every array is a separate frame both times.  A
task on a batch has dozens of arrays, most of a few numbers: in a :class:`Message` they are one frame, and the scheduler
forwards it without opening it.

Values of tasks are messages too.  A worker that cannot unpickle a value from another worker reports no error, and the
task waits for ever; in a worker that has just started, an import may collide with one in another thread.  Inside a task
both are errors.
"""

from __future__ import annotations

import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pickle import PickleBuffer
from threading import RLock
from typing import Any, NoReturn, Protocol

import numpy as np
from distributed.core import clean_exception, error_message
from distributed.protocol.pickle import dumps, loads

SMALL = 1 << 14
"""Bytes of an array below which it is copied into the shared frame: a separate frame costs as much as copying this."""

ALIGNED = 64
"""Alignment of arrays in bytes."""

ONE_OPENS = RLock()
"""Lock held while a value is unpickled, which imports modules.  In a worker that has just started, the threads of a
task and of reading ahead could import a package in opposite orders, and Python ends one of the imports with an
error."""


class Message:
    """A value, pickled.

    Parameters
    ----------
    data
        The value without its arrays' numbers.
    sizes
        Bytes of each array in turn; None for arrays in separate frames.
    small
        The small arrays, one after the other.
    large
        The others, as bytes: they share the memory of the original arrays, which must not change.
    """

    def __init__(self, data: bytes, sizes: Sequence[int | None], small: bytearray, large: Sequence[np.ndarray]) -> None:
        self._data, self._sizes, self._small, self._large = data, sizes, small, large
        self._value: list[Any] = []

    @classmethod
    def of(cls, value: Any) -> Message:
        """Pack a value, as Dask would."""
        found: list[PickleBuffer] = []
        data = dumps(value, buffer_callback=found.append)
        sizes: list[int | None] = []
        small, large = bytearray(), []
        for buffer in found:
            raw = buffer.raw()
            sizes.append(raw.nbytes if raw.nbytes < SMALL else None)
            if raw.nbytes >= SMALL:
                # no memoryview: the interpreter's garbage collector breaks memoryviews that are still in use
                large.append(np.frombuffer(raw, np.uint8))
                continue
            small += raw
            small += bytes(-len(small) % ALIGNED)
        return cls(data, sizes, small, large)

    @classmethod
    def around(cls, value: Any) -> Message | Failure:
        """Value of a task as a message; a message or failure is returned unchanged."""
        return value if isinstance(value, (Message, Failure)) else cls.of(value)

    @property
    def large(self) -> Sequence[np.ndarray]:
        """The arrays in separate frames, as bytes."""
        return self._large

    def with_large(self, large: Sequence[np.ndarray]) -> Message:
        """The message with other arrays, of the same sizes, in separate frames."""
        return Message(self._data, self._sizes, self._small, large)

    def open(self) -> Any:
        """Return the value: the same object every time."""
        if self._value:
            return self._value[0]
        with ONE_OPENS:
            small, large, start = memoryview(self._small), iter(self._large), 0
            buffers: list[Any] = []
            for size in self._sizes:
                buffers.append(next(large) if size is None else small[start : start + size])
                start += 0 if size is None else size + -size % ALIGNED
            if not self._value:  # another thread may have been first
                self._value.append(loads(self._data, buffers=buffers))
        return self._value[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return Message, (self._data, self._sizes, self._small, self._large)


@dataclass(frozen=True)
class Failure:
    """An error that is sent as the value of its task, and of all tasks that need it.

    Dask logs errors that tasks raise, with their traceback, in the user's notebook or where no one reads it; this error
    is raised as the value is requested.

    Parameters
    ----------
    error, traceback
        As Dask sends them.
    """

    error: bytes
    traceback: bytes | None

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Pack an error that is being handled; one that cannot be pickled becomes its description, as with Dask."""
        message = error_message(error)
        traceback = message["traceback"]
        return cls(message["exception"].data, None if traceback is None else traceback.data)

    def reraise(self) -> NoReturn:
        """Raise the error, with the calls that led to it."""
        _, error, traceback = clean_exception(self.error, self.traceback)
        assert error is not None
        raise error.with_traceback(traceback)


# -- Values that tasks read from a file which the process of a run has left for them ------------------------------
# Every task of a group needs the same posterior.  If it were an input of the tasks, each worker process would hold a
# copy and wait for it; sent with each task, it would pass through the scheduler as often.  A posted value is a file
# with its large arrays, and the rest of it, some kilobytes, in the arguments of each task.  Workers map the file into
# memory, so that the processes of a machine share one copy, and keep the values that they opened last.
#
# A task whose worker does not reach the file gets a StoreError, and the run goes on with
# :meth:`~bnp_dask.execute.base.Executor.share`.


KEPT = 4
"""Values that a process keeps open: the last two posteriors, and the proposals of two laps."""


class Board(Protocol):
    """Files that tasks may reach; small and picklable."""

    def put(self, name: str, arrays: Sequence[np.ndarray]) -> int:
        """Write arrays of bytes into a new file; returns its CRC-32.  StoreError if it cannot be written."""
        ...

    def get(self, name: str, sizes: Sequence[int], crc32: int) -> list[np.ndarray]:
        """Arrays of a file, mapped into memory, of ``sizes`` bytes.  StoreError if it is out of reach or altered."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens if it is gone."""
        ...


@dataclass(frozen=True, eq=False)
class Posted:
    """A value among the arguments of tasks, whose large arrays lie in a file; made by :func:`post`.

    Parameters
    ----------
    board, name
        The files, and the name of this one.
    rest
        The value without its large arrays.
    sizes
        Bytes of each large array.
    crc32
        CRC-32 of the file.
    """

    board: Board
    name: str
    rest: Message
    sizes: tuple[int, ...]
    crc32: int

    def open(self) -> Any:
        """The value: the same object for all tasks of a process that open it soon after one another.

        Raises
        ------
        StoreError
            This process does not reach the file.
        """
        return _recent().value(self.name, self._read)

    def _read(self) -> Any:
        large = self.board.get(self.name, self.sizes, self.crc32) if self.sizes else []
        return self.rest.with_large(large).open()


def post(board: Board, name: str, value: Any) -> Posted:
    """Leave a value for tasks; its file is removed once the returned object is dropped.

    StoreError if the file cannot be written.
    """

    message, unique = Message.of(value), f"{name}-{uuid.uuid4().hex}"
    sizes = tuple(array.nbytes for array in message.large)
    posted = Posted(board, unique, message.with_large([]), sizes, board.put(unique, message.large) if sizes else 0)
    if sizes:
        weakref.finalize(posted, board.remove, unique)
    return posted


def opened(argument: Any) -> Any:
    """An argument of a task; the value, if it is a posted one."""
    return argument.open() if isinstance(argument, Posted) else argument


class _Recent:
    """Values that this process opened last."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, Any] = OrderedDict()
        self._lock = RLock()

    def value(self, name: str, read: Callable[[], Any]) -> Any:
        """The value of a name; threads that ask for it at the same time wait for the first to read it."""
        with self._lock:
            if name not in self._values:
                self._values[name] = read()
            self._values.move_to_end(name)
            while len(self._values) > KEPT:
                self._values.popitem(last=False)
            return self._values[name]


@cache
def _recent() -> _Recent:
    return _Recent()
