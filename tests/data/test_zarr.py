"""Rows in Zarr: stores of any origin and our own, local and by URL, whole and damaged."""

import asyncio
import gc
import os
import shutil

import numpy as np
import pytest
import zarr
from scipy import sparse

from bnp_dask.data import as_source
from bnp_dask.data.ingestion.ingest import ingest
from bnp_dask.errors import DataError
from tests.data.reading import rows, weights

RNG = np.random.default_rng(0)
X = RNG.normal(size=(1000, 6)) + 5


def write(path, x=X, chunks=(100, 6), **settings):
    array = zarr.create_array(str(path), shape=x.shape, chunks=chunks, dtype=x.dtype, **settings)
    array[...] = x
    return path


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"chunks": (77, 4)},
        {"chunks": (1000, 1)},
        {"chunks": (50, 3), "shards": (200, 6)},
        {"compressors": None},
        {"zarr_format": 2},
    ],
)
@pytest.mark.parametrize("batch_size", [None, 128, 1000])
def test_any_layout(tmp_path, settings, batch_size):
    source = as_source(write(tmp_path / "x.zarr", **settings), batch_size=batch_size)
    assert not source.is_sparse and source.n_batches == (8 if batch_size == 128 else 1)
    np.testing.assert_array_equal(rows(source), X)


def test_chunks_larger_than_a_batch_are_batches(tmp_path):
    x = np.ones((3000, 3000), "f4")
    source = as_source(write(tmp_path / "x.zarr", x, (2000, 3000)))
    assert [source.reader(i).name.split("(")[1] for i in range(2)] == ["rows 0-1999)", "rows 2000-2999)"]


def test_small_pieces_need_no_other_thread(tmp_path, monkeypatch):
    """Threads that hand a chunk to one another wait for the interpreter every time."""
    source = as_source(write(tmp_path / "x.zarr"), batch_size=100)

    def refused(*args, **kwargs):
        raise AssertionError("another thread was asked")

    monkeypatch.setattr("zarr.Array", refused)
    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor._adjust_thread_count", refused)
    np.testing.assert_array_equal(rows(source), X)


def test_where_a_loop_is_running_already(tmp_path):
    """As in a notebook."""
    source = as_source(write(tmp_path / "x.zarr"), batch_size=100)

    async def cell():
        return rows(source)

    np.testing.assert_array_equal(asyncio.run(cell()), X)


