"""Reach of a run directory: every process decides for itself, each time, whether it can use it.

The process that writes a run leaves a number in the file ``SESSION``, a new one whenever it opens the directory.
A process that finds that number under the same path sees the same directory now, and not a copy of it, an older state
of it, or another directory of that name.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.errors import StoreError
from bnp_dask.store.files import pack, unpack
from bnp_dask.store.place import DamagedError, Key, cannot, place_of
from bnp_dask.store.place.disk import mapped, replacing
from bnp_dask.store.summaries import NO_RECEIPT, Receipt, SummaryFiles

SESSION_NAME = "SESSION"
DRAFTS_NAME = "drafts"
POSTED_NAME = "posted"

ALIGNED = 64
"""Alignment of arrays in a file that is mapped into memory, in bytes."""


def begin_session(folder: Path | Key) -> str:
    """Leave a new number in a run directory, and return it."""
    session = uuid.uuid4().hex
    place_of(folder).write(folder / SESSION_NAME, session.encode(), sync=False)
    return session


@dataclass(frozen=True)
class SharedFiles:
    """The summaries of a run directory, for processes that may or may not reach it; small and picklable.

    Parameters
    ----------
    path
        The directory, as the process that writes the run knows it.
    session
        The number in its file ``SESSION``.
    files
        The summaries.
    """

    path: Path | Key
    session: str
    files: SummaryFiles

    def put(
        self, batch: int, visit: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None
    ) -> Receipt:
        """As :meth:`SummaryFiles.put`; StoreError if this process does not reach the directory, or it is full."""
        with self._reached():
            return self.files.put(batch, visit, arrays, meta)

    def get(
        self, batch: int, visit: int, receipt: Receipt = NO_RECEIPT, late: bool = False
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """As :meth:`SummaryFiles.get`; StoreError if this process does not reach the directory."""
        with self._reached():
            return self.files.get(batch, visit, receipt, late)

    def _reached(self) -> AbstractContextManager[None]:
        return _reached(self.path, self.session)


@dataclass(frozen=True)
class Drafts:
    """Arrays that tasks keep from one call to the next until a run has started; small and picklable.

    Drafts only save time: one that cannot be kept, or found again whole, is made anew.

    Parameters
    ----------
    path, session
        As in :class:`SharedFiles`.
    """

    path: Path | Key
    session: str

    def get(self, key: str) -> dict[str, np.ndarray] | None:
        """Draft under a key; None if there is no usable one."""
        file = self._file(key)
        try:
            with _reached(self.path, self.session):
                arrays, meta = unpack(place_of(file).read(file), file)
        except StoreError:
            return None
        return arrays if meta == {"key": key} else None

    def put(self, key: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep arrays under a key, which names everything that they depend on."""
        with suppress(StoreError), _reached(self.path, self.session):
            place = place_of(self.path)
            place.make_folder(self._file(key).parent)
            place.write(self._file(key), pack(arrays, {"key": key}), sync=False)

    def _file(self, key: str) -> Path | Key:
        return self.path / DRAFTS_NAME / f"{key}.npz"


@dataclass(frozen=True)
class PostedFiles:
    """Files of arrays that the process of a run leaves for its tasks, for some seconds each; small and picklable.

    Parameters
    ----------
    path, session
        As in :class:`SharedFiles`; on a file system.
    """

    path: Path
    session: str

    def put(self, name: str, arrays: Sequence[np.ndarray]) -> int:
        """Write arrays of bytes into a new file, each at a multiple of 64 bytes; returns its CRC-32."""
        file, crc32 = self._file(name), 0
        place_of(self.path).make_folder(file.parent)
        try:
            with replacing(file, sync=False) as out:
                for array in arrays:
                    for part in (array.data, bytes(-array.nbytes % ALIGNED)):
                        out.write(part)
                        crc32 = zlib.crc32(part, crc32)
        except OSError as error:
            raise cannot("write", file, error) from error
        return crc32

    def get(self, name: str, sizes: Sequence[int], crc32: int) -> list[np.ndarray]:
        """Arrays of a file, of ``sizes`` bytes; StoreError if this process does not reach it, or it was altered."""
        file = self._file(name)
        with _reached(self.path, self.session):
            data = mapped(file)
            if zlib.crc32(data.data) != crc32:
                raise DamagedError(f"{file} is damaged (its checksum does not fit)")
        starts = np.cumsum([0, *(size + -size % ALIGNED for size in sizes)])
        return [data[start : start + size] for start, size in zip(starts.tolist(), sizes, strict=False)]

    def remove(self, name: str) -> None:
        """Remove a file."""
        place_of(self.path).remove([self._file(name)])

    def _file(self, name: str) -> Path:
        return self.path / POSTED_NAME / f"{name}.raw"


@contextmanager
def _reached(path: Path | Key, session: str) -> Iterator[None]:
    """StoreError if this process does not see a directory, or the system refuses an operation inside it."""
    try:
        place, file = place_of(path), path / SESSION_NAME
        if all(look(file) != session.encode() for look in (place.glance, place.read)):
            raise StoreError(f"{path} is another directory here, or an older state of it")
        yield
    except (OSError, DamagedError) as error:
        raise StoreError(f"{path} cannot be used here ({error})") from error
