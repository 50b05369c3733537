"""Writes a page, which may replace only another page."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from bnp_dask.core.location import Location
from bnp_dask.data.output import put
from bnp_dask.errors import DataError, StoreError, redacted
from bnp_dask.inputs.paths import local_path

MARK = b"<footer>bnp-dask "
"""Footer of every page of this package."""


def page_target(path: str | os.PathLike[str]) -> Path | Location:
    """Target of a page, a file with links resolved or an object of a store; checked before the page is made.

    Raises
    ------
    StoreError
        There is another file, or the target is not writable.
    """
    if "://" in os.fspath(path) and not os.fspath(path).startswith("file://"):
        return _far_target(Location.of(path))
    target = Path(os.path.realpath(local_path(path)))
    if target.is_dir():
        raise StoreError(f"{target} is a directory; needs the name of a file, such as {target.name or 'page'}.html")
    try:
        if target.exists() and not (target.is_file() and MARK in target.read_bytes()):
            raise StoreError(f"{target} exists and is not a page of bnp-dask; refusing to overwrite it")
    except OSError as error:
        raise StoreError(f"{target}: cannot write a report there: {error.strerror}") from error
    folder = target.parent
    if not folder.is_dir():
        raise StoreError(f"{target}: cannot write a report there: there is no directory {folder}")
    if not os.access(folder, os.W_OK):
        raise StoreError(f"{target}: cannot write a report there: no permission to write to {folder}")
    return target


def _far_target(place: Location) -> Location:
    """An object to write, which may replace only another page."""
    try:
        taken = place.exists() and MARK not in place.content()
    except (OSError, DataError) as error:
        raise StoreError(f"{place.name}: cannot write a report there: {error}") from error
    if taken:
        raise StoreError(f"{place.name} exists and is not a page of bnp-dask; refusing to overwrite it")
    return place


def write_page(target: Path | Location, page: str) -> None:
    """Write a page in one step; StoreError if that fails, which leaves an existing file unchanged."""
    if isinstance(target, Location):
        try:
            put(target, redacted(page).encode("utf-8", "replace"))
        except (OSError, DataError) as error:
            raise StoreError(f"{target.name}: cannot write a report there: {error}") from error
        return
    partial = target.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        try:
            # a document's id may hold characters that UTF-8 cannot encode
            partial.write_bytes(redacted(page).encode("utf-8", "replace"))
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{target}: cannot write a report there: {error.strerror or error}") from error
