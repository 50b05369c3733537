"""The place of a run directory: paths of a file system, or objects of a store, used by the same verbs.

::

    path -> place_of -> Disk (paths: renames, syncs, file locks) or Bucket (keys: conditional puts, leases)
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import mmap
import os
import random
import re
import shutil
import socket
import threading
import time
import uuid
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Protocol, TypedDict, TypeVar

import numpy as np

from bnp_dask.core import NoAnswerError, Whole, answer_seconds, contact_of
from bnp_dask.errors import StoreError, warn

# -- The verbs that a run directory needs from its storage --------------------------------------------------------


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

    Paths are of the kind that the place knows: :class:`pathlib.Path` or :class:`~bnp_dask.store.place.Key`.
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


# -- A file system of this machine, or one that it shares with others: atomic renames, syncs and file locks -------


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
    """The :class:`~bnp_dask.store.place.Place` of paths."""

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


# -- An object store as the place of a run: no renames, no appends, no locks --------------------------------------
# Names of objects are used as paths are.  Requests are retried while they may succeed, and are whole or refused.  A
# lease takes the place of a lock that dies with its holder: one writer for each run.


# -- names of objects ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, order=True)
class Key:
    """An object of an object store, or all objects below a prefix; they need not exist.

    Parameters
    ----------
    url
        With protocol, without a slash at its end, such as ``"s3://bucket/run"``.
    """

    url: str

    def __truediv__(self, name: str) -> Key:
        return Key(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url

    def __fspath__(self) -> str:
        return self.url

    @property
    def protocol(self) -> str:
        """Part before ``://``."""
        return self.url.partition("://")[0]

    @property
    def bucket(self) -> str:
        """The bucket; a store is opened once for all objects in it."""
        return self.url.partition("://")[2].partition("/")[0]

    @property
    def name(self) -> str:
        """Last part of the name."""
        return self.url.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """Last part without its suffix."""
        return self.name.rpartition(".")[0] or self.name

    @property
    def parent(self) -> Key:
        """All before the last part."""
        return Key(self.url.rpartition("/")[0])

    def with_suffix(self, suffix: str) -> Key:
        """The name with another suffix, or with one."""
        return Key(f"{self.parent.url}/{self.stem}{suffix}")

    def absolute(self) -> Key:
        """The name itself, which depends on no working directory."""
        return self


# -- requests ------------------------------------------------------------------------------------------------------
T = TypeVar("T")

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "memory": ""}
"""Protocols whose stores themselves refuse to create an existing object, and the extra of this package that opens them.

Other file systems of fsspec look first and write then, and two writers may look at the same time.
"""

PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Seconds between tries of one request, each up to half as long again."""

TOGETHER = 1000
"""Objects that one request removes."""


class Objects:
    """The objects of one bucket, in any thread.

    Parameters
    ----------
    key
        Any object of the bucket.

    Raises
    ------
    StoreError
        The protocol cannot hold a run, or its package is missing.
    """

    def __init__(self, key: Key) -> None:
        import fsspec

        require_known(key)
        try:
            self._fs = fsspec.filesystem(key.protocol, use_listings_cache=False)
        except ImportError as error:
            raise StoreError(
                f"{key} needs the extra {EXTRAS[key.protocol]!r}: "
                f"pip install 'bnp-dask[{EXTRAS[key.protocol]}]' ({error})"
            ) from error
        self._contact = contact_of(f"{key.protocol}://{key.bucket}", repr([]))
        self._creating = threading.Lock()  # fsspec's memory looks first and writes then

    def get(self, key: Key, tries: int = len(PAUSES) + 1) -> bytes | None:
        """Content of an object; None if there is none."""
        try:
            return bytes(self._again("read", key, lambda: self._fs.cat_file(self._name(key)), tries))
        except FileNotFoundError:
            return None

    def get_part(self, key: Key, start: int, nbytes: int) -> bytes | None:
        """Some bytes of an object; None if there is none."""
        if not nbytes:
            return b""
        try:
            return bytes(self._again("read", key, lambda: self._fs.cat_file(self._name(key), start, start + nbytes)))
        except FileNotFoundError:
            return None

    def put(self, key: Key, data: bytes) -> None:
        """Put an object in place of an older one."""
        self._again("write", key, lambda: self._fs.pipe_file(self._name(key), data))

    def create(self, key: Key, data: bytes) -> bool:
        """Put an object unless there is one; True also if an earlier try put it and its answer was lost."""

        def ask() -> bool:
            try:
                with self._creating:
                    self._fs.pipe_file(self._name(key), data, mode="create")
            except Exception:
                # stores report existing objects in many ways: reading the object works for all
                found = self.get(key)
                if found is None:
                    raise
                return found == data
            return True

        return self._again("write", key, ask)

    def exists(self, key: Key) -> bool:
        """Whether there is an object of this name, or one below it."""
        try:
            self._again("read", key, lambda: self._fs.info(self._name(key)))
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: Key) -> list[str]:
        """Names directly below a prefix."""
        try:
            found = self._again("list", folder, lambda: self._fs.ls(self._name(folder), detail=False, refresh=True))
        except FileNotFoundError:
            return []
        own = self._name(folder)
        return [name for path in found if (name := path.rstrip("/").rpartition("/")[2]) and path.rstrip("/") != own]

    def below(self, folder: Key) -> list[Key]:
        """All objects below a prefix."""
        own = self._name(folder)
        found = self._again("list", folder, lambda: self._fs.find(own))
        return [Key(f"{folder.url}{path[len(own) :]}") for path in found if path.startswith(f"{own}/")]

    def remove(self, keys: Iterable[Key]) -> None:
        """Remove objects, up to the first request that fails."""
        left = list(keys)
        for start in range(0, len(left), TOGETHER):
            some = left[start : start + TOGETHER]
            with contextlib.suppress(FileNotFoundError):
                self._again("remove", some[0], partial(self._fs.rm, [self._name(key) for key in some]))

    def _name(self, key: Key) -> str:
        return str(self._fs._strip_protocol(key.url))

    def _again(self, verb: str, key: Key, ask: Callable[[], T], tries: int = len(PAUSES) + 1) -> T:
        """Ask until there is an answer; StoreError in one line if there is none after all tries.

        Until the store has answered once in this process it is not waited for long: it may be down, or not exist.
        """
        if not self._contact.is_made and verb in ("write", "remove"):  # these must not go on in a thread that was left
            self.exists(key)
        until = time.monotonic() + answer_seconds()
        for pause in (*PAUSES[: tries - 1], None):
            try:
                return self._contact.ask(ask, until)
            except NoAnswerError as error:
                raise _cannot(verb, key, error) from error
            except FileNotFoundError as error:
                if verb == "write":  # there is no such bucket
                    raise _cannot(verb, key, error) from error
                raise
            except (MemoryError, StoreError):
                raise
            except Exception as error:
                if pause is None or not _may_pass(error):
                    raise _cannot(verb, key, error) from error
                time.sleep(pause * random.uniform(1.0, 1.5))
        raise AssertionError


def require_known(key: Key) -> None:
    """StoreError unless runs can be kept under such URLs."""
    if key.protocol not in EXTRAS or "::" in key.url:
        raise StoreError(
            f"{key.url} cannot hold a run: a commit there needs a store that itself refuses to create an object that "
            "exists (s3://, gs://, az://), or a local or shared file system. Pass such a place as store=; data may be "
            "at any URL"
        )
    if not key.bucket:
        raise StoreError(f"{key.url} names no bucket; needs one, such as {key.protocol}://bucket/run")


def _may_pass(error: Exception) -> bool:
    """Whether a request that failed in this way may succeed later; without credentials or permission it does not."""
    return not isinstance(error, PermissionError | NotImplementedError | ImportError | TypeError | ValueError) and (
        "Credentials" not in type(error).__name__
    )


def _cannot(verb: str, key: Key, error: Exception) -> StoreError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return StoreError(
        f"cannot {verb} {key}: {type(error).__name__}: {reason}. Check network, credentials and permissions, then go "
        f"on: {UNHARMED}"
    )


def objects_of(key: Key) -> Objects:
    """The objects of a key's bucket, opened once in each process."""
    return _opened(f"{key.protocol}://{key.bucket}", os.getpid())


@lru_cache(64)
def _opened(root: str, process: int) -> Objects:
    return Objects(Key(root))


# -- one writer ----------------------------------------------------------------------------------------------------
FOLDER = "lock"

SECONDS = 45.0
"""How long a beat is good for."""

BEATS = 3
"""Beats in that time."""

logger = logging.getLogger("bnp_dask")


