"""Packs: many small files joined into few, each of which is written once and never changed.

::

    packs/1f00c3a2-000256.pack      an index by key (offset and length), then the contents, one after the other

The key of a file in a pack is three whole numbers, such as batch, visit and CRC-32 of a summary.  A pack is whole
before the files that it replaces are removed, and joined packs are whole before the old ones go.  So every content is
in some file at any moment, and maybe in two.  A reader that misses a file looks in the packs, and looks again if one of
these has gone meanwhile.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from bnp_dask.store.place import DamagedError, Key, place_of

FOLDER = "packs"

LARGEST = 2**26
"""Most bytes of a pack, unless it holds one file: this much is held in memory while it is written."""

TWICE = 2
"""A pack is joined too if it holds at most this many times the files joined already.  So the number of packs grows with
the number of digits of the number of all files, and so do the writes of each file."""

TRIES = 10
"""Tries of a reader to list packs while a writer joins them."""

_HEAD = struct.Struct("<16sQI4x")
_MAGIC = b"bnp-dask pack 1\n"
_COLUMNS = 5
_NAME = re.compile(r"[0-9a-f]{8}-\d+\.pack")

FileKey = tuple[int, int, int]
"""Key of a file in a pack: two numbers, and the CRC-32 of its content."""

Read = Callable[[], bytes]
"""Returns the content of a file."""

Alive = Callable[[np.ndarray], np.ndarray]
"""Given keys ``(n, 3)``, which are still needed, ``(n,)`` bool."""


def keys_of(rows: np.ndarray) -> np.ndarray:
    """One number for each file, from its key ``(n, 3)``: its first number and its content, ``(n,)``."""
    return (rows[:, 0] << 32) | (rows[:, 2] & 0xFFFFFFFF)


@dataclass(frozen=True, eq=False)
class Index:
    """Index of one pack.

    Parameters
    ----------
    path
        The pack.
    rows
        Keys, offset and length of each file in it, ``(n, 5)`` int64, by ascending first key.
    """

    path: Path | Key
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all files in it."""
        return int(self.rows[:, 4].sum())

    def read(self, row: np.ndarray) -> bytes:
        """Content of one of its files; DamagedError if it does not match its checksum."""
        data = place_of(self.path).part(self.path, int(row[3]), int(row[4]))
        if len(data) != row[4] or zlib.crc32(data) != row[2]:
            raise DamagedError(f"{self.path} is damaged (a file in it does not fit its checksum)")
        return data


