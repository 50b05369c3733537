"""Runs on object stores: what is put, what is refused, and who may write; on fsspec's memory, which has conditions."""

from __future__ import annotations

import json
import os
import re
import time
import uuid
import zlib
from dataclasses import replace
from pathlib import PurePosixPath
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from bnp_dask.errors import StoreError
from bnp_dask.store import DamagedError, Listing, RunStore, Versions, place, read_history, run
from bnp_dask.store.place import Key, place_of
from tests.stopping import Killed
from tests.store.test_run import B, commit, lap_of, put_all, run_lap, run_laps


@pytest.fixture
def dead(monkeypatch):
    """Whoever holds a lease has been killed."""
    monkeypatch.setattr(place.Holder, "lives", False)


@pytest.fixture
def elsewhere(monkeypatch):
    """Processes do not see each other, and leases are short."""
    monkeypatch.setattr(place, "_machine", lambda: "")
    monkeypatch.setattr(place, "SECONDS", 0.4)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(place, "PAUSES", (0.001,) * 4)


def kill(store):
    """End what a killed process would have ended: its thread."""
    if store is not None and store._lock is not None:
        store._lock._beats.stop()
        store._lock._thread.join()


# -- the plain way ------------------------------------------------------------------------------------------------
def test_laps_come_back(url):
    run_laps(url, 4)
    assert lap_of(url) == 3
    assert RunStore.view(url).settings == {"seed": 1}
    assert RunStore.exists(url) and not RunStore.exists(url + "2")
    assert len(read_history(url)) == 8


def test_only_what_two_checkpoints_need_is_kept(url):
    run_laps(url, 5)
    folder = Key(url)
    assert sorted(place_of(folder).names(folder / "checkpoints")) == [
        "00000004.json", "00000004.npz", "00000005.json", "00000005.npz",
    ]  # fmt: skip
    assert sorted(RunStore.view(url).summaries.keys()) == [(b, v) for b in range(B) for v in (3, 4)]


def test_a_run_ends_in_the_objects_that_a_directory_has_as_files(url, tmp_path):
    run_laps(url, 3)
    run_laps(tmp_path / "run", 3)
    objects_of, files = RunStore.view(url), RunStore.view(tmp_path / "run")
    for name in ("00000003.npz", "00000003.json"):
        place, key = place_of(objects_of.path), objects_of.path / "checkpoints" / name
        assert place.read(key) == (files.path / "checkpoints" / name).read_bytes()
    for entry in files.load().listing.entries():
        key, file = objects_of.summaries.path(*entry), files.summaries.path(*entry)
        assert place_of(key).read(key) == file.read_bytes()


def test_a_commit_takes_as_many_requests_whatever_the_number_of_batches(url, monkeypatch):
    asked = []
    original = place.Objects._again
    monkeypatch.setattr(place.Objects, "_again", lambda self, *args: asked.append(args[0]) or original(self, *args))
    counts = []
    for n in (10, 200):
        store = RunStore.create(f"{url}{n}", {})
        for lap in range(4):
            listing = Listing.of((b, lap, store.put_summary(b, lap, {"a": np.arange(2)})) for b in range(n))
            asked.clear()
            commit(store, lap, listing)
        counts.append(len(asked))
        store.close()
    assert counts[0] == counts[1] <= 12


def test_a_history_is_read_piece_by_piece_and_a_missing_one_is_told(url):
    run_laps(url, 3)
    folder = Key(url) / "history.jsonl"
    first, *_ = sorted(place_of(folder).names(folder))
    place_of(folder).remove([folder / first])
    with pytest.raises(StoreError, match=r"no checkpoint in .* is whole: .*history.jsonl is damaged"):
        RunStore.view(url).load()


def test_a_listing_that_lags_is_asked_for_again(url, monkeypatch):
    run_laps(url, 3)
    original, torn = MemoryFileSystem.ls, []

    def ls(self, path, detail=True, **more):
        found = original(self, path, detail, **more)
        if "history" in path and len(torn) < 2:
            torn.append(path)
            return found[:-1]
        return found

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    assert lap_of(url) == 2
    assert len(torn) == 2


