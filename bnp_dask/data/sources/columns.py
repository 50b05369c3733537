"""Columns of tables: which of them are features, and their cells as numbers or levels.

One rule for pandas, Arrow, Parquet, CSV and Dask tables.  Types decide which columns may be numbers; for texts, lists
and row numbers the values decide (:func:`looked_at`).  A number may be stored as a number, a truth value, a decimal, a
text (``"1.5"``, ``"1,234.5"``), or in a list.  All become the same float64, so that new data are read like the training
data, even if their types differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from bnp_dask.core import Columns, OnBadCell, Roles
from bnp_dask.core.columns import few
from bnp_dask.errors import DataError, nearest, warn
from bnp_dask.inputs import (
    EXACT,
    MOST_LEVELS,
    Key,
    Level,
    Levels,
    as_level,
    checked_levels,
    is_exact,
    is_positions,
    ordered_levels,
    positions,
    require_exact,
    resolve,
    streamed,
    unseen,
)
from bnp_dask.inputs import columns as known_levels

if TYPE_CHECKING:
    import pandas as pd


# -- cells ---------------------------------------------------------------------------------------------------------
PLAIN = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
"""A number as programs write it."""

GROUPED = r"^[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?$"
"""A number with thousands separators."""

UNGROUPED = r"^[+-]?\d{4,}(\.\d*)?$"
"""A number that would have a thousands separator."""

TRUTH = r"^([Tt]rue|TRUE|[Ff]alse|FALSE)$"


@dataclass(frozen=True)
class Cells:
    """The cells of a column: their place, for messages, and the treatment of bad ones.

    Parameters
    ----------
    name, column
        Names of the data and of the column.
    row
        Number of the first row.
    on_bad
        ``"raise"`` a DataError, or read bad cells as ``"missing"`` (NaN).
    """

    name: str
    column: str = ""
    row: int = 0
    on_bad: OnBadCell = "raise"

    def at(self, index: int) -> str:
        """Name of a cell in messages."""
        column = f", column {self.column!r}" if self.column else ""
        return f"{self.name}: row {self.row + index}{column}"


def as_table(data: Any) -> Any:
    """The Arrow Table of a table with an Arrow C stream; tables of pandas or Arrow, and anything else, unchanged."""
    family = type(data).__module__.split(".")[0]
    if family == "datasets" and type(data).__name__ == "Dataset":  # Hugging Face, without an Arrow stream
        return data.with_format("arrow")[:]
    return streamed(data)


# -- types ----------------------------------------------------------------------------------------------------------
def is_numeric(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type are real numbers."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type are lists, of one length or not."""
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)
    return any(test(kind) for test in tests) or bool(pa.types.is_large_list_view(kind))


def may_be_numbers(kind: pa.DataType) -> bool:
    """Whether cells of an Arrow type may be numbers; for texts and lists the values decide."""
    if isinstance(kind, pa.BaseExtensionType):
        return may_be_numbers(kind.storage_type)
    if is_list(kind) or pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return may_be_numbers(kind.value_type)
    return is_numeric(kind) or is_text(kind) or bool(pa.types.is_decimal(kind) or pa.types.is_null(kind))


def dtype_of(kind: pa.DataType) -> np.dtype:
    """NumPy's dtype of the numbers of a column: float64 for decimals and texts."""
    inner = kind.value_type if is_list(kind) else kind
    return np.dtype(inner.to_pandas_dtype()) if is_numeric(inner) else np.dtype(np.float64)


