"""Arrow files, and data sets that the Hugging Face library saved."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal

import bnp_dask as bnp
from bnp_dask.errors import DataError

RNG = np.random.default_rng(0)
N = 1000
TABLE = pa.table(
    {
        "a": RNG.normal(size=N),
        "b": RNG.integers(0, 9, N),
        "text": [f"word{i % 7} sea sky" for i in range(N)],
        "walk": np.repeat(np.arange(10), N // 10),
        "e": pa.array(RNG.normal(size=(N, 3)).tolist(), pa.list_(pa.float64())),
        "ragged": pa.array([[1.0] * (i % 3) for i in range(N)]),
    }
)
X = np.column_stack([TABLE["a"], TABLE["b"]]).astype(float)


def write(path, table, contents=False, rows=64, compression=None):
    """An Arrow file: a stream, or with a table of contents."""
    make = pa.ipc.new_file if contents else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema, options=options) as writer:
        writer.write_table(table, rows)


def save(folder, table=TABLE, n_files=3, **state):
    """A folder as ``Dataset.save_to_disk`` leaves it."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{n_files:05d}.arrow" for i in range(n_files)]
    edges = np.linspace(0, len(table), n_files + 1).astype(int)
    for name, a, b in zip(names, edges[:-1], edges[1:], strict=True):
        write(folder / name, table.slice(a, b - a))
    about = {"_data_files": [{"filename": name} for name in names], "_format_type": None, **state}
    (folder / "state.json").write_text(json.dumps(about))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def rows(source):
    return np.concatenate([source.reader(i)().x for i in range(source.n_batches)])


@pytest.mark.parametrize("batch_size", [None, 1, 77, 5000])
def test_a_saved_data_set_is_read_as_it_lies(tmp_path, batch_size):
    source = bnp.as_source(save(tmp_path / "saved"), columns=["a", "b"], batch_size=batch_size)
    assert source.n_atoms == N and not source.is_sparse and source.describe()["kind"] == "arrow"
    assert_array_equal(rows(source), X)
    with pytest.warns(UserWarning, match=r"left out: 'text' \(texts\), 'ragged' \(lists of 0 to 2 values\)"):
        assert bnp.as_source(tmp_path / "saved").columns.layout == (("a", 1), ("b", 1), ("walk", 1), ("e", 3))


@pytest.mark.parametrize("contents", [False, True])
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_a_single_file_is_read_too(tmp_path, contents, compression):
    write(tmp_path / "x.arrow", TABLE, contents, compression=compression)
    source = bnp.as_source(tmp_path / "x.arrow", columns=["b", "a"], weights="walk", batch_size=300)
    assert_array_equal(rows(source), X[:, ::-1])
    assert_array_equal(source.reader(1)().weights, TABLE["walk"].to_numpy()[300:600])
    vectors = bnp.as_source(tmp_path / "x.arrow", columns=["e"], batch_size=300)
    assert_array_equal(rows(vectors), np.array(TABLE["e"].to_pylist()))


def test_groups_ingestion_and_training_go_by_the_columns(tmp_path):
    folder = save(tmp_path / "saved")
    walks = bnp.as_source(folder, columns=["a", "b"], groups="walk", batch_size=250)
    assert walks.n_groups == 10 and walks.n_batches == 5
    report = bnp.ingest(folder, tmp_path / "x.zarr", columns=["a", "b"], group_column="walk")
    assert report.format == "arrow" and report.n_groups == 10
    assert_array_equal(rows(bnp.as_source(tmp_path / "x.zarr")), X)
    plain = bnp.ingest(folder, tmp_path / "e.zarr", columns=["e"])
    assert (plain.n_atoms, plain.n_features) == (N, 3)
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    settings = {
        "init": bnp.RandomExamples(2),
        "schedule": bnp.Memoized(tolerance=0.1, count_tolerance=0.1),
        "moves": (),
    }
    by_path = bnp.train(model, bnp.as_source(folder, columns=["a", "b"]), **settings).posterior
    by_array = bnp.train(model, X, **settings).posterior
    assert_array_equal(by_path.weights, by_array.weights)
    assert_array_equal(bnp.predict(by_path, folder), bnp.predict(by_array, X))


def test_a_column_of_text_becomes_counts(tmp_path):
    report = bnp.ingest(save(tmp_path / "saved"), tmp_path / "x.zarr", text=bnp.Text(column="text", min_df=2))
    assert report.n_atoms == N and report.n_features == 9
    with pytest.raises(DataError, match="raw text"):
        bnp.as_source(tmp_path / "saved", format="parquet-text")


def test_what_cannot_be_read_says_why(tmp_path):
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match="holds the data sets train, test; give one: .*all/train"):
        bnp.as_source(tmp_path / "all")
    chosen = save(tmp_path / "chosen", _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(DataError, match="flatten_indices"):
        bnp.as_source(chosen)
    for state in ('{"_data_files": []}', '{"_data_files": [{"filename": "../x.arrow"}]}', "[]", "{"):
        (chosen / "state.json").write_text(state)
        with pytest.raises(DataError, match="save"):
            bnp.as_source(chosen)
    whole = tmp_path / "x.arrow"
    write(whole, TABLE)
    (tmp_path / "cut.arrow").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    (tmp_path / "other.arrow").write_bytes(b"nothing of the kind")
    for name in ("cut.arrow", "other.arrow"):
        with pytest.raises(DataError, match=f"{name}.*(Arrow|damaged)"):
            rows(bnp.as_source(tmp_path / name, columns=["a"]))
    with pytest.raises(DataError, match="'ragged'"):
        bnp.as_source(whole, columns=["ragged"])
    mixed = pa.table({"v": pa.array([[1.0, 2.0]] * 64 + [[1.0]] * 64)})
    write(tmp_path / "late.arrow", mixed)
    with pytest.raises(DataError, match="row 64, column 'v' is a list of 1; needs lists of 2"):
        rows(bnp.as_source(tmp_path / "late.arrow", columns=["v"]))
    with pytest.raises(DataError, match="local disks only"):
        bnp.as_source(_far(whole), columns=["a"])


def _far(path):
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.pipe("/far.arrow", path.read_bytes())
    return "memory://far.arrow"


def test_the_library_itself(tmp_path):
    datasets = pytest.importorskip("datasets")
    held = datasets.Dataset.from_dict({name: TABLE[name].to_pylist() for name in ("a", "b", "text", "e")})
    held.save_to_disk(tmp_path / "saved", num_shards=3)
    assert_array_equal(rows(bnp.as_source(tmp_path / "saved", columns=["a", "b"])), X)
    assert_array_equal(rows(bnp.as_source(held, columns=["a", "b"])), X)
    assert_array_equal(rows(bnp.as_source(held, columns=["e"])), np.array(TABLE["e"].to_pylist()))
    turned = held.select(range(N - 1, -1, -1))
    assert_array_equal(rows(bnp.as_source(turned, columns=["a", "b"])), X[::-1])
    turned.save_to_disk(tmp_path / "turned")
    assert_array_equal(rows(bnp.as_source(tmp_path / "turned", columns=["a", "b"])), X[::-1])