@pytest.mark.parametrize("folder", ["checkpoints", "lock"])
def test_a_listing_without_the_newest_replaces_nothing(url, monkeypatch, folder):
    """The run goes on as it should, or is refused; who reads it later finds what was committed."""
    run_laps(url, 3)
    original = MemoryFileSystem.ls

    def ls(self, path, detail=True, **more):
        found = original(self, path, detail, **more)
        return [f for f in found if "00000003" not in str(f)] if path.endswith(folder) else found

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "ls", ls)
        store = RunStore.open(url)
        try:
            assert store.load().state["lap"] == (1 if folder == "checkpoints" else 2)
            if folder == "checkpoints":
                with pytest.raises(StoreError, match="is there already"):
                    store.commit({}, {}, [], Listing.of([]))
        finally:
            store.close()
    assert lap_of(url) == 2
    store = RunStore.open(url)
    store.load()
    run_lap(store, 3)
    store.close()
    assert lap_of(url) == 3


# -- kills --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["pipe_file", "rm"])
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_request_that_changes_something(url, monkeypatch, dead, name, after):
    """Kill lap 2 before (or after) the n-th request, for every n: load gives lap 1 or lap 2, and the run goes on."""
    original, seen = getattr(MemoryFileSystem, name), set()
    for n in range(100):
        own, calls = f"{url}{n}", [0]
        run_laps(own, 2)

        def call(self, *args, calls=calls, n=n, **more):
            calls[0] += 1
            if calls[0] > n:
                if after and calls[0] == n + 1:
                    original(self, *args, **more)
                raise Killed
            return original(self, *args, **more)

        store, finished = None, False
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, name, call)
            try:
                store = RunStore.open(own)
                store.load()
                run_lap(store, 2)
                finished = True
            except Killed:
                pass
        kill(store)
        seen.add(lap_of(own))
        store = RunStore.open(own)
        lap = store.load().state["lap"]
        run_lap(store, lap + 1)
        store.close()
        assert lap_of(own) == lap + 1
        if finished:
            break
    assert finished and n > 1
    assert seen == ({1, 2} if name == "pipe_file" else {2})  # nothing is removed before the commit


def test_what_a_killed_commit_left_is_never_part_of_another(url, monkeypatch, dead):
    """Arrays were put and no head: the next commit has another number, and its arrays are its own."""
    run_laps(url, 1)
    original = MemoryFileSystem.pipe_file

    def call(self, path, data, **more):
        if path.endswith("00000002.json"):
            raise Killed
        return original(self, path, data, **more)

    store = RunStore.open(url)
    store.load()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(MemoryFileSystem, "pipe_file", call)
        commit(store, 7, put_all(store, 7))
    kill(store)
    store = RunStore.open(url)
    assert store.load().number == 1
    run_lap(store, 1)
    store.close()
    assert RunStore.view(url).load().number == 3 and lap_of(url) == 1


# -- requests that fail ---------------------------------------------------------------------------------------------
def failing(monkeypatch, fails):
    """Let requests fail, before or after they are done, as ``fails(number)`` says: "", "before" or "after"."""
    count = [0]
    for name in ("pipe_file", "cat_file", "ls", "rm", "find"):
        original = getattr(MemoryFileSystem, name)

        def call(self, *args, original=original, **more):
            count[0] += 1
            how = fails(count[0])
            if how == "before":
                raise ConnectionError("reset by peer")
            found = original(self, *args, **more)
            if how == "after":
                raise TimeoutError("no answer")
            return found

        monkeypatch.setattr(MemoryFileSystem, name, call)


@pytest.mark.parametrize("how", ["before", "after"])
def test_one_request_of_five_fails_and_nothing_is_lost(url, monkeypatch, how):
    with monkeypatch.context() as patch:
        failing(patch, lambda n: how if n % 5 == 0 else "")
        run_laps(url, 3)
        assert lap_of(url) == 2
    assert lap_of(url) == 2


