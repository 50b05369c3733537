"""Values that tasks read from a file which the process of a run has left for them.

Every task of a group needs the same posterior.  If it were an input of the tasks, each worker process would hold a copy
and wait for it; sent with each task, it would pass through the scheduler as often.  A posted value is a file with its
large arrays, and the rest of it, some kilobytes, in the arguments of each task.  Workers map the file into memory, so
that the processes of a machine share one copy, and keep the values that they opened last.

A task whose worker does not reach the file gets a StoreError, and the run goes on with
:meth:`~bnp_dask.execute.base.Executor.share`.
"""

from __future__ import annotations

import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from bnp_dask.execute.message import Message

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
    from bnp_dask.execute.message import Message  # loads Dask, which not every run needs

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
