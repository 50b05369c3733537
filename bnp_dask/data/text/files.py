"""Raw text in files: folders, archives, one document per line.  Read as a stream; nothing is unpacked to disk."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import posixpath
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import IO, Any

import fsspec
from fsspec.compression import compr

from bnp_dask.core.location import Location
from bnp_dask.data.text.options import Document, Tally, Text
from bnp_dask.errors import DataError, SettingError

DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, OSError)
"""Errors of unpacking a damaged file."""

TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")


def folder(location: Location, text: Text, tally: Tally) -> Iterator[Document]:
    """Every file below a folder that matches the pattern, by path, without hidden files."""
    found = location.files(("",))
    start = len(location.url) + 1
    chosen = [(file, file.url[start:]) for file in found if _fits(file.url[start:], text.glob)]
    tally.n_left = len(found) - len(chosen)
    if not chosen:
        raise DataError(_nothing_fits(location.name, text.glob, len(found)))
    for number, (file, path) in enumerate(chosen, 1):
        try:
            with file.open("infer") as opened:
                data = read_up_to(opened, text.max_bytes)
        except DAMAGED as error:
            tally.bad(file.name, f"cut short or damaged: {error}", text)
            continue
        tally.share = number / len(chosen)
        yield _document(path, data, file.name, text, tally)


def archive(location: Location, text: Text, tally: Tally) -> Iterator[Document]:
    """Every file of a .zip or .tar archive that matches the pattern, in the order of the archive."""
    any_member = False
    for path, data in (_zip if is_zip(location) else _tar)(location, text, tally):
        if path.startswith("/") or ".." in path.split("/"):
            tally.n_outside += 1
        any_member = True
        yield _document(path, data, f"{location.name}:{path}", text, tally)
    if not any_member and not tally.skipped:
        raise DataError(_nothing_fits(location.name, text.glob, tally.n_left))


def lines(location: Location, text: Text, tally: Tally) -> Iterator[Document]:
    """One document per line, named by the number of the line; a line without characters is an empty document."""
    for number, data in numbered_lines(location, text, tally):
        place = f"{location.name} line {number}"
        yield Document(str(number), tally.decode(data, text, place), place, {})


def numbered_lines(location: Location, text: Text, tally: Tally) -> Iterator[tuple[int, bytes]]:
    """Lines without line ends, with numbers from 1; at most ``max_bytes + 1`` bytes of each line."""
    if is_wide(text.encoding):
        raise SettingError(f"encoding={text.encoding!r} cannot be cut into lines; convert {location.name} to utf-8")
    raw = location.open()
    kind = fsspec.utils.infer_compression(location.url)
    size = max(1, location.size())
    number = 0
    with raw, raw if kind is None else compr[kind](raw, mode="rb") as packed:
        file: IO[bytes] = packed if kind is None else io.BufferedReader(_Eager(packed), 2**20)
        while True:
            try:
                line = file.readline(text.max_bytes + 1)
                ended = not line or line.endswith(b"\n")
                while not ended:
                    rest = file.readline(2**20)
                    ended = not rest or rest.endswith(b"\n")
            except DAMAGED as error:
                tally.bad(f"{location.name} after line {number}", f"cut short or damaged: {error}", text)
                return
            if not line:
                return
            number += 1
            tally.share = min(1.0, raw.tell() / size)
            yield number, line.rstrip(b"\r\n")


class _Eager(io.RawIOBase):
    """Stream that returns bytes as soon as they are unpacked, so that no data before a damage are lost."""

    def __init__(self, packed: Any) -> None:
        self._read = getattr(packed, "read1", packed.read)

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        data = self._read(len(room))
        room[: len(data)] = data
        return len(data)


def is_wide(encoding: str) -> bool:
    """Whether an encoding takes more than one byte for a Latin letter."""
    return "a".encode(encoding) != b"a" and codecs.lookup(encoding).name != "utf-8-sig"


def is_zip(location: Location) -> bool:
    """Whether a file starts like a .zip archive."""
    with location.open() as file:
        return file.read(4) in (b"PK\3\4", b"PK\5\6")


def zip_members(location: Location) -> list[str]:
    """Names of the files in a .zip archive."""
    try:
        with location.open() as file, zipfile.ZipFile(file) as members:
            return [info.filename for info in members.infolist() if not info.is_dir()]
    except zipfile.BadZipFile as error:
        raise DataError(f"{location.name}: no .zip archive, or one that is cut short ({error})") from error


def _zip(location: Location, text: Text, tally: Tally) -> Iterator[tuple[str, bytes]]:
    zip_members(location)
    with location.open() as file, zipfile.ZipFile(file) as members:
        infos = [info for info in members.infolist() if not info.is_dir()]
        for number, info in enumerate(infos, 1):
            tally.share = number / len(infos)
            if info.external_attr >> 28 == 0xA:
                tally.n_links += 1
                continue
            if not _fits(info.filename, text.glob):
                tally.n_left += 1
                continue
            try:
                with members.open(info) as opened:
                    data = _unpacked(info.filename, opened, text.max_bytes)
            except (*DAMAGED, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
                tally.bad(f"{location.name}:{info.filename}", f"damaged or locked: {error}", text)
                continue
            yield info.filename, data


def _tar(location: Location, text: Text, tally: Tally) -> Iterator[tuple[str, bytes]]:
    size, last = max(1, location.size()), ""
    with location.open() as raw:
        try:
            stream: Any = _Remembering(_unpacked_tar(raw))
            with tarfile.open(name=None, mode="r|", fileobj=stream, encoding="utf-8", errors="replace") as members:
                for member in members:
                    # the list of members would grow with the archive
                    members.members = []  # type: ignore[attr-defined]
                    tally.share = min(1.0, raw.tell() / size)
                    if member.isdir():
                        continue
                    if not member.isfile():
                        tally.n_links += 1
                        continue
                    last = member.name
                    if not _fits(member.name, text.glob):
                        tally.n_left += 1
                        continue
                    opened = members.extractfile(member)
                    data = b"" if opened is None else _member(opened, member, f"{location.name}:{last}", text, tally)
                    if data is not None:
                        yield member.name, data
                # tarfile treats a header that is cut short as the end
                if stream.at(members.offset, tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                    raise tarfile.ReadError("the mark at the end is missing")
        except (*DAMAGED, tarfile.TarError) as error:
            where = f"{location.name}, at or after member {last}" if last else location.name
            tally.bad(where, f"cut short or damaged: {error}", text)


def _unpacked_tar(raw: Any) -> Any:
    """The unpacked archive; its compression is detected from its first bytes."""
    head = raw.read(6)
    raw.seek(0)
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw)
    if head.startswith(b"BZh"):
        return bz2.BZ2File(raw)
    return lzma.LZMAFile(raw) if head == b"\xfd7zXZ\0" else raw


class _Remembering:
    """A stream that remembers the last bytes it returned."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._parts = (b"", b"")
        self._stop = 0

    def read(self, size: int) -> bytes:
        """Read ``size`` bytes; fewer only at the end."""
        data = read_up_to(self._file, size - 1)
        if data:
            self._parts = (self._parts[1], data)
            self._stop += len(data)
        return data

    def at(self, start: int, size: int) -> bytes:
        """Bytes at a position that was read recently."""
        held = b"".join(self._parts)
        first = start - (self._stop - len(held))
        return held[first : first + size] if first >= 0 else b""


