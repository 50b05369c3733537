"""Tasks as they travel: the same values, and few frames."""

from __future__ import annotations

import gc
import pickle
import sys

import numpy as np
import pytest
from distributed.protocol import deserialize, serialize

from bnp_dask.execute import message as module
from bnp_dask.execute.base import Call
from bnp_dask.execute.message import SMALL, Message

RNG = np.random.default_rng(0)
ARRAYS = {
    "empty": np.zeros((0, 3)),
    "number": np.array(2.5),
    "odd": np.arange(7, dtype=np.int8),
    "text": np.array(["a", "bcd"]),
    "columns": np.asfortranarray(RNG.normal(size=(4, 5))),
    "every other": RNG.normal(size=40)[::2],
    "just small": np.zeros(SMALL // 8 - 1),
    "large": RNG.normal(size=(100, 50)),
    "objects": np.array([None, "x"], dtype=object),
}
"""Arrays as tasks have them, and some that they do not have."""


def through_dask(value):
    """As it arrives somewhere else."""
    return deserialize(*serialize(value, serializers=["pickle"]))


def travelled(value):
    """What arrives at a worker: packed, unpickled and pickled again by a scheduler."""
    return through_dask(through_dask(Message.of(value))).open()


def same(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("small", [0, SMALL, 10**9])
def test_values_arrive_as_they_were(monkeypatch, small):
    monkeypatch.setattr(module, "SMALL", small)
    found = travelled({"arrays": ARRAYS, "other": ("text", 3, None)})
    assert found["other"] == ("text", 3, None) and found["arrays"].keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        same(found["arrays"][name], array)
        alone = through_dask(array)
        assert found["arrays"][name].flags.f_contiguous == alone.flags.f_contiguous
        assert found["arrays"][name].flags.aligned and found["arrays"][name].flags.writeable == alone.flags.writeable


@pytest.mark.parametrize("writeable", [True, False])
@pytest.mark.parametrize("size", [3, SMALL])
def test_arrays_may_be_written_to_as_before(writeable, size):
    """Compiled kernels are others for arrays that may not."""
    array = np.ones(size)
    array.flags.writeable = writeable
    assert travelled(array).flags.writeable == writeable


def test_one_array_twice_stays_one():
    array = np.arange(3.0)
    first, second = travelled((array, array))
    assert first is second


def test_small_arrays_are_one_frame_and_large_ones_are_not_copied():
    arrays = [np.full(3, i) for i in range(40)]
    large = np.zeros(SMALL)
    packed = Message.of((arrays, large))
    frames = []
    pickle.dumps(packed, protocol=5, buffer_callback=frames.append)
    assert [frame.raw().nbytes for frame in frames] == [large.nbytes]
    large[0] = 7.0
    assert packed.open()[1][0] == 7.0


def test_a_parcel_is_opened_once():
    packed = Message.of(Call("name", print, (1, 2)))
    assert packed.open() is packed.open()
    assert packed.open().args == (1, 2)


def test_functions_of_main_travel(monkeypatch):
    """Those of notebooks are pickled by value, as Dask does it."""
    spot = {"__name__": "__main__"}
    exec("def double(x):\n    return 2 * x", spot)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["__main__"], "double", spot["double"], raising=False)
        packed = Message.of(spot["double"])
    assert through_dask(packed).open()(4) == 8


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_without_frames_beside_it_everything_is_in_the_message(protocol):
    value = pickle.loads(pickle.dumps(Message.of((np.arange(5), np.ones(SMALL))), protocol=protocol)).open()
    same(value[0], np.arange(5))
    same(value[1], np.ones(SMALL))


@pytest.mark.parametrize("is_open", [False, True])
def test_messages_may_be_garbage_in_a_circle(monkeypatch, is_open):
    """Python 3.11 crashes on a memoryview in such a circle that something else looks through."""
    wrong = []
    monkeypatch.setattr(sys, "unraisablehook", wrong.append)
    packed = through_dask(Message.of((np.zeros(2 * SMALL), np.arange(3.0))))
    if is_open:
        packed.open()
    circle = [packed]
    circle.append(circle)
    del circle, packed
    assert gc.collect() > 0 and not wrong
