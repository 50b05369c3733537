"""Choice of the feature columns of a table, in one place for pandas, Arrow, Parquet, CSV and Dask tables.

Types decide which columns may be numbers; for texts, lists and row numbers the values decide (:func:`looked_at`).
Chosen columns become numbers in :mod:`bnp_dask.data.sources.arrow`, whatever the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bnp_dask.core.columns import Columns, OnBadCell, Roles, few
from bnp_dask.data.sources.arrow import (
    Cells,
    Written,
    as_arrow,
    bad_cell,
    is_list,
    is_numeric,
    is_text,
    may_be_numbers,
    read_cells,
    stripped,
)
from bnp_dask.data.sources.levels import holds_levels
from bnp_dask.errors import DataError, nearest, warn
from bnp_dask.inputs.column_notation import Key, is_positions, positions, resolve
from bnp_dask.inputs.levels import Levels

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN = -1
"""Width of a column whose lists, or objects, were not inspected."""

LEAST_ROWS = 10
"""Least rows for which a column that counts them is taken for row numbers."""

NAMELESS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Names that pandas gives to a row index in files, and to a column without a name."""

ROW_NUMBERS, CATEGORIES, TEXTS, NO_VALUE = "row numbers", "categories", "texts", "no value"

DATES, CODES = "dates as texts", "codes with leading zeros"

IDS, TIMES = "ids of rows", "times"

ID = re.compile(r"(?i:ids?|uuid|guid|(.*[_\W])(id|ids|uuid|guid))|.*[a-z]I[dD]")
"""Names of columns of ids."""

TIME = re.compile(r"(?i)(.*[_\W])?(time|times|timestamp|timestamps|datetime|date|epoch)|t")
"""Names of columns of times."""

WORDS = (CATEGORIES, TEXTS, CODES)
"""Reasons of left-out columns that may be levels."""

DATE = r"^\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}"
"""Texts that begin like a date."""

DECORATED = r"^[^\w\s]*\s*[+-]?(\d[\d.,]*|[.,]\d+|\d{1,3}([ ']\d{3})+([.,]\d+)?)\s*[^\w\s]*$"
"""Numbers with a currency or percent sign, or in the notation of another country."""

CODE = r"^[+-]?0\d"
"""Whole numbers with leading zeros, which are codes."""


@dataclass(frozen=True)
class Reading:
    """How the columns of a table are read, beside their names and roles.

    Parameters
    ----------
    levels
        Columns that hold levels.
    on_bad_cell
        Treatment of cells that are not numbers; None as in training, else an error.
    """

    levels: tuple[Key, ...] = ()
    on_bad_cell: OnBadCell | None = None

    def on_bad(self, wanted: object) -> OnBadCell:
        """Treatment of bad cells in the wanted columns."""
        trained = wanted.on_bad_cell if isinstance(wanted, Columns) else None
        return self.on_bad_cell or trained or "raise"


PLAIN_READING = Reading()


Look = Callable[[Sequence["TableColumn"]], "list[TableColumn]"]
"""Function that completes columns with facts from their values."""


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Parameters
    ----------
    name
        Its name as text.
    label
        Its label in the table: in pandas labels need not be text.
    kind
        Stored type.
    width
        Number of its features: 1 for numbers, the common length of lists of numbers, 0 for anything else;
        :data:`UNKNOWN` before its values were inspected, if they decide.
    why
        Reason why it is not a feature unless chosen; empty for features.
    is_plain
        Whether it is stored as numbers, one per row.
    is_list
        Whether its values are lists.
    is_level
        Whether its values may be levels.
    is_text
        Whether its numbers are stored as texts.
    bad
        Error for its first cell that is not a number, if the others are numbers.
    """

    name: str
    label: Any
    kind: str
    width: int
    why: str = ""
    is_plain: bool = False
    is_list: bool = False
    is_level: bool = False
    is_text: bool = False
    bad: DataError | None = None


# -- facts from types --------------------------------------------------------------------------------------------------
def frame_columns(frame: pd.DataFrame, name: str) -> list[TableColumn]:
    """Columns of a pandas frame (or of the ``_meta`` of a dask frame); DataError if two have the same name."""
    import pandas as pd

    found = []
    for label, dtype in zip(frame.columns, frame.dtypes, strict=True):
        kind = {"boolean": "bool"}.get(str(dtype), str(dtype).lower())
        if isinstance(dtype, pd.ArrowDtype):
            found.append(replace(_typed(str(label), dtype.pyarrow_dtype), label=label, kind=kind))
        elif is_real(dtype):
            found.append(TableColumn(str(label), label, kind, 1, is_plain=True, is_level=True))
        elif isinstance(dtype, pd.CategoricalDtype):
            found.append(TableColumn(str(label), label, kind, UNKNOWN, CATEGORIES, is_level=True))
        elif dtype == np.dtype(object) or pd.api.types.is_string_dtype(dtype):
            found.append(TableColumn(str(label), label, kind, UNKNOWN, TEXTS, is_level=True))
        else:
            whys = {"c": "complex numbers", "M": "dates and times", "m": "time spans"}
            found.append(
                TableColumn(str(label), label, kind, 0, whys.get(getattr(dtype, "kind", "M"), f"{kind} values"))
            )
    return _once(found, name)


def is_real(dtype: Any) -> bool:
    """Whether values of a pandas dtype are real numbers."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return bool(is_bool_dtype(dtype) or is_numeric_dtype(dtype)) and getattr(dtype, "kind", "f") != "c"


