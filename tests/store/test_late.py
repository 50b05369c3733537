"""Files of other machines that are seen a while after they were written, as on network file systems."""

from __future__ import annotations

import errno
import os
import shutil
import sys

import numpy as np
import pytest

from bnp_dask.errors import StoreError
from bnp_dask.store import RunStore, place
from bnp_dask.store.checkpoint import Listing
from bnp_dask.store.place import DamagedError, Extent, cannot, link, mapped, replacing

ARRAYS = {"a": np.arange(3.0)}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "LATE_PAUSES", (0.001,) * 4)
    made = RunStore.create(tmp_path / "run", {})
    yield made
    made.close()


@pytest.fixture
def late(store, monkeypatch):
    """``late(n)``: a summary and its receipt; the file is seen once its folder was listed ``n`` times."""

    def make(n):
        receipt = store.shared.put(3, 0, ARRAYS)
        file = store.summaries.path(3, 0, receipt)
        away = file.rename(store.path / "away")
        listed, original = [], os.listdir

        def listdir(folder):
            listed.append(folder)
            if len(listed) == n:
                away.rename(file)
            return original(folder)

        monkeypatch.setattr(os, "listdir", listdir)
        return receipt

    return make


def commit(store, receipt):
    store.load()
    store.commit({}, {}, [], Listing.of([(3, 0, receipt)]))


def test_a_summary_that_is_seen_late_is_committed(store, late):
    commit(store, late(3))
    assert RunStore.view(store.path).load() is not None


@pytest.mark.parametrize("reader", ["worker", "client"])
def test_a_summary_that_is_seen_late_is_read(store, late, reader):
    receipt = late(3)
    if reader == "worker":
        found, _ = store.shared.get(3, 0, receipt, late=True)
    else:
        found, _ = store.get_summary(3, 0, receipt)
    np.testing.assert_array_equal(found["a"], ARRAYS["a"])


def test_a_file_that_was_replaced_on_its_server_is_opened_again(store, late, monkeypatch):
    receipt = late(1)
    first, original = [True], os.open

    def open_(path, *rest, **more):
        if str(path).endswith(".npz") and first and os.path.exists(path):
            first.clear()
            raise OSError(errno.ESTALE, "Stale file handle")
        return original(path, *rest, **more)

    monkeypatch.setattr(os, "open", open_)
    commit(store, receipt)
    assert not first


def test_one_that_is_never_seen_is_an_error_that_speaks_of_mounts_and_not_of_room(store, late):
    with pytest.raises(StoreError, match=r"cannot sync \S+npz: No such file.*mount the same directory") as caught:
        commit(store, late(99))
    assert "room" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Make room,"),
        (errno.EDQUOT, "Make room,"),
        (errno.EACCES, "Give permission,"),
        (errno.EROFS, "Give permission,"),
        (errno.ESTALE, "mount the same directory"),
        (errno.EIO, "Look at the disk"),
    ],
)
def test_advice_follows_from_what_the_system_says(number, advice):
    assert advice in str(cannot("write", "run/x", OSError(number, os.strerror(number))))


# -- what a file system refuses -----------------------------------------------------------------------------------
DISK = place.Disk()


def refused(*args, **more):
    raise OSError(errno.EIO, "Input/output error")


def test_each_verb_of_a_directory_names_the_file_and_what_it_could_not_do(tmp_path):
    folder, none, below = tmp_path / "folder", tmp_path / "none", tmp_path / "file" / "below"
    folder.mkdir()
    (tmp_path / "file").write_bytes(b"words")
    for read in (DISK.read, DISK.read_late, DISK.glance, lambda path: DISK.part(path, 1, 3)):
        assert read(tmp_path / "file") in (b"words", b"ord")
        with pytest.raises(StoreError, match=f"cannot read {folder}: Is a directory. Look at the disk"):
            read(folder)
    for read in (DISK.read, DISK.glance, lambda path: DISK.part(path, 0, 1)):
        with pytest.raises(DamagedError, match=f"{none} is missing"):
            read(none)
    assert DISK.part(tmp_path / "file", 3, 9) == b"ds"
    for write in (DISK.write, DISK.create, lambda path, data: DISK.append(path, data, Extent())):
        with pytest.raises(StoreError, match=f"cannot write {below}: Not a directory"):
            write(below, b"")
        with pytest.raises(StoreError, match=f"cannot write {folder}"):
            write(folder, b"")
    with pytest.raises(StoreError, match=f"cannot make directory {below}: Not a directory"):
        DISK.make_folder(below)
    assert DISK.names(none) == [] and DISK.exists(folder) and not DISK.exists(none)
    with pytest.raises(NotADirectoryError):
        DISK.names(tmp_path / "file")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]  # nothing half written is left
    DISK.remove([none, folder, tmp_path / "file"])  # what cannot be removed stays
    assert os.listdir(tmp_path) == ["folder"]
    DISK.remove_tree(folder)
    DISK.remove_tree(none)
    assert os.listdir(tmp_path) == []


