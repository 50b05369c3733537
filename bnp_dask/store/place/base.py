"""The verbs that a run directory needs from its storage."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypedDict

from bnp_dask.core.schema import Whole
from bnp_dask.errors import StoreError

UNHARMED = "everything saved before is unharmed"


class DamagedError(Exception):
    """A file that is missing, cut off or altered; the message names it."""


UNSEEN = (errno.ENOENT, errno.ESTALE)
"""Errors of a file that is missing or was replaced; on network file systems also of a new file."""

_ADVICE: Mapping[int, str] = MappingProxyType(
    {
        **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "Make room"),
        **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Give permission"),
        **dict.fromkeys(
            UNSEEN,
            "Another process removed it, or a machine that wrote it does not show it here: let all of them mount the "
            "same directory, on NFS with lookupcache=positive",
        ),
    }
)


def cannot(verb: str, path: str | os.PathLike[str], error: OSError) -> StoreError:
    """The error for a file that the operating system refuses."""
    reason = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0, "Look at the disk, its room and its permissions")
    return StoreError(f"cannot {verb} {path}: {reason}. {advice}, then go on: {UNHARMED}")


class ExtentContent(TypedDict):
    """Fields of an :class:`Extent` in a file."""

    bytes: Whole
    crc32: Whole


@dataclass(frozen=True)
class Extent:
    """The committed beginning of a file that grows.

    Parameters
    ----------
    nbytes
        Its length.
    crc32
        CRC-32 of its content.
    """

    nbytes: int = 0
    crc32: int = 0

    @staticmethod
    def from_json(data: Mapping[str, int]) -> Extent:
        """Inverse of :meth:`to_json`."""
        return Extent(data["bytes"], data["crc32"])

    def to_json(self) -> dict[str, int]:
        """As plain data."""
        return {"bytes": self.nbytes, "crc32": self.crc32}


class Lock(Protocol):
    """Held by the one process that writes to a run directory."""

    def release(self) -> None:
        """Let another process write."""

    def require(self) -> None:
        """StoreError if another process may have taken over; to be called before something is replaced."""

    def committing(self) -> AbstractContextManager[None]:
        """Context of a commit: StoreError if another process has taken over, and then the directory belongs to it."""

    def fence(self, claim: Callable[[], int], newest: int) -> int:
        """Number of the newest commit, once no process that held the lock before can commit any more.

        Parameters
        ----------
        claim
            Takes the number of the next commit, so that no other process can use it, and returns it.
        newest
            The number of the newest commit, as read before.
        """


class Place(Protocol):
    """A file system or an object store.  Files appear whole or not at all, and are gone when they are removed.

    Paths are of the kind that the place knows: :class:`pathlib.Path` or :class:`~bnp_dask.store.place.bucket.Key`.
    A refusal of the place is a StoreError that names the file; a missing file is a DamagedError.
    """

    def exists(self, path: Any) -> bool:
        """Whether there is a file, or a folder with something in it."""

    def names(self, folder: Any) -> list[str]:
        """Names in a folder; none if there is no folder.  OSError if it cannot be read."""

    def read(self, path: Any) -> bytes:
        """Content of a file."""

    def part(self, path: Any, start: int, nbytes: int) -> bytes:
        """So many bytes of a file from ``start`` on, or fewer if it ends before."""

    def read_late(self, path: Any) -> bytes:
        """Content of a file that another machine has written, which may become visible here only after some seconds."""

    def glance(self, path: Any) -> bytes:
        """Content of a small file; if requests are slow, as it was up to a minute ago."""

    def write(self, path: Any, data: bytes, sync: bool = True) -> None:
        """Put a file in place of an older one, in one step; with ``sync`` it outlives a loss of power."""

    def write_once(self, path: Any, data: bytes) -> None:
        """Put a file whose name depends on its content, and its folder; a commit waits until it is durable."""

    def create(self, path: Any, data: bytes) -> bool:
        """Put a file that is never replaced; False if another process has put one, which stays."""

    def append(self, path: Any, data: bytes, committed: Extent) -> Extent:
        """Add to the committed part of a file, in place of anything uncommitted; durable on return."""

    def pieces(self, path: Any, committed: Extent) -> Iterator[bytes]:
        """Committed content of a file that grows, piece by piece."""

    def remove(self, paths: Iterable[Any]) -> None:
        """Remove unneeded files; one that cannot be removed only wastes space."""

    def remove_tree(self, folder: Any) -> None:
        """Remove an unneeded folder with its content."""

    def require_own(self, folder: Any) -> None:
        """StoreError if something in a folder, or below, is a link that leads out of it."""

    def remove_temporary(self, folder: Any) -> None:
        """Remove temporary files of killed writers, in a folder and below."""

    def make_folder(self, folder: Any) -> None:
        """Make a folder and its parents, if the place has folders."""

    def sync(self, paths: Iterable[Any]) -> None:
        """Wait until files and the entries of their folders are durable."""

    def sync_folder(self, folder: Any) -> None:
        """Wait until the names in a folder are durable."""

    def lock(self, folder: Any) -> Lock:
        """Become the writer of a run directory; StoreError if another process is."""
