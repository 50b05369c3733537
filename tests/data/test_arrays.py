"""Sources in memory, and .npy files."""

import json
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse

from bnp_dask.data import as_source
from bnp_dask.errors import DataError, SettingError
from tests.data.reading import read_all, rows, weights

RNG = np.random.default_rng(0)
X = RNG.normal(size=(103, 4))


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "i4", "u1", "?"])
@pytest.mark.parametrize("where", ["array", "npy", "npy fortran"])
def test_any_real_dtype_becomes_float64(dtype, where, tmp_path):
    x = (10 * np.abs(X)).astype(dtype)
    data = x
    if where != "array":
        data = tmp_path / "x.npy"
        np.save(data, np.asfortranarray(x) if "fortran" in where else x)
    source = as_source(data, batch_size=10)
    assert source.n_batches == 11 and source.n_atoms == 103
    np.testing.assert_array_equal(rows(source), x.astype(float))
    json.dumps(source.describe())


@pytest.mark.parametrize("x", [X.astype(complex), np.array([["a", "b"]]), np.array([[object(), 1]], object)])
def test_other_dtypes_are_refused(x):
    with pytest.raises(DataError, match="needs real numbers"):
        as_source(x)


@pytest.mark.parametrize("shape", [(5,), (5, 2, 2, 2), (0, 3), (3, 0), (0, 2, 2), (2, 2, 0)])
def test_shapes_are_refused(shape, tmp_path):
    with pytest.raises(DataError, match="needs two axes|no rows|no columns"):
        as_source(np.zeros(shape))
    np.save(tmp_path / "x.npy", np.zeros(shape))
    with pytest.raises(DataError, match="needs two axes|no rows|no columns"):
        as_source(tmp_path / "x.npy")


def test_a_file_of_sequences_is_given_as_the_array_that_it_holds(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((5, 2, 3)))
    with pytest.raises(DataError, match=r"sequences \(G, T, D\) are given as an array in memory, np.load"):
        as_source(tmp_path / "x.npy")
    assert as_source(np.load(tmp_path / "x.npy")).n_groups == 5


def test_default_batches_hold_32_mb():
    x = np.broadcast_to(np.float64(1), (100_000, 100))
    source = as_source(x)
    assert source.n_batches == 3 and source.reader(0)().nbytes <= 32 * 2**20
    assert source.reader(0).name == "array batch 0 (rows 0-41942)"


@pytest.mark.parametrize("bad", [0, -1, 2.5, True, "7"])
def test_bad_batch_size(bad):
    with pytest.raises(SettingError, match="batch_size"):
        as_source(X, batch_size=bad)


def test_a_source_is_returned_as_is_and_an_index_is_checked():
    source = as_source(X, batch_size=50)
    assert as_source(source) is source
    with pytest.raises(DataError, match="already a source"):
        as_source(source, batch_size=3)
    with pytest.raises(IndexError, match="0 to 2"):
        source.reader(3)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil"])
def test_scipy_sparse(kind):
    x = RNG.poisson(0.3, (57, 20))
    source = as_source(sparse.coo_array(x).asformat(kind), batch_size=10)
    assert source.is_sparse and source.n_batches == 6
    np.testing.assert_array_equal(rows(source), x)


def test_duplicates_are_summed_and_the_input_is_left_alone():
    x = sparse.csr_array((np.array([1, 2, 3]), np.array([4, 1, 4]), np.array([0, 3, 3])), shape=(2, 5))
    batch = as_source(x).reader(0)()
    np.testing.assert_array_equal(batch.x.toarray(), [[0, 2, 0, 0, 4], [0, 0, 0, 0, 0]])
    assert x.nnz == 3 and x.indices.tolist() == [4, 1, 4]


def test_sparse_default_batches_are_cut_by_entries(monkeypatch):
    from bnp_dask.data.base import sparse_spans

    x = sparse.csr_array(np.ones((100, 50)))
    cut = sparse_spans(x.indptr, 50, None, batch_bytes=12 * 510)
    assert cut == [(a, a + 10) for a in range(0, 100, 10)]
    empty = sparse.csr_array((100, 50))
    assert sum(b - a for a, b in sparse_spans(empty.indptr, 50, None, 12 * 30)) == 100


