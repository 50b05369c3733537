"""Data that come in: the given data as pieces -> their times -> one look at each batch; none is taken in yet."""

from __future__ import annotations

import datetime
import glob
import os
import re
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import pyarrow as pa

from bnp_dask.analysis import columns_for, needs_of_posterior, open_for, vocabulary_of, words_of
from bnp_dask.core import Columns, Location, Words
from bnp_dask.core.columns import few
from bnp_dask.data import (
    LEFT_OUT,
    SUFFIXES,
    Documents,
    Source,
    as_source,
    columns_of,
    fingerprint_of_files,
    is_frame,
    labels_of,
    open_file,
    parquet_files,
    plain_form,
    reordered,
    taking_lags,
    with_labels,
)
from bnp_dask.errors import DataError, NumericalError, SettingError, StoreError, answering
from bnp_dask.inputs import one_of, path_text, shown
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import Labelled, WideningObservation
from bnp_dask.store import DamagedError, Key, RunStore, place_of, read_settings, run_folder, seal, unseal
from bnp_dask.training.callbacks import logger

if TYPE_CHECKING:
    import pandas as pd


# -- Pieces of data as a user gives them, recognised by place and content; feeds, which give one after the other --
# Times of data come from a column, a date in the name of a file, or a given time; seconds since 1970 in UTC.  They
# alone decide: the clock of a run is the newest time of its data, and never goes back.


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

    def has_content(self, piece: Piece, content: int, is_replaced: bool) -> bool:
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
_SECOND = r"(?![T_ -]?(?:19|20|21)\d\d[-_.]?[01]\d[-_.]?[0-3]\d)"  # of a range of dates: no 20:26
_CLOCK = rf"(?:{_SECOND}[T_ -]?(\d\d)[-:.h]?(\d\d)(?:[-:.]?(\d\d))?(?!\d))?"
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
        try:
            return _moment(time)
        except ValueError as error:  # NaT, or a year that no clock counts to
            raise SettingError(f'time={shown(time)}: needs a time such as "2026-11-01" ({error})') from None
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


# -- Data that a feed sets aside because they cannot be taken in, and files that wait because they are not finished
# A run keeps a note of each piece that was set aside, in a file of its own: why, when, and the sizes and times of its
# files.  A piece is tried again once these have changed, or if it is named by itself.


OnBad = Literal["raise", "set aside"]

SET_ASIDE: OnBad = "set aside"

ON_BAD: tuple[OnBad, ...] = ("raise", SET_ASIDE)
"""Treatment of a piece of data that cannot be taken in."""

BLAMED = (DataError, NumericalError, OtherContentError)
"""Errors that are about a piece of data, and not about the run, its settings or the cluster."""

NAME, FORMAT, VERSION = "SETASIDE.json", "bnp-dask data set aside", 1

YOUNG = 600.0
"""Seconds without a change after which a file counts as finished.  Set by judgement, not by data."""

LOOKED = 2.0
"""Seconds since the last change within which a file that cannot be read is looked at once more, ..."""

PAUSE = 0.5
"""... after so many seconds, to see whether it grows."""

MAGIC = {
    ".parquet": b"PAR1",
    ".pq": b"PAR1",
    ".parq": b"PAR1",
    ".arrow": b"ARROW1",
    ".feather": b"ARROW1",
}
"""Bytes with which files of a format begin and end: a file that begins so and ends otherwise is not whole."""

ENDINGS = ("; nothing was taken", "; nothing of this call was taken")
"""Ends of messages that are false if the other pieces are taken."""


@dataclass(frozen=True)
class SetAside:
    """A piece of data that could not be taken in.

    Parameters
    ----------
    name
        Its place, or the name of its feed and the position in it.
    why
        The error.
    when
        Time of the update that set it aside, ISO 8601 in UTC.
    fingerprint
        Sizes and times of its files at that time; None if unknown.
    """

    name: str
    why: str
    when: str
    fingerprint: Any = field(default=None, repr=False)