def test_a_lost_network_is_one_line_and_the_run_goes_on_when_it_is_back(url, monkeypatch):
    run_laps(url, 2)
    for n in range(1, 40, 3):
        store = RunStore.open(url)
        store.load()
        with monkeypatch.context() as patch:
            failing(patch, lambda count, n=n: "before" if count > n else "")
            problem = ""
            try:
                run_lap(store, 2)
            except StoreError as error:
                problem = str(error)
            if problem:
                assert re.fullmatch(
                    r"cannot .*ConnectionError: reset by peer.*everything saved before is unharmed", problem
                )
                with pytest.raises(StoreError, match=r"could not be finished before|reset by peer"):
                    commit(store, 2, Listing.of([]))
        store.close()
        assert lap_of(url) in (1, 2)
        if lap_of(url) == 2:
            break
    assert n >= 7
    store = RunStore.open(url)
    lap = store.load().state["lap"]
    run_lap(store, lap + 1)
    store.close()
    assert lap_of(url) == lap + 1


def test_no_permission_is_not_tried_again(url, monkeypatch):
    calls = []

    def denied(self, path, *args, **more):
        calls.append(path)
        raise PermissionError("Access Denied")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", denied)
    with pytest.raises(StoreError, match="PermissionError: Access Denied. Check network, credentials and permissions"):
        place_of(Key(url)).read(Key(url) / "x")
    assert len(calls) == 1


def test_an_object_is_created_once_whoever_asks_and_errors_name_it(url, monkeypatch):
    objects = place.objects_of(Key(url))
    key, below = Key(url) / "a", Key(url) / "folder" / "b"
    assert objects.create(key, b"words")
    assert objects.create(key, b"words")  # the answer of an earlier try was lost
    assert not objects.create(key, b"others")
    assert objects.get(key) == b"words" and objects.get_part(key, 1, 3) == b"ord"
    assert objects.get_part(key, 1, 0) == objects.get_part(below, 0, 0) == b""
    assert objects.get(below) is objects.get_part(below, 0, 3) is None
    objects.put(below, b"more")
    assert sorted(objects.names(Key(url))) == ["a", "folder"] and objects.names(Key(url) / "none") == []
    assert sorted(one.url for one in objects.below(Key(url))) == [key.url, below.url]
    assert objects.exists(Key(url) / "folder") and not objects.exists(Key(url) / "none")
    monkeypatch.setattr(place, "TOGETHER", 1)
    objects.remove([Key(url) / "none", key])
    assert objects.get(key) is None and objects.get(below) == b"more"

    def refused(self, *args, **more):
        raise PermissionError("Access Denied")

    for name, verb, ask in (
        ("rm", "remove", lambda: objects.remove([below])),
        ("pipe_file", "write", lambda: objects.put(below, b"")),
        ("pipe_file", "write", lambda: objects.create(Key(url) / "new", b"")),
        ("cat_file", "read", lambda: objects.get(below)),
        ("info", "read", lambda: objects.exists(below)),
        ("ls", "list", lambda: objects.names(Key(url))),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, name, refused)
            with pytest.raises(StoreError, match=f"cannot {verb} .*{Key(url).url}.*Access Denied"):
                ask()


def test_a_run_may_begin_where_nothing_is(url):
    """On an object store as in a directory; what is there is never replaced."""
    objects = place.objects_of(Key(url))
    run.require_new(Key(url))
    objects.put(Key(url) / "notes.txt", b"mine")
    with pytest.raises(StoreError, match="notes.txt"):
        run.require_new(Key(url))
    assert objects.get(Key(url) / "notes.txt") == b"mine"
    versions = Versions(Key(url))
    assert versions.current is None
    versions.write(3, {"checkpoint": 1})
    versions.point_at(3)
    assert versions.current == 3 and Versions(Key(f"{url}2")).current is None


# -- who writes -----------------------------------------------------------------------------------------------------
def test_a_second_writer_is_told_who_writes_and_until_when(url):
    store = RunStore.create(url, {})
    with pytest.raises(
        StoreError, match=r"being written by process \d+ on .* since .*good until 20\d\d-.*being renewed"
    ):
        RunStore.open(url)
    RunStore.view(url).load()
    store.close()
    RunStore.open(url).close()


