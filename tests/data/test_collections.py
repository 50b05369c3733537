"""Dask collections: each block or partition is a batch, computed where it is used."""

import json
import pickle

import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask import delayed
from scipy import sparse

from bnp_dask.data import as_source
from bnp_dask.errors import DataError
from bnp_dask.execute.local import ANY_PORT
from tests.data.reading import read_all, rows, weights

X = np.random.default_rng(0).normal(size=(200, 3))


def test_array():
    source = as_source(da.from_array(X, chunks=(30, 3)) * 2, batch_size=50)
    assert source.n_batches == 4 and source.n_atoms == 200
    np.testing.assert_array_equal(rows(source), 2 * X)
    json.dumps(source.describe())


def test_small_chunks_are_put_together_and_large_ones_kept():
    assert as_source(da.from_array(X, chunks=(1, 3))).n_batches == 1
    large = da.zeros((3_000_000, 4), chunks=(1_500_000, 4))
    assert as_source(large).spans == ((0, 1_500_000), (1_500_000, 3_000_000))


def test_a_reader_holds_the_graph_of_its_block_only():
    x = da.from_array(np.zeros((100_000, 10)), chunks=(100, 10)).map_blocks(lambda b: b + 1)
    source = as_source(x, batch_size=100)
    assert len(pickle.dumps(source.reader(7))) < 30_000
    assert source.reader(7)().x.sum() == 1000


def test_chunked_by_columns_is_refused_with_the_fix():
    with pytest.raises(DataError, match=r"x.rechunk\(\(rows, -1\)\)"):
        as_source(da.from_array(X, chunks=(50, 2)))
    fixed = da.from_array(X, chunks=(50, 2)).rechunk((50, -1))
    np.testing.assert_array_equal(rows(as_source(fixed)), X)


def test_unknown_chunk_sizes():
    x = da.from_array(X, chunks=(50, 3))
    some = x[x[:, 0] > 0]
    source = as_source(some)
    assert source.n_atoms is None and source.n_batches == 4
    np.testing.assert_array_equal(rows(source), X[X[:, 0] > 0])
    with pytest.raises(DataError, match=r"compute_chunk_sizes\(\)"):
        as_source(some, batch_size=10)
    with pytest.raises(DataError, match="lengths of its batches are unknown"):
        as_source(some, weights=np.ones(200))


def test_dtypes_weights_and_sparse_blocks():
    x = da.from_array((10 * X).astype("i2"), chunks=(50, 3))
    w = np.arange(200.0)
    source = as_source(x, weights=w, batch_size=40)
    np.testing.assert_array_equal(rows(source), (10 * X).astype("i2"))
    np.testing.assert_array_equal(weights(source), w)
    with pytest.raises(DataError, match="complex"):
        as_source(x.astype(complex))
    with pytest.raises(DataError, match="needs two axes"):
        as_source(x[:, 0])
    counts = x.map_blocks(lambda b: sparse.csr_array(abs(b)), meta=sparse.csr_array((0, 0), dtype="i2"))
    source = as_source(counts)
    assert source.is_sparse
    np.testing.assert_array_equal(rows(source), abs((10 * X).astype("i2")))


def test_frame():
    frame = pd.DataFrame(X, columns=list("abc")).assign(name="x", w=np.arange(200))
    lazy = dd.from_pandas(frame, npartitions=4)
    with pytest.warns(UserWarning, match="'name'"):
        source = as_source(lazy, weights="w")
    assert source.n_batches == 4 and source.n_atoms is None
    np.testing.assert_array_equal(rows(source), X)
    np.testing.assert_array_equal(weights(source), np.arange(200))
    some = as_source(lazy[lazy.a > 0], columns=["b"])
    np.testing.assert_array_equal(rows(some)[:, 0], frame.b[frame.a > 0])
    with pytest.raises(DataError, match="repartition"):
        as_source(lazy, batch_size=10)
    with pytest.raises(DataError, match=r"dask collection without rows; .*: data.to_frame\(\)"):
        as_source(lazy.a)


def test_persisted_here_works_and_on_a_cluster_is_refused_with_the_fix():
    np.testing.assert_array_equal(rows(as_source(da.from_array(X, chunks=(50, 3)).persist(scheduler="synchronous"))), X)
    from distributed import Client

    free = {"scheduler_kwargs": {"dashboard_address": ANY_PORT}}  # others may have a dashboard on this machine
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, **free) as client:
        x = (da.from_array(X, chunks=(200, 3)) + 1).persist()
        with pytest.raises(DataError, match=r"persisted on a cluster.*x.to_zarr"):
            as_source(x).reader(0)
        source = as_source(da.from_array(X, chunks=(50, 3)), batch_size=50)
        future = client.submit(lambda read: read().x.sum(), source.reader(1))
        assert future.result() == pytest.approx(X[50:100].sum())
        # reading runs inside the task, not as more tasks of the cluster
        assert len(read_all(source)) == 4


LATER = {
    "a list of delayed": (lambda: [delayed(X), delayed(X)], "dask.array.from_delayed(x, (nan, n_columns), float)"),
    "a delayed": (lambda: delayed(X), "data.compute()"),
    "a list of arrays": (lambda: [da.from_array(X)] * 2, "rows dask.array.concatenate([x for x in data])"),
    "a bag of texts": (lambda: db.from_sequence(["a text", "another"]), "texts data.compute()"),
    "a bag of records": (lambda: db.from_sequence([{"a": 1.0}]), "records are data.to_dataframe()"),
    "sequences in an array": (lambda: da.zeros((4, 5, 3)), "groups=np.arange(4 + 1) * 5 sequences"),
}


@pytest.mark.parametrize("kind", LATER)
def test_what_dask_computes_later_is_told_the_call_that_gives_rows(kind):
    make, call = LATER[kind]
    with pytest.raises(DataError) as caught:
        as_source(make())
    assert call in str(caught.value)


def test_the_calls_that_are_advised_give_the_rows():
    parts = [delayed(X[:90]), delayed(X[90:])]
    joined = da.concatenate([da.from_delayed(x, (np.nan, 3), float) for x in parts])
    np.testing.assert_array_equal(rows(as_source(joined)), X)
    cube = da.from_array(X[:60].reshape(4, 5, 9))
    sequences = as_source(cube.reshape((-1, 9)), groups=np.arange(4 + 1) * 5)
    assert sequences.n_groups == 4
    np.testing.assert_array_equal(rows(sequences), X[:60].reshape(20, 9))