def test_many_files_are_removed_and_synced_as_one_is(tmp_path, monkeypatch):
    synced, files = [], [tmp_path / str(i % 3) / str(i) for i in range(50)]
    for file in files:
        DISK.make_folder(file.parent)
        DISK.write(file, b"")
    monkeypatch.setattr(place, "_sync", synced.append)
    DISK.sync(files)
    assert sorted(synced[:50]) == sorted(files) and synced[50:] != []
    assert sorted(synced[50:]) == [tmp_path / "0", tmp_path / "1", tmp_path / "2"]
    DISK.remove(files[:49])
    assert [file for file in files if file.exists()] == files[49:]
    DISK.sync([])


def test_a_file_written_once_is_written_again_only_if_it_is_another(tmp_path, monkeypatch):
    file, synced = tmp_path / "folder" / "file", []
    DISK.write_once(file, b"words")
    before = file.stat().st_mtime_ns
    DISK.write_once(file, b"words")
    assert file.stat().st_mtime_ns == before
    monkeypatch.setattr(os, "fsync", synced.append)
    DISK.write_once(file, b"other")  # a checkpoint may refer to it: its content is on the disk before its name
    assert file.read_bytes() == b"other" and len(synced) == 1
    DISK.write_once(file.with_name("new"), b"new")
    assert len(synced) == 1  # a commit does this
    with pytest.raises(ZeroDivisionError), replacing(file) as out:
        out.write(b"half")
        raise ZeroDivisionError
    assert file.read_bytes() == b"other" and sorted(os.listdir(file.parent)) == ["file", "new"]


def test_temporary_files_of_killed_writers_go_wherever_they_are(tmp_path):
    for name in (".tmp-1-a", "a", "folder/.tmp-2-b", "folder/deep/.tmp-3-c", "folder/b.tmp-4"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    DISK.remove_temporary(tmp_path)
    assert sorted(file.name for file in tmp_path.rglob("*") if file.is_file()) == ["a", "b.tmp-4"]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_gets_a_second_name(tmp_path, monkeypatch, has_links):
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_bytes(b"words")
    other.write_bytes(b"older")
    if not has_links:
        monkeypatch.setattr(os, "link", refused)
    link(file, other)
    assert other.read_bytes() == b"words" and other.samefile(file) == has_links
    with pytest.raises(FileNotFoundError):
        link(tmp_path / "none", other)
    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(shutil, "copyfile", refused)
    with pytest.raises(OSError, match="Input/output"):
        link(file, other)
    assert sorted(os.listdir(tmp_path)) == ["file", "other"]


def test_a_mapped_file_is_waited_for_and_is_the_readers_own(tmp_path, monkeypatch):
    file, listed = tmp_path / "file", []
    monkeypatch.setattr(place, "LATE_PAUSES", (0.001,) * 4)
    monkeypatch.setattr(
        os, "listdir", lambda folder: listed.append(folder) or len(listed) < 2 or file.write_bytes(b"ab")
    )
    found = mapped(file)
    assert found.tolist() == [97, 98] and listed == [tmp_path] * 2
    found[0] = 0
    assert file.read_bytes() == b"ab" and found.dtype == np.uint8
    with pytest.raises(FileNotFoundError):
        mapped(tmp_path / "none")
    assert len(listed) == 6


def test_a_system_without_locks_is_warned_of_and_one_that_refuses_the_file_is_an_error(tmp_path, monkeypatch):
    import fcntl

    with pytest.raises(StoreError, match="cannot write .*none/LOCK: No such file"):
        DISK.lock(tmp_path / "none")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refused)
        with pytest.raises(StoreError, match="cannot write .*LOCK: Input/output error"):
            DISK.lock(tmp_path)
    lock = DISK.lock(tmp_path)  # the one that failed let go
    assert (tmp_path / "LOCK").read_text().startswith(f"process {os.getpid()} on ")
    with pytest.raises(StoreError, match=f"{tmp_path} is being written by process {os.getpid()} on "):
        DISK.lock(tmp_path)
    lock.require()
    with lock.committing():
        assert lock.fence(refused, 7) == 7
    lock.release()
    lock.release()
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refused)
        with pytest.warns(UserWarning, match=rf"file system of {tmp_path} has no locks \(Input/output error\)"):
            DISK.lock(tmp_path).release()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "fcntl", None)
        with pytest.warns(UserWarning, match=f"no other process writes to {tmp_path}$"):
            DISK.lock(tmp_path).release()
    DISK.lock(tmp_path).release()


def test_links_out_of_a_run_are_refused_wherever_they_are(tmp_path):
    own = tmp_path / "run"
    (own / "deep" / "er").mkdir(parents=True)
    (own / "deep" / "inside").symlink_to(own / "deep" / "er")
    (own / "deep" / "itself").symlink_to(own)
    DISK.require_own(own)
    DISK.require_own(tmp_path / "none")
    (tmp_path / "run2").mkdir()  # whose name begins with that of the run
    (own / "deep" / "er" / "out").symlink_to(tmp_path / "run2")
    with pytest.raises(StoreError, match="er/out is a link to .*run2, out of the run directory; nothing was written"):
        DISK.require_own(own)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot read .*file: Not a directory"):
        DISK.require_own(tmp_path / "file")
