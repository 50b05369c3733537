"""Which columns of a table are features: the one rule for pandas, Arrow, Parquet, CSV and dask tables."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bnp_dask.core.columns import Columns, Roles, few
from bnp_dask.data.sources.arrow import is_numeric, is_vector
from bnp_dask.errors import DataError, nearest

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Parameters
    ----------
    name
        Its name as text.
    label
        What the table calls it: pandas has labels that are no text.
    kind
        Type as it is stored.
    width
        Features that it gives: 1 for numbers, the length of lists of numbers of one length, 0 for anything else.
    is_list
        Whether its values are lists.
    is_index
        Whether pandas stored a row index in it.
    """

    name: str
    label: Any
    kind: str
    width: int
    is_list: bool = False
    is_index: bool = False


def frame_columns(frame: pd.DataFrame, name: str) -> list[TableColumn]:
    """Columns of a pandas frame (of a dask frame: of its ``_meta``); DataError where two have one name."""
    found = []
    for label, dtype in zip(frame.columns, frame.dtypes, strict=True):
        kind = {"boolean": "bool"}.get(str(dtype), str(dtype).lower())
        found.append(TableColumn(str(label), label, kind, int(is_real(dtype))))
    if len({c.name for c in found}) < len(found):
        raise DataError(f"{name} has several columns of the same name; rename them")
    return found


def is_real(dtype: Any) -> bool:
    """Whether values of a pandas dtype are real numbers."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return bool(is_bool_dtype(dtype) or is_numeric_dtype(dtype)) and getattr(dtype, "kind", "f") != "c"


def arrow_columns(schema: pa.Schema) -> list[TableColumn]:
    """Columns of an Arrow table or a Parquet file."""
    noted = (schema.pandas_metadata or {}).get("index_columns", [])
    index = {name for name in noted if isinstance(name, str)}
    return [TableColumn(f.name, f.name, _kind(f.type), *_width(f.type), f.name in index) for f in schema]


def _width(kind: pa.DataType) -> tuple[int, bool]:
    """Features of a column, and whether it holds lists."""
    return (int(kind.list_size), True) if is_vector(kind) else (int(is_numeric(kind)), False)


def _kind(kind: pa.DataType) -> str:
    """Name of a type; numbers are called as NumPy does, whatever the table."""
    if is_numeric(kind):
        return np.dtype(kind.to_pandas_dtype()).name
    return str(kind)


def choose(
    table: Sequence[TableColumn], wanted: Sequence[Any] | Columns | None, roles: Roles, name: str
) -> tuple[Columns, dict[str, Any]]:
    """The columns of a table that are features; and of each that is used, what the table calls it.

    Parameters
    ----------
    table
        All columns.
    wanted
        Names of the features, in their order; or the columns that a model was trained on, which are looked up by name;
        None for all numeric columns without a role, or for the column ``x`` of lists where there is one.
    roles
        Columns that are no features, unless they are wanted as such.
    name
        Of the data, for messages.

    Raises
    ------
    DataError
        A column is not there, or holds no numbers, or there is one that the model was not trained on.
    """
    known = {c.name: c for c in table}
    named = [] if wanted is None or isinstance(wanted, Columns) else [str(n) for n in wanted]
    gone = next((n for n in (*named, *roles.names) if n not in known), None)
    if gone is not None:
        role = "" if gone in named else f" for the {roles.of(gone)} of rows"
        trained = isinstance(wanted, Columns) and gone == roles.weights
        advice = ". Where every row counts once, pass as_source(data) (--weights none)" if trained else ""
        raise DataError(f"{name}: no column {gone!r}{role}{nearest(gone, known)}; it has {few([*known])}{advice}")
    if wanted is None:
        chosen = _numeric(table, roles.names, name)
    elif isinstance(wanted, Columns):
        chosen = _trained(table, wanted, roles, name)
    else:
        chosen = [known[str(n)] for n in wanted]
        if not chosen:
            raise DataError(f"{name}: columns=[] chooses nothing; columns are {few([*known])}")
    for column in chosen:
        if column.width == 0:
            raise DataError(f"{name}: column {column.name!r} is {column.kind}; needs numbers")
    if len({c.name for c in chosen}) < len(chosen):
        twice = next(c.name for i, c in enumerate(chosen) if c in chosen[:i])
        raise DataError(f"{name}: column {twice!r} is chosen twice; each feature is a column of its own")
    is_chosen = wanted.chosen if isinstance(wanted, Columns) else wanted is not None
    found = Columns(
        tuple(c.name for c in chosen), tuple(c.kind for c in chosen), tuple(c.width for c in chosen), roles, is_chosen
    )
    return found, {n: known[n].label for n in (*found.names, *roles.names)}


def _numeric(table: Sequence[TableColumn], apart: Sequence[str], name: str) -> list[TableColumn]:
    """What is taken when nothing was asked for; warns about the columns that are left."""
    chosen, left = _usual(table, apart)
    if not chosen:
        raise DataError(f"{name}: no numeric columns among {few([c.name for c in table])}")
    if left:
        warnings.warn(
            f"{name}: columns {few(left)} are not numeric and are left out; choose with columns=", stacklevel=2
        )
    return chosen


def _usual(table: Sequence[TableColumn], apart: Sequence[str]) -> tuple[list[TableColumn], list[str]]:
    """The column ``x`` of lists, or all columns of numbers that have no role; and the names of those that are left."""
    vector = [c for c in table if c.name == "x" and c.is_list and c.width > 0]
    if vector:
        return vector, []
    free = [c for c in table if c.name not in apart and not c.is_index]
    is_feature = [c.width == 1 and not c.is_list for c in free]
    pairs = list(zip(free, is_feature, strict=True))
    return [c for c, is_one in pairs if is_one], [c.name for c, is_one in pairs if not is_one]


def _trained(table: Sequence[TableColumn], wanted: Columns, roles: Roles, name: str) -> list[TableColumn]:
    """The columns that a model was trained on; DataError where one is missing, or there is one more."""
    usual, _ = _usual(table, (*roles.names, *wanted.others))
    names = [c.name for c in usual]
    if wanted.matches_by_position(names):
        return usual
    known = {c.name: c for c in table}
    wanted.require({c.name: c.width for c in table}, names, name)
    return [known[column] for column in wanted.names]
