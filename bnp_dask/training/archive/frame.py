"""Arrays of an archive in one file: a zip, not compressed, that Zarr opens as a group.

::

    zarr.json                       the group
    observation.m/zarr.json         an array's shape and type, in the form of Zarr v3
    observation.m/c/0/0             its numbers, in one chunk

A reader with the offsets of the arrays' numbers needs neither Zarr nor the table of the zip.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

_KINDS = "biuf"
_PIECE = 2**20
"""Bytes that are read at a time between two arrays."""


@dataclass(frozen=True)
class Frame:
    """Layout and checksum of a file of arrays.

    Parameters
    ----------
    offsets
        Offset of the numbers of each array, by name, in bytes and in the order of the file.
    nbytes
        Bytes of the file.
    heads
        CRC-32 of all bytes that are not numbers of an array.
    """

    offsets: Mapping[str, int]
    nbytes: int
    heads: int


class DamagedFrameError(Exception):
    """The file differs from the written one; the message says in which part, for a sentence that names the file."""


class _Written:
    """A file that is written from its start to its end, with its length and checksum so far."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.nbytes = self.heads = 0
        self.is_head = True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._file.write(view)
        self.nbytes += view.nbytes
        if self.is_head:
            self.heads = zlib.crc32(view, self.heads)
        return view.nbytes

    def tell(self) -> int:
        return self.nbytes

    def flush(self) -> None: ...


def write_frame(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> Frame:
    """Write arrays in C order; equal arrays give equal bytes."""
    out = _Written(file)
    offsets = {}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        # ZipInfo instead of names: a name alone would be stamped with the time.
        archive.writestr(zipfile.ZipInfo("zarr.json"), json.dumps(_GROUP))
        for name, array in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{name}/zarr.json"), json.dumps(_array_node(array)))
            key = "/".join(["c", *("0" for _ in array.shape)])
            with archive.open(zipfile.ZipInfo(f"{name}/{key}"), "w", force_zip64=True) as member:
                offsets[name], out.is_head = out.nbytes, False
                if array.size:
                    member.write(_bytes_of(array))
                out.is_head = True
    return Frame(offsets, out.nbytes, out.heads)


def read_frame(file: IO[bytes], frame: Frame, listing: Mapping[str, Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """All arrays of a file; ``listing`` has the ``"shape"``, ``"dtype"`` and ``"crc32"`` of each.

    Raises
    ------
    DamagedFrameError
        The file is cut off, or a bit of it has changed.
    """
    arrays, heads, at = {}, 0, 0
    for name, offset in sorted(frame.offsets.items(), key=lambda item: item[1]):
        heads = _head(file, offset - at, heads)
        facts = listing[name]
        shape, dtype = tuple(facts["shape"]), np.dtype(facts["dtype"])
        at = offset + math.prod(shape) * dtype.itemsize
        # an invented size must not take all memory
        if dtype.kind not in _KINDS or at > frame.nbytes or any(n < 0 for n in shape):
            raise DamagedFrameError(f"array {name!r} cannot be what the description says")
        array = np.empty(shape, dtype)
        n_read = file.readinto(_bytes_of(array)) if array.size else 0  # type: ignore[attr-defined]
        if n_read != array.nbytes:
            raise DamagedFrameError(f"the file is cut off in array {name!r}")
        if crc_of(array) != facts["crc32"]:
            raise DamagedFrameError(f"array {name!r} is damaged: its checksum does not match")
        arrays[name] = array
    if _head(file, frame.nbytes - at, heads) != frame.heads or file.read(1):
        raise DamagedFrameError("the file is damaged between its arrays: a checksum does not match")
    return arrays


def crc_of(array: np.ndarray) -> int:
    """CRC-32 of the numbers of an array, in C order."""
    return zlib.crc32(_bytes_of(np.ascontiguousarray(array)))


def _head(file: IO[bytes], nbytes: int, crc: int) -> int:
    """Checksum continued over the next bytes that are not numbers."""
    if nbytes < 0:
        raise DamagedFrameError("arrays cannot lie where the description says")
    while nbytes:
        piece = file.read(min(nbytes, _PIECE))
        if not piece:
            raise DamagedFrameError("the file is cut off")
        crc, nbytes = zlib.crc32(piece, crc), nbytes - len(piece)
    return crc


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


# -- Zarr ---------------------------------------------------------------------------------------------------------
_GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}


def _array_node(array: np.ndarray) -> dict[str, Any]:
    """An array's metadata in version 3 of Zarr."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(array.shape),
        "data_type": array.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [max(1, n) for n in array.shape]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": False if array.dtype.kind == "b" else 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
    }