def test_a_writer_on_another_machine_is_seen_by_its_beats(url, elsewhere):
    store = RunStore.create(url, {})
    with pytest.raises(StoreError, match="is being written by process"):
        RunStore.open(url)
    with pytest.raises(StoreError, match="is being written by process"):
        RunStore.create(url, {})
    store.close()
    RunStore.open(url).close()


def test_a_killed_writer_on_this_machine_is_not_waited_for(url, dead):
    store = RunStore.create(url, {})
    kill(store)
    started = time.monotonic()
    RunStore.open(url).close()
    assert time.monotonic() - started < place.SECONDS / 4


def test_who_comes_back_after_another_has_taken_over_commits_nothing(url, elsewhere):
    """It was stopped for longer than its lease: at its next commit, and at all later ones, it is told."""
    run_laps(url, 1)
    first = RunStore.open(url)
    first.load()
    kill(first)
    second = RunStore.open(url)
    assert second.load().state["lap"] == 0
    run_lap(second, 1)
    before = fsspec.filesystem("memory").find(url.removeprefix("memory://"))
    for _ in range(2):
        with pytest.raises(StoreError, match=r"taken over by process|could not be finished before"):
            run_lap(first, 1)
    first.close()
    run_lap(second, 2)
    second.close()
    assert lap_of(url) == 2
    assert set(before) & {f for f in before if "lock" in f}


@pytest.mark.parametrize("laps", [0, 1, 3])
def test_stopped_in_the_middle_of_a_commit(url, monkeypatch, elsewhere, laps):
    """It goes on where the number that it was about to take is taken, or taken and removed again since."""
    run_laps(url, 2)
    first = RunStore.open(url)
    first.load()
    original, second, is_late = place.Objects.create, [], []

    def late(self, key, data):
        if key.url.endswith("checkpoints/00000003.json") and not is_late:
            is_late.append(True)
            kill(first)
            second.append(RunStore.open(url))
            second[0].load()
            for lap in range(laps):
                run_lap(second[0], 2 + lap)
        return original(self, key, data)

    with monkeypatch.context() as patch:
        patch.setattr(place.Objects, "create", late)
        with pytest.raises(StoreError, match=r"is there already|taken over"):
            commit(first, 2, put_all(first, 2))
    first.close()
    run_lap(second[0], 2 + laps)
    second[0].close()
    assert lap_of(url) == 2 + laps


def test_one_who_took_over_and_failed_before_it_began_leaves_the_fence_to_the_next(url, monkeypatch, elsewhere):
    run_laps(url, 1)
    first = RunStore.open(url)
    first.load()
    kill(first)
    with monkeypatch.context() as patch, pytest.raises(StoreError, match="no network"):
        patch.setattr("bnp_dask.store.run.begin_session", lambda path: (_ for _ in ()).throw(StoreError("no network")))
        RunStore.open(url)
    third = RunStore.open(url)
    assert third.load().number == 1 and third._number == 2  # the number after the newest is taken
    third.close()
    with pytest.raises(StoreError, match=r"taken over"):
        run_lap(first, 1)
    assert lap_of(url) == 0


def test_old_claims_are_removed_and_their_holders_see_it(url, elsewhere):
    first = RunStore.create(url, {})
    kill(first)
    for _ in range(4):
        RunStore.open(url).close()
    folder = Key(url) / place.FOLDER
    assert sorted(place_of(folder).names(folder)) == [
        "00000004.beat", "00000004.json", "00000005.beat", "00000005.json",
    ]  # fmt: skip
    with pytest.raises(StoreError, match="taken over"):
        first.commit({}, {}, [], Listing.of([]))


def test_a_lease_is_renewed_until_it_is_released(url, elsewhere):
    store = RunStore.create(url, {})
    beat = Key(url) / place.FOLDER / "00000001.beat"
    seen, deadline = set(), time.monotonic() + 20
    while len(seen) < 3 and time.monotonic() < deadline:
        seen.add(place_of(beat).read(beat))
    assert len(seen) == 3
    store.close()
    assert json.loads(place_of(beat).read(beat)) == {"ended": True, "whole": True}


