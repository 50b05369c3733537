"""Summaries in files and in memory: what goes in comes out."""

from __future__ import annotations

import io
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bnp_dask.errors import StoreError
from bnp_dask.store import Listing, MemoryStore, RunStore, SummaryFiles, files, place
from bnp_dask.store.files import (
    DamagedError,
    check_extent,
    crc_of_packed,
    json_lines,
    pack,
    read_extent,
    seal,
    unpack,
    unseal,
    unsealed,
)
from bnp_dask.store.place import Extent

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


def test_the_parts_of_a_run_in_memory_are_files_that_are_forgotten_and_go_at_its_end(monkeypatch):
    monkeypatch.setattr(place, "LATE_PAUSES", ())
    store = MemoryStore()
    parts = [store.part_files().put(name, {"a": np.arange(3)}) for name in ("one", "two")]
    folder = Path(store._directory.name)
    store.forget_parts([])
    store.forget_parts(parts[:1])
    assert [file.name for file in (folder / "parts").iterdir()] == ["two"]
    board = store.board()
    assert store.board() == board  # one session for all tasks
    crc32 = board.put("x", [np.frombuffer(b"abc", np.uint8), np.frombuffer(b"d", np.uint8)])
    assert [bytes(found) for found in board.get("x", [3, 1], crc32)] == [b"abc", b"d"]
    with pytest.raises(StoreError, match=r"x\.raw is damaged"):
        board.get("x", [3, 1], crc32 ^ 1)
    board.remove("x")
    with pytest.raises(StoreError, match=r"cannot be used here .*x\.raw"):
        board.get("x", [3, 1], crc32)
    store.close()
    assert not folder.exists()
    again = store.board()
    assert again.session != board.session and again.path != board.path
    store.close()


def test_what_is_forgotten_in_memory_is_what_is_older_than_what_is_kept():
    store = MemoryStore(max_bytes=800)
    for visit in (2, 1, 0):  # a late worker puts an older visit
        for batch in (0, 1):
            store.put_summary(batch, visit, {"a": np.full(50, visit)})
    assert store.nbytes == 800
    folder = Path(store._directory.name)
    assert len(list(folder.rglob("*.npz"))) == 4
    store.forget([(0, 2), (5, 1)])
    assert store.nbytes == 800 and len(list(folder.rglob("*.npz"))) == 2
    for visit in (0, 1):
        assert store.get_summary(1, visit)[0]["a"][0] == visit
        with pytest.raises(StoreError, match=rf"no summary of batch 0 at visit {visit}; this batch has visits \[2\]"):
            store.get_summary(0, visit)
    assert store.get_summary(0, 2)[0]["a"][0] == 2
    store.forget([(0, 3)])
    assert store.nbytes == 400
    store.close()


def sealed_as(**content):
    return seal({"format": "words", "version": 3, **content})


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", DamagedError, "its checksum does not fit"),
        (sealed_as()[:-1], DamagedError, "its checksum does not fit"),
        (sealed_as().replace(b"words", b"birds"), DamagedError, "its checksum does not fit"),
        (seal({"version": 3}), DamagedError, "KeyError"),
        (sealed_as(format=3), DamagedError, "it says neither its format nor its version"),
        (sealed_as(version="3"), DamagedError, "it says neither its format nor its version"),
        (sealed_as(format="birds"), StoreError, "x is a 'birds', needs a 'words'"),
        (sealed_as(version=4), StoreError, "format version 4, this bnp-dask reads up to 3; upgrade"),
        (sealed_as(n="one"), DamagedError, "n is .*another program wrote it"),
    ],
)
def test_what_is_not_sealed_content_of_its_kind_is_refused_with_the_reason(tmp_path, data, error, words):
    class Fields(TypedDict):
        n: NotRequired[int]

    file = tmp_path / "x"
    file.write_bytes(data)
    for read in (lambda: unseal(file, "words", 3, Fields), lambda: unsealed(data, file, "words", 3, Fields)):
        with pytest.raises(error, match=words):
            read()
    file.write_bytes(sealed_as(n=2))
    assert unseal(file, "words", 3, Fields)["n"] == 2


