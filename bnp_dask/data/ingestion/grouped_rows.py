"""Grouping and ordering of table rows on their way into a store; features are sorted on disk."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import pyarrow as pa

from bnp_dask.core.columns import WHOLE, Columns, Cutting, Roles
from bnp_dask.core.location import Location
from bnp_dask.data.batching import PIECE_BYTES
from bnp_dask.data.grouped.ids import parquet_pieces
from bnp_dask.data.grouped.offsets import require_all
from bnp_dask.data.grouped.steps import INT, Steps, times_of
from bnp_dask.data.ingestion.formats import COLUMN_FILES, Stream
from bnp_dask.data.ingestion.tables import TextTable
from bnp_dask.data.sources.arrow import Cells, as_arrow, read_cells
from bnp_dask.data.sources.choose import PLAIN_READING, Reading
from bnp_dask.data.sources.levels import fill_rows
from bnp_dask.data.sources.parquet import choose_in_files, common_dtype, first_schema, parquet_files
from bnp_dask.errors import DataError, SettingError, StoreError

Piece = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True, eq=False)
class GroupedTable:
    """A table whose rows go into groups, after one pass over the columns of ids and order.

    Parameters
    ----------
    location, kind
        Place and format of a Parquet file or folder, or a CSV file.
    columns
        Columns of features, weights, groups and order.
    dtype
        Dtype of the features.
    offsets
        Offsets of the groups, ``(G + 1,)``, in the order of their first rows.
    place
        New position of each row of the table, ``(n,)``; None if all rows are in place.
    text
        Text table of a CSV file.
    ids
        Ids of the groups, ``(G,)``.
    breaks
        Rows, in the new order, that follow a gap which cuts their group, or None.
    """

    location: Location
    kind: str
    columns: Columns
    dtype: np.dtype
    offsets: np.ndarray
    place: np.ndarray | None
    text: TextTable | None
    ids: pa.Array
    breaks: np.ndarray | None = None

    @staticmethod
    def read(
        location: Location,
        kind: str,
        group: str,
        order: str | None,
        columns: Sequence[str] | None,
        weights: str | None,
        cutting: Cutting = WHOLE,
        reading: Reading = PLAIN_READING,
    ) -> GroupedTable:
        """Read ids and order in one pass, which holds 4 bytes per row for the ids, and 8 for the order."""
        if kind not in (*COLUMN_FILES, "csv", "tsv"):
            raise DataError(
                f"{location.name}: group_column={group!r} needs named columns, which format {kind} does not have; "
                "columns of groups are read from Parquet, Arrow and CSV"
            )
        keys = [group] if order is None else [group, order]
        roles = Roles(weights, group, order, cutting)
        text = None if kind in COLUMN_FILES else Stream(location, kind).table
        if text is not None:
            chosen, dtype = text.choose(columns, roles, reading), np.dtype(np.float64)
        else:
            files = parquet_files(location)
            schema = first_schema(files, False)
            chosen = choose_in_files(files, schema, columns, roles, location.name, reading)
            dtype = common_dtype(schema, chosen)
        codes, times = [], []
        before = 0
        for piece in _pieces(location, text, keys, [] if order is None else [order]):
            ids = as_arrow(piece.column(0))
            require_all(ids, group, location.name, before)
            codes.append(ids.dictionary_encode())
            if order is not None:
                held = as_arrow(piece.column(1))
                require_all(held, order, location.name, before)
                times.append(times_of(held, order, location.name))
            before += len(ids)
        if before == 0:
            raise DataError(f"{location.name} has no rows")
        found, ids = _codes(codes)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(found))]).astype(INT)
        breaks = None
        if order is None:
            rank = np.argsort(found, kind="stable")
        else:
            when = np.concatenate(times)
            rank = np.lexsort((when, found))
            steps = Steps(location.name, group, order, cutting)
            breaks = _breaks(steps, when[rank], found[rank], rank, ids)
        place = None
        if (np.diff(rank) != 1).any():
            place = np.empty(len(rank), INT)
            place[rank] = np.arange(len(rank))
        return GroupedTable(location, kind, chosen, dtype, offsets, place, text, ids, breaks)

    @property
    def is_sorted(self) -> bool:
        """Whether the rows were already grouped and in order."""
        return self.place is None

    def pieces(self) -> Iterator[tuple[Piece, float]]:
        """Rows with weights in their new order, and the share read.

        Rows out of place are first written to a temporary file at their new positions.
        """
        n, d = int(self.offsets[-1]), self.columns.n_features
        if self.place is None:
            done = 0
            for x, weights in self._rows():
                done += len(x)
                yield (x, weights), done / n
            return
        with tempfile.TemporaryFile() as file:
            _reserve(file, max(1, n * d * self.dtype.itemsize))
            held = np.memmap(file, self.dtype, "r+", shape=(n, d))
            sorted_weights = np.empty(n) if self.columns.roles.weights else None
            done = 0
            for x, weights in self._rows():
                to = self.place[done : done + len(x)]
                held[to] = x
                if sorted_weights is not None and weights is not None:
                    sorted_weights[to] = weights
                done += len(x)
            rows = max(1, PIECE_BYTES // (d * self.dtype.itemsize))
            for start in range(0, n, rows):
                stop = min(start + rows, n)
                part = None if sorted_weights is None else sorted_weights[start:stop]
                yield (np.array(held[start:stop]), part), stop / n
            del held

    def _rows(self) -> Iterator[Piece]:
        """Rows in the order of the table."""
        layout, weights = self.columns.layout, self.columns.roles.weights
        used = list(dict.fromkeys([*self.columns.names, *([weights] if weights else [])]))
        rows, row = max(1, PIECE_BYTES // (8 * self.columns.n_features)), 0
        on_bad, name = self.columns.on_bad_cell or "raise", self.location.name
        for batch in _pieces(self.location, self.text, used, (), rows):
            out = np.empty((batch.num_rows, self.columns.n_features), self.dtype)
            fill_rows(out, batch, layout, name, row, on_bad=on_bad)
            held = read_cells(batch.column(weights), 1, Cells(name, weights, row))[:, 0] if weights else None
            row += batch.num_rows
            yield out, held


def _reserve(file: IO[bytes], size: int) -> None:
    """Reserve disk space for a temporary file: writing to a mapped file without space ends the process."""
    try:
        if sys.platform == "linux":
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            for start in range(0, size, PIECE_BYTES):
                file.write(bytes(min(PIECE_BYTES, size - start)))
            file.flush()
    except OSError as error:
        raise StoreError(
            f"sorting rows into groups takes a temporary file of {size:,} bytes in {tempfile.gettempdir()}: "
            f"{error.strerror}. Make room, or name another directory in the environment variable TMPDIR"
        ) from error


def _breaks(steps: Steps, times: np.ndarray, codes: np.ndarray, rank: np.ndarray, ids: pa.Array) -> np.ndarray | None:
    """Rows at which gaps cut the sorted rows; DataError for rows of equal time, and gaps that are refused."""

    def tell(t: int) -> tuple[Any, int, int]:
        return ids[int(codes[t])].as_py(), int(rank[t - 1]), int(rank[t])

    found = steps.breaks(times, codes[1:] == codes[:-1], tell)
    return found if steps.cutting.gaps == "cut" else None


def grouped_table(
    location: Location,
    kind: str,
    group: str | None,
    order: str | None,
    columns: Sequence[str] | None,
    weights: Any,
    cutting: Cutting = WHOLE,
    reading: Reading = PLAIN_READING,
) -> GroupedTable | None:
    """The table that ``ingest`` groups; None if no column was named."""
    if group is None:
        if order is not None:
            raise SettingError(f"order_column={order!r} sorts rows within groups; give group_column= too")
        return None
    if weights is not None and not isinstance(weights, str):
        raise SettingError("with group_column=, weights must be a column: rows are sorted, and weights with them")
    return GroupedTable.read(location, kind, group, order, columns, weights, cutting, reading)


def _pieces(
    location: Location, text: TextTable | None, columns: Sequence[str], typed: Sequence[str], rows: int = 2**18
) -> Iterator[pa.RecordBatch]:
    """Some columns of the table, piece by piece; columns of text tables as texts, unless they are ``typed``."""
    return parquet_pieces(location, columns, rows) if text is None else text.batches(columns, typed)


def _codes(pieces: list[pa.DictionaryArray]) -> tuple[np.ndarray, pa.Array]:
    """Number of the group of each row, ``(n,)``, numbered by first occurrence, and the ids of groups ``(G,)``."""
    whole = pa.chunked_array(pieces).unify_dictionaries()
    codes = np.concatenate([np.asarray(chunk.indices, np.int32) for chunk in whole.chunks])
    first = np.full(int(codes.max()) + 1, len(codes), INT)
    np.minimum.at(first, codes, np.arange(len(codes)))
    by_first = np.argsort(first, kind="stable")
    rank = np.empty(len(first), np.int32)
    rank[by_first] = np.arange(len(first), dtype=np.int32)
    return rank[codes], whole.chunk(0).dictionary.take(pa.array(by_first))
