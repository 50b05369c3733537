"""Broken files are refused with the package's own errors, whatever is broken about them.

``BNP_FUZZ_MINUTES=10 pytest -m long tests/faults/test_fuzz.py`` tries new ones; what it finds goes into ``FOUND``.
"""

from __future__ import annotations

import os
import random
import time
import traceback
import warnings

import pytest

from bnp_dask.errors import BnpDaskError
from tests.faults.fuzz import KINDS, attack, prepare

MINUTES = float(os.environ.get("BNP_FUZZ_MINUTES", "10"))
EVERY_TIME = 12
"""Cases of each kind that every test run tries."""

FOUND = [
    ("npy", b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': (\n", "an open bracket in a header"),
    ("idx", b"\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "more than there is memory for"),
    ("idx", b"\0\0\x08\x02\0\0\0\x01\x7f\xff\xff\xff", "a row of two gigabytes"),
    ("text_zip", b"PK\3\4" + bytes(60), "an archive without a directory"),
    ("text_zip", b"PK\5\6", "the end of an archive alone"),
    ("npz", b"PK\3\4" + bytes(60), "an archive without a directory"),
    ("job", b"[" * 20_000, "depth"),
    ("job", b"[]: 1\n", "a list as a name"),
    ("job", b"model: {{a: 1}: 2}\n", "a mapping as a name"),
    ("uci", b"2147483648\n8\n2\n1 1 2\n2 3 1\n", "more documents than there is memory for"),
    ("uci", b"99999999999\n8\n2\n1 1 2\n99999999998 3 1\n", "a gap of as many"),
]
"""Kind, content and what is wrong with it, of files that once crashed a reader."""

METADATA = [b"{", b"\xff", b"[]", b'{"zarr_format": 33}', b'{"zarr_format": 3, "node_type": "array"}', b"null", b""]
"""What once crashed the opening of a Zarr store."""


@pytest.mark.parametrize(("kind", "content", "what"), FOUND)
def test_found_before(tmp_path, kind, content, what):
    right = prepare(kind, tmp_path)
    (entry,) = right.iterdir()
    entry.write_bytes(content)
    with pytest.raises(BnpDaskError):
        KINDS[kind][1](right)


@pytest.mark.parametrize("content", METADATA)
@pytest.mark.parametrize("kind", ["zarr_rows", "ingested", "ingested_counts", "model"])
def test_metadata_found_before(tmp_path, kind, content):
    right = prepare(kind, tmp_path)
    for path in sorted(right.rglob("zarr.json")):
        held = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(BnpDaskError):
            KINDS[kind][1](right)
        path.write_bytes(held)
    KINDS[kind][1](right)


def check(kind, folder, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        error = attack(kind, folder, seed)
    assert error is None, f"seed {seed}: " + "".join(traceback.format_exception(error)[-3:])


def test_an_archive_whose_members_lie_before_its_start(tmp_path):
    prepare("text_zip", tmp_path)
    check("text_zip", tmp_path, 21113644)


@pytest.mark.parametrize("kind", KINDS)
def test_broken_files(tmp_path, kind):
    prepare(kind, tmp_path)
    for seed in range(EVERY_TIME):
        check(kind, tmp_path, seed)


@pytest.mark.long
@pytest.mark.timeout(MINUTES * 60 + 120)
@pytest.mark.parametrize("kind", KINDS)
def test_fuzz(tmp_path, kind):
    prepare(kind, tmp_path)
    rng, stop, n, crashes = random.Random(), time.monotonic() + MINUTES * 60, 0, {}
    while time.monotonic() < stop:
        seed, n = rng.randrange(10**9), n + 1
        try:
            check(kind, tmp_path, seed)
        except AssertionError as error:
            crashes.setdefault(str(error).splitlines()[-1][:150], []).append((kind, seed, str(error)))
    print(f"{kind}: {n} cases, {sum(map(len, crashes.values()))} crashes")
    for found in crashes.values():
        print(len(found), found[0][:2], found[0][2][-600:])
    assert not crashes
