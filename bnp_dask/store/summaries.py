"""Files with the summary of one visit of a batch, each identified by batch, visit and checksum."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from bnp_dask.core.schema import Whole
from bnp_dask.errors import StoreError
from bnp_dask.store.files import crc_of_packed, pack, require_fields, unpack
from bnp_dask.store.packs import Packs
from bnp_dask.store.place import DamagedError, Key, place_of

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


_NAME = re.compile(r"(\d+)-(\d+)(?:-([0-9a-f]{8}))?\.npz")


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
            if (parts := _NAME.fullmatch(name)) is not None:
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
