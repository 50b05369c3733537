"""The run directory of one run, and commits to it while the run goes on.

A checkpoint is its arrays, then its head, whose appearance is the commit.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from bnp_dask._version import __version__
from bnp_dask.core import Location, Whole
from bnp_dask.core.code import Code, code_here
from bnp_dask.errors import StoreError, warn
from bnp_dask.inputs import POSTERIOR_NAME, local_path
from bnp_dask.store.checkpoint import (
    NO_RECEIPT,
    Checkpoint,
    Committed,
    CommittedParts,
    Listing,
    Part,
    PartFiles,
    Prepared,
    Receipt,
    StoredRows,
    SummaryFiles,
    checkpoint_numbers,
    keys_of,
    parts_in,
    remove_checkpoints,
    remove_summaries,
)
from bnp_dask.store.files import (
    append,
    check_extent,
    crc_of_packed,
    dump_json,
    pack,
    require_fields,
    seal,
    unpack,
    unseal,
)
from bnp_dask.store.place import (
    TEMPORARY,
    DamagedError,
    Extent,
    ExtentContent,
    Key,
    Lock,
    cannot,
    mapped,
    place_of,
    replacing,
    require_known,
)

# -- Reach of a run directory: every process decides for itself, each time, whether it can use it -----------------
# The process that writes a run leaves a number in the file ``SESSION``, a new one whenever it opens the directory. A
# process that finds that number under the same path sees the same directory now, and not a copy of it, an older state
# of it, or another directory of that name.


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


# -- The names in a run directory, and whether a directory may become one -----------------------------------------


RUN_FORMAT = "bnp-dask run"
CHECKPOINT_FORMAT = "bnp-dask checkpoint"
VERSION = 3


class RunContent(TypedDict):
    """Fields of the description of a run."""

    software: str
    created: str
    settings: dict[str, Any]


RUN_NAME = "RUN.json"
MANIFEST_NAME = "manifest"
JOB_NAME = "job.yaml"
"""The job file of a run, if it has one."""

_OWN = ("LOCK", "lock", SESSION_NAME, "checkpoints", MANIFEST_NAME, DRAFTS_NAME, POSTED_NAME, JOB_NAME)
"""Names that may be in a run directory before it is a run."""


def may_hold_runs(path: str | os.PathLike[str]) -> bool:
    """Whether a run may lie at a path or URL; data and posteriors may lie at others."""
    try:
        run_folder(path)
    except StoreError:
        return False
    return True


def is_run(folder: Path | Key) -> bool:
    """Whether a directory holds a run."""
    return place_of(folder).exists(folder / RUN_NAME)


def holds_run(path: str | os.PathLike[str]) -> bool:
    """Whether a run is seen at a path or URL; False also without permission to look, as beside a public posterior."""
    try:
        return is_run(run_folder(path))
    except StoreError:
        return False


def has_begun(folder: Path | Key) -> bool:
    """Whether a directory holds a run with a checkpoint beyond its start, or with one that cannot be read."""
    if not is_run(folder):
        return False
    for number in checkpoint_numbers(folder):
        try:
            head = unseal(checkpoint_base(folder, number).with_suffix(".json"), CHECKPOINT_FORMAT, VERSION)
        except (DamagedError, StoreError):
            return True
        if head.get("begun", True):
            return True
    return False


def checkpoint_base(folder: Path | Key, number: int) -> Path | Key:
    """Files of a checkpoint, without suffix."""
    return folder / "checkpoints" / f"{number:08d}"


def run_folder(path: str | os.PathLike[str]) -> Path | Key:
    """A run directory as a path, or as a key of an object store; StoreError for URLs that cannot hold runs."""
    text = os.fspath(path)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        protocol, _, rest = text.partition("://")
        key = Key(f"{protocol}://{rest.rstrip('/')}")
        require_known(key)
        return key
    return local_path(text)


def posterior_place(path: str | os.PathLike[str]) -> str:
    """Place of the posterior of a run directory; any other path is returned unchanged."""
    text = os.fspath(path)
    if "://" in text and not holds_run(text):
        return text
    inside = run_folder(text) / POSTERIOR_NAME
    return str(inside) if place_of(inside).exists(inside) else text


def read_note(path: str | os.PathLike[str], name: str) -> bytes | None:
    """Content of a file that is kept beside a run; None if there is no file, or no run."""
    return note_in(run_folder(path), name) if holds_run(path) else None


def note_in(folder: Path | Key, name: str) -> bytes | None:
    """Content of a file that is kept in a run directory; None if there is none."""
    file = folder / name
    return place_of(file).read(file) if place_of(file).exists(file) else None


def require_new(folder: Path | Key) -> None:
    """StoreError unless a run may be started in a directory."""
    try:
        found = sorted(place_of(folder).names(folder))
    except NotADirectoryError as error:
        raise StoreError(f"{folder} is a file; a run directory must be new or an empty directory") from error
    except OSError as error:
        raise cannot("read", folder, error) from error
    if RUN_NAME in found:
        if not has_begun(folder):
            return
        raise StoreError(
            f"{folder} already holds a run; pass resume=True to go on with it, or choose another directory"
        )
    # A creation that was killed leaves no more than these.
    foreign = [n for n in found if n not in _OWN and not n.startswith(TEMPORARY)]
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise StoreError(f"{folder} is not empty ({shown}); choose a new directory for the run")


def read_settings(folder: Path | Key) -> dict[str, Any]:
    """The settings that a run was started with; StoreError if there are none, or they are damaged."""
    found: dict[str, Any] = read_about(folder)["settings"]
    return found


def read_about(folder: Path | Key) -> dict[str, Any]:
    """Description of the run in a run directory: ``settings``, ``created``, ``software``.

    Raises
    ------
    StoreError
        There is no run, or its description is damaged.
    """
    path = folder / RUN_NAME
    if not is_run(folder):
        hint = Location.of(str(folder)).nearest() if isinstance(folder, Path) and not folder.exists() else ""
        raise StoreError(
            f"{folder} holds no run; start one with train(..., store={str(folder)!r}), without resume{hint}"
        )
    try:
        return unseal(path, RUN_FORMAT, VERSION, RunContent)
    except DamagedError as error:
        raise StoreError(f"{error}; put it back from a copy, or start the run again in another directory") from error


# -- The run directory of one run, and commits to it while the run goes on ----------------------------------------


# -- files of a checkpoint, and numbers that are barred ------------------------------------------------------------
class HeadContent(TypedDict):
    """Fields of the head of a checkpoint; the writer of the state declares those of ``state``."""

    state: dict[str, Any]
    arrays: ExtentContent
    history: ExtentContent
    software: NotRequired[str]
    parts: NotRequired[list[tuple[str, Whole, Whole]]]
    begun: NotRequired[bool]
    code: NotRequired[list[dict[str, Any]]]


LISTING = "/summaries"  # an array of the user may have any name, but none of theirs begins with a slash

_FENCE = "fence"
"""Mark in the head of a number that was taken without a checkpoint, so that no other process can commit under it."""


class FenceError(DamagedError):
    """The number of a checkpoint was taken, and no checkpoint was made."""


def put_checkpoint(path: Path | Key, prepared: Prepared, before: Extent, code: Sequence[Code]) -> Extent:
    """Put all files of a checkpoint, the head last; return the new extent of the history.

    Parameters
    ----------
    path
        The run directory.
    prepared
        The checkpoint; its summaries and parts are durable.
    before
        Extent of the history before.
    code
        Code that made the run, version after version.

    Raises
    ------
    StoreError
        A file cannot be written, or another process has made a checkpoint of this number.
    """
    place, base, packed = place_of(path), checkpoint_base(path, prepared.number), pack(prepared.arrays)
    history = append(path / "history.jsonl", prepared.history, before)
    _create(base.with_suffix(".npz"), packed)
    content = {
        "format": CHECKPOINT_FORMAT,
        "version": VERSION,
        "software": __version__,
        "code": [one.to_json() for one in code],
        "number": prepared.number,
        "begun": prepared.begun,
        "arrays": Extent(len(packed), crc_of_packed(packed)).to_json(),
        "history": history.to_json(),
        "parts": [[part.name, part.size, part.crc] for part in prepared.parts],
        "state": json.loads(prepared.state),
    }
    place.sync_folder(base.parent)
    _create(base.with_suffix(".json"), seal(content))  # from here on this is the newest
    place.sync_folder(base.parent)
    return history


def _create(file: Path | Key, data: bytes) -> None:
    if not place_of(file).create(file, data):
        raise StoreError(
            f"{file} is there already: another process has taken over this run, or its store did not list the file "
            "before. Nothing was replaced; let the other process go on, or open the run again"
        )


def claim_next(path: Path | Key, session: str) -> int:
    """Take the number of the next checkpoint, so that a process that wrote before cannot commit it."""
    while True:
        number = max(checkpoint_numbers(path), default=0) + 1
        head = {"format": CHECKPOINT_FORMAT, "version": VERSION, "begun": False, _FENCE: session}
        if place_of(path).create(checkpoint_base(path, number).with_suffix(".json"), seal(head)):
            return number


def head_of(path: Path | Key, number: int) -> dict[str, Any]:
    """Head of a checkpoint; DamagedError if there is none or it is damaged, StoreError if it holds no state."""
    content = unseal(checkpoint_base(path, number).with_suffix(".json"), CHECKPOINT_FORMAT, VERSION)
    if _FENCE in content:
        raise FenceError(f"checkpoint {number} of {path} was never made")
    require_fields(content, HeadContent, checkpoint_base(path, number).with_suffix(".json"))
    return content


def read_checkpoint(path: Path | Key, number: int) -> Checkpoint:
    """A checkpoint of a run directory by its number, without its parts; DamagedError if one of its files is damaged."""
    content, arrays = _read(path, number)
    listing = _listing_in(path, number, arrays)
    rows = StoredRows(path / "history.jsonl", Extent.from_json(content["history"]))
    check_extent(rows.path, rows.extent)
    return Checkpoint(
        content["state"],
        arrays,
        rows,
        number,
        listing,
        parts=parts_in(content),
        begun=content.get("begun", True),
        code=_code_of(content),
    )


def _code_of(content: Mapping[str, Any]) -> tuple[Code, ...]:
    """Code versions in the head of a checkpoint; earlier versions noted their number."""
    try:
        noted = content.get("code") or [{"version": content["software"]}]
        return tuple(Code.from_json(one) for one in noted)
    except (AttributeError, KeyError, TypeError, ValueError):
        return ()


def committed(path: Path | Key, number: int) -> Committed:
    """References of a checkpoint; DamagedError if it is damaged.  Neither history nor parts are read."""
    content, arrays = _read(path, number)
    extent = Extent.from_json(content["history"])
    return Committed(number, _listing_in(path, number, arrays), extent, parts_in(content))


def _listing_in(path: Path | Key, number: int, arrays: dict[str, np.ndarray]) -> Listing:
    """The listing among the arrays of a checkpoint, which is taken out of these."""
    if LISTING not in arrays:
        raise DamagedError(f"{checkpoint_base(path, number).with_suffix('.npz')} is damaged (it lists no summaries)")
    try:
        return Listing.of_saved(arrays.pop(LISTING))
    except DamagedError as error:
        raise DamagedError(f"{checkpoint_base(path, number).with_suffix('.npz')} is damaged ({error})") from error


def _read(path: Path | Key, number: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Head and arrays of a checkpoint."""
    base, content = checkpoint_base(path, number), head_of(path, number)
    packed = place_of(path).read(base.with_suffix(".npz"))
    if Extent(len(packed), zlib.crc32(packed)) != Extent.from_json(content["arrays"]):
        raise DamagedError(f"{base.with_suffix('.npz')} is damaged (its checksum does not fit)")
    return content, unpack(packed, base.with_suffix(".npz"))[0]


