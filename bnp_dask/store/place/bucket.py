"""An object store: no renames, no appends, no locks.

A commit refers to objects that are never replaced, and the commit is one object that is created only if it does not
exist.  A file that grows is a folder of pieces.  Each piece is named by its start and end, in bytes and checksums of
everything before; pieces of no commit are in no chain, and are never read.  The writer holds a lease.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from bnp_dask.errors import StoreError
from bnp_dask.store.place.base import DamagedError, Extent, Lock
from bnp_dask.store.place.key import Key
from bnp_dask.store.place.lease import Lease
from bnp_dask.store.place.objects import Objects, objects_of

REQUESTS = 16
"""Pieces that are requested at a time."""

LISTINGS = 3
"""Times that a folder is listed for pieces that it must hold."""

GLANCE_SECONDS = 60.0
"""Greatest age of the content that a glance returns."""

GLANCES = 3
"""Tries of a glance."""

_PIECE = re.compile(r"(\d+)-([0-9a-f]{8})-(\d+)-([0-9a-f]{8})")


@dataclass(frozen=True)
class Bucket:
    """The :class:`~bnp_dask.store.place.base.Place` of keys; opened where it is used, so that it travels with tasks."""

    def exists(self, path: Key) -> bool:
        return objects_of(path).exists(path)

    def names(self, folder: Key) -> list[str]:
        return objects_of(folder).names(folder)

    def read(self, path: Key) -> bytes:
        return _read(objects_of(path), path)

    def part(self, path: Key, start: int, nbytes: int) -> bytes:
        found = objects_of(path).get_part(path, start, nbytes)
        if found is None:
            raise DamagedError(f"{path} is missing")
        return found

    def read_late(self, path: Key) -> bytes:
        return self.read(path)

    def glance(self, path: Key) -> bytes:
        found, problem = _seen_lately(path, int(time.monotonic() // GLANCE_SECONDS), os.getpid())
        if found is None:
            raise DamagedError(problem)
        return found

    def write(self, path: Key, data: bytes, sync: bool = True) -> None:
        objects_of(path).put(path, data)

    def write_once(self, path: Key, data: bytes) -> None:
        objects_of(path).put(path, data)

    def create(self, path: Key, data: bytes) -> bool:
        return objects_of(path).create(path, data)

    def append(self, path: Key, data: bytes, committed: Extent) -> Extent:
        if not data:
            return committed
        end = Extent(committed.nbytes + len(data), zlib.crc32(data, committed.crc32))
        objects_of(path).put(path / _piece_name(committed, end), data)
        return end

    def pieces(self, path: Key, committed: Extent) -> Iterator[bytes]:
        if committed.nbytes == 0:
            return
        objects = objects_of(path)
        keys = _chain(objects, path, committed)
        with ThreadPoolExecutor(REQUESTS, thread_name_prefix="bnp-dask-objects") as pool:
            for start in range(0, len(keys), REQUESTS):
                yield from pool.map(lambda key: _read(objects, key), keys[start : start + REQUESTS])

    def remove(self, paths: Iterable[Key]) -> None:
        keys = list(paths)
        if keys:
            with suppress(StoreError):
                objects_of(keys[0]).remove(keys)

    def remove_tree(self, folder: Key) -> None:
        with suppress(StoreError):
            self.remove(objects_of(folder).below(folder))

    def require_own(self, folder: Key) -> None:
        """No-op: objects are no links."""

    def remove_temporary(self, folder: Key) -> None:
        """No-op: an object that was not put whole does not exist."""

    def make_folder(self, folder: Key) -> None:
        """No-op: a folder exists when an object is in it."""

    def sync(self, paths: Iterable[Key]) -> None:
        """No-op: every object that was put is durable."""

    def sync_folder(self, folder: Key) -> None:
        """No-op: every object that was put is listed."""

    def lock(self, folder: Key) -> Lock:
        return Lease(folder)


@lru_cache(256)
def _seen_lately(key: Key, minute: int, process: int) -> tuple[bytes | None, str]:
    """Content of an object, or why there is none: a process that does not reach it does not ask again for a while."""
    try:
        found = objects_of(key).get(key, tries=GLANCES)
    except StoreError as error:
        return None, str(error)
    return found, f"{key} is missing"


def _read(objects: Objects, key: Key) -> bytes:
    found = objects.get(key)
    if found is None:
        raise DamagedError(f"{key} is missing")
    return found


def _piece_name(start: Extent, end: Extent) -> str:
    return f"{start.nbytes:016d}-{start.crc32:08x}-{end.nbytes:016d}-{end.crc32:08x}"


def _chain(objects: Objects, path: Key, committed: Extent) -> list[Key]:
    """Pieces that make up a file, in their order; DamagedError if some are missing."""
    for _ in range(LISTINGS):
        ends: dict[Extent, tuple[Extent, str]] = {}
        for name in objects.names(path):
            if (found := _PIECE.fullmatch(name)) is not None:
                start, end = (Extent(int(found[i]), int(found[i + 1], 16)) for i in (1, 3))
                ends[end] = start, name
        keys, at = [], committed
        while at != Extent() and at in ends:
            at, name = ends[at]
            keys.append(path / name)
        if at == Extent():
            return keys[::-1]
    raise DamagedError(f"{path} is damaged (no pieces lead to its first {committed.nbytes} bytes)")
