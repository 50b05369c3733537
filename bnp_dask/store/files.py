"""Content of files: arrays in one file, JSON with a checksum; and files that only grow.

The committed part of a file that grows is identified by its length and its CRC-32.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.core import fault
from bnp_dask.errors import StoreError
from bnp_dask.store.migrations import FIRST, is_readable, upgraded
from bnp_dask.store.place import DamagedError, Extent, Key, place_of

META = "meta.json"
ARRAY = "array/"
_CRC_DIGITS = 8

_BEFORE_NAME = 26
"""Bytes of a member's own head in a zip archive before the lengths of its name and of its extra field."""

_NAME_AND_EXTRA = struct.Struct("<HH")

_BEFORE_HEADER = 12
"""Bytes of an npy file of version 2 before its header; the last four hold the length of the header."""


# -- arrays --------------------------------------------------------------------------------------------------------
def pack(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None) -> bytes:
    """Named arrays and JSON-able data as one uncompressed npz; equal content gives equal bytes.

    Nothing in it is run when it is loaded.  The members' own checksums do not cover the table of members (a changed
    bit there hides some of them), so the comment of the archive, its last bytes, is a CRC-32 of all before it.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        # ZipInfo instead of names: a name alone would be stamped with the time.
        archive.writestr(zipfile.ZipInfo(META), dump_json(dict(meta or {})))
        for name, value in arrays.items():
            array = np.asarray(value, order="C")
            if array.dtype.hasobject:
                raise StoreError(f"array {name!r} holds Python objects; a store takes numbers, text and booleans")
            with archive.open(zipfile.ZipInfo(f"{ARRAY}{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array_header_2_0(member, np.lib.format.header_data_from_array_1_0(array))
                member.write(array.reshape(-1).view(np.uint8).data if array.nbytes else b"")
        archive.comment = b"crc32:" + bytes(_CRC_DIGITS)
    view = buffer.getbuffer()
    view[-_CRC_DIGITS:] = _hex_crc(view[:-_CRC_DIGITS])
    view.release()
    return buffer.getvalue()


def crc_of_packed(data: bytes) -> int:
    """CRC-32 of the whole output of :func:`pack`, computed from its last bytes."""
    end = data[-_CRC_DIGITS:]
    return zlib.crc32(end, int(end, 16))


def _hex_crc(data: bytes | memoryview) -> bytes:
    return b"%08x" % zlib.crc32(data)


def unpack(data: bytes, path: Path | Key) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Inverse of :func:`pack`; DamagedError naming ``path`` if anything does not fit."""
    if data[-_CRC_DIGITS:] != _hex_crc(memoryview(data)[:-_CRC_DIGITS]):
        raise DamagedError(f"{path} is damaged (its checksum does not fit)")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {member.filename: _content(data, member) for member in archive.infolist()}
        meta = json.loads(bytes(members.pop(META)))
        return {_array_name(name): _array(raw) for name, raw in members.items()}, meta
    except Exception as error:  # other writers' files make zipfile and numpy raise nearly anything
        raise DamagedError(f"{path} is damaged ({type(error).__name__}: {error})") from error


def _content(data: bytes, member: zipfile.ZipInfo) -> memoryview:
    """Content of a member, without a copy; its own checksum adds nothing to the archive's."""
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"member {member.filename!r} is compressed")
    name, extra = _NAME_AND_EXTRA.unpack_from(data, member.header_offset + _BEFORE_NAME)
    start = member.header_offset + _BEFORE_NAME + _NAME_AND_EXTRA.size + name + extra
    return memoryview(data)[start : start + member.file_size]


def _array_name(member: str) -> str:
    if not (member.startswith(ARRAY) and member.endswith(".npy")):
        raise ValueError(f"unexpected member {member!r}")
    return member.removeprefix(ARRAY).removesuffix(".npy")


def _array(raw: memoryview) -> np.ndarray:
    start = _BEFORE_HEADER + int.from_bytes(raw[_BEFORE_HEADER - 4 : _BEFORE_HEADER], "little")
    shape, dtype = _layout(bytes(raw[:start]))
    # A copy, because an array on top of bytes could not be written to.
    return np.ndarray(shape, dtype, buffer=raw, offset=start).copy()


