"""Checkpoints: the files they refer to, their content, and the removal of what no checkpoint needs.

A checkpoint refers to the summaries of a :class:`Listing` and to parts, files of arrays of their own.  It is read, is
the base of the next one, and waits to be written.  After a commit, files that only older checkpoints refer to are
removed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.core.code import Code
from bnp_dask.errors import StoreError
from bnp_dask.inputs import name_in_file
from bnp_dask.store.files import json_lines, pack, read_extent, unpack
from bnp_dask.store.packs import keys_of
from bnp_dask.store.place import DamagedError, Extent, Key, place_of
from bnp_dask.store.summaries import BATCHES_PER_FOLDER, NO_RECEIPT, Receipt, SummaryFiles


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
