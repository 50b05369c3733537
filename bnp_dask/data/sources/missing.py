"""Data with missing entries, for models that accept them: NaN, masked arrays, missing values of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from bnp_dask.core.columns import Columns
from bnp_dask.data.base import Source
from bnp_dask.data.grouped.lagged import taking_lags
from bnp_dask.data.sources.choose import require_no_groups
from bnp_dask.data.sources.forms import Documents, Needs, plain_form
from bnp_dask.data.sources.frames import is_frame
from bnp_dask.data.sources.named import letting_miss
from bnp_dask.data.sources.open import as_source
from bnp_dask.inputs.arrays import to_float
from bnp_dask.inputs.arrow_streams import in_order_of_time, unlabelled


def with_nan(data: Any) -> Any:
    """Masked arrays, and lists of them, with NaN in place of masked entries; anything else unchanged.

    Tables need no conversion: their missing values are read as NaN.
    """
    if isinstance(data, list) and any(isinstance(part, np.ma.MaskedArray) for part in data):
        return [with_nan(part) for part in data]
    if not isinstance(data, np.ma.MaskedArray):
        return data
    return np.where(np.ma.getmaskarray(data), np.nan, to_float(data.data, "masked array"))


def opened(
    data: Any,
    needs: Needs,
    batch_size: int | None = None,
    weights: Any = None,
    columns: Sequence[str] | Columns | None = None,
    on_bad_batch: Literal["raise", "skip"] = "raise",
) -> Source:
    """The source of data for a model, as from :func:`bnp_dask.as_source`.

    Entries may be missing if the model accepts that; columns of levels are read as such.  If the columns of a table are
    not known yet, only those that the likelihood chooses are read.  Rows in memory are one sequence for a model of
    sequences, unless the data say where sequences start.
    """
    given = plain_form(with_nan(data) if needs.may_miss else data, needs)
    if columns is None and needs.chosen is not None and not isinstance(given, Source | Documents):
        columns = list(needs.chosen)
    if isinstance(given, Documents):
        columns = None
    if needs.in_order:
        given = in_order_of_time(given)
    facts = {"batch_size": batch_size, "weights": weights, "columns": columns, "on_bad_batch": on_bad_batch}
    source = as_source(given, levels=list(needs.levels), groups=_one_sequence(given, needs, columns), **facts)
    return letting_miss(source) if needs.may_miss else source


def _one_sequence(data: Any, needs: Needs, columns: Any) -> list[int] | None:
    """Offsets of one sequence of all rows in memory, for a model of sequences; None if the data tell sequences apart,
    or are not in memory."""
    told = isinstance(columns, Columns) and columns.roles.groups is not None
    is_table = isinstance(data, pa.Table) or is_frame(data)
    rows = unlabelled(data)[0]
    is_array = isinstance(rows, np.ndarray) and rows.ndim == 2
    if not needs.in_order or not (is_array or (is_table and not told)):
        return None
    if is_table:
        require_no_groups(data, type(data).__name__)
    return [0, len(rows)]


def as_modelled(source: Source, may_miss: bool, lags: int) -> Source:
    """Opened data in the form for training: entries may be missing, and rows include the ``lags`` steps before them."""
    return taking_lags(letting_miss(source) if may_miss else source, lags)
