"""Parquet and Arrow files: dense rows, and sparse counts in either of two shapes.

Rows are columns of numbers, or of lists of numbers.  Counts are

long
    Columns ``doc``, ``word``, ``count``: one row per entry.  Documents are the values of ``doc`` that occur, in
    increasing order; best sorted by ``doc``, else every batch reads much of the file.
lists
    Columns ``words`` and ``counts``: one row per document, each a list.

Words count from 0.  The number of words is the metadata entry ``n_words`` of the (first) file, else one more than the
largest word.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import sparse

from bnp_dask.core import NO_ROLES, Batch, Columns, Location, Roles, check_weights
from bnp_dask.core.columns import few
from bnp_dask.data.base import (
    BATCH_BYTES,
    ENTRY_BYTES,
    PIECE_BYTES,
    Stored,
    batch_name,
    batch_rows,
    build_csr,
    check_batch_size,
    check_width,
    fingerprint_of_files,
    spans,
)
from bnp_dask.data.sources.columns import (
    DATES,
    IDS,
    LEAST_ROWS,
    NAMELESS,
    NO_VALUE,
    PLAIN_READING,
    ROW_NUMBERS,
    TEXTS,
    TIMES,
    Cells,
    Reading,
    TableColumn,
    arrow_columns,
    choose,
    distinct,
    dtype_of,
    fill_rows,
    holds_levels,
    is_list,
    is_numeric,
    is_text,
    looked_at,
    may_be_numbers,
    numbers,
    pending,
    read_cells,
    says_role,
    union,
    with_found,
)
from bnp_dask.errors import DataError, nearest
from bnp_dask.inputs import to_float

# -- Arrow files ---------------------------------------------------------------------------------------------------
ARROW_SUFFIXES = (".arrow", ".feather")

STATE, SPLITS = "state.json", "dataset_dict.json"
"""Files in which ``datasets`` describes a folder: with one data set, or several."""

MAGIC = b"ARROW1"
"""First bytes of a file that has a table of contents; others are streams."""


def is_arrow(location: Location) -> bool:
    """Whether a file is an Arrow file by its name."""
    return location.basename.lower().endswith(ARROW_SUFFIXES)


def is_saved_dataset(location: Location) -> bool:
    """Whether a folder was written by ``Dataset.save_to_disk``.

    Raises
    ------
    DataError
        The folder holds several data sets.
    """
    if location.child(STATE).exists():
        return True
    if not location.child(SPLITS).exists():
        return False
    splits = [str(name) for name in _read(location.child(SPLITS)).get("splits", [])]
    first = splits[0] if splits else "train"
    raise DataError(
        f"{location.name}: holds the data sets {', '.join(splits) or 'of no name'}; give one: {location.name}/{first}"
    )


def dataset_files(location: Location) -> list[Location]:
    """The Arrow files of a saved data set, in their order."""
    state = _read(location.child(STATE))
    if state.get("_indices_data_files"):
        raise DataError(
            f"{location.name}: was saved as a selection of the rows of its files; save it again after "
            "dataset.flatten_indices()"
        )
    names: list[Any] = [entry.get("filename") for entry in state.get("_data_files") or [] if isinstance(entry, dict)]
    if not names or any(not isinstance(name, str) or "/" in name or "\\" in name or name == ".." for name in names):
        raise DataError(f"{location.child(STATE).name}: names no files of the data set; save it again")
    return [location.child(name) for name in names]


def _read(location: Location) -> dict[str, Any]:
    try:
        with location.open() as file:
            found = json.loads(file.read().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{location.name}: is no JSON ({error}); save the data set again") from error
    if not isinstance(found, dict):
        raise DataError(f"{location.name}: does not describe a data set; save it again")
    return found


class RowCount:
    """Number of rows of a file, with the interface of Parquet's footers: one row group."""

    num_row_groups = 1

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def row_group(self, index: int) -> RowCount:
        """The only row group."""
        return self