class AsideContent(TypedDict):
    """Fields of the notes in a run directory."""

    pieces: list[SetAside]


@answering
def set_aside(store: str | os.PathLike[str]) -> tuple[SetAside, ...]:
    """Data that updates with ``on_bad="set aside"`` could not take into a run, and why.

    A piece is tried again by the next update that comes upon it once its file has changed.  It is tried at any time by
    ``update(store, path)`` that names it by itself, or with ``on_bad="raise"``.  It leaves the list once it was taken
    in, or its file is gone.

    Parameters
    ----------
    store
        Run directory.

    Returns
    -------
    tuple of SetAside
        A note for each piece of data: its name, and why it was not taken in.

    Raises
    ------
    StoreError
        There is no run, or its list is damaged.
    """
    folder = run_folder(path_text("store", store))
    read_settings(folder)
    return tuple(_read(folder).values())


@dataclass
class Aside:
    """Pieces that a look at new data sets aside, and pieces that it skips because they were set aside before.

    Parameters
    ----------
    notes
        Notes of the run, by name.
    raises
        Whether a piece that cannot be taken in is an error: then all are tried, and none is set aside.
    named
        Place of data that are named by themselves, and tried regardless of the notes; None if there are none.
    new
        Names of pieces that this look sets aside.
    unfinished
        Names of pieces that wait for the next look.
    """

    notes: dict[str, SetAside]
    raises: bool = True
    named: str | None = None
    new: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)

    @staticmethod
    def of_run(store: RunStore, data: Any, on_bad: OnBad) -> Aside:
        """With the notes of a run; StoreError if these are damaged."""
        named = Location.of(data, None, "data").url if isinstance(data, (str, os.PathLike)) else None
        return Aside(_read(store.path), on_bad != SET_ASIDE, named)

    def passes_over(self, piece: Piece) -> bool:
        """Whether a piece was set aside before, and is unchanged."""
        note = self.notes.get(piece.name)
        if self.raises or note is None or (piece.place is not None and piece.place == self.named):
            return False
        return note.fingerprint == stamp_of(piece)

    def put(self, piece: Piece, error: Exception, before: Any) -> None:
        """Set a piece aside, or let it wait; ``before`` is its stamp before it was opened.

        The error is raised if the data did not cause it.
        """
        if self.raises or not isinstance(error, BLAMED) or _was_caused_by(error, ConnectionError, TimeoutError):
            raise error
        if not _is_there(piece):
            return  # it was removed in the meantime
        # a permission that is given later leaves sizes and times as they are
        if _was_caused_by(error, PermissionError) or _is_unfinished(piece, before):
            self.wait(piece)
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        why = str(error).removeprefix(f"{piece.name}: ")
        for ending in ENDINGS:
            why = why.removesuffix(ending)
        self.notes[piece.name] = SetAside(piece.name, why, now, before)
        self.new.append(piece.name)
        logger.warning("set aside: %s: %s", piece.name, why)

    def wait(self, piece: Piece) -> None:
        """Leave a piece for the next look."""
        self.unfinished.append(piece.name)
        logger.info("not finished, left for the next look: %s", piece.name)

    @property
    def found(self) -> tuple[SetAside, ...]:
        """Notes of this look."""
        return tuple(self.notes[name] for name in self.new)

    def keep(self, store: RunStore, taken: Collection[str] = ()) -> None:
        """Write the notes down, except for pieces that the run has by now, or that are gone."""
        kept = {n: note for n, note in self.notes.items() if n not in taken and (not _is_path(n) or os.path.exists(n))}
        if kept or place_of(store.path).exists(store.path / NAME):
            content = {"format": FORMAT, "version": VERSION, "pieces": [asdict(note) for note in kept.values()]}
            store.note(NAME, seal(content))


def nothing_aside() -> Aside:
    """Without notes; pieces that cannot be taken in are errors."""
    return Aside({})


