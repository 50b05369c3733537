"""Files that only grow: what was committed of one is known by its length and its CRC-32."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bnp_dask.store.files import DamagedError, cannot, sync_directory

PIECE_BYTES = 2**22
"""Bytes that are read at a time to check a file."""


@dataclass(frozen=True)
class Extent:
    """The committed beginning of a file that grows.

    Parameters
    ----------
    nbytes
        Its length.
    crc32
        CRC-32 of its content.
    """

    nbytes: int = 0
    crc32: int = 0

    @staticmethod
    def from_json(data: Mapping[str, int]) -> Extent:
        """Inverse of :meth:`to_json`."""
        return Extent(data["bytes"], data["crc32"])

    def to_json(self) -> dict[str, int]:
        """As plain data."""
        return {"bytes": self.nbytes, "crc32": self.crc32}


def append(path: Path, data: bytes, committed: Extent) -> Extent:
    """Add data to a file, after all that was committed and in place of what was not.

    The new end is on the disk when this returns; it is committed by whoever notes the extent that is returned.

    Raises
    ------
    StoreError
        The disk is full, or the file may not be written.
    """
    try:
        with open(path, "ab") as file:
            file.truncate(committed.nbytes)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise cannot("write", path, error) from error
    if committed.nbytes == 0:
        sync_directory(path.parent)
    return Extent(committed.nbytes + len(data), zlib.crc32(data, committed.crc32))


def check_extent(path: Path, committed: Extent) -> None:
    """DamagedError unless the file begins with what was committed; takes little memory."""
    for _ in _pieces(path, committed):
        pass


def read_extent(path: Path, committed: Extent) -> bytes:
    """What was committed of a file; DamagedError where that is not there."""
    return b"".join(_pieces(path, committed))


def _pieces(path: Path, committed: Extent) -> Iterator[bytes]:
    left, crc = committed.nbytes, 0
    if left == 0:
        return
    try:
        with open(path, "rb") as file:
            while left and (piece := file.read(min(left, PIECE_BYTES))):
                left, crc = left - len(piece), zlib.crc32(piece, crc)
                yield piece
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror})") from error
    if left or crc != committed.crc32:
        raise DamagedError(f"{path} is damaged (its first {committed.nbytes} bytes do not fit their checksum)")