def test_lines_of_json_are_named_by_their_number():
    assert json_lines(b'{"a":1}\n{"b":[2]}\n', dict[str, Any], "rows") == [{"a": 1}, {"b": [2]}]
    assert json_lines(b"", dict[str, Any], "rows") == []
    with pytest.raises(DamagedError, match="rows is damaged"):
        json_lines(b'{"a":1}\n{"b":', dict[str, Any], "rows")
    with pytest.raises(DamagedError, match="rows is damaged"):
        json_lines(b"\xff\n", dict[str, Any], "rows")
    with pytest.raises(DamagedError, match="rows, line 2, is damaged"):
        json_lines(b'{"a":1}\n[2]\n', dict[str, Any], "rows")


def test_the_committed_beginning_of_a_file_that_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "PIECE_BYTES", 4)
    file, extent, whole = tmp_path / "rows", Extent(), b""
    check_extent(file, extent)
    for data in (b"first", b"", b"second line"):
        file.write_bytes(whole + b"uncommitted") if whole else None
        extent, whole = files.append(file, data, extent), whole + data
        assert extent == Extent(len(whole), zlib.crc32(whole)) == Extent.from_json(extent.to_json())
        assert file.read_bytes() == read_extent(file, extent) == whole
    assert [len(piece) for piece in place.place_of(file).pieces(file, Extent(6, 0))] == [4, 2]
    file.write_bytes(whole + b"uncommitted")
    check_extent(file, extent)
    for wrong in (whole[:-1], b"F" + whole[1:]):
        file.write_bytes(wrong)
        for use in (check_extent, read_extent):
            with pytest.raises(DamagedError, match=rf"rows is damaged \(its first {len(whole)} bytes do not fit"):
                use(file, extent)
    file.unlink()
    with pytest.raises(DamagedError, match="rows cannot be read"):
        read_extent(file, extent)
    with pytest.raises(StoreError, match="cannot write .*none/rows: No such file"):
        files.append(tmp_path / "none" / "rows", b"a", Extent())


def test_archives_of_other_programs_are_damage_with_a_reason(tmp_path):
    whole = pack({"a": np.arange(3), "empty": np.zeros((0, 2)), "text": np.array(["x", "yz"])}, {"m": [1]})
    arrays, meta = unpack(whole, "x")
    assert meta == {"m": [1]} and arrays["empty"].shape == (0, 2) and arrays["text"].tolist() == ["x", "yz"]
    assert pack(arrays, meta) == whole and crc_of_packed(whole) == zlib.crc32(whole)
    assert pack({"a": np.asfortranarray(np.eye(2))}) == pack({"a": np.eye(2)})

    def archive(members):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as made:
            for name, data in members.items():
                made.writestr(name, data)
            made.comment = b"crc32:" + bytes(8)
        data = buffer.getvalue()[:-8]
        return data + b"%08x" % zlib.crc32(data)

    def npy(array, version=(2, 0)):
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, array, version=version)
        return buffer.getvalue()

    good = {"meta.json": b"{}", "array/a.npy": npy(np.arange(3))}
    assert unpack(archive(good), "x")[0]["a"].tolist() == [0, 1, 2]
    for wrong, words in (
        ({"array/a.npy": good["array/a.npy"]}, "KeyError"),
        ({**good, "meta.json": b"{"}, "JSONDecodeError"),
        ({**good, "array/a.txt": b""}, "unexpected member 'array/a.txt'"),
        ({**good, "a.npy": b""}, "unexpected member 'a.npy'"),
        ({**good, "array/a.npy": npy(np.arange(3), (1, 0))}, "unexpected version of the npy format"),
        ({**good, "array/a.npy": npy(np.asfortranarray(np.eye(2)))}, "unexpected layout"),
        ({**good, "array/a.npy": npy(np.array(["2020"], "M8[Y]"))}, "unexpected layout"),
        ({**good, "array/a.npy": good["array/a.npy"][:-1]}, "TypeError"),
    ):
        with pytest.raises(DamagedError, match=rf"x is damaged \(.*{words}"):
            unpack(archive(wrong), "x")