def _read(folder: Path | Key) -> dict[str, SetAside]:
    """Notes in a run directory, by name; empty if there are none."""
    if not place_of(folder).exists(folder / NAME):
        return {}
    try:
        found: Mapping[str, Any] = unseal(folder / NAME, FORMAT, VERSION, AsideContent)
    except DamagedError as error:
        raise StoreError(f"{error}; remove it, and the data set aside are tried again") from error
    return {piece["name"]: SetAside(**piece) for piece in found["pieces"]}


def stamp_of(piece: Piece) -> Any:
    """Sizes and times of the files of a piece; None if unknown."""
    return None if piece.place is None else fingerprint_of_files([Location.of(piece.data, None, "data")])


def _is_path(name: str) -> bool:
    return os.path.isabs(name) and "://" not in name


def _is_there(piece: Piece) -> bool:
    return piece.place is None or not _is_path(piece.place) or os.path.exists(piece.place)


def _was_caused_by(error: BaseException | None, *kinds: type[Exception]) -> bool:
    """Whether an error has one of these kinds as its cause: a failing storage tells nothing about the data."""
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__
    return False


def _is_unfinished(piece: Piece, before: Any) -> bool:
    """Whether the files of a piece that cannot be read are still being written."""
    place = piece.place
    if place is None or not _is_path(place):
        return False
    if stamp_of(piece) != before:
        return True
    age = _age(place)
    if age < LOOKED:
        time.sleep(PAUSE)
        if stamp_of(piece) != before:
            return True
    return age < YOUNG and _is_cut(place)


def _age(place: str) -> float:
    """Seconds since the last change of a file or folder."""
    times = [os.stat(place).st_mtime]
    if os.path.isdir(place):
        times += [int(changed) / 1e9 for _, _, changed in Location.of(place, None, "data").stamps()]
    return time.time() - max(times)


def _is_cut(place: str) -> bool:
    """Whether a Zarr store has no description yet, or a file no end."""
    if os.path.isdir(place):
        return not ZARR & set(os.listdir(place))
    magic = MAGIC.get(os.path.splitext(place)[1])
    if magic is None:
        return False
    with open(place, "rb") as file:
        start = file.read(len(magic))
        file.seek(max(0, os.path.getsize(place) - len(magic)))
        return magic.startswith(start) and file.read() != magic


# -- Words of new data matched with the words of a run: known words, new words, and the places of their columns ---


NewWords = Literal["add", "drop"]
"""Ways to treat words that a run does not know."""

WORD = "word"


def widens(model: Model) -> bool:
    """Whether the vocabulary of a model may grow."""
    return isinstance(model.observation, WideningObservation)


def require_new_words(value: Any) -> None:
    """SettingError unless this is a rule for words that a run does not know, or None."""
    one_of("new_words", value, ("add", "drop", None))


def n_words(posterior: Posterior) -> int:
    """Number of words that a posterior counts."""
    return int(posterior.model.observation.sizes[WORD])


def names_of(posterior: Posterior) -> tuple[str, ...] | None:
    """Words that a posterior counts; None if it knows columns by their places only."""
    if posterior.words is not None:
        return posterior.words.words
    named = posterior.columns is not None and posterior.columns.shown is not None
    return posterior.columns.features if named and posterior.columns is not None else None


# -- opening ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Counts:
    """Counts as they were given.

    Parameters
    ----------
    source
        Their batches, with the columns of the data.
    names
        Names of these columns, ``(V,)``; None if they have no names, and are in the run's order.
    content
        Checksum of the texts that they were made from; None for others.
    """

    source: Source
    names: tuple[str, ...] | None = None
    content: int | None = None


