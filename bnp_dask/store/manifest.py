"""The batches of a run's data, as a pass over them found them: a list that only grows.

It is never read from the data again.  Data that a run took in after its first stand in two files beside it.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from bnp_dask._version import __version__
from bnp_dask.core import Finite, Id, Whole
from bnp_dask.errors import StoreError
from bnp_dask.inputs import name_in_file
from bnp_dask.store.checkpoint import Packs
from bnp_dask.store.files import (
    append,
    dump_json,
    json_lines,
    pack,
    read_extent,
    require_fields,
    seal,
    unpack,
    unseal,
    unsealed,
)
from bnp_dask.store.migrations import upgraded
from bnp_dask.store.place import DamagedError, Extent, ExtentContent, Key, place_of
from bnp_dask.store.run import holds_run, may_hold_runs, run_folder

MANIFEST_FORMAT = "bnp-dask manifest"
VERSION = 1

ROW = np.dtype(
    [
        ("source", "<i4"),
        ("index", "<i4"),
        ("checksum", "<u4"),
        ("bad", "<u4"),
        ("atoms", "<i8"),
        ("nbytes", "<i8"),
        ("groups", "<i8"),
        ("weight", "<f8"),
    ]
)
"""One batch: its source, its number there, CRC-32 of its content, 1 if it cannot be used, atoms, bytes in memory,
groups, and the sum of its weights."""


class ManifestContent(TypedDict):
    """Fields of a manifest, beside its arrays."""

    version: Whole
    identity: str
    rows: ExtentContent
    reasons: list[tuple[Whole, str]]


def _rows_in(path: Path | Key, extent: Extent) -> np.ndarray:
    """Rows in the committed part of a file, ``(N,)`` of :data:`ROW`; DamagedError if it holds other things."""
    data = read_extent(path, extent)
    if len(data) % ROW.itemsize:
        raise DamagedError(f"{path} is damaged ({len(data)} bytes; needs {ROW.itemsize} for each batch)")
    return np.frombuffer(data, ROW)


class Manifest:
    """Batches in their order, with the totals of the usable ones.

    Parameters
    ----------
    folder
        Folder of its two files, made by the first append; None keeps everything in memory.
    identity
        JSON-able identity of the data, as far as it is known without reading them.

    Attributes
    ----------
    arrays
        Named arrays given to the last :meth:`append`: totals of the batches so far.
    reasons
        Why batches cannot be used, by number.
    """

    def __init__(self, folder: Path | Key | None, identity: Mapping[str, Any]) -> None:
        self._folder = folder
        self._identity = dump_json(dict(identity))
        self.key = f"{zlib.crc32(self._identity.encode()):08x}"
        self._parts: list[np.ndarray] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.reasons: dict[int, str] = {}
        self._extent = Extent()

    @classmethod
    def open(cls, folder: Path | Key, identity: Mapping[str, Any]) -> Manifest:
        """The manifest of these data in a folder, as far as it got; an empty one if there is none.

        Raises
        ------
        DamagedError
            There is one, and it is damaged.
        StoreError
            It was written by a newer version of this package.
        """
        made = cls(folder, identity)
        wanted = made._identity
        if place_of(folder).exists(made._file(".npz")) and made._load() != wanted:  # other data of one checksum
            return cls(folder, identity)
        return made

    @classmethod
    def of_key(cls, folder: Path | Key, key: str) -> Manifest:
        """A manifest by its name; DamagedError if it is missing or damaged, StoreError if it is too new."""
        made = cls(folder, {})
        made.key = name_in_file(key, f"{folder}, list of batches")
        made._load()
        return made

    def emptied(self) -> Manifest:
        """An empty manifest, which replaces this one on the disk when something is appended."""
        made = Manifest(self._folder, {})
        made.key, made._identity = self.key, self._identity
        return made

    @property
    def name(self) -> str:
        """Name in messages."""
        return "the list of batches" if self._folder is None else str(self._file(".npz"))

    def to_json(self) -> dict[str, Any]:
        """Reference for a checkpoint: its name, and its rows by their bytes and CRC-32."""
        return {"key": self.key, "rows": self._extent.to_json()}

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    @property
    def rows(self) -> np.ndarray:
        """All batches, ``(N,)`` of :data:`ROW`."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.zeros(0, ROW), *self._parts])]
        return self._parts[0]

    def append(self, rows: np.ndarray, arrays: Mapping[str, np.ndarray], reasons: Mapping[int, str]) -> None:
        """Add batches, ``(n,)`` of :data:`ROW`; on the disk on return.

        Parameters
        ----------
        rows
            The batches.
        arrays
            Totals of all batches so far: named arrays that replace the previous ones.
        reasons
            Why some of them cannot be used.

        Raises
        ------
        StoreError
            The disk is full, or a file may not be written.
        """
        data = np.ascontiguousarray(rows, ROW).tobytes()
        arrays, reasons = dict(arrays), {**self.reasons, **reasons}
        extent = Extent(self._extent.nbytes + len(data), zlib.crc32(data, self._extent.crc32))
        if self._folder is not None:
            place_of(self._folder).make_folder(self._folder)
            append(self._file(".rows"), data, self._extent)
            meta = {
                "format": MANIFEST_FORMAT,
                "version": VERSION,
                "software": __version__,
                "identity": self._identity,
                "rows": extent.to_json(),
                "reasons": sorted(reasons.items()),
            }
            place_of(self._folder).write(self._file(".npz"), pack(arrays, meta))  # from here on the rows are valid
        self._parts.append(np.frombuffer(data, ROW))
        self.arrays, self.reasons, self._extent = arrays, reasons, extent

    def _file(self, suffix: str) -> Path | Key:
        assert self._folder is not None
        return self._folder / f"{self.key}{suffix}"

    def _load(self) -> str:
        """Load the files on the disk; return their identity."""
        head = self._file(".npz")
        arrays, meta = unpack(place_of(head).read(head), head)
        if meta.get("format") != MANIFEST_FORMAT:
            raise DamagedError(f"{head} is damaged (it is no manifest)")
        require_fields(meta, ManifestContent, head)
        if meta["version"] > VERSION:
            raise StoreError(
                f"{head} has format version {meta['version']}, this bnp-dask reads up to {VERSION}; "
                "upgrade with: pip install --upgrade bnp-dask"
            )
        meta = upgraded(meta, MANIFEST_FORMAT, meta["version"], VERSION)
        self._extent = Extent.from_json(meta["rows"])
        self._parts = [_rows_in(self._file(".rows"), self._extent)]
        self._identity, self.arrays = meta["identity"], arrays
        self.reasons = {int(batch): why for batch, why in meta["reasons"]}
        return str(self._identity)


