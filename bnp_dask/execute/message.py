"""Tasks and values as they are sent: pickled once, and opened only by the thread that needs them.

A scheduler unpickles a task and pickles it again for a worker, and every array is a separate frame both times.  A
task on a batch has dozens of arrays, most of a few numbers: in a :class:`Message` they are one frame, and the scheduler
forwards it without opening it.

Values of tasks are messages too.  A worker that cannot unpickle a value from another worker reports no error, and the
task waits for ever; in a worker that has just started, an import may collide with one in another thread.  Inside a task
both are errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pickle import PickleBuffer
from threading import RLock
from typing import Any, NoReturn

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