def open_counts(
    base: Posterior, data: Any, batch_size: int | None, new_words: NewWords | None, labels: Any = None
) -> Counts:
    """Open data of a run whose vocabulary may grow, with all their columns; ``labels (n,)`` are known of atoms."""
    if labels is not None and widens(base.model):
        labelled_as(base, as_source(data), labels)  # raises with the reason
    if not widens(base.model):
        if new_words is not None:
            kind = type(base.model.observation).__name__
            raise SettingError(
                f"new_words={new_words!r}: the run's likelihood is {kind}, which has no words; leave it out"
            )
        source = open_for(base, data, batch_size, weights=True, ignores_extra=False)
        return Counts(taking_lags(labelled_as(base, source, labels), base.model.lags))
    form = plain_form(data, needs_of_posterior(base))
    if isinstance(form, Documents):
        return _counts_of_documents(base, form, batch_size, new_words)
    data = form
    if base.columns is not None and base.columns.shown is not None:
        return _counts_of_columns(base, data, batch_size, new_words)
    columns = columns_for(base, weights=True, ignores_extra=False)
    source = as_source(data, batch_size=batch_size, columns=columns)
    words = None if base.words is None else words_of(source)
    if words is not None:
        return Counts(source, words.words)
    found = columns_of(source)
    if base.words is None or found is None:
        return Counts(source)
    missing = [name for name in base.words.words if name not in set(found.features)]
    if new_words is None and (missing or len(found.features) > len(base.words)):
        open_for(base, source, ignores_extra=False)  # raises with the reason
    return Counts(source, found.features)


def _counts_of_documents(
    base: Posterior, documents: Documents, batch_size: int | None, new_words: NewWords | None
) -> Counts:
    """Counts of documents in memory: known words, then new ones in alphabetical order."""
    known = vocabulary_of(base)
    words = known.words
    if new_words != "drop":
        words = (*words, *documents.new_words(known))
    widened = replace(known, words=words)
    # words that are dropped because the caller says so need no line
    counts = documents.counts(widened)[0] if new_words == "drop" else documents.known_counts(widened)
    return Counts(as_source(counts, batch_size=batch_size), words, zlib.crc32(documents.content()))


def _counts_of_columns(base: Posterior, data: Any, batch_size: int | None, new_words: NewWords | None) -> Counts:
    """Counts of tables, whose columns have names."""
    known = columns_for(base, weights=True, ignores_extra=False)
    assert known is not None
    if new_words is None:
        try:
            source = open_for(base, data, batch_size, weights=True, ignores_extra=False)
        except DataError as error:
            if not isinstance(columns_of(as_source(data)), Columns):
                raise
            raise DataError(f'{error}; new_words="add" takes columns of words as they are named') from error
        found = columns_of(source)
        return Counts(source, None if found is None else found.features)
    found = columns_of(as_source(data))
    if found is None:
        return Counts(as_source(data, batch_size=batch_size, columns=known))
    apart = {*known.roles.names, *known.others}
    layout = [c for c in zip(found.names, found.kinds, found.widths, strict=True) if c[0] not in apart]
    names, kinds, widths = zip(*layout, strict=True) if layout else ((), (), ())
    own = replace(known, names=names, kinds=kinds, widths=widths)
    return Counts(as_source(data, batch_size=batch_size, columns=own), own.features)


def labelled_as(base: Posterior, source: Source, labels: Any) -> Source:
    """The source with known labels ``(n,)`` among the run's labels; the source itself if there are none.

    Raises
    ------
    SettingError
        The run was begun without labels.
    """
    if labels is None:
        return source
    observation = base.model.observation
    if not isinstance(observation, Labelled):
        raise SettingError("labels: the run was begun without; begin a new one with train(..., labels=known)")
    return with_labels(source, labels_of(labels, observation.names))


# -- placing ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Placed:
    """Counts whose columns have places in the run.

    Parameters
    ----------
    counts
        Counts as they were given.
    place
        Place of each column, ``(V,)``; None: unchanged.
    base
        The posterior in force, which counts their words.
    """

    counts: Counts
    place: np.ndarray | None
    base: Posterior

    def source(self, width: int | None = None) -> Source:
        """The batches with all words of a run, ``width`` of them."""
        if not widens(self.base.model):
            return self.counts.source
        return reordered(self.counts.source, n_words(self.base) if width is None else width, self.place)