def arrow_columns(schema: pa.Schema, name: str) -> list[TableColumn]:
    """Columns of an Arrow table or a Parquet file; DataError if two have the same name."""
    noted = (schema.pandas_metadata or {}).get("index_columns", [])
    index = {column for column in noted if isinstance(column, str)}
    found = [_typed(field.name, field.type) for field in schema]
    return _once([replace(c, why=ROW_NUMBERS) if c.name in index else c for c in found], name)


def _once(columns: list[TableColumn], name: str) -> list[TableColumn]:
    held: dict[str, int] = {}
    for place, column in enumerate(columns):
        if column.name in held:
            raise DataError(
                f"{name} has several columns of the same name: {column.name!r} is both column {held[column.name]} and "
                f"column {place}; rename them"
            )
        held[column.name] = place
    return columns


def _typed(name: str, kind: pa.DataType) -> TableColumn:
    """A column by its Arrow type alone."""
    level = holds_levels(kind)
    if isinstance(kind, pa.BaseExtensionType):
        return _typed(name, kind.storage_type)
    if is_numeric(kind):
        # numeric types have NumPy's names, whatever the table
        return TableColumn(name, name, np.dtype(kind.to_pandas_dtype()).name, 1, is_plain=True, is_level=level)
    if pa.types.is_dictionary(kind):
        return TableColumn(name, name, str(kind), UNKNOWN if may_be_numbers(kind) else 0, CATEGORIES, is_level=level)
    if is_list(kind):
        inner = kind.value_type
        if is_list(inner) or not may_be_numbers(inner) or pa.types.is_null(inner):
            return TableColumn(name, name, str(kind), 0, f"lists of {_called(inner)}", is_list=True)
        width = kind.list_size if pa.types.is_fixed_size_list(kind) else UNKNOWN
        why = TEXTS if is_text(inner) else ""
        return TableColumn(name, name, str(kind), width, why, is_list=True)
    if may_be_numbers(kind):
        why = TEXTS if is_text(kind) else NO_VALUE if pa.types.is_null(kind) else ""
        return TableColumn(name, name, str(kind), 1, why, is_level=level)
    return TableColumn(name, name, str(kind), 0, _called(kind), is_level=level)


def _called(kind: pa.DataType) -> str:
    """Name, in warnings, of values of a non-numeric type."""
    if pa.types.is_duration(kind) or pa.types.is_interval(kind):
        return "time spans"
    if pa.types.is_temporal(kind):
        return "dates and times"
    if is_text(kind):
        return TEXTS
    if pa.types.is_nested(kind):
        return f"nested values, {str(kind)[:40]}"
    return f"{kind} values"


