"""Files and folders: their names and their stamps."""

from __future__ import annotations

import io
import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest

from bnp_dask.core import location
from bnp_dask.core.location import (
    VARIABLE,
    Contact,
    Location,
    NoAnswerError,
    _copy_if_needed,
    _Discreet,
    _gives_parts,
    _remove,
    _texts_in,
    answer_seconds,
    contact_of,
)
from bnp_dask.errors import DataError, SettingError


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


def test_parts_of_a_location(tmp_path):
    place = Location.of(tmp_path / "a" / "b.csv")
    assert place.is_local and place.basename == "b.csv" and place.name == str(tmp_path / "a" / "b.csv")
    assert place.child("c", "d").url == f"{place.url}/c/d" and place.sibling("e").url == str(tmp_path / "a" / "e")
    far = Location.of("memory://bucket/folder/")
    assert not far.is_local and far.url == "memory://bucket/folder" and far.name == "memory://bucket/folder/"
    assert far.child("x").name == "memory://bucket/folder/x" and repr(far) == "Location('memory://bucket/folder/')"
    with pytest.raises(SettingError, match=r"storage_options: found a list; needs a mapping"):
        Location.of("memory://bucket", ["anon"])
    with pytest.raises(DataError, match=r"nowhere://x: cannot be opened \(ValueError"):
        Location.of("nowhere://x")


@pytest.mark.parametrize("is_far", [False, True])
def test_verbs_of_a_file_here_and_far(tmp_path, url, is_far):
    folder = url if is_far else str(tmp_path / "data")
    fs, root = fsspec.core.url_to_fs(folder)
    fs.makedirs(root)
    fs.pipe_file(f"{root}/a.txt", b"words")
    place, none = Location.of(f"{folder}/a.txt"), Location.of(f"{folder}/none.txt")
    assert place.exists() and Location.of(folder).exists() and not none.exists()
    assert Location.of(folder).is_dir() and not place.is_dir()
    assert (place.size(), place.size_if_any(), none.size_if_any()) == (5, 5, None)
    assert place.content() == b"words"
    with place.open() as file:
        assert file.read() == b"words"
    with pytest.raises(FileNotFoundError):
        none.content()
    assert Location.of(folder).names() == ["a.txt"] and none.names() == []
    place.require()
    with pytest.raises(DataError, match=r"none.txt: no such file or folder$"):
        none.require()
    with pytest.raises(DataError, match=r"b.txt: no such file or folder.*a\.txt"):
        Location.of(f"{folder}/b.txt").require()
    with pytest.raises(DataError, match=r"two words: no such file or folder.*a text goes in as a list: \[text\]"):
        Location.of(f"{folder}/two words").require()
    place.remove()
    assert not place.exists()
    with pytest.raises(FileNotFoundError):
        place.remove()


def test_storage_that_refuses_is_named_with_what_it_refused(url, monkeypatch):
    place = Location.of(f"{url}/a.txt")
    fsspec.filesystem("memory").pipe_file(f"{url}/a.txt".removeprefix("memory:/"), b"words")

    def refused(*args, **more):
        raise OSError(5, "Input/output error")

    for verb, words, use in (
        ("rm", "cannot be removed", place.remove),
        ("info", "cannot be reached", place.exists),
        ("isdir", "cannot be read", place.is_dir),
        ("size", "cannot be read", place.size),
        ("cat_file", "cannot be read", place.content),
        ("find", "cannot be read", lambda: Location.of(url).files((".txt",))),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(type(fsspec.filesystem("memory")), verb, refused)
            with pytest.raises(
                DataError, match=rf"{place.name if verb != 'find' else url}: {words} \(OSError: Input/output"
            ):
                use()


def test_what_has_no_end_or_is_read_once_is_no_data(tmp_path):
    with pytest.raises(DataError, match="/dev/zero: is a device; needs a file or folder"):
        Location.of("/dev/zero").require()
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "-"):
        with pytest.raises(DataError, match=f"{name}: is a pipe, and data are read more than once"):
            Location.of(tmp_path / name).require()


def test_secrets_of_options_are_in_no_error_and_short_texts_are_no_secrets():
    place = Location.of("memory://bucket/x", {"key": "abcdef", "more": [{"token": "secret-token"}, 3], "region": "eu"})
    for kind, told in ((PermissionError, PermissionError), (ValueError, ValueError), (KeyError, OSError)):
        with pytest.raises(told) as caught, place.discreet():
            raise kind("eu refuses abcdef and secret-token")
        assert "abcdef" not in str(caught.value) and "secret-token" not in str(caught.value)
        assert "eu refuses" in str(caught.value)
    error = ValueError("eu refuses")
    with pytest.raises(ValueError, match="eu refuses") as caught, place.discreet():
        raise error
    assert caught.value is error
    assert list(_texts_in({"a": ("abcdef", b"123456", "abcde"), "b": 123456})) == ["abcdef"]