@dataclass(frozen=True)
class Packs:
    """The packs beside some files; small and picklable.

    Parameters
    ----------
    beside
        Folder of the files.
    """

    beside: Path | Key

    @property
    def folder(self) -> Path | Key:
        """Folder of the packs."""
        return self.beside / FOLDER

    def indexes(self) -> list[Index]:
        """Index of each pack, the largest first; DamagedError if one is damaged, or went meanwhile."""
        names = [name for name in place_of(self.folder).names(self.folder) if _NAME.fullmatch(name)]
        return sorted((_index(self.folder / name) for name in sorted(names)), key=len, reverse=True)

    def read(self, first: int, second: int, crc32: int | None = None) -> bytes | None:
        """Content of a file by its key, whose checksum may be left out; None if no pack holds it."""
        for tries_left in range(TRIES - 1, -1, -1):
            try:
                for index in self.indexes():
                    start, stop = np.searchsorted(index.rows[:, 0], [first, first + 1])
                    for row in index.rows[start:stop]:
                        if row[1] == second and crc32 in (None, int(row[2])):
                            return index.read(row)
                return None
            except DamagedError:
                if not tries_left:
                    raise
        raise AssertionError

    def keys(self) -> np.ndarray:
        """Keys of all files in packs, ``(n, 3)``."""
        rows = [index.rows[:, :3] for index in self.indexes()]
        return np.concatenate([np.zeros((0, 3), np.int64), *rows])

    def join(self, files: Iterable[tuple[FileKey, Read]], alive: Alive) -> None:
        """Pack more files; packs that are small beside them, or half unneeded, are joined with them.

        The caller removes the files themselves.

        Parameters
        ----------
        files
            Key and content of each.
        alive
            Which files are still needed.
        """
        new = list(files)
        indexes, seen, count, old = self.indexes(), np.zeros(0, np.int64), len(new), list[Index]()
        for index in indexes:  # a killed writer may have left files that larger packs hold too
            keys = keys_of(index.rows)
            if np.isin(keys[alive(index.rows[:, :3])], seen).all():
                old.append(index)
            else:
                seen = np.concatenate([seen, keys])
        for index in reversed([index for index in indexes if index not in old]):
            n_alive = int(np.count_nonzero(alive(index.rows[:, :3])))
            if len(index) <= TWICE * count or 2 * n_alive < len(index):
                old.append(index)
                count += n_alive
        stay = np.concatenate([np.zeros(0, np.int64), *(keys_of(index.rows) for index in indexes if index not in old)])
        self._write(old, new, lambda keys: alive(keys) & ~np.isin(keys_of(keys), stay))

    def purge(self, alive: Alive) -> None:
        """Write all packs with unneeded files anew, without these files."""
        self._write([index for index in self.indexes() if not alive(index.rows[:, :3]).all()], [], alive)

    def _write(
        self,
        old: list[Index],
        new: list[tuple[FileKey, Read]],
        alive: Alive,
    ) -> None:
        if not old and not new:
            return
        place = place_of(self.folder)
        place.make_folder(self.folder)
        written = {self._put(batch) for batch in _batches(_contents(old, new, alive))}
        place.sync_folder(self.folder)
        place.sync_folder(self.beside)
        # from here on all is in the new ones
        place.remove(index.path for index in old if index.path not in written)

    def _put(self, files: list[tuple[FileKey, bytes]]) -> Path | Key:
        """Write a pack in one step; return its path."""
        files = sorted(files)
        rows = np.zeros((len(files), _COLUMNS), np.int64)
        rows[:, :3] = [key for key, _ in files]
        rows[:, 4] = [len(data) for _, data in files]
        rows[:, 3] = _HEAD.size + rows.nbytes + np.cumsum(rows[:, 4]) - rows[:, 4]
        crc = zlib.crc32(rows.tobytes())
        path = self.folder / f"{crc:08x}-{len(files):06d}.pack"
        head = _HEAD.pack(_MAGIC, len(files), crc)
        place_of(path).write(path, b"".join([head, rows.tobytes(), *(data for _, data in files)]))
        return path


def _contents(old: list[Index], new: list[tuple[FileKey, Read]], alive: Alive) -> Iterator[tuple[FileKey, bytes]]:
    """Files of packs that are still needed, then others, each once."""
    seen: set[FileKey] = set()
    for index in old:
        for row in index.rows[alive(index.rows[:, :3])]:
            key = (int(row[0]), int(row[1]), int(row[2]))
            if key not in seen:
                seen.add(key)
                yield key, index.read(row)
    for key, read in new:
        if key not in seen:
            seen.add(key)
            yield key, read()


def _batches(
    files: Iterator[tuple[FileKey, bytes]],
) -> Iterator[list[tuple[FileKey, bytes]]]:
    """Files for one pack each."""
    batch: list[tuple[FileKey, bytes]] = []
    nbytes = 0
    for key, data in files:
        if batch and nbytes + len(data) > LARGEST:
            yield batch
            batch, nbytes = [], 0
        batch.append((key, data))
        nbytes += len(data)
    if batch:
        yield batch


@lru_cache(64)
def _index(path: Path | Key) -> Index:
    """Index of a pack, cached: the name holds its checksum, so that it is read once."""
    place = place_of(path)
    head = place.part(path, 0, _HEAD.size)
    if len(head) != _HEAD.size:
        raise DamagedError(f"{path} is damaged (it is cut off)")
    magic, count, crc = _HEAD.unpack(head)
    data = place.part(path, _HEAD.size, count * _COLUMNS * 8)
    if magic != _MAGIC or zlib.crc32(data) != crc or not path.name.startswith(f"{crc:08x}-"):
        raise DamagedError(f"{path} is damaged (its checksum does not fit)")
    return Index(path, np.frombuffer(data, np.int64).reshape(-1, _COLUMNS))