# -- data that a run took in after its first -----------------------------------------------------------------------
ROWS, PIECES = "grown.rows", "grown.jsonl"

NONE = Extent()


class PieceContent(TypedDict):
    """Fields of a piece of data."""

    place: str | None
    name: str
    n_batches: Whole
    content: NotRequired[Any]
    fingerprint: NotRequired[Any]
    batch_size: NotRequired[Whole | None]
    weights: NotRequired[Any]
    n_words: NotRequired[Whole]
    files: NotRequired[list[str] | None]
    item: NotRequired[Any]
    labels: NotRequired[LabelsContent | None]
    responses: NotRequired[str | None]
    links: NotRequired[str | None]


class LabelsContent(TypedDict):
    """Fields of the labels of some data."""

    place: str | None
    names: list[str | int] | None  # a whole number is a label too


@dataclass(frozen=True, eq=False)
class GrowthLog:
    """Pieces of data in the order in which they came.

    Parameters
    ----------
    folder
        Folder of the two files; None for data of a run in memory.
    rows
        All their batches, ``(N,)`` of :data:`~bnp_dask.store.manifest.ROW`; ``source`` is the number of the piece,
        from 1.
    pieces
        A JSON-able mapping of each; ``"n_batches"`` counts the rows of the piece.
    rows_extent, pieces_extent
        How much of the files they take.
    """

    folder: Path | Key | None
    rows: np.ndarray
    pieces: tuple[Mapping[str, Any], ...]
    rows_extent: Extent = NONE
    pieces_extent: Extent = NONE

    @staticmethod
    def empty(folder: Path | Key | None) -> GrowthLog:
        """Log without entries."""
        return GrowthLog(folder, np.zeros(0, ROW), ())

    @staticmethod
    def open(folder: Path | Key, saved: Mapping[str, Any]) -> GrowthLog:
        """Log that a checkpoint refers to; DamagedError if it is missing."""
        of_rows, of_pieces = Extent.from_json(saved["rows"]), Extent.from_json(saved["pieces"])
        rows = _rows_in(folder / ROWS, of_rows)
        pieces = json_lines(read_extent(folder / PIECES, of_pieces), PieceContent, folder / PIECES)
        if sum(piece["n_batches"] for piece in pieces) != len(rows):
            raise DamagedError(f"{folder / PIECES} is damaged (its pieces have other batches than {ROWS})")
        return GrowthLog(folder, rows, tuple(pieces), of_rows, of_pieces)

    def to_json(self) -> dict[str, Any]:
        """Extents of both files, as a checkpoint records them."""
        return {"rows": self.rows_extent.to_json(), "pieces": self.pieces_extent.to_json()}

    def appended(self, rows: np.ndarray, pieces: Sequence[Mapping[str, Any]]) -> GrowthLog:
        """The log with more entries; on the disk on return, and valid once a checkpoint refers to it."""
        data = np.ascontiguousarray(rows, ROW).tobytes()
        lines = "".join(dump_json(dict(piece)) + "\n" for piece in pieces).encode()
        more = replace(
            self,
            rows=np.concatenate([self.rows, rows]),
            pieces=(*self.pieces, *(json.loads(line) for line in lines.splitlines())),
        )
        if self.folder is None:
            return more
        place_of(self.folder).make_folder(self.folder)
        return replace(
            more,
            rows_extent=append(self.folder / ROWS, data, self.rows_extent),
            pieces_extent=append(self.folder / PIECES, lines, self.pieces_extent),
        )