# -- facts from values -------------------------------------------------------------------------------------------------
def looked_at(
    column: TableColumn, values: Any, name: str, offsets: np.ndarray | None = None, is_all: bool = True
) -> TableColumn:
    """A column completed with facts from its values.

    Parameters
    ----------
    column
        Column as known from its type.
    values
        Values from a frame or Arrow table: all, or the first ones.
    name
        Name of the data, for messages.
    offsets
        First row of each recording, ``(G + 1,)``; None for a single table.
    is_all
        Whether these are all values.
    """
    if column.width == 0 or column.why == CATEGORIES:
        return column
    array = as_arrow(values)
    if column.why == ROW_NUMBERS or NAMELESS.fullmatch(column.name):
        is_empty = len(array) > 0 and array.null_count == len(array)
        return replace(column, width=max(column.width, 1), why=NO_VALUE if is_empty else ROW_NUMBERS)
    if column.is_plain:
        if is_all and _has_none(array):
            return replace(column, why=NO_VALUE)
        return replace(column, why=ROW_NUMBERS if counts_rows(array, offsets) else _named(column, array, offsets))
    if is_list(array.type):
        return _list_looked_at(column, array)
    if array.null_count == len(array):
        return replace(column, width=1, why=NO_VALUE)
    if is_numeric(array.type) or pa.types.is_decimal(array.type):
        why = ROW_NUMBERS if counts_rows(array, offsets) else _named(replace(column, is_text=True), array, offsets)
        return replace(column, width=1, why=why)
    if not is_text(array.type):
        return replace(column, width=0, why=_called(array.type), is_level=False)
    return _text_looked_at(column, stripped(array), name, offsets)


def in_values(
    values_of: Callable[[Any], Any], name: str, offsets: np.ndarray | None = None, is_all: bool = True
) -> Look:
    """Inspection of columns whose values ``values_of`` returns by label; the rest as in :func:`looked_at`."""
    return lambda columns: [looked_at(c, values_of(c.label), name, offsets, is_all) for c in columns]


def _has_none(array: pa.Array) -> bool:
    """Whether a column of numbers has no value in any row."""
    if len(array) == 0:
        return False
    first = array[0].as_py()
    is_missing = first is None or first != first
    return is_missing and bool(pc.all(pc.is_null(array, nan_is_null=True)).as_py())


def counts_rows(array: pa.Array, offsets: np.ndarray | None = None, start: int = 0) -> bool:
    """Whether the values are the numbers of rows, from 0 or 1 on, in order; ``start`` is the number of the first row.

    Row numbers start anew at each of the ``offsets``.
    """
    if len(array) < LEAST_ROWS or array.null_count or pa.types.is_boolean(array.type):
        return False
    if offsets is not None and np.diff(offsets).max() < LEAST_ROWS:
        return False
    cells = Cells("", on_bad="missing")
    first = read_cells(array[:1], 1, cells, exact=False)[0, 0]
    if first not in (start, start + 1):
        return False
    wanted = first + np.arange(len(array))
    if offsets is not None:
        wanted -= np.repeat(offsets[:-1], np.diff(offsets))
    return np.array_equal(read_cells(array, 1, cells, exact=False)[:, 0], wanted)


def says_role(column: TableColumn) -> str:
    """The role that the name of a column of single numbers says, "an id" or "a time"; else empty."""
    if column.is_list or not (column.is_plain or column.is_text):
        return ""
    return "an id" if ID.fullmatch(column.name) else "a time" if TIME.fullmatch(column.name) else ""


def require_no_groups(table: Any, name: str) -> None:
    """DataError if a table whose rows are to be one sequence has a column of ids, by its name, that repeat."""
    is_arrow = isinstance(table, pa.Table)
    labels = table.column_names if is_arrow else list(table.columns)
    for label in labels:
        if not ID.fullmatch(str(label)):
            continue
        values = as_arrow(table.column(label) if is_arrow else table[label])
        n_distinct = pc.count_distinct(values, mode="all").as_py()
        if 1 < n_distinct < len(values):
            raise DataError(
                f"{name}: column {str(label)!r} has {n_distinct} ids, which seem to tell sequences apart: "
                f"as_source(table, groups={str(label)!r}), with order= for the column of time; or leave the column "
                "out, where all rows are one sequence"
            )


def _named(column: TableColumn, array: pa.Array, offsets: np.ndarray | None) -> str:
    """Why a column of numbers is no feature by its name and values: whole numbers, each of one row, that are called
    ids; or numbers called times that rise from row to row, in each recording.  Empty for features."""
    role = says_role(column)
    if not role or len(array) < LEAST_ROWS or array.null_count:
        return ""
    values = read_cells(array, 1, Cells("", on_bad="missing"), exact=False)[:, 0]
    if role == "an id":
        is_whole = bool(np.isfinite(values).all()) and np.array_equal(values, np.floor(values))
        return IDS if is_whole and len(np.unique(values)) == len(values) else ""
    steps = np.diff(values)
    within = np.ones(len(steps), np.bool_)
    if offsets is not None:
        within[np.asarray(offsets[1:-1], np.int64) - 1] = False
    return TIMES if bool((steps[within] > 0).all()) else ""


