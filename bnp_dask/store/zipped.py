"""Zip archives of members that are not compressed: written from start to end, and read where they lie.

Of Python's ``zipfile`` each member takes as long as some thousand numbers, and a checkpoint has dozens.
"""

from __future__ import annotations

import struct

_LOCAL, _CENTRAL, _END, _END_64, _LOCATOR = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_LOCAL_HEAD = struct.Struct("<4s5H3I2H")
_CENTRAL_HEAD = struct.Struct("<4s6H3I5H2I")
_END_HEAD = struct.Struct("<4s4H2IH")
_END_64_HEAD = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_HEAD = struct.Struct("<4sIQI")
_SIZES_64 = struct.Struct("<2HQQ")
_SIZES_AND_PLACE_64 = struct.Struct("<2HQQQ")

_LARGE, _MANY = 2**32 - 1, 2**16 - 1
"""Stand for numbers that are said elsewhere, because they have no room where they were first meant to be."""

_FITS, _FEW = _LARGE, _MANY
"""Sizes and places, and numbers of members, that have room are below these."""

_VERSION = 45
_UTF8, _LATER = 1 << 11, 1 << 3
"""Flags: that names are UTF-8; that sizes follow the content."""

_FIRST_DAY = 0x21
"""1980-01-01, so that equal content gives equal bytes."""

_OWNERS = 0o600 << 16
"""Whoever unpacks a member may read and write it."""


class Members:
    """The members of an archive that is being written, in their order."""

    def __init__(self) -> None:
        self._central: list[bytes] = []
        self._at = 0

    def head(self, name: str, crc: int, size: int) -> bytes:
        """Bytes before the content of a member, of which CRC-32 and bytes are given; the content comes next."""
        raw, at = name.encode(), self._at
        facts = (_UTF8, 0, 0, _FIRST_DAY, crc)
        extra, short = b"", size
        if size >= _FITS:
            extra, short = _SIZES_64.pack(1, 16, size, size), _LARGE
        local = _LOCAL_HEAD.pack(_LOCAL, _VERSION, *facts, short, short, len(raw), len(extra)) + raw + extra
        more, place = b"", at
        if max(size, at) >= _FITS:
            more, short, place = _SIZES_AND_PLACE_64.pack(1, 24, size, size, at), _LARGE, _LARGE
        lengths = (short, short, len(raw), len(more), 0, 0, 0, _OWNERS, place)
        self._central.append(_CENTRAL_HEAD.pack(_CENTRAL, 3 << 8 | _VERSION, _VERSION, *facts, *lengths) + raw + more)
        self._at += len(local) + size
        return local

    def end(self, comment: bytes = b"") -> bytes:
        """Bytes after the last member."""
        central, count = b"".join(self._central), len(self._central)
        size, place = len(central), self._at
        if count >= _FEW or max(size, place) >= _FITS:
            facts = (44, _VERSION, _VERSION, 0, 0, count, count, size, place)
            central += _END_64_HEAD.pack(_END_64, *facts) + _LOCATOR_HEAD.pack(_LOCATOR, 0, place + size, 1)
            count, size, place = _MANY, _LARGE, _LARGE
        return central + _END_HEAD.pack(_END, 0, 0, count, count, size, place, len(comment)) + comment


def contents(data: bytes) -> dict[str, memoryview]:
    """Content of each member, where it lies; ValueError or struct.error where there are other members than ours."""
    view, at, found = memoryview(data), 0, {}
    while data.startswith(_LOCAL, at):
        _, _, flags, method, _, _, _, _, size, n_name, n_extra = _LOCAL_HEAD.unpack_from(data, at)
        start = at + _LOCAL_HEAD.size
        name = bytes(view[start : start + n_name]).decode()
        start += n_name
        if method or flags & _LATER:
            raise ValueError(f"member {name!r} is compressed, or nobody knows how long it is")
        if size == _LARGE:
            _, _, size, _ = _SIZES_64.unpack_from(data, start)
        at = start + n_extra + size
        if at > len(data):
            raise ValueError(f"member {name!r} is cut off")
        found[name] = view[start + n_extra : at]
    if not data.startswith(_CENTRAL, at):
        raise ValueError("there is something else between the members")
    return found
