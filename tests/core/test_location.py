"""Files and folders: their names and their stamps."""

from __future__ import annotations

import os
from dataclasses import replace

import fsspec
import pytest

from bnp_dask.core.location import Location
from bnp_dask.errors import DataError


def write(folder):
    for name, data in (("b/c/two", b"22"), ("a", b"1"), ("b/three", b"333")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("text", ["x.npy", "./x.npy", "file://{}/x.npy"])
def test_a_location_is_absolute_and_is_called_what_the_user_wrote(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    text = text.format(tmp_path)
    place = Location.of(text)
    assert (place.url, place.name, place.is_local) == (str(tmp_path / "x.npy"), text, True)
    assert place.basename == "x.npy"


def test_stamps_of_a_folder_tell_all_files_below_it_once(tmp_path):
    write(tmp_path)
    os.symlink(tmp_path, tmp_path / "b" / "up")
    os.symlink(tmp_path / "b" / "c", tmp_path / "d")
    found = {name: (size, time) for name, size, time in Location.of(tmp_path).stamps()}
    own = {f"/{name}": (tmp_path / name).stat() for name in ("a", "b/three")}
    assert {name: (facts.st_size, str(facts.st_mtime_ns)) for name, facts in own.items()}.items() <= found.items()
    twice = [name for name in found if name.endswith("two")]
    assert len(found) == 3 and len(twice) == 1 and found[twice[0]][0] == 2


def test_stamps_of_a_file_are_its_own(tmp_path):
    write(tmp_path)
    facts = (tmp_path / "a").stat()
    assert list(Location.of(tmp_path / "a").stamps()) == [("", 1, str(facts.st_mtime_ns))]


def test_stamps_of_far_files_are_told_as_those_of_near_ones(url):
    fs, folder = fsspec.filesystem("memory"), url.removeprefix("memory:/")
    for name, data in (("b/two", b"22"), ("a", b"1")):
        fs.pipe_file(f"{folder}/{name}", data)
    assert [(name, size) for name, size, _ in Location.of(url).stamps()] == [("/a", 1), ("/b/two", 2)]
    ((name, size, time),) = Location.of(f"{url}/b/two").stamps()
    assert (name, size) == ("", 2)
    assert time
    assert Location.of(url).names() == ["a", "b"]
    assert [place.url for place in Location.of(url).files(("o",))] == [f"{url}/b/two"]


@pytest.mark.parametrize("far", [False, True])
def test_files_of_a_folder_are_sorted_and_neither_hidden_nor_left_out(tmp_path, url, far):
    place = Location.of(url) if far else Location.of(tmp_path)
    names = ["b/two.csv", "a.csv", "a.txt", ".c.csv", "_d.csv", "b/.e/f.csv", "_g/h.csv", "c.parquet"]
    fs, folder = place.filesystem()
    for name in names:
        fs.makedirs(f"{folder}/{name}".rpartition("/")[0], exist_ok=True)
        fs.pipe_file(f"{folder}/{name}", b"1")

    def found(place, *suffixes):
        return [file.url.removeprefix(place.url + "/") for file in place.files(suffixes)]

    assert found(place, ".csv") == ["a.csv", "b/two.csv"]
    assert found(place, ".csv", ".parquet") == ["a.csv", "b/two.csv", "c.parquet"]
    some = replace(place, only=frozenset({f"{place.url}/b/two.csv", f"{place.url}/c.parquet"}))
    assert found(some, ".csv", ".parquet") == ["b/two.csv", "c.parquet"]
    assert found(replace(place, only=frozenset()), ".csv") == []


def test_what_is_not_there_is_told_with_the_nearest_name(tmp_path):
    write(tmp_path)
    Location.of(tmp_path / "a").require()
    with pytest.raises(DataError, match="no such file or folder.*three"):
        Location.of(tmp_path / "b" / "thre").require()
