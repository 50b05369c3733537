"""Checkpoints: the files they refer to, their content, and the removal of what no checkpoint needs.

A checkpoint refers to the summaries of a :class:`Listing` and to parts, files of arrays of their own.  It is read, is
the base of the next one, and waits to be written.  After a commit, files that only older checkpoints refer to are
removed.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from bnp_dask.core import Whole
from bnp_dask.core.code import Code
from bnp_dask.errors import StoreError
from bnp_dask.inputs import name_in_file
from bnp_dask.store.files import crc_of_packed, json_lines, pack, read_extent, require_fields, unpack
from bnp_dask.store.place import DamagedError, Extent, Key, place_of

# -- Packs: many small files joined into few, each of which is written once and never changed ---------------------
# ::
#
#     packs/1f00c3a2-000256.pack      an index by key (offset and length), then the contents, one after the other
#
# The key of a file in a pack is three whole numbers, such as batch, visit and CRC-32 of a summary.  A pack is whole
# before the files that it replaces are removed, and joined packs are whole before the old ones go.  So every content
# is in some file at any moment, and maybe in two.  A reader that misses a file looks in the packs, and looks again if
# one of these has gone meanwhile.


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
_PACK = re.compile(r"[0-9a-f]{8}-\d+\.pack")

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
        names = [name for name in place_of(self.folder).names(self.folder) if _PACK.fullmatch(name)]
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


# -- Files with the summary of one visit of a batch, each identified by batch, visit and checksum -----------------


BATCHES_PER_FOLDER = 256

UNKNOWN = -1
"""Stands for a length or a checksum that was not recorded."""


@dataclass(frozen=True)
class Receipt:
    """The file of a visit as it was written: its bytes and their CRC-32.

    Both are -1 if nothing was written to a file.
    """

    nbytes: int = UNKNOWN
    crc32: int = UNKNOWN


NO_RECEIPT = Receipt()


class SummaryContent(TypedDict):
    """Fields of a summary, beside its arrays."""

    key: tuple[Whole, Whole]
    meta: dict[str, Any]


_SUMMARY = re.compile(r"(\d+)-(\d+)(?:-([0-9a-f]{8}))?\.npz")


@dataclass(frozen=True)
class SummaryFiles:
    """Summaries under a directory; small and picklable, so that workers can read and write them too.

    The name of a file holds its checksum.  So a summary written late, by a worker that was given up, is another file
    and replaces nothing.

    Parameters
    ----------
    folder
        The directory, made when the first summary is written.
    """

    folder: Path | Key

    def folder_of(self, batch: int) -> Path | Key:
        """Folder with the files of a batch; it holds some hundred files for any number of batches."""
        return self.folder / f"{batch // BATCHES_PER_FOLDER:05d}"

    def path(self, batch: int, visit: int, receipt: Receipt = NO_RECEIPT) -> Path | Key:
        """File of a summary."""
        checksum = "" if receipt.crc32 == UNKNOWN else f"-{receipt.crc32:08x}"
        return self.folder_of(batch) / f"{batch:08d}-{visit:06d}{checksum}.npz"

    def put(
        self, batch: int, visit: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None
    ) -> Receipt:
        """Write a summary, atomically.  Writing the same again changes nothing.

        Parameters
        ----------
        batch, visit
            Key of the summary.
        arrays, meta
            Its content.

        Returns
        -------
        Receipt
            Receipt by which :meth:`get` reads this file and no other.
        """
        if batch < 0 or visit < 0:
            raise StoreError(f"batch {batch}, visit {visit}: both must be 0 or more")
        data = pack(arrays, {"key": [batch, visit], "meta": dict(meta or {})})
        receipt = Receipt(len(data), crc_of_packed(data))
        path = self.path(batch, visit, receipt)
        place_of(path).write_once(path, data)
        return receipt

    def get(
        self, batch: int, visit: int, receipt: Receipt = NO_RECEIPT, late: bool = False
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and meta data of a summary; with ``late`` another machine may have written it just now.

        Raises
        ------
        StoreError
            The file is missing or damaged, or belongs to another batch, visit or run.
        """
        path = self.path(batch, visit, receipt)
        try:
            data = self.read(batch, visit, receipt, late)
            arrays, meta = unpack(data, path)
            require_fields(meta, SummaryContent, path)
            _require_same(path, (batch, visit), receipt, meta, data)
        except DamagedError as error:
            raise StoreError(
                f"the summary of batch {batch} at visit {visit} cannot be used: {error}. "
                "Put the file back from a copy, or remove the newest checkpoint to resume from the one before"
            ) from error
        return arrays, meta["meta"]

    def read(self, batch: int, visit: int, receipt: Receipt = NO_RECEIPT, late: bool = False) -> bytes:
        """Content of a summary, from its own file or from a pack; DamagedError if it is in neither.

        With ``late`` a file that is in neither place yet is waited for.
        """
        path = self.path(batch, visit, receipt)
        try:
            return place_of(path).read(path)
        except DamagedError:
            packed = self.packs.read(batch, visit, None if receipt.crc32 == UNKNOWN else receipt.crc32)
            if packed is not None:
                return packed
            if not late:
                raise
        return place_of(path).read_late(path)

    @property
    def packs(self) -> Packs:
        """Packs of these summaries."""
        return Packs(self.folder)

    def names(self, folder: Path | Key) -> Iterator[tuple[Path | Key, tuple[int, int, int]]]:
        """Files in a folder of summaries, with batch, visit and CRC-32 from their names."""
        for name in place_of(folder).names(folder):
            if (parts := _SUMMARY.fullmatch(name)) is not None:
                yield folder / name, (int(parts[1]), int(parts[2]), int(parts[3], 16) if parts[3] else UNKNOWN)

    def keys(self) -> Iterator[tuple[int, int]]:
        """Batch and visit of every existing summary."""
        yield from ((batch, visit) for batch, visit, _ in self.packs.keys().tolist())
        for name in place_of(self.folder).names(self.folder):
            for _, (batch, visit, _) in self.names(self.folder / name):
                yield batch, visit


