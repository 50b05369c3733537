"""Data that a run took in after its first: two files beside the first manifest that only grow.

::

    manifest/grown.rows       a row of each batch, as in the first manifest
    manifest/grown.jsonl      a line for each piece of data: its place, its content, its number of batches

A checkpoint records how much of both is valid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.store.files import dump_json
from bnp_dask.store.log import append, read_extent
from bnp_dask.store.manifest import ROW
from bnp_dask.store.place import Extent, Key, place_of

ROWS, PIECES = "grown.rows", "grown.jsonl"

NONE = Extent()


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
        extents = [Extent.from_json(saved[name]) for name in ("rows", "pieces")]
        rows = np.frombuffer(read_extent(folder / ROWS, extents[0]), ROW)
        lines = read_extent(folder / PIECES, extents[1]).decode().splitlines()
        return GrowthLog(folder, rows, tuple(json.loads(line) for line in lines), *extents)

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
