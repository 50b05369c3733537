"""Pieces of data as a user gives them, recognised by place and content; feeds, which give one after the other.

Times of data come from a column, a date in the name of a file, or a given time; seconds since 1970 in UTC.  They alone
decide: the clock of a run is the newest time of its data, and never goes back.
"""

from __future__ import annotations

import datetime
import glob
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bnp_dask.core import Location
from bnp_dask.data import is_frame, open_file, parquet_files
from bnp_dask.data.sources.parquet import SUFFIXES
from bnp_dask.errors import DataError, SettingError, StoreError
from bnp_dask.inputs import shown

if TYPE_CHECKING:
    import pandas as pd


ZARR = {"zarr.json", ".zarray", ".zgroup"}
"""Names in a folder that is one Zarr store."""

UNFINISHED = (".tmp", ".part", ".partial", ".crdownload")
"""Endings of names of files that are still being written."""

IN_MEMORY = "in memory"
"""Stands for the place of data without one."""


STORE = ".zarr"
"""Endings of names of folders that are one Zarr store, also before it is described."""


class OtherContentError(StoreError):
    """A place holds other data than the run took in from there."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Data that are taken in as one.

    Parameters
    ----------
    data
        Path, URL or object; for a feed a function that reads them.
    place
        Absolute path or URL; None for data in memory.
    item
        Name of the feed and position in it.
    """

    data: Any = field(repr=False)
    place: str | None
    item: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        """The place, the feed and the position in it, or a word for data that have neither."""
        return ":".join(self.item) if self.item is not None else self.place or IN_MEMORY


@contextmanager
def naming(piece: Piece) -> Iterator[None]:
    """Add the origin to errors of data from a feed inside the block."""
    try:
        yield
    except DataError as error:
        if piece.item is None:
            raise
        raise DataError(f"{piece.name}: {error}; nothing of this call was taken") from error


def pieces_of(data: Any) -> list[Piece]:
    """Data as pieces, in the order in which they are taken.

    A folder that is no Zarr store is taken file by file, including files in folders below it, by name; hidden files and
    files with names of unfinished ones are skipped.  A pattern such as ``"inbox/*.npy"`` is taken in the same way.
    """
    if not isinstance(data, (str, os.PathLike)):
        return [Piece(data, None)]
    location = Location.of(data, None, "data")
    if not location.is_local:
        return [Piece(data, location.place)]
    if glob.has_magic(location.url) and not location.exists():
        found = [path for name in sorted(glob.glob(location.url)) for path in _below(name)]
        if not found:
            raise DataError(f"{location.name}: no file has such a name")
    else:
        location.require()
        found = list(_below(location.url))
    return [Piece(path, path) for path in dict.fromkeys(found)]


def _below(path: str) -> Iterator[str]:
    if not os.path.isdir(path) or path.endswith(STORE) or _is_zarr(path):
        yield path
        return
    for name in sorted(os.listdir(path)):
        if not name.startswith((".", "_")) and not name.endswith(UNFINISHED):
            yield from _below(os.path.join(path, name))


def _is_zarr(path: str) -> bool:
    return bool(ZARR & set(os.listdir(path)))


def content_of(checksums: Sequence[int] | np.ndarray) -> int:
    """CRC-32 of the CRC-32s of all batches of a piece."""
    return zlib.crc32(np.asarray(checksums, np.int64).tobytes())


@dataclass(frozen=True, eq=False)
class Known:
    """Pieces that a run has.

    Parameters
    ----------
    by_place
        The fingerprint and the content of each, by its place.
    in_memory
        Contents of the pieces without a place.
    """

    by_place: Mapping[str, tuple[Any, int | None]]
    in_memory: frozenset[int]

    @staticmethod
    def of(opened: Mapping[str, Any] | None, checksums: np.ndarray, pieces: Sequence[Mapping[str, Any]]) -> Known:
        """From the opening of the first data, the checksums of their batches, and the later pieces."""
        places: dict[str, tuple[Any, int | None]] = {}
        contents = {piece["content"] for piece in pieces if piece["place"] is None and not piece.get("item")}
        if opened is None:
            contents.add(content_of(checksums))
        else:
            places |= _places_of({**opened, "content": content_of(checksums)})
        for piece in pieces:
            places |= _places_of(piece)
        return Known(places, frozenset(contents))

    def without(self, places: Collection[str]) -> Known:
        """Known pieces without the pieces from some places."""
        return Known({place: facts for place, facts in self.by_place.items() if place not in places}, self.in_memory)

    def has_place(self, piece: Piece, fingerprint: Any) -> bool:
        """Whether the run has a piece, judged by sizes and times of its files."""
        if piece.place is None or piece.place not in self.by_place:
            return False
        before, content = self.by_place[piece.place]
        # files of a folder that was the first data were compared as a whole
        return content is None or (before is not None and before == fingerprint)

    def has_content(self, piece: Piece, content: int, is_replaced: bool = False) -> bool:
        """Whether the run has a piece that was read; its place may hold another content if it ``is_replaced``.

        Raises
        ------
        OtherContentError
            The run has another content from this place.
        """
        if piece.item is not None:
            return False
        if piece.place is None:
            return content in self.in_memory
        if piece.place not in self.by_place:
            return False
        if self.by_place[piece.place][1] == content or is_replaced:
            return self.by_place[piece.place][1] == content
        raise OtherContentError(
            f"{piece.place} was taken in before with another content, or cut into other batches: nothing was taken. "
            "replace() takes the present content in its place; else give the new data under a name of their own, with "
            "the batch_size of before"
        )


def _places_of(piece: Mapping[str, Any]) -> dict[str, tuple[Any, int | None]]:
    """Fingerprint and content by place, for a piece with a place and for each file of a folder."""
    if piece["place"] is None:
        return {}
    files = {os.path.join(piece["place"], name): (None, None) for name in piece.get("files", ())}
    return {**files, piece["place"]: (piece["fingerprint"], piece["content"])}


# -- feeds ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Feed:
    """Data that arrive one after the other, such as messages of a queue.

    A run records the position of each taken piece with the version that holds it.  So a piece delivered again is taken
    once, and nothing is lost if a process dies between the two.

    Parameters
    ----------
    name
        Name of the feed: a run may take in several.
    after
        Function that returns the positions after a position, in order, as text; called with None before the first.
        Positions that the run has are skipped.
    read
        Function that returns the data at a position: anything that :func:`bnp_dask.as_source` takes except paths, with
        ``columns=`` or ``groups=`` given to it if needed.  Each is a piece of its own, read once.
    """

    name: str
    after: Callable[[str | None], Iterable[str]]
    read: Callable[[str], Any]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SettingError(f"name={shown(self.name)}: needs the name of a feed")
        for name, function in (("after", self.after), ("read", self.read)):
            if not callable(function):
                raise SettingError(f"{name}={shown(function)}: needs a function of a position")

    def pieces(self, taken: Sequence[Mapping[str, Any]]) -> Iterator[Piece]:
        """Pieces that a run does not have, given all its pieces as ``taken``; each is read when it is opened."""
        known = [piece["item"][1] for piece in taken if (piece.get("item") or [""])[0] == self.name]
        seen = set(known)
        for position in self.after(known[-1] if known else None):
            if not isinstance(position, str):
                raise SettingError(f"feed {self.name!r}: position {shown(position)} is no text")
            if position not in seen:
                seen.add(position)
                yield Piece(partial(self.read, position), None, (self.name, position))


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
