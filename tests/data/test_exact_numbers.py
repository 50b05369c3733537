"""Whole numbers of 64 bits that float64 would round, and masked entries, are refused wherever arrays enter."""

from __future__ import annotations

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.data import as_source
from bnp_dask.data.ingestion.ingest import ingest
from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import require_exact

BIG = 2**53 + 1


def whole(value=BIG, dtype=np.int64):
    x = np.arange(24, dtype=dtype).reshape(8, 3)
    x[5, 1] = value
    return x


def frame(**more):
    return pd.DataFrame(whole(), columns=["a", "b", "c"]).assign(**more)


def npy(folder, x):
    np.save(folder / "x.npy", x)
    return folder / "x.npy"


def zarr_array(folder, x):
    zarr.create_array(str(folder / "x.zarr"), data=x, chunks=(3, 3))
    return folder / "x.zarr"


def parquet(folder, table):
    pq.write_table(table, folder / "x.parquet")
    return folder / "x.parquet"


def vectors():
    return pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(whole().ravel()), 3)})


def grouped(folder, kind):
    table = frame(g=[0, 0, 0, 0, 1, 1, 1, 1])
    if kind == "csv":
        table.to_csv(folder / "x.csv", index=False)
        return folder / "x.csv"
    return parquet(folder, pa.Table.from_pandas(table, preserve_index=False))


def csv(folder):
    frame().to_csv(folder / "x.csv", index=False)
    return folder / "x.csv"


def counts_table(folder):
    table = pa.table({"doc": [0, 0, 1], "word": [0, 1, 1], "count": [1, BIG, 2]})
    return parquet(folder, table)


def lists_table(folder):
    return parquet(folder, pa.table({"words": [[0, 1], [1]], "counts": [[1, BIG], [2]]}))


DATA = {
    "array": lambda f: whole(),
    "unsigned": lambda f: whole(2**64 - 1, np.uint64),
    "negative": lambda f: whole(-BIG),
    "big-endian": lambda f: whole(dtype=">i8"),
    "list": lambda f: whole().tolist(),
    "groups": lambda f: [whole(), whole(1)],
    "sparse": lambda f: sparse.csr_array(whole()),
    "csc": lambda f: sparse.csc_array(whole()),
    "dok": lambda f: sparse.dok_array(whole()),
    "npy": lambda f: npy(f, whole()),
    "npy by column": lambda f: npy(f, np.asfortranarray(whole())),
    "zarr": lambda f: zarr_array(f, whole()),
    "parquet": lambda f: parquet(f, pa.Table.from_pandas(frame())),
    "parquet of vectors": lambda f: parquet(f, vectors()),
    "parquet of counts": counts_table,
    "parquet of lists": lists_table,
    "table": lambda f: pa.Table.from_pandas(frame()),
    "frame": lambda f: frame(),
    "nullable frame": lambda f: frame(b=pd.array(whole()[:, 1], dtype="Int64")),
    "arrow frame": lambda f: frame(b=pd.array(whole()[:, 1], dtype="int64[pyarrow]")),
    "dask array": lambda f: da.from_array(whole(), chunks=(4, 3)),
    "dask frame": lambda f: dd.from_pandas(frame(), npartitions=2),
    "csv": csv,
}


def read_all(data, **more):
    source = as_source(data, **more)
    return [source.reader(b)() for b in range(source.n_batches)]


@pytest.mark.parametrize("name", DATA)
def test_data_that_would_be_rounded_are_refused_with_row_and_column(tmp_path, name):
    data = DATA[name](tmp_path)
    with pytest.raises(DataError, match=r"float64 (would round|rounds)") as caught:
        read_all(data)
    assert "row" in str(caught.value) or "groups" in name
    if name in ("array", "npy", "npy by column", "zarr", "list", "parquet of vectors"):
        assert "row 5, column" in str(caught.value)
    if "frame" in name or name in ("parquet", "table", "csv"):
        assert "column 'b'" in str(caught.value)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_that_are_sorted_into_groups_are_checked_too(tmp_path, kind):
    path = grouped(tmp_path, kind)
    with pytest.raises(DataError, match="column 'b'"):
        ingest(path, tmp_path / "out.zarr", group_column="g")
    with pytest.raises(DataError, match="column 'b'"):
        read_all(path, groups="g")


