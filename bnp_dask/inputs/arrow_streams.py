"""Arrays and tables of other libraries: recognised by their type, or else by their Arrow C stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

from bnp_dask.errors import DataError, SettingError


@runtime_checkable
class ArrowStream(Protocol):
    """A table that exports an Arrow C stream: of polars, DuckDB, Ibis, nanoarrow."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A PyCapsule of an ArrowArrayStream."""
        ...


KNOWN = frozenset(("anndata", "dask", "dask_expr", "numpy", "pandas", "scipy", "xarray", "zarr"))
"""Libraries whose arrays and tables are recognised by type, since their streams may have another shape."""


def is_stream(data: Any) -> bool:
    """Whether data are recognised by their Arrow C stream."""
    return isinstance(data, ArrowStream) and _library(data) not in KNOWN


def _library(data: Any) -> str:
    return type(data).__module__.split(".")[0]


def unlabelled(data: Any) -> tuple[Any, tuple[str, ...] | None]:
    """The array within an xarray DataArray, or the matrix within an AnnData, and the names of its columns.

    Names are None if columns have no names, or no distinct ones.  Anything else is returned unchanged.
    """
    what = _library(data), type(data).__name__
    if what == ("xarray", "DataArray"):
        last = data.dims[-1] if data.dims else None
        return data.data, _names(data.coords[last].values) if last in data.coords else None
    if what == ("anndata", "AnnData"):
        return data.X, _names(data.var_names)
    return data, None


def _names(labels: Any) -> tuple[str, ...] | None:
    listed = list(labels)
    is_named = bool(listed) and all(isinstance(label, str) and label for label in listed)
    return tuple(map(str, listed)) if is_named and len(set(listed)) == len(listed) else None


def read(data: Any) -> Any:
    """A ``RecordBatchReader`` of the table behind a stream; DataError for a stream of something else."""
    import pyarrow as pa

    try:
        return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(
            f"data is a {type(data).__name__}, whose Arrow stream holds no table ({error}); needs a table, such as "
            "the frame that it is a column of"
        ) from error


def streamed(data: Any) -> Any:
    """The Arrow Table behind a stream; a Table, and anything else, is returned unchanged."""
    import pyarrow as pa

    return read(data).read_all() if is_stream(data) and not isinstance(data, pa.Table) else data


def as_frame(data: Any) -> Any:
    """Return a pandas DataFrame for an Arrow Table or stream, also for each in a list, or the array of labelled data;
    anything else unchanged."""
    data = unlabelled(data)[0]
    if isinstance(data, (list, tuple)):
        return [as_frame(part) for part in data] if len(data) and is_stream(data[0]) else data
    if not is_stream(data):
        return data
    try:
        return streamed(data).to_pandas()
    except ImportError as error:
        raise SettingError(
            f"a {type(data).__name__} needs pandas here: pip install 'bnp-dask[dataframe]', or give an array"
        ) from error


@contextmanager
def as_file(data: Any) -> Iterator[Any]:
    """Path of a temporary Parquet file with the rows of a stream, which is read once, a piece at a time.

    Anything else is yielded unchanged.
    """
    if not is_stream(data):
        yield data
        return
    from pyarrow import parquet

    with TemporaryDirectory(prefix="bnp-dask-") as folder, read(data) as reader:
        path = Path(folder) / f"{type(data).__name__}.parquet"
        with parquet.ParquetWriter(path, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
        yield path
