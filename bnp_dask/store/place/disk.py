"""A file system of this machine, or one that it shares with others: atomic renames, syncs and file locks."""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np

from bnp_dask.errors import StoreError, warn
from bnp_dask.store.place.base import UNSEEN, DamagedError, Extent, Lock, cannot


# -- one writer ----------------------------------------------------------------------------------------------------
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
        warn(f"this system has no file locks: make sure that no other process writes to {path.parent}")
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


# -- the place -----------------------------------------------------------------------------------------------------
TEMPORARY = ".tmp-"
FILE_THREADS = 16

PIECE_BYTES = 2**22
"""Bytes that are read at a time to check a file."""

LATE_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Seconds between looks for a file that another machine has written: it must be seen within eight seconds."""


@dataclass(frozen=True)
class Disk:
    """The :class:`~bnp_dask.store.place.base.Place` of paths."""

    def exists(self, path: Path) -> bool:
        return path.exists()

    def names(self, folder: Path) -> list[str]:
        try:
            return os.listdir(folder)
        except FileNotFoundError:
            return []

    def read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise DamagedError(f"{path} is missing") from error
        except OSError as error:
            raise cannot("read", path, error) from error

    def part(self, path: Path, start: int, nbytes: int) -> bytes:
        try:
            with open(path, "rb") as file:
                file.seek(start)
                return file.read(nbytes)
        except FileNotFoundError as error:
            raise DamagedError(f"{path} is missing") from error
        except OSError as error:
            raise cannot("read", path, error) from error

    def read_late(self, path: Path) -> bytes:
        with suppress(OSError):  # the read below reports any other error
            _when_seen(path, lambda: os.stat(path))
        return self.read(path)

    def glance(self, path: Path) -> bytes:
        return self.read(path)

    def write(self, path: Path, data: bytes, sync: bool = True) -> None:
        try:
            with replacing(path, sync) as file:
                file.write(data)
        except OSError as error:
            raise cannot("write", path, error) from error

    def write_once(self, path: Path, data: bytes) -> None:
        if not path.parent.exists():
            self.make_folder(path.parent)
        # Not synced, because a commit does that for all new files together; but a file that a checkpoint may refer to
        # is never replaced by bytes that are not on the disk yet.
        exists = path.exists()
        if not (exists and self.read(path) == data):
            self.write(path, data, sync=exists)

    def create(self, path: Path, data: bytes) -> bool:
        self.write(path, data)  # the lock keeps others away; an existing file is left by a killed commit
        return True

    def append(self, path: Path, data: bytes, committed: Extent) -> Extent:
        try:
            with open(path, "ab") as file:
                file.truncate(committed.nbytes)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot("write", path, error) from error
        if committed.nbytes == 0:
            self.sync_folder(path.parent)
        return Extent(committed.nbytes + len(data), zlib.crc32(data, committed.crc32))

    def pieces(self, path: Path, committed: Extent) -> Iterator[bytes]:
        left = committed.nbytes
        if left == 0:
            return
        try:
            with open(path, "rb") as file:
                while left and (piece := file.read(min(left, PIECE_BYTES))):
                    left -= len(piece)
                    yield piece
        except OSError as error:
            raise DamagedError(f"{path} cannot be read ({error.strerror})") from error

    def remove(self, paths: Iterable[Path]) -> None:
        # Removing a file from the disk takes a file system up to milliseconds, and many at a time hardly longer.
        _all_at_once(_unlink_quietly, list(paths))

    def remove_tree(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def require_own(self, folder: Path) -> None:
        # a directory unpacked from an archive may have links by which its writer would change files elsewhere
        root = os.path.realpath(folder)
        waiting = [root]
        while waiting:
            try:
                with os.scandir(waiting.pop()) as entries:
                    found = list(entries)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise cannot("read", folder, error) from error
            waiting += [entry.path for entry in found if entry.is_dir(follow_symlinks=False)]
            for link in (entry.path for entry in found if entry.is_symlink()):
                target = os.path.realpath(link)
                if target != root and not target.startswith(root + os.sep):
                    raise StoreError(
                        f"{link} is a link to {target}, out of the run directory; nothing was written. A run directory "
                        "holds files of its own: put a copy in place of the link, or make a link of the whole directory"
                    )

    def remove_temporary(self, folder: Path) -> None:
        for below, _, names in os.walk(folder):
            self.remove(Path(below, name) for name in names if name.startswith(TEMPORARY))

    def make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot("make directory", folder, error) from error

    def sync(self, paths: Iterable[Path]) -> None:
        # Many at a time: the file system then writes its journal once for all instead of once for each.
        files = list(paths)
        _all_at_once(_sync, files)
        _all_at_once(self.sync_folder, sorted({f.parent for f in files}))

    def sync_folder(self, folder: Path) -> None:
        if os.name != "nt":  # Windows cannot, and does not need to
            _sync(folder)

    def lock(self, folder: Path) -> Lock:
        return WriterLock(folder / "LOCK")


@contextmanager
def replacing(path: Path, sync: bool = True) -> Iterator[IO[bytes]]:
    """A file to write, which has its name and is on the disk when the block ends; OSError as for other files."""
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        _unlink_quietly(temporary)
        raise


def mapped(path: Path) -> np.ndarray:
    """Bytes of a file that another machine may have written just now, mapped into memory; OSError as for other files.

    Pages are shared with all processes that map the file, until one writes to them, which changes its own copy.
    """
    with suppress(OSError):  # the call below reports any other error
        _when_seen(path, lambda: os.stat(path))
    with open(path, "rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)


def link(path: Path, to: Path) -> None:
    """Give a file that is never changed a second name; copy it if the file system has no hard links."""
    temporary = _temporary(to)
    try:
        try:
            os.link(path, temporary)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(path, temporary)
            _sync(temporary)
        os.replace(temporary, to)
    except BaseException:
        _unlink_quietly(temporary)
        raise


def _temporary(path: Path) -> Path:
    # The name must be free on every machine that shares the directory.
    return path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}-{path.name}")


def _sync(path: Path) -> None:
    def flush() -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    try:
        _when_seen(path, flush)
    except OSError as error:
        raise cannot("sync", path, error) from error


def _when_seen(path: Path, ask: Callable[[], Any]) -> None:
    """Do this to a file, again and again for some seconds while it is not seen here yet.

    Network file systems cache folders for a while; listing a folder asks the server.
    """
    for pause in LATE_PAUSES:
        try:
            ask()
            return
        except OSError as error:
            if error.errno not in UNSEEN:
                raise
        time.sleep(pause)
        with suppress(OSError):
            os.listdir(path.parent)
    ask()


def _all_at_once(what: Callable[[Path], None], files: list[Path]) -> None:
    """Do this to many files, each thread to a share of them."""

    def own(share: list[Path]) -> None:
        for path in share:
            what(path)

    if len(files) <= 1:
        return own(files)
    with ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="bnp-dask-files") as pool:
        list(pool.map(own, (files[i::FILE_THREADS] for i in range(min(FILE_THREADS, len(files))))))


def _unlink_quietly(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