def parts_of(path: Path | Key, number: int) -> tuple[Part, ...]:
    """Parts of a checkpoint; none if it is damaged, because then it cannot be read."""
    try:
        return parts_in(head_of(path, number))
    except DamagedError:
        return ()


# -- the run -------------------------------------------------------------------------------------------------------
logger = logging.getLogger("bnp_dask.store")

READ_TRIES = 10

MOST_LOOSE = 256
"""Number of summaries in files of their own from which on they are packed: as many as a folder holds."""

NO_NOTES: Mapping[str, bytes] = {}


def nothing(name: str) -> bool:
    """Select no array."""
    return False


class RunStore:
    """A run on disk, or on an object store; made by :meth:`create`, :meth:`open` or :meth:`view`.

    One process writes at a time; others may read meanwhile.  After a kill at any moment :meth:`load` returns a whole
    checkpoint: the newest, or the one before it.
    """

    def __init__(self, path: Path | Key, settings: dict[str, Any], lock: Lock | None) -> None:
        self.path = path
        self._place = place_of(path)
        self.settings = settings
        self.summaries = SummaryFiles(path.absolute() / "summaries")  # workers have other working directories
        self.manifests = path / MANIFEST_NAME
        self._parts = CommittedParts(PartFiles(path / "parts"))
        self._lock = lock
        self._session = None if lock is None else begin_session(path)
        if lock is not None:
            self._place.remove_tree(path / POSTED_NAME)  # a run that was killed leaves some
        newest = max(checkpoint_numbers(path), default=0)
        self._number = newest if lock is None else lock.fence(partial(claim_next, path, str(self._session)), newest)
        # The checkpoint that the next commit builds upon, and the one before it: None before the first one.
        self._last: Committed | None = None
        self._previous: Committed | None = None
        self._pinned: list[Committed] = []
        self._unpinned: list[Committed] = []
        self._must_load = self._number > 0
        self._code: tuple[Code, ...] = ()

    # -- opening ------------------------------------------------------------------------------------------------
    @staticmethod
    def exists(path: str | os.PathLike[str]) -> bool:
        """Whether a directory holds a run."""
        return is_run(run_folder(path))

    @staticmethod
    def has_begun(path: str | os.PathLike[str]) -> bool:
        """Whether a directory holds a run with a checkpoint beyond its start, or with one that cannot be read."""
        return has_begun(run_folder(path))

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], settings: dict[str, Any], notes: Mapping[str, bytes] = NO_NOTES
    ) -> RunStore:
        """Start a run in a new or empty directory, or in place of a run that has not begun.

        Parameters
        ----------
        path
            A directory on a local or shared file system, or a URL of an object store.
        settings
            JSON-able; kept for :meth:`open`.
        notes
            Files to keep beside the run, by name.  They appear together with the run, in one step.

        Raises
        ------
        StoreError
            The directory holds a run or other files, another process writes to it, or it cannot be written.
        """
        folder = run_folder(path)
        require_new(folder)
        place = place_of(folder)
        place.make_folder(folder)
        place.require_own(folder)
        lock = place.lock(folder)
        try:
            require_new(folder)  # another process may have been faster
            created = datetime.now(UTC).isoformat(timespec="seconds")
            content = {"format": RUN_FORMAT, "version": VERSION, "software": __version__, "created": created}
            # a run that has not begun may have a checkpoint of its start, which does not belong to this run
            remove_checkpoints(folder, ())
            place.remove_tree(folder / "summaries")
            if JOB_NAME not in notes:
                place.remove([folder / JOB_NAME])
            place.make_folder(folder / "checkpoints")
            for name, data in notes.items():
                place.write(folder / name, data)
            lock.require()
            place.write(folder / RUN_NAME, seal({**content, "settings": settings}))
            place.sync_folder(folder)
            place.sync_folder(folder.parent)
            return cls(folder, json.loads(dump_json(settings)), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunStore:
        """Go on writing to a run; StoreError if there is none, or another process writes to it."""
        folder = run_folder(path)
        read_settings(folder)
        place_of(folder).require_own(folder)
        lock = place_of(folder).lock(folder)
        try:
            settings = read_settings(folder)  # another process may have replaced it
            place_of(folder).remove_temporary(folder)
            return cls(folder, settings, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def view(cls, path: str | os.PathLike[str]) -> RunStore:
        """Read a run, which another process may be writing; takes no lock and cannot write."""
        folder = run_folder(path)
        return cls(folder, read_settings(folder), None)

    def close(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            self._place.remove_tree(self.path / POSTED_NAME)
            self._lock.release()
            self._lock = None

    def require_lock(self) -> None:
        """StoreError if another process may have taken over; to be called before something is replaced."""
        self._held().require()

    def note(self, name: str, data: bytes) -> None:
        """Keep a file beside the run, in place of an older one of that name."""
        self.require_lock()
        file = self.path / name
        if not self._place.exists(file) or self._place.read(file) != data:
            self._place.write(file, data)

    # -- summaries ----------------------------------------------------------------------------------------------
    def put_summary(
        self, batch: int, visit: int, arrays: Mapping[str, np.ndarray], meta: dict[str, Any] | None = None
    ) -> Receipt:
        """Keep the summary of a batch at a visit; it is durable after the commit that refers to it."""
        self._require_writer()
        return self.summaries.put(batch, visit, arrays, meta)

    def get_summary(
        self, batch: int, visit: int, receipt: Receipt = NO_RECEIPT
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and meta data of a summary; StoreError if it is missing, damaged, or does not match the receipt."""
        return self.summaries.get(batch, visit, receipt, late=True)

    @property
    def shared(self) -> SharedFiles:
        """The summaries as processes elsewhere may reach them."""
        self._require_writer()
        assert self._session is not None
        return SharedFiles(self.path.absolute(), self._session, self.summaries)

    @property
    def drafts(self) -> Drafts:
        """Drafts that tasks keep before the run has started."""
        return Drafts(self.shared.path, self.shared.session)

    def board(self) -> PostedFiles | None:
        """Files that this process may leave for tasks; None on an object store, which maps no files into memory."""
        path, session = self.shared.path, self.shared.session
        return None if isinstance(path, Key) else PostedFiles(path, session)

    def forget_drafts(self) -> None:
        """Remove the drafts: the run has started and needs them no more."""
        self._place.remove_tree(self.path / DRAFTS_NAME)

    def part_files(self) -> PartFiles:
        """Files of parts that are too large to be repeated in each checkpoint that refers to them."""
        return self._parts.files

    def forget_parts(self, parts: Iterable[Part]) -> None:
        """No-op: parts are removed once no checkpoint refers to them."""

    # -- checkpoints --------------------------------------------------------------------------------------------
    def commit(
        self,
        state: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        history: Sequence[Mapping[str, Any]],
        listing: Listing,
        parts: Iterable[Part] = (),
    ) -> None:
        """Save a checkpoint; on return it is on the disk, and older summaries are removed.

        Parameters as of :meth:`prepare`, errors as of :meth:`prepare` and :meth:`write`.
        """
        self.write(self.prepare(state, arrays, history, listing, parts))

    def prepare(
        self,
        state: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        history: Sequence[Mapping[str, Any]],
        listing: Listing,
        parts: Iterable[Part] = (),
        constant: Callable[[str], bool] = nothing,
        begun: bool = True,
    ) -> Prepared:
        """A checkpoint of the present state, for :meth:`write`; its sources may change afterwards.

        Parameters
        ----------
        state
            JSON-able; tuples come back as lists.
        arrays
            Named arrays.
        history
            Rows added since the last commit, JSON-able mappings.
        listing
            The summaries that this checkpoint refers to; they must have been put.
        parts
            Files that the state refers to, put into :meth:`part_files` before; files without a checkpoint that refers
            to them are removed.
        constant
            Which names are of arrays that never change any more: they are not copied.
        begun
            Whether any work was done since the start: a run that has not begun may be replaced by another.

        Raises
        ------
        StoreError
            This directory's checkpoints were not loaded.
        """
        self._require_writer()
        if self._must_load:
            raise StoreError(f"{self.path} holds checkpoints; call load() before commit(), to go on from the newest")
        rows = "".join(dump_json(row) + "\n" for row in history).encode()
        # text and copies are made now, because the state may change; packing takes ten times as long
        copies = {name: array if constant(name) else np.array(array) for name, array in arrays.items()}
        arrays, text = {**copies, LISTING: listing.rows}, dump_json(dict(state))
        # A number is never used twice, so that a failed commit cannot leave half of its files to the next.
        self._number += 1
        return Prepared(self._number, text, arrays, rows, listing, tuple(parts), begun)

    def write(self, prepared: Prepared) -> None:
        """Write a prepared checkpoint to the disk, and remove older summaries; one call at a time, in any thread.

        Raises
        ------
        StoreError
            The disk is full or a file cannot be written (named), or a summary is missing; the previous checkpoint
            stays loadable.
        """
        with self._held().committing():
            self._sync_summaries(prepared.listing)
            self._place.sync(self._parts.new(prepared.parts))
            here = code_here()
            self._code = self._code if self._code[-1:] == (here,) else (*self._code, here)
            history = put_checkpoint(self.path, prepared, self._history, self._code)
        dropped, self._previous = self._previous, self._last
        self._last = Committed(prepared.number, prepared.listing, history, prepared.parts)
        newest = {c.number: c for c in (*self._pinned, self._previous, self._last) if c is not None}
        kept = [newest[number] for number in sorted(newest)]
        if remove_checkpoints(self.path, newest) > prepared.number:
            raise StoreError(
                f"{self.path} holds checkpoints that are newer than {prepared.number}, the one that was made now: the "
                "store did not list them before, or another process has taken over this run. Nothing was replaced; "
                "open it again to go on from the newest"
            )
        remove_summaries(self.summaries, kept, self._unpinned[0] if self._unpinned else dropped)
        self._unpinned = []
        self._parts.only(part for c in kept for part in c.parts)

    def pack(self, purges: bool = False) -> None:
        """Join files of summaries if there are many, so that their number stays small however long the run grows.

        To be called after a commit.  Summaries without a checkpoint leave packs when these are written anew, with
        ``purges`` at once.

        Raises
        ------
        StoreError
            The disk is full, or a file cannot be written or read; nothing is lost.
        """
        self.require_lock()
        kept = [c.listing for c in (*self._pinned, self._previous, self._last) if c is not None]
        needed = np.unique(np.concatenate([np.zeros(0, np.int64), *(listing.keys for listing in kept)]))

        def alive(keys: np.ndarray) -> np.ndarray:
            return np.isin(keys_of(keys), needed)

        packs = self.summaries.packs
        try:
            if purges:
                packs.purge(alive)
            if self._last is None:
                return
            newest = self._last.listing
            is_loose = ~self._packed(newest) & (newest.receipts[:, 1] >= 0)
            if np.count_nonzero(is_loose) < MOST_LOOSE:
                return
            loose = list(newest.entries(is_loose))
            packs.join((((b, v, r.crc32), partial(self.summaries.read, b, v, r)) for b, v, r in loose), alive)
        except DamagedError as error:
            raise StoreError(f"cannot pack summaries: {error}; the run is as it was") from error
        self.require_lock()
        self._place.remove(self.summaries.path(*entry) for entry in loose)

    def load(self, refused: Mapping[int, str] | None = None, fields: Any = dict[str, Any]) -> Checkpoint | None:
        """The newest whole checkpoint, or None if nothing was committed yet.

        A damaged one is skipped in favour of the previous one, with a warning that names the file.  Summaries are not
        read here: every reader of one compares it with the checkpoint's listing.

        Parameters
        ----------
        refused
            Numbers of checkpoints that must not be taken for whole, and why.
        fields
            Fields that a whole state has, see :func:`~bnp_dask.core.schema.fault`.

        Raises
        ------
        StoreError
            There are checkpoints but none is whole, or they were written by a newer version of this package.
        """
        found = self._load(refused or {}, fields)
        self._must_load = False
        self._last = None if found is None else Committed(found.number, found.listing, found.rows.extent, found.parts)
        self._code = () if found is None else found.code
        if self._lock is not None:
            self._tell_of_other_code()
            self._parts.begin(part for n in checkpoint_numbers(self.path) for part in parts_of(self.path, n))
        return found

    def _tell_of_other_code(self) -> None:
        """Log the consequences if other code than this process's wrote the run last."""
        other = None if not self._code else code_here().difference(self._code[-1])
        if other is not None:
            logger.warning(
                "%s was last written by %s: it goes on from there exactly, but later results may have "
                "other last bits than there; for the same bits go on with that version",
                self.path,
                other,
            )

    def _load(self, refused: Mapping[int, str], fields: Any) -> Checkpoint | None:
        for _ in range(READ_TRIES):
            numbers = sorted(checkpoint_numbers(self.path), reverse=True)
            problems: list[str] = []
            for number in numbers:
                try:
                    if number in refused:
                        raise DamagedError(refused[number])
                    found = self._with(self._read(number), fields)
                except FenceError:
                    continue
                except DamagedError as error:
                    problems.append(str(error))
                    continue
                for problem in problems if self._is_newest(numbers[0]) else ():
                    warn(f"{problem}; going on from checkpoint {number}, the one before")
                return found
            # While this process read, another may have committed twice and removed these files.
            if self._is_newest(max(numbers, default=0)):
                break
        if not problems:
            return None
        raise StoreError(
            f"no checkpoint in {self.path} is whole: {'; '.join(problems)}. "
            "Put the files back from a copy, or start the run again in another directory"
        )

    def pin(self, kept: Iterable[int], dropped: Iterable[int] = ()) -> None:
        """Choose the checkpoints that commits keep beside the last two, and checkpoints that they no longer keep.

        Numbers of missing or damaged checkpoints are ignored.
        """
        self._pinned = list(self._committed(kept))
        self._unpinned = list(self._committed(dropped))

    def at(self, number: int, fields: Any = dict[str, Any]) -> Checkpoint:
        """A checkpoint by its number, whose state has some ``fields``; StoreError if it is gone or damaged."""
        try:
            return self._with(self._read(number), fields)
        except DamagedError as error:
            raise StoreError(f"checkpoint {number} of {self.path} cannot be used: {error}") from error

    def _committed(self, numbers: Iterable[int]) -> Iterator[Committed]:
        for number in sorted(set(numbers) & set(checkpoint_numbers(self.path))):
            with contextlib.suppress(DamagedError):
                yield committed(self.path, number)

    def _is_newest(self, number: int) -> bool:
        return max(checkpoint_numbers(self.path), default=0) == number

    def _with(self, found: Checkpoint, fields: Any) -> Checkpoint:
        """The checkpoint; DamagedError unless its state has some fields."""
        require_fields(found.state, fields, f"the state of checkpoint {found.number} of {self.path}")
        return found

    def _read(self, number: int) -> Checkpoint:
        found = read_checkpoint(self.path, number)
        for part in found.parts:
            self._parts.files.read(part)
        return found

    @property
    def _history(self) -> Extent:
        return Extent() if self._last is None else self._last.history

    def _sync_summaries(self, listing: Listing) -> None:
        """Wait until new files are on the disk with their folders; earlier checkpoints made the other files durable."""
        new = listing.new_since(None if self._last is None else self._last.listing)
        if new.any():
            new &= ~self._packed(listing)  # these are on the disk already
        if new.any():
            self._place.sync(self.summaries.path(*entry) for entry in listing.entries(new))
            self._place.sync_folder(self.summaries.folder)
            self._place.sync_folder(self.path)

    def _packed(self, listing: Listing) -> np.ndarray:
        """Which summaries of a listing lie in packs, ``(N,)`` bool; StoreError if a pack is damaged."""
        try:
            return np.isin(listing.keys, keys_of(self.summaries.packs.keys()))
        except DamagedError as error:
            raise StoreError(f"{error}; put the file back from a copy") from error

    def _require_writer(self) -> None:
        self._held()

    def _held(self) -> Lock:
        """The lock; StoreError if there is none."""
        if self._lock is None:
            raise StoreError(f"{self.path} was opened for reading or closed; call RunStore.open() to write")
        return self._lock


def read_history(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Rows of a run's history up to its newest whole checkpoint; the run may be going on."""
    checkpoint = RunStore.view(path).load()
    return [] if checkpoint is None else checkpoint.history


class BackgroundCommits:
    """Commits of a run, one after the other, in a thread of its own.

    Waiting for the disk is most of a commit, and workers need not wait for it.  A run that is killed meanwhile goes on
    from the previous checkpoint, as it does when it is killed during a commit.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "bnp-dask-commit")
        self._pending: Future[None] | None = None

    def commit(
        self,
        store: RunStore,
        state: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        history: Sequence[Mapping[str, Any]],
        listing: Listing,
        parts: Iterable[Part] = (),
        constant: Callable[[str], bool] = nothing,
        begun: bool = True,
    ) -> None:
        """As :meth:`RunStore.commit`, without waiting for the disk; StoreError also if the previous commit failed."""
        self.wait()
        prepared = store.prepare(state, arrays, history, listing, parts, constant, begun)
        self._pending = self._pool.submit(store.write, prepared)

    def wait(self) -> None:
        """Wait until everything committed is on the disk; StoreError if it cannot get there."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait until everything committed is on the disk, and take no more commits."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()


# -- Summaries of a run that has no directory ---------------------------------------------------------------------


_Entry = tuple[dict[str, np.ndarray], dict[str, Any]]


class MemoryStore:
    """Holds summaries in memory up to a limit, and further ones in a temporary directory.

    The newest visit of every batch is kept: without a directory there is no older checkpoint to go back to.

    Parameters
    ----------
    max_bytes
        Bytes of arrays held in memory; 256 MB when not given.
    """

    def __init__(self, max_bytes: int = 256_000_000) -> None:
        self._max_bytes = max_bytes
        self._held = 0
        # Batch -> visit -> content, or the receipt of its file if it is on the disk.
        self._entries: dict[int, dict[int, _Entry | Receipt]] = {}
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._session: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of arrays held in memory."""
        return self._held

    def put_summary(
        self, batch: int, visit: int, arrays: Mapping[str, np.ndarray], meta: dict[str, Any] | None = None
    ) -> Receipt:
        """Keep a copy of a summary."""
        dump_json(meta or {})  # refuses data that a run directory would refuse
        visits = self._entries.setdefault(batch, {})
        for known in [v for v in visits if v <= visit]:
            self._drop(batch, known)
        size = sum(np.asarray(a).nbytes for a in arrays.values())
        if self._held + size <= self._max_bytes:
            visits[visit] = (_copies(arrays), dict(meta or {}))
            self._held += size
        else:
            visits[visit] = self._files().put(batch, visit, arrays, meta)
        return NO_RECEIPT

    def get_summary(
        self, batch: int, visit: int, receipt: Receipt = NO_RECEIPT
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """A copy of a summary, and its meta data."""
        visits = self._entries.get(batch, {})
        if visit not in visits:
            raise StoreError(f"no summary of batch {batch} at visit {visit}; this batch has visits {sorted(visits)}")
        entry = visits[visit]
        if isinstance(entry, Receipt):
            return self._files().get(batch, visit, entry)
        return _copies(entry[0]), dict(entry[1])

    def part_files(self) -> PartFiles:
        """Files of larger things."""
        return PartFiles(self._folder() / "parts")

    def forget_parts(self, parts: Iterable[Part]) -> None:
        """Remove unreferenced files."""
        names = [part.name for part in parts]
        if names:
            self.part_files().remove(names)

    def board(self) -> PostedFiles:
        """Files that this process may leave for tasks, in the temporary directory: workers of this machine reach it."""
        folder = self._folder()
        if self._session is None:
            self._session = begin_session(folder)
        return PostedFiles(folder, self._session)

    def commit(
        self,
        state: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        history: Sequence[Mapping[str, Any]],
        listing: Listing,
    ) -> None:
        """Save nothing; forget summaries older than the ``listing``."""
        self.forget((batch, visit) for batch, visit, _ in listing.entries())

    def forget(self, keep: Iterable[tuple[int, int]]) -> None:
        """Forget, for the batches in ``keep``, the visits before the named one."""
        for batch, visit in keep:
            for old in [v for v in self._entries.get(batch, ()) if v < visit]:
                self._drop(batch, old)

    def load(self, refused: Any = None, fields: Any = None) -> None:
        """Return None: there is never a checkpoint."""
        return None

    def close(self) -> None:
        """Forget everything and remove the temporary directory."""
        self._entries.clear()
        self._held = 0
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = self._session = None

    def _drop(self, batch: int, visit: int) -> None:
        visits = self._entries[batch]
        if visit not in visits:
            return
        entry = visits.pop(visit)
        if isinstance(entry, Receipt):
            Path(self._files().path(batch, visit, entry)).unlink(missing_ok=True)
        else:
            self._held -= sum(a.nbytes for a in entry[0].values())

    def _files(self) -> SummaryFiles:
        return SummaryFiles(self._folder() / "summaries")

    def _folder(self) -> Path:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="bnp-dask-", ignore_cleanup_errors=True)
        return Path(self._directory.name)


def _copies(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    # In C order, as a file would give them back: the order of a sum, and so its last bits, depend on the layout.
    return {name: np.array(a, order="C", copy=True) for name, a in arrays.items()}