def place_in(
    base: Posterior, counts: Counts, new_words: NewWords | None, widths: Collection[int], most: int | None
) -> Placed:
    """Put the columns of counts at their places in the run, and widen the posterior by new words.

    Parameters
    ----------
    base
        The posterior so far.
    counts
        The given counts.
    new_words
        ``"drop"``: new words are left out.  None: columns without names, or of a table, must not be new.
    widths
        Numbers of words that the run had after each of its pieces.
    most
        For data taken in before: number of words that the run had then; later words are left out of them.

    Raises
    ------
    DataError
        There are more columns, or fewer, and it is unknown which.
    """
    if not widens(base.model):
        return Placed(counts, None, base)
    known, n_columns = names_of(base), counts.source.n_features
    if counts.names is None or known is None:
        return _by_position(base, counts, new_words, widths)
    index = {name: i for i, name in enumerate(known[:most])}
    place = np.array([index.get(name, LEFT_OUT) for name in counts.names], np.int64)
    new = np.flatnonzero(place == LEFT_OUT)
    if len(new) and most is None and new_words != "drop":
        base = widened(base, [counts.names[i] for i in new.tolist()])
        place[new] = np.arange(len(known), len(known) + len(new))
    if n_columns and (place == LEFT_OUT).all():
        raise DataError(
            f"{counts.source.name}: none of its {n_columns} words ({few(counts.names)}) is one of the run's "
            f"({few(known)}); nothing was taken"
        )
    return Placed(counts, place, base)


def _by_position(base: Posterior, counts: Counts, new_words: NewWords | None, widths: Collection[int]) -> Placed:
    """Columns without names are in the run's order; further ones behind them are added if ``new_words`` says so."""
    now, found = n_words(base), counts.source.n_features
    if found == now or found in widths:
        return Placed(counts, None, base)
    if found > now and new_words == "add" and names_of(base) is None:
        return Placed(counts, None, widened(base, found - now))
    if found > now and new_words == "drop":
        return Placed(counts, np.where(np.arange(found) < now, np.arange(found), LEFT_OUT), base)
    advice = "" if names_of(base) is not None else '; new_words="add" appends the additional ones'
    kind = "words of sparse counts" if counts.source.is_sparse else "columns of dense rows"
    raise DataError(
        f"{counts.source.name}: has {found} {kind} without names, and the run {now}{advice}; nothing was taken"
    )


def widened(base: Posterior, new: Sequence[str] | int) -> Posterior:
    """A posterior that counts more words, given by name or by number; the prior gives their values."""
    assert base.summary is not None
    count = new if isinstance(new, int) else len(new)
    observation: Any = base.model.observation
    size = n_words(base) + count
    model = replace(base.model, observation=observation.with_more_words(size))
    found = model.global_step(base.summary.widen(WORD, size))
    words, columns = base.words, base.columns
    if words is not None and not isinstance(new, int):
        words = Words.of((*words.words, *new), words.analysis)
    elif columns is not None and not isinstance(new, int):
        kinds = (*columns.kinds, *(columns.kinds[-1],) * count)
        columns = replace(columns, names=(*columns.names, *new), kinds=kinds, widths=(*columns.widths, *(1,) * count))
    return replace(found, words=words, columns=columns)


def placed_again(base: Posterior, source: Source, most: int) -> Source:
    """Data of a run, opened again, with all words of the run; ``most`` as in :func:`place_in`."""
    if not widens(base.model):
        return source
    known, names = names_of(base), None
    if base.words is not None and (words := words_of(source)) is not None:
        names = words.words
    elif known is not None and (found := columns_of(source)) is not None:
        names = found.features
    if names is None or known is None:
        return reordered(source, n_words(base), None)
    index = {name: i for i, name in enumerate(known[:most])}
    return reordered(source, n_words(base), np.array([index.get(name, LEFT_OUT) for name in names], np.int64))