def _list_looked_at(column: TableColumn, array: pa.Array) -> TableColumn:
    """A column of lists, with their length as its width if all have the same length."""
    kind = _typed(column.name, array.type)
    lengths = pc.unique(pc.list_value_length(array)).drop_null()
    if kind.width == 0 or len(lengths) == 0:
        return replace(column, width=0, why=kind.why or NO_VALUE, is_list=True, is_level=False)
    if len(lengths) > 1 or lengths[0].as_py() == 0:
        shortest, longest = pc.min_max(lengths).as_py().values()
        why = f"lists of {shortest} to {longest} values" if len(lengths) > 1 else "empty lists"
        return replace(column, width=0, why=why, is_list=True, is_level=False)
    inside = as_arrow(array.flatten())
    why = ""
    if is_text(inside.type):
        why = _text_looked_at(replace(column, width=1, why=""), stripped(inside), "", None).why
        why = f"lists of {why}" if why else ""
    return replace(column, width=lengths[0].as_py(), why=why, is_list=True, is_level=False)


def _text_looked_at(column: TableColumn, text: pa.Array, name: str, offsets: np.ndarray | None) -> TableColumn:
    """A column of texts: numbers if most texts are meant as numbers, with an error for the first that is not."""
    written = Written.of(text)
    n_valid = int(written.valid.sum())
    if n_valid == 0:
        return replace(column, width=1, why=NO_VALUE)
    bad = np.flatnonzero(written.bad)
    if len(bad):
        wrong = text.take(pa.array(bad))
        if _share(wrong, DATE) > 0.5:
            return replace(column, width=1, why=DATES)
        meant = n_valid - len(bad) + int(_share(wrong, DECORATED) * len(bad))
        if 2 * meant < n_valid:
            return replace(column, width=1, why=TEXTS)
    if _share(text, CODE) > 0:
        return replace(column, width=1, why=CODES)
    if not len(bad) and counts_rows(text, offsets):
        return replace(column, width=1, why=ROW_NUMBERS)
    error = None
    if not len(bad) and (why := _named(replace(column, is_text=True), text, offsets)):
        return replace(column, width=1, why=why)
    if len(bad):
        first = int(bad[0])
        error = bad_cell(Cells(name, column.name), first, text[first].as_py(), len(bad))
    return replace(column, width=1, why="", is_text=True, bad=error)


def _share(text: pa.Array, pattern: str) -> float:
    """Share of the texts that match a pattern."""
    return float(np.mean(np.asarray(pc.match_substring_regex(text, pattern).fill_null(False))))


# -- arrays, whose columns have no names ------------------------------------------------------------------------------
def array_of_numbers(array: np.ndarray, name: str) -> np.ndarray:
    """An array of objects or texts that are numbers ``(n, D)`` as float64, by the rule of tables; others unchanged.

    Raises
    ------
    DataError
        A cell in a column of numbers is not a number.
    """
    if array.ndim != 2 or array.dtype.kind not in "OU" or array.size == 0:
        return array
    table = [TableColumn(str(j), j, str(array.dtype), UNKNOWN) for j in range(array.shape[1])]
    found = in_values(lambda j: array[:, j], name)(table)
    for column in found:
        if column.width != 1 or column.is_list or column.why in (TEXTS, DATES):
            return array
        if column.bad is not None:
            raise column.bad
    return np.column_stack([read_cells(array[:, c.label], 1, Cells(name, c.name))[:, 0] for c in found])


def tell_of_row_numbers(array: np.ndarray, name: str) -> None:
    """Warn if a column of an array ``(n, D)`` numbers its rows: without a name it is a feature like all others."""
    if array.shape[1] < 2 or len(array) < LEAST_ROWS or array.dtype.kind not in "iuf":
        return
    first, step = array[0].astype(np.float64), array[-1].astype(np.float64)
    may_count = ((first == 0) | (first == 1)) & (step == first + len(array) - 1)
    places = [j for j in np.flatnonzero(may_count).tolist() if counts_rows(as_arrow(array[:, j]))]
    if places:
        warn(
            f"{name}: all {array.shape[1]} columns are features, also {places[0]}, which numbers the rows; leave it "
            f"out: np.delete(x, {places[0]}, axis=1)"
        )


