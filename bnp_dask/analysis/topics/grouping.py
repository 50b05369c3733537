"""Groups documents by a known value of each: a column of metadata, or a time, cut into bins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs.settings import is_whole, one_of, shown, whole_number

Calendar = Literal["day", "week", "month", "quarter", "year"]
"""Bins of times."""

MOST_VALUES = 60
"""Most values, or bins of times, by default."""

USUAL_BINS = 20
"""Default number of bins for numbers with more values."""

MOST_BINS = 10_000

_DATE = re.compile(r"\d{4}-\d\d(-\d\d([T ].*)?)?")
_MONDAY = 4
"""Days from the first of January 1970 to a Monday."""

MISSING = -1


@dataclass(frozen=True, eq=False)
class Grouping:
    """Groups of documents.

    Parameters
    ----------
    code
        Group of each document, ``(n,)``; -1 without a value.
    values
        Value of each group, or the start of its bin: text, float, or datetime64.
    labels
        The same as text.
    is_time
        Whether the values are times.
    """

    code: np.ndarray
    values: tuple[Any, ...]
    labels: tuple[str, ...]
    is_time: bool = False

    @property
    def on_line(self) -> bool:
        """Whether the groups lie on a line: times and numbers."""
        return self.is_time or not any(isinstance(value, str) for value in self.values)


def grouping_of(values: Any, name: str, bins: int | Calendar | None = None) -> Grouping:
    """Documents by their values.

    Parameters
    ----------
    values
        One for each document: texts, numbers, dates or times; texts that are all ISO dates are dates.
    name
        Name of the values, for messages.
    bins
        Number of intervals of equal length, or a period of the calendar.  None: each value is a separate group, but
        many numbers are cut into 20 intervals, and times into the shortest period of which there are at most 60.

    Raises
    ------
    DataError
        Values of no such kind, or too many different texts.
    SettingError
        Bins that do not apply to these values.
    """
    if isinstance(bins, str):
        one_of("bins", bins, get_args(Calendar))
    elif bins is not None:
        if not is_whole(bins):
            raise SettingError(f"bins={shown(bins)}: needs a number of bins, a period such as 'month', or None")
        whole_number("bins", bins, 1, MOST_BINS)
    held = _as_numpy(values, name, isinstance(bins, str))
    if held.dtype.kind == "M":
        return _times(held, bins)
    if isinstance(bins, str):
        raise DataError(f"{name} holds no dates or times to cut by bins={bins!r}; give a number of bins, or None")
    if held.dtype.kind == "f":
        return _numbers(held, bins)
    if bins is not None:
        raise DataError(f"{name} holds texts, which cannot be cut into bins={bins!r}; leave bins out")
    return _texts(held, name)


def _as_numpy(values: Any, name: str, as_dates: bool) -> np.ndarray:
    """Values as datetime64, floats, or texts (None where there is none)."""
    try:
        array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, from_pandas=True)
        if pa.types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"{name}={shown(values)}: needs a value for each document ({error})") from error
    kind = array.type
    if pa.types.is_temporal(kind) and not (pa.types.is_time(kind) or pa.types.is_duration(kind)):
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            array = pc.local_timestamp(array)
        return np.array(array.cast(pa.timestamp("us"), safe=False).to_numpy(zero_copy_only=False), "datetime64[us]")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.array([np.nan if v is None else v for v in array.to_pylist()], np.float64)
    if pa.types.is_nested(kind):
        raise DataError(f"{name} holds {kind}; needs texts, numbers, dates or times")
    texts = [None if v is None else str(v) for v in array.to_pylist()]
    known = [text for text in texts if text is not None]
    if as_dates or (known and all(_DATE.fullmatch(text) for text in known)):
        try:
            return np.array(["NaT" if text is None else text for text in texts], "datetime64[us]")
        except ValueError as error:
            if as_dates:
                raise DataError(f"{name}: {error}; needs dates such as 2024-05-31") from error
    return np.array(texts, object)


def _texts(held: np.ndarray, name: str) -> Grouping:
    values = sorted({text for text in held if text is not None})
    if len(values) > MOST_VALUES:
        raise DataError(
            f"{name} holds {len(values):,} different texts, more than {MOST_VALUES}; needs fewer, such as kinds"
        )
    place = {value: i for i, value in enumerate(values)}
    code = np.array([MISSING if text is None else place[text] for text in held], np.int64)
    return Grouping(code, tuple(values), tuple(values))


def _numbers(held: np.ndarray, bins: int | None) -> Grouping:
    there = np.isfinite(held)
    values = np.unique(held[there])
    if bins is None and len(values) <= MOST_VALUES:
        code = np.where(there, np.searchsorted(values, held), MISSING)
        return Grouping(code, tuple(values.tolist()), tuple(f"{v:.10g}" for v in values))
    edges = np.linspace(values[0], values[-1], (USUAL_BINS if bins is None else bins) + 1) if len(values) else values
    code, begins = _cut(held, there, edges)
    return Grouping(code, tuple(begins.tolist()), tuple(f"{v:.6g}" for v in begins))


def _times(held: np.ndarray, bins: int | Calendar | None) -> Grouping:
    there = ~np.isnat(held)
    if not there.any():
        return Grouping(np.full(len(held), MISSING), (), (), True)
    first, last = held[there].min(), held[there].max()
    if is_whole(bins):
        stamps, span = held.astype(np.int64), (first.astype(np.int64), last.astype(np.int64))
        code, begins = _cut(stamps, there, np.linspace(*span, bins + 1))
        starts = begins.astype(np.int64).astype("datetime64[us]")
        unit: Any = "D" if last - first >= np.timedelta64(bins, "D") else "s"
        return Grouping(code, tuple(starts), tuple(np.datetime_as_string(starts, unit)), True)
    period = _shortest(first, last) if bins is None else bins
    number, origin = _periods(held, str(period)), int(_periods(first, str(period)))
    size = int(_periods(last, str(period))) - origin + 1
    if size > MOST_BINS:
        raise SettingError(f"bins={period!r}: these times span {size:,} of them, more than {MOST_BINS:,}")
    starts = _begins(np.arange(origin, origin + size), str(period))
    return Grouping(np.where(there, number - origin, MISSING), tuple(starts), _names(starts, str(period)), True)


def _cut(held: np.ndarray, there: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bin of each value, ``(n,)``, and the starts of the bins; the last bin includes its end."""
    if not len(edges):
        return np.full(len(held), MISSING), edges
    code = np.clip(np.searchsorted(edges, held, side="right") - 1, 0, len(edges) - 2)
    return np.where(there, code, MISSING), edges[:-1]