@pytest.mark.parametrize("value", [2**53, 2**60, -(2**63), 2**53 - 1])
def test_numbers_that_float64_holds_are_taken(value):
    assert read_all(whole(value))[0].x[5, 1] == value


def test_what_is_rounded_is_told_from_what_is_not():
    rng = np.random.default_rng(0)
    for value in [*(2 ** rng.integers(50, 63, 300) + rng.integers(-3, 4, 300)), 2**63 - 1, -(2**63)]:
        x = np.array([int(value)], np.int64)
        if int(float(int(value))) == int(value):
            require_exact(x, "x")
        else:
            with pytest.raises(DataError, match=str(value)):
                require_exact(x, "x")


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_store_of_another_type_keeps_whole_numbers_or_refuses_them(tmp_path, dtype):
    path = npy(tmp_path, whole(2**24 + 1))
    if dtype == "int32":
        ingest(path, tmp_path / "out.zarr", dtype=dtype)
        assert read_all(tmp_path / "out.zarr")[0].x[5, 1] == 2**24 + 1
        return
    with pytest.raises(DataError, match="float32 cannot hold"):
        ingest(path, tmp_path / "out.zarr", dtype=dtype)


def test_weights_that_would_be_rounded_are_refused(tmp_path):
    x, w = np.ones((8, 2)), whole()[:, 1]
    np.save(tmp_path / "w.npy", w)
    table = pa.table({"a": x[:, 0], "w": w})
    for data, weights in (
        (x, w),
        (x, tmp_path / "w.npy"),
        (table, "w"),
        (parquet(tmp_path, table), "w"),
        (table.to_pandas(), "w"),
    ):
        with pytest.raises(DataError, match=f"row 5 is {BIG}|row 5, column .* is {BIG}"):
            read_all(data, weights=weights)


def outcome(use):
    """The message of the error that a call ends in."""
    try:
        use()
    except bnp.BnpDaskError as error:
        return str(error)
    return "accepted"


# -- masks -----------------------------------------------------------------------------------------------------
def masked(shape, place):
    x = np.ma.masked_array(np.ones(shape), np.zeros(shape, bool))
    x[place] = np.ma.masked
    return x


def test_masked_entries_are_refused_wherever_they_are():
    x = np.random.default_rng(0).normal(size=(40, 2))
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian())
    hmm = bnp.Model(bnp.HDPHMM(), bnp.Gaussian())
    lazy = da.from_delayed(dask.delayed(lambda: masked((40, 2), (3, 1)))(), (40, 2), float)
    uses = {
        "data": lambda: bnp.train(model, masked((40, 2), (3, 1))),
        "weights": lambda: bnp.train(model, x, weights=masked(40, 7)),
        "groups": lambda: as_source(x, groups=np.ma.masked_array([0, 9, 40], [0, 1, 0])),
        "list of groups": lambda: as_source([x, masked((5, 2), (1, 1))]),
        "responsibilities": lambda: bnp.train(model, x, init=bnp.Responsibilities(masked((40, 1), (3, 0)))),
        "labels": lambda: bnp.train(model, x, init=bnp.Responsibilities(masked(40, 3))),
        "dask": lambda: bnp.train(model, lazy),
        "setting": lambda: bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian(m=masked(2, 1))), x),
        "mixture": lambda: bnp.DirichletProcessMixture(max_laps=1).fit(masked((40, 2), (3, 1))),
        "sample_weight": lambda: bnp.DirichletProcessMixture(max_laps=1).fit(x, sample_weight=masked(40, 3)),
        "topics": lambda: bnp.TopicModel(2).fit(masked((40, 2), (3, 1))),
        "sequences": lambda: bnp.SequenceModel(n_states=2).fit([x, masked((5, 2), (1, 1))]),
        "lengths": lambda: bnp.SequenceModel(n_states=2).fit(x, lengths=np.ma.masked_array([10, 30], [0, 1])),
        "predict": lambda: bnp.predict(bnp.train(hmm, as_source(x, groups=[0, 40])).posterior, masked((4, 2), (1, 1))),
        "durations": lambda: bnp.state_durations(np.ma.masked_array([1, 1, 2], [0, 1, 0])),
        "missing": lambda: bnp.without_missing([masked((4, 2), (1, 1))]),
        "batch": lambda: bnp.Batch(masked((4, 2), (1, 1))),
    }
    said = {name: outcome(use) for name, use in uses.items()}
    assert not {name: text for name, text in said.items() if "masked" not in text}


