"""The batches of a run's data, as a pass over them found them: a list that only grows, and is never read from the data
again."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask._version import __version__
from bnp_dask.errors import StoreError
from bnp_dask.inputs.places import name_in_file
from bnp_dask.store.files import dump_json, pack, unpack
from bnp_dask.store.log import append, read_extent
from bnp_dask.store.migrations import upgraded
from bnp_dask.store.place import DamagedError, Extent, Key, place_of

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
        if meta["version"] > VERSION:
            raise StoreError(
                f"{head} has format version {meta['version']}, this bnp-dask reads up to {VERSION}; "
                "upgrade with: pip install --upgrade bnp-dask"
            )
        meta = upgraded(meta, MANIFEST_FORMAT, meta["version"], VERSION)
        self._extent = Extent.from_json(meta["rows"])
        self._parts = [np.frombuffer(read_extent(self._file(".rows"), self._extent), ROW)]
        self._identity, self.arrays = meta["identity"], arrays
        self.reasons = {int(batch): why for batch, why in meta["reasons"]}
        return str(self._identity)
