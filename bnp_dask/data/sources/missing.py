"""Data in which entries are missing, for models that take them: NaN, masked arrays, missing values of tables."""

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
    """Masked arrays, and lists of them, with NaN in place of what is masked; anything else as it is.

    Tables need nothing: their missing values are read as NaN.
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
    """The source of data, as :func:`bnp_dask.as_source` makes it; entries may be missing where a model takes that.

    Columns at the ``level_keys`` hold levels; of a table whose columns are not known yet, only those of the names
    ``chosen`` are read.
    """
    given = with_nan(data) if may_miss else data
    if columns is None and chosen is not None and not isinstance(given, Source):
        columns = list(chosen)
    facts = {"batch_size": batch_size, "weights": weights, "columns": columns, "on_bad_batch": on_bad_batch}
    source = as_source(given, levels=list(level_keys), **facts)
    return letting_miss(source) if may_miss else source


def as_modelled(source: Source, may_miss: bool, lags: int) -> Source:
    """Data that were opened as a model is trained on them: entries may be missing, rows hold the steps before them."""
    return taking_lags(letting_miss(source) if may_miss else source, lags)