# -- values ---------------------------------------------------------------------------------------------------------
def as_arrow(values: Any, as_texts: bool = True) -> pa.Array:
    """A column of a frame or table as one Arrow array, decoded; NaN becomes null.

    Objects of mixed types become texts if ``as_texts``; otherwise Arrow raises an error.
    """
    import pyarrow.compute as pc

    array = values
    if not isinstance(values, (pa.Array, pa.ChunkedArray)):
        try:
            array = pa.Array.from_pandas(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            if not as_texts:
                raise
            array = _of_objects(values)
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _of_objects(values: Any) -> pa.Array:
    """Values without an Arrow type: as numbers of NumPy, or each as text."""
    held = np.asarray(values)
    if held.dtype.kind in "biuf" and held.dtype.itemsize <= 8:
        return pa.array(held, from_pandas=True)
    return pa.array([None if _is_nothing(value) else str(value) for value in held.tolist()], pa.large_string())


def _is_nothing(value: Any) -> bool:
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def numbers(array: pa.Array) -> np.ndarray:
    """Values of a numeric Arrow array; nulls become NaN, which a survey reports and refuses."""
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype == object:
        values = values.astype(np.float64)
    if array.null_count and values.dtype == np.float16:  # Arrow leaves zeros there
        values = np.where(np.asarray(array.is_null()), np.float16(np.nan), values)
    return values


def read_cells(values: Any, width: int, cells: Cells, exact: bool = True) -> np.ndarray:
    """The cells of a column as rows of numbers, ``(n, width)``, NaN for missing values.

    Parameters
    ----------
    values
        A column of a frame, or an Arrow array.
    width
        Numbers per cell: the length of a list, else 1.
    cells
        Place of the cells, and treatment of bad ones.
    exact
        Whether to refuse whole numbers that float64 would round.

    Raises
    ------
    DataError
        A cell is not a number or list of ``width`` numbers, unless bad cells count as missing; names row and column.
    """
    import pyarrow.compute as pc

    array = as_arrow(values)
    if not is_list(array.type):
        if width != 1:
            raise DataError(f"{cells.at(0)} is {array.type}; needs lists of {width} numbers, as in training")
        return _read_scalars(array, cells, exact).reshape(-1, 1)
    length = pc.list_value_length(array).fill_null(-1).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(length != width)
    if len(wrong) == 0:
        return _read_scalars(array.flatten(), cells, exact, width).reshape(-1, width)
    if cells.on_bad == "raise":
        first = int(wrong[0])
        what = "has no list" if length[first] < 0 else f"is a list of {length[first]}"
        raise DataError(
            f"{cells.at(first)} {what}; needs lists of {width} numbers in each row ({len(wrong)} such rows here). "
            'Correct or drop such rows, or take them for missing ones: on_bad_cell="missing" (--on-bad-cell missing)'
        )
    out = np.full((len(array), width), np.nan)
    right = length == width
    out[right] = read_cells(array.filter(pa.array(right)), width, cells, exact)
    return out


def _read_scalars(array: pa.Array, cells: Cells, exact: bool, width: int = 1) -> np.ndarray:
    """Cells other than lists as a vector; each row holds ``width`` of them."""
    array = as_arrow(array)
    kind = array.type
    if is_numeric(kind):
        if exact and pa.types.is_integer(kind):
            whole = numbers(array.fill_null(0) if array.null_count else array)
            require_exact(
                whole.reshape(-1, width) if width > 1 else whole, cells.name, row=cells.row, column=cells.column
            )
        return numbers(array)
    if pa.types.is_null(kind):
        return np.full(len(array), np.nan)
    if pa.types.is_decimal(kind):
        # through their digits: the cast from decimals to doubles is off by a bit in a third of all numbers
        array = array.cast(pa.string())
    if is_text(array.type):
        return _read_texts(array.cast(pa.large_string()), cells, exact, width)
    raise DataError(f"{cells.at(0)} is {kind}; needs numbers, texts of numbers, or lists of them")


def _read_texts(array: pa.Array, cells: Cells, exact: bool, width: int) -> np.ndarray:
    text = stripped(array)
    try:
        values = text.cast(pa.float64())
    except pa.ArrowInvalid:
        values = _read_written(text, cells, width)
    out = np.asarray(values.to_numpy(zero_copy_only=False), np.float64)
    if exact:
        _require_kept(text, out, cells, width)
    return out


def stripped(array: pa.Array) -> pa.Array:
    """Texts without surrounding space; null for texts of missing values."""
    import pyarrow.compute as pc

    text = pc.utf8_trim_whitespace(array.cast(pa.large_string()))
    return pc.if_else(pc.is_in(text, _texts_of_missing()), pa.scalar(None, pa.large_string()), text)


def _read_written(text: pa.Array, cells: Cells, width: int) -> pa.Array:
    """Numbers of texts in mixed notation."""
    import pyarrow.compute as pc

    written = Written.of(text)
    mixed = written.mixed
    if mixed is not None:
        raise DataError(
            f"{cells.at(mixed[1] // width)} is {text[mixed[1]].as_py()!r}, but row {cells.row + mixed[0] // width} is "
            f"{text[mixed[0]].as_py()!r}: thousands separators in some rows only leave open which comma is decimal; "
            "write the numbers in one way"
        )
    bad = np.flatnonzero(written.bad)
    if len(bad) and cells.on_bad == "raise":
        raise bad_cell(cells, int(bad[0]) // width, text[int(bad[0])].as_py(), len(bad))
    plain = pc.replace_substring(text, ",", "")
    plain = pc.if_else(pa.array(written.truth), pc.if_else(pc.match_substring_regex(text, "^[Tt]"), "1", "0"), plain)
    return pc.if_else(pa.array(written.bad), pa.scalar(None, pa.large_string()), plain).cast(pa.float64())


def bad_cell(cells: Cells, index: int, value: Any, count: int) -> DataError:
    """The error for a cell that is not a number in a column of numbers."""
    more = f" ({count} such cells here)" if count > 1 else ""
    sign = re.sub(r"[\d.,+\-\s']", "", str(value)) if re.match(DECORATED, str(value)) else ""
    without = f"take the sign off: df[{cells.column!r}].str.strip({sign!r}); " if sign else ""
    return DataError(
        f"{cells.at(index)} is {value!r}, which is no number{more}. Correct such cells or drop their rows, {without}"
        "leave the column out (columns=), or take such cells for missing ones, for a likelihood that takes these: "
        'on_bad_cell="missing" (--on-bad-cell missing)'
    )


def _require_kept(text: pa.Array, values: np.ndarray, cells: Cells, width: int) -> None:
    """DataError if float64 would round a whole number given as text."""
    for index in np.flatnonzero(np.abs(values) >= EXACT):
        digits = text[int(index)].as_py().replace(",", "")
        if digits.lstrip("+-").isdecimal() and int(digits) != int(values[index]):
            raise DataError(
                f"{cells.at(int(index) // width)} is {digits}, which float64 would round to {int(values[index])}; "
                "needs whole numbers up to 2**53. Ids and times are no features: leave them out (columns=), or take "
                "the smallest value from all"
            )


@dataclass(frozen=True, eq=False)
class Written:
    """Notations of the texts of a column, as masks of n cells.

    Parameters
    ----------
    valid
        Cells that have a value.
    plain, separated, truth
        Numbers as programs write them, numbers with thousands separators, and truth values.
    unseparated
        Plain numbers of four digits or more.
    """

    valid: np.ndarray
    plain: np.ndarray
    separated: np.ndarray
    truth: np.ndarray
    unseparated: np.ndarray

    @staticmethod
    def of(text: pa.Array) -> Written:
        """Inspect stripped texts."""
        each = [_matches(text, pattern) for pattern in (PLAIN, GROUPED, TRUTH, UNGROUPED)]
        return Written(np.asarray(text.is_valid()), *each)

    @property
    def bad(self) -> np.ndarray:
        """Cells that are not numbers."""
        return self.valid & ~(self.plain | self.separated | self.truth)

    @property
    def mixed(self) -> tuple[int, int] | None:
        """A cell with thousands separators and one that should have some, if there are both; else None."""
        if not self.separated.any() or not self.unseparated.any():
            return None
        return int(self.separated.argmax()), int(self.unseparated.argmax())


@lru_cache
def _texts_of_missing() -> pa.Array:
    """Texts of missing values, as pyarrow and pandas read them: empty, NA, NaN, null, ..."""
    # made when it is needed: the first array of texts makes pyarrow load pandas
    return pa.array(pyarrow.csv.ConvertOptions().null_values, pa.large_string())


def _matches(text: pa.Array, pattern: str) -> np.ndarray:
    import pyarrow.compute as pc

    return np.asarray(pc.match_substring_regex(text, pattern).fill_null(False))


def is_number_text(text: str) -> bool:
    """Whether a text is a number, in any notation."""
    written = Written.of(stripped(pa.array([text], pa.large_string())))
    return bool(written.plain[0] or written.separated[0])


# -- levels --------------------------------------------------------------------------------------------------------
NO_LEVELS: Mapping[str, Levels] = MappingProxyType({})


def holds_levels(kind: pa.DataType) -> bool:
    """Whether the values of an Arrow type may be levels."""
    if pa.types.is_dictionary(kind):
        return holds_levels(kind.value_type)
    return is_text(kind) or is_numeric(kind) or pa.types.is_null(kind)


def _values(values: Any, name: str, column: str) -> pa.Array:
    """A column as texts, truth values or float64, with nulls for missing entries; DataError for other values."""
    import pyarrow.compute as pc

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
    import pyarrow.compute as pc

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
    import pyarrow.compute as pc

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


# -- choice of columns ---------------------------------------------------------------------------------------------
UNKNOWN = -1
"""Width of a column whose lists, or objects, were not inspected."""

LEAST_ROWS = 10
"""Least rows for which a column that counts them is taken for row numbers."""

NAMELESS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Names that pandas gives to a row index in files, and to a column without a name."""

ROW_NUMBERS, CATEGORIES, TEXTS, NO_VALUE = "row numbers", "categories", "texts", "no value"

DATES, CODES = "dates as texts", "codes with leading zeros"

IDS, TIMES = "ids", "times"

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
            # scikit-learn refuses sparse columns; these are read, which makes them dense
            is_plain = not isinstance(dtype, pd.SparseDtype)
            found.append(TableColumn(str(label), label, kind, 1, is_plain=is_plain, is_level=True))
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
        # numeric types have NumPy's names in every table
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
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes, not texts in UTF-8"
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
    import pyarrow.compute as pc

    if len(array) == 0:
        return False
    first = array[0].as_py()
    is_missing = first is None or first != first
    return is_missing and bool(pc.all(pc.is_null(array, nan_is_null=True)).as_py())


def counts_rows(array: pa.Array, offsets: np.ndarray | None = None) -> bool:
    """Whether the values are the numbers of rows, from 0 or 1 on, in order.

    Row numbers start anew at each of the ``offsets``.
    """
    if len(array) < LEAST_ROWS or array.null_count or pa.types.is_boolean(array.type):
        return False
    if offsets is not None and np.diff(offsets).max() < LEAST_ROWS:
        return False
    cells = Cells("", on_bad="missing")
    first = read_cells(array[:1], 1, cells, exact=False)[0, 0]
    if first not in (0, 1):
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
    """DataError if a table whose rows are to be one sequence has a column of ids, by its name, that repeat, or an index
    of several levels, of which the first repeats."""
    import pyarrow.compute as pc

    is_arrow = isinstance(table, pa.Table)
    index: Any = None if is_arrow else getattr(table, "index", None)
    if getattr(index, "nlevels", 1) > 1 and 1 < index.get_level_values(0).nunique() < len(table):
        of, *others = (name or f"level_{i}" for i, name in enumerate(index.names))
        raise DataError(
            f"{name}: the index has {index.get_level_values(0).nunique()} values of {of!r}, which seem to tell "
            f"sequences apart: as_source(table.reset_index(), groups={of!r}, order={others[0]!r}); or drop this level, "
            "where all rows are one sequence"
        )
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
    """Why a column of numbers is no feature by its name and values: whole numbers, each of one row or the same
    throughout each recording, that are called ids; or numbers called times that rise from row to row, in each
    recording.  Empty for features."""
    role = says_role(column)
    if not role or len(array) < LEAST_ROWS or array.null_count:
        return ""
    values = read_cells(array, 1, Cells("", on_bad="missing"), exact=False)[:, 0]
    if role == "an id":
        is_whole = bool(np.isfinite(values).all()) and np.array_equal(values, np.floor(values))
        return IDS if is_whole and (len(np.unique(values)) == len(values) or _is_of_recordings(values, offsets)) else ""
    steps = np.diff(values)
    within = np.ones(len(steps), np.bool_)
    if offsets is not None:
        within[np.asarray(offsets[1:-1], np.int64) - 1] = False
    return TIMES if bool((steps[within] > 0).all()) else ""


def _is_of_recordings(values: np.ndarray, offsets: np.ndarray | None) -> bool:
    """Whether numbers are the same throughout each of several recordings, and differ between some."""
    if offsets is None or len(offsets) < 3 or len(np.unique(values)) == 1:
        return False
    starts, lengths = np.asarray(offsets[:-1], np.int64), np.diff(offsets)
    return np.array_equal(values, np.repeat(values[starts[lengths > 0]], lengths[lengths > 0]))


def _list_looked_at(column: TableColumn, array: pa.Array) -> TableColumn:
    """A column of lists, with their length as its width if all have the same length."""
    import pyarrow.compute as pc

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
    import pyarrow.compute as pc

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
        prose = next((c.name for c in left if c.why == TEXTS), None)
        if prose is not None:
            advice += f"; documents are counted by Text(column={prose!r}), as text= of ingest() or TopicModel()"
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