@dataclass(frozen=True)
class Holder:
    """A process that writes.

    Parameters
    ----------
    who
        Process number and machine, for messages.
    machine
        Boot of the machine, and its name space of processes; empty if unknown.
    process
        Process number.
    started
        When it was started, in ticks of that machine; needed because process numbers are used again.
    seconds
        How long its beats are good for.
    """

    who: str
    machine: str
    process: int
    started: str
    seconds: float

    @staticmethod
    def this() -> Holder:
        """This process."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        who = f"process {os.getpid()} on {socket.gethostname()} since {now}"
        return Holder(who, _machine(), os.getpid(), _started(os.getpid()), SECONDS)

    @property
    def is_here(self) -> bool:
        """Whether its process is, or was, visible to this process."""
        return bool(self.machine) and self.machine == _machine()

    @property
    def lives(self) -> bool:
        """Whether the process exists; only for a holder that is here."""
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except OSError:  # it is of another user, who may be hidden
            pass
        return _started(self.process) in ("", self.started)


class Lease:
    """The right to write to a run, until it is released or another process has taken it.

    Parameters
    ----------
    folder
        The run.

    Raises
    ------
    StoreError
        Another process writes to it, or the store creates an object that exists.
    """

    def __init__(self, folder: Key) -> None:
        self._claims = _Claims(folder)
        self._failed = ""
        self.number, is_whole = self._claims.taken()
        self._owes_fence = not is_whole
        self._beats = _Beats(self._claims, self.number)
        self._thread = threading.Thread(target=self._beats.run, name="bnp-dask-lease", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._beats.stop)

    def release(self) -> None:
        """Let another process write, at once."""
        if not self._beats.stopping.is_set():
            self._beats.stop()
            self._thread.join(SECONDS)
            with contextlib.suppress(StoreError):  # then it ends with the last beat
                self._claims.leave(self.number, is_whole=not (self._failed or self._owes_fence))

    def require(self) -> None:
        """StoreError if another process may have taken over, which is impossible while the last beat is recent."""
        if time.monotonic() - self._beats.beaten > SECONDS / 2:
            self._beats.beat()
        if self._beats.lost:
            raise self._claims.lost(self.number)

    @contextlib.contextmanager
    def committing(self) -> Iterator[None]:
        """Context of a commit.

        After an unfinished commit no other may follow: whether it exists is known only after the run is opened again,
        and a number must not be passed over.
        """
        if self._failed:
            raise StoreError(
                f"{self._claims.folder}: a commit could not be finished before ({self._failed}); open the run again to "
                "go on from the newest that is there"
            )
        self.require()
        try:
            yield
        except BaseException as error:
            self._failed = f"{type(error).__name__}: {error}"
            raise
        if self._claims.is_lost(self.number):
            self._beats.lost = True
            raise self._claims.lost(self.number)

    def fence(self, claim: Callable[[], int], newest: int) -> int:
        """A former holder that ended in peace commits no more; from another one its next number is taken.

        That number is not used again either: the holder may have left a file for it that no commit refers to.
        """
        if not self._owes_fence:
            return newest
        number = claim()
        self._owes_fence = False
        return number


class _Claims:
    """The claims on a run."""

    def __init__(self, folder: Key) -> None:
        self.folder = folder
        self._objects: Objects = objects_of(folder)

    def claim(self, number: int) -> Key:
        return self.folder / FOLDER / f"{number:08d}.json"

    def beat(self, number: int) -> Key:
        return self.folder / FOLDER / f"{number:08d}.beat"

    def taken(self) -> tuple[int, bool]:
        """Take the lease: number of the claim, and whether the previous holder has finished all commits and ended."""
        while True:
            before = self._newest()
            signs = self._signs(before) if before else {"ended": True, "whole": True}
            if not signs.get("ended", False):
                self._wait_for_end(before)
                signs = self._signs(before)
            number = before + 1
            own = json.dumps(asdict(Holder.this())).encode()
            if self._objects.create(self.claim(number), own):
                is_whole = bool(signs.get("whole", False))
                break
        if self._objects.create(self.claim(number), b"another"):
            raise StoreError(
                f"{self.folder} cannot hold a run: its store creates an object that exists, in spite of the condition, "
                "so that two writers could replace each other's work. Use a store that knows conditional writes, or a "
                "local or shared file system"
            )
        self.renew(number, 0)
        self._forget(number)
        return number, is_whole

    def renew(self, number: int, beat: int) -> None:
        """A sign of life."""
        until = datetime.now(UTC) + timedelta(seconds=SECONDS)
        self._objects.put(
            self.beat(number), json.dumps({"beat": beat, "until": until.isoformat(timespec="seconds")}).encode()
        )

    def leave(self, number: int, is_whole: bool) -> None:
        """The last sign, and whether every commit was finished."""
        self._objects.put(self.beat(number), json.dumps({"ended": True, "whole": is_whole}).encode())

    def is_lost(self, number: int) -> bool:
        """Whether another process has taken over: there is a later claim, or this one is so old that it was removed."""
        return self._objects.exists(self.claim(number + 1)) or not self._objects.exists(self.claim(number))

    def lost(self, number: int) -> StoreError:
        """The error for a holder that was thought dead."""
        by = next((h.who for n in range(number + 1, self._newest() + 1) if (h := self._holder(n))), "another process")
        return StoreError(
            f"the run {self.folder} has been taken over by {by}: this process gave no sign of life for {SECONDS:g} s. "
            "Nothing was replaced, and all that it committed before is part of the run"
        )

    def _newest(self) -> int:
        """Number of the newest claim, 0 if there is none; if a listing is old, the first number without a claim."""
        names = self._objects.names(self.folder / FOLDER)
        number = max((int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()), default=0)
        while self._objects.exists(self.claim(number + 1)):
            number += 1
        return number

    def _holder(self, number: int) -> Holder | None:
        content = self._objects.get(self.claim(number))
        try:
            return None if content is None else Holder(**json.loads(content))
        except (ValueError, TypeError):  # of a later version
            return None

    def _signs(self, number: int) -> dict[str, Any]:
        content = self._objects.get(self.beat(number))
        try:
            return dict(json.loads(content or b"{}"))
        except (ValueError, TypeError):
            return {}

    def _wait_for_end(self, number: int) -> None:
        """Return when a claim is no longer good; StoreError as soon as it is seen to be good."""
        holder = self._holder(number)
        if holder is not None and holder.is_here:
            if holder.lives:
                raise self._refused(holder, self._signs(number))
            logger.info("%s: %s has ended without releasing it", self.folder, holder.who)
            return
        seconds = SECONDS if holder is None else max(SECONDS, holder.seconds)
        seen, started = self._signs(number), time.monotonic()
        logger.info("%s: waiting for up to %g s whether its last writer still lives", self.folder, seconds)
        while time.monotonic() - started < seconds:
            time.sleep(min(1.0, SECONDS / (4 * BEATS)))
            now = self._signs(number)
            if now.get("ended", False):
                return
            if now != seen or self._objects.exists(self.claim(number + 1)):
                raise self._refused(holder, now)

    def _refused(self, holder: Holder | None, signs: dict[str, Any]) -> StoreError:
        who = "another process" if holder is None else holder.who
        until = f", whose lease is good until {signs['until']} and is being renewed" if "until" in signs else ""
        return StoreError(
            f"the run {self.folder} is being written by {who}{until}; wait until it ends, stop it, or choose another "
            "place. Reading it (inspect, report) needs no lease"
        )

    def _forget(self, number: int) -> None:
        """Remove claims that are older than the previous one; their holders learn from this that they are outdated."""
        names = self._objects.names(self.folder / FOLDER)
        old = [name for name in names if name.partition(".")[0].isdigit() and int(name.partition(".")[0]) < number - 1]
        with contextlib.suppress(StoreError):
            self._objects.remove(self.folder / FOLDER / name for name in sorted(old))


class _Beats:
    """Renews a lease in a thread, which holds this object and not the lease: so an abandoned lease ends."""

    def __init__(self, claims: _Claims, number: int) -> None:
        self._claims, self._number, self._count = claims, number, 0
        self.beaten = -math.inf  # the time before the first beat was sent is unknown
        self.stopping = threading.Event()
        self.lost = False

    def stop(self) -> None:
        self.stopping.set()

    def run(self) -> None:
        while not self.lost and not self.stopping.wait(SECONDS / BEATS):
            try:
                self.beat()
            except StoreError as error:
                logger.warning("%s: its lease could not be renewed: %s", self._claims.folder, error)

    def beat(self) -> None:
        """Renew, and look whether another process has taken over."""
        began = time.monotonic()
        self._count += 1
        self._claims.renew(self._number, self._count)
        self.lost = self.lost or self._claims.is_lost(self._number)
        if not self.lost:
            self.beaten = began


def _machine() -> str:
    """Identity of this machine since its start and of its name space of processes; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(process: int) -> str:
    """When a process was started; empty if there is none."""
    try:
        # the name of the program may hold blanks and brackets
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


# -- the place -----------------------------------------------------------------------------------------------------
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
    """The :class:`~bnp_dask.store.place.Place` of keys; opened at its first use, so that it travels with tasks."""

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


# -- The place of a run directory: paths of a file system, or objects of a store, used by the same verbs ----------


_DISK, _BUCKET = Disk(), Bucket()


def place_of(path: Path | Key) -> Place:
    """The place that reads and writes a path."""
    return _BUCKET if isinstance(path, Key) else _DISK


__all__ = [
    "TEMPORARY",
    "DamagedError",
    "Extent",
    "ExtentContent",
    "Key",
    "Lock",
    "Place",
    "cannot",
    "place_of",
    "require_known",
]
