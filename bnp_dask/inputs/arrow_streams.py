"""Arrays and tables of other libraries: recognised by their type, or else by their Arrow C stream."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import numpy as np

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
    return isinstance(data, ArrowStream) and library(data) not in KNOWN


def library(data: Any) -> str:
    """Name of the package that defines the type of the data."""
    return type(data).__module__.split(".")[0]


def unlabelled(data: Any, in_order: bool = False) -> tuple[Any, tuple[str, ...] | None]:
    """The array within an xarray DataArray, or the matrix within an AnnData, and the names of its columns.

    Names are None if columns have no names, or no distinct ones.  Anything else is returned unchanged.  Axes of a
    DataArray are first put :func:`in_order_of_time` if there are three, or for models of sequences (``in_order``).
    """
    what = library(data), type(data).__name__
    if what == ("xarray", "DataArray"):
        data = in_order_of_time(data) if in_order or data.ndim == 3 else data
        last = data.dims[-1] if data.dims else None
        return data.data, _names(data.coords[last].values) if last in data.coords else None
    if what == ("anndata", "AnnData"):
        return data.X, _names(data.var_names)
    return data, None


TIMES = frozenset(("frame", "step", "t", "time", "times", "timestamp"))
"""Names of an axis of time; an axis whose coordinates are dates is one under any name."""


def in_order_of_time(data: Any) -> Any:
    """A DataArray whose axis of time, if it has one, is the last but one, so that the array holds sequences; a single
    axis gets a second one.  Anything else is returned unchanged."""
    if (library(data), type(data).__name__) != ("xarray", "DataArray"):
        return data
    dates = [d for d in data.dims if d in data.coords and data.coords[d].dtype.kind in "Mm"]
    time = next(iter([*dates, *(d for d in data.dims if str(d).lower() in TIMES)]), None)
    if time is None:
        return data
    others = [d for d in data.dims if d != time]
    return data.transpose(*others[:-1], time, others[-1]) if others else data.expand_dims("value", 1)


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
    """Return a pandas DataFrame for an Arrow Table or stream, also for each in a list, and for labelled data whose
    columns have names; else the array of labelled data.  Anything else is returned unchanged.

    The index of an AnnData's rows is ``obs_names``, so that results can become a column of ``obs``.
    """
    x, names = unlabelled(data)
    if names is not None and isinstance(x, np.ndarray) and x.ndim == 2 and _has_pandas():
        import pandas as pd

        index = data.obs_names if library(data) == "anndata" else None
        return pd.DataFrame(x, columns=list(names), index=index)
    if isinstance(x, (list, tuple)):
        return [as_frame(part) for part in x] if len(x) and is_stream(x[0]) else x
    if not is_stream(x):
        return x
    try:
        return streamed(x).to_pandas()
    except ImportError as error:
        raise SettingError(
            f"a {type(x).__name__} needs pandas here: pip install 'bnp-dask[dataframe]', or give an array"
        ) from error


def _has_pandas() -> bool:
    return importlib.util.find_spec("pandas") is not None


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