# -- choice ------------------------------------------------------------------------------------------------------------
def choose(
    table: Sequence[TableColumn],
    wanted: Sequence[Any] | Columns | None,
    roles: Roles,
    name: str,
    reading: Reading,
    look: Look,
) -> tuple[Columns, dict[str, Any]]:
    """The feature columns of a table; and the label in the table of each used column.

    Columns whose levels are still to be found have ``()`` in :attr:`~bnp_dask.core.columns.Columns.levels`.  If no
    columns were requested and some are left out, a warning says in one line which columns are features, and why others
    are not.

    Parameters
    ----------
    table
        All columns, by their types.
    wanted
        Names of the features, in order; or the columns that a model was trained on, which are found by name; None for
        all columns of numbers without a role, or for the column ``x`` of lists if there is one.
    roles
        Columns with a role other than feature, unless they are wanted as features.
    name
        Name of the data, for messages.
    reading
        Columns that hold levels (columns of training have theirs already), and the treatment of bad cells.
    look
        Inspection of the values of columns; for new data only of columns that training did not have.

    Raises
    ------
    DataError
        A column is missing, or holds neither numbers nor levels, or holds numbers and a cell that is not a number; or
        there is a column that the model was not trained on.
    """
    known = {c.name: c for c in table}
    named = [] if wanted is None or isinstance(wanted, Columns) else [str(n) for n in wanted]
    gone = next((n for n in (*named, *roles.names) if n not in known), None)
    if gone is not None:
        role = "" if gone in named else f" for the {roles.of(gone)} of rows"
        trained = isinstance(wanted, Columns) and gone == roles.weights
        advice = ". Where every row counts once, pass as_source(data) (--weights none)" if trained else ""
        raise DataError(f"{name}: no column {gone!r}{role}{nearest(gone, known)}; it has {few([*known])}{advice}")
    keys, left = reading.levels, list[TableColumn]()
    others = tuple(dict.fromkeys((*wanted.others, *wanted.roles.names))) if isinstance(wanted, Columns) else ()
    if isinstance(wanted, Columns) and wanted.levels is not None:
        chosen, coded = _trained_levels(table, wanted, roles, name, look)
    elif isinstance(wanted, Columns):
        chosen = _trained(table, wanted, roles, name, look)
        coded = _to_find(keys, [c.name for c in chosen])
    elif wanted is None:
        chosen, left, coded = _usual_or_levels(table, roles.names, keys, look)
        others = tuple(c.name for c in left)
    else:
        coded = _to_find(keys, named)
        found = {c.name: c for c in look([known[n] for n in dict.fromkeys(named) if n not in coded])}
        chosen = [found.get(n, known[n]) for n in named]
        if not chosen:
            raise DataError(f"{name}: columns=[] chooses nothing; columns are {few([*known])}")
    on_bad = reading.on_bad(wanted)
    for column in chosen:
        _require_readable(column, column.name in coded, on_bad, name)
    if wanted is None:
        _tell(name, chosen, left, coded, keys)
    if len({c.name for c in chosen}) < len(chosen):
        twice = next(c.name for i, c in enumerate(chosen) if c in chosen[:i])
        raise DataError(f"{name}: column {twice!r} is chosen twice; each feature is a column of its own")
    is_chosen = wanted.chosen if isinstance(wanted, Columns) else wanted is not None
    columns = Columns(
        tuple(c.name for c in chosen),
        tuple(c.kind for c in chosen),
        tuple(max(c.width, 1) for c in chosen),
        roles,
        is_chosen,
        others,
        on_bad_cell=None if on_bad == "raise" else on_bad,
    ).with_levels(coded)
    return columns, {n: known[n].label for n in (*columns.names, *roles.names)}


def _require_readable(column: TableColumn, is_coded: bool, on_bad: OnBadCell, name: str) -> None:
    """DataError unless a chosen column can be read: as levels if it ``is_coded``, else as numbers."""
    if is_coded:
        if not column.is_level:
            raise DataError(
                f"{name}: column {column.name!r} is {column.kind}; levels need to be texts, categories, truth values "
                f"or numbers: df[{column.name!r}].astype(str)"
            )
        return
    if column.bad is not None and on_bad == "raise":
        raise column.bad
    if column.width < 1 or column.why in (TEXTS, CATEGORIES, DATES):
        advice = "; of texts and categories make it levels: give the column a Categorical()" * column.is_level
        raise DataError(
            f"{name}: column {column.name!r} is {column.kind} ({column.why or 'of unknown width'}); needs numbers"
            f"{advice}"
        )


def _to_find(keys: Sequence[Key], names: Sequence[str]) -> dict[str, Levels]:
    """Columns that hold levels among ``names``, with their levels still to be found."""
    places = [positions(resolve(key, names), len(names)) for key in keys]
    return {names[i]: () for own in places for i in own.tolist()}


