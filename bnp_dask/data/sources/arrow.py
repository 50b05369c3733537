"""Numbers of Arrow columns as NumPy arrays."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa


@runtime_checkable
class ArrowStream(Protocol):
    """A table that gives itself away as an Arrow C stream: of polars, DuckDB, Ibis, nanoarrow."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A PyCapsule of an ArrowArrayStream."""
        ...


def as_table(data: Any) -> Any:
    """An Arrow Table of a table with an Arrow C stream; of pandas and of Arrow itself, and anything else, as it is."""
    if isinstance(data, pa.Table) or type(data).__module__.split(".")[0] in ("pandas", "dask", "dask_expr"):
        return data
    return pa.table(data) if isinstance(data, ArrowStream) else data


def is_numeric(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type are real numbers."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def numbers(array: pa.Array) -> np.ndarray:
    """Values of a numeric Arrow array; nulls become NaN, which a survey names and refuses."""
    values = array.to_numpy(zero_copy_only=False)
    return values.astype(np.float64) if values.dtype == object else values


def is_vector(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type are rows of so many real numbers."""
    return pa.types.is_fixed_size_list(kind) and is_numeric(kind.value_type)


def dtype_of(kind: pa.DataType) -> np.dtype:
    """NumPy's dtype of the numbers of a column."""
    return np.dtype((kind.value_type if is_vector(kind) else kind).to_pandas_dtype())


def as_arrow(values: Any) -> pa.Array:
    """A column of a frame or table as one Arrow array without dictionary; NaN becomes null."""
    if isinstance(values, pa.ChunkedArray):
        array = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    elif isinstance(values, pa.Array):
        array = values
    else:
        array = pa.Array.from_pandas(values)
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array
