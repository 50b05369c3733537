"""Dask arrays in, lazy Dask arrays out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.core import Batch, Columns
from bnp_dask.data.sources.dask_collections import DaskFrameSource, as_declared, block_rows, is_dask_frame
from bnp_dask.data.sources.frames import frame_batch
from bnp_dask.data.sources.named import codes_of_unnamed
from bnp_dask.data.view import coded_rows
from bnp_dask.errors import DataError
from bnp_dask.inputs import Codes

if TYPE_CHECKING:
    # imported only when needed: it loads pandas, 80 MB in each worker that predicts for plain files
    import dask.array as da
    import pandas as pd


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
        Function that returns ``(n,)``, or ``(n, width)``, for ``n`` rows.
    shared
        Value that enters the graph once.
    data
        Dask array ``(n, D)`` (row chunks may have unknown sizes), or DataFrame of numbers.
    width
        Columns of the result, or None for a vector.
    dtype
        Dtype of the result.
    columns
        Columns that a model was trained on: features of a DataFrame are found by name.
    """
    import dask
    import dask.array as da

    is_frame = is_dask_frame(data)
    if isinstance(data, da.Array):
        rows = data
    elif is_frame:
        import pandas as pd

        source = DaskFrameSource.of(data, None, columns)
        if columns is not None:
            columns.positions(source.columns, FRAME)
        used = list(source.labels.values())
        meta = pd.DataFrame(np.empty((0, source.n_features)))
        read = partial(_numbers, columns=source.columns, labels=source.labels)
        rows = data[used].map_partitions(read, meta=meta).to_dask_array()
    else:
        raise DataError(f"a Dask {type(data).__name__}; needs an Array or a DataFrame, one row per atom")
    if rows.ndim != 2:
        raise DataError(f"a Dask array with shape {rows.shape}; needs two axes, one row per atom: x.reshape(-1, 1)")
    rows = as_declared(rows)
    if rows.numblocks[1] > 1:
        rows = rows.rechunk({1: -1})
    codes = () if columns is None or is_frame else codes_of_unnamed(columns, int(rows.shape[1]), "dask array")
    if codes:
        rows = rows.map_blocks(_places, codes, dtype=np.float64)
    # a task of its own: as an argument it would travel with every block
    held = dask.delayed(shared, traverse=False, pure=True)
    if width is None:
        meta = np.empty((0,), dtype)
        return da.map_blocks(predict_rows, rows, function=function, shared=held, drop_axis=1, dtype=dtype, meta=meta)
    chunks = (rows.chunks[0], (width,))
    meta = np.empty((0, 0), dtype)
    return da.map_blocks(predict_rows, rows, function=function, shared=held, chunks=chunks, dtype=dtype, meta=meta)


def _numbers(frame: pd.DataFrame, columns: Columns, labels: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of a partition as numbers, or as positions of levels."""
    x = frame_batch(frame, columns, labels, f"a partition of the {FRAME}").x
    return type(frame)(x, index=frame.index)


def _places(block: np.ndarray, codes: tuple[Codes | None, ...]) -> np.ndarray:
    """The rows of a block with positions of levels."""
    name = "a block of the Dask array"
    return coded_rows(Batch(block_rows(block, name), None, name), codes)


def predict_rows(rows: Any, function: Callable[[Any, Any], np.ndarray], shared: Any) -> np.ndarray:
    """Result of one block; a function with a name for the dashboard."""
    return function(shared, rows)
