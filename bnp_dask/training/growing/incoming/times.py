"""Times of data: from a column, a date in the name of a file, or a given time; seconds since 1970 in UTC.

They alone decide: the clock of a run is the newest time of its data, and never goes back.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bnp_dask.core.location import Location
from bnp_dask.data.sources.frames import is_frame
from bnp_dask.data.sources.parquet import SUFFIXES, open_file, parquet_files
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs.settings import shown

if TYPE_CHECKING:
    import pandas as pd

Time = str | datetime.date | np.datetime64

_DATE = r"((?:19|20|21)\d\d)([-_.]?)(\d\d)\2(\d\d)"
_CLOCK = r"(?:[T_ -]?(\d\d)[-:.h]?(\d\d)(?:[-:.]?(\d\d))?(?!\d))?"
_NAMED = re.compile(rf"(?<!\d){_DATE}{_CLOCK}")

TEXT = (".csv", ".tsv")
"""Endings of tables of text in which a column of times is found."""


def time_in(text: str) -> float:
    """First date, and time of day, in a text such as the name of a file; NaN if it holds none."""
    for found in _NAMED.finditer(text):
        year, _, month, day, *clock = found.groups()
        try:
            hour, minute, second = (int(part or 0) for part in clock)
            moment = datetime.datetime(int(year), int(month), int(day), hour, minute, second)
        except ValueError:
            continue
        return moment.replace(tzinfo=datetime.UTC).timestamp()
    return np.nan


def moment_of(time: Any) -> float | None:
    """A time that is given itself; None for the name of a column.

    SettingError for anything else.
    """
    if isinstance(time, (datetime.date, np.datetime64)):
        return _moment(time)
    if not isinstance(time, str) or not time:
        raise SettingError(f'time={shown(time)}: needs the name of a column, or a time such as "2026-11-01"')
    if _NAMED.match(time) is None:
        return None
    try:
        return _moment(time)
    except ValueError:
        return None


def _moment(time: Any) -> float:
    """One time as seconds, in UTC unless it says otherwise; ValueError if it is no time."""
    import pandas as pd

    found = pd.Timestamp(time)
    return float((found.tz_localize("UTC") if found.tzinfo is None else found).timestamp())


def times_of(data: Any, place: str | None, rows: Sequence[int], time: Any) -> np.ndarray:
    """Newest time in each batch of a piece of data, ``(B,)``; NaN if unknown.

    Parameters
    ----------
    data, place
        The piece, and its place; None in memory.
    rows
        Rows of each batch, which lie one after the other.
    time
        Name of a column, or a time; None for the date in the name of the file or of its folder.

    Raises
    ------
    DataError
        There is no such column, or one of its values is no time.
    """
    if time is None:
        named = () if place is None else reversed(place.replace(os.sep, "/").rstrip("/").split("/")[-2:])
        return np.full(len(rows), next((t for t in map(time_in, named) if np.isfinite(t)), np.nan))
    moment = moment_of(time)
    if moment is not None:
        return np.full(len(rows), moment)
    name = place or "data in memory"
    found = np.concatenate([_seconds(values, name) for values in _column(data, place, str(time), name)])
    if len(found) != sum(rows):
        raise DataError(f"{name}: column {time!r} has {len(found)} rows, and its batches {sum(rows)}")
    if np.isnan(found).any():
        raise DataError(f"{name}: column {time!r} has no time in row {int(np.flatnonzero(np.isnan(found))[0])}")
    ends = np.cumsum(rows)
    return np.array([found[end - n : end].max() if n else np.nan for end, n in zip(ends, rows, strict=True)])


def _column(data: Any, place: str | None, column: str, name: str) -> Iterator[pd.Series]:
    """A column of a table, in pieces."""
    if place is None:
        table = data.to_pandas() if isinstance(data, pa.Table) else data
        if not is_frame(table):
            raise DataError(
                f"time={column!r} names a column, but {name} are {type(data).__name__} without named columns; give the "
                'time itself, such as time="2026-11-01"'
            )
        _require(column, table.columns, name)
        yield table[column]
        return
    location = Location.of(data, None, "data")
    if place.endswith(TEXT):
        import pandas as pd

        with location.open() as file:
            table = pd.read_csv(file, sep="\t" if place.endswith(".tsv") else ",")
        _require(column, table.columns, name)
        yield table[column]
        return
    if not place.endswith(SUFFIXES) and not location.is_dir():
        raise DataError(f"{name}: no table of which column {column!r} could be read; {INSTEAD}")
    for one in parquet_files(location):
        with open_file(one) as file:
            _require(column, file.schema_arrow.names, one.name)
            yield file.read(columns=[column]).column(0).to_pandas()


INSTEAD = 'name files by their date, or give the time itself, such as time="2026-11-01"'


def _require(column: str, names: Any, name: str) -> None:
    if column not in list(names):
        raise DataError(f"{name}: has no column {column!r}, which is to say when its rows are from; {INSTEAD}")


def _seconds(values: pd.Series, name: str) -> np.ndarray:
    """Times as seconds; numbers are seconds already."""
    if values.dtype.kind in "iuf":
        return values.to_numpy(np.float64)
    import pandas as pd

    try:
        moments = pd.to_datetime(values, utc=True)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name}: column {values.name!r} holds values that are no times ({error})") from error
    since = (moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    return since.to_numpy(np.float64)
