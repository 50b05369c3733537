"""New batches between the first look at them and their visit: held in memory if both happen in this process.

So they are read once.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from bnp_dask.core.batch import Batch
from bnp_dask.data.base import Reader
from bnp_dask.data.view import View
from bnp_dask.execute.base import Executor

HELD = 2**27
"""Bytes of batches that an update holds at most; the others are read twice.  A guess, which no data chose."""

SHARE = 8
"""Fraction of a limited process memory that they may take: one part in so many."""


@dataclass(eq=False)
class Room:
    """Bytes that are left for batches of an update; several threads may take of them."""

    left: int
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def of(executor: Executor) -> Room:
        """Room in a process of an executor, beside its work."""
        limit = executor.memory_limit
        return Room(HELD if not limit else min(HELD, limit // SHARE))

    def take(self, nbytes: int) -> bool:
        """Take so many bytes; return whether they were left."""
        with self._lock:
            fits = nbytes <= self.left
            self.left -= nbytes if fits else 0
        return fits

    def give(self, nbytes: int) -> None:
        """Return so many bytes that were taken."""
        with self._lock:
            self.left += nbytes


class HoldingReader:
    """Reads a batch once, if there is room to hold it; another process gets only the reader, and holds nothing."""

    def __init__(self, reader: Reader, room: Room) -> None:
        self._reader, self._room = reader, room
        self.batch: Batch | None = None

    def __call__(self) -> Batch:
        if self.batch is not None:
            return self.batch
        batch = self._reader()
        if self._room.take(batch.nbytes):
            self.batch = batch
        return batch

    def __reduce__(self) -> tuple[Any, ...]:
        return _alone, (self._reader,)


def _alone(reader: Reader) -> Reader:
    return reader


@dataclass(frozen=True, eq=False)
class HoldingSource(View):
    """A source whose batches are held once they were read.

    Parameters
    ----------
    whole
        The source.
    room
        Bytes that are left to hold them.
    """

    room: Room
    _readers: dict[int, HoldingReader] = field(default_factory=dict)

    def reader(self, index: int) -> Reader:
        if index not in self._readers:
            self._readers[index] = HoldingReader(self.whole.reader(index), self.room)
        return self._readers[index]

    def drop(self) -> None:
        """Release all batches: these data are not taken in."""
        for reader in self._readers.values():
            if reader.batch is not None:
                self.room.give(reader.batch.nbytes)
                reader.batch = None
