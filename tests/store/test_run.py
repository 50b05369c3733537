"""The run directory: what a commit saves, and what is left after a kill, damage, or a second writer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
import zlib

import numpy as np
import pytest

from bnp_dask import __version__
from bnp_dask.core.code import code_here
from bnp_dask.errors import StoreError
from bnp_dask.inputs import POSTERIOR_NAME
from bnp_dask.store import JOB_NAME, Listing, Receipt, RunStore, SummaryFiles, place, read_history, run
from bnp_dask.store.checkpoint import CommittedParts, PartFiles, checkpoint_numbers
from bnp_dask.store.files import pack, seal
from bnp_dask.store.place import DamagedError, Extent, place_of

B = 3


class Killed(BaseException):
    """What a kill would do: no handler sees it."""


def arrays_of(batch, visit):
    return {"value.N": np.array([batch + 0.1, visit / 3]), "part/a/ids": np.arange(batch)}


def put_all(store, visit):
    """Summaries of all batches; what a checkpoint is to list."""
    return Listing.of((b, visit, store.put_summary(b, visit, arrays_of(b, visit), {"seen": visit})) for b in range(B))


def commit(store, lap, listing):
    """Checkpoint ``lap``: every batch at visit ``lap``, and two rows."""
    rows = [{"lap": lap, "elbo": -1 / (lap + 3)}, {"lap": lap, "elbo": float("nan")}]
    store.commit({"lap": lap}, {"x": np.full(4, lap / 7)}, rows, listing)


def run_lap(store, lap):
    commit(store, lap, put_all(store, lap))


def run_laps(path, laps):
    store = RunStore.create(path, {"seed": 1})
    for lap in range(laps):
        run_lap(store, lap)
    store.close()


NOTHING = Listing.of([])


def lap_of(path, pass_over=False):
    """Load as a reader would, check that all parts are of one lap, and give it; -1 when there is no checkpoint."""
    store = RunStore.view(path)
    if pass_over:
        with pytest.warns(UserWarning, match="going on from checkpoint"):
            found = store.load()
    else:
        found = store.load()
    if found is None:
        return -1
    lap = found.state["lap"]
    np.testing.assert_array_equal(found.arrays["x"], np.full(4, lap / 7))
    assert set(found.arrays) == {"x"}
    assert [row["lap"] for row in found.history] == [i for i in range(lap + 1) for _ in range(2)]
    assert [row["elbo"] for row in found.history[::2]] == [-1 / (i + 3) for i in range(lap + 1)]
    assert (found.listing.batches.tolist(), found.listing.visits.tolist()) == (list(range(B)), [lap] * B)
    for b, visit, receipt in found.listing.entries():
        arrays, meta = store.get_summary(b, visit, receipt)
        np.testing.assert_array_equal(arrays["value.N"], arrays_of(b, lap)["value.N"])
        assert meta == {"seen": lap}
    return lap


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


# -- the plain way ------------------------------------------------------------------------------------------------
def test_laps_come_back(path):
    run_laps(path, 4)
    assert lap_of(path) == 3
    assert RunStore.view(path).settings == {"seed": 1}
    assert RunStore.exists(path)
    assert not RunStore.exists(path.parent)
    assert len(read_history(path)) == 8


def test_no_checkpoint_yet(path):
    RunStore.create(path, {}).close()
    assert RunStore.open(path).load() is None
    assert read_history(path) == []


def test_who_goes_on_with_a_run_has_its_settings(path):
    run_laps(path, 1)
    store = RunStore.open(path)
    assert store.settings == RunStore.view(path).settings == {"seed": 1}
    store.close()


@pytest.mark.parametrize("name", ["notes.json", "7.txt", "00000009.npz.part"])
def test_other_files_among_the_checkpoints_are_none(path, name):
    run_laps(path, 3)
    (path / "checkpoints" / name).write_bytes(b"{}")
    assert lap_of(path) == 2
    store = RunStore.open(path)
    store.load()
    run_lap(store, 3)
    store.close()
    assert lap_of(path) == 3
    assert (path / "checkpoints" / name).exists()


def test_only_two_checkpoints_are_kept(path):
    run_laps(path, 5)
    assert sorted(p.name for p in (path / "checkpoints").iterdir()) == [
        "00000004.json", "00000004.npz", "00000005.json", "00000005.npz",
    ]  # fmt: skip
    assert sorted(RunStore.view(path).summaries.keys()) == [(b, v) for b in range(B) for v in (3, 4)]


def test_resume_goes_on(path):
    run_laps(path, 2)
    store = RunStore.open(path)
    assert store.load().state == {"lap": 1}
    run_lap(store, 2)
    store.close()
    assert lap_of(path) == 2


def test_resume_cuts_what_the_checkpoint_does_not_know(path):
    """A run killed after it appended to the history and put summaries: a resumed run ends in the same files."""
    run_laps(path, 2)
    with open(path / "history.jsonl", "a") as file:
        file.write('{"lap":2,"half a li')
    store = RunStore.open(path)
    put_all(store, 2)  # as the killed run did
    store.close()
    store = RunStore.open(path)
    store.load()
    run_lap(store, 2)
    store.close()
    run_laps(path.parent / "whole", 3)
    for name in ("history.jsonl", "checkpoints/00000003.npz", "checkpoints/00000003.json"):
        assert (path / name).read_bytes() == (path.parent / "whole" / name).read_bytes()


def test_commit_in_the_middle_of_a_lap(path):
    """Some batches have their new summary, some their old one; newer ones that nobody refers to yet stay."""
    run_laps(path, 1)
    store = RunStore.open(path)
    store.load()
    new = store.put_summary(0, 1, arrays_of(0, 1))
    store.put_summary(2, 1, arrays_of(2, 1))
    _, *others = store.load().listing.entries()
    for _ in range(2):
        store.commit({}, {}, [], Listing.of([(0, 1, new), *others]))
    assert sorted(store.summaries.keys()) == [(0, 1), (1, 0), (2, 0), (2, 1)]


@pytest.mark.parametrize("n_old", [0, 1, 4])
@pytest.mark.parametrize("n_new", [0, 1, 6])
def test_what_a_listing_has_that_an_older_one_lacks(n_old, n_new):
    """Rows of the one that are not among the rows of the other: as sets."""
    rng = np.random.default_rng(n_old + 10 * n_new)
    visits, receipts = np.array([3, -1, 0, 2, 7, 1, -1, 4]), rng.integers(1, 99, (8, 2))
    known = [(b, int(v), Receipt(*r)) for b, (v, r) in enumerate(zip(visits, receipts.tolist(), strict=True)) if v >= 0]
    old = Listing.of(known[i] for i in rng.permutation(len(known))[:n_old])
    changed = [(b, v + (b % 2), Receipt(r.nbytes, r.crc32 + (b == 2))) for b, v, r in known]
    new = Listing.of(changed[i] for i in rng.permutation(len(changed))[:n_new])
    rows = set(map(tuple, old.rows.tolist()))
    assert new.new_since(old).tolist() == [tuple(row) not in rows for row in new.rows.tolist()]
    assert new.new_since(None).tolist() == [True] * len(new)
    assert new.nbytes == sum(r.nbytes for b, _, r in changed if b in new.batches)
    latest = Listing.of_latest(visits, receipts)
    assert list(latest.entries()) == known == list(Listing.of_saved(latest.rows.ravel()).entries())


def test_what_was_written_twice_is_there_once_after_the_next_commit(path):
    """A worker that was given up writes other values of the same visit, before and after the right ones."""
    store = RunStore.create(path, {})
    store.put_summary(0, 0, arrays_of(7, 0))
    listing = put_all(store, 0)
    store.put_summary(0, 0, arrays_of(8, 0))
    commit(store, 0, listing)
    assert sorted(store.summaries.keys()) == [(b, 0) for b in range(B)]
    assert lap_of(path) == 0
    store.put_summary(1, 0, arrays_of(9, 0))  # later still
    for lap in (1, 2):
        run_lap(store, lap)
    assert sorted(store.summaries.keys()) == [(b, lap) for b in range(B) for lap in (1, 2)]


def test_only_folders_are_looked_into_where_something_changed(path, monkeypatch):
    store = RunStore.create(path, {})
    n = 3 * 256
    entries = [(b, 0, store.put_summary(b, 0, {"a": np.array(b)})) for b in range(n)]
    store.commit({}, {}, [], Listing.of(entries))
    store.commit({}, {}, [], Listing.of(entries))
    seen, original = [], SummaryFiles.names
    monkeypatch.setattr(SummaryFiles, "names", lambda self, folder: seen.append(folder.name) or original(self, folder))
    for visit in range(1, 4):
        entries[300] = (300, visit, store.put_summary(300, visit, {"a": np.array(visit)}))
        store.commit({}, {}, [], Listing.of(entries))
    assert seen == ["00001"] * 3
    assert sorted(store.summaries.keys())[300:302] == [(300, 2), (300, 3)]


def test_commit_before_load_is_refused(path):
    run_laps(path, 1)
    with pytest.raises(StoreError, match="call load"):
        commit(RunStore.open(path), 1, NOTHING)


def test_summary_that_was_not_put(path, monkeypatch):
    monkeypatch.setattr(place, "LATE_PAUSES", ())
    store = RunStore.create(path, {})
    with pytest.raises(StoreError, match=r"cannot sync .*00000007-000001-000000ff.npz: No such file"):
        store.commit({}, {}, [], Listing.of([(7, 1, Receipt(10, 255))]))
    assert RunStore.view(path).load() is None
    with pytest.raises(StoreError, match="batch 7 at visit 1"):
        store.get_summary(7, 1)


def test_put_again(path):
    """The same bytes again change nothing; other bytes are another file, and the receipt tells which."""
    run_laps(path, 1)
    store = RunStore.open(path)
    _, (_, _, receipt), _ = store.load().listing.entries()
    file = store.summaries.path(1, 0, receipt)
    before = file.read_bytes(), file.stat().st_mtime_ns
    assert store.put_summary(1, 0, arrays_of(1, 0), {"seen": 0}) == receipt
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before
    other = store.put_summary(1, 0, arrays_of(2, 0))
    assert other != receipt
    assert store.get_summary(1, 0, receipt)[0]["value.N"][0] == 1.1
    assert store.get_summary(1, 0, other)[0]["value.N"][0] == 2.1
    file.write_bytes(before[0][:-1])
    assert store.put_summary(1, 0, arrays_of(1, 0), {"seen": 0}) == receipt  # what rotted is written again
    assert file.read_bytes() == before[0]


@pytest.mark.parametrize("state", [{"x": np.zeros(2)}, {"x": object()}, {"x": {1, 2}}])
def test_state_that_is_not_plain(path, state):
    store = RunStore.create(path, {})
    with pytest.raises(StoreError, match="JSON-able"):
        store.commit(state, {}, [], NOTHING)
    assert RunStore.view(path).load() is None


def test_numbers_keep_all_bits(path):
    store = RunStore.create(path, {})
    values = [0.1, 1 / 3, -0.0, 5e-324, 1.7976931348623157e308, float("inf")]
    store.commit({"v": values, "n": np.int64(3), "f": np.float64(0.1)}, {}, [{"a": np.float32(0.1)}], NOTHING)
    found = RunStore.view(path).load()
    assert [v.hex() for v in found.state["v"]] == [v.hex() for v in values]
    assert (found.state["n"], found.state["f"]) == (3, 0.1)
    assert found.history == [{"a": float(np.float32(0.1))}]


# -- kills ----------------------------------------------------------------------------------------------------------
@pytest.mark.first_case
@pytest.mark.parametrize("name", ["replace", "fsync", "unlink"])
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_call(tmp_path, monkeypatch, name, after):
    """Kill lap 2 before (or after) the n-th call of a function, for every n: load gives lap 1 or lap 2, whole."""
    original, seen = getattr(os, name), set()
    for n in range(100):
        path = tmp_path / f"run{n}"
        run_laps(path, 2)
        calls = [0]

        def call(*args, calls=calls, n=n, **kwargs):
            calls[0] += 1
            if calls[0] > n:
                if after and calls[0] == n + 1:
                    original(*args, **kwargs)
                raise Killed
            return original(*args, **kwargs)

        store = RunStore.open(path)
        store.load()
        with monkeypatch.context() as patch:
            patch.setattr(os, name, call)
            try:
                run_lap(store, 2)
                finished = True
            except Killed:
                finished = False
        store.close()
        found = lap_of(path)
        assert found in (1, 2)
        seen.add(found)
        # The run goes on from there and ends as if nothing had happened.
        store = RunStore.open(path)
        store.load()
        for lap in range(found + 1, 4):
            run_lap(store, lap)
        store.close()
        assert lap_of(path) == 3
        assert not list(path.rglob(".tmp-*"))
        if finished:
            break
    assert finished
    assert n >= 3
    assert 2 in seen


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs a system that tells which file is open")
def test_new_summaries_and_all_that_leads_to_them_are_on_the_disk_before_the_commit(path, monkeypatch):
    """After a loss of power a checkpoint that is there refers to nothing that is not."""
    store = RunStore.create(path, {})
    run_lap(store, 0)
    listing = put_all(store, 1)
    events, fsync, replace = [], os.fsync, os.replace

    def synced(descriptor):
        events.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def renamed(old, new):
        events.append(("rename", str(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    commit(store, 1, listing)
    summaries = [str(store.summaries.path(*entry)) for entry in listing.entries()]
    base = str(path / "checkpoints" / "00000002")
    commit_at = events.index(("rename", f"{base}.json"))
    folders = (str(path / "summaries/00000"), str(path / "summaries"), str(path))
    for needed in (*summaries, *folders, str(path / "history.jsonl")):
        assert ("sync", needed) in events[:commit_at], needed
    # a new name is durable once its folder is: that of the arrays before the head is named, that of the head at last
    folder = ("sync", str(path / "checkpoints"))
    arrays_at = events.index(("rename", f"{base}.npz"))
    assert arrays_at < events.index(folder) < commit_at
    assert folder in events[commit_at:]
    # and of what gets a new name the content is there before the name
    for at, (what, name) in enumerate(events):
        if what == "rename":
            assert any(done == "sync" and file.endswith(f"-{name.rpartition('/')[2]}") for done, file in events[:at])


def test_a_commit_waits_for_the_disk_only_for_what_is_new(path, monkeypatch):
    store, synced = RunStore.create(path, {}), []
    monkeypatch.setattr(place.Disk, "sync", lambda self, paths: synced.extend(paths))
    run_lap(store, 0)
    first = put_all(store, 0)
    commit(store, 1, first)  # what was durable already
    assert len(synced) == B
    receipt = store.put_summary(1, 2, arrays_of(1, 2), {"seen": 2})
    entries = [(b, 0, r) for b, _, r in first.entries() if b != 1]
    commit(store, 2, Listing.of([*entries, (1, 2, receipt)]))
    assert synced[B:] == [store.summaries.path(1, 2, receipt)]
    store.close()


@pytest.mark.parametrize(("nbytes", "n_synced"), [(0, 1), (1, 0), (5, 0)])
def test_the_folder_of_a_file_is_on_the_disk_when_its_first_line_is(tmp_path, monkeypatch, nbytes, n_synced):
    path, synced = tmp_path / "rows", []
    path.write_bytes(b"a" * nbytes)
    monkeypatch.setattr(place.Disk, "sync_folder", lambda self, folder: synced.append(folder))
    place_of(path).append(path, b"bcd", Extent(nbytes, 0))
    assert path.read_bytes() == b"a" * nbytes + b"bcd"
    assert synced == [tmp_path] * n_synced


def test_killed_in_the_first_commit(tmp_path, monkeypatch):
    original = os.replace
    for n in range(B + 2):
        path = tmp_path / f"run{n}"
        store = RunStore.create(path, {})
        calls = [0]

        def call(*args, calls=calls, n=n):
            calls[0] += 1
            if calls[0] > n:
                raise Killed
            original(*args)

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(os, "replace", call)
            run_lap(store, 0)
        store.close()
        assert lap_of(path) == -1


def test_killed_while_it_was_created(path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "replace", lambda *args: (_ for _ in ()).throw(Killed))
        RunStore.create(path, {})
    assert not RunStore.exists(path)
    with pytest.raises(StoreError, match="holds no run"):
        RunStore.open(path)
    run_laps(path, 1)
    assert lap_of(path) == 0


@pytest.mark.parametrize("name", ["replace", "fsync"])
def test_full_disk(path, monkeypatch, name):
    """The error names a file in the run; the previous checkpoint stays; the same store can commit later."""
    run_laps(path, 2)
    store = RunStore.open(path)
    store.load()
    listing = put_all(store, 2)

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, full)
        with pytest.raises(StoreError, match=rf"{path}.*No space left on device.*everything saved before is unharmed"):
            commit(store, 2, listing)
    assert lap_of(path) == 1
    commit(store, 2, listing)
    assert lap_of(path) == 2


# -- damage ---------------------------------------------------------------------------------------------------------
DAMAGES = {
    "cut off": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "one bit": lambda data: data[:40] + bytes([data[40] ^ 4]) + data[41:],
    "last bit": lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", ["checkpoints/00000003.json", "checkpoints/00000003.npz", "history.jsonl"])
def test_damaged_newest_checkpoint(path, file, damage):
    run_laps(path, 3)
    target = path / file
    data = target.read_bytes()
    if file == "history.jsonl":  # damage what only the newest checkpoint refers to
        start = data.index(b'{"lap":2')
        target.write_bytes(data[:start] + DAMAGES[damage](data[start:]))
    else:
        target.write_bytes(DAMAGES[damage](data))
    store = RunStore.open(path)
    with pytest.warns(UserWarning, match=f"{target.name} is damaged .*; going on from checkpoint 2"):
        assert store.load().state == {"lap": 1}
    run_lap(store, 2)
    store.close()
    assert lap_of(path) == 2
    assert sorted(p.stem for p in (path / "checkpoints").glob("*.json")) == ["00000002", "00000004"]


def test_missing_arrays_of_the_newest(path):
    run_laps(path, 3)
    (path / "checkpoints/00000003.npz").unlink()
    assert lap_of(path, pass_over=True) == 1


def test_a_checkpoint_that_is_refused_is_passed_over(path):
    """By somebody who looked closer, at its summaries."""
    run_laps(path, 3)
    store = RunStore.open(path)
    assert store.load().number == 3
    with pytest.warns(UserWarning, match="batch 7 is rotten; going on from checkpoint 2"):
        assert store.load({3: "batch 7 is rotten"}).state == {"lap": 1}
    with pytest.raises(StoreError, match="no checkpoint in .* is whole: batch 7 is rotten; so is 8. Put"):
        store.load({3: "batch 7 is rotten", 2: "so is 8"})


WRONG = {
    "of another batch": (2, 1),
    "of another visit": (1, 0),
    "of another batch and visit": (2, 0),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_file_of_another_summary_is_refused(path, what):
    run_laps(path, 2)
    store = RunStore.view(path)
    receipts = {(b, v): r for b, v, r in store.load().listing.entries()}
    batch, visit = WRONG[what]
    source = next((path / "summaries").rglob(f"{batch:08d}-{visit:06d}-*"))
    receipt = receipts[1, 1]
    target = store.summaries.path(1, 1, receipt)
    target.write_bytes(source.read_bytes())
    with pytest.raises(StoreError, match=rf"batch 1 at visit 1 cannot be used: .*{target.name} is damaged \(it holds"):
        store.get_summary(1, 1, receipt)
    with pytest.raises(StoreError, match=rf"it holds batch and visit {re.escape(str(list(WRONG[what])))}"):
        store.get_summary(1, 1, receipt)


def test_the_file_of_another_run_is_refused(path):
    """Of the same batch and visit, whole, with other values."""
    run_laps(path, 2)
    other = RunStore.create(path.parent / "other", {})
    receipt = other.put_summary(1, 1, arrays_of(5, 1), {"seen": 1})
    store = RunStore.view(path)
    (_, _, own) = list(store.load().listing.entries())[1]
    target = store.summaries.path(1, 1, own)
    target.write_bytes(other.summaries.path(1, 1, receipt).read_bytes())
    with pytest.raises(StoreError, match=rf"{target.name} is damaged \(it holds other values than this run put there"):
        store.get_summary(1, 1, own)


def test_both_checkpoints_damaged(path):
    run_laps(path, 3)
    for number in (2, 3):
        (path / f"checkpoints/0000000{number}.npz").write_bytes(b"")
    with pytest.raises(StoreError, match=r"no checkpoint in .* is whole: .*00000003.npz.*00000002.npz"):
        RunStore.view(path).load()


def test_any_flipped_bit_of_a_summary(path):
    """Every byte of the file, one bit: an error that names the file."""
    store = RunStore.create(path, {})
    receipt = store.put_summary(4, 0, {"a": np.arange(3.0), "b": np.array([[1, 2]], np.int16)}, {"k": 1})
    file = store.summaries.path(4, 0, receipt)
    data = file.read_bytes()
    for i in range(len(data)):
        file.write_bytes(data[:i] + bytes([data[i] ^ (1 << i % 8)]) + data[i + 1 :])
        with pytest.raises(StoreError, match=f"{file.name} is damaged"):
            store.get_summary(4, 0, receipt)


def test_files_of_newer_versions_and_of_those_before_0_3_are_refused(path):
    run_laps(path, 1)
    for name, kind in (("RUN.json", "bnp-dask run"), ("checkpoints/00000001.json", "bnp-dask checkpoint")):
        file = path / name
        old = file.read_bytes()
        content = json.loads(old)["content"]
        file.write_bytes(seal({**content, "format": kind, "version": 99}))
        with pytest.raises(StoreError, match=r"format version 99, this bnp-dask reads up to 3; upgrade"):
            RunStore.view(path).load()
        file.write_bytes(seal({**content, "format": kind, "version": 2}))
        with pytest.raises(StoreError, match=r"format version 2, of a version before 0\.3\.0"):
            RunStore.view(path).load()
        file.write_bytes(old)


# -- who may write ----------------------------------------------------------------------------------------------------
def test_second_writer_in_another_process(path):
    run_laps(path, 2)
    code = (
        "import sys, time\n"
        "from bnp_dask.store import RunStore\n"
        "store = RunStore.open(sys.argv[1])\n"
        "print('open', flush=True)\n"
        "time.sleep(100)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "open\n"
            with pytest.raises(StoreError, match=rf"being written by process {process.pid} on .* since 20"):
                RunStore.open(path)
            assert lap_of(path) == 1  # reading is allowed
        finally:
            process.kill()
    store = RunStore.open(path)  # the lock died with its process
    assert store.load().state == {"lap": 1}


def test_second_writer_in_this_process(path):
    store = RunStore.create(path, {})
    with pytest.raises(StoreError, match="is being written by process"):
        RunStore.open(path)
    store.close()
    store.close()
    RunStore.open(path).close()


def test_reader_cannot_write(path):
    run_laps(path, 1)
    store = RunStore.view(path)
    store.load()
    for use in (lambda: put_all(store, 1), lambda: commit(store, 1, NOTHING)):
        with pytest.raises(StoreError, match="opened for reading or closed"):
            use()


def test_reading_while_it_is_written(path):
    """A reader that meets a checkpoint just as the writer removes it looks again."""
    store = RunStore.create(path, {"seed": 1})
    for lap in range(3):
        run_lap(store, lap)
    reader = RunStore.view(path)
    original, laps = reader._read, iter((3, 4))

    def read_late(number):
        for lap in laps:  # two commits between the listing and the reading
            run_lap(store, lap)
        return original(number)

    reader._read = read_late
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reader.load().state == {"lap": 4}


# -- before the first step -----------------------------------------------------------------------------------------
def commit_start(store):
    store.write(store.prepare({"lap": 0}, {}, [], NOTHING, begun=False))


def test_a_run_that_has_not_begun_may_be_replaced(path):
    RunStore.create(path, {"seed": 1}).close()
    assert not RunStore.has_begun(path)
    store = RunStore.create(path, {"seed": 2}, {JOB_NAME: b"a: 1"})
    commit_start(store)
    store.close()
    assert not RunStore.has_begun(path)
    assert RunStore.view(path).load().state == {"lap": 0}
    store = RunStore.create(path, {"seed": 3})
    assert store.settings == {"seed": 3}
    assert not (path / JOB_NAME).exists()
    assert store.load() is None  # the start was that of another run
    run_lap(store, 0)
    store.close()
    assert RunStore.has_begun(path)
    with pytest.raises(StoreError, match="already holds a run"):
        RunStore.create(path, {"seed": 4})


def test_what_cannot_be_told_may_not_be_replaced(path):
    store = RunStore.create(path, {})
    commit_start(store)
    store.close()
    (path / "checkpoints/00000001.json").write_bytes(b"rotten")
    assert RunStore.has_begun(path)
    with pytest.raises(StoreError, match="already holds a run"):
        RunStore.create(path, {})
    assert not RunStore.has_begun(path.parent / "none")


def test_another_process_that_was_faster_keeps_its_run(path, monkeypatch):
    """It creates and commits between the first look and the lock, and is done when the lock is free."""
    original = place.WriterLock.__init__

    def late(self, file):
        monkeypatch.undo()
        run_laps(path, 1)
        original(self, file)

    monkeypatch.setattr(place.WriterLock, "__init__", late)
    with pytest.raises(StoreError, match="already holds a run; .*resume=True"):
        RunStore.create(path, {"seed": 2})
    assert lap_of(path) == 0
    assert RunStore.view(path).settings == {"seed": 1}


@pytest.mark.parametrize("name", ["replace", "fsync"])
@pytest.mark.parametrize("after", [False, True])
def test_notes_are_there_when_the_run_is(tmp_path, monkeypatch, name, after):
    """Killed at every call of a creation: the run is there with its job, or it can be created again."""
    original, found = getattr(os, name), set()
    for n in range(30):
        path, calls = tmp_path / f"run{n}", [0]

        def call(*args, calls=calls, n=n):
            calls[0] += 1
            if calls[0] > n:
                if after and calls[0] == n + 1:
                    original(*args)
                raise Killed
            return original(*args)

        finished = False
        with monkeypatch.context() as patch:
            patch.setattr(os, name, call)
            try:
                RunStore.create(path, {}, {"job.yaml": b"a: 1"}).close()
                finished = True
            except Killed:
                pass
        found.add(RunStore.exists(path))
        if RunStore.exists(path):
            assert (path / "job.yaml").read_bytes() == b"a: 1"
        RunStore.create(path, {}, {"job.yaml": b"a: 2"}).close()
        assert (path / "job.yaml").read_bytes() == b"a: 2"
        if finished:
            break
    assert finished
    assert found == {True, False}


def test_a_note_changes_in_one_piece_and_only_when_it_must(path):
    store = RunStore.create(path, {}, {"job.yaml": b"a: 1"})
    before = (path / "job.yaml").stat().st_mtime_ns
    store.note("job.yaml", b"a: 1")
    assert (path / "job.yaml").stat().st_mtime_ns == before
    store.note("job.yaml", b"a: 2")
    assert (path / "job.yaml").read_bytes() == b"a: 2"
    with pytest.raises(StoreError, match="opened for reading"):
        RunStore.view(path).note("job.yaml", b"")


def test_files_say_which_version_wrote_them(path):
    run_laps(path, 1)
    for file in ("RUN.json", "checkpoints/00000001.json"):
        assert json.loads((path / file).read_bytes())["content"]["software"] == __version__


def test_the_history_is_read_when_it_is_asked_for(path, monkeypatch):
    """Of a long run it is long; that it is whole is seen without holding it."""
    run_laps(path, 2)
    found = RunStore.view(path).load()
    monkeypatch.setattr("bnp_dask.store.checkpoint.read_extent", lambda *args: b'{"a":1}\n')
    assert found.history == [{"a": 1}]


# -- where ------------------------------------------------------------------------------------------------------------
def test_directory_that_holds_a_run(path):
    run_laps(path, 1)
    with pytest.raises(StoreError, match="already holds a run; .*resume=True"):
        RunStore.create(path, {})
    assert lap_of(path) == 0


def test_foreign_directory(path):
    path.mkdir()
    (path / "thesis.tex").touch()
    with pytest.raises(StoreError, match=r"is not empty \(thesis.tex\)"):
        RunStore.create(path, {})
    assert sorted(os.listdir(path)) == ["thesis.tex"]
    with pytest.raises(StoreError, match="holds no run"):
        RunStore.open(path)


def test_file_instead_of_a_directory(path):
    path.touch()
    with pytest.raises(StoreError, match="is a file"):
        RunStore.create(path, {})


@pytest.mark.parametrize("url", ["sftp://host/run", "https://host/run", "s3://bucket/run::zip"])
def test_urls_are_refused(url):
    for use in (lambda: RunStore.create(url, {}), lambda: RunStore.open(url), lambda: RunStore.exists(url)):
        with pytest.raises(StoreError, match="local or shared file system"):
            use()


@pytest.mark.skipif(os.name == "nt" or os.getuid() == 0, reason="root may write anywhere")
def test_directory_without_permission(path):
    path.parent.chmod(0o500)
    with pytest.raises(StoreError, match=f"cannot make directory {path}: Permission denied"):
        RunStore.create(path, {})
    path.parent.chmod(0o700)


def test_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="run"):
        RunStore.create(tmp_path / "file" / "run", {})


# -- size -----------------------------------------------------------------------------------------------------------
def test_many_summaries(path):
    """2,000 batches: no directory grows large, the checkpoint stays compact, a second lap removes nothing needed."""
    n = 2_000
    store = RunStore.create(path, {})
    for visit in range(2):
        entries = [(b, visit, store.put_summary(b, visit, {"a": np.array([b, visit])})) for b in range(n)]
        store.commit({}, {}, [], Listing.of(entries))
    assert max(len(list(d.iterdir())) for d in (path / "summaries").iterdir()) <= 2 * 256
    assert (path / "checkpoints/00000002.npz").stat().st_size < 32 * n + 2000
    assert len(list(store.summaries.keys())) == 2 * n
    store.close()
    store = RunStore.open(path)
    *_, last = store.load().listing.entries()
    assert len(store.load().listing) == n
    np.testing.assert_array_equal(store.get_summary(*last)[0]["a"], [1_999, 1])


# -- names and places -----------------------------------------------------------------------------------------------
def test_a_path_is_a_run_or_none_and_never_an_error(path, tmp_path):
    """Of paths and URLs that hold something else, and of those that can hold no run."""
    run_laps(path, 1)
    (tmp_path / "data").mkdir()
    for place_, may, holds in (
        (path, True, True),
        (f"file://{path}", True, True),
        (tmp_path / "data", True, False),
        (tmp_path / "none", True, False),
        ("https://host/data", False, False),
        ("s3://bucket/run::zip", False, False),
    ):
        assert (run.may_hold_runs(place_), run.holds_run(place_)) == (may, holds)
    assert str(run.run_folder("memory://bucket/run//")) == "memory://bucket/run"
    assert run.run_folder(f"file://{path}") == path


def test_the_posterior_and_the_notes_of_a_run_are_in_it_and_other_paths_are_themselves(path, tmp_path):
    run_laps(path, 1)
    assert run.posterior_place(path) == str(path)
    (path / POSTERIOR_NAME).mkdir()
    assert run.posterior_place(path) == run.posterior_place(f"file://{path}") == str(path / POSTERIOR_NAME)
    for other in (str(tmp_path / "none"), "https://host/posterior.zarr"):
        assert run.posterior_place(other) == other
    (path / "note").write_bytes(b"words")
    (tmp_path / "note").write_bytes(b"of no run")
    assert run.read_note(path, "note") == run.note_in(path, "note") == b"words"
    assert run.read_note(path, "other") is run.note_in(path, "other") is run.read_note(tmp_path, "note") is None
    assert run.read_note("https://host/run", "note") is None


def test_a_new_run_takes_the_place_of_what_a_killed_creation_left_and_of_nothing_else(path):
    left = ["LOCK", "lock", "SESSION", "checkpoints", "manifest", "drafts", "posted", JOB_NAME, ".tmp-1-RUN.json"]
    path.mkdir()
    for name in left:
        (path / name).touch()
        run.require_new(path)
    for name in ("c", "a", "b"):
        (path / name).touch()
    with pytest.raises(StoreError, match=r"is not empty \(a, b, c\); choose"):
        run.require_new(path)
    (path / "d").touch()
    with pytest.raises(StoreError, match=r"is not empty \(a, b, c, \.\.\.\); choose"):
        run.require_new(path)


# -- what other versions of the package wrote, and damage whose checksum is right ---------------------------------
def rewritten(path, number, arrays=None, **changes):
    """Give a checkpoint another head, and other arrays; None takes a field away."""
    base = path / "checkpoints" / f"{number:08d}"
    content = json.loads(base.with_suffix(".json").read_bytes())["content"]
    if arrays is not None:
        data = pack(arrays)
        base.with_suffix(".npz").write_bytes(data)
        content["arrays"] = Extent(len(data), zlib.crc32(data)).to_json()
    content = {name: value for name, value in {**content, **changes}.items() if value is not None}
    base.with_suffix(".json").write_bytes(seal(content))


def test_heads_without_fields_that_came_later_mean_what_they_meant(path):
    run_laps(path, 1)
    assert RunStore.view(path).load().code == (code_here(),)
    rewritten(path, 1, begun=None, parts=None, code=None, software="0.3.0")
    found = RunStore.view(path).load()
    assert found.begun and found.parts == () and [one.version for one in found.code] == ["0.3.0"]
    assert RunStore.has_begun(path)
    rewritten(path, 1, software=None)
    assert RunStore.view(path).load().code == ()
    rewritten(path, 1, begun=False)
    assert not RunStore.view(path).load().begun and not RunStore.has_begun(path)


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        (None, "it lists no summaries"),
        (np.zeros((1, 3), np.int64), r"the list of summaries is int64 \(1, 3\); needs int64 \(N, 4\)"),
        (np.zeros((1, 4)), "the list of summaries is float64"),
        (np.array([[-1, 0, 1, 1]]), "the list of summaries is"),
        (np.array([[0, -1, 1, 1]]), "the list of summaries is"),
    ],
)
def test_a_checkpoint_whose_list_is_none_is_damaged(path, listed, words):
    run_laps(path, 2)
    rewritten(path, 2, {"x": np.zeros(4), **({} if listed is None else {run.LISTING: listed})})
    with pytest.raises(StoreError, match=rf"checkpoint 2 of .* cannot be used: .*00000002.npz is damaged \({words}"):
        RunStore.view(path).at(2)
    with pytest.raises(DamagedError, match=rf"00000002.npz is damaged \({words}"):
        run.committed(path, 2)


def visits_of(store):
    """Of the first batch."""
    keys = sorted(store.summaries.keys())
    return [visit for batch, visit in keys if batch == 0]


def test_pinned_checkpoints_stay_and_damaged_or_missing_ones_are_passed_over(path):
    run_laps(path, 3)
    store = RunStore.open(path)
    store.load()
    store.pin([2])
    for lap in (3, 4, 5):
        run_lap(store, lap)
    assert sorted(checkpoint_numbers(path)) == [2, 5, 6]
    assert store.at(2).state == {"lap": 1}
    assert [row["lap"] for row in store.at(2).history] == [0, 0, 1, 1]
    assert visits_of(store) == [1, 4, 5]
    (path / "checkpoints/00000005.json").write_bytes(b"rotten")
    store.pin([2, 5, 99])
    assert [one.number for one in store._pinned] == [2]
    store.pin([], dropped=[2, 5])
    for lap in (6, 7):
        run_lap(store, lap)
    assert sorted(checkpoint_numbers(path)) == [7, 8]
    assert visits_of(store) == [6, 7]
    with pytest.raises(StoreError, match="checkpoint 2 of .* cannot be used: .*00000002.json is missing"):
        store.at(2)
    store.close()


def test_parts_stay_as_long_as_a_checkpoint_refers_to_them(path):
    store = RunStore.create(path, {})
    files = store.part_files()
    first, second = (files.put(name, {"a": np.arange(n)}) for name, n in (("one", 3), ("two", 4)))
    files.put("without a checkpoint", {})
    assert files.put("one", {"a": np.arange(3)}) == first  # the same again
    for parts in ([first, second], [first], [first]):
        store.commit({}, {}, [], NOTHING, parts)
    assert sorted(file.name for file in (path / "parts").iterdir()) == ["one", "without a checkpoint"]
    store.close()
    store = RunStore.open(path)
    found = store.load()
    assert found.parts == (first,) and run.parts_of(path, found.number) == (first,)
    assert os.listdir(path / "parts") == ["one"]
    np.testing.assert_array_equal(files.get(first)["a"], np.arange(3))
    third = files.put("three", {"a": np.arange(5)})
    store.commit({}, {}, [], NOTHING, [first, third])
    data = (path / "parts/three").read_bytes()
    for wrong in (data[:-1], data[:-1] + b"x", data + b"x"):
        (path / "parts/three").write_bytes(wrong)
        with pytest.raises(StoreError, match=r"parts/three is damaged .* resume from the one before"):
            files.get(third)
        with pytest.warns(UserWarning, match="parts/three is damaged .*; going on from checkpoint 3"):
            assert store.load().parts == (first,)
    (path / "checkpoints/00000004.json").write_bytes(b"rotten")
    assert run.parts_of(path, 4) == ()
    store.close()


def test_a_new_part_is_on_the_disk_before_the_commit_and_an_old_one_is_not_waited_for(path, monkeypatch):
    store, synced = RunStore.create(path, {}), []
    monkeypatch.setattr(place.Disk, "sync", lambda self, paths: synced.append(list(paths)))
    part = store.part_files().put("one", {"a": np.arange(3)})
    for _ in range(2):
        store.commit({}, {}, [], NOTHING, [part])
    assert [files for files in synced if files] == [[path / "parts" / "one"]]
    store.close()


def test_a_commit_that_finds_a_newer_checkpoint_says_so(path):
    run_laps(path, 1)
    store = RunStore.open(path)
    store.load()
    for suffix in (".json", ".npz"):
        file = (path / "checkpoints/00000001").with_suffix(suffix)
        (path / "checkpoints/00000007").with_suffix(suffix).write_bytes(file.read_bytes())
    with pytest.raises(StoreError, match="newer than 2, the one that was made now"):
        run_lap(store, 1)
    assert {2, 7} <= set(checkpoint_numbers(path))
    store.close()


def test_the_number_after_the_newest_is_claimed_once(path):
    """What a killed writer may still commit is refused then; who reads passes the claim over."""
    run_laps(path, 2)
    assert [run.claim_next(path, "a session") for _ in range(2)] == [3, 4]
    for number in (3, 4):
        with pytest.raises(run.FenceError, match=f"checkpoint {number} of .* was never made"):
            run.head_of(path, number)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert RunStore.view(path).load().number == 2


def test_who_goes_on_with_the_run_of_other_code_is_told(path, caplog):
    run_laps(path, 1)
    with caplog.at_level("WARNING"):
        RunStore.open(path).load()
        assert not caplog.messages
        rewritten(path, 1, code=None, software="0.2.9")
        RunStore.view(path).load()
        assert not caplog.messages  # a reader writes nothing
        store = RunStore.open(path)
        store.load()
        assert [re.search("was last written by .*0.2.9", message) is not None for message in caplog.messages] == [True]
    for lap in (1, 2):
        run_lap(store, lap)
    assert [one.version for one in RunStore.view(path).load().code] == ["0.2.9", __version__]
    store.close()


def test_a_run_that_goes_on_keeps_the_parts_of_its_checkpoints_alone(tmp_path):
    files = PartFiles(tmp_path / "parts")
    kept, _ = (files.put(name, {"x": np.arange(3)}) for name in ("kept", "left"))
    parts = CommittedParts(files)
    parts.begin(part for part in (kept,))
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["kept"]
    assert parts.names == {"kept"}
