"""Dense rows in Parquet and Arrow files: columns of numbers, or of lists of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bnp_dask.core.batch import Batch, check_weights
from bnp_dask.core.columns import NO_ROLES, Columns, Roles, few
from bnp_dask.core.location import Location
from bnp_dask.data.base import Reader, shows_itself
from bnp_dask.data.batching import PIECE_BYTES, batch_name, batch_rows, check_index, spans
from bnp_dask.data.identity import fingerprint_of_files
from bnp_dask.data.sources.arrow import Cells, dtype_of, is_list, is_numeric, is_text, may_be_numbers, read_cells
from bnp_dask.data.sources.choose import (
    DATES,
    IDS,
    LEAST_ROWS,
    NAMELESS,
    NO_VALUE,
    PLAIN_READING,
    ROW_NUMBERS,
    TEXTS,
    TIMES,
    Reading,
    TableColumn,
    arrow_columns,
    choose,
    looked_at,
    says_role,
)
from bnp_dask.data.sources.containers.arrow_files import ArrowFile, dataset_files, is_arrow, is_saved_dataset
from bnp_dask.data.sources.levels import distinct, fill_rows, holds_levels, pending, union, with_found
from bnp_dask.errors import DataError, nearest

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


@shows_itself
@dataclass(frozen=True)
class ParquetSource:
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
    def n_batches(self) -> int:
        return len(self.batches)

    @property
    def n_features(self) -> int:
        return self.columns.n_features

    @property
    def n_atoms(self) -> int:
        return self.spans[-1][1]

    @property
    def is_sparse(self) -> bool:
        return False

    def load_reader(self, index: int) -> ParquetReader:
        """Reader that can also give the stored dtype."""
        parts = self.batches[check_index(index, self.n_batches, self.name)]
        return ParquetReader(parts, self.columns, batch_name(self.name, index, self.spans[index]))

    def reader(self, index: int) -> Reader:
        return self.load_reader(index)

    def fingerprint(self) -> Any:
        return fingerprint_of_files(part.file for parts in self.batches for part in parts)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "arrow" if is_arrow(self.batches[0][0].file) else "parquet",
            "path": self.name,
            "n_atoms": self.n_atoms,
            "n_features": self.n_features,
            "n_batches": self.n_batches,
            "columns": list(self.columns.names),
            "weights": self.columns.roles.weights,
        }


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
