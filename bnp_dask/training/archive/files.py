"""New files of an archive: whole, or absent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bnp_dask.core.location import Location
from bnp_dask.store.place import disk


@contextmanager
def replacing(place: Location) -> Iterator[IO[bytes]]:
    """A file to write, which takes its name when the block ends; OSError if it cannot be written."""
    if place.is_local:
        path = Path(place.url)
        path.parent.mkdir(parents=True, exist_ok=True)
        with disk.replacing(path) as file:
            yield file
        return
    fs, name = place.filesystem()
    with place.discreet(), fs.open(name, "wb") as file:
        yield file


def link(path: Path, to: Path) -> None:
    """Give a file that is never changed a second name, in a folder that may be new."""
    to.parent.mkdir(parents=True, exist_ok=True)
    disk.link(path, to)
