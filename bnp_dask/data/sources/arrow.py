"""Numbers of Arrow columns as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bnp_dask.errors import DataError
from bnp_dask.inputs.arrow_streams import streamed


def as_table(data: Any) -> Any:
    """An Arrow Table of a table with an Arrow C stream; of pandas and of Arrow itself, and anything else, as it is."""
    family = type(data).__module__.split(".")[0]
    if family == "datasets" and type(data).__name__ == "Dataset":  # of Hugging Face, which gives no stream
        return vector_columns(data.with_format("arrow")[:], "Dataset")
    return streamed(data)


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


def vector_columns(table: pa.Table, name: str) -> pa.Table:
    """A table whose columns of lists of numbers are vectors, where the lists of the first rows have one length."""
    for i, field in enumerate(table.schema):
        column = table.column(i)
        length = common_length(column.chunk(0)) if column.num_chunks else 0
        if length:
            chunks = [vectors(chunk, length, f"{name}: column {field.name!r}") for chunk in column.chunks]
            table = table.set_column(i, field.name, pa.chunked_array(chunks))
    return table


def common_length(column: pa.Array) -> int:
    """Length of all lists of numbers of a column; 0 where they differ, or it holds none."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not is_numeric(kind.value_type):
        return 0
    found = np.unique(pc.list_value_length(column).fill_null(-1).to_numpy(zero_copy_only=False))
    return max(0, int(found[0])) if len(found) == 1 else 0


def vectors(column: pa.Array, length: int, name: str) -> pa.Array:
    """Lists of one length as vectors; DataError for one of another length."""
    if len(column) and common_length(column) != length:
        raise DataError(f"{name} has lists of other lengths than {length}, that of its first rows; needs vectors")
    return pa.FixedSizeListArray.from_arrays(column.flatten(), length)