@lru_cache(4096)
def _layout(head: bytes) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype from the head of an npy file; cached, since numpy compiles each head and the same ones recur."""
    stream = io.BytesIO(head)
    if np.lib.format.read_magic(stream) != (2, 0):
        raise ValueError("unexpected version of the npy format")
    shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    if fortran or dtype.hasobject or dtype.kind not in "biufUS":
        raise ValueError("unexpected layout")
    return shape, dtype


# -- JSON ---------------------------------------------------------------------------------------------------------
def dump_json(data: Any) -> str:
    """JSON on one line; floats keep all their bits, NumPy scalars become plain numbers."""
    try:
        return json.dumps(data, default=_plain, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise StoreError(f"a store takes JSON-able data only: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"got a {type(value).__name__}; pass arrays as arrays, everything else as plain data")


_SEALED = re.compile(rb'\{"crc32":(\d+),"content":(.*)\}\n', re.DOTALL)


def seal(data: dict[str, Any]) -> bytes:
    """JSON that can tell whether it was altered."""
    body = dump_json(data)
    return f'{{"crc32":{zlib.crc32(body.encode())},"content":{body}}}\n'.encode()


def unseal(path: Path | Key, kind: str, version: int, fields: Any = dict[str, Any]) -> dict[str, Any]:
    """Read a file that :func:`seal` wrote, whose content has some ``fields`` (:func:`~bnp_dask.core.schema.fault`).

    Raises
    ------
    DamagedError
        The file is missing, cut off or altered, or its content lacks the fields, or has them with other types.
    StoreError
        It was written in another version of the format.
    """
    return unsealed(place_of(path).read(path), path, kind, version, fields)


def unsealed(data: bytes, path: Path | Key, kind: str, version: int, fields: Any = dict[str, Any]) -> dict[str, Any]:
    """As :func:`unseal`, for data already read; messages name ``path``."""
    envelope = _SEALED.fullmatch(data)
    if envelope is None or int(envelope[1]) != zlib.crc32(envelope[2]):
        raise DamagedError(f"{path} is damaged (its checksum does not fit)")
    try:
        content = json.loads(envelope[2])
        wrong = not isinstance(content["format"], str) or not isinstance(content["version"], int)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged ({type(error).__name__}: {error})") from error
    if wrong:
        raise DamagedError(f"{path} is damaged (it says neither its format nor its version)")
    if content["format"] != kind:
        raise StoreError(f"{path} is a {content['format']!r}, needs a {kind!r}; pass the path of a run directory")
    if content["version"] > version:
        raise StoreError(
            f"{path} has format version {content['version']}, this bnp-dask reads up to {version}; "
            "upgrade with: pip install --upgrade bnp-dask"
        )
    if not is_readable(kind, content["version"], version):
        first = FIRST.get(kind, version)
        raise StoreError(
            f"{path} has format version {content['version']}, of a version before 0.3.0; this bnp-dask reads from "
            f"{first} on. Go on with the version that wrote it, or start a new run in another directory"
        )
    found = upgraded(content, kind, content["version"], version)
    require_fields(found, fields, path)
    return found


def require_fields(content: Any, fields: Any, path: Path | Key | str) -> None:
    """DamagedError, naming file and field, unless content read from a file has its declared type.

    The checksum of such a file is right, so that another program wrote it.
    """
    wrong = fault(content, fields)
    if wrong is not None:
        raise DamagedError(f"{path} is damaged ({wrong}; its checksum is right, so that another program wrote it)")


def json_lines(data: bytes, fields: Any, path: Path | Key) -> list[Any]:
    """JSON of each line; DamagedError for anything else, or other ``fields``."""
    try:
        found = [json.loads(line) for line in data.decode().splitlines()]
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged ({type(error).__name__}: {error})") from error
    for number, content in enumerate(found):
        require_fields(content, fields, f"{path}, line {number + 1},")
    return found


# -- files that only grow ------------------------------------------------------------------------------------------
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
