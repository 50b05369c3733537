"""Parquet: rows and counts, one file and many, whole and damaged."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from bnp_dask.data import as_source
from bnp_dask.data.ingestion.ingest import ingest
from bnp_dask.errors import DataError
from tests.data.reading import read_all, rows, weights

RNG = np.random.default_rng(0)
X = RNG.normal(size=(1000, 3))


def frame(x=X):
    return pd.DataFrame(x, columns=[f"f{i}" for i in range(x.shape[1])])


@pytest.mark.parametrize("batch_size", [None, 70, 130, 5000])
def test_one_file(tmp_path, batch_size):
    frame().to_parquet(tmp_path / "x.parquet", row_group_size=100)
    source = as_source(tmp_path / "x.parquet", batch_size=batch_size)
    np.testing.assert_array_equal(rows(source), X)
    if batch_size in (70, 130):
        assert [b.n_atoms for b in read_all(source)][:-1] == [batch_size] * (source.n_batches - 1)
    assert source.describe()["columns"] == ["f0", "f1", "f2"]


def test_row_groups_are_put_together_and_cut(monkeypatch, tmp_path):
    monkeypatch.setattr("bnp_dask.data.sources.parquet.batch_rows", lambda d, size: 250)
    frame().to_parquet(tmp_path / "small.parquet", row_group_size=100)
    small = as_source(tmp_path / "small.parquet")
    assert [b - a for a, b in small.spans] == [200] * 5
    frame().to_parquet(tmp_path / "large.parquet", row_group_size=800)
    large = as_source(tmp_path / "large.parquet")
    assert [b - a for a, b in large.spans] == [200, 200, 200, 200, 200]
    np.testing.assert_array_equal(rows(small), X)
    np.testing.assert_array_equal(rows(large), X)


def test_folder_columns_weights_and_index(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    data = frame().assign(w=np.arange(1000.0), label="a", i=np.arange(1000), ok=X[:, 0] > 0)
    data.index = np.arange(1000) * 7
    for i in range(4):
        data[i * 250 : (i + 1) * 250].to_parquet(folder / f"part-{i}.parquet")
    (folder / "_SUCCESS").write_text("")
    said = r"features are 'f0', 'f1', 'f2', 'ok'; left out: 'label' \(texts\), 'i' \(row numbers\), '__index_level_0__'"
    with pytest.warns(UserWarning, match=said):
        source = as_source(folder, weights="w", batch_size=100)
    np.testing.assert_array_equal(rows(source), data[["f0", "f1", "f2", "ok"]].astype(float))
    np.testing.assert_array_equal(weights(source), np.arange(1000))
    chosen = as_source(folder, columns=["f2", "i"])
    np.testing.assert_array_equal(rows(chosen), data[["f2", "i"]])
    report = ingest(folder, tmp_path / "y.zarr", columns=["f2", "i"], weights="w", batch_size=300)
    assert report.format == "parquet" and report.n_batches == 4
    copy = as_source(tmp_path / "y.zarr")
    np.testing.assert_array_equal(rows(copy), data[["f2", "i"]])
    np.testing.assert_array_equal(weights(copy), np.arange(1000))
    with pytest.raises(DataError, match="no column 'wt'.*nearest existing name: 'w'"):
        as_source(folder, weights="wt")


def test_fixed_size_lists(tmp_path):
    x = X.astype("f4")
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 3)
    pq.write_table(pa.table({"x": column, "id": X[:, 0]}), tmp_path / "x.parquet")
    with pytest.warns(UserWarning, match=r"features are 'x'; left out: 'id' \(beside the lists x\)"):
        source = as_source(tmp_path / "x.parquet", batch_size=300)
    assert source.n_features == 3
    np.testing.assert_array_equal(rows(source), x)
    table = pq.read_table(tmp_path / "x.parquet", columns=["x"])
    np.testing.assert_array_equal(rows(as_source(table, batch_size=77)), x)
    ingest(tmp_path / "x.parquet", tmp_path / "x.zarr", columns=["x"])
    assert as_source(tmp_path / "x.zarr").describe()["dtype"] == "float32"


def test_memory_url(tmp_path):
    import fsspec

    with fsspec.open("memory://test_memory_url/x.parquet", "wb") as file:
        frame().to_parquet(file)
    np.testing.assert_array_equal(rows(as_source("memory://test_memory_url/x.parquet", batch_size=400)), X)


def test_nulls_become_nan(tmp_path):
    pq.write_table(pa.table({"a": pa.array([1, None, 3]), "b": [True, None, False]}), tmp_path / "x.parquet")
    x = rows(as_source(tmp_path / "x.parquet"))
    np.testing.assert_array_equal(x, [[1, 1], [np.nan, np.nan], [3, 0]])


def test_files_that_do_not_agree(tmp_path):
    frame().to_parquet(tmp_path / "a.parquet")
    frame().drop(columns="f1").to_parquet(tmp_path / "b.parquet")
    with pytest.raises(DataError, match="b.parquet has no column 'f1', which .*a.parquet has"):
        as_source(tmp_path)
    frame().assign(more=1.0).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b.parquet has numeric column\(s\) 'more' that .*a.parquet lacks"):
        as_source(tmp_path)
    assert as_source(tmp_path, columns=["f0"]).n_atoms == 2000
    frame().assign(f1="text").to_parquet(tmp_path / "b.parquet")
    with pytest.raises(DataError, match="column 'f1' is (large_)?string in .*b.parquet, but double"):
        as_source(tmp_path)


def test_damaged_and_wrong_files(tmp_path):
    path = tmp_path / "x.parquet"
    frame().to_parquet(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="x.parquet: no Parquet file, or one that is cut short"):
        as_source(path)
    source_path = tmp_path / "y.parquet"
    frame().to_parquet(source_path)
    source = as_source(source_path)
    source_path.write_bytes(data[:4] + b"\0" * 5000 + data[5004:])
    with pytest.raises(DataError, match="y.parquet: row groups 0-0 are damaged"):
        source.reader(0)()
    pd.DataFrame({"a": ["x"]}).to_parquet(path)
    with pytest.raises(DataError, match="no numeric columns among 'a'"):
        as_source(path)
    frame()[:0].to_parquet(path)
    with pytest.raises(DataError, match="no rows"):
        as_source(path)


COUNTS = RNG.poisson(0.3, (120, 15))
COUNTS[:, 14] = 0
COUNTS[3] = 0


def long_table(counts=COUNTS):
    coo = sparse.coo_array(counts)
    return pd.DataFrame({"doc": coo.coords[0], "word": coo.coords[1], "count": coo.data}).sort_values(["doc", "word"])


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("batch_size", [None, 25])
def test_long_table(tmp_path, shuffled, batch_size):
    table = long_table()
    if shuffled:
        table = table.sample(frac=1, random_state=0)
    table.to_parquet(tmp_path / "c.parquet", row_group_size=50, index=False)
    source = as_source(tmp_path / "c.parquet", batch_size=batch_size)
    assert source.is_sparse and source.n_features == 14 and source.n_batches == (1 if batch_size is None else 5)
    kept = COUNTS[COUNTS.sum(axis=1) > 0, :14]
    np.testing.assert_array_equal(rows(source), kept)


def test_long_table_batches_never_cut_a_document(monkeypatch, tmp_path):
    monkeypatch.setattr("bnp_dask.data.sources.parquet.BATCH_BYTES", 12 * 130)
    long_table().to_parquet(tmp_path / "c.parquet", row_group_size=50, index=False)
    source = as_source(tmp_path / "c.parquet")
    assert source.n_batches > 2
    np.testing.assert_array_equal(rows(source), COUNTS[COUNTS.sum(axis=1) > 0, :14])
    long_table().to_parquet(tmp_path / "one.parquet", index=False)
    one = as_source(tmp_path / "one.parquet")
    assert one.n_batches > 2
    np.testing.assert_array_equal(rows(one), COUNTS[COUNTS.sum(axis=1) > 0, :14])


@pytest.mark.parametrize("batch_size", [None, 50])
def test_list_columns(tmp_path, batch_size):
    csr = sparse.csr_array(COUNTS)
    words = np.split(csr.indices, csr.indptr[1:-1])
    counts = np.split(csr.data, csr.indptr[1:-1])
    table = pa.table({"words": pa.array(words), "counts": pa.array(counts)})
    pq.write_table(table.replace_schema_metadata({"n_words": "15"}), tmp_path / "c.parquet", row_group_size=40)
    source = as_source(tmp_path / "c.parquet", batch_size=batch_size)
    assert source.n_features == 15
    np.testing.assert_array_equal(rows(source), COUNTS)
    report = ingest(tmp_path / "c.parquet", tmp_path / "c.zarr", batch_size=33)
    copy = as_source(tmp_path / "c.zarr")
    assert (report.n_atoms, report.n_features, report.n_batches, report.n_empty) == (
        120,
        15,
        4,
        (COUNTS.sum(axis=1) == 0).sum(),
    )
    np.testing.assert_array_equal(rows(copy), COUNTS)


def test_bad_counts(tmp_path):
    long_table().assign(word=-1).to_parquet(tmp_path / "c.parquet", index=False)
    with pytest.raises(DataError, match="word -1"):
        as_source(tmp_path / "c.parquet").reader(0)()
    long_table().assign(doc=0.5).to_parquet(tmp_path / "d.parquet", index=False)
    with pytest.raises(DataError, match="'doc' has missing or fractional"):
        as_source(tmp_path / "d.parquet").reader(0)()