def test_a_store_without_conditions_is_refused(url, monkeypatch):
    original = MemoryFileSystem.pipe_file
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda self, path, data, **more: original(self, path, data))
    with pytest.raises(StoreError, match="creates an object that exists, in spite of the condition"):
        RunStore.create(url, {})


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    def missing(*args, **more):
        raise ImportError("Install gcsfs")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(StoreError, match=r"pip install 'bnp-dask\[gcs\]'"):
        RunStore.exists(f"gs://{uuid.uuid4().hex}/run")


def test_a_url_without_a_bucket():
    with pytest.raises(StoreError, match="names no bucket; needs one, such as s3://bucket/run"):
        RunStore.exists("s3://")


def test_a_lease_is_renewed_while_it_still_holds():
    """Whoever renews it late looks again whether it is still its own: half of its time is late."""
    waits = []
    beats = place._Beats(None, 1)
    beats.stopping.wait = lambda seconds: waits.append(seconds) or True
    beats.run()
    assert len(waits) == 1 and 2 * waits[0] < place.SECONDS


@pytest.mark.parametrize("path", ["a/b/c.json", "a/b", "a/b.tar.gz", "a/.hidden", "a/b.", "a/b c.zarr"])
def test_names_of_objects_are_taken_apart_as_paths_are(path):
    key, file = Key(f"s3://bucket/{path}"), PurePosixPath("/bucket") / path
    assert (key.protocol, key.bucket) == ("s3", "bucket")
    assert (key.name, key.stem) == (file.name, file.stem if not path.endswith(".") else "b")
    assert str(key.parent) == f"s3:/{file.parent}" and str(key / "x") == f"s3:/{file / 'x'}"
    assert key.absolute() == key and os.fspath(key) == str(key) == f"s3://bucket/{path}"
    if not path.endswith("."):
        assert str(key.with_suffix(".new")) == f"s3:/{file.with_suffix('.new')}"


def test_a_history_on_an_object_store_is_read_in_its_order_and_what_was_never_committed_is_not(url, monkeypatch):
    monkeypatch.setattr(place, "REQUESTS", 3)
    file, bucket = Key(url) / "rows", place.Bucket()
    extent, whole, extents = place.Extent(), b"", []
    for n in range(8):
        data = b"%d," % n * (n + 1)
        assert bucket.append(file, b"", extent) == extent
        bucket.append(file, b"of a killed writer", extent)
        extent, whole = bucket.append(file, data, extent), whole + data
        extents.append((extent, whole))
    bucket.write(file / "notes", b"of somebody else")
    for extent, whole in extents:
        assert extent == place.Extent(len(whole), zlib.crc32(whole))
        assert b"".join(bucket.pieces(file, extent)) == whole
    assert list(bucket.pieces(Key(url) / "none", place.Extent())) == []
    with pytest.raises(DamagedError, match=r"rows is damaged \(no pieces lead to its first 5 bytes\)"):
        list(bucket.pieces(file, place.Extent(5, 3)))


def test_a_glance_is_as_old_as_a_minute_and_tells_why_there_is_nothing(url, monkeypatch):
    file, bucket, now = Key(url) / "SESSION", place.Bucket(), [6000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with pytest.raises(DamagedError, match="SESSION is missing"):
        bucket.glance(file)
    bucket.write(file, b"first")
    with pytest.raises(DamagedError, match="SESSION is missing"):
        bucket.glance(file)
    now[0] += 60
    assert bucket.glance(file) == b"first"
    bucket.write(file, b"second")
    now[0] += 59
    assert bucket.glance(file) == b"first" and bucket.read(file) == bucket.read_late(file) == b"second"
    now[0] += 2
    assert bucket.glance(file) == b"second"
    now[0] += 60
    calls = []

    def reset(self, path, *args, **more):
        calls.append(path)
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", reset)
    for _ in range(2):
        with pytest.raises(DamagedError, match="cannot read .*SESSION: ConnectionError: reset by peer"):
            bucket.glance(file)
    assert len(calls) == place.GLANCES


def test_what_cannot_be_removed_from_a_bucket_only_wastes_space(url, monkeypatch):
    bucket = place.Bucket()
    keys = [Key(url) / name for name in ("a", "folder/b", "folder/deep/c", "folders")]
    for key in keys:
        bucket.write_once(key, b"")
        assert bucket.part(key, 0, 0) == bucket.read(key) == b""
    bucket.remove([])
    bucket.remove_tree(Key(url) / "none")
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "rm", lambda *args, **more: (_ for _ in ()).throw(PermissionError("no")))
        bucket.remove(keys[:1])
        bucket.remove_tree(Key(url) / "folder")
        patch.setattr(MemoryFileSystem, "find", lambda *args, **more: (_ for _ in ()).throw(PermissionError("no")))
        bucket.remove_tree(Key(url) / "folder")
    assert [bucket.exists(key) for key in keys] == [True] * 4
    bucket.remove_tree(Key(url) / "folder")
    assert [bucket.exists(key) for key in keys] == [True, False, False, True]
    for read in (bucket.read, lambda key: bucket.part(key, 0, 1)):
        with pytest.raises(DamagedError, match="folder/b is missing"):
            read(keys[1])


