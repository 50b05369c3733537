"""Files that are whole or absent: atomic writes, arrays in one file, JSON with a checksum."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.errors import StoreError

TEMPORARY = ".tmp-"
FILE_THREADS = 16
META = "meta.json"
ARRAY = "array/"
_CRC_DIGITS = 8

_BEFORE_NAME = 26
"""Bytes of a member's own head in a zip archive before the lengths of its name and of what else it says."""

_NAME_AND_EXTRA = struct.Struct("<HH")

_BEFORE_HEADER = 12
"""Bytes of an npy file of version 2 before its header, the last four of which are the length of that."""


class DamagedError(Exception):
    """A file that is missing, cut off or altered; the message names it."""


# -- bytes --------------------------------------------------------------------------------------------------------
def write_atomic(path: Path, data: bytes, sync: bool) -> None:
    """Write a file so that its name shows either what was there before or all of ``data``.

    Parameters
    ----------
    path
        File to write; its directory must exist.
    data
        Content.
    sync
        Whether to wait until the content is on the disk, so that it outlives a loss of power.

    Raises
    ------
    StoreError
        The disk is full, or the file may not be written.
    """
    # The name must be free on every machine that shares the directory.
    temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}-{path.name}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        _unlink_quietly(temporary)
        raise cannot("write", path, error) from error


def cannot(verb: str, path: Path, error: OSError) -> StoreError:
    """The error for a file that the operating system refuses."""
    reason = error.strerror or str(error)
    return StoreError(
        f"cannot {verb} {path}: {reason}. Make room or give permission, then go on: what was saved before is unharmed"
    )


def read_bytes(path: Path) -> bytes:
    """Content of a file; DamagedError when it is missing, StoreError when it may not be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DamagedError(f"{path} is missing") from error
    except OSError as error:
        raise cannot("read", path, error) from error


def sync_files(paths: Iterable[Path]) -> None:
    """Wait until files and the directories that name them are on the disk.

    Many at a time: the file system then writes its journal once for all instead of once for each.
    """
    files = list(paths)
    _all_at_once(_sync, files)
    _all_at_once(sync_directory, sorted({f.parent for f in files}))


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise cannot("sync", path, error) from error


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    if os.name != "nt":  # Windows cannot, and does not need to
        _sync(path)


def make_directory(path: Path) -> None:
    """Make a directory and its parents."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot("make directory", path, error) from error


def remove(paths: Iterable[Path]) -> None:
    """Remove files that nobody needs; one that cannot be removed only wastes space."""
    # A file that is on the disk takes a file system up to milliseconds to remove, and many at a time hardly longer.
    _all_at_once(_unlink_quietly, list(paths))


def _all_at_once(what: Callable[[Path], None], files: list[Path]) -> None:
    """Do this to many files, each thread to a share of them."""

    def own(share: list[Path]) -> None:
        for path in share:
            what(path)

    if len(files) <= 1:
        return own(files)
    with ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="bnp-dask-files") as pool:
        list(pool.map(own, (files[i::FILE_THREADS] for i in range(min(FILE_THREADS, len(files))))))


def remove_temporary(directory: Path) -> None:
    """Remove what writers that were killed left behind, in ``directory`` and below."""
    for folder, _, names in os.walk(directory):
        remove(Path(folder, name) for name in names if name.startswith(TEMPORARY))


def _unlink_quietly(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


# -- arrays -------------------------------------------------------------------------------------------------------
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
    """CRC-32 of all that :func:`pack` gave, from what it ends with."""
    end = data[-_CRC_DIGITS:]
    return zlib.crc32(end, int(end, 16))


def _hex_crc(data: bytes | memoryview) -> bytes:
    return b"%08x" % zlib.crc32(data)


def unpack(data: bytes, path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Inverse of :func:`pack`; DamagedError naming ``path`` when anything does not fit."""
    if data[-_CRC_DIGITS:] != _hex_crc(memoryview(data)[:-_CRC_DIGITS]):
        raise DamagedError(f"{path} is damaged (its checksum does not fit)")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {member.filename: _content(data, member) for member in archive.infolist()}
        meta = json.loads(bytes(members.pop(META)))
        return {_array_name(name): _array(raw) for name, raw in members.items()}, meta
    except Exception as error:  # what was written elsewise makes zipfile and numpy raise nearly anything
        raise DamagedError(f"{path} is damaged ({type(error).__name__}: {error})") from error


def _content(data: bytes, member: zipfile.ZipInfo) -> memoryview:
    """What a member holds, where it lies; its own checksum tells nothing that the archive's did not."""
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
    """Shape and dtype by the head of an npy file: the same arrays come again and again, and numpy compiles each."""
    stream = io.BytesIO(head)
    if np.lib.format.read_magic(stream) != (2, 0):
        raise ValueError("unexpected version of the npy format")
    shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    if fortran or dtype.hasobject:
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


def unseal(path: Path, kind: str, version: int) -> dict[str, Any]:
    """Read what :func:`seal` wrote.

    Raises
    ------
    DamagedError
        The file is missing, cut off or altered.
    StoreError
        It was written by a newer version of this package.
    """
    data = read_bytes(path)
    envelope = _SEALED.fullmatch(data)
    if envelope is None or int(envelope[1]) != zlib.crc32(envelope[2]):
        raise DamagedError(f"{path} is damaged (its checksum does not fit)")
    content = json.loads(envelope[2])
    if content["format"] != kind:
        raise StoreError(f"{path} is a {content['format']!r}, needs a {kind!r}; pass the path of a run directory")
    if content["version"] > version:
        raise StoreError(
            f"{path} has format version {content['version']}, this bnp-dask reads up to {version}; "
            "upgrade with: pip install --upgrade bnp-dask"
        )
    return content
