"""Which columns of a table are features: the one rule for pandas, Arrow, Parquet, CSV and dask tables."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bnp_dask.core.columns import Columns, Roles, few
from bnp_dask.data.sources.arrow import is_numeric, is_vector
from bnp_dask.data.sources.levels import holds_levels
from bnp_dask.errors import DataError, nearest
from bnp_dask.inputs.column_notation import Key, is_positions, positions, resolve
from bnp_dask.inputs.levels import Levels

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
    is_level
        Whether its values may be levels.
    """

    name: str
    label: Any
    kind: str
    width: int
    is_list: bool = False
    is_index: bool = False
    is_level: bool = False


def frame_columns(frame: pd.DataFrame, name: str) -> list[TableColumn]:
    """Columns of a pandas frame (of a dask frame: of its ``_meta``); DataError where two have one name."""
    found = []
    for label, dtype in zip(frame.columns, frame.dtypes, strict=True):
        kind = {"boolean": "bool"}.get(str(dtype), str(dtype).lower())
        found.append(TableColumn(str(label), label, kind, int(is_real(dtype)), is_level=_may_be_level(dtype)))
    if len({c.name for c in found}) < len(found):
        raise DataError(f"{name} has several columns of the same name; rename them")
    return found


def is_real(dtype: Any) -> bool:
    """Whether values of a pandas dtype are real numbers."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return bool(is_bool_dtype(dtype) or is_numeric_dtype(dtype)) and getattr(dtype, "kind", "f") != "c"


def _may_be_level(dtype: Any) -> bool:
    """Whether values of a pandas dtype may be levels; of objects only looking tells."""
    from pandas import CategoricalDtype
    from pandas.api.types import is_string_dtype

    return (
        is_real(dtype)
        or dtype == np.dtype(object)
        or isinstance(dtype, CategoricalDtype)
        or bool(is_string_dtype(dtype))
    )


def arrow_columns(schema: pa.Schema) -> list[TableColumn]:
    """Columns of an Arrow table or a Parquet file."""
    noted = (schema.pandas_metadata or {}).get("index_columns", [])
    index = {name for name in noted if isinstance(name, str)}
    return [
        TableColumn(f.name, f.name, _kind(f.type), *_width(f.type), f.name in index, holds_levels(f.type))
        for f in schema
    ]


def _width(kind: pa.DataType) -> tuple[int, bool]:
    """Features of a column, and whether it holds lists."""
    return (int(kind.list_size), True) if is_vector(kind) else (int(is_numeric(kind)), False)


def _kind(kind: pa.DataType) -> str:
    """Name of a type; numbers are called as NumPy does, whatever the table."""
    if is_numeric(kind):
        return np.dtype(kind.to_pandas_dtype()).name
    return str(kind)


def choose(
    table: Sequence[TableColumn],
    wanted: Sequence[Any] | Columns | None,
    roles: Roles,
    name: str,
    keys: Sequence[Key] = (),
) -> tuple[Columns, dict[str, Any]]:
    """The columns of a table that are features; and of each that is used, what the table calls it.

    Columns whose levels are still to be found have none, ``()``, in :attr:`~bnp_dask.core.columns.Columns.levels`.

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
    keys
        Columns that hold levels; of those that a model was trained on the levels are known already.

    Raises
    ------
    DataError
        A column is not there, or holds neither numbers nor levels, or there is one that the model was not trained on.
    """
    known = {c.name: c for c in table}
    named = [] if wanted is None or isinstance(wanted, Columns) else [str(n) for n in wanted]
    gone = next((n for n in (*named, *roles.names) if n not in known), None)
    if gone is not None:
        role = "" if gone in named else f" for the {roles.of(gone)} of rows"
        trained = isinstance(wanted, Columns) and gone == roles.weights
        advice = ". Where every row counts once, pass as_source(data) (--weights none)" if trained else ""
        raise DataError(f"{name}: no column {gone!r}{role}{nearest(gone, known)}; it has {few([*known])}{advice}")
    if isinstance(wanted, Columns) and wanted.levels is not None:
        chosen, coded = _trained_levels(table, wanted, roles, name)
    elif isinstance(wanted, Columns):
        chosen = _trained(table, wanted, roles, name)
        coded = _to_find(keys, [c.name for c in chosen])
    elif wanted is None:
        chosen, coded = _numeric_or_levels(table, roles.names, name, keys)
    else:
        chosen = [known[str(n)] for n in wanted]
        if not chosen:
            raise DataError(f"{name}: columns=[] chooses nothing; columns are {few([*known])}")
        coded = _to_find(keys, [c.name for c in chosen])
    for column in chosen:
        if column.name in coded and not column.is_level:
            raise DataError(
                f"{name}: column {column.name!r} is {column.kind}; levels need to be texts, categories, truth values "
                f"or numbers: df[{column.name!r}].astype(str)"
            )
        if column.name not in coded and column.width == 0:
            advice = "; of texts and categories make it levels: give the column a Categorical()" * column.is_level
            raise DataError(f"{name}: column {column.name!r} is {column.kind}; needs numbers{advice}")
    if len({c.name for c in chosen}) < len(chosen):
        twice = next(c.name for i, c in enumerate(chosen) if c in chosen[:i])
        raise DataError(f"{name}: column {twice!r} is chosen twice; each feature is a column of its own")
    is_chosen = wanted.chosen if isinstance(wanted, Columns) else wanted is not None
    found = Columns(
        tuple(c.name for c in chosen),
        tuple(c.kind for c in chosen),
        tuple(max(c.width, 1) for c in chosen),
        roles,
        is_chosen,
    ).with_levels(coded)
    return found, {n: known[n].label for n in (*found.names, *roles.names)}


def _to_find(keys: Sequence[Key], names: Sequence[str]) -> dict[str, Levels]:
    """Columns that hold levels among those of these names, without any yet."""
    places = [positions(resolve(key, names), len(names)) for key in keys]
    return {names[i]: () for own in places for i in own.tolist()}


def _numeric_or_levels(
    table: Sequence[TableColumn], apart: Sequence[str], name: str, keys: Sequence[Key]
) -> tuple[list[TableColumn], dict[str, Levels]]:
    """Columns taken when nothing was asked for, and those that hold levels; warns about columns that are left.

    Columns of numbers, and those of levels: all that may be some where positions are given, else those of the names.
    """
    free = [c for c in table if c.name not in apart and not c.is_index]
    if any(is_positions(key) for key in keys):
        chosen = [c for c in free if c.is_level]
        coded = _to_find(keys, [c.name for c in chosen])
    else:
        coded = _to_find(keys, [c.name for c in table])
        chosen = _usual([replace(c, width=1) if c.name in coded else c for c in table], apart)[0]
    names = {c.name for c in chosen}
    left = [c.name for c in free if c.name not in names]
    if not chosen:
        kinds = " or columns of levels" if keys else ""
        advice = ""
        if not keys and any(c.is_level for c in free):
            advice = "; texts and categories are levels of a Categorical()"
        raise DataError(f"{name}: no numeric columns{kinds} among {few([c.name for c in table])}{advice}")
    if left and not any(c.name == "x" and c.is_list for c in chosen):
        texts = any(c.is_level for c in free if c.name in left)
        advice = "; of texts and categories give them a Categorical()" if texts else ""
        warnings.warn(
            f"{name}: columns {few(left)} are not numeric and are left out; choose with columns={advice}",
            stacklevel=2,
        )
    return chosen, coded


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


def _trained_levels(
    table: Sequence[TableColumn], wanted: Columns, roles: Roles, name: str
) -> tuple[list[TableColumn], dict[str, Levels]]:
    """The columns that a model with levels was trained on, and these; DataError as above."""
    own = wanted.coded
    by_place = wanted.is_positional or [c.name for c in table] == [str(i) for i in range(len(table))]
    read = [replace(c, width=1) if c.is_level and (by_place or c.name in own) else c for c in table]
    chosen = _trained(read, wanted, roles, name)
    names = [c.name for c in chosen]
    if tuple(names) == wanted.names:
        return chosen, own
    if len(names) != wanted.n_features:
        return chosen, {}  # whoever holds the columns against those of training says so
    levels = zip(names, wanted.levels or (), strict=True)
    return chosen, {column: known for column, known in levels if known is not None}
