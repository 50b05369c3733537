"""One writer per run directory."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

from bnp_dask.errors import StoreError, warn
from bnp_dask.store.place.base import cannot


class WriterLock:
    """Held by the process that writes; dies with it, however it dies.

    Parameters
    ----------
    path
        The lock file; its holder is written in it, for the message that other processes get.

    Raises
    ------
    StoreError
        Another process, or another store of this process, holds the lock.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise cannot("write", path, error) from error
        try:
            _lock(self._descriptor, path)
        except BaseException:
            self.release()
            raise
        now = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"process {os.getpid()} on {socket.gethostname()} since {now}\n".encode(), 0)
        except OSError as error:
            self.release()
            raise cannot("write", path, error) from error

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Let another process write.  The file stays: removing it would let two processes lock two files."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def require(self) -> None:
        """No-op: no other process has the lock."""

    def committing(self) -> AbstractContextManager[None]:
        """Context of a commit: no other process can commit."""
        return nullcontext()

    def fence(self, claim: Callable[[], int], newest: int) -> int:
        """Number of the newest commit: the previous holder is gone."""
        return newest


def _lock(descriptor: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:
        warn(f"this system has no file locks: make sure that nobody else writes to {path.parent}")
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or "another process"
        raise StoreError(
            f"the run directory {path.parent} is being written by {holder}; wait until it ends, stop it, "
            "or choose another directory. Reading it (inspect, report) needs no lock"
        ) from None
    except OSError as error:
        warn(
            f"the file system of {path.parent} has no locks ({error.strerror}): "
            "make sure that no other process writes to this run directory"
        )
