"""Every process decides for itself whether it reaches a run directory, each time that it uses it."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest

from bnp_dask.errors import StoreError
from bnp_dask.store import RunStore, SharedFiles
from bnp_dask.store.run import SESSION_NAME

ARRAYS = {"a": np.arange(3.0)}


@pytest.fixture
def store(tmp_path):
    made = RunStore.create(tmp_path / "run", {})
    yield made
    made.close()


def elsewhere(shared: SharedFiles, path) -> SharedFiles:
    """The same files where the directory is known under another path."""
    return SharedFiles(path, shared.session, replace(shared.files, folder=path / "summaries"))


def test_who_reaches_it_reads_and_writes(store):
    shared = pickle.loads(pickle.dumps(store.shared))
    receipt = shared.put(3, 0, ARRAYS)
    np.testing.assert_array_equal(shared.get(3, 0, receipt)[0]["a"], ARRAYS["a"])
    np.testing.assert_array_equal(store.get_summary(3, 0, receipt)[0]["a"], ARRAYS["a"])


def check_refused(shared, match):
    receipt = shared.files.put(3, 0, ARRAYS)  # it would be there
    for use in (lambda: shared.put(3, 0, ARRAYS), lambda: shared.get(3, 0, receipt)):
        with pytest.raises(StoreError, match=match):
            use()


def test_a_path_that_does_not_exist(store, tmp_path):
    check_refused(elsewhere(store.shared, tmp_path / "nowhere"), "nowhere cannot be used here")


def test_an_empty_directory_of_that_name(store, tmp_path):
    (tmp_path / "mount").mkdir()
    check_refused(elsewhere(store.shared, tmp_path / "mount"), "mount cannot be used here")


def test_a_copy(store, tmp_path):
    """As a backup is, or a file system that was mounted from a snapshot: it looks the same, and nobody reads it."""
    store.close()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    again = RunStore.open(tmp_path / "run")
    check_refused(elsewhere(again.shared, tmp_path / "copy"), "another directory here, or an older state")
    again.close()


def test_a_directory_that_another_process_writes_by_now(store, tmp_path):
    shared = store.shared
    store.close()
    RunStore.open(tmp_path / "run").close()
    check_refused(shared, "another directory here, or an older state")


def test_a_full_or_forbidden_disk_is_no_reach(store, monkeypatch):
    def full(*args, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(StoreError, match="No space left"):
        store.shared.put(3, 0, ARRAYS)
    monkeypatch.setattr("pathlib.Path.exists", full)
    with pytest.raises(StoreError, match="cannot be used here"):
        store.shared.put(4, 0, ARRAYS)


def test_drafts_are_there_or_they_are_not(store, tmp_path):
    """What is damaged, of another key, out of reach or cannot be written is as if it had never been kept."""
    drafts = pickle.loads(pickle.dumps(store.drafts))
    assert drafts.get("a") is None
    drafts.put("a", ARRAYS)
    np.testing.assert_array_equal(drafts.get("a")["a"], ARRAYS["a"])
    file = tmp_path / "run" / "drafts" / "a.npz"
    shutil.copy(file, file.with_name("b.npz"))
    assert drafts.get("b") is None
    data = file.read_bytes()
    file.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    assert drafts.get("a") is None
    away = replace(drafts, session="another")
    away.put("c", ARRAYS)
    assert away.get("c") is None and drafts.get("c") is None
    store.forget_drafts()
    assert not file.parent.exists()
    file.parent.write_text("in the way")
    drafts.put("d", ARRAYS)
    assert drafts.get("d") is None


def test_only_a_writer_has_a_session(store, tmp_path):
    before = (tmp_path / "run" / SESSION_NAME).read_text()
    reader = RunStore.view(tmp_path / "run")
    assert (tmp_path / "run" / SESSION_NAME).read_text() == before == store.shared.session
    with pytest.raises(StoreError, match="opened for reading"):
        _ = reader.shared
