"""Columns of levels in tables: their distinct values, and entries as positions among them.

Texts, categories, dictionaries, truth values and numbers are converted through Arrow, so that all tables follow one
rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bnp_dask.core.columns import Columns, OnBadCell
from bnp_dask.data.sources.arrow import Cells, as_arrow, is_numeric, is_text, read_cells
from bnp_dask.errors import DataError
from bnp_dask.inputs import levels as known_levels
from bnp_dask.inputs.arrays import is_exact
from bnp_dask.inputs.levels import MOST_LEVELS, Level, Levels, as_level, checked_levels, ordered_levels, unseen

if TYPE_CHECKING:
    import pandas as pd


NO_LEVELS: Mapping[str, Levels] = MappingProxyType({})


def holds_levels(kind: pa.DataType) -> bool:
    """Whether the values of an Arrow type may be levels."""
    if pa.types.is_dictionary(kind):
        return holds_levels(kind.value_type)
    return is_text(kind) or is_numeric(kind) or pa.types.is_null(kind)


def _values(values: Any, name: str, column: str) -> pa.Array:
    """A column as texts, truth values or float64, with nulls for missing entries; DataError for other values."""
    try:
        array = as_arrow(values, as_texts=False)
        if is_text(array.type):
            return array.cast(pa.large_string())
        if pa.types.is_boolean(array.type):
            return array
        if pa.types.is_null(array.type) or is_numeric(array.type):
            wide = array.cast(pa.float64())
            return pc.if_else(pc.is_nan(wide), pa.scalar(None, pa.float64()), wide)
        found = str(array.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        found = f"of values that are neither all texts nor all numbers ({error})"
    raise DataError(
        f"{name}: column {column!r} is {found}; levels need to be texts, categories of them, truth values or numbers: "
        f"df[{column!r}].astype(str)"
    )


def distinct(values: Any, name: str, column: str) -> set[Level]:
    """The distinct values of a column, without missing ones."""
    array = _values(values, name, column)
    found = pc.unique(array).drop_null().to_pylist()
    return set(map(as_level, found)) if pa.types.is_floating(array.type) else set(found)


def union(parts: Iterable[Sequence[set[Level]]], columns: Sequence[str], name: str) -> dict[str, Levels]:
    """Levels of columns from the values of all parts of the data, each part with a set for each of the ``columns``."""
    found: list[set[Level]] = [set() for _ in columns]
    for part in parts:
        for column, held, more in zip(columns, found, part, strict=True):
            held |= more
            if len(held) > MOST_LEVELS:  # raises early, before there are more
                ordered_levels(held, name, column)
    return {column: ordered_levels(held, name, column) for column, held in zip(columns, found, strict=True)}


def declared(values: pd.Series) -> Levels | None:
    """Levels of a pandas category in the order of its declaration; None for other columns, and unknown categories."""
    import pandas as pd

    dtype = values.dtype
    if not isinstance(dtype, pd.CategoricalDtype) or dtype.categories is None:
        return None
    name, column = "DataFrame", str(values.name)
    array = _values(dtype.categories, name, column)
    listed = array.to_pylist()
    if "__UNKNOWN_CATEGORIES__" in listed:  # of a dask frame
        return None
    levels = tuple(map(as_level, listed)) if pa.types.is_floating(array.type) else tuple(listed)
    return checked_levels(levels, name, column)


def codes(values: Any, levels: Levels, name: str, column: str, row: int = 0) -> np.ndarray:
    """Entries of a column as positions among its levels, ``(n,)`` float64, NaN for missing entries.

    Raises
    ------
    DataError
        An entry is not a level; names it, and its row counted from ``row``.
    """
    array = _values(values, name, column)
    text = is_text(array.type)
    if text == known_levels.is_text(levels):
        if text:
            known = pa.array(levels, pa.large_string())
        else:
            array, known = array.cast(pa.float64()), pa.array(np.array(levels, np.float64))
        place = pc.index_in(array, known)
    else:
        place = pa.nulls(len(array), pa.int32())
    wrong = np.flatnonzero(np.asarray(pc.and_(pc.is_valid(array), pc.is_null(place))))
    if len(wrong):
        value = array[int(wrong[0])].as_py()
        raise unseen(name, row + int(wrong[0]), column, as_level(value) if isinstance(value, float) else value, levels)
    return np.asarray(place.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


def pending(columns: Columns) -> tuple[str, ...]:
    """Columns whose levels are still to be found."""
    return tuple(name for name, levels in columns.coded.items() if not levels)


def with_found(columns: Columns, found: Mapping[str, Levels]) -> Columns:
    """The columns with the levels that were still to be found."""
    return columns.with_levels({**columns.coded, **found})


def fill_rows(
    out: np.ndarray,
    batch: pa.RecordBatch,
    layout: Sequence[tuple[str, int]],
    name: str,
    row: int = 0,
    coded: Mapping[str, Levels] = NO_LEVELS,
    on_bad: OnBadCell = "raise",
) -> None:
    """Copy feature columns of a record batch ``(n rows)`` into ``out (n, D)``, ``coded`` ones as positions of levels.

    DataError, with the ``name`` of the data and rows counted from ``row``, if a whole number would be rounded, if an
    entry is not a level, or, unless bad cells count as missing, if an entry is not a number.
    """
    place = 0
    for column, width in layout:
        array = batch.column(column)
        if column in coded:
            out[:, place] = codes(array, coded[column], name, column, row)
        else:
            checks = not is_exact(np.dtype(np.int64), out.dtype)
            out[:, place : place + width] = read_cells(array, width, Cells(name, column, row, on_bad), checks)
        place += width
