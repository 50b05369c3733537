"""Data with missing entries, for models that accept them: NaN, masked arrays, missing values of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from bnp_dask.core.columns import Columns
from bnp_dask.data.base import Source
from bnp_dask.data.grouped.lagged import taking_lags
from bnp_dask.data.sources.named import letting_miss
from bnp_dask.data.sources.open import as_source
from bnp_dask.inputs.arrays import to_float
from bnp_dask.inputs.column_notation import Key


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
    may_miss: bool,
    batch_size: int | None,
    weights: Any = None,
    columns: Sequence[str] | Columns | None = None,
    on_bad_batch: Literal["raise", "skip"] = "raise",
    level_keys: Sequence[Key] = (),
    chosen: Sequence[str] | None = None,
) -> Source:
    """The source of data, as from :func:`bnp_dask.as_source`; entries may be missing if ``may_miss``.

    Columns at the ``level_keys`` hold levels.  If the columns of a table are not known yet, only the columns ``chosen``
    are read.
    """
    given = with_nan(data) if may_miss else data
    if columns is None and chosen is not None and not isinstance(given, Source):
        columns = list(chosen)
    facts = {"batch_size": batch_size, "weights": weights, "columns": columns, "on_bad_batch": on_bad_batch}
    source = as_source(given, levels=list(level_keys), **facts)
    return letting_miss(source) if may_miss else source


def as_modelled(source: Source, may_miss: bool, lags: int) -> Source:
    """Opened data in the form for training: entries may be missing, and rows include the ``lags`` steps before them."""
    return taking_lags(letting_miss(source) if may_miss else source, lags)
