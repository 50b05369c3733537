"""Files of other machines that are seen a while after they were written, as on network file systems."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from bnp_dask.errors import StoreError
from bnp_dask.store import RunStore, place
from bnp_dask.store.checkpoint import Listing
from bnp_dask.store.place import cannot

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
