"""Paths and URLs: one interface to list, open and remove files, here or on any store that fsspec knows.

The first contact with remote storage must be answered within some seconds, however long a library below waits:
libraries of object stores retry for minutes when a network or a service is down, and a command that only looked took
160 seconds to say so.  A storage that has answered once in this process is trusted: later requests have the patience of
its library and of :mod:`bnp_dask.store.place`, so that a run outlives an outage of a minute.
"""

from __future__ import annotations

import io
import os
import posixpath
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeVar

from bnp_dask.errors import HIDDEN, BnpDaskError, DataError, SettingError, nearest, redacted
from bnp_dask.inputs import local_path, path_text

if TYPE_CHECKING:
    from zarr.storage import FsspecStore, LocalStore, StorePath

T = TypeVar("T")

SECRET_LENGTH = 6
"""Least length, in characters, of an option that may be a password."""

_TIMES = ("ETag", "etag", "mtime", "LastModified", "Last-Modified", "created")
"""Keys under which file systems give the version of a file, or the time when it was written."""

_WHOLE = ("http", "https")
"""Protocols of servers that may serve only whole files, or omit their length."""

_COPIES = 8
"""Most copies of files of such servers that a process keeps."""


_PASSED_ON = (
    FileNotFoundError,
    NotADirectoryError,
    PermissionError,
    TimeoutError,
    ConnectionError,
    OSError,
    ValueError,
)
"""Types of errors that keep their type when a secret is removed from the text; others become an OSError."""


@dataclass(frozen=True)
class Chosen(os.PathLike[str]):
    """Some files of a folder or of a pattern, which is read as if it held no others.

    Parameters
    ----------
    place
        The folder or pattern.
    files
        Names of the files: relative to the folder, or absolute paths.
    """

    place: str
    files: tuple[str, ...]

    def __fspath__(self) -> str:
        return self.place

    @property
    def paths(self) -> list[str]:
        """Paths of the files, sorted."""
        return sorted(os.path.join(self.place, name) for name in self.files)


