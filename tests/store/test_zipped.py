"""Zip archives of the store are those of everybody."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

import numpy as np
import pytest

from bnp_dask.store import zipped
from bnp_dask.store.files import pack, unpack
from bnp_dask.store.zipped import Members, contents


def archive(members, comment=b""):
    table = Members()
    pieces = [
        piece for name, data in members.items() for piece in (table.head(name, zlib.crc32(data), len(data)), data)
    ]
    return b"".join([*pieces, table.end(comment)])


MEMBERS = {"a": b"some", "folder/b": b"", "ä.npy": bytes(1000)}


@pytest.mark.parametrize(("fits", "few"), [(2**32, 2**16), (4, 2**16), (0, 2**16), (2**32, 2)])
def test_pythons_reader_opens_what_is_written(monkeypatch, fits, few):
    """Also in the form of archives above 4 GB, or of many members."""
    monkeypatch.setattr(zipped, "_FITS", fits)
    monkeypatch.setattr(zipped, "_FEW", few)
    data = archive(MEMBERS, b"a comment")
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        assert file.testzip() is None
        assert {name: file.read(name) for name in file.namelist()} == MEMBERS
        assert file.comment == b"a comment"
    assert {name: bytes(view) for name, view in contents(data).items()} == MEMBERS


@pytest.mark.parametrize("zip64", [False, True])
def test_archives_of_pythons_writer_are_read(zip64):
    """Versions up to 0.2.0 wrote with it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name, data in MEMBERS.items():
            with file.open(zipfile.ZipInfo(name), "w", force_zip64=zip64) as member:
                member.write(data)
    assert {name: bytes(view) for name, view in contents(buffer.getvalue()).items()} == MEMBERS


def test_what_is_no_archive_of_ours_is_refused():
    data = archive(MEMBERS)
    compressed, later = bytearray(data), bytearray(data)
    compressed[8], later[6] = 8, 8
    for wrong in (b"", b"PK", data[:40], data[:900], bytes(compressed), bytes(later), b"x" + data):
        with pytest.raises((ValueError, struct.error)):
            contents(wrong)


def test_numpy_opens_what_is_packed():
    arrays = {"x": np.arange(6.0).reshape(2, 3), "y/z": np.array("text"), "none": np.zeros((0, 3), np.int8)}
    data = pack(arrays, {"n": 1})
    assert data == pack(arrays, {"n": 1})
    found = np.load(io.BytesIO(data))
    back, meta = unpack(data, "here")
    assert meta == {"n": 1} and set(back) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[f"array/{name}"], array)
        np.testing.assert_array_equal(back[name], array)
        assert back[name].dtype == array.dtype and back[name].shape == array.shape