@pytest.mark.parametrize("error", [ValueError, TypeError, PermissionError, NotImplementedError, ImportError])
def test_what_will_not_pass_is_asked_once_and_what_may_several_times(url, monkeypatch, error):
    objects, calls = place.objects_of(Key(url)), []
    assert objects is place.objects_of(Key(url) / "deep" / "er")
    objects.put(Key(url) / "a", b"words")

    class NoCredentialsError(Exception):
        pass

    for kind, n_tries in ((error, 1), (NoCredentialsError, 1), (RuntimeError, 5), (ConnectionError, 5)):
        calls.clear()

        def fails(self, *args, kind=kind, **more):
            calls.append(args)
            raise kind("two\n  lines")

        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, "cat_file", fails)
            with pytest.raises(StoreError, match=rf"cannot read {url}/a: {kind.__name__}: two lines\. Check") as caught:
                objects.get(Key(url) / "a")
        assert len(calls) == n_tries and isinstance(caught.value.__cause__, kind)
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda *args, **more: (_ for _ in ()).throw(FileNotFoundError))
    with pytest.raises(StoreError, match=rf"cannot write {url}/a: FileNotFoundError: FileNotFoundError\."):
        objects.put(Key(url) / "a", b"")


# -- who holds a lease --------------------------------------------------------------------------------------------
def test_a_holder_is_here_and_lives_or_not(monkeypatch):
    this = place.Holder.this()
    assert re.fullmatch(rf"process {os.getpid()} on .+ since 20\d\d-\d\d-\d\dT[\d:]+\+00:00", this.who)
    assert this.process == os.getpid() and this.seconds == place.SECONDS
    if this.machine:
        assert this.is_here and this.lives
        assert not replace(this, started="1").lives  # another process has its number now
        assert not replace(this, process=2**22 + 1).lives
    assert not replace(this, machine="another").is_here and not replace(this, machine="").is_here

    def hidden(*args):
        raise PermissionError

    monkeypatch.setattr(os, "kill", hidden)
    assert this.lives
    monkeypatch.setattr(place, "_machine", lambda: "")
    assert not this.is_here and not replace(this, machine="").is_here


def test_a_lease_whose_last_beat_is_old_beats_before_it_is_believed(url, monkeypatch):
    store, beats = RunStore.create(url, {}), []
    lease, original = store._lock, place._Beats.beat
    lease._beats.stop()
    lease._thread.join()
    monkeypatch.setattr(place._Beats, "beat", lambda self: beats.append(self) or original(self))
    lease._beats.beaten = time.monotonic() - place.SECONDS / 2 + 5
    lease.require()
    assert not beats
    lease._beats.beaten -= 10
    lease.require()
    lease.require()
    assert len(beats) == 1 and time.monotonic() - lease._beats.beaten < 5
    lease._claims._objects.create(lease._claims.claim(lease.number + 1), json.dumps(vars(place.Holder.this())).encode())
    lease.require()  # it cannot have been lost while its beat is young
    lease._beats.beaten -= place.SECONDS
    for _ in range(2):
        with pytest.raises(
            StoreError, match=rf"has been taken over by process {os.getpid()} on .* sign of life for 45 s"
        ):
            lease.require()
    assert len(beats) == 3  # whoever has lost it looks each time


