"""A Dask collection as a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bnp_dask.core.columns import Columns, Roles
from bnp_dask.data.sources.choose import PLAIN_READING, Reading
from bnp_dask.data.sources.dask_collections.arrays import DaskArraySource
from bnp_dask.data.sources.dask_collections.graphs import is_dask_frame
from bnp_dask.errors import DataError

if TYPE_CHECKING:
    # imported only when needed: it loads pandas, 80 MB in each worker that reads plain files
    pass
from bnp_dask.data.sources.dask_collections.frames import DaskFrameSource


def open_collection(
    data: Any,
    batch_size: int | None,
    columns: Sequence[str] | Columns | None,
    roles: Roles,
    reading: Reading = PLAIN_READING,
) -> DaskArraySource | DaskFrameSource:
    """A dask array or DataFrame as a source; DataError for other collections."""
    if is_dask_frame(data):
        return DaskFrameSource.of(data, batch_size, columns, roles, reading)
    import dask.array as da

    if isinstance(data, da.Array):
        if isinstance(columns, Sequence) or roles.weights is not None:
            raise DataError(
                "dask array: has no named columns; choose columns as x[:, [0, 2]], give weights as an array"
            )
        return DaskArraySource.of(data, batch_size)
    raise DataError(f"{type(data).__name__} is a dask collection without rows; needs a dask Array or DataFrame")