def _require_same(
    path: Path | Key, key: tuple[int, int], receipt: Receipt, meta: Mapping[str, Any], data: bytes
) -> None:
    """DamagedError unless a whole file matches the receipt of its writer."""
    found = meta["key"]
    if found != list(key):
        raise DamagedError(f"{path} is damaged (it holds batch and visit {found})")
    crc = crc_of_packed(data)
    if receipt.nbytes not in (UNKNOWN, len(data)) or receipt.crc32 not in (UNKNOWN, crc):
        raise DamagedError(
            f"{path} is damaged (it holds other values than this run put there: {len(data)} bytes with CRC-32 "
            f"{crc:08x}, not {receipt.nbytes} bytes)"
        )


# -- Checkpoints: the files they refer to, their content, and the removal of what no checkpoint needs -------------


@dataclass(frozen=True)
class Part:
    """A file, with the size and checksum that it must have.

    Parameters
    ----------
    name
        Name of the file in its folder.
    size, crc
        Its bytes, and their CRC-32.
    """

    name: str
    size: int
    crc: int

    def __post_init__(self) -> None:
        name_in_file(self.name, "a part of a checkpoint")


@dataclass(frozen=True)
class PartFiles:
    """Parts in a folder, which is made when the first is written."""

    folder: Path | Key

    def path(self, name: str) -> Path | Key:
        """File of a part."""
        return self.folder / name

    def put(self, name: str, arrays: Mapping[str, np.ndarray]) -> Part:
        """Write named arrays; StoreError if the disk is full."""
        data = pack(arrays)
        place_of(self.folder).write_once(self.path(name), data)
        return Part(name, len(data), zlib.crc32(data))

    def read(self, part: Part) -> bytes:
        """Content of a part; DamagedError if it is missing or does not match."""
        data = place_of(self.folder).read(self.path(part.name))
        if (len(data), zlib.crc32(data)) != (part.size, part.crc):
            raise DamagedError(f"{self.path(part.name)} is damaged (its checksum does not fit)")
        return data

    def get(self, part: Part) -> dict[str, np.ndarray]:
        """Arrays of a part; StoreError if it is missing or damaged."""
        try:
            return unpack(self.read(part), self.path(part.name))[0]
        except DamagedError as error:
            raise StoreError(
                f"{error}; put the file back from a copy, or remove the newest checkpoint to resume from the one before"
            ) from error

    def remove(self, names: Iterable[str]) -> None:
        """Remove unreferenced parts."""
        place_of(self.folder).remove(self.path(name) for name in names)


