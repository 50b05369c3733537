"""Values that tasks read from a file: the same values, one copy in a process, and gone when nobody needs them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from bnp_dask.errors import StoreError
from bnp_dask.execute.message import SMALL
from bnp_dask.execute.posted import KEPT, opened, post
from bnp_dask.store import MemoryStore, RunStore

RNG = np.random.default_rng(0)
VALUE = {
    "rows": RNG.normal(size=(300, 70)),
    "columns": np.asfortranarray(RNG.normal(size=(300, 71))),
    "single": RNG.normal(size=20_001).astype(np.float32),
    "few": np.arange(3.0),
    "text": "posterior",
}


@pytest.fixture(params=["run directory", "memory"])
def board(request, tmp_path):
    made = RunStore.create(tmp_path / "run", {}) if request.param == "run directory" else MemoryStore()
    yield made.board()
    made.close()


def sent(posted):
    """A posted value as a task gets it."""
    return pickle.loads(pickle.dumps(posted))


def files(board):
    return list((board.path / "posted").glob("*"))


def test_a_value_is_the_same_in_a_task(board):
    posted = post(board, "posterior-1", VALUE)
    found = opened(sent(posted))
    assert found.keys() == VALUE.keys()
    for name, array in VALUE.items():
        if name != "text":
            own = found[name]
            assert np.array_equal(own, array)
            assert (own.dtype, own.strides) == (array.dtype, array.strides)
            # kernels are compiled for arrays that may be written to, and that are aligned
            assert own.flags.writeable
            assert own.flags.aligned


def test_what_a_task_writes_stays_its_own(board):
    posted = post(board, "posterior-1", VALUE)
    opened(sent(posted))["rows"][:] = 0.0
    for number in range(KEPT):
        opened(sent(post(board, f"other-{number}", number)))
    assert np.array_equal(opened(sent(posted))["rows"], VALUE["rows"])


def test_tasks_of_a_process_share_one_copy(board):
    posted = post(board, "posterior-1", VALUE)
    first = opened(sent(posted))
    assert opened(sent(posted)) is first
    for number in range(KEPT - 1):
        opened(sent(post(board, f"other-{number}", number)))
    assert opened(sent(posted)) is first


def test_only_its_large_arrays_are_in_a_file(board):
    posted = post(board, "posterior-1", VALUE)
    large = sum(array.nbytes for array in VALUE.values() if isinstance(array, np.ndarray) and array.nbytes >= SMALL)
    (file,) = files(board)
    assert large <= file.stat().st_size < large + 3 * 64
    assert len(pickle.dumps(posted)) < 4096


def test_a_small_value_needs_no_file(board):
    posted = post(board, "posterior-1", {"few": np.arange(3.0)})
    assert not files(board)
    assert np.array_equal(opened(sent(posted))["few"], np.arange(3.0))


def test_its_file_goes_with_it(board):
    posted = post(board, "posterior-1", VALUE)
    task = sent(posted)
    opened(task)
    assert len(files(board)) == 1
    del posted
    assert not files(board)
    assert np.array_equal(opened(task)["rows"], VALUE["rows"])  # this process had it open


def test_other_arguments_are_as_they_were():
    assert opened(VALUE) is VALUE


def test_a_process_that_does_not_reach_it_is_told(board, tmp_path):
    posted = post(board, "posterior-1", VALUE)
    for other in (replace(board, path=tmp_path / "nowhere"), replace(board, session="of another time")):
        with pytest.raises(StoreError, match=r"cannot be used here|another directory here"):
            opened(sent(replace(posted, board=other)))


@pytest.mark.parametrize("harm", ["cut", "changed", "removed"])
def test_a_file_that_was_altered_is_refused(board, harm, monkeypatch):
    monkeypatch.setattr("bnp_dask.store.place.LATE_PAUSES", ())  # no other machine writes it
    posted = post(board, "posterior-1", VALUE)
    (file,) = files(board)
    data = bytearray(file.read_bytes())
    data[1000] ^= 1
    if harm == "removed":
        file.unlink()
    else:
        file.write_bytes(data[:-1000] if harm == "cut" else data)
    with pytest.raises(StoreError, match=r"damaged|cannot be used here"):
        opened(sent(posted))


def test_a_full_disk_is_told(board, monkeypatch):
    def full(*args, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(StoreError, match="No space left"):
        post(board, "posterior-1", VALUE)


def test_what_a_killed_run_left_is_removed(tmp_path):
    store = RunStore.create(tmp_path / "run", {})
    left = tmp_path / "run" / "posted" / "posterior-1.raw"
    left.parent.mkdir()
    left.write_bytes(b"left")
    store._lock.release()  # as a kill does
    again = RunStore.open(tmp_path / "run")
    assert not left.exists()
    again.close()
