"""Summaries in files and in memory: what goes in comes out."""

from __future__ import annotations

import io
import pickle
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bnp_dask.errors import StoreError
from bnp_dask.store import Listing, MemoryStore, RunStore, SummaryFiles, place
from bnp_dask.store.files import DamagedError, crc_of_packed, pack, unpack

DTYPES = st.one_of(
    hnp.floating_dtypes(sizes=(32, 64)), hnp.integer_dtypes(), hnp.boolean_dtypes(), hnp.unicode_string_dtypes()
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z./]{1,9}", fullmatch=True), ARRAYS, max_size=3))
def test_arrays_come_back(arrays):
    data = pack(arrays, {"k": [1, None]})
    found, meta = unpack(data, Path("x"))
    assert meta == {"k": [1, None]}
    assert list(found) == list(arrays)
    for name, value in arrays.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
        assert found[name].tobytes() == value.tobytes()
        assert found[name].flags.writeable
    assert pack(arrays, {"k": [1, None]}) == data
    assert crc_of_packed(data) == zlib.crc32(data)


def test_numpy_can_read_the_file():
    """The files outlive this package: they are plain npz."""
    import io

    found = np.load(io.BytesIO(pack({"a": np.arange(3)})), allow_pickle=False)
    np.testing.assert_array_equal(found["array/a"], np.arange(3))


def test_compressed_members_are_refused():
    """As numpy.savez_compressed writes them: sealed with the right checksum, but not what is read here."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("meta.json", "{}")
        archive.comment = b"crc32:" + bytes(8)
    data = buffer.getvalue()[:-8]
    with pytest.raises(DamagedError, match="is compressed"):
        unpack(data + b"%08x" % zlib.crc32(data), Path("x"))


def test_objects_are_refused():
    with pytest.raises(StoreError, match="array 'a' holds Python objects"):
        pack({"a": np.array([None])})


def test_workers_can_use_the_files(tmp_path):
    files = pickle.loads(pickle.dumps(SummaryFiles(tmp_path)))
    receipt = files.put(3, 1, {"a": np.ones(2)}, {"m": 1})
    assert list(SummaryFiles(tmp_path).keys()) == [(3, 1)]
    arrays, meta = SummaryFiles(tmp_path).get(3, 1, receipt)
    np.testing.assert_array_equal(arrays["a"], np.ones(2))
    assert meta == {"m": 1}
    with pytest.raises(StoreError, match="0 or more"):
        files.put(3, -1, {})


@pytest.fixture(params=["memory", "spilled", "run"])
def store(request, tmp_path, monkeypatch):
    monkeypatch.setattr(place, "LATE_PAUSES", (0.001,) * 4)
    if request.param == "run":
        made = RunStore.create(tmp_path / "run", {})
    else:
        made = MemoryStore(10_000 if request.param == "memory" else 20)
    yield made
    made.close()


def test_same_behaviour_everywhere(store):
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    receipt = store.put_summary(0, 0, {"a": fortran, "b": np.array(3)}, {"m": [1]})
    fortran[:] = 0  # what was put is a copy
    for _ in range(2):
        arrays, meta = store.get_summary(0, 0, receipt)
        np.testing.assert_array_equal(arrays["a"], np.arange(6.0).reshape(2, 3))
        assert arrays["a"].flags.c_contiguous  # the order of later sums depends on the layout
        assert arrays["b"].shape == ()
        assert meta == {"m": [1]}
        arrays["a"][:] = 7  # what was got is a copy
    with pytest.raises(StoreError, match="batch 0 at visit 1"):
        store.get_summary(0, 1)
    with pytest.raises(StoreError, match="JSON-able"):
        store.put_summary(0, 1, {}, {"m": np.ones(2)})


def test_older_visits_go_with_the_commit(store):
    for visit in range(3):
        entries = [(b, visit, store.put_summary(b, visit, {"a": np.array([b, visit])})) for b in range(2)]
        store.commit({}, {}, [], Listing.of(entries))
    for batch, visit, receipt in entries:
        np.testing.assert_array_equal(store.get_summary(batch, visit, receipt)[0]["a"], [batch, 2])
    if isinstance(store, RunStore):
        assert sorted(store.summaries.keys()) == [(0, 1), (0, 2), (1, 1), (1, 2)]
        return
    for batch in range(2):
        with pytest.raises(StoreError):
            store.get_summary(batch, 0)


def test_a_visit_put_again_takes_the_place_of_the_first():
    store = MemoryStore(max_bytes=8000)
    for value in (1.0, 2.0, 3.0):
        store.put_summary(4, 2, {"a": np.full(100, value)})
        assert store.nbytes == 800
    assert store.get_summary(4, 2)[0]["a"][0] == 3.0
    store.close()


def test_memory_is_bounded():
    """Beyond the limit summaries lie on the disk; lap after lap neither grows; closing removes the directory."""
    store = MemoryStore(max_bytes=5 * 800)
    for visit in range(6):
        for batch in range(10):
            store.put_summary(batch, visit, {"a": np.full(100, 100.0 * visit + batch)})
            assert store.nbytes <= 5 * 800
    folder = Path(store._directory.name)
    for batch in range(10):
        assert store.get_summary(batch, 5)[0]["a"][0] == 500 + batch
        with pytest.raises(StoreError, match="visit 4"):
            store.get_summary(batch, 4)
    assert len(list(folder.rglob("*.npz"))) + store.nbytes // 800 == 10
    store.close()
    assert not folder.exists()
    assert store.nbytes == 0
    assert store.load() is None
