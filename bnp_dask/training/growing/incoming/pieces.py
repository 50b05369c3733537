"""Pieces of data as a user gives them, recognised by place and content; feeds, which give one after the other."""

from __future__ import annotations

import glob
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from bnp_dask.core.location import Location
from bnp_dask.errors import DataError, SettingError, StoreError
from bnp_dask.inputs.settings import shown

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
