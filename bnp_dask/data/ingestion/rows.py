"""Rows on their way into a store: duplicates left out, projected to fewer columns, sorted into groups."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import pyarrow as pa

from bnp_dask.core import Columns, Cutting, Location, Roles
from bnp_dask.core.columns import WHOLE
from bnp_dask.data.base import PIECE_BYTES, float_rows
from bnp_dask.data.groups import INT, Steps, require_all, times_of
from bnp_dask.data.ingestion.streams import COLUMN_FILES, Piece, Stream, TextTable
from bnp_dask.data.sources.columns import PLAIN_READING, Cells, Reading, as_arrow, fill_rows, read_cells
from bnp_dask.data.sources.open import parquet_pieces
from bnp_dask.data.sources.parquet import choose_in_files, common_dtype, first_schema, parquet_files
from bnp_dask.data.sources.zarr import ZarrArray
from bnp_dask.errors import DataError, SettingError, StoreError
from bnp_dask.kernels.topics.completion import mix

# -- distinct rows -------------------------------------------------------------------------------------------------
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


# -- projections ---------------------------------------------------------------------------------------------------
MOST_FEATURES = 20_000
"""The covariance matrix of more features than this is too large to hold."""


@dataclass(frozen=True, eq=False)
class Projection:
    """``(x - mean) @ components``.

    Parameters
    ----------
    mean
        ``(D,)``.
    components
        Orthonormal columns by falling variance, ``(D, p)``; the largest entry of each is positive.
    explained
        Share of the variance that the components keep, or None if they were fitted to other data.
    """

    mean: np.ndarray
    components: np.ndarray
    explained: float | None

    @property
    def n_features(self) -> int:
        """Columns before, D."""
        return self.components.shape[0]

    @property
    def n_components(self) -> int:
        """Columns after, p."""
        return self.components.shape[1]

    def apply(self, x: np.ndarray, name: str) -> np.ndarray:
        """Project rows ``(n, D)`` to ``(n, p)``."""
        if x.shape[1] != self.n_features:
            raise DataError(f"{name} has {x.shape[1]} features, but the projection takes {self.n_features}")
        return (float_rows(x, name) - self.mean) @ self.components


def fit_projection(pieces: Iterable[Piece], n_components: int, n_features: int, name: str) -> Projection:
    """Principal components of a stream, weighted; covariances combine by the update of Chan et al. (1983)."""
    if isinstance(n_components, bool) or not 1 <= n_components <= n_features:
        raise SettingError(f"project={n_components!r}: needs 1 to {n_features} components, the features of {name}")
    if n_features > MOST_FEATURES:
        raise SettingError(f"project: {name} has {n_features} features; at most {MOST_FEATURES} can be projected")
    weight, mean, scatter = 0.0, np.zeros(n_features), np.zeros((n_features, n_features))
    for raw, weights in pieces:
        if not isinstance(raw, np.ndarray):
            raise DataError(f"{name} holds counts; project= is for dense rows")
        x = float_rows(raw, name)
        if not np.isfinite(x).all():
            raise DataError(f"{name} has NaN or infinite values, which cannot be projected; drop or impute such rows")
        w = np.ones(len(x)) if weights is None else weights
        total = float(w.sum())
        if total == 0:
            continue
        center = w @ x / total
        y = (x - center) * np.sqrt(w)[:, None]
        shift = center - mean
        scatter += y.T @ y + np.outer(shift, shift) * (weight * total / (weight + total))
        mean = mean + shift * (total / (weight + total))
        weight += total
    if weight == 0:
        raise DataError(f"{name}: all weights are zero")
    values, vectors = np.linalg.eigh(scatter)
    values, vectors = values[::-1], vectors[:, ::-1]
    components = vectors[:, :n_components]
    # eigenvectors come with either sign; fix it
    largest = np.abs(components).argmax(axis=0)
    components = components * np.where(components[largest, np.arange(n_components)] < 0, -1.0, 1.0)
    everything = float(values.clip(0).sum())
    explained = float(values[:n_components].clip(0).sum()) / everything if everything > 0 else 1.0
    return Projection(mean, np.ascontiguousarray(components), explained)


def load_projection(store: Location, n_features: int) -> Projection:
    """The projection of a store that was ingested with one."""
    store.require()
    if not store.child("projection_components").exists():
        raise DataError(f"{store.name} was not projected; ingest it with project=50, or pass a number here")
    mean = ZarrArray.open(store.child("projection_mean"))
    components = ZarrArray.open(store.child("projection_components"))
    if components.shape[0] != n_features:
        raise DataError(f"{store.name} projects {components.shape[0]} features, but the data have {n_features}")
    real = np.dtype(np.float64)
    span = (0, n_features)
    return Projection(mean.read(span, real), components.read(span, real), None)


# -- groups --------------------------------------------------------------------------------------------------------
Rows = tuple[np.ndarray, np.ndarray | None]


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

    def pieces(self) -> Iterator[tuple[Rows, float]]:
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

    def _rows(self) -> Iterator[Rows]:
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