@dataclass
class CommittedParts:
    """The parts in a folder that checkpoints refer to; the others wait for a commit, and are left alone.

    Parameters
    ----------
    files
        The folder.
    names
        Names of the parts that belong to a checkpoint.
    """

    files: PartFiles
    names: set[str] = field(default_factory=set)

    def new(self, parts: Iterable[Part]) -> list[Path | Key]:
        """Files of the parts that no checkpoint has referred to so far."""
        return [self.files.path(part.name) for part in parts if part.name not in self.names]

    def only(self, kept: Iterable[Part]) -> None:
        """Keep these parts; remove parts that checkpoints no longer refer to."""
        names = {part.name for part in kept}
        self.files.remove(self.names - names)
        self.names = names

    def begin(self, kept: Iterable[Part]) -> None:
        """Go on with a run whose checkpoints refer to these parts; remove also parts put without a commit."""
        self.names = set(place_of(self.files.folder).names(self.files.folder)) or self.names
        self.only(kept)


def parts_in(content: Mapping[str, Any]) -> tuple[Part, ...]:
    """Parts that the JSON of a checkpoint names; older ones name none."""
    return tuple(Part(*part) for part in content.get("parts", ()))


COLUMNS = 4


@dataclass(frozen=True, eq=False)
class Listing:
    """The summaries that a checkpoint refers to: the visit of each batch, and the bytes and CRC-32 of its file.

    Parameters
    ----------
    rows
        Batch, visit, bytes and CRC-32, ``(N, 4)`` int64, by ascending batch; -1 if bytes or CRC-32 are unknown.
    """

    rows: np.ndarray

    @staticmethod
    def of(entries: Iterable[tuple[int, int, Receipt]]) -> Listing:
        """Listing from batch, visit and receipt of each summary."""
        rows = [(batch, visit, receipt.nbytes, receipt.crc32) for batch, visit, receipt in entries]
        return Listing(np.array(sorted(rows), np.int64).reshape(-1, COLUMNS))

    @staticmethod
    def of_latest(visits: np.ndarray, receipts: np.ndarray) -> Listing:
        """Listing of the latest visit of every batch ``(B,)``, -1 if none, with bytes and CRC-32 ``(B, 2)``."""
        batches = np.flatnonzero(visits >= 0)
        return Listing(np.column_stack([batches, visits[batches], receipts[batches]]).astype(np.int64))

    @staticmethod
    def of_saved(rows: np.ndarray) -> Listing:
        """Listing from the array of a checkpoint."""
        found = rows.reshape(-1, COLUMNS) if rows.dtype == np.int64 and not rows.size % COLUMNS else None
        if found is None or (found[:, :2] < 0).any():
            raise DamagedError(f"the list of summaries is {rows.dtype} {rows.shape}; needs int64 (N, {COLUMNS})")
        return Listing(found)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def batches(self) -> np.ndarray:
        """Batches, ``(N,)``."""
        return self.rows[:, 0]

    @property
    def visits(self) -> np.ndarray:
        """Visit of each, ``(N,)``."""
        return self.rows[:, 1]

    @property
    def receipts(self) -> np.ndarray:
        """Bytes and CRC-32 of each, ``(N, 2)``."""
        return self.rows[:, 2:]

    @property
    def keys(self) -> np.ndarray:
        """A number for each, by which two listings can be compared, ``(N,)``."""
        return keys_of(self.rows[:, [0, 1, 3]])

    @property
    def nbytes(self) -> int:
        """Bytes of all files, as far as they are known."""
        return int(np.maximum(self.rows[:, 2], 0).sum())

    def entries(self, chosen: np.ndarray | slice = np.s_[:]) -> Iterable[tuple[int, int, Receipt]]:
        """Batch, visit and receipt of some rows (all)."""
        return ((b, v, Receipt(n, crc)) for b, v, n, crc in self.rows[chosen].tolist())

    def new_since(self, older: Listing | None) -> np.ndarray:
        """Which rows are not in an older listing, ``(N,)`` bool."""
        if older is None or not len(older) or not len(self):
            return np.ones(len(self), np.bool_)
        place = np.minimum(np.searchsorted(older.batches, self.batches), len(older) - 1)
        return np.asarray((older.rows[place] != self.rows).any(axis=1))


NOTHING_LISTED = Listing(np.zeros((0, COLUMNS), np.int64))


def receipt_of(receipts: np.ndarray, batch: int) -> Receipt:
    """Row of an array of receipts ``(B, 2)``."""
    return Receipt(int(receipts[batch, 0]), int(receipts[batch, 1]))


def no_receipts(n_batches: int) -> np.ndarray:
    """Receipts of batches of which nothing is known, ``(B, 2)`` int64."""
    return np.full((n_batches, 2), NO_RECEIPT.nbytes, np.int64)


