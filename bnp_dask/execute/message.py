"""Tasks and values as they travel: pickled once, and opened only by the thread that needs them.

A scheduler unpickles a task and pickles it again for a worker, and every array is a frame of its own on both ways.  A
task on a batch has dozens of arrays, most of a few numbers: in a :class:`Message` they are one frame, and the scheduler
passes on what it does not look at.

Values of tasks are messages too.  A worker that cannot open what another sends it tells nobody whose task then waits
for ever, and in a worker that has just started an import may meet another thread's; in a task both are errors.
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
"""Bytes of an array below which it is copied beside others: a frame takes as long as copying this."""

ALIGNED = 64
"""Arrays begin at multiples of so many bytes."""

ONE_OPENS = RLock()
"""Held while a value is unpickled, which imports modules.  In a worker that has just started, the thread of a task and
the one that looks ahead would import a package from two ends, and Python ends one of the imports with an error."""


class Message:
    """A value, pickled.

    Parameters
    ----------
    data
        The value without its arrays' numbers.
    sizes
        Bytes of each array in turn; None of those that travel alone.
    small
        The small arrays, one after the other.
    large
        The others, as bytes: the memory of those they were made from, so that this must not change.
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
                # no memoryview: the interpreter's garbage collector breaks those that others still look through
                large.append(np.frombuffer(raw, np.uint8))
                continue
            small += raw
            small += bytes(-len(small) % ALIGNED)
        return cls(data, sizes, small, large)

    @classmethod
    def around(cls, value: Any) -> Message | Failure:
        """The value of a task as it travels; what travels already stays as it is."""
        return value if isinstance(value, (Message, Failure)) else cls.of(value)

    def open(self) -> Any:
        """The value: the same object every time."""
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
    """An error that travels as the value of its task, and of all tasks that need it.

    Dask logs errors that tasks raise, with their traceback, where nobody or the user's notebook sees it; the user is
    told of this one where the value is asked for.

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
