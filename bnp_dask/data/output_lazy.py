"""Dask arrays in, lazy Dask arrays out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dask
import numpy as np

from bnp_dask.core.columns import NO_ROLES, Columns
from bnp_dask.data.sources.choose import choose, frame_columns
from bnp_dask.data.sources.collections import as_declared, is_dask_frame
from bnp_dask.errors import DataError

if TYPE_CHECKING:
    # imported where it is needed: it brings pandas along, 80 MB in each worker that predicts for plain files
    import dask.array as da


FRAME = "dask DataFrame"


def map_rows(
    function: Callable[[Any, Any], np.ndarray],
    shared: Any,
    data: Any,
    width: int | None,
    dtype: Any,
    columns: Columns | None = None,
) -> da.Array:
    """Lazy result of ``function(shared, rows)`` for every block of rows.

    Parameters
    ----------
    function
        Gives ``(n,)``, or ``(n, width)``, for ``n`` rows.
    shared
        Goes into the graph once.
    data
        Dask array ``(n, D)`` (row chunks may have unknown sizes), or DataFrame of numbers.
    width
        Columns of the result, or None for a vector.
    dtype
        Of the result.
    columns
        What a model was trained on: features of a DataFrame are found by name.
    """
    import dask.array as da

    if isinstance(data, da.Array):
        rows = data
    elif is_dask_frame(data):
        found, labels = choose(frame_columns(data._meta, FRAME), columns, NO_ROLES, FRAME)
        if columns is not None:
            columns.positions(found, FRAME)
        # one dtype for all: columns of floats and of bools together would be objects
        rows = data[[labels[name] for name in found.names]].astype(np.float64).to_dask_array()
    else:
        raise DataError(f"a Dask {type(data).__name__}; needs an Array or a DataFrame, one row per atom")
    if rows.ndim != 2:
        raise DataError(f"a Dask array with shape {rows.shape}; needs two axes, one row per atom: x.reshape(-1, 1)")
    rows = as_declared(rows)
    if rows.numblocks[1] > 1:
        rows = rows.rechunk({1: -1})
    # a task of its own: taken as an argument it would travel with every block
    held = dask.delayed(shared, traverse=False, pure=True)
    if width is None:
        meta = np.empty((0,), dtype)
        return da.map_blocks(predict_rows, rows, function=function, shared=held, drop_axis=1, dtype=dtype, meta=meta)
    chunks = (rows.chunks[0], (width,))
    meta = np.empty((0, 0), dtype)
    return da.map_blocks(predict_rows, rows, function=function, shared=held, chunks=chunks, dtype=dtype, meta=meta)


def predict_rows(rows: Any, function: Callable[[Any, Any], np.ndarray], shared: Any) -> np.ndarray:
    """One block; named for the dashboard."""
    return function(shared, rows)
