"""Distinct rows of a stream, in the order of their first occurrence, found on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from bnp_dask.data.batching import PIECE_BYTES
from bnp_dask.data.ingestion.formats import Piece
from bnp_dask.kernels.topics.completion import mix

Deduplicate = Literal["weights", "once"]
"""Treatments of repeated rows: one row with their total weight, or one row that counts once."""

PARTS = 256
"""Number of temporary files among which rows are split by value, so that equal rows meet; each is processed in memory.

A guess: for 100 GB of data each file holds 400 MB.
"""


@dataclass(eq=False)
class DistinctRows:
    """Filter that turns rows with weights into distinct rows.

    Rows are equal if all of their stored values are; NaN is equal to NaN, and -0.0 to 0.0.  Memory holds one part in
    :data:`PARTS` of the rows, and 32 bytes for each distinct row.

    Parameters
    ----------
    how
        Whether the distinct rows have weights.
    n_rows, n_distinct
        Number of rows read, and of distinct rows.
    """

    how: Deduplicate
    n_rows: int = 0
    n_distinct: int = 0
    _first: list[np.ndarray] = field(default_factory=list)
    _times: list[np.ndarray] = field(default_factory=list)

    def pieces(self, pieces: Iterator[tuple[Piece, float]]) -> Iterator[tuple[Piece, float]]:
        """Distinct rows with the sums of their weights, and the share done, half of which is reading."""
        with tempfile.TemporaryDirectory(prefix="bnp_dask-distinct-") as name:
            folder, kind, width = Path(name), np.dtype(np.float64), 0
            for (x, weights), _ in pieces:
                kind, width = x.dtype, x.shape[1]
                self._deal(folder, _plain(x), weights)
            for part in range(PARTS):
                self._settle(folder / str(part), kind.itemsize * width)
            self.n_distinct = sum(map(len, self._first))
            yield from self._in_order(folder, kind, width)

    def _deal(self, folder: Path, x: np.ndarray, weights: np.ndarray | None) -> None:
        """Append rows, with their positions and weights, to the files of their values."""
        records = np.empty(len(x), _record(x.dtype.itemsize * x.shape[1]))
        records["at"] = self.n_rows + np.arange(len(x))
        records["times"] = 1.0 if weights is None else weights
        records["row"] = _bytes(x)
        part = (_keys(x) % np.uint64(PARTS)).astype(np.int64)
        order = np.argsort(part, kind="stable")
        ends = np.cumsum(np.bincount(part, minlength=PARTS))
        for number, own in enumerate(np.split(records[order], ends[:-1])):
            if len(own):
                with open(folder / str(number), "ab") as file:
                    file.write(own.tobytes())
        self.n_rows += len(x)

    def _settle(self, path: Path, row_bytes: int) -> None:
        """Reduce a file to its distinct rows, in the order of their first occurrence."""
        found = np.fromfile(path, _record(row_bytes)) if path.exists() else np.empty(0, _record(row_bytes))
        rows, first, inverse = np.unique(found["row"], return_index=True, return_inverse=True)
        times = np.bincount(inverse.ravel(), weights=found["times"], minlength=len(rows))
        order = np.argsort(first)  # rows of a file are in their original order
        rows[order].tofile(path)
        self._first.append(found["at"][first[order]])
        self._times.append(times[order])

    def _in_order(self, folder: Path, kind: np.dtype, width: int) -> Iterator[tuple[Piece, float]]:
        offsets = np.concatenate([[0], np.cumsum([len(first) for first in self._first])])
        order, times = np.argsort(np.concatenate(self._first)), np.concatenate(self._times)
        size = max(1, PIECE_BYTES // max(1, kind.itemsize * width))
        for start in range(0, len(order), size):
            places = order[start : start + size]
            part = np.searchsorted(offsets, places, side="right") - 1
            x = np.empty((len(places), width), kind)
            for number in np.unique(part):
                # rows of one file are consecutive in it: the file is in the same order
                own = np.flatnonzero(part == number)
                begin = int(places[own[0]] - offsets[number])
                count, skip = len(own) * width, begin * width * kind.itemsize
                x[own] = np.fromfile(folder / str(number), kind, count, offset=skip).reshape(-1, width)
            weights = times[places] if self.how == "weights" else None
            yield (x, weights), 0.5 + 0.5 * (start + len(places)) / len(order)

    def note(self) -> str:
        """Line of the report."""
        how = ", with its weights summed" if self.how == "weights" else ", and counts once"
        return f"{self.n_distinct:,} of {self.n_rows:,} rows are distinct: each is kept once{how}"


def _record(row_bytes: int) -> np.dtype:
    return np.dtype([("at", "<i8"), ("times", "<f8"), ("row", f"V{row_bytes}")])


def _plain(x: np.ndarray) -> np.ndarray:
    """Rows whose equal values have equal bits."""
    if x.dtype.kind != "f":
        return np.ascontiguousarray(x)
    return np.where(np.isnan(x), x.dtype.type(np.nan), x + x.dtype.type(0.0))


def _bytes(x: np.ndarray) -> np.ndarray:
    """Each row as one value, ``(n,)``."""
    return np.ascontiguousarray(x).view(f"V{x.dtype.itemsize * x.shape[1]}")[:, 0]


def _keys(x: np.ndarray) -> np.ndarray:
    """A number made of the bits of each row, ``(n,)``."""
    raw = np.ascontiguousarray(x).view(np.uint8).reshape(len(x), -1)
    padded = np.zeros((len(x), -(-raw.shape[1] // 8) * 8), np.uint8)
    padded[:, : raw.shape[1]] = raw
    words = padded.view(np.uint64)
    found: np.ndarray = mix(words + mix(np.arange(words.shape[1], dtype=np.uint64))).sum(axis=1, dtype=np.uint64)
    return mix(found)