@dataclass(frozen=True, repr=False)
class Location:
    """A file or folder.  Picklable; workers open it themselves.

    Its representation, its names and its errors hold no password, signature or option.

    Parameters
    ----------
    url
        Absolute local path, or URL with protocol.
    options
        Options that fsspec passes to the file system (credentials, endpoints).
    shown
        Text of the user, for messages, without passwords and signatures.
    only
        Paths of the files that a folder counts as holding; None: all.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shown: str = ""
    only: frozenset[str] | None = None

    @staticmethod
    def of(path: str | os.PathLike[str], options: Mapping[str, Any] | None = None, argument: str = "path") -> Location:
        """A location from the text of the user; local paths become absolute, as workers may run elsewhere.

        ``argument`` is the name of the argument, for messages.

        Raises
        ------
        SettingError
            No file can have this name.
        DataError
            The protocol of the URL is unknown, or the storage cannot be opened.
        """
        text = path_text(argument, path)
        if options is not None and not isinstance(options, Mapping):
            kind = type(options).__name__
            raise SettingError(f"storage_options: found a {kind}; needs a mapping, such as {{'anon': True}}")
        if text.startswith("file://"):
            return Location(os.path.abspath(local_path(text.removeprefix("file://"))), {}, text)
        if "://" not in text and "::" not in text:
            only = frozenset(path.paths) if isinstance(path, Chosen) else None
            return Location(os.path.abspath(local_path(text)), {}, text, only)
        found = Location(text.rstrip("/"), dict(options or {}), redacted(text))
        with found._named_errors("cannot be opened"):
            # fsspec caches file systems by thread: later calls open the storage once more, but do not hang
            in_time(found.filesystem)
        return found

    def __repr__(self) -> str:
        return f"Location({self.name!r})"

    @property
    def is_local(self) -> bool:
        """Whether this is a path of the machine's own file system."""
        return "://" not in self.url

    @property
    def name(self) -> str:
        """Path or URL that the user wrote, or the last part of a location derived from it."""
        return self.shown or self.place

    @property
    def place(self) -> str:
        """Path or URL as files keep it: without password and signature, so that signing it anew does not change it."""
        return self.url if self.is_local else redacted(self.url)

    @property
    def basename(self) -> str:
        """Last part of the path."""
        return posixpath.basename(self.url.replace(os.sep, "/"))

    def child(self, *parts: str) -> Location:
        """A location below this one."""
        tail = "/".join(parts)
        return Location(f"{self.url}/{tail}", self.options, f"{self.name.rstrip('/')}/{tail}")

    def sibling(self, name: str) -> Location:
        """Another name in the same folder."""
        return Location(f"{self.url.rsplit('/', 1)[0]}/{name}", self.options, name)

    def filesystem(self) -> tuple[Any, str]:
        """The fsspec file system and the path in it."""
        import fsspec

        with self._named_errors("cannot be opened"):
            try:
                return fsspec.core.url_to_fs(self.url, **self.options)
            except (FileNotFoundError, NotADirectoryError) as error:  # the archive that a chain of URLs names
                told = self._without_secrets(error)
                raise DataError(f"{self.name}: cannot be opened ({told})") from told

    @contextmanager
    def _named_errors(self, what: str = "cannot be read") -> Iterator[None]:
        """Turn errors of storage into a DataError that names this location; errors of missing files pass through."""
        try:
            with self.discreet():
                yield
        except (BnpDaskError, FileNotFoundError, NotADirectoryError, ImportError, MemoryError):
            raise
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise DataError(f"{self.name}: {what} ({type(error).__name__}: {reason})") from error

    @contextmanager
    def discreet(self) -> Iterator[None]:
        """Remove passwords, signatures and options of this location from errors raised inside."""
        try:
            yield
        except Exception as error:
            if (told := self._without_secrets(error)) is error:
                raise
            raise told from None

    def _without_secrets(self, error: Exception) -> Exception:
        """The error itself if its text holds no secret of this location, else an error of its kind without them."""
        text = str(error)
        hidden = redacted(text)
        for secret in _texts_in(self.options):
            hidden = hidden.replace(secret, HIDDEN)
        if hidden == text:
            return error
        return next((kind for kind in _PASSED_ON if isinstance(error, kind)), OSError)(hidden)

    def _ask(self, ask: Callable[[], T]) -> T:
        """Answer of the storage, which is not waited for long before its first one."""
        protocol, mark, rest = self.url.rpartition("::")[2].partition("://")
        if not mark:
            return ask()
        return contact_of(f"{protocol}://{rest.partition('/')[0]}", repr(sorted(self.options.items()))).ask(ask)

    def content(self) -> bytes:
        """All bytes of a file, in one request; FileNotFoundError if it does not exist."""
        fs, path = self.filesystem()
        with self._named_errors():
            return bytes(self._ask(lambda: fs.cat_file(path)))

    def exists(self) -> bool:
        """Whether there is a file or folder here; DataError when storage does not say."""
        if self.is_local:
            return os.path.exists(self.url)
        fs, path = self.filesystem()
        with self._named_errors("cannot be reached"):
            try:
                in_time(lambda: self._ask(lambda: fs.info(path)))
            except FileNotFoundError as error:
                # fsspec raises FileNotFoundError also when a web server does not answer, or refuses
                if error.__cause__ is None or isinstance(error.__cause__, FileNotFoundError):
                    return False
                raise self._without_secrets(error.__cause__) from None  # type: ignore[arg-type]
        return True

    def is_dir(self) -> bool:
        """Whether this is a folder."""
        if self.is_local:
            return os.path.isdir(self.url)
        fs, path = self.filesystem()
        with self._named_errors():
            return bool(self._ask(lambda: fs.isdir(path)))

    def size_if_any(self) -> int | None:
        """Bytes of a file, or None if it does not exist."""
        try:
            return os.path.getsize(self.url) if self.is_local else self.size()
        except FileNotFoundError:
            return None

    def size(self) -> int:
        """Bytes of a file."""
        fs, path = self.filesystem()
        with self._named_errors():
            copy = self._ask(self._copy)
            return int(self._ask(lambda: fs.size(path))) if copy is None else os.path.getsize(copy.name)

    def stamps(self) -> Iterator[tuple[str, int, str]]:
        """Name, bytes and time of change of this file, or of all files below this folder."""
        return self._local_stamps() if self.is_local else self._far_stamps()

    def _local_stamps(self) -> Iterator[tuple[str, int, str]]:
        if not os.path.isdir(self.url):
            found = os.stat(self.url)
            yield "", found.st_size, str(found.st_mtime_ns)
            return
        waiting, seen = [self.url], {os.path.realpath(self.url)}
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                found_here = sorted(entries, key=lambda entry: entry.name)
            for entry in found_here:
                if entry.is_dir():
                    folder = os.path.realpath(entry.path)
                    if folder not in seen:  # links may lead back up
                        seen.add(folder)
                        waiting.append(entry.path)
                else:
                    found = entry.stat()
                    yield entry.path.removeprefix(self.url), found.st_size, str(found.st_mtime_ns)

    def _far_stamps(self) -> Iterator[tuple[str, int, str]]:
        fs, path = self.filesystem()
        with self._named_errors():
            found = fs.find(path, detail=True) if fs.isdir(path) else {path: fs.info(path)}
        for name in sorted(found):
            facts = found[name]
            # the version of the content if the store has one, else the time
            time = next((facts[key] for key in _TIMES if key in facts), "")
            if facts.get("size") is None and time == "":
                raise DataError(f"{self.name}: its server tells neither size nor time of {name}")
            yield name.removeprefix(path), int(facts.get("size") or 0), str(time)

    def open(self, compression: str | None = None) -> IO[bytes]:
        """The file opened for reading; ``compression="infer"`` unpacks by suffix."""
        import fsspec

        with self._named_errors():
            copy = self._ask(self._copy)
            name, options = (self.url, self.options) if copy is None else (copy.name, {})
            file = self._ask(lambda: fsspec.open(name, "rb", compression=compression, **options).open())
        is_public = self.place == self.url and not self.options
        return file if copy is not None or is_public else io.BufferedReader(_Discreet(file, self))

    def _copy(self) -> _Copy | None:
        """Local copy of the whole file, if its server cannot serve parts of it; None if it can."""
        if self.url.partition("://")[0] not in _WHOLE:
            return None
        fs, path = self.filesystem()
        facts = fs.info(path)
        stamp = tuple(str(facts[key]) for key in _TIMES if key in facts)
        size = None if facts.get("partial") is False else facts.get("size")
        # a file without a version stamp may have changed by now
        return (_copy_if_needed if stamp else _copy_if_needed.__wrapped__)(fs, path, size, stamp)

    def files(self, suffixes: tuple[str, ...]) -> list[Location]:
        """All files below this folder with one of the suffixes, sorted by path; hidden ones are left out, as are all
        that were not chosen."""
        fs, path = self.filesystem()
        found = []
        with self._named_errors():
            below = sorted(self._ask(lambda: fs.find(path)))
        for full in below:
            tail = full[len(path) :].lstrip("/") if full.startswith(path) else posixpath.basename(full)
            if tail.endswith(suffixes) and not any(p.startswith((".", "_")) for p in tail.split("/")):
                found.append(self.child(tail))
        return found if self.only is None else [file for file in found if file.url in self.only]

    def names(self) -> list[str]:
        """Names in this folder; none when there is no such folder."""
        try:
            fs, path = self.filesystem()
            found = self._ask(lambda: fs.ls(path, detail=False))
            return sorted(posixpath.basename(p.rstrip("/")) for p in found)
        except (OSError, ValueError):
            return []

    def require(self) -> None:
        """Raise DataError for a device, which may have no end, a pipe, which can be read only once, or a missing file;
        names the nearest existing name."""
        mode = os.stat(self.url).st_mode if self.is_local and os.path.exists(self.url) else 0
        if stat.S_ISFIFO(mode) or self.basename == "-":
            raise DataError(f"{self.name}: is a pipe, and data are read more than once; write them to a file first")
        if stat.S_ISCHR(mode):
            raise DataError(f"{self.name}: is a device; needs a file or folder")
        if self.exists():
            return
        is_prose = " " in self.basename and not os.path.splitext(self.basename)[1]
        raise DataError(
            f"{self.name}: no such file or folder{self.nearest()}{'; a text goes in as a list: [text]' * is_prose}"
        )

    def nearest(self) -> str:
        """A hint that gives the name beside it which is nearest, or nothing."""
        folder = self.sibling("").url.rstrip("/") or "/"
        return nearest(self.basename, Location(folder, self.options).names())

    def remove(self) -> None:
        """Delete the file, or the folder with all in it."""
        fs, path = self.filesystem()
        with self._named_errors("cannot be removed"):
            fs.rm(path, recursive=True)

    def zarr_path(self) -> StorePath:
        """The folder as a read-only ``StorePath`` of Zarr."""
        from zarr.storage import StorePath

        return StorePath(self.zarr_store())

    def zarr_store(self, read_only: bool = True) -> LocalStore | FsspecStore:
        """The folder as a Zarr store; imports Zarr only when called."""
        from zarr.storage import FsspecStore, LocalStore

        if self.is_local:
            return LocalStore(self.url, read_only=read_only)
        return FsspecStore.from_url(self.url, storage_options=dict(self.options), read_only=read_only)