def test_a_file_whose_errors_are_discreet_is_a_file(url):
    key = f"{url}/secret"
    fsspec.filesystem("memory").pipe_file(key.removeprefix("memory:/"), bytes(range(100)))
    options = {"token": "secret-token"}
    inner = fsspec.open(key, "rb").open()
    file = _Discreet(inner, Location(key, options))
    assert file.readable() and file.seekable() and file.tell() == 0
    buffer = bytearray(b"x" * 8)
    assert file.seek(97) == 97 and file.readinto(buffer) == 3 and bytes(buffer) == b"abcxxxxx"
    assert file.seek(-2, os.SEEK_END) == 98 and file.tell() == 98

    def fails(*args):
        raise OSError("secret-token expired")

    for name, use in (("read", lambda file: file.readinto(buffer)), ("seek", lambda file: file.seek(0))):
        own = _Discreet(SimpleNamespace(**{name: fails}, close=lambda: None), Location(key, options))
        with pytest.raises(DataError, match=r"secret: cannot be read \(OSError: .* expired\)") as caught:
            use(own)
        assert "secret-token" not in str(caught.value)
    own.close()
    assert own.closed
    inner.close()


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_the_time_for_a_first_answer_is_a_positive_number(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(SettingError, match=rf"{VARIABLE}='{text}': needs a positive number of seconds, such as 7"):
        answer_seconds()
    monkeypatch.setenv(VARIABLE, "0.5")
    assert answer_seconds() == 0.5
    monkeypatch.setenv(VARIABLE, "")
    assert answer_seconds() == 7.0


def test_storage_is_waited_for_until_it_has_answered_once(monkeypatch):
    monkeypatch.setenv(VARIABLE, "0.05")
    now, contact, asked, let_go = [100.0], Contact(), [], threading.Event()

    def silent():
        asked.append("silent")
        let_go.wait(20)

    def missing(cause=None):
        asked.append("missing")
        raise FileNotFoundError("x") from cause

    monkeypatch.setattr(location.time, "monotonic", lambda: now[0])
    for _ in range(2):
        with pytest.raises(NoAnswerError, match=r"no answer in 0.05 s; .*BNP_DASK_STORAGE_SECONDS=60 waits"):
            contact.ask(silent)
    assert asked == ["silent"]  # not asked again for two seconds
    now[0] += 2.0
    with pytest.raises(NoAnswerError):
        contact.ask(silent, until=100.0)  # a moment that has passed
    assert len(asked) == 2 and not contact.is_made
    now[0] += 2.0
    with pytest.raises(FileNotFoundError):
        contact.ask(lambda: missing(ConnectionError("refused")))
    assert not contact.is_made
    for answer in (missing, lambda: missing(FileNotFoundError("y"))):
        other = Contact()
        with pytest.raises(FileNotFoundError):
            other.ask(answer)
        assert other.is_made

    def denied():
        raise PermissionError

    other = Contact()
    with pytest.raises(PermissionError):
        other.ask(denied)
    assert other.is_made
    assert contact.ask(lambda: 7) == 7 and contact.is_made
    assert contact.ask(threading.current_thread) is threading.current_thread()  # in no thread of its own now
    let_go.set()
    assert contact_of("s3://a", "x") is contact_of("s3://a", "x") is not contact_of("s3://a")


@pytest.mark.parametrize(
    ("size", "answer", "gives"), [(0, b"", True), (1, b"", True), (9, b"i", True), (9, b"", False)]
)
def test_whether_a_server_gives_parts_is_seen_by_its_last_byte(size, answer, gives):
    sought = []

    class File(io.BytesIO):
        def seek(self, place, whence=0):
            sought.append(place)
            if answer == b"whole":
                raise ValueError("no parts")
            return super().seek(place, whence)

    fs = SimpleNamespace(open=lambda path: File(b"\0" * (size - 1) + answer))
    assert _gives_parts(fs, "x", size) == gives
    assert sought == ([size - 1] if size > 1 else [])


def test_a_copy_of_a_whole_file_is_kept_as_long_as_it_is_needed():
    class Server:
        def get_file(self, path, name):
            Path(name).write_bytes(b"words")

    fs = Server()
    copy = _copy_if_needed(fs, f"folder/{'x' * 99}.csv.gz", None, ("today",))
    assert _copy_if_needed(fs, f"folder/{'x' * 99}.csv.gz", None, ("today",)) is copy
    assert Path(copy.name).read_bytes() == b"words" and copy.name.endswith("xx.csv.gz")
    name = copy.name
    del copy
    _copy_if_needed.cache_clear()
    assert not os.path.exists(name)
    _remove(name)