# -- Numbered versions of a run: a posterior and a record of each, and one pointer to the version in force --------
# ::
#
#     VERSION.json                  the number in force; replaced in one step
#     versions/00000003.json        record of version 3: its checkpoint, new data, clusters, moves
#     versions/00000003.zarr        its posterior, as long as it is kept
#     versions/packs/               records of older versions, packed (store.checkpoint)
#
# Version 0 is the result of ``train``.  The record and the posterior of a version are whole before its checkpoint is
# and the pointer follows the checkpoint.


FORMAT, FORMAT_VERSION = "bnp-dask version", 1
FOLDER, POINTER = "versions", "VERSION.json"


class PointerContent(TypedDict):
    """Fields of the pointer to the version in force."""

    number: Whole


class RecordContent(TypedDict):
    """Fields of the record of a version."""

    number: Whole
    checkpoint: Whole
    before: Whole | None
    ids: list[Id]
    counts: list[Finite]
    pieces: list[str]
    moves: list[MoveContent]
    when: NotRequired[str | None]
    n_batches: NotRequired[Whole | None]
    elbo: NotRequired[Finite | None]


class MoveContent(TypedDict):
    """Fields of a decided proposal."""

    kind: str
    targets: list[Id]
    others: list[Id]


MOST_LOOSE = 64
"""Number of records with files of their own from which on the older half is packed."""

_NAMED = re.compile(r"(.+)@(\d+)")