def _shortest(first: np.datetime64, last: np.datetime64) -> str:
    """The shortest period of which the times span at most 60; years if there is none."""
    for period in get_args(Calendar):
        if int(_periods(last, period)) - int(_periods(first, period)) < MOST_VALUES:
            return str(period)
    return "year"


def _periods(times: Any, period: str) -> Any:
    """Number of the period that each time is in."""
    if period in ("day", "week"):
        days = times.astype("datetime64[D]").astype(np.int64)
        return days if period == "day" else (days - _MONDAY) // 7
    months = times.astype("datetime64[M]").astype(np.int64)
    return months // {"month": 1, "quarter": 3, "year": 12}[period]


def _begins(number: np.ndarray, period: str) -> np.ndarray:
    """First days of periods by their numbers, datetime64."""
    if period in ("day", "week"):
        return (number if period == "day" else 7 * number + _MONDAY).astype("datetime64[D]")
    months = number * {"month": 1, "quarter": 3, "year": 12}[period]
    return months.astype("datetime64[M]").astype("datetime64[D]")


def _names(starts: np.ndarray, period: str) -> tuple[str, ...]:
    if period == "quarter":
        return tuple(f"{str(day)[:4]} Q{(int(str(day)[5:7]) + 2) // 3}" for day in starts)
    return tuple(str(day)[: {"month": 7, "year": 4}.get(period, 10)] for day in starts)


def worth_showing(table: pa.Table, left_out: Sequence[str], most: int) -> list[tuple[str, Grouping]]:
    """The first columns of metadata by which documents fall into some groups, not into as many as there are."""
    found: list[tuple[str, Grouping]] = []
    for name in table.column_names:
        if name in left_out or len(found) == most:
            continue
        try:
            own = grouping_of(table[name], name)
        except DataError:
            continue
        known = int((own.code != MISSING).sum())
        # numbers that are all different may well be ids
        some = own.is_time or (own.on_line and len(table[name].unique()) < known)
        few = some or len(own.values) <= known / 3
        if len(own.values) > 1 and few and known > table.num_rows / 2:
            found.append((name, own))
    return found
