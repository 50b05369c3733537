"""Storage that cannot be reached, or refuses: an error of this package that names the place and the reason, in time."""

from __future__ import annotations

import importlib
import threading

import numpy as np
import pytest
from fsspec import AbstractFileSystem

import bnp_dask as bnp
from bnp_dask.core.location import Location
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.base import may_pass


class LibraryError(Exception):
    """As storage libraries have them."""

    __module__ = "botocore.exceptions"


class Down(AbstractFileSystem):
    """A file system that fails in a way of the test's choice."""

    error: BaseException = LibraryError("no credentials")
    hangs = threading.Event()
    cachable = False

    def info(self, path, **more):
        if path.startswith("hangs"):
            self.hangs.wait(60)
        raise self.error

    ls = isdir = _open = find = info


@pytest.fixture
def down(monkeypatch):
    monkeypatch.setitem(importlib.import_module("fsspec.registry")._registry, "down", Down)
    monkeypatch.setattr(Down, "hangs", threading.Event())
    yield Down
    Down.hangs.set()


@pytest.mark.parametrize(
    "error", [LibraryError("no credentials"), KeyError("bucket"), OSError(5, "Input/output error"), AttributeError("x")]
)
def test_whatever_a_library_raises_names_the_place(down, monkeypatch, error):
    monkeypatch.setattr(Down, "error", error)
    for read in (bnp.as_source, lambda url: bnp.ingest(url, "memory://never.zarr")):
        with pytest.raises(DataError, match=rf"down://b/x\.zarr: cannot be reached \({type(error).__name__}"):
            read("down://b/x.zarr")
    place = Location.of("down://b/x.zarr")
    for ask in (place.is_dir, place.size, place.open, lambda: place.files((".zarr",))):
        with pytest.raises(DataError, match=r"down://b/x\.zarr: cannot be read"):
            ask()


def test_only_what_may_pass_is_worth_another_try(down, monkeypatch):
    for error, passes in ((LibraryError(), True), (TimeoutError(), True), (KeyError("x"), False)):
        monkeypatch.setattr(Down, "error", error)
        with pytest.raises(DataError) as caught:
            Location.of("down://b/x.npy").exists()
        assert may_pass(caught.value) is passes


def test_storage_that_does_not_answer_is_not_waited_for(down, monkeypatch):
    monkeypatch.setenv("BNP_DASK_STORAGE_SECONDS", "0.2")
    with pytest.raises(DataError, match=r"no answer in 0\.2 s; are there a network and credentials"):
        Location.of("down://hangs/x.npy").exists()


def test_a_server_that_refuses_is_told_from_a_file_that_is_not_there(down, monkeypatch):
    """What fsspec says of a web server: not found, because of something."""
    missing, refused = FileNotFoundError("x"), FileNotFoundError("x")
    refused.__cause__ = ConnectionRefusedError("the line is down")
    monkeypatch.setattr(Down, "error", missing)
    assert not Location.of("down://b/x.npy").exists()
    monkeypatch.setattr(Down, "error", refused)
    with pytest.raises(DataError, match="cannot be reached .*the line is down"):
        Location.of("down://b/x.npy").exists()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("nosuchprotocol://x/y", DataError),
        ("zip://x.npy::none.zip", DataError),
        ("zip://::", DataError),
        ("a\0b.npy", SettingError),
        ("x" * 300, SettingError),
        ("~no-such-user/x.npy", SettingError),
        ("", SettingError),
        ("/dev/zero", DataError),
    ],
)
def test_places_where_nothing_can_lie(path, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((3, 2)))
    for use in (bnp.as_source, lambda p: bnp.ingest(p, "y.zarr"), lambda p: bnp.as_source("x.npy", weights=p + ".npy")):
        with pytest.raises((DataError, SettingError)):
            use(path)
    with pytest.raises(kind):
        bnp.as_source(path)


def test_a_file_of_the_same_size_in_a_store_that_was_written_again_is_another(monkeypatch):
    class Store:
        version = "one"

        def isdir(self, path):
            return False

        def info(self, path):
            return self.find(path, detail=True)[path]

        def find(self, path, detail):
            return {path: {"name": path, "size": 8, "ETag": self.version}}

    store = Store()
    monkeypatch.setattr(Location, "filesystem", lambda place: (store, "/bucket/x.npy"))
    place = Location("memory://bucket/x.npy")
    before = list(place.stamps())
    assert before == list(place.stamps()) == [("", 8, "one")]
    store.version = "two"
    assert list(place.stamps()) != before
