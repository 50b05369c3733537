"""Test whether data are unchanged without reading them: by sizes and times of files.

If they appear unchanged, the data are not read to verify it.  An undetected change is found by the checksum of each
batch at its visit.
"""

from __future__ import annotations

import glob
import os
import zlib
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from bnp_dask.core.location import Location
from bnp_dask.core.survey import checksum
from bnp_dask.data.base import Source
from bnp_dask.errors import DataError


@runtime_checkable
class Fingerprinted(Protocol):
    """A source that can identify its data beyond its description."""

    def fingerprint(self) -> Any:
        """JSON-able fingerprint, which differs when the data may have changed; None if unknown."""
        ...


def fingerprint_of(source: Source) -> Any:
    """The fingerprint of any source; None if only its description is known."""
    return source.fingerprint() if isinstance(source, Fingerprinted) else None


def identity_of(source: Source) -> dict[str, Any]:
    """Identity of the data of a source, as far as it is known without reading them; JSON-able."""
    return {"data": source.describe(), "fingerprint": fingerprint_of(source)}


def fingerprint_of_files(places: Iterable[Location]) -> dict[str, int] | None:
    """Number, bytes, and a checksum of names, sizes and times of all files at some places; None if one is unknown."""
    count = total = crc = 0
    try:
        for place in {place.url: place for place in places}.values():
            for name, size, time in place.stamps():
                count, total = count + 1, total + size
                crc = zlib.crc32(f"{name}\0{size}\0{time}\n".encode(), crc)
    except (OSError, ValueError, NotImplementedError, DataError):  # a store that cannot be listed
        return None
    return {"files": count, "bytes": total, "crc32": crc}


def opened_as(data: Any, source: Source, batch_size: int | None, weights: Any) -> dict[str, Any] | None:
    """Facts to reopen data in another process and recognise them; JSON-able, None for data in memory.

    For a folder or a pattern it lists the files, so that later files can be told apart.
    """
    if not isinstance(data, (str, os.PathLike)) or not isinstance(weights, (str, os.PathLike, type(None))):
        return None
    place = Location.of(data, None, "data")
    text = None if weights is None else os.fspath(weights)
    if text is not None and text.endswith(".npy"):
        text = Location.of(text).place
    found: dict[str, Any] = {"place": place.place, "batch_size": batch_size, "weights": text}
    found["fingerprint"] = fingerprint_of(source)
    if place.is_local and glob.has_magic(place.url) and not place.exists():
        return {**found, "files": sorted(glob.glob(place.url))}
    if not place.is_local or not place.is_dir() or {"zarr.json", ".zarray", ".zgroup"} & set(place.names()):
        return found
    return {**found, "files": [name.lstrip("/") for name, _, _ in place.stamps()]}


def fingerprint_of_content(source: Source) -> dict[str, int] | None:
    """A checksum of data in memory; None if they cannot be read."""
    crc = 0
    try:
        for batch in range(source.n_batches):
            crc = zlib.crc32(f"{checksum(source.reader(batch)())}\n".encode(), crc)
    except DataError:
        return None
    return {"crc32": crc}