class _Discreet(io.RawIOBase):
    """A remote file whose location has secrets: errors while it is read do not reveal them."""

    def __init__(self, file: IO[bytes], location: Location) -> None:
        self._file, self._location = file, location

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def readinto(self, buffer: Any) -> int:
        with self._location._named_errors():
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._location._named_errors():
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


def _texts_in(options: Any) -> Iterator[str]:
    """Texts in options, at any depth, except short texts, which are not secrets."""
    if isinstance(options, Mapping):
        options = options.values()
    elif not isinstance(options, (list, tuple)):
        if isinstance(options, str) and len(options) >= SECRET_LENGTH:
            yield options
        return
    for value in options:
        yield from _texts_in(value)


@dataclass(frozen=True, eq=False)
class _Copy:
    """A temporary file by its name; removed with the last reference to this, or when the process ends."""

    name: str

    def __post_init__(self) -> None:
        weakref.finalize(self, _remove, self.name)


def _remove(name: str) -> None:
    with suppress(OSError):
        os.unlink(name)


@lru_cache(_COPIES)
def _copy_if_needed(fs: Any, path: str, size: int | None, stamp: tuple[str, ...]) -> _Copy | None:
    """Copy of a file of this length and version, unless its server can serve parts of it; made once per process."""
    if size is not None and _gives_parts(fs, path, size):
        return None
    # its suffixes name its compression
    suffix = f"-{posixpath.basename(path)}"[-80:]
    # no open file is held: one in a circle of references would be closed with a warning
    handle, name = tempfile.mkstemp(prefix="bnp-dask-", suffix=suffix)
    os.close(handle)
    copy = _Copy(name)
    fs.get_file(path, copy.name)
    return copy