def test_a_mask_that_hides_nothing_does_no_harm():
    x = np.ma.masked_array(np.arange(12.0).reshape(6, 2), np.zeros((6, 2), bool))
    (batch,) = read_all(x, weights=np.ma.masked_array(np.arange(6.0)))
    assert type(batch.x) is np.ndarray and type(batch.weights) is np.ndarray


# -- what Dask says of its chunks ------------------------------------------------------------------------------
def chunks(make, sizes, dtype=float, width=3):
    """An array of chunks that ``make`` gives, said to have these sizes."""
    parts = [da.from_delayed(dask.delayed(make)(i), (n, width), dtype) for i, n in enumerate(sizes)]
    return da.concatenate(parts)


UNKEPT = {
    "fewer rows": lambda i: np.ones((20 - 5 * (i == 1), 3)),
    "more rows": lambda i: np.ones((20 + 5 * (i == 1), 3)),
    "fewer columns": lambda i: np.ones((20, 3 - (i == 1))),
    "more columns": lambda i: np.ones((20, 3 + (i == 1))),
    "one axis": lambda i: np.ones((20, 3) if i != 1 else 60),
    "complex numbers": lambda i: np.ones((20, 3), complex if i == 1 else float),
    "text": lambda i: np.full((20, 3), "1.0") if i == 1 else np.ones((20, 3)),
    "sparse counts": lambda i: sparse.csr_array(np.ones((20, 3))) if i == 1 else np.ones((20, 3)),
}


@pytest.mark.parametrize("batch_size", [None, 7, 20, 60])
@pytest.mark.parametrize("name", UNKEPT)
def test_chunks_that_are_not_what_the_array_says_are_errors(name, batch_size):
    """Dask cuts and joins what it gets: rows beyond those announced would be lost, or missing ones not missed."""
    with pytest.raises(DataError, match="the array says|computed"):
        read_all(chunks(UNKEPT[name], (20, 20, 20)), batch_size=batch_size)


def test_a_dtype_that_is_not_kept_is_an_error_where_values_would_change():
    halves = chunks(lambda i: np.full((20, 3), 0.5), (20, 20), int)
    with pytest.raises(DataError, match="dtype float64, but the array says int64"):
        read_all(halves)
    assert read_all(chunks(lambda i: np.ones((20, 3), np.float32), (20, 20)))[0].x.dtype == np.float64


@pytest.mark.parametrize("name", ["fewer rows", "more rows", "fewer columns", "text"])
def test_prediction_of_such_chunks_is_an_error(name):
    x = np.random.default_rng(0).normal(size=(60, 3))
    posterior = bnp.train(bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), x, init=bnp.BregmanKMeans(2)).posterior
    labels = bnp.predict(posterior, chunks(UNKEPT[name], (20, 20, 20)))
    with pytest.raises(DataError, match="the array says"):
        labels.compute(scheduler="sync")


def partition(i):
    columns = {"a": np.ones(5), "b": np.arange(5.0)}
    return pd.DataFrame(columns)


BAD_PARTITIONS = {
    "a column less": lambda part: part[["a"]],
    "a column twice": lambda part: pd.concat([part, part[["a"]]], axis=1),
    "text": lambda part: part.assign(b=["one"] * 5),
    "dates": lambda part: part.assign(b=pd.to_datetime(["2020-01-01"] * 5)),
}


@pytest.mark.parametrize("name", BAD_PARTITIONS)
def test_partitions_that_are_not_what_the_frame_says_are_errors(name):
    def make(i):
        return BAD_PARTITIONS[name](partition(i)) if i == 1 else partition(i)

    data = dd.from_map(make, range(3), meta=partition(0)[:0], enforce_metadata=False)
    with pytest.raises(DataError, match="batch 1"):
        read_all(data)