def test_weights_as_array_and_file(tmp_path):
    w = RNG.random(103)
    np.save(tmp_path / "w.npy", w.astype("f4"))
    np.save(tmp_path / "x.npy", X)
    np.testing.assert_array_equal(weights(as_source(X, batch_size=20, weights=w)), w)
    source = as_source(tmp_path / "x.npy", batch_size=20, weights=tmp_path / "w.npy")
    np.testing.assert_array_equal(weights(source), w.astype("f4"))
    np.testing.assert_array_equal(rows(source), X)
    assert "weights" in source.describe()
    told = [as_source(X, weights=np.where(np.arange(103) == row, 9.0, w)).describe()["weights"] for row in (0, 50, 102)]
    assert len({*told, as_source(X, weights=w).describe()["weights"]}) == 4
    for bad, message in ((w[:-1], "one per atom"), (-w, ">= 0"), (np.where(w > 0.5, np.nan, w), "nan")):
        with pytest.raises(DataError, match=message):
            as_source(X, weights=bad)
    np.save(tmp_path / "short.npy", w[:50])
    with pytest.raises(DataError, match="50 weights for the 103"):
        as_source(tmp_path / "x.npy", weights=tmp_path / "short.npy")


def test_frames_and_tables():
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5], "name": ["x", "y", "z"], "w": [1.0, 0.0, 2.0]})
    with pytest.warns(UserWarning, match="'name'"):
        source = as_source(frame, weights="w", batch_size=2)
    np.testing.assert_array_equal(rows(source), [[1, 0.5], [2, 1.5], [3, 2.5]])
    np.testing.assert_array_equal(weights(source), [1, 0, 2])
    np.testing.assert_array_equal(rows(as_source(frame, columns=["b", "w"])), frame[["b", "w"]])
    table = pa.Table.from_pandas(frame)
    np.testing.assert_array_equal(rows(as_source(table, columns=["b", "a"], weights="w")), frame[["b", "a"]])
    nullable = pd.DataFrame({"a": pd.array([1, None], "Int64")})
    assert np.isnan(rows(as_source(nullable))[1, 0])
    with pytest.raises(DataError, match="no column 'bb'.*nearest existing name: 'b'"):
        as_source(frame, columns=["bb"])
    with pytest.raises(DataError, match="'name' is .*needs numbers"):
        as_source(frame, columns=["name"])
    with pytest.raises(DataError, match="no numeric columns"):
        as_source(frame[["name"]])


def test_npz(tmp_path):
    np.savez(tmp_path / "one.npz", data=X)
    np.testing.assert_array_equal(rows(as_source(tmp_path / "one.npz")), X)
    np.savez(tmp_path / "two.npz", a=X, b=X)
    with pytest.raises(DataError, match=r"a, b; needs one.*np.load"):
        as_source(tmp_path / "two.npz")
    counts = sparse.csr_array(RNG.poisson(0.3, (20, 9)))
    sparse.save_npz(tmp_path / "s.npz", counts)
    np.testing.assert_array_equal(rows(as_source(tmp_path / "s.npz")), counts.toarray())


def test_damaged_npy(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, X)
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    with pytest.raises(DataError, match="cut short"):
        as_source(path)
    path.write_bytes(b"nothing like it")
    with pytest.raises(DataError, match="not a .npy"):
        as_source(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="empty file"):
        as_source(path)
    np.save(path, np.array([[1, "a"]], object), allow_pickle=True)
    with pytest.raises(DataError, match="Python objects"):
        as_source(path)


def test_things_that_are_no_data(tmp_path):
    np.save(tmp_path / "patches.npy", X)
    with pytest.raises(DataError, match="no such file or folder; nearest existing name: 'patches.npy'"):
        as_source(tmp_path / "patchs.npy")
    (tmp_path / "other.bin").write_bytes(b"1")
    with pytest.raises(DataError, match="neither Parquet files"):
        as_source(tmp_path)
    with pytest.raises(DataError, match="data is dict"):
        as_source({"a": 1})
    with pytest.raises(SettingError, match="did you mean 'svmlight0?'"):
        as_source(tmp_path / "patches.npy", format="svmlite")
    (tmp_path / "notes.txt").write_text("Dear diary")
    with pytest.raises(DataError, match="tell no format"):
        as_source(tmp_path / "notes.txt")
    with pytest.raises(DataError, match="named columns"):
        as_source(tmp_path / "patches.npy", columns=["a"])
    with pytest.raises(DataError, match="masked"):
        as_source(np.ma.masked_less(X, 0))


def test_a_pickled_reader_carries_its_rows_only():
    import pickle

    x = np.zeros((100_000, 10))
    assert len(pickle.dumps(as_source(x, batch_size=100).reader(5))) < 10_000
    assert read_all(as_source(x, batch_size=50_000))[1].name == "array batch 1 (rows 50000-99999)"


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs devices as files")
def test_a_device_is_named_and_not_read():
    with pytest.raises(DataError, match="/dev/zero: is a device; needs a file or folder"):
        as_source("/dev/zero", format="npy")