def _gives_parts(fs: Any, path: str, size: int) -> bool:
    """Whether a server can serve the last byte of a file alone."""
    if size < 2:
        return True
    with fs.open(path) as file:
        try:
            file.seek(size - 1)
            return len(file.read(1)) == 1
        except ValueError:  # fsspec raises it when a server answers with the whole file
            return False


# -- first contact with remote storage -----------------------------------------------------------------------------
VARIABLE = "BNP_DASK_STORAGE_SECONDS"
"""Variable of the environment with the longest time in which storage must give its first answer, in seconds."""

ANSWER_SECONDS = 7.0
"""Longest time in which storage must open and give its first answer, unless :data:`VARIABLE` sets another.

A command on a dead store ends within ten seconds then, with two or three to start.  Stores that live take one second or
two, with credentials from a service for metadata.
"""

REMEMBERED_SECONDS = 2.0
"""Time for which storage that did not answer is not asked again: one command asks several times in a row."""


class NoAnswerError(TimeoutError):
    """Storage did not answer in time."""


def answer_seconds() -> float:
    """Longest time in which storage must give its first answer.

    Raises
    ------
    SettingError
        The variable of the environment is not a positive number.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return ANSWER_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise SettingError(f"{VARIABLE}={text!r}: needs a positive number of seconds, such as {ANSWER_SECONDS:g}")
    return seconds


class Contact:
    """Contact of this process with one storage, which has answered or not yet."""

    def __init__(self) -> None:
        self.is_made = False
        self._silent: tuple[float, NoAnswerError] | None = None

    def ask(self, ask: Callable[[], T], until: float | None = None) -> T:
        """Answer of storage; before the first one it is waited for until a moment, else for :func:`answer_seconds`.

        Raises
        ------
        NoAnswerError
            There is no answer in time, or there was none a moment ago.  A thread is left waiting for it.
        """
        if self.is_made:
            return ask()
        if self._silent is not None and time.monotonic() - self._silent[0] < REMEMBERED_SECONDS:
            raise NoAnswerError(*self._silent[1].args)
        try:
            value = in_time(ask, until)
        except NoAnswerError as error:
            self._silent = time.monotonic(), error
            raise
        except FileNotFoundError as error:
            # fsspec raises it also when a web server does not answer, or refuses
            self.is_made = error.__cause__ is None or isinstance(error.__cause__, FileNotFoundError)
            raise
        except PermissionError:
            self.is_made = True
            raise
        self.is_made = True
        return value


def contact_of(root: str, options: str = "") -> Contact:
    """The contact of this process with the storage of a bucket or host, opened with some options."""
    return _contact(root, options, os.getpid())


@lru_cache(256)
def _contact(root: str, options: str, process: int) -> Contact:
    return Contact()


def in_time(ask: Callable[[], T], until: float | None = None) -> T:
    """Answer of storage; NoAnswerError if it does not come in time, while a thread is left waiting for it."""
    limit = answer_seconds()
    answers: list[Callable[[], T]] = []

    def run() -> None:
        try:
            value = ask()
            answers.append(lambda: value)
        except BaseException as error:
            answers.append(partial(_raise, error))

    thread = threading.Thread(target=run, name="bnp-dask-storage", daemon=True)
    thread.start()
    thread.join(limit if until is None else max(0.0, until - time.monotonic()))
    if not answers:
        raise NoAnswerError(
            f"no answer in {limit:g} s; are there a network and credentials? {VARIABLE}=60 waits for a minute"
        )
    return answers[0]()


def _raise(error: BaseException) -> NoReturn:
    raise error