def test_a_claim_of_a_later_version_is_waited_for_and_then_taken(url, elsewhere, caplog):
    """Who holds it is not known, and how long its beats are good for is not either."""
    store = RunStore.create(url, {})
    kill(store)
    claims = store._lock._claims
    claims._objects.put(claims.claim(1), b'{"who": 3}')
    with caplog.at_level("INFO"):
        second = RunStore.open(url)
    assert any("waiting for up to 0.4 s whether its last writer still lives" in text for text in caplog.messages)
    assert second._lock.number == 2
    claims._objects.put(claims.beat(2), b"rotten")
    assert claims._signs(2) == {} and claims._holder(1) is None and claims._holder(9) is None
    assert "taken over by process" in str(claims.lost(1))
    assert "taken over by another process" in str(claims.lost(2))
    kill(second)
    claims._objects.put(claims.claim(2), b"rotten")
    third = RunStore.open(url)
    assert third._lock.number == 3
    third.close()
    fourth = RunStore.open(url)  # the one before ended in peace: no number is taken from it
    assert fourth._lock.number == 4 and not fourth._lock._owes_fence
    fourth.close()


def test_a_holder_that_ends_or_is_overtaken_while_another_waits(url, elsewhere, monkeypatch):
    store = RunStore.create(url, {})
    kill(store)
    claims, original, todo = store._lock._claims, time.sleep, []

    def sleep(seconds):
        if todo:
            todo.pop()()
        original(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    todo.append(lambda: claims._objects.create(claims.claim(2), b"{}"))
    with pytest.raises(StoreError, match=r"is being written by process \d+ on"):
        RunStore.open(url)
    todo.append(lambda: claims.leave(2, is_whole=True))
    again = RunStore.open(url)
    assert again._lock.number == 3 and not todo
    again.close()


def test_a_lease_that_cannot_be_renewed_is_told_and_tried_again(caplog):
    beats, asked = place._Beats(SimpleNamespace(folder="run"), 1), []
    answers = [False, False, True]
    beats.stopping.wait = lambda seconds: answers.pop(0)

    def beat():
        asked.append(beats)
        raise StoreError("no network")

    beats.beat = beat
    with caplog.at_level("WARNING"):
        beats.run()
    assert len(asked) == 2 and caplog.messages == ["run: its lease could not be renewed: no network"] * 2
    answers[:], asked[:] = [False, False], []
    beats.beat = lambda: asked.append(beats) or setattr(beats, "lost", True)
    beats.run()
    assert len(asked) == 1


def test_a_number_that_another_took_meanwhile_is_not_claimed(url, monkeypatch):
    run_laps(url, 1)
    original, was = place.Objects.create, []

    def late(self, key, data):
        if key.url.endswith("00000002.json") and not was:
            was.append(original(self, key, b"of another"))
        return original(self, key, data)

    monkeypatch.setattr(place.Objects, "create", late)
    assert run.claim_next(Key(url), "a session") == 3
    assert RunStore.view(url)._number == 3 and RunStore.exists(url)
    store = RunStore.open(url)
    assert store.board() is None  # an object store maps no files into memory
    store.close()


def test_parts_of_a_run_are_objects_too(url):
    store = RunStore.create(url, {})
    part = store.part_files().put("one", {"a": np.arange(3)})
    left = store.part_files().put("two", {"a": np.arange(4)})
    for parts in ([part, left], [part], [part]):
        store.commit({}, {}, [], Listing.of([]), parts)
    store.close()
    found = RunStore.view(url)
    assert found.load().parts == (part,)
    np.testing.assert_array_equal(found.part_files().get(part)["a"], np.arange(3))
    assert place_of(Key(url)).names(Key(url) / "parts") == ["one"]
    with pytest.raises(StoreError, match="parts/two is missing; put the file back from a copy"):
        found.part_files().get(left)