# zarr makes the coroutines of all chunks before it awaits the first: in 3.1 concurrent_map, later concurrent_iter
@pytest.mark.filterwarnings("ignore:.*coroutine.*concurrent_(map|iter):pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_comes_out_as_what_it_is(tmp_path, monkeypatch, caplog):
    """And nothing is reported about the parts of the reading that were not ended."""
    source = as_source(write(tmp_path / "x.zarr", chunks=(50, 3)), batch_size=100)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("bnp_dask.data.sources.zarr._Here.submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        source.reader(0)()
    gc.collect()
    assert not caplog.records


def test_what_zarr_knows_of_an_array_is_looked_up_once(tmp_path):
    source = as_source(write(tmp_path / "x.zarr"), batch_size=100)
    os.remove(tmp_path / "x.zarr" / "zarr.json")
    np.testing.assert_array_equal(rows(source), X)


def test_group_with_x_and_weights(tmp_path):
    group = zarr.create_group(str(tmp_path / "g.zarr"))
    group.create_array("x", data=X.astype("f4"), chunks=(100, 6))
    group.create_array("weights", data=np.arange(1000))
    source = as_source(str(tmp_path / "g.zarr"), batch_size=300)
    np.testing.assert_array_equal(rows(source), X.astype("f4"))
    np.testing.assert_array_equal(weights(source), np.arange(1000))
    # an array of the group by its own path
    assert as_source(tmp_path / "g.zarr" / "x").n_atoms == 1000


def test_url_and_remote_ingest():
    url = "memory://test_url_and_remote_ingest/x.zarr"
    zarr.create_array(url, data=X, chunks=(100, 6))
    source = as_source(url, batch_size=250)
    np.testing.assert_array_equal(rows(source), X)
    report = ingest(url, "memory://test_url_and_remote_ingest/y.zarr", batch_size=400)
    copy = as_source("memory://test_url_and_remote_ingest/y.zarr")
    assert report.n_batches == copy.n_batches == 3
    np.testing.assert_array_equal(rows(copy), X)
    with pytest.raises(DataError, match="nearest existing name: 'y.zarr'"):
        as_source("memory://test_url_and_remote_ingest/yy.zarr")


def test_npy_by_url(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.testing.assert_array_equal(rows(as_source(f"file://{tmp_path}/x.npy")), X)


@pytest.mark.parametrize("settings", [{}, {"compressors": None}, {"chunks": (50, 3), "shards": (200, 6)}])
def test_missing_and_truncated_chunks_are_named(tmp_path, settings):
    path = write(tmp_path / "x.zarr", **settings)
    source = as_source(path)
    chunk = path / "c" / "2" / "0"
    data = chunk.read_bytes()
    chunk.unlink()
    with pytest.raises(DataError, match="x.zarr: chunk c/2/0 .* is missing"):
        source.reader(0)()
    for size in (len(data) - 7, len(data) // 2, 0):
        chunk.write_bytes(data[:size])
        with pytest.raises(DataError, match="x.zarr: chunk c/2/0 .* truncated or damaged"):
            source.reader(0)()
    chunk.write_bytes(data)
    np.testing.assert_array_equal(rows(source), X)


def test_own_stores_notice_a_changed_byte(tmp_path):
    np.save(tmp_path / "x.npy", X)
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", batch_size=250)
    chunk = tmp_path / "x.zarr" / "x" / "c" / "1" / "0"
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(bytes(data))
    source = as_source(tmp_path / "x.zarr")
    assert source.reader(0)().n_atoms == 250
    with pytest.raises(DataError, match="chunk c/1/0"):
        source.reader(1)()


def test_all_zero_chunks_of_own_stores_are_written(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((100, 3)))
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", batch_size=10)
    assert rows(as_source(tmp_path / "x.zarr")).sum() == 0


def test_wrong_stores(tmp_path):
    zarr.create_group(str(tmp_path / "g.zarr")).create_array("patches", data=X)
    with pytest.raises(DataError, match=r"without array 'x' \(it has patches\).*g.zarr/patches"):
        as_source(tmp_path / "g.zarr")
    write(tmp_path / "cube.zarr", np.ones((4, 5, 6)), (4, 5, 6))
    with pytest.raises(DataError, match="needs two axes.*reshape"):
        as_source(tmp_path / "cube.zarr")
    write(tmp_path / "complex.zarr", X.astype(complex))
    with pytest.raises(DataError, match="complex numbers"):
        as_source(tmp_path / "complex.zarr")
    (tmp_path / "empty.zarr").mkdir()
    with pytest.raises(DataError, match="cut short"):
        as_source(tmp_path / "empty.zarr")
    (tmp_path / "bad.zarr").mkdir()
    (tmp_path / "bad.zarr" / "zarr.json").write_text("{")
    with pytest.raises(DataError, match="cut short"):
        as_source(tmp_path / "bad.zarr")
    group = zarr.create_group(str(tmp_path / "w.zarr"))
    group.create_array("x", data=X)
    group.create_array("weights", data=np.ones(5))
    with pytest.raises(DataError, match=r"weights has shape \(5,\)"):
        as_source(tmp_path / "w.zarr")
    group = zarr.create_group(str(tmp_path / "new.zarr"), attributes={"bnp_dask": {"format": 99}})
    group.create_array("x", data=X)
    with pytest.raises(DataError, match="this version reads format 1"):
        as_source(tmp_path / "new.zarr")
    with pytest.raises(DataError, match="this version reads format 1"):
        as_source(zarr.open_group(str(tmp_path / "new.zarr")))


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "?"])
def test_ingest_keeps_the_dtype(tmp_path, dtype):
    x = (10 * X).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    seen = []
    report = ingest(
        tmp_path / "x.npy", tmp_path / "x.zarr", batch_size=130, progress=lambda part, n: seen.append((part, n))
    )
    source = as_source(tmp_path / "x.zarr")
    assert source.n_batches == report.n_batches == 8 and (report.n_atoms, report.n_features) == (1000, 6)
    assert source.describe()["dtype"] == report.dtype == str(x.dtype)
    np.testing.assert_array_equal(rows(source), x.astype(float))
    assert seen[-1] == (1.0, 1000) and report.nbytes == 48_000
    assert report.stored_bytes == sum(f.stat().st_size for f in (tmp_path / "x.zarr").rglob("*") if f.is_file())
    assert "1,000 atoms, 6 features, 8 batches" in str(report)


def test_ingest_dtype_is_refused_where_it_loses(tmp_path):
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(DataError, match="uint8 cannot hold"):
        ingest(tmp_path / "x.npy", tmp_path / "y.zarr", dtype="uint8")
    assert os.listdir(tmp_path) == ["x.npy"]
    ingest(tmp_path / "x.npy", tmp_path / "y.zarr", dtype="float32")
    np.testing.assert_array_equal(rows(as_source(tmp_path / "y.zarr")), X.astype("f4"))


def test_ingest_is_all_or_nothing(tmp_path):
    np.save(tmp_path / "x.npy", X)
    out = tmp_path / "y.zarr"

    def stop(part, n):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(tmp_path / "x.npy", out, progress=stop)
    assert os.listdir(tmp_path) == ["x.npy"]
    ingest(tmp_path / "x.npy", out)
    with pytest.raises(DataError, match="y.zarr exists.*overwrite"):
        ingest(tmp_path / "x.npy", out)
    np.save(tmp_path / "x.npy", X + 1)
    with pytest.raises(KeyboardInterrupt):
        ingest(tmp_path / "x.npy", out, progress=stop, overwrite=True)
    np.testing.assert_array_equal(rows(as_source(out)), X)
    ingest(tmp_path / "x.npy", out, overwrite=True)
    np.testing.assert_array_equal(rows(as_source(out)), X + 1)
    assert sorted(os.listdir(tmp_path)) == ["x.npy", "y.zarr"]


def test_a_store_without_its_group_is_not_opened(tmp_path):
    np.save(tmp_path / "x.npy", X)
    ingest(tmp_path / "x.npy", tmp_path / "y.zarr")
    (tmp_path / "y.zarr" / "zarr.json").unlink()
    with pytest.raises(DataError, match="cut short"):
        as_source(tmp_path / "y.zarr")
    ingest(tmp_path / "x.npy", tmp_path / "z.zarr")
    shutil.rmtree(tmp_path / "z.zarr" / "x")
    with pytest.raises(DataError, match="without array 'x'|no Zarr array"):
        as_source(tmp_path / "z.zarr")


def test_projection_is_pca_and_can_be_used_again(tmp_path):
    mixing = RNG.normal(size=(6, 6))
    x = X @ mixing
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "new.npy", x[:10])
    report = ingest(tmp_path / "x.npy", tmp_path / "p.zarr", project=2, batch_size=100)
    values, vectors = np.linalg.eigh(np.cov(x.T))
    found = rows(as_source(tmp_path / "p.zarr"))
    np.testing.assert_allclose(np.abs(found), np.abs((x - x.mean(0)) @ vectors[:, :-3:-1]), rtol=1e-8, atol=1e-8)
    assert f"{100 * values[-2:].sum() / values.sum():.1f} %" in str(report)
    ingest(tmp_path / "new.npy", tmp_path / "q.zarr", project=tmp_path / "p.zarr")
    np.testing.assert_allclose(rows(as_source(tmp_path / "q.zarr")), found[:10], rtol=1e-9, atol=1e-9)
    with pytest.raises(DataError, match="was not projected"):
        ingest(tmp_path / "x.npy", tmp_path / "plain.zarr")
        ingest(tmp_path / "x.npy", tmp_path / "r.zarr", project=tmp_path / "plain.zarr")


def test_a_store_of_counts_with_weights_says_so(tmp_path):
    x = sparse.random_array((20, 6), density=0.5, rng=np.random.default_rng(0), format="csr")
    x.data = np.ceil(4 * x.data)
    sparse.save_npz(tmp_path / "x.npz", x)
    np.save(tmp_path / "w.npy", np.arange(1.0, 21.0))
    ingest(tmp_path / "x.npz", tmp_path / "plain.zarr", batch_size=8)
    ingest(tmp_path / "x.npz", tmp_path / "weighted.zarr", batch_size=8, weights=tmp_path / "w.npy")
    plain, weighted = (as_source(tmp_path / f"{name}.zarr") for name in ("plain", "weighted"))
    np.testing.assert_array_equal(weights(weighted), np.arange(1.0, 21.0))
    assert plain.describe()["weights"] is None and weighted.describe()["weights"] == "weights"