@dataclass(frozen=True)
class StoredRows:
    """Rows of a history in a file, up to some checkpoint."""

    path: Path | Key
    extent: Extent

    def read(self) -> list[dict[str, Any]]:
        """Return all rows; DamagedError if the file has changed."""
        return json_lines(read_extent(self.path, self.extent), dict[str, Any], self.path)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """State that one commit saved.

    Parameters
    ----------
    state
        JSON-able state.
    arrays
        Named arrays.
    rows
        Place of its history.
    number
        Grows by at least one from commit to commit.
    listing
        The summaries it refers to.
    parts
        Other files it refers to.
    begun
        Whether any work was done since the start.
    code
        Code that made the run, version after version.
    """

    state: dict[str, Any]
    arrays: dict[str, np.ndarray]
    rows: StoredRows
    number: int
    listing: Listing
    parts: tuple[Part, ...] = ()
    begun: bool = True
    code: tuple[Code, ...] = ()

    @property
    def history(self) -> list[dict[str, Any]]:
        """Read all rows up to this checkpoint anew: a long run has many."""
        return self.rows.read()


@dataclass(frozen=True, eq=False)
class Committed:
    """The facts about a checkpoint on the disk that the next commit needs."""

    number: int
    listing: Listing
    history: Extent
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, eq=False)
class Prepared:
    """A checkpoint to be written: its number, state as JSON, arrays that are not shared, new history rows, the
    summaries and the parts that it refers to, and whether the run has begun."""

    number: int
    state: str
    arrays: dict[str, np.ndarray]
    history: bytes
    listing: Listing
    parts: tuple[Part, ...] = ()
    begun: bool = True


def checkpoint_numbers(path: Path | Key) -> list[int]:
    """Numbers of the checkpoints in a run directory."""
    return [number for number, suffix, _ in _checkpoint_files(path) if suffix == "json"]


def remove_checkpoints(path: Path | Key, kept: Iterable[int]) -> int:
    """Remove all checkpoints except these numbers and newer ones; return the newest number that existed."""
    numbers, files = set(kept), list(_checkpoint_files(path))
    newest = max(numbers, default=None)
    found = [f for f in files if f[0] not in numbers and (newest is None or f[0] < newest)]
    # first the heads, which make checkpoints valid
    for own in ("json", "npz"):
        place_of(path).remove(file for _, suffix, file in found if suffix == own)
    return max((number for number, suffix, _ in files if suffix == "json"), default=0)


def _checkpoint_files(path: Path | Key) -> Iterator[tuple[int, str, Path | Key]]:
    """Number, suffix and path of all files of checkpoints."""
    folder = path / "checkpoints"
    for name in place_of(folder).names(folder):
        stem, _, suffix = name.partition(".")
        if stem.isdigit() and suffix in ("json", "npz"):
            yield int(stem), suffix, folder / name


def remove_summaries(files: SummaryFiles, kept: Sequence[Committed], dropped: Committed | None) -> None:
    """Remove summaries that no ``kept`` checkpoint, oldest first, refers to, unless they are newer than all of these.

    Newer summaries may be for the next commit.  Only folders that changed since the checkpoint ``dropped`` are read;
    all folders if it is None.
    """
    listings = [c.listing for c in kept]
    for folder in _changed_folders(files, [None if dropped is None else dropped.listing, *listings]):
        place_of(folder).remove(_unneeded(files, folder, listings))


def _changed_folders(files: SummaryFiles, listings: Sequence[Listing | None]) -> Iterator[Path | Key]:
    numbers: set[int] = set()
    for old, new in zip(listings[:-1], listings[1:], strict=True):
        if new is not None:
            numbers.update(np.unique(new.batches[new.new_since(old)] // BATCHES_PER_FOLDER).tolist())
    return (files.folder_of(number * BATCHES_PER_FOLDER) for number in sorted(numbers))


def _unneeded(files: SummaryFiles, folder: Path | Key, listings: Sequence[Listing]) -> Iterator[Path | Key]:
    found = list(files.names(folder))
    batches = np.unique([key[0] for _, key in found])
    needed: set[tuple[int, int, int]] = set()
    newest: dict[int, int] = {}
    for listing in listings:
        for batch, visit, receipt in listing.entries(np.isin(listing.batches, batches)):
            needed.add((batch, visit, receipt.crc32))
            newest[batch] = max(visit, newest.get(batch, -1))
    for path, key in found:
        if key not in needed and key[1] <= newest.get(key[0], -1):
            yield path
