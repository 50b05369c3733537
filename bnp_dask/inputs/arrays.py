"""Arrays from users as plain NumPy arrays: real numbers only, none masked and none rounded."""

from __future__ import annotations

from typing import Any

import numpy as np

from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs.settings import shown

REPEATED = 2**33
"""Most bytes of a broadcast array: a larger one is refused, since it is read as slowly as an array of distinct rows."""

EXACT = 2**53
"""Largest size up to which float64 holds every whole number; beyond, it holds only some."""


def plain(value: Any, name: str) -> np.ndarray:
    """Array-like data as an array; DataError if an entry is masked, or rows differ in length."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        place = np.argwhere(np.ma.getmaskarray(value))[0].tolist()
        raise DataError(
            f"{name}: masked values (the first at {_place(place)}); fill them with x.filled(...), or leave them out"
        )
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{name}: a {type(value).__name__} that is no array of numbers: {error}") from error
    require_held(array, name)
    return array


def require_held(array: np.ndarray, name: str) -> None:
    """DataError for a broadcast array of more than :data:`REPEATED` bytes, whose entries lie in memory only once."""
    if array.nbytes > REPEATED and 0 in array.strides:
        raise DataError(
            f"{name}: an array of shape {array.shape} whose entries are the same few numbers again and again (it was "
            "broadcast); give each distinct row once, and weights= how often it counts"
        )


def require_real(dtype: np.dtype, name: str) -> None:
    """DataError unless values of this dtype are real numbers."""
    if dtype.kind not in "biuf":
        what = {"c": "complex numbers", "O": "Python objects", "M": "dates", "m": "time spans"}.get(dtype.kind, "text")
        advice = {
            "c": "Give real and imaginary parts as columns of their own: np.column_stack([x.real, x.imag])",
            "M": "Choose numeric columns, or count from the first: (x - x.min()) / np.timedelta64(1, 'D')",
            "m": "Choose numeric columns, or count in a unit: x / np.timedelta64(1, 's')",
        }.get(dtype.kind, "Convert with .astype(float), or choose numeric columns")
        raise DataError(f"{name} holds {what} (dtype {dtype}); needs real numbers: bool, integer or float. {advice}")


def is_exact(stored: np.dtype, wanted: np.dtype) -> bool:
    """Whether dtype ``wanted`` holds every whole number of dtype ``stored`` without rounding."""
    return wanted.kind != "f" or stored.kind not in "iu" or stored.itemsize < 8


def require_exact(x: np.ndarray, name: str, what: str = "", row: int = 0, column: int | str = 0) -> None:
    """DataError if float64 would round a whole number of 64 bits.

    Parameters
    ----------
    x
        Whole numbers, of one axis (a column) or two; other dtypes pass.
    name, what
        Names of the data and of the kind of number, for the message.
    row, column
        Position of the first number, for the message.
    """
    if is_exact(x.dtype, np.dtype(np.float64)) or x.size == 0:
        return
    if int(x.min()) >= -EXACT and int(x.max()) <= EXACT:
        return
    wrong = np.argwhere(_is_rounded(x))
    if len(wrong) == 0:
        return
    place = wrong[0].tolist()
    value = int(x[tuple(place)])
    at = f"row {row + place[0]}"
    if not what:
        at += f", column {column + place[1] if x.ndim > 1 and isinstance(column, int) else repr(column)}"
    raise DataError(
        f"{name}: {what}{' of ' if what else ''}{at} is {value}, which float64 would round to {int(float(value))} "
        f"({len(wrong)} such numbers here); needs whole numbers up to 2**53. Ids and times are no features: leave them "
        "out, or take the smallest value from all"
    )


def _is_rounded(x: np.ndarray) -> np.ndarray:
    """Mask of whole numbers that float64 cannot hold: more than 53 bits from the first set bit to the last."""
    size = np.where(x < 0, np.negative(x), x).astype(np.uint64) if x.dtype.kind == "i" else x
    lowest = size & (~size + np.uint64(1))
    return (size > EXACT) & (size // np.maximum(lowest, np.uint64(1)) >= np.uint64(EXACT))


def to_float(x: np.ndarray, name: str, what: str = "") -> np.ndarray:
    """Real numbers as float64, without a copy if they are; DataError for others, or if a number would be rounded."""
    require_real(x.dtype, name)
    require_exact(x, name, what)
    return x.astype(np.float64, copy=False)


def real_setting(name: str, value: Any) -> np.ndarray:
    """A setting that is a number or an array of numbers, as float64; SettingError for anything else.

    True, False, text, masked values, NaN and infinity are refused.
    """
    try:
        array = plain(value, name)
        if array.dtype.kind not in "iuf" or array.dtype == np.bool_:
            raise DataError(f"{name}: values of type {array.dtype}")
        array = to_float(array, name, "value")
    except DataError as error:
        raise SettingError(f"{name}={shown(value)}: needs a number, or an array of numbers ({error})") from None
    if not np.isfinite(array).all():
        raise SettingError(f"{name}={shown(value)}: needs finite values")
    return array


def _place(index: list[int]) -> str:
    if len(index) == 2:
        return f"row {index[0]}, column {index[1]}"
    return f"position {index[0] if len(index) == 1 else tuple(index)}"
