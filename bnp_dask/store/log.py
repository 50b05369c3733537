"""Files that only grow; the committed part of each is identified by its length and its CRC-32."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from bnp_dask.store.place import DamagedError, Extent, Key, place_of


def append(path: Path | Key, data: bytes, committed: Extent) -> Extent:
    """Add data to a file, after the committed part and in place of anything uncommitted.

    The new end is on the disk on return; a caller commits it by recording the returned extent.

    Raises
    ------
    StoreError
        The disk is full, or the file may not be written.
    """
    return place_of(path).append(path, data, committed)


def check_extent(path: Path | Key, committed: Extent) -> None:
    """DamagedError unless the file begins with the committed part; takes little memory."""
    for _ in _pieces(path, committed):
        pass


def read_extent(path: Path | Key, committed: Extent) -> bytes:
    """Committed part of a file; DamagedError if it is missing."""
    return b"".join(_pieces(path, committed))


def _pieces(path: Path | Key, committed: Extent) -> Iterator[bytes]:
    nbytes, crc = 0, 0
    for piece in place_of(path).pieces(path, committed):
        nbytes, crc = nbytes + len(piece), zlib.crc32(piece, crc)
        yield piece
    if Extent(nbytes, crc) != committed:
        raise DamagedError(f"{path} is damaged (its first {committed.nbytes} bytes do not fit their checksum)")