class ArrowFile:
    """An Arrow file, mapped into memory, with the interface of ``pyarrow.parquet.ParquetFile``.

    Raises
    ------
    DataError
        The file lies on remote storage, is damaged, or is not an Arrow file.
    """

    def __init__(self, location: Location) -> None:
        if not location.is_local:
            raise DataError(
                f"{location.name}: Arrow files are read from local disks only; copy it, or write Parquet or Zarr there"
            )
        self._name = location.name
        try:
            self._map = pa.memory_map(location.url)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{location.name}: no Arrow file ({error})") from error
        try:
            self._has_contents = self._map.size() > len(MAGIC) and self._map.read(len(MAGIC)) == MAGIC
            next(self._batches(), None)
            self._stored = self._reader().schema
        except BaseException:
            self._map.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._map.close()

    @property
    def schema_arrow(self) -> pa.Schema:
        """Its columns."""
        return self._stored

    @cached_property
    def metadata(self) -> RowCount:
        """Number of rows; for a stream this reads all its headers."""
        return RowCount(sum(batch.num_rows for batch in self._batches()))

    def iter_batches(
        self,
        batch_size: int,
        row_groups: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        use_threads: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Some columns, at most ``batch_size`` rows at a time."""
        for batch in self._batches():
            held = batch if columns is None else batch.select(list(columns))
            try:
                held.validate(full=True)
            except pa.ArrowInvalid as error:
                raise DataError(f"{self._name}: damaged ({error}); write the file again") from None
            for start in range(0, held.num_rows, batch_size):
                yield held.slice(start, batch_size)

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Some columns of all rows."""
        schema = pa.schema([self.schema_arrow.field(name) for name in columns])
        return pa.Table.from_batches(self.iter_batches(2**20, columns=columns), schema)

    def _reader(self) -> Any:
        self._map.seek(0)
        return pa.ipc.open_file(self._map) if self._has_contents else pa.ipc.open_stream(self._map)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Record batches as stored; nothing is copied."""
        try:
            reader = self._reader()
            if self._has_contents:
                yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                yield from reader
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{self._name}: no Arrow file, or one that is cut short ({error})") from None


# -- rows ----------------------------------------------------------------------------------------------------------
COLUMNS_AT_ONCE = 8
"""Columns read together: each holds a page or two of about a megabyte, so a wide table is read in strips."""

LOOKED_AT = 10_000
"""Rows of a file that are inspected if types alone do not determine the content of a column."""

SUFFIXES = (".parquet", ".pq", ".parq")


@dataclass(frozen=True)
class RowGroups:
    """A run of rows in one file: rows ``skip`` to ``skip + take`` of the row groups ``first`` to ``last``.

    ``fault`` is the reason why the file cannot be read, if known already.
    """

    file: Location
    first: int
    last: int
    skip: int
    take: int
    fault: str = ""


def parquet_files(location: Location) -> list[Location]:
    """The files of a data set: the file itself, all Parquet files in a folder, by name, or a saved data set's files."""
    if not location.is_dir():
        return [location]
    if is_saved_dataset(location):
        return dataset_files(location)
    found = location.files(SUFFIXES)
    if not found:
        raise DataError(
            f"{location.name}: a folder with neither Parquet files ({', '.join(SUFFIXES)}) nor a Zarr store"
        )
    return found


def open_file(location: Location) -> pq.ParquetFile | ArrowFile:
    """Open one file, as Arrow by its name or else as Parquet; DataError if it is damaged."""
    return ArrowFile(location) if is_arrow(location) else open_parquet(location)


def open_parquet(location: Location) -> pq.ParquetFile:
    """Open one Parquet file; DataError if it is damaged.  Row groups are not read ahead."""
    try:
        if location.is_local:
            return pq.ParquetFile(location.url, pre_buffer=False, buffer_size=2**16)
        return pq.ParquetFile(location.open(), pre_buffer=False, buffer_size=2**20)
    except (pa.ArrowInvalid, OSError) as error:
        cause = _told(location, error)
        raise DataError(f"{location.name}: no Parquet file, or one that is cut short ({error})") from cause


def _told(location: Location, error: Exception) -> Exception | None:
    """The cause to attach to an error of Arrow: None if the content is damaged.

    Arrow then also raises an OSError, but without the error number of an operating system.
    """
    is_damage = location.is_local and isinstance(error, OSError) and error.errno is None
    return None if is_damage else error


def read_pieces(part: RowGroups, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a part, ``rows`` at a time; DataError names the file and its row groups."""
    if part.fault:
        raise DataError(part.fault)
    with open_file(part.file) as file:
        gone = [c for c in columns if c not in file.schema_arrow.names]
        if gone:
            raise DataError(f"{part.file.name}: column {gone[0]!r} is gone; the data must not change during a run")
        done, stop = 0, part.skip + part.take
        try:
            groups = list(range(part.first, part.last))
            for batch in file.iter_batches(batch_size=rows, row_groups=groups, columns=list(columns)):
                low, high = max(part.skip - done, 0), min(stop - done, batch.num_rows)
                if high > low:
                    yield batch.slice(low, high - low)
                done += batch.num_rows
                if done >= stop:
                    break
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"{part.file.name}: row groups {part.first}-{part.last - 1} are damaged ({error}); write the file again"
            ) from _told(part.file, error)


@dataclass(frozen=True)
class ParquetReader:
    """Reads the rows of one batch, piece by piece."""

    parts: tuple[RowGroups, ...]
    columns: Columns
    name: str

    def load(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows in the wanted dtype, and weights."""
        n, d = sum(p.take for p in self.parts), self.columns.n_features
        layout, coded, by = self.columns.layout, self.columns.coded, self.columns.roles.weights
        out = np.empty((n, d), dtype)
        weights = None if by is None else np.empty(n)
        column, on_bad = 0, self.columns.on_bad_cell or "raise"
        for first in range(0, len(layout), COLUMNS_AT_ONCE):
            group = layout[first : first + COLUMNS_AT_ONCE]
            width = sum(w for _, w in group)
            for name, start, stop, batch in self._pieces([c for c, _ in group], max(1, PIECE_BYTES // (8 * width))):
                fill_rows(out[start:stop, column : column + width], batch, group, name, start, coded, on_bad)
            column += width
        if weights is not None and by is not None:
            for name, start, stop, batch in self._pieces([by], PIECE_BYTES // 8):
                weights[start:stop] = read_cells(batch.column(0), 1, Cells(name, by, start))[:, 0]
            weights = check_weights(weights, n, self.name)
        return out, weights

    def _pieces(self, columns: Sequence[str], rows: int) -> Iterator[tuple[str, int, int, pa.RecordBatch]]:
        """Some columns of all parts: name of the rows in messages, their place in the batch, and the rows."""
        place = 0
        for part in self.parts:
            start = place
            name = self.name if part.file.name in self.name else f"{self.name}, {part.file.basename}"
            for batch in read_pieces(part, columns, rows):
                yield name, place, place + batch.num_rows, batch
                place += batch.num_rows
            if place - start != part.take:
                raise DataError(
                    f"{self.name}: {place - start} rows where the footer of {part.file.name} announces {part.take}"
                )

    def __call__(self) -> Batch:
        x, weights = self.load(np.dtype(np.float64))
        return Batch(x, weights, self.name, names=self.columns.features)


@dataclass(frozen=True, repr=False)
class ParquetSource(Stored):
    """Rows of one or more Parquet files with the same columns."""

    name: str
    columns: Columns
    dtype: np.dtype
    batches: tuple[tuple[RowGroups, ...], ...]
    spans: tuple[tuple[int, int], ...]

    @staticmethod
    def of(
        location: Location,
        batch_size: int | None = None,
        columns: Sequence[str] | Columns | None = None,
        roles: Roles = NO_ROLES,
        is_lenient: bool = False,
        reading: Reading = PLAIN_READING,
    ) -> ParquetSource:
        """Read all footers, compare columns, and group row groups into batches.

        One pass over columns of levels finds the levels unless they are known.
        If ``is_lenient``, a file with other columns or without a footer is an error only when its batch is read.
        """
        files = parquet_files(location)
        schema = _with_types(first_schema(files, is_lenient), files)
        chosen = choose_in_files(files, schema, columns, roles, location.name, reading)
        rows = batch_rows(chosen.n_features, batch_size)
        batches = _plan(files, schema, chosen, rows, batch_size, is_lenient)
        if not batches:
            raise DataError(f"{location.name} has no rows")
        faulty = {part.file.name for parts in batches for part in parts if part.fault}
        found = with_levels_of(location.name, chosen, whole_files(f for f in files if f.name not in faulty))
        return ParquetSource._of(location, found, common_dtype(schema, found), batches)

    @staticmethod
    def between(location: Location, columns: Columns, dtype: np.dtype, edges: np.ndarray) -> ParquetSource:
        """The rows of all files cut at ``edges (B + 1,)``, columns known."""
        bounds = np.asarray(edges).tolist()
        batches: list[list[RowGroups]] = [[] for _ in bounds[1:]]
        before = 0
        files = parquet_files(location)
        with open_file(files[0]) as first:
            schema = first.schema_arrow
        for file in files:
            with open_file(file) as opened:
                _compare(opened.schema_arrow, schema, columns, file, files[0])
            starts = row_starts(file)
            for b, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
                low, high = max(start - before, 0), min(stop - before, int(starts[-1]))
                if high > low:
                    batches[b].append(_rows_of(file, starts, low, high))
            before += int(starts[-1])
        return ParquetSource._of(location, columns, dtype, [tuple(parts) for parts in batches])

    @staticmethod
    def _of(
        location: Location, columns: Columns, dtype: np.dtype, batches: Sequence[tuple[RowGroups, ...]]
    ) -> ParquetSource:
        ends = np.cumsum([sum(p.take for p in b) for b in batches]).tolist()
        cut = tuple(zip([0, *ends[:-1]], ends, strict=True))
        return ParquetSource(location.name, columns, dtype, tuple(batches), cut)

    @property
    def kind(self) -> str:
        return "arrow" if is_arrow(self.batches[0][0].file) else "parquet"

    @property
    def n_features(self) -> int:
        return self.columns.n_features

    def block(self, index: int, name: str) -> ParquetReader:
        return ParquetReader(self.batches[index], self.columns, name)

    def fingerprint(self) -> Any:
        return fingerprint_of_files(part.file for parts in self.batches for part in parts)

    def facts(self) -> dict[str, Any]:
        return {"columns": list(self.columns.names), "weights": self.columns.roles.weights}


def whole_files(files: Iterable[Location]) -> Iterator[RowGroups]:
    """Every file that has rows, as one part."""
    for file in files:
        starts = row_starts(file)
        if starts[-1]:
            yield RowGroups(file, 0, len(starts) - 1, 0, int(starts[-1]))


def with_levels_of(name: str, columns: Columns, parts: Iterable[RowGroups]) -> Columns:
    """The columns with levels from these parts of the data, if they are still to be found."""
    wanted = pending(columns)
    if not wanted:
        return columns
    pieces = (piece for part in parts for piece in read_pieces(part, wanted, PIECE_BYTES // 8))
    found = union(([distinct(piece.column(c), name, c) for c in wanted] for piece in pieces), wanted, name)
    return with_found(columns, found)


# -- columns -----------------------------------------------------------------------------------------------------------
def choose_in_files(
    files: Sequence[Location],
    schema: pa.Schema,
    columns: Sequence[str] | Columns | None,
    roles: Roles,
    name: str,
    reading: Reading,
) -> Columns:
    """The feature columns of files; the first rows are inspected if types do not determine them."""

    def look(found: Sequence[TableColumn]) -> list[TableColumn]:
        counting = _may_count(files[0], {column.label for column in found if column.is_plain})
        return [_looked_at(column, files, name, column.label in counting) for column in found]

    return choose(arrow_columns(schema, name), columns, roles, name, reading, look)[0]


def _looked_at(column: TableColumn, files: Sequence[Location], name: str, may_count: bool = True) -> TableColumn:
    """A column completed with facts from its values, in the first file that has some; ``may_count`` is for numbers."""
    if column.is_plain:
        known = looked_at(column, pa.nulls(0), name, is_all=False)
        if not known.why and _has_none(files, column.label):
            return replace(known, why=NO_VALUE)
        if may_count and not known.why and _counts_rows(files[0], column.label):
            return replace(known, why=ROW_NUMBERS)
        head = _head(files[0], column.label) if says_role(column) and not known.why else None
        if head is None:
            return known
        found = looked_at(column, head, name, is_all=False)
        return found if found.why in (IDS, TIMES) else known
    found = column
    for file in files:
        head = _head(file, column.label)
        if head is None:
            continue
        found = looked_at(column, head, name, is_all=False)
        if found.why == ROW_NUMBERS and column.why != ROW_NUMBERS and not NAMELESS.fullmatch(column.name):
            found = found if _counts_rows(file, column.label) else replace(found, why="")
        if found.why != NO_VALUE:
            break
    return found


def _head(place: Location, column: str) -> pa.Array | None:
    """The first rows of a column of a file; None if it has none or cannot be read."""
    try:
        with open_file(place) as file:
            if column not in file.schema_arrow.names:
                return None
            batch = next(iter(file.iter_batches(batch_size=LOOKED_AT, columns=[column])), None)
    except (DataError, pa.ArrowInvalid, OSError):  # reading its rows raises
        return None
    return None if batch is None or batch.num_rows == 0 else batch.column(0)


def _has_none(files: Sequence[Location], column: str) -> bool:
    """Whether a column has no value in any row of the files; False if their footers do not say so."""
    n_rows = 0
    for place in files:
        try:
            with open_file(place) as file:
                for n, n_null in _nulls(file, column):
                    if n_null < n:
                        return False
                    n_rows += n
        except (DataError, pa.ArrowInvalid, OSError):  # reading its rows raises
            return False
    return n_rows > 0


def _nulls(file: Any, column: str) -> Iterator[tuple[int, int]]:
    """Rows, and nulls among them, of each part of a column: from the footer, or from the values of an Arrow file."""
    if isinstance(file, ArrowFile):
        for batch in file.iter_batches(batch_size=LOOKED_AT, columns=[column]):
            yield batch.num_rows, batch.column(0).null_count
        return
    for group in (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)):
        chunks = (group.column(position) for position in range(group.num_columns))
        known = next((chunk.statistics for chunk in chunks if chunk.path_in_schema == column), None)
        yield group.num_rows, known.null_count if known is not None and known.has_null_count else -1


def _counts_rows(place: Location, column: str) -> bool:
    """Whether a column numbers the rows of a file, from 0 or 1 on."""
    done, cells = 0, Cells("", on_bad="missing")
    first: float | None = None
    try:
        with open_file(place) as file:
            for batch in file.iter_batches(batch_size=LOOKED_AT, columns=[column]):
                values = read_cells(batch.column(0), 1, cells, exact=False)[:, 0]
                first = float(values[0]) if first is None and len(values) else first
                if first not in (None, 0.0, 1.0) or not np.array_equal(
                    values, (first or 0) + done + np.arange(len(values))
                ):
                    return False
                done += len(values)
    except (DataError, pa.ArrowInvalid, OSError):  # reading its rows raises
        return False
    return done >= LEAST_ROWS


def _may_count(place: Location, columns: set[str]) -> set[str]:
    """Columns that may number rows, judged by the footer of a file for its first row group."""
    found = set(columns)
    try:
        with open_file(place) as file:
            if isinstance(file, ArrowFile) or file.metadata.num_row_groups == 0:
                return found
            group = file.metadata.row_group(0)
            for chunk in (group.column(position) for position in range(group.num_columns)):
                known = chunk.statistics if chunk.path_in_schema in found else None
                if known is not None and known.has_min_max:
                    counts = known.min in (0, 1) and known.max == known.min + group.num_rows - 1
                    found -= set() if counts else {chunk.path_in_schema}
    except (DataError, pa.ArrowInvalid, OSError):  # reading its rows raises
        return set()
    return found


def common_dtype(schema: pa.Schema, columns: Columns) -> np.dtype:
    """The smallest dtype that holds all columns without loss; float64 for possible nulls, and positions of levels."""
    if columns.coded:
        return np.dtype(np.float64)
    dtype = np.result_type(*[dtype_of(schema.field(column).type) for column in columns.names])
    # a null becomes NaN, which integers cannot hold: it must reach the survey, which refuses it by name
    return dtype if dtype.kind == "f" else np.dtype(np.float64)


def _plan(
    files: Sequence[Location],
    schema: pa.Schema,
    columns: Columns,
    rows: int,
    batch_size: int | None,
    is_lenient: bool = False,
) -> list[tuple[RowGroups, ...]]:
    """Cut all files into batches.

    Whole row groups are joined up to ``rows``; a row group of more than twice that is cut.  With a ``batch_size``
    every batch but the last of a file has exactly that many rows.
    """
    out: list[tuple[RowGroups, ...]] = []
    held: list[RowGroups] = []
    for location in files:
        try:
            with open_file(location) as file:
                _compare(file.schema_arrow, schema, columns, location, files[0])
            starts = row_starts(location)
        except DataError as error:
            if not is_lenient:
                raise
            out += [tuple(held)] if held else []
            out.append((RowGroups(location, 0, 0, 0, 0, str(error)),))
            held = []
            continue
        sizes = np.diff(starts).tolist()
        if batch_size is not None:
            out += [(_rows_of(location, starts, a, b),) for a, b in spans(int(starts[-1]), rows)]
            continue
        for g, size in enumerate(sizes):
            if held and sum(p.take for p in held) + size > rows:
                out.append(tuple(held))
                held = []
            if size > 2 * rows:
                even = -(-size // -(-size // rows))
                out += [(RowGroups(location, g, g + 1, a, b - a),) for a, b in spans(size, even)]
            elif size:
                held.append(RowGroups(location, g, g + 1, 0, size))
    return [*out, tuple(held)] if held else out


def first_schema(files: Sequence[Location], is_lenient: bool) -> pa.Schema:
    """Columns of the first file, or of the first readable file."""
    for file in files[:-1] if is_lenient else ():
        try:
            with open_file(file) as opened:
                return opened.schema_arrow
        except DataError:
            continue
    with open_file(files[-1 if is_lenient else 0]) as opened:
        return opened.schema_arrow


def _with_types(schema: pa.Schema, files: Sequence[Location]) -> pa.Schema:
    """A schema in which columns without a value in the first file have the type of the next file with values."""
    for place, field in enumerate(schema):
        for file in files[1:] if pa.types.is_null(field.type) else ():
            try:
                with open_file(file) as opened:
                    other = opened.schema_arrow
            except DataError:  # reading its rows raises
                continue
            if field.name in other.names and not pa.types.is_null(other.field(field.name).type):
                schema = schema.set(place, other.field(field.name))
                break
    return schema


def row_starts(location: Location) -> np.ndarray:
    """First row of each row group of a file, and the number of rows last."""
    with open_file(location) as file:
        sizes = [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)]
    return np.concatenate([[0], np.cumsum(sizes)]).astype(int)


def _rows_of(location: Location, starts: np.ndarray, a: int, b: int) -> RowGroups:
    first = int(np.searchsorted(starts, a, side="right")) - 1
    last = int(np.searchsorted(starts, b, side="left"))
    return RowGroups(location, first, last, a - int(starts[first]), b - a)


def _compare(found: pa.Schema, wanted: pa.Schema, columns: Columns, here: Location, there: Location) -> None:
    """DataError if a used column is missing or of another kind in one of the files; if none was chosen, also for a
    superfluous column."""
    weights = [] if columns.roles.weights is None else [columns.roles.weights]
    for column in (*columns.names, *weights):
        if found.names.count(column) > 1:
            raise DataError(f"{here.name} has several columns of the same name: {column!r}; rename them")
        if column not in found.names:
            raise DataError(
                f"{here.name} has no column {column!r}, which {there.name} has; all files need the same columns"
                f"{nearest(column, found.names)}"
            )
        a, b = found.field(column).type, wanted.field(column).type
        if column in columns.coded:
            if not holds_levels(a):
                raise DataError(f"column {column!r} is {a} in {here.name}, but {b} in {there.name}")
            continue
        fits = may_be_numbers(a) and is_list(a) == is_list(b)
        if fits and is_text(a) and not is_text(b):  # numbers stored as texts are accepted
            typed = next(c for c in arrow_columns(found, here.name) if c.name == column)
            fits = _looked_at(typed, [here], here.name).why not in (TEXTS, DATES)
        if not fits or (pa.types.is_fixed_size_list(a) and a.list_size != dict(columns.layout).get(column, 1)):
            raise DataError(f"column {column!r} is {a} in {here.name}, but {b} in {there.name}; all need to be numbers")
    if columns.chosen:
        return
    extra = [f.name for f in found if is_numeric(f.type) and f.name not in (*wanted.names, *columns.others)]
    if extra:
        raise DataError(
            f"{here.name} has numeric column(s) {few(extra)} that {there.name} lacks; all files need the same "
            "columns, or choose with columns="
        )


# -- counts --------------------------------------------------------------------------------------------------------
LONG = ("doc", "word", "count")
LISTS = ("words", "counts")
PIECE_ROWS = 2**17


def counts_shape(schema: pa.Schema) -> Literal["long", "lists"] | None:
    """Shape of a table, one of the two, or None."""
    names = set(schema.names)
    if set(LONG) <= names:
        return "long"
    if set(LISTS) <= names and all(_is_list(schema.field(c).type) for c in LISTS):
        return "lists"
    return None


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


@dataclass(frozen=True)
class LongReader:
    """Documents ``low <= doc < high`` of a long table."""

    parts: tuple[RowGroups, ...]
    low: int
    high: int
    n_words: int
    name: str

    def __call__(self) -> Batch:
        docs, words, counts = [], [], []
        for part in self.parts:
            for piece in read_pieces(part, LONG, PIECE_ROWS):
                doc = _whole(piece.column("doc"), "doc", self.name)
                mine = (doc >= self.low) & (doc < self.high)
                docs.append(doc[mine])
                words.append(_whole(piece.column("word"), "word", self.name)[mine])
                counts.append(to_float(numbers(piece.column("count")), self.name, "count")[mine])
        word = np.concatenate(words)
        _check_words(word, self.n_words, self.name)
        doc, word, count = np.concatenate(docs), _narrow(word, self.n_words), np.concatenate(counts)
        del docs, words, counts
        if (np.diff(doc) < 0).any():
            order = np.argsort(doc, kind="stable")
            doc, word, count = doc[order], word[order], count[order]
        starts = np.flatnonzero(np.diff(doc, prepend=doc[0] - 1 if len(doc) else 0))
        lengths = np.diff(np.append(starts, len(doc)))
        return Batch(build_csr(lengths, word, count, self.n_words, self.name), None, self.name)


@dataclass(frozen=True)
class ListsReader:
    """Documents of a table with one row per document."""

    parts: tuple[RowGroups, ...]
    n_words: int
    name: str

    def __call__(self) -> Batch:
        rows = []
        for part in self.parts:
            for piece in read_pieces(part, LISTS, PIECE_ROWS // 16):
                words, counts = piece.column("words"), piece.column("counts")
                for column, lists in (("words", words), ("counts", counts)):
                    if lists.null_count:
                        raise DataError(f"{self.name}: column {column!r} has rows without a list; give empty ones")
                lengths = [np.diff(c.offsets.to_numpy()) for c in (words, counts)]
                if not np.array_equal(*lengths):
                    raise DataError(f"{self.name}: lists words and counts of a row have different lengths")
                word = _whole(words.flatten(), "words", self.name)
                _check_words(word, self.n_words, self.name)
                count = to_float(numbers(counts.flatten()), self.name, "count")
                rows.append(build_csr(lengths[0], _narrow(word, self.n_words), count, self.n_words, self.name))
        x = rows[0] if len(rows) == 1 else sparse.csr_array(sparse.vstack(rows, format="csr"))
        return Batch(x, None, self.name)


@dataclass(frozen=True, repr=False)
class ParquetCountsSource(Stored):
    """Documents of Parquet files, cut into batches."""

    name: str
    n_words: int
    readers: tuple[LongReader | ListsReader, ...]
    spans: tuple[tuple[int, int], ...] | None
    shape: str

    @staticmethod
    def of(location: Location, batch_size: int | None = None, n_words: int | None = None) -> ParquetCountsSource:
        """Read all footers and cut according to the shape of the table."""
        files = parquet_files(location)
        with open_parquet(files[0]) as file:
            schema = file.schema_arrow
            noted = (schema.metadata or {}).get(b"n_words")
        shape = counts_shape(schema)
        groups = _row_groups(files, LONG if shape == "long" else LISTS)
        if not groups:
            raise DataError(f"{location.name} has no rows")
        largest = _largest_word(groups, "word" if shape == "long" else "words") if noted is None else -1
        words = n_words or (int(noted) if noted is not None else largest + 1)
        check_width(max(words, 1), location.name)
        if shape == "long":
            return _open_long(location, groups, batch_size, words)
        return _open_lists(location, groups, batch_size, words)

    @property
    def n_batches(self) -> int:
        return len(self.readers)

    @property
    def kind(self) -> str:
        return f"parquet counts ({self.shape})"

    @property
    def n_features(self) -> int:
        return self.n_words

    @property
    def is_sparse(self) -> bool:
        return True

    def block(self, index: int, name: str) -> LongReader | ListsReader:
        return self.readers[index]

    def fingerprint(self) -> Any:
        return fingerprint_of_files(part.file for reader in self.readers for part in reader.parts)


def _row_groups(files: Sequence[Location], used: Sequence[str]) -> list[RowGroups]:
    out = []
    for location in files:
        with open_parquet(location) as file:
            missing = [c for c in used if c not in file.schema_arrow.names]
            if missing:
                raise DataError(f"{location.name} has no column {missing[0]!r}, which {files[0].name} has")
            for column in used:
                kind = file.schema_arrow.field(column).type
                value = kind.value_type if _is_list(kind) else kind
                if not is_numeric(value):
                    raise DataError(f"{location.name}: column {column!r} is {kind}; needs numbers")
            for g in range(file.metadata.num_row_groups):
                size = file.metadata.row_group(g).num_rows
                if size:
                    out.append(RowGroups(location, g, g + 1, 0, size))
    return out


def _column_range(part: RowGroups, column: str) -> tuple[int, int]:
    """Least and largest value of a column in one row group: from the footer, or by reading that column."""
    with open_parquet(part.file) as file:
        group = file.metadata.row_group(part.first)
        for place in range(group.num_columns):
            chunk = group.column(place)
            if chunk.path_in_schema.split(".")[0] == column and chunk.statistics and chunk.statistics.has_min_max:
                return int(chunk.statistics.min), int(chunk.statistics.max)
    least, largest = np.iinfo(np.int64).max, -1
    for piece in read_pieces(part, [column], PIECE_ROWS):
        array = piece.column(column)
        values = _whole(array.flatten() if _is_list(array.type) else array, column, part.file.name)
        if len(values):
            least, largest = min(least, int(values.min())), max(largest, int(values.max()))
    return least, largest


def _largest_word(groups: Sequence[RowGroups], column: str) -> int:
    return max(_column_range(part, column)[1] for part in groups)


def _open_long(
    location: Location, groups: Sequence[RowGroups], batch_size: int | None, n_words: int
) -> ParquetCountsSource:
    """Cut by ranges of ``doc``; a batch reads every row group that may hold one of its documents."""
    ranges = [_column_range(part, "doc") for part in groups]
    least, largest = min(r[0] for r in ranges), max(r[1] for r in ranges)
    if batch_size is not None:
        size = check_batch_size(batch_size)
        entries = sum(part.take for part in groups)
        if (largest - least) // size > entries:
            raise DataError(
                f"{location.name}: its {entries:,} entries are of documents {least} to {largest}, so batches of "
                f"batch_size={size} documents would nearly all be empty; number the documents 0, 1, 2, ..., or leave "
                "batch_size out"
            )
        cuts = list(range(least, largest + 1, size))
    else:
        budget, held, cuts = BATCH_BYTES // ENTRY_BYTES, 0, [least]
        for part, (low, high) in zip(groups, ranges, strict=True):
            cuts_of_part = max(1, round(part.take / budget))
            if held + part.take > budget and held:
                cuts.append(low + (low == cuts[-1]))
                held = 0
            # a row group of several batches is cut evenly in its range of documents
            cuts += [low + (high + 1 - low) * p // cuts_of_part for p in range(1, cuts_of_part)]
            held = held + part.take if cuts_of_part == 1 else part.take // cuts_of_part
        cuts = sorted(set(cuts))
    edges = [*cuts, largest + 1]
    readers = []
    for i, (low, high) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        parts = tuple(p for p, (a, b) in zip(groups, ranges, strict=True) if a < high and b >= low)
        name = f"{location.name} batch {i} (documents {low}-{high - 1})"
        if parts:
            readers.append(LongReader(parts, low, high, n_words, name))
    return ParquetCountsSource(location.name, n_words, tuple(readers), None, "long")


def _open_lists(
    location: Location, groups: Sequence[RowGroups], batch_size: int | None, n_words: int
) -> ParquetCountsSource:
    batches: list[list[RowGroups]] = []
    if batch_size is not None:
        size = check_batch_size(batch_size)
        for part in groups:
            for a in range(0, part.take, size):
                batches.append([RowGroups(part.file, part.first, part.last, a, min(size, part.take - a))])
    else:
        held = 0
        for part in groups:
            with open_parquet(part.file) as file:
                group = file.metadata.row_group(part.first)
                columns = [group.column(c) for c in range(group.num_columns)]
                entries = max((c.num_values for c in columns if c.path_in_schema.startswith("words")), default=0)
            if not batches or held + entries > BATCH_BYTES // ENTRY_BYTES:
                batches.append([])
                held = 0
            batches[-1].append(part)
            held += entries
    ends = np.cumsum([sum(p.take for p in b) for b in batches]).tolist()
    cut = tuple(zip([0, *ends[:-1]], ends, strict=True))
    readers = tuple(
        ListsReader(tuple(parts), n_words, batch_name(location.name, i, span))
        for i, (parts, span) in enumerate(zip(batches, cut, strict=True))
    )
    return ParquetCountsSource(location.name, n_words, readers, cut, "lists")


def _whole(array: pa.Array, column: str, name: str) -> np.ndarray:
    values = numbers(array)
    if values.dtype.kind not in "iu":
        whole = values.astype(np.int64) if (np.abs(values) < 2.0**63).all() else None
        if whole is None or not np.array_equal(whole, values):
            raise DataError(f"{name}: column {column!r} has missing or fractional values; needs whole numbers")
        return whole
    if values.dtype == np.uint64 and len(values) and values.max() > np.uint64(2**63 - 1):
        raise DataError(f"{name}: column {column!r} holds {values.max()}; needs whole numbers below 2**63")
    return values.astype(np.int64, copy=False)


def _narrow(words: np.ndarray, n_words: int) -> np.ndarray:
    """Checked words, in half the bytes if they fit."""
    return words.astype(np.int32) if n_words < 2**31 else words


def _check_words(words: np.ndarray, n_words: int, name: str) -> None:
    if len(words) and (words.min() < 0 or words.max() >= n_words):
        worst = words.min() if words.min() < 0 else words.max()
        raise DataError(f"{name}: word {worst}, but words are 0 to {n_words - 1}")
