"""Data that a feed sets aside because they cannot be taken in, and files that wait because they are not finished.

A run keeps a note of each piece that was set aside, in a file of its own: why, when, and the sizes and times of its
files.  A piece is tried again once these have changed, or if it is named by itself.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict

from bnp_dask.core import Location
from bnp_dask.data import fingerprint_of_files
from bnp_dask.errors import DataError, NumericalError, StoreError
from bnp_dask.inputs import path_text
from bnp_dask.store import Key, RunStore, place_of, run_folder
from bnp_dask.store.files import seal, unseal
from bnp_dask.store.place import DamagedError
from bnp_dask.store.run import read_settings
from bnp_dask.training.callbacks import logger
from bnp_dask.training.growing.incoming.pieces import ZARR, OtherContentError, Piece

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


def set_aside(store: str | os.PathLike[str]) -> tuple[SetAside, ...]:
    """Data that updates with ``on_bad="set aside"`` could not take into a run, and why.

    A piece is tried again by the next update that comes upon it once its file has changed.  It is tried at any time by
    ``update(store, path)`` that names it by itself, or with ``on_bad="raise"``.  It leaves the list once it was taken
    in, or its file is gone.

    Parameters
    ----------
    store
        Run directory.

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
