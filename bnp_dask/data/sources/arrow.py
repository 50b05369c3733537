"""Cells of tables as numbers: one rule for every table, whatever the types of its columns.

A number may be stored as a number, a truth value, a decimal, a text (``"1.5"``, ``"1,234.5"``), or in a list.  All
become the same float64, so that new data are read like the training data, even if their types differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from bnp_dask.core.columns import OnBadCell
from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import EXACT, require_exact
from bnp_dask.inputs.arrow_streams import streamed

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
    text = pc.utf8_trim_whitespace(array.cast(pa.large_string()))
    return pc.if_else(pc.is_in(text, _texts_of_missing()), pa.scalar(None, pa.large_string()), text)


def _read_written(text: pa.Array, cells: Cells, width: int) -> pa.Array:
    """Numbers of texts in mixed notation."""
    written = Written.of(text)
    mixed = written.mixed
    if mixed is not None:
        raise DataError(
            f"{cells.at(mixed[1] // width)} is {text[mixed[1]].as_py()!r}, but row {cells.row + mixed[0] // width} is "
            f"{text[mixed[0]].as_py()!r}: thousands separators in some rows only leave open which comma is what; "
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
    return DataError(
        f"{cells.at(index)} is {value!r}, which is no number{more}. Correct such cells or drop their rows, "
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
    return np.asarray(pc.match_substring_regex(text, pattern).fill_null(False))


def is_number_text(text: str) -> bool:
    """Whether a text is a number, in any notation."""
    written = Written.of(stripped(pa.array([text], pa.large_string())))
    return bool(written.plain[0] or written.separated[0])