def _usual_or_levels(
    table: Sequence[TableColumn], apart: Sequence[str], keys: Sequence[Key], look: Look
) -> tuple[list[TableColumn], list[TableColumn], dict[str, Levels]]:
    """Columns taken by default, columns left out, and the levels of the former.

    If a key gives positions, all columns that may be levels are taken, and positions count among them.  Otherwise the
    columns of numbers and the named columns of levels are taken.
    """
    free = [c for c in table if c.name not in apart]
    if any(is_positions(key) for key in keys):
        chosen = [c for c in free if c.is_level and c.why != ROW_NUMBERS]
        coded = _to_find(keys, [c.name for c in chosen])
    else:
        coded = _to_find(keys, [c.name for c in table])
        found = {c.name: c for c in look([c for c in free if c.name not in coded])}
        free = [replace(c, width=1, why="") if c.name in coded else found[c.name] for c in free]
        chosen = _usual(free)
    names = {c.name for c in chosen}
    left = [c for c in free if c.name not in names]
    return chosen, left, coded


def _tell(
    name: str, chosen: Sequence[TableColumn], left: Sequence[TableColumn], coded: dict[str, Levels], keys: Sequence[Key]
) -> None:
    """Warn, in one line, which columns are features, and why others are not; DataError if none is."""
    reasons = [f"{c.name!r} ({c.why or 'beside the lists x'})" for c in left]
    texts = [c.name for c in chosen if c.name not in coded and c.is_text]
    named = [f"{c.name!r} seems to be {says_role(c)} by its name" for c in chosen if says_role(c)]
    advice = "; of texts and categories make levels: give them a Categorical()" * any(
        c.is_level and c.why in WORDS for c in left
    )
    if not chosen:
        kinds = " or columns of levels" if keys else ""
        raise DataError(
            f"{name}: no numeric columns{kinds} among {few(reasons, quoted=False)}; choose with columns={advice}"
        )
    if not left and not texts and not named:
        return
    line = f"{name}: features are {few([c.name for c in chosen])}"
    if texts:
        line += f" ({few(texts)}: texts that are read as numbers)"
    if named:
        line += f" ({few(named, quoted=False)})"
    if left:
        line += f"; left out: {few(reasons, quoted=False)}"
    warn(f"{line}; choose with columns={advice}")


def _usual(columns: Sequence[TableColumn]) -> list[TableColumn]:
    """The column ``x`` of lists, or all columns of numbers."""
    features = [c for c in columns if not c.why and c.width > 0]
    vector = [c for c in features if c.name == "x" and c.is_list]
    return vector or features


def _trained(table: Sequence[TableColumn], wanted: Columns, roles: Roles, name: str, look: Look) -> list[TableColumn]:
    """The columns that a model was trained on, with their widths of training; DataError if one is missing, or if there
    is a further column of numbers, unless it numbers the rows."""
    apart = {*roles.names, *wanted.others}
    usual = _usual([c for c in table if c.name not in apart])
    if wanted.matches_by_position([c.name for c in usual]):
        return usual
    known = {c.name: c for c in table}
    more = [] if wanted.chosen else [c for c in usual if c.is_plain and c.name not in wanted.names]
    extra = [c.name for c in look(more) if not c.why] if more else []
    wanted.require({c.name: max(c.width, 0) for c in table}, extra, name)
    return [_as_trained(known[column], width) for column, width in wanted.layout]


def _as_trained(column: TableColumn, width: int) -> TableColumn:
    """A column to be read as in training."""
    return column if column.width == 0 else replace(column, width=width, why="")


def _trained_levels(
    table: Sequence[TableColumn], wanted: Columns, roles: Roles, name: str, look: Look
) -> tuple[list[TableColumn], dict[str, Levels]]:
    """The columns that a model with levels was trained on, and the levels; DataError as in :func:`_trained`."""
    own = wanted.coded
    by_place = wanted.is_positional or [c.name for c in table] == [str(i) for i in range(len(table))]
    read = [replace(c, width=1, why="") if c.is_level and (by_place or c.name in own) else c for c in table]
    chosen = _trained(read, wanted, roles, name, look)
    names = [c.name for c in chosen]
    if tuple(names) == wanted.names:
        return chosen, own
    if len(names) != wanted.n_features:
        return chosen, {}  # the later comparison with training raises
    levels = zip(names, wanted.levels or (), strict=True)
    return chosen, {column: known for column, known in levels if known is not None}
