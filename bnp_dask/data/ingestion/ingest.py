"""``ingest``: any supported file into a batched Zarr store, as a stream."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike
from scipy import sparse

from bnp_dask.core import ON_BAD_CELL, WHOLE, Columns, Cutting, Location, Roles, Words
from bnp_dask.data.base import (
    BATCH_BYTES,
    ENTRY_BYTES,
    PIECE_BYTES,
    Source,
    batch_rows,
    check_batch_size,
    check_dtype,
    check_names,
    columns_of,
    float_rows,
    parsed,
)
from bnp_dask.data.groups import INT, Cut, GroupedSource, Steps, blocks_of, require_all, times_of, whole_groups
from bnp_dask.data.ingestion.patches import Patches, PatchStream, group_names
from bnp_dask.data.ingestion.streams import (
    COLUMN_FILES,
    STREAMED,
    Piece,
    Stream,
    TextTable,
    check_format,
    detect,
    detect_text,
    format_of_text,
)
from bnp_dask.data.ingestion.writers import WORKERS, BatchSizes, CountsWriter, RowsWriter, write_vector
from bnp_dask.data.sources.arrays import ArraySource, NpyReader, NpySource
from bnp_dask.data.sources.columns import PLAIN_READING, Cells, Reading, as_arrow, as_table, fill_rows, read_cells
from bnp_dask.data.sources.forms import Documents, plain_form
from bnp_dask.data.sources.frames import is_frame, table_of_frame
from bnp_dask.data.sources.open import as_source, open_path, parquet_pieces, recordings, with_nan
from bnp_dask.data.sources.parquet import ParquetReader, choose_in_files, common_dtype, first_schema, parquet_files
from bnp_dask.data.sources.zarr import ZarrArray, ZarrRowsReader
from bnp_dask.data.text.files import Corpus, documents_of
from bnp_dask.data.text.ingest import TextReport, write_corpus
from bnp_dask.data.text.options import TEXT_FORMATS, Text
from bnp_dask.data.text.vocabulary import Analysis, WordSums, write_vocabulary
from bnp_dask.data.view import OrderedSource, WeightedSource
from bnp_dask.errors import DataError, SettingError, StoreError, answering
from bnp_dask.inputs import as_file, flag, is_stream, is_whole, one_of, shown, whole_number
from bnp_dask.kernels import mix

# -- Rows on their way into a store: duplicates left out, projected to fewer columns, sorted into groups ----------


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


# -- ``ingest``: any supported file into a batched Zarr store, as a stream ----------------------------------------


# -- settings ------------------------------------------------------------------------------------------------------
def check_ingest(
    batch_size: Any, batch_bytes: Any, project: Any, patches: Any, text: Any, progress: Any, workers: Any
) -> None:
    """SettingError for settings without meaning."""
    whole_number("workers", workers, 1, what="a number of workers")
    if batch_size is not None:
        check_batch_size(batch_size)
    whole_number("batch_bytes", batch_bytes, 1, what="a whole number of bytes")
    if project is not None and not isinstance(project, (str, os.PathLike)):
        whole_number("project", project, 1, what="a number of components, or the path of a store that was projected")
    for name, value, kind in (("patches", patches, Patches), ("text", text, Text)):
        if value is not None and not isinstance(value, kind):
            raise SettingError(f"{name}={shown(value)}: needs {kind.__name__}(...), or None")
    if progress is not None and not callable(progress):
        raise SettingError(f"progress={shown(progress)}: needs a function of two numbers, or None")


def check_deduplicate(value: Any, weights: Any) -> Deduplicate | None:
    """The value; SettingError if it is unknown, or contradicts weights."""
    if value is None:
        return None
    one_of("deduplicate", value, get_args(Deduplicate))
    if value == "once" and weights is not None:
        raise SettingError(
            f'deduplicate="once" lets every row count once, and weights={shown(weights)} says how often it counts: '
            'leave one out, or give deduplicate="weights"'
        )
    found: Deduplicate = value
    return found


def check_use(location: Location, kind: str, patches: Patches | None, text: Text | None) -> None:
    """SettingError for settings of images or of text if the source is neither."""
    if patches is not None and kind != "images":
        raise SettingError(f"{location.name} is no image or folder of images (format {kind}), and has no patches")
    if text is not None:
        raise SettingError(f"{location.name} has format {kind}, which is no raw text; leave the settings of text out")


def check_target(target: Location, location: Location, overwrite: Any) -> None:
    """DataError if the target exists and may not be replaced."""
    replaces = flag("overwrite", overwrite)
    if target.url == location.url:
        raise DataError(f"{target.name}: source and target are the same")
    if (is_there := target.exists()) and not replaces:
        raise DataError(f"{target.name} exists; pass overwrite=True (--overwrite) to replace it, or another name")
    if is_there and not _is_store(target):
        raise DataError(f"{target.name} exists and is no Zarr store; only stores are replaced: choose another name")


def _is_store(target: Location) -> bool:
    """Whether the target is a Zarr store, or parts of a store whose writing was cut short on remote storage."""
    if not target.is_dir() or (target.is_local and os.path.islink(target.url)):
        return False
    return "zarr.json" in (names := target.names()) or all(target.child(n, "zarr.json").exists() for n in names)


# -- report --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class IngestReport:
    """Facts about the data that an ingest read and wrote.

    Parameters
    ----------
    source, out
        Names of source and store.
    format
        Format of the source.
    kind
        ``"rows"`` or ``"counts"``.
    n_atoms, n_features, n_batches
        Sizes: atoms, columns or words, batches.
    nbytes
        Bytes of all batches once loaded (float64).
    stored_bytes
        Bytes on disk.
    dtype
        Dtype of the stored values.
    n_entries, n_tokens, n_empty
        Counts only: entries, sum of counts, documents without words.
    notes
        Notes for the reader of the report.
    text
        Raw text only: facts about it.
    n_groups
        Rows only: number of groups, each block of a group that was cut counted; None for ungrouped rows.
    n_cuts
        Number of cuts inside groups.
    sizing
        Number of workers for which batches were cut, and whether each gets four; empty if their size was given.
    """

    source: str
    out: str
    format: str
    kind: str
    n_atoms: int
    n_features: int
    n_batches: int
    nbytes: int
    stored_bytes: int
    dtype: str
    n_entries: int = 0
    n_tokens: float = 0.0
    n_empty: int = 0
    notes: tuple[str, ...] = ()
    text: TextReport | None = None
    n_groups: int | None = None
    n_cuts: int = 0
    sizing: str = ""

    def __str__(self) -> str:
        what = "documents" if self.kind == "counts" else "atoms"
        width = "words" if self.kind == "counts" else "features"
        lines = [
            f"{self.source} ({self.format}) -> {self.out}",
            f"  {self.n_atoms:,} {what}, {self.n_features:,} {width}, {self.n_batches:,} batches, "
            f"{self.nbytes / 2**20:,.1f} MB in memory, {self.stored_bytes / 2**20:,.1f} MB stored as {self.dtype}",
        ]
        if self.sizing:
            lines.append(f"  {self.sizing}")
        if self.kind == "counts":
            lines.append(f"  {self.n_entries:,} entries, {self.n_tokens:,.0f} tokens, {self.n_empty:,} empty documents")
        if self.n_groups is not None:
            lines.append(f"  {self.n_groups:,} groups")
            if self.n_cuts:
                whole = self.n_groups - self.n_cuts
                lines[-1] += (
                    f": {whole:,} in the source, cut in {self.n_cuts:,} places. As sequences, each block starts anew, "
                    f"and {self.n_cuts:,} of {max(self.n_atoms - whole, 0):,} transitions are not counted"
                )
        if self.text is not None:
            lines += self.text.lines()
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


# -- plan ----------------------------------------------------------------------------------------------------------
Progress = Callable[[float, int], None]
"""Called with the share of the source that was read, 0 to 1, and the number of atoms written so far."""


@dataclass(frozen=True, eq=False)
class Input:
    """The source as a stream that can be read several times; ``notes`` and ``named`` are set by the first reading.

    ``source`` are data that are no file, opened as :func:`bnp_dask.as_source` does.
    """

    location: Location
    format: str
    columns: Sequence[str] | None
    weights: Any
    patches: Patches
    notes: list[str] = field(default_factory=list)
    table: GroupedTable | None = None
    named: list[Columns] = field(default_factory=list)
    reading: Reading = PLAIN_READING
    source: Source | None = None

    @property
    def words(self) -> Words | None:
        """Words of documents in memory; None for other data."""
        source = self.source.whole if isinstance(self.source, WeightedSource) else self.source
        return source.words if isinstance(source, ArraySource) else None

    def cut(self, n_features: int, rows: int, cut: int | None, sizes: BatchSizes | None) -> Cut | None:
        """Groups of the rows, cut as requested, from a column or a store with groups; else None."""
        name = self.location.name
        if self.table is not None:
            found = self.table
            rows = _rows_of_groups(blocks_of(found.offsets, found.breaks, cut)[0], n_features, rows, sizes)
            return Cut.within(found.offsets, n_features, rows, name, cut, found.breaks, found.ids)
        if self.format == "images" and self.patches.by_image:
            images = PatchStream(self.location, self.patches).groups()
            whole = np.concatenate([[0], np.cumsum([size for _, _, size in images])]).astype(np.int64)
            rows = _rows_of_groups(blocks_of(whole, None, cut)[0], n_features, rows, sizes)
            ids = pa.array(group_names([file for _, file, _ in images]))
            return Cut.within(whole, n_features, rows, name, cut, None, ids)
        source = self.source
        if self.format == "zarr":
            source = open_path(self.location, None, None, None, self.format)
        if isinstance(source, GroupedSource):
            whole, breaks = whole_groups(source.all_offsets(), source.names.all_blocks())
            rows = _rows_of_groups(blocks_of(whole, breaks, cut)[0], n_features, rows, sizes)
            return Cut.within(whole, n_features, rows, name, cut, breaks, source.names.ids)
        if cut is not None:
            raise SettingError(
                f"{name}: cut={cut} cuts sequences into blocks; name the column that tells them apart: group_column="
            )
        return None

    def pieces(self) -> Iterator[tuple[Piece, float]]:
        """Atoms with weights, in the stored dtype, and the share read."""
        if self.table is not None:
            self._name(self.table.columns)
            yield from self.table.pieces()
            return
        if self.format in STREAMED:
            columns = self.named[0] if self.named else self.columns
            stream = Stream(self.location, self.format, columns, self.weights, self.patches, reading=self.reading)
            self._name(stream.named)
            for piece in stream.pieces():
                yield piece, stream.fraction()
            self.notes[:] = stream.notes
            return
        if self.source is not None:
            yield from self._opened(self.source)
            return
        # the second pass uses the columns that the first chose, so that the choice is reported once
        columns = self.named[0] if self.named and self.format in COLUMN_FILES else self.columns
        source: Any = open_path(self.location, None, self.weights, columns, self.format, reading=self.reading)
        if isinstance(source, NpySource):
            # a file that can be cut anywhere is read in small pieces
            rows = batch_rows(source.n_features, None, PIECE_BYTES)
            source = open_path(self.location, rows, self.weights, self.columns, self.format)
        if isinstance(source, GroupedSource):
            source = source.whole
        self._name(columns_of(source))
        for index in range(source.n_batches):
            reader = source.reader(index)
            if isinstance(reader, NpyReader | ZarrRowsReader | ParquetReader):
                x, weights = reader.load(source.dtype.newbyteorder("="))
            else:
                batch = reader()
                x, weights = batch.x, batch.weights
            yield (x, weights), (index + 1) / source.n_batches

    def _opened(self, source: Source) -> Iterator[tuple[Piece, float]]:
        self._name(columns_of(source))
        kind = dtype_of(source)
        for index in range(source.n_batches):
            batch = source.reader(index)()
            x = batch.x if kind is None else np.asarray(batch.x).astype(kind)
            yield (x, batch.weights), (index + 1) / source.n_batches

    def _name(self, columns: Columns | None) -> None:
        self.named[:] = [] if columns is None else [columns]


def dtype_of(source: Source) -> np.dtype | None:
    """Dtype of an array in memory; None for other sources, whose batches are float64 or counts."""
    match source:
        case GroupedSource() | WeightedSource() | OrderedSource():
            return dtype_of(source.whole)
        case ArraySource():
            return source.x.dtype.newbyteorder("=") if isinstance(source.x, np.ndarray) else None
        case _:
            return None


def _rows_of_groups(offsets: np.ndarray, n_features: int, rows: int, sizes: BatchSizes | None) -> int:
    """Rows of a batch of groups: fewer than ``rows`` if batches would be few, but no fewer than the largest group."""
    if sizes is None:
        return rows
    longest = int(np.diff(offsets).max(initial=1))
    return min(rows, max(longest, sizes.of(8 * n_features * int(offsets[-1])) // (8 * n_features)))


@contextlib.contextmanager
def named_errors(location: Location, target: Location) -> Iterator[None]:
    """Name the source in errors of parsers, and source and target in errors of the operating system."""
    try:
        with parsed(location.name):
            yield
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or error
        raise StoreError(f"cannot turn {location.name} into {target.name}: {what}") from error


@dataclass(frozen=True, eq=False)
class Plan:
    """Source, target and settings of one call of ``ingest``."""

    given: Input
    building: Location
    target: Location
    batch_size: int | None
    batch_bytes: int
    vocabulary: str | os.PathLike[str] | None
    project: int | str | os.PathLike[str] | None
    dtype: str | None
    progress: Progress | None
    cut: int | None = None
    workers: int = WORKERS
    deduplicate: Deduplicate | None = None

    @property
    def sizes(self) -> BatchSizes | None:
        """How batches are cut; None if their size was given."""
        return None if self.batch_size is not None else BatchSizes(self.batch_bytes, self.workers)

    def distinct(self, cut: Cut | None) -> DistinctRows | None:
        """How repeated rows are united; None if they are kept.

        Raises
        ------
        SettingError
            The rows are in groups: equal rows of different groups have different meanings.
        """
        if self.deduplicate is None:
            return None
        if cut is not None:
            raise SettingError(
                f"{self.given.location.name} has its rows in groups, in which a row may occur twice for a reason; "
                "leave deduplicate= out"
            )
        return DistinctRows(self.deduplicate)

    def sizing(self, n_batches: int, grouped: bool = False) -> str:
        """A line about the batches, if ``ingest`` chose their size."""
        return "" if self.sizes is None else self.sizes.line(n_batches, grouped)

    def tell(self, fraction: float, n_atoms: int) -> None:
        """Call the user's function, if any; SettingError if it raises."""
        if self.progress is None:
            return
        try:
            self.progress(fraction, n_atoms)
        except Exception as error:  # the caller's error; without this name it would look like damaged data
            raise SettingError(f"progress: {type(error).__name__} in the function given: {error}") from error


def chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    """Iterate over the first item and then the rest."""
    yield first
    yield from rest


def stored_bytes(location: Location) -> int:
    """Bytes of all files of a store."""
    fs, path = location.filesystem()
    with location.discreet():
        return int(fs.du(path))


# -- counts --------------------------------------------------------------------------------------------------------
_UNBATCHED = 2**62


def write_counts(plan: Plan, pieces: Iterator[tuple[Piece, float]], sample: sparse.csr_array) -> IngestReport:
    """Write pieces of counts, of which ``sample`` is the first, and the vocabulary if one was given."""
    name = plan.given.location.name
    own = plan.given.words
    words = _read_vocabulary(plan.vocabulary) if plan.vocabulary is not None else None if own is None else own.words
    # counts of these two formats are whole by definition; other sources may hold any number
    whole = plan.given.format in ("docword", "ldac")
    kind = np.dtype(np.uint32 if whole else np.float64)
    writer, sums = _counts_writer(plan, kind), WordSums()
    for (held, weights), fraction in pieces:
        x = sparse.csr_array(held)
        if words is not None:
            sums.add(x)
        if whole and x.nnz and x.data.max() > np.iinfo(np.uint32).max:
            raise DataError(f"{name}: a count of {x.data.max():.0f}, more than 2**32 - 1")
        writer.add(x, weights, fraction)
        plan.tell(fraction, writer.n_atoms)
    notes: list[str] = []
    facts: dict[str, Any] = {"vocabulary": False}
    if words is not None:
        if len(words) < writer.n_words:
            raise DataError(f"vocabulary {plan.vocabulary} has {len(words)} words, but {name} has {writer.n_words}")
        writer.n_words = len(words)
        analysis = None if own is None or own.analysis is None else Analysis.from_json(own.analysis)
        facts = write_vocabulary(plan.building, words, *sums.of(len(words)), analysis)
    if writer.n_empty:
        notes.append(f"{writer.n_empty} documents have no words; they are kept as rows without entries")
    if plan.given.format.startswith("svmlight"):
        notes.append("labels of the file are not kept")
    writer.close(facts, name)
    plan.tell(1.0, writer.n_atoms)
    return _counts_report(plan, writer, notes)