@dataclass(frozen=True)
class Versions:
    """Versions under a run directory.

    Parameters
    ----------
    path
        The run directory.
    """

    path: Path | Key

    @property
    def current(self) -> int | None:
        """Number of the version in force; None for a run that was never updated.

        Raises
        ------
        StoreError
            The pointer is damaged.
        """
        if not place_of(self.path).exists(self.path / POINTER):
            return None
        return int(_read(self.path / POINTER, PointerContent)["number"])

    def posterior(self, number: int) -> Path | Key:
        """Place of the posterior of a version, while it is kept."""
        return self.path / FOLDER / f"{number:08d}.zarr"

    def record(self, number: int) -> dict[str, Any]:
        """The record of a version; StoreError if there is none."""
        path = self._record(number)
        try:
            try:
                data = place_of(path).read(path)
            except DamagedError:
                packed = self._packs.read(number, 0)
                if packed is None:
                    raise
                data = packed
            return unsealed(data, path, FORMAT, FORMAT_VERSION, RecordContent)
        except DamagedError as error:
            raise _unusable(path, error) from error

    def has(self, number: int) -> bool:
        """Whether there is a record of a version."""
        return place_of(self.path).exists(self._record(number)) or bool((self._packs.keys()[:, 0] == number).any())

    def pack(self) -> None:
        """Join records of older versions in one file, if there are many; the caller must hold the lock."""
        place, folder = place_of(self.path), self.path / FOLDER
        stems = (name.rpartition(".json") for name in place.names(folder))
        loose = sorted(int(stem) for stem, suffix, rest in stems if suffix and not rest and stem.isdigit())
        if len(loose) < MOST_LOOSE:
            return
        old = [self._record(number) for number in loose[: -MOST_LOOSE // 2]]
        contents = [(int(path.stem), place.read(path)) for path in old]
        self._packs.join(
            (((number, 0, zlib.crc32(data)), partial(bytes, data)) for number, data in contents), _all_of_them
        )
        place.remove(old)

    def write(self, number: int, record: Mapping[str, Any]) -> None:
        """Write the record of a version; it is on the disk on return."""
        place = place_of(self.path)
        place.make_folder(self.path / FOLDER)
        content = {"format": FORMAT, "version": FORMAT_VERSION, "number": number, **record}
        place.write(self._record(number), seal(content))
        place.sync_folder(self.path / FOLDER)

    def point_at(self, number: int) -> None:
        """Put a version in force, in one step."""
        content = {"format": FORMAT, "version": FORMAT_VERSION, "number": number}
        place_of(self.path).write(self.path / POINTER, seal(content))
        place_of(self.path).sync_folder(self.path)

    def kept(self) -> list[int]:
        """Numbers of the versions whose posterior is kept, ascending."""
        found = (name.rpartition(".zarr") for name in place_of(self.path).names(self.path / FOLDER))
        return sorted(int(stem) for stem, suffix, rest in found if suffix and not rest and stem.isdigit())

    def numbers(self) -> list[int]:
        """Numbers of all versions that have a record, ascending."""
        stems = (name.rpartition(".json") for name in place_of(self.path).names(self.path / FOLDER))
        loose = {int(stem) for stem, suffix, rest in stems if suffix and not rest and stem.isdigit()}
        return sorted(loose | set(self._packs.keys()[:, 0].tolist()))

    def keep(self, numbers: Collection[int]) -> None:
        """Remove the posteriors of all versions except some; records stay."""
        for number in set(self.kept()) - set(numbers):
            place_of(self.path).remove_tree(self.posterior(number))

    @property
    def _packs(self) -> Packs:
        return Packs(self.path / FOLDER)

    def _record(self, number: int) -> Path | Key:
        return self.path / FOLDER / f"{number:08d}.json"


def version_named(path: str) -> tuple[Versions, int | None] | None:
    """Run and version that a path such as ``"runs/news"`` or ``"runs/news@3"`` means; None if it means no run.

    The number is None if a run has no versions, or the version in force is meant.
    """
    if not may_hold_runs(path):
        return None
    if holds_run(path):
        return Versions(run_folder(path)), None
    found = _NAMED.fullmatch(path)
    if found is None or place_of(folder := run_folder(path)).exists(folder) or not holds_run(found[1]):
        return None
    return Versions(run_folder(found[1])), int(found[2])


def _read(path: Path | Key, fields: Any) -> dict[str, Any]:
    try:
        return unseal(path, FORMAT, FORMAT_VERSION, fields)
    except DamagedError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path | Key, error: DamagedError) -> StoreError:
    return StoreError(f"{error}; put it back from a copy, or name a version: {path.parent}@NUMBER")


def _all_of_them(keys: np.ndarray) -> np.ndarray:
    """Keep all records: they are never given up."""
    return np.ones(len(keys), np.bool_)
