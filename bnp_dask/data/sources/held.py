"""Files and sources in memory, for estimators, which hold their data, and for proposals from the rows of a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from bnp_dask.core import Location
from bnp_dask.data.base import Source, columns_of, parsed
from bnp_dask.data.groups import GroupedSource
from bnp_dask.data.ingestion.streams import COLUMN_FILES, TEXT_TABLES, Stream, detect
from bnp_dask.data.sources.arrays import check_small
from bnp_dask.data.sources.columns import (
    DATES,
    IDS,
    NO_VALUE,
    ROW_NUMBERS,
    TIMES,
    Cells,
    TableColumn,
    as_arrow,
    as_table,
    frame_columns,
    in_values,
    is_numeric,
    read_cells,
    says_role,
)
from bnp_dask.data.sources.dask_collections import is_dask, is_dask_array
from bnp_dask.data.sources.frames import is_frame
from bnp_dask.data.sources.open import as_source, recordings
from bnp_dask.data.sources.parquet import counts_shape, first_schema, is_arrow, open_file, parquet_files
from bnp_dask.errors import DataError
from bnp_dask.inputs import as_frame

MOST_HELD = 2**31
"""Most bytes of a file or source that is read into memory."""

READ_ROWS = 2**16
"""Rows of a table that are read at a time."""


FIRST_ROWS = 100_000
"""Rows of a file that are looked at."""

LEFT_OUT = (DATES, IDS, NO_VALUE, ROW_NUMBERS, TIMES)
"""Reasons for which a column is no feature under any likelihood; texts and categories may be levels."""


@dataclass(frozen=True, eq=False)
class Looked:
    """A column of a table, as sources read it.

    Parameters
    ----------
    name
        Its name.
    values
        pandas Series of its values; numbers that are stored as texts or objects as floats.
    why
        Why sources leave it out by default; empty for features.
    left_out
        Whether it is no feature under any likelihood.
    are_numbers, may_be_whole, is_level
        Whether its values are numbers, perhaps whole ones, or may be levels.
    role
        The role that its name says, "an id" or "a time"; else empty.
    bad
        Error for its first text that is no number, if the others are numbers and ``values`` are texts.
    """

    name: str
    values: Any
    why: str
    left_out: bool
    are_numbers: bool
    may_be_whole: bool
    is_level: bool
    role: str
    bad: DataError | None = None


def looked_columns(table: Any, given: Sequence[str] = ()) -> list[Looked]:
    """All columns of a table, or of the first rows of a file; columns that are ``given`` a likelihood are not judged.

    Raises
    ------
    DataError
        The table cannot become a DataFrame.
    """
    frame = _as_frame(table)
    columns = frame_columns(frame, "table")
    look = in_values(lambda label: frame[label], "table")
    return [
        _looked(column if column.name in given else look([column])[0], frame[column.label], column.name in given)
        for column in columns
    ]


def _looked(column: TableColumn, values: Any, is_given: bool) -> Looked:
    bad = None
    if column.bad is not None:
        bad = DataError(f"{column.bad}; or make it levels: Product.of(table, {column.name}=Categorical())")
        bad.__cause__ = column.bad
    array = pa.array([], pa.null()) if is_given else as_arrow(values)
    is_number = pa.types.is_decimal(array.type) or (is_numeric(array.type) and not pa.types.is_boolean(array.type))
    are_numbers = bad is None and not column.why and (column.is_text or is_number)
    may_be_whole = column.is_text or not column.is_plain or getattr(values.dtype, "kind", "f") in "iu"
    if are_numbers and not column.is_plain:
        values = type(values)(read_cells(array, 1, Cells("table", column.name))[:, 0])
    return Looked(
        name=column.name,
        values=values,
        why=column.why,
        left_out=column.why in LEFT_OUT,
        are_numbers=are_numbers,
        may_be_whole=may_be_whole,
        is_level=column.is_level,
        role=says_role(column),
        bad=bad,
    )


def _as_frame(table: Any) -> Any:
    """The table as a pandas DataFrame."""
    if isinstance(table, (str, os.PathLike)):
        held = table_in_file(table, FIRST_ROWS)
        if held is None:
            raise DataError(f"{os.fspath(table)} is no table with named columns; needs Parquet, Arrow or CSV")
        table = held
    table = as_frame(as_table(table))
    if is_frame(table):
        return table
    if callable(getattr(table, "to_pandas", None)):
        return table.to_pandas()
    raise DataError(
        f"a {type(table).__name__}; needs a path, a pandas DataFrame, or a table that has to_pandas() or an Arrow "
        "stream, of which the first 100,000 rows say enough: pandas.read_csv(path, nrows=100_000), ddf.head(100_000)"
    )


def in_memory(data: Any) -> Any:
    """Data of a path, source or Dask table in memory: a DataFrame of a table, a list of recordings, else an array or
    sparse matrix; anything else unchanged.

    Raises
    ------
    DataError
        The data are larger than :data:`MOST_HELD`, or a source has weights.
    """
    if is_dask(data) and not is_dask_array(data):  # an array has no names to lose, and is computed when it is checked
        return data.compute()
    if isinstance(data, (str, os.PathLike)):
        found = recordings(data)
        if found is not data:
            return found
        table = table_in_file(data)
        if table is not None:
            return as_frame(table)
        data = as_source(data)
    if not isinstance(data, Source) or isinstance(data, type):
        return data
    size = 8 * (data.n_atoms or 0) * data.n_features
    if not data.is_sparse and size > MOST_HELD:
        raise _too_large(data.name)
    batches = [data.reader(i)() for i in range(data.n_batches)]
    if any(batch.weights is not None for batch in batches):
        raise DataError(f"{data.name} has weights; an estimator takes them as fit(X, sample_weight=...)")
    if data.is_sparse:
        return sparse.csr_array(sparse.vstack([batch.x for batch in batches], format="csr"))
    x = np.concatenate([np.asarray(batch.x) for batch in batches])
    if isinstance(data, GroupedSource):
        return np.split(x, data.all_offsets()[1:-1])
    columns = columns_of(data)
    if columns is None or columns.shown is None:
        return x
    return as_frame(pa.table(list(x.T), list(columns.features)))


def table_in_file(path: str | os.PathLike[str], n_rows: int | None = None) -> pa.Table | None:
    """The table in a Parquet, Arrow or CSV file or folder, or its first rows; None for other files.

    Raises
    ------
    DataError
        The file is missing, damaged, or larger than :data:`MOST_HELD`.
    """
    location = Location.of(path, None, "data")
    with parsed(location.name):
        location.require()
        kind = detect(location)
        if kind in TEXT_TABLES:
            check_small(location, kind)
            stream = Stream(location, kind)
            whole = stream.table.whole(()) if stream.has_names else None
            return whole if whole is None or n_rows is None else whole.slice(0, n_rows)
        if kind not in COLUMN_FILES:
            return None
        files = parquet_files(location)
        if not is_arrow(files[0]) and counts_shape(first_schema(files, False)) is not None:
            return None
        parts, held, size = [], 0, 0
        for file in files:
            with open_file(file) as opened:
                for batch in opened.iter_batches(batch_size=READ_ROWS):
                    parts.append(pa.Table.from_batches([batch]))
                    held, size = held + batch.num_rows, size + batch.nbytes
                    if n_rows is not None and held >= n_rows:
                        return pa.concat_tables(parts, promote_options="permissive").slice(0, n_rows)
                    if size > MOST_HELD:
                        raise _too_large(location.name)
        return pa.concat_tables(parts, promote_options="permissive") if parts else None


def _too_large(name: str) -> DataError:
    return DataError(
        f"{name}: more than {MOST_HELD / 2**30:.0f} GB, which an estimator would hold in memory; bnp_dask.train takes "
        "the same data batch by batch"
    )
