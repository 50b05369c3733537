"""Numbers of Arrow columns as NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import is_exact, require_exact


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


def fill_rows(
    out: np.ndarray, batch: pa.RecordBatch, layout: Sequence[tuple[str, int]], name: str, row: int = 0
) -> None:
    """Copy the feature columns of a record batch ``(n rows)`` into ``out (n, D)``.

    DataError, with the ``name`` of the data and rows counted from ``row``, where that would round a whole number.
    """
    place = 0
    for column, width in layout:
        array = batch.column(column)
        checks = not is_exact(dtype_of(array.type), out.dtype)
        if pa.types.is_fixed_size_list(array.type):
            if array.null_count:
                raise DataError(f"column {column!r} has rows without a list")
            values = numbers(array.flatten()).reshape(-1, width)
        else:
            values = numbers(array).reshape(-1, 1)
        if checks:
            require_exact(values, name, row=row, column=column)
        out[:, place : place + width] = values
        place += width


def dtype_of(kind: pa.DataType) -> np.dtype:
    """NumPy's dtype of the numbers of a column."""
    return np.dtype((kind.value_type if is_vector(kind) else kind).to_pandas_dtype())