def _member(opened: IO[bytes], member: tarfile.TarInfo, place: str, text: Text, tally: Tally) -> bytes | None:
    """A member of a .tar; if it is itself packed and damaged, only this member is left out."""
    if not member.name.endswith(".gz"):
        return read_up_to(opened, text.max_bytes)
    try:
        return _unpacked(member.name, opened, text.max_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        tally.bad(place, f"cut short or damaged: {error}", text)
        return None


def _unpacked(name: str, file: IO[bytes], limit: int) -> bytes:
    if name.endswith(".gz"):
        with gzip.GzipFile(fileobj=file) as unpacked:
            return read_up_to(unpacked, limit)
    return read_up_to(file, limit)


def read_up_to(file: Any, limit: int) -> bytes:
    """All bytes, or one more than the limit, which shows that there are more."""
    parts, held = [], 0
    while held <= limit:
        part = file.read(min(2**20, limit + 1 - held))
        if not part:
            break
        parts.append(part)
        held += len(part)
    return b"".join(parts)


def _document(path: str, data: bytes, place: str, text: Text, tally: Tally) -> Document:
    return Document(path, tally.decode(data, text, place), place, {"folder": posixpath.dirname(path)})


def _fits(path: str, pattern: str | None) -> bool:
    """Whether a path or its last part matches the pattern; without a pattern, whether it is not hidden."""
    if pattern is None:
        return not any(p.startswith(".") and p not in (".", "..") for p in path.split("/")) and "__MACOSX" not in path
    base = posixpath.basename(path)
    return any(fnmatchcase(name, p) for name in (path, base) for p in (pattern, pattern.removeprefix("**/")))


def _nothing_fits(name: str, pattern: str | None, n_files: int) -> str:
    if pattern is None or n_files == 0:
        return f"{name} has no files"
    return f"{name}: none of its {n_files:,} files fits the pattern {pattern!r}"
