"""Files and sources in memory, for estimators, which hold their data, and for proposals from the rows of a table."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from bnp_dask.core.location import Location
from bnp_dask.data.base import Source, columns_of
from bnp_dask.data.batching import parsed
from bnp_dask.data.grouped.offsets import GroupedSource
from bnp_dask.data.grouped.recordings import recordings
from bnp_dask.data.ingestion.formats import COLUMN_FILES, TEXT_TABLES, Stream, detect
from bnp_dask.data.sources.arrays import check_small
from bnp_dask.data.sources.containers.arrow_files import is_arrow
from bnp_dask.data.sources.open import as_source
from bnp_dask.data.sources.parquet import first_schema, open_file, parquet_files
from bnp_dask.data.sources.parquet_counts import counts_shape
from bnp_dask.errors import DataError
from bnp_dask.inputs.arrow_streams import as_frame

MOST_HELD = 2**31
"""Most bytes of a file or source that is read into memory."""

READ_ROWS = 2**16
"""Rows of a table that are read at a time."""


def in_memory(data: Any) -> Any:
    """Data of a path or source in memory: a DataFrame of a table, a list of recordings, else an array or sparse matrix;
    anything else unchanged.

    Raises
    ------
    DataError
        The data are larger than :data:`MOST_HELD`, or a source has weights.
    """
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
