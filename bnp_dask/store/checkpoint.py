"""Checkpoints as they are read, as the base of the next one, and as they wait to be written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.core.code import Code
from bnp_dask.store.files import read_extent
from bnp_dask.store.packs import keys_of
from bnp_dask.store.parts import Part
from bnp_dask.store.place import Extent, Key
from bnp_dask.store.summaries import NO_RECEIPT, Receipt

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
        return Listing(np.asarray(rows, np.int64).reshape(-1, COLUMNS))

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
        return [json.loads(line) for line in read_extent(self.path, self.extent).decode().splitlines()]


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
