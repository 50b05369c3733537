"""The run directory of one run."""

from __future__ import annotations

import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.errors import StoreError
from bnp_dask.store.checkpoint import Checkpoint, Loaded, Prepared
from bnp_dask.store.files import (
    TEMPORARY,
    DamagedError,
    cannot,
    crc_of_packed,
    dump_json,
    make_directory,
    pack,
    read_bytes,
    remove,
    remove_temporary,
    seal,
    sync_directory,
    sync_files,
    unpack,
    unseal,
    write_atomic,
)
from bnp_dask.store.lock import WriterLock
from bnp_dask.store.parts import CommittedParts, Part, PartFiles
from bnp_dask.store.summaries import SummaryFiles

RUN_FORMAT = "bnp-dask run"
CHECKPOINT_FORMAT = "bnp-dask checkpoint"
VERSION = 1
KEPT_CHECKPOINTS = 2
READ_TRIES = 10


def nothing(name: str) -> bool:
    """No array, of whatever name."""
    return False


class RunStore:
    """A run on disk; made by :meth:`create`, :meth:`open` or :meth:`view`.

    One process writes at a time; others may read meanwhile.  After a kill at any moment :meth:`load` gives a
    whole checkpoint: the newest, or the one before it.
    """

    def __init__(self, path: Path, settings: dict[str, Any], lock: WriterLock | None) -> None:
        self.path = path
        self.settings = settings
        self.token = zlib.crc32((path / "RUN.json").read_bytes())
        self.summaries = SummaryFiles(path.absolute() / "summaries")  # workers have other working directories
        self._parts = CommittedParts(PartFiles(path / "parts"))
        self._lock = lock
        self._number = max(_numbers(path), default=0)
        # The checkpoint that the next commit builds upon: None before the first one.
        self._last: Loaded | None = None
        self._must_load = bool(_numbers(path))

    # -- opening ------------------------------------------------------------------------------------------------
    @staticmethod
    def exists(path: str | os.PathLike[str]) -> bool:
        """Whether a directory holds a run."""
        return (_local(path) / "RUN.json").exists()

    @classmethod
    def create(cls, path: str | os.PathLike[str], settings: dict[str, Any]) -> RunStore:
        """Start a run in a new or empty directory.

        Parameters
        ----------
        path
            A directory on a local or shared file system.
        settings
            JSON-able; kept for :meth:`open`.

        Raises
        ------
        StoreError
            The directory holds a run or other files, another process writes to it, or it cannot be written.
        """
        folder = _local(path)
        _require_new(folder)
        make_directory(folder)
        lock = WriterLock(folder / "LOCK")
        try:
            _require_new(folder)  # another process may have been faster
            created = datetime.now(UTC).isoformat(timespec="seconds")
            content = {"format": RUN_FORMAT, "version": VERSION, "created": created, "settings": settings}
            make_directory(folder / "checkpoints")
            write_atomic(folder / "RUN.json", seal(content), sync=True)
            sync_directory(folder)
            sync_directory(folder.parent)
            return cls(folder, json.loads(dump_json(settings)), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunStore:
        """Go on writing to a run; StoreError when there is none, or another process writes to it."""
        folder = _local(path)
        settings = _read_settings(folder)
        lock = WriterLock(folder / "LOCK")
        remove_temporary(folder)
        return cls(folder, settings, lock)

    @classmethod
    def view(cls, path: str | os.PathLike[str]) -> RunStore:
        """Read a run, which another process may be writing; takes no lock and cannot write."""
        folder = _local(path)
        return cls(folder, _read_settings(folder), None)

    def close(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- summaries ----------------------------------------------------------------------------------------------
    def put_summary(
        self, batch: int, visit: int, arrays: Mapping[str, np.ndarray], meta: dict[str, Any] | None = None
    ) -> None:
        """Keep the summary of a batch at a visit; it is durable after the commit that refers to it."""
        self._require_writer()
        self.summaries.put(batch, visit, arrays, meta, self._is_committed(batch, visit))

    def get_summary(self, batch: int, visit: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and meta data of a summary; StoreError when it is missing or damaged."""
        return self.summaries.get(batch, visit)

    def part_files(self) -> PartFiles:
        """Files of what is too large to be in each checkpoint that refers to it."""
        return self._parts.files

    def forget_parts(self, parts: Iterable[Part]) -> None:
        """Nothing: they are removed once no checkpoint refers to them."""

    # -- checkpoints --------------------------------------------------------------------------------------------
    def commit(
        self,
        state: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        history: list[dict[str, Any]],
        summaries: Iterable[tuple[int, int]],
        parts: Iterable[Part] = (),
    ) -> None:
        """Save a checkpoint; when this returns it is on the disk, and older summaries are removed.

        Parameters are those of :meth:`prepare`, errors those of both :meth:`prepare` and :meth:`write`.
        """
        self.write(self.prepare(state, arrays, history, summaries, parts))

    def prepare(
        self,
        state: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        history: list[dict[str, Any]],
        summaries: Iterable[tuple[int, int]],
        parts: Iterable[Part] = (),
        constant: Callable[[str], bool] = nothing,
    ) -> Prepared:
        """A checkpoint as it is now, for :meth:`write`: what it was made from may change in the meantime.

        Parameters
        ----------
        state
            JSON-able; tuples come back as lists.
        arrays
            Named arrays.
        history
            Rows added since the last commit, JSON-able mappings.
        summaries
            Batch and visit of every summary that this checkpoint refers to; they must have been put.
        parts
            Files that the state refers to, put into :meth:`part_files` before; those that no checkpoint refers to any
            more are removed.
        constant
            Which of the names are of arrays that nobody changes any more: they are not copied.

        Raises
        ------
        StoreError
            A summary is missing, or this directory's checkpoints were not loaded.
        """
        self._require_writer()
        if self._must_load:
            raise StoreError(f"{self.path} holds checkpoints; call load() before commit(), to go on from the newest")
        # A number is never used twice, so that a failed commit cannot leave half of its files to the next.
        self._number += 1
        listing = self._listing(summaries)
        rows = "".join(dump_json(row) + "\n" for row in history).encode()
        # text and copies are made now, because what is in the state may change; packing takes ten times as long
        copies = {name: array if constant(name) else np.array(array) for name, array in arrays.items()}
        return Prepared(self._number, dump_json(dict(state)), {**copies, _LISTING: listing}, rows, tuple(parts))

    def write(self, prepared: Prepared) -> None:
        """Put what was prepared on the disk, and remove older summaries; one after the other, in any thread.

        Raises
        ------
        StoreError
            The disk is full or a file cannot be written (named); the previous checkpoint stays loadable.
        """
        number, listing, packed = prepared.number, prepared.arrays[_LISTING], pack(prepared.arrays)
        base = self._base(number)
        sync_files([*self._new_files(listing), *self._parts.new(prepared.parts)])
        length, crc = self._append_history(prepared.history)
        write_atomic(base.with_suffix(".npz"), packed, sync=True)
        content = {
            "format": CHECKPOINT_FORMAT,
            "version": VERSION,
            "number": number,
            "arrays": {"bytes": len(packed), "crc32": crc_of_packed(packed)},
            "history": {"bytes": length, "crc32": crc},
            "parts": [[part.name, part.size, part.crc] for part in prepared.parts],
            "state": json.loads(prepared.state),
        }
        sync_directory(base.parent)
        write_atomic(base.with_suffix(".json"), seal(content), sync=True)  # from here on this is the newest
        sync_directory(base.parent)
        previous, checkpoint = self._last, Checkpoint({}, {}, [], number, listing[:, :2])
        self._last = Loaded(checkpoint, listing, length, crc, prepared.parts)
        self._sweep([c for c in (previous, self._last) if c is not None])

    def load(self) -> Checkpoint | None:
        """The newest whole checkpoint, or None when nothing was committed yet.

        A damaged one is passed over for the one before, with a warning that names the file.

        Raises
        ------
        StoreError
            There are checkpoints but none is whole, or they were written by a newer version of this package.
        """
        loaded = self._load()
        self._must_load = False
        self._last = loaded
        if self._lock is not None:
            self._parts.begin(part for number in _numbers(self.path) for part in _parts_of(self._base(number)))
        return None if loaded is None else loaded.checkpoint

    def _load(self) -> Loaded | None:
        for _ in range(READ_TRIES):
            numbers = sorted(_numbers(self.path), reverse=True)
            problems: list[str] = []
            for number in numbers:
                try:
                    loaded = self._read(number)
                except DamagedError as error:
                    problems.append(str(error))
                    continue
                for problem in problems if self._is_newest(numbers[0]) else ():
                    warnings.warn(f"{problem}; going on from checkpoint {number}, the one before", stacklevel=3)
                return loaded
            # While this process read, another may have committed twice and removed what was read.
            if self._is_newest(max(numbers, default=0)):
                break
        if not problems:
            return None
        raise StoreError(
            f"no checkpoint in {self.path} is whole: {'; '.join(problems)}. "
            "Put the files back from a copy, or start the run again in another directory"
        )

    def _is_newest(self, number: int) -> bool:
        return max(_numbers(self.path), default=0) == number

    def _base(self, number: int) -> Path:
        return self.path / "checkpoints" / f"{number:08d}"

    def _read(self, number: int) -> Loaded:
        base = self._base(number)
        content = unseal(base.with_suffix(".json"), CHECKPOINT_FORMAT, VERSION)
        packed = read_bytes(base.with_suffix(".npz"))
        expected = content["arrays"]
        if (len(packed), zlib.crc32(packed)) != (expected["bytes"], expected["crc32"]):
            raise DamagedError(f"{base.with_suffix('.npz')} is damaged (its checksum does not fit)")
        arrays, _ = unpack(packed, base.with_suffix(".npz"))
        listing = arrays.pop(_LISTING)
        rows = _read_history(self.path, content["history"])
        for batch, visit, size in listing.tolist():
            if self.summaries.size(batch, visit) != size:
                raise DamagedError(f"{self.summaries.path(batch, visit)} is damaged (it should have {size} bytes)")
        parts = _parts(content)
        for part in parts:
            self._parts.files.read(part)
        checkpoint = Checkpoint(content["state"], arrays, rows, number, listing[:, :2])
        return Loaded(checkpoint, listing, content["history"]["bytes"], content["history"]["crc32"], parts)

    # -- parts of a commit --------------------------------------------------------------------------------------
    def _listing(self, summaries: Iterable[tuple[int, int]]) -> np.ndarray:
        try:
            rows = [(int(b), int(v), self.summaries.size(int(b), int(v))) for b, v in summaries]
        except DamagedError as error:
            raise StoreError(f"a checkpoint must not refer to a summary that was not put: {error}") from error
        return np.array(sorted(rows), np.int64).reshape(-1, 3)

    def _is_committed(self, batch: int, visit: int) -> bool:
        if self._last is None:
            return False
        codes = _codes(self._last.listing)  # sorted, as the listing is
        place = int(np.searchsorted(codes, (batch << _VISIT_BITS) + visit))
        return place < len(codes) and int(codes[place]) == (batch << _VISIT_BITS) + visit

    def _new_files(self, listing: np.ndarray) -> list[Path]:
        """Files that no earlier checkpoint made durable."""
        known = set() if self._last is None else set(_codes(self._last.listing).tolist())
        rows = listing[:, :2].tolist()
        return [self.summaries.path(b, v) for (b, v), c in zip(rows, _codes(listing).tolist()) if c not in known]

    def _append_history(self, data: bytes) -> tuple[int, int]:
        """Cut what does not belong to the last checkpoint, append; new length and CRC-32 of the whole file."""
        length, crc = (0, 0) if self._last is None else (self._last.history_bytes, self._last.history_crc)
        path = self.path / "history.jsonl"
        try:
            with open(path, "ab") as file:
                file.truncate(length)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot("write", path, error) from error
        if length == 0:
            sync_directory(self.path)
        return length + len(data), zlib.crc32(data, crc)

    def _sweep(self, kept: list[Loaded]) -> None:
        """Remove other checkpoints, and summaries older than those that the kept ones refer to.

        A visit that is newer than any that was committed stays: a worker may have written it for the next commit.
        """
        numbers = {c.checkpoint.number for c in kept}
        old = [self._base(n) for n in _numbers(self.path) if n not in numbers]
        remove(p.with_suffix(".json") for p in old)
        arrays = [p for p in (self.path / "checkpoints").glob("*.npz") if p.stem.isdigit()]
        remove(p for p in arrays if int(p.stem) not in numbers)
        needed = {code for c in kept for code in _codes(c.listing).tolist()}
        newest = {b: v for b, v, _ in kept[-1].listing.tolist()}
        keys = self.summaries.keys()
        unneeded = [(b, v) for b, v in keys if v < newest.get(b, -1) and (b << _VISIT_BITS) + v not in needed]
        remove(self.summaries.path(b, v) for b, v in unneeded)
        self._parts.only(part for c in kept for part in c.parts)

    def _require_writer(self) -> None:
        if self._lock is None:
            raise StoreError(f"{self.path} was opened for reading or closed; call RunStore.open() to write")


_LISTING = "/summaries"  # an array of the user may have any name, but none of theirs begins with a slash
_VISIT_BITS = 32


def is_within_reach(path: Path, token: int) -> bool:
    """Whether the run directory that a process knows under ``path``, and ``token`` of, can be written here too."""
    try:
        return zlib.crc32((path / "RUN.json").read_bytes()) == token and os.access(path, os.W_OK)
    except OSError:
        return False


def read_history(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Rows of a run's history up to its newest whole checkpoint; the run may be going on."""
    checkpoint = RunStore.view(path).load()
    return [] if checkpoint is None else checkpoint.history


def _codes(listing: np.ndarray) -> np.ndarray:
    return (listing[:, 0] << _VISIT_BITS) + listing[:, 1]


def _parts(content: Mapping[str, Any]) -> tuple[Part, ...]:
    return tuple(Part(*part) for part in content.get("parts", ()))  # older runs have none


def _parts_of(base: Path) -> tuple[Part, ...]:
    """Parts of a checkpoint; none where it is damaged: then nobody can read it."""
    try:
        return _parts(unseal(base.with_suffix(".json"), CHECKPOINT_FORMAT, VERSION))
    except DamagedError:
        return ()


def _numbers(path: Path) -> list[int]:
    folder = path / "checkpoints"
    if not folder.exists():
        return []
    return [int(p[:-5]) for p in os.listdir(folder) if p.endswith(".json") and p[:-5].isdigit()]


def _local(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        raise StoreError(
            f"{text} is a URL: a run directory needs locks and atomic renames, so a local or shared file system. "
            "Pass such a path as store=; data may be URLs"
        )
    return Path(text).expanduser()


def _require_new(folder: Path) -> None:
    try:
        found = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise StoreError(f"{folder} is a file; a run directory must be new or an empty directory") from error
    except OSError as error:
        raise cannot("read", folder, error) from error
    if "RUN.json" in found:
        raise StoreError(
            f"{folder} already holds a run; pass resume=True to go on with it, or choose another directory"
        )
    # A creation that was killed leaves no more than these.
    foreign = [n for n in found if n not in ("LOCK", "checkpoints") and not n.startswith(TEMPORARY)]
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise StoreError(f"{folder} is not empty ({shown}); choose a new directory for the run")


def _read_settings(folder: Path) -> dict[str, Any]:
    path = folder / "RUN.json"
    if not path.exists():
        raise StoreError(f"{folder} holds no run; start one with train(..., store={str(folder)!r}), without resume")
    try:
        return unseal(path, RUN_FORMAT, VERSION)["settings"]
    except DamagedError as error:
        raise StoreError(f"{error}; put it back from a copy, or start the run again in another directory") from error


def _read_history(folder: Path, expected: Mapping[str, int]) -> list[dict[str, Any]]:
    path, length = folder / "history.jsonl", expected["bytes"]
    if length == 0:
        return []
    try:
        with open(path, "rb") as file:
            data = file.read(length)
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror})") from error
    if len(data) != length or zlib.crc32(data) != expected["crc32"]:
        raise DamagedError(f"{path} is damaged (its first {length} bytes do not fit their checksum)")
    return [json.loads(line) for line in data.decode().splitlines()]
