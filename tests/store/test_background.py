"""Checkpoints in a thread of their own: they hold what was, they come one after the other, and no error is lost."""

import threading
from contextlib import closing

import numpy as np
import pytest

from bnp_dask.errors import StoreError
from bnp_dask.store import BackgroundCommits, Listing, Receipt, RunStore, place

NOTHING = Listing.of([])


@pytest.fixture
def store(tmp_path):
    with closing(RunStore.create(tmp_path / "run", {})) as made:
        yield made


def loaded(store):
    return RunStore.view(store.path).load()


def test_what_changes_after_a_commit_is_not_in_it(store):
    hold, write = threading.Event(), store.write

    def later(prepared):
        assert hold.wait(30)
        write(prepared)

    store.write = later
    state, arrays, rows = {"lap": 1, "lost": [1]}, {"x": np.arange(3.0)}, [{"row": 1}]
    with closing(BackgroundCommits()) as commits:
        commits.commit(store, state, arrays, rows, NOTHING)
        state["lost"].append(2)
        arrays["x"][:] = -1.0
        rows[0]["row"] = 2
        hold.set()
    found = loaded(store)
    assert found.state == {"lap": 1, "lost": [1]}
    np.testing.assert_array_equal(found.arrays["x"], [0.0, 1.0, 2.0])
    assert found.history == [{"row": 1}]


def test_what_is_said_not_to_change_is_not_copied(store):
    arrays = {"x": np.arange(3.0), "y": np.arange(4.0)}
    prepared = store.prepare({}, arrays, [], NOTHING, constant=lambda name: name == "x")
    assert prepared.arrays["x"] is arrays["x"] and not np.shares_memory(prepared.arrays["y"], arrays["y"])
    store.write(prepared)
    found = loaded(store).arrays
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())


def test_commits_come_one_after_the_other(store):
    with closing(BackgroundCommits()) as commits:
        for lap in range(5):
            commits.commit(store, {"lap": lap}, {}, [{"lap": lap}], NOTHING)
        commits.wait()
        assert loaded(store).state == {"lap": 4}
    assert [row["lap"] for row in loaded(store).history] == list(range(5))


def test_what_a_disk_refuses_is_told_at_the_next_commit_or_at_the_end(store):
    with closing(BackgroundCommits()) as commits:
        commits.commit(store, {"lap": 1}, {}, [], NOTHING)

    def full(prepared):
        raise StoreError("the disk is full")

    store.write = full
    commits = BackgroundCommits()
    commits.commit(store, {"lap": 2}, {}, [], NOTHING)
    with pytest.raises(StoreError, match="full"):
        commits.commit(store, {"lap": 3}, {}, [], NOTHING)
    commits.close()  # was told already
    commits = BackgroundCommits()
    commits.commit(store, {"lap": 2}, {}, [], NOTHING)
    with pytest.raises(StoreError, match="full"):
        commits.close()
    assert loaded(store).state == {"lap": 1}


def test_what_cannot_be_prepared_is_told_at_once(store):
    with closing(BackgroundCommits()) as commits, pytest.raises(StoreError, match="JSON-able"):
        commits.commit(store, {"x": {1}}, {}, [], NOTHING)


def test_a_summary_that_is_missing_is_told_at_the_end(store, monkeypatch):
    monkeypatch.setattr(place, "LATE_PAUSES", (0.001,) * 4)
    commits = BackgroundCommits()
    commits.commit(store, {}, {}, [], Listing.of([(0, 1, Receipt(3, 4))]))
    with pytest.raises(StoreError, match="00000000-000001-00000004.npz"):
        commits.close()