def _counts_writer(plan: Plan, kind: np.dtype) -> CountsWriter:
    entries = _UNBATCHED if plan.batch_size is not None else max(1, plan.batch_bytes // ENTRY_BYTES)
    return CountsWriter(plan.building, kind, entries, plan.batch_size, plan.sizes)


def _counts_report(
    plan: Plan, writer: CountsWriter, notes: Sequence[str], text: TextReport | None = None
) -> IngestReport:
    loaded = ENTRY_BYTES * writer.n_entries + 4 * (writer.n_atoms + writer.n_batches)
    return IngestReport(
        plan.given.location.name, plan.target.name, plan.given.format, "counts", writer.n_atoms, writer.n_words,
        writer.n_batches, loaded, stored_bytes(plan.building), str(writer.count_dtype), writer.n_entries, writer.total,
        writer.n_empty, tuple(notes), text,
        sizing=plan.sizing(writer.n_batches),
    )  # fmt: skip


def write_text(plan: Plan, corpus: Corpus) -> IngestReport:
    """Count the words of raw text and write the counts."""
    if plan.project is not None or plan.dtype is not None or plan.given.weights is not None:
        raise SettingError(f"{corpus.name} is raw text; project=, dtype= and weights= are for other data")
    writer = _counts_writer(plan, np.dtype(np.uint32))
    written = write_corpus(corpus, plan.building, writer, plan.vocabulary, plan.tell)
    writer.close(written.facts, corpus.name)
    plan.tell(1.0, writer.n_atoms)
    return _counts_report(plan, writer, written.report.notes, written.report)


def _read_vocabulary(path: str | os.PathLike[str]) -> Sequence[str]:
    location = Location.of(path)
    location.require()
    with location.open("infer") as file:
        return file.read().decode("utf-8", "replace").splitlines()


# -- ingest --------------------------------------------------------------------------------------------------------
@answering
def ingest(
    source_path: Any,
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    batch_size: int | None = None,
    batch_bytes: int = BATCH_BYTES,
    columns: Sequence[str] | None = None,
    weights: Any = None,
    vocabulary: str | os.PathLike[str] | None = None,
    project: int | str | os.PathLike[str] | None = None,
    patches: Patches | None = None,
    text: Text | None = None,
    dtype: str | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    group_column: str | None = None,
    order_column: str | None = None,
    gaps: Literal["refuse", "cut", "ignore"] | None = None,
    step: float | None = None,
    cut: int | None = None,
    workers: int = WORKERS,
    deduplicate: Deduplicate | None = None,
    on_bad_cell: Literal["raise", "missing"] | None = None,
) -> IngestReport:
    """Turn a file, or data in memory, into a batched Zarr store; holds one batch of a file at a time.

    Parameters
    ----------
    source_path
        Path or URL: Zarr, Parquet, .npy, .npz, CSV, IDX, UCI docword, LDA-C or svmlight; text may be packed (.gz, ...).
        An image or a folder of images becomes grey patches.  Raw text becomes counts of words: a folder or archive
        (.zip, .tar, .tar.gz, ...) of text files, JSON lines, a CSV or Parquet file with a column of text, a file with
        one document per line (format ``"lines"``); or a function that makes an iterator over ``(id, text)`` or
        ``(id, text, metadata)``, called once for each of two passes, or a list of these, or of texts.  Or a table: a
        DataFrame, or one that gives an Arrow C stream (Arrow, polars, DuckDB), whose rows go through a temporary file.
        Or anything else that :func:`as_source` takes: arrays, sequences, a DataArray, sparse counts, a folder of
        recordings, a source.
    out
        Path or URL of the store.  A local store appears under this name only when it is complete.
    format
        Format of the source, if its name and first bytes do not determine it.  ``"text"`` is raw text of the detected
        kind, every file of a folder, or one document per line.
    batch_size, batch_bytes
        Atoms per batch, else bytes per batch in memory (float64).
    columns, weights
        As in :func:`as_source`.  Of raw text, ``columns`` are the metadata to keep; default: all.
    vocabulary
        Text file with one word per line, stored beside counts.  For raw text also a store that was ingested, whose
        words and settings are used: for held-out documents.
    project
        Number of principal components to project dense rows on (two passes), or the path of a store that was
        projected, to use its projection (for held-out data).
    patches
        How images are cut; default: every 8x8 patch, less its mean.
    text
        How raw text becomes counts; also marks a file or folder as raw text.  The store then holds the
        vocabulary (:func:`load_vocabulary`), and ids and metadata of the documents (:func:`load_documents`).
    dtype
        How dense values are stored: ``"float32"``, ``"float64"``, ``"uint8"``, ...  Default: as in the source;
        projected rows as float64, patches of images as float32.  Refused if it would change an integer.
    progress
        Called after every piece with the share read and the atoms so far.
    overwrite
        Replace a store at ``out``; anything else there is never replaced.
    storage_options
        Passed to fsspec for URLs (both ends).
    group_column, order_column
        Tables (Parquet, CSV): a column of ids says which rows belong together (a sequence, an image, a hospital);
        another sorts the rows of each group.  Groups come in the order of their first rows; rows out of place are
        sorted in a temporary file, with 12 to 28 bytes per row in memory.  Batches never cut a group.
    gaps, step, cut
        As in :func:`as_source`: treatment of gaps in the order column, length of a step, and the most rows of a block
        into which long sequences may be cut.
    workers
        Number of workers that will use the data.  Batches are smaller than ``batch_bytes`` if each worker would get
        fewer than four, down to about a megabyte in memory: a visit of a smaller batch takes longer than its
        computation.  For packed counts the size is a guess from the share read.  Ignored if ``batch_size`` is given.
    deduplicate
        Keep repeated dense rows without groups, equal in every stored value, once, at their first occurrence.
        ``"weights"``: their weights are summed, or their number counted if they have none, so that a model learns the
        same as from all rows, in less time.  ``"once"``: each counts once, however often it occurs; copies that are not
        separate observations would appear as evidence of a cluster.  Rows go through temporary files, with 32 bytes in
        memory for each distinct row.
    on_bad_cell
        As in :func:`as_source`: cells that are not numbers are an error, or ``"missing"``, stored as NaN.

    Returns
    -------
    IngestReport
        Numbers of atoms, batches and features written, and records left out, with the reason; prints as lines.
        :func:`bnp_dask.train` and :func:`as_source` take the path ``out``.

    Raises
    ------
    DataError
        The source cannot be read, or something is at ``out``.
    SettingError
        A setting out of range, or one that does not apply to the format, such as ``patches`` for a table.
    StoreError
        The store cannot be written, as the disk is full; nothing is left of it.
    """
    columns = check_names(columns, {"group_column": group_column, "order_column": order_column})
    check_ingest(batch_size, batch_bytes, project, patches, text, progress, workers)
    if on_bad_cell is not None:
        one_of("on_bad_cell", on_bad_cell, ON_BAD_CELL)
    reading, project = Reading(on_bad_cell=on_bad_cell), int(project) if is_whole(project) else project
    target = Location.of(out, storage_options, "out")
    form = _form(source_path, text, format)
    opened = None
    if not isinstance(form, (str, os.PathLike, pa.Table)) and not is_stream(form) and not _are_documents(form):
        opened = as_source(form, columns=columns, weights=weights, on_bad_cell=on_bad_cell, text=text)
        if vocabulary is not None and isinstance(form, Documents):
            raise SettingError("vocabulary= is for texts and counts without words; these documents bring their own")
    with as_file(form) as held:
        location, kind, corpus = _opened(held, format, text, columns, storage_options, opened)
        check_use(location, kind, patches, text if corpus is None and opened is None else None)
        check_target(target, location, overwrite)
        # a local store gets its name at the end; elsewhere the group's metadata, written last, makes it complete
        building = target.sibling(f".{target.basename}.{uuid.uuid4().hex[:12]}") if target.is_local else target
        cutting = Cutting.of(cut, gaps, step, order_column)
        table = grouped_table(location, kind, group_column, order_column, columns, weights, cutting, reading)
        given = Input(
            location, kind, columns, weights, patches or Patches(), table=table, reading=reading, source=opened
        )  # fmt: skip
        plan = Plan(
            given, building, target, batch_size, batch_bytes, vocabulary, project, dtype, progress, cut, workers,
            check_deduplicate(deduplicate, weights),
        )  # fmt: skip
        if overwrite and not target.is_local and target.exists():
            target.remove()
        try:
            # errors of the caller's own function stay unchanged
            with named_errors(location, target) if kind != "documents" else contextlib.nullcontext():
                report = _write(plan) if corpus is None else write_text(plan, corpus)
                if target.is_local:
                    _put_in_place(building, target)
                is_file = isinstance(source_path, (str, os.PathLike))
                return report if held is form or is_file else replace(report, source=type(source_path).__name__)
        except BaseException:
            if building.exists():
                building.remove()
            raise


def _form(data: Any, text: Text | None, format: str | None) -> Any:
    """The source in the form in which it is read: a path, a table, documents, or data that are opened as sources."""
    if isinstance(data, (str, os.PathLike)):
        return data if format is not None or text is not None else recordings(data)
    if (callable(data) and not isinstance(data, type)) or _are_documents(data):
        return data
    form = as_table(plain_form(with_nan(data)))
    if isinstance(form, Documents) and form.kind == "texts":
        return [(str(number), one) for number, one in enumerate(form.items)]
    return table_of_frame(form) if is_frame(form) else form


def _are_documents(data: Any) -> bool:
    """Whether data are a function that makes documents, or pairs (id, text)."""
    if callable(data) and not isinstance(data, type) and not isinstance(data, Source):
        return True
    if isinstance(data, (list, tuple)) and len(data) == 0:
        return True  # of which the error says that there are none
    first = data[0] if isinstance(data, (list, tuple)) else None
    return isinstance(first, tuple) and len(first) in (2, 3) and isinstance(first[1], str)


def _opened(
    source_path: Any,
    format: str | None,
    text: Text | None,
    columns: Sequence[str] | None,
    options: Any,
    opened: Source | None,
) -> tuple[Location, str, Corpus | None]:
    """Place and format of a source, and its documents if it is raw text."""
    if opened is not None:
        if format is not None:
            raise SettingError(f"format={format!r} is for files; data is {type(source_path).__name__}")
        return Location(opened.name), "memory", None
    if not isinstance(source_path, (str, os.PathLike)):
        documents, name = documents_of(source_path)
        return Location(name), "documents", Corpus(name, "documents", documents, text or Text(), columns)
    location = Location.of(source_path, options, "source_path")
    location.require()
    kind = check_format(format) if format is not None else _kind(location, text)
    kind = format_of_text(location, text or Text()) if kind == "text" else kind
    is_text = kind in TEXT_FORMATS
    return location, kind, Corpus(location.name, kind, location, text or Text(), columns) if is_text else None


def _write(plan: Plan) -> IngestReport:
    pieces = plan.given.pieces()
    first = next(pieces, None)
    if first is None:
        raise DataError(f"{plan.given.location.name} has no rows")
    if isinstance(first[0][0], np.ndarray):
        if plan.vocabulary is not None:
            raise DataError(f"{plan.given.location.name} holds dense rows, which have no vocabulary")
        return _write_rows(plan, chained(first, pieces), first[0][0])
    if any(given is not None for given in (plan.project, plan.dtype, plan.cut, plan.deduplicate)):
        raise DataError(
            f"{plan.given.location.name} holds counts; project=, dtype=, cut= and deduplicate= are for dense rows"
        )
    return write_counts(plan, chained(first, pieces), first[0][0])


def _write_rows(plan: Plan, pieces: Iterator[tuple[Piece, float]], sample: np.ndarray) -> IngestReport:
    name = plan.given.location.name
    projection = _projection(plan, sample.shape[1])
    usual: DTypeLike = np.float32 if plan.given.format == "images" else sample.dtype
    usual = np.float64 if projection is not None else usual
    try:
        kind = np.dtype(usual if plan.dtype is None else plan.dtype)
    except (TypeError, ValueError) as error:
        raise SettingError(f'dtype={shown(plan.dtype)}: needs a type of numbers, such as "float32"') from error
    kind = check_dtype(kind, f"dtype={plan.dtype!r}")
    d = sample.shape[1] if projection is None else projection.n_components
    rows = batch_rows(d, plan.batch_size, plan.batch_bytes)
    cut = plan.given.cut(d, rows, plan.cut, plan.sizes)
    writer = RowsWriter(plan.building, d, kind, rows, cut, plan.sizes)
    begin = 0.5 if isinstance(plan.project, int) else 0.0
    stored, distinct = _stored(pieces, projection, kind, name), plan.distinct(cut)
    for (x, weights), fraction in stored if distinct is None else distinct.pieces(stored):
        writer.add(x, weights, fraction)
        plan.tell(begin + (1 - begin) * fraction, writer.n_atoms)
    facts: dict[str, Any] = {}
    if plan.given.named and projection is None:
        facts["columns"] = plan.given.named[0].to_json()
    notes = [*plan.given.notes, *([] if distinct is None else [distinct.note()])]
    if plan.given.table is not None and not plan.given.table.is_sorted:
        notes.append("rows were sorted into groups: they lie in another order than in the source")
    if plan.given.format == "images":
        facts["patches"] = asdict(plan.given.patches)
    if projection is not None:
        write_vector(plan.building.child("projection_mean"), projection.mean)
        write_vector(plan.building.child("projection_components"), projection.components)
        facts["projected"] = {"from": projection.n_features, "explained": projection.explained}
        share = projection.explained
        kept = "" if share is None else f", which keep {100 * share:.1f} % of the variance"
        notes.append(f"{projection.n_features} features projected on {d} principal components{kept}")
    writer.close(facts, name)
    plan.tell(1.0, writer.n_atoms)
    loaded = 8 * writer.n_atoms * d
    return IngestReport(
        name, plan.target.name, plan.given.format, "rows", writer.n_atoms, d, writer.n_batches, loaded,
        stored_bytes(plan.building), str(kind), notes=tuple(notes),
        sizing=plan.sizing(writer.n_batches, cut is not None),
        n_groups=None if cut is None else len(cut.offsets) - 1,
        n_cuts=0 if cut is None else cut.n_cuts,
    )  # fmt: skip


def _stored(
    pieces: Iterator[tuple[Piece, float]], projection: Projection | None, kind: np.dtype, name: str
) -> Iterator[tuple[Piece, float]]:
    """Rows as they are stored."""
    row = 0
    for (x, weights), fraction in pieces:
        done = projection.apply(x, name) if projection is not None else x
        yield (_convert(done, kind, name, row), weights), fraction
        row += len(x)


def _projection(plan: Plan, n_features: int) -> Projection | None:
    if plan.project is None:
        return None
    if isinstance(plan.project, int):
        name = plan.given.location.name
        pieces = (_told(plan, piece, share) for piece, share in plan.given.pieces())
        return fit_projection(pieces, plan.project, n_features, name)
    return load_projection(Location.of(plan.project, argument="project"), n_features)


def _told(plan: Plan, piece: Piece, share: float) -> Piece:
    plan.tell(0.5 * share, 0)
    return piece


def _convert(x: np.ndarray, kind: np.dtype, name: str, row: int) -> np.ndarray:
    """Values in the stored dtype; DataError if an integer dtype would change one."""
    check_dtype(x.dtype, name)
    if x.dtype == kind:
        return x
    with np.errstate(invalid="ignore", over="ignore"):
        out = x.astype(kind)
    with np.errstate(invalid="ignore"):
        changed = np.argwhere(out.astype(x.dtype) != x) if x.dtype.kind in "iu" and kind.kind == "f" else None
    if changed is not None and len(changed):
        at = changed[0]
        raise DataError(
            f"{name}: dtype {kind} cannot hold {x[tuple(at)]} (row {row + at[0]}, column {at[1]}); store as {x.dtype}, "
            "or as float64 where numbers are at most 2**53"
        )
    if kind.kind in "biu" and not np.array_equal(out.astype(np.float64), x.astype(np.float64)):
        raise DataError(
            f"{name}: dtype {kind} cannot hold the values of rows {row} and after; store as float32 or float64"
        )
    if kind.kind == "f" and np.isinf(out).any() and not np.isinf(x).any():
        raise DataError(f"{name}: rows {row} and after hold values too large for {kind}; store as float64")
    return out


def _kind(location: Location, text: Text | None) -> str:
    with parsed(location.name):
        return detect(location) if text is None else detect_text(location, text)


def _put_in_place(building: Location, target: Location) -> None:
    """Give a finished local store its name; an existing store is first moved aside and deleted last."""
    old = target.sibling(f".{target.basename}.{uuid.uuid4().hex[:12]}.old")
    if target.exists():
        os.rename(target.url, old.url)
    os.rename(building.url, target.url)
    if old.exists():
        old.remove()
