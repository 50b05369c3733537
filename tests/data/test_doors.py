"""Which columns are features, and as what they are read, is the same at every door: a table of doors and columns."""

from __future__ import annotations

import decimal
import gzip
import json
import re
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.data.sources.forms import _are_series, listed
from bnp_dask.data.view import letting_miss
from bnp_dask.errors import DataError, SettingError
from tests.data.reading import rows

pd = pytest.importorskip("pandas")

N = 24
RNG = np.random.default_rng(0)
U, V = RNG.normal(size=(2, N)).round(3)
LARGE = (U * 10_000).round(1)
PAIRS = np.column_stack([U, V])


class Relation:
    """A table of another library, of which nothing but the stream is known."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


# -- doors: how a table of columns gets in ----------------------------------------------------------------------------
def as_frame(columns, folder):
    return pd.DataFrame({name: pd.Series(values.to_pandas(), dtype=None) for name, values in columns.items()})


def as_parquet(columns, folder):
    pq.write_table(pa.table(columns), folder / "t.parquet", row_group_size=10)
    return folder / "t.parquet"


def as_arrow_file(columns, folder):
    table = pa.table(columns)
    with pa.OSFile(str(folder / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, 7)
    return folder / "t.arrow"


def as_csv(columns, folder, ending="csv"):
    sep = "," if ending == "csv" else "\t"
    pa.table(columns).to_pandas().to_csv(folder / f"t.{ending}", index=False, sep=sep)
    return folder / f"t.{ending}"


def as_dask(columns, folder):
    dd = pytest.importorskip("dask.dataframe")
    import dask

    # else Dask makes texts of lists
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_pandas(as_frame(columns, folder), npartitions=2, sort=False)


def as_store(columns, folder):
    bnp.ingest(as_parquet(columns, folder), folder / "t.zarr", batch_size=10)
    return folder / "t.zarr"


def as_store_of_csv(columns, folder):
    bnp.ingest(as_csv(columns, folder), folder / "t.zarr", batch_size=10)
    return folder / "t.zarr"


DOORS = {
    "frame": as_frame,
    "frames": lambda columns, folder: [as_frame(columns, folder).iloc[:N], as_frame(columns, folder).iloc[N:]],
    "arrow": lambda columns, folder: pa.table(columns),
    "stream": lambda columns, folder: Relation(pa.table(columns)),
    "parquet": as_parquet,
    "arrow file": as_arrow_file,
    "csv": as_csv,
    "tsv": lambda columns, folder: as_csv(columns, folder, "tsv"),
    "dask": as_dask,
    "store": as_store,
    "store of csv": as_store_of_csv,
}
TEXT_DOORS = ("csv", "tsv", "store of csv")

# -- columns: what lies beside u and v, which features it gives, and how the line calls it where it gives none --------
TEXTS = [f"{value:,.1f}" for value in LARGE]
COLUMNS = {
    "float16": (pa.array(U.astype(np.float16)), U.astype(np.float16), ""),
    "uint64": (pa.array(np.arange(N, 0, -1).astype(np.uint64)), np.arange(N, 0, -1), ""),
    "bools": (pa.array((U > 0).tolist()), U > 0, ""),
    "decimals": (pa.array([decimal.Decimal(f"{u:.3f}") for u in U]), U, ""),
    "wide decimals": (pa.array([decimal.Decimal(f"{u:.3f}") for u in U], pa.decimal256(50, 3)), U, ""),
    "texts of numbers": (pa.array([f" {u} " for u in U]), U, ""),
    "views of texts": (pa.array([f"{u}" for u in U], pa.string_view()), U, ""),
    "thousands": (pa.array(TEXTS), LARGE, ""),
    "truth values as texts": (pa.array(["True", "False"] * (N // 2)), np.tile([1.0, 0.0], N // 2), ""),
    "exponents": (pa.array([f"{u:+e}" for u in U]), U, ""),
    "NA": (pa.array(["NA", *map(str, U[1:])]), np.append(np.nan, U[1:]), ""),
    "nulls": (pa.array([None, *range(3, N + 2)], pa.int64()), np.append(np.nan, np.arange(3.0, N + 2)), ""),
    "sentinels": (pa.array([-999, 5, 3] * (N // 3)), np.tile([-999.0, 5, 3], N // 3), ""),
    "row numbers": (pa.array(np.arange(N)), None, "row numbers"),
    "row numbers from one": (pa.array(np.arange(1.0, N + 1)), None, "row numbers"),
    "names": (pa.array([f"n{i}" for i in range(N)]), None, "texts"),
    "dates as texts": (pa.array([f"2024-01-{i + 1:02d}" for i in range(N)]), None, "dates"),
    "times": (pa.array(pd.date_range("2024-01-01", periods=N, tz="Europe/Berlin")), None, "dates"),
    "empty": (pa.array([None] * N, pa.string()), None, "no value"),
    "empty numbers": (pa.array([None] * N, pa.null()), None, "no value"),
    "lists": (pa.array(list(PAIRS)), PAIRS, ""),
    "fixed lists": (pa.FixedSizeListArray.from_arrays(pa.array(PAIRS.ravel()), 2), PAIRS, ""),
    "large lists of decimals": (
        pa.array([[decimal.Decimal(f"{x:.3f}") for x in pair] for pair in PAIRS], pa.large_list(pa.decimal128(8, 3))),
        PAIRS,
        "",
    ),
    "ragged lists": (pa.array([[1.0] * (1 + i % 3) for i in range(N)]), None, "lists of 1 to 3 values"),
    "structs": (pa.array([{"a": float(i)} for i in range(N)]), None, "nested"),
    "categories": (pa.array(["a", "b", "c"] * (N // 3)).dictionary_encode(), None, "categories"),
    "bytes": (pa.array([b"\xff\x00"] * N), None, "binary|texts|nested"),
}
ONLY_TYPED = (
    "float16", "lists", "fixed lists", "large lists of decimals", "ragged lists", "structs", "categories", "bytes",
    "times",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*features are")
@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("door", DOORS)
def test_a_column_is_the_same_at_every_door(door, kind, tmp_path):
    if door in TEXT_DOORS and kind in ONLY_TYPED:
        pytest.skip("a text has no such type")
    if door == "frames" and kind.startswith("row numbers"):
        pytest.skip("rows of several recordings are counted in each: below")
    values, wanted, why = COLUMNS[kind]
    data = {"u": pa.array(U), "c": values, "v": pa.array(V)}
    if door == "frames":
        data = {name: pa.concat_arrays([column, column]) for name, column in data.items()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = DOORS[door](data, tmp_path)
        source = bnp.as_source(made)
        found = rows(letting_miss(source))
    beside = np.zeros((N, 0)) if wanted is None else np.asarray(wanted, np.float64).reshape(N, -1)
    expected = np.column_stack([U, beside, V])
    np.testing.assert_array_equal(found, np.tile(expected, (len(found) // N, 1)))
    width = beside.shape[1]
    assert source.columns.features == ("u", *(["c"] if width == 1 else [f"c[{i}]" for i in range(width)]), "v")
    said = [str(warning.message) for warning in caught if "features are" in str(warning.message)]
    if wanted is None:
        assert len(said) == 1
        assert re.search(rf"features are 'u', 'v'; left out: 'c' \([^)]*({why})", said[0])
        assert source.columns.others in (("c",), ())


# -- cells that are no numbers ----------------------------------------------------------------------------------------
BAD = {"percent": "12%", "currency": "$5.00", "word": "oops", "decimal comma": "0,5", "hexadecimal": "0x1A"}


@pytest.mark.filterwarnings("ignore:.*features are")
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("door", DOORS)
def test_a_bad_cell_is_named_or_missing(door, bad, tmp_path):
    cells = [*map(str, U[:7]), bad, *map(str, U[8:])]
    data = {"u": pa.array(V), "c": pa.array(cells)}
    with pytest.raises(DataError, match=rf"row 7, column 'c' is '{re.escape(bad)}', which is no number.*on_bad_cell"):
        rows(bnp.as_source(DOORS[door](data, tmp_path)))
    if "store" in door:
        make = as_csv if door == "store of csv" else as_parquet
        bnp.ingest(make(data, tmp_path), tmp_path / "holes.zarr", on_bad_cell="missing")
        found = rows(bnp.as_source(tmp_path / "holes.zarr"))
    else:
        source = bnp.as_source(DOORS[door](data, tmp_path), on_bad_cell="missing")
        assert source.columns.on_bad_cell == "missing"
        found = rows(letting_miss(source))
    np.testing.assert_array_equal(found, np.column_stack([V, np.where(np.arange(N) == 7, np.nan, U)]))


@pytest.mark.parametrize("marks", ["{}%", "${}", "{} €", "-{}kr."])
def test_a_column_of_nothing_but_marked_numbers_is_an_error(marks):
    frame = pd.DataFrame({"u": U, "c": [marks.format(abs(v)) for v in V]})
    if marks == "-{}kr.":
        with pytest.warns(UserWarning, match=r"'c' \(texts\)"):
            assert bnp.as_source(frame).columns.names == ("u",)
        return
    with pytest.raises(DataError, match="row 0, column 'c' is .*24 such cells"):
        bnp.as_source(frame)


def test_thousands_that_leave_open_what_a_comma_is_are_refused():
    frame = pd.DataFrame({"c": ["1,234", "5678", *["12"] * 10]})
    with pytest.warns(UserWarning, match="texts that are read as numbers"):
        source = bnp.as_source(frame)
    with pytest.raises(DataError, match="row 1, column 'c' is '5678', but row 0 is '1,234'"):
        rows(source)


@pytest.mark.filterwarnings("ignore:.*features are")
def test_numbers_that_are_objects_and_codes_are_told_apart():
    frame = pd.DataFrame(
        {
            "mixed": [1.5, "2.5", decimal.Decimal("3.5"), None] * 6,
            "none": pd.Series([None] * N, dtype=object),
            "zip": [f"0{i + 1234}" for i in range(N)],
            "z": np.exp(1j * U),
            "long": U.astype(np.longdouble),
            "span": pd.to_timedelta(np.arange(N), "s"),
            "kind": pd.Categorical(["1", "2"] * (N // 2)),
            "days": pd.Series(np.arange(N) * 7, dtype="Int64"),
        }
    )
    with pytest.warns(UserWarning, match="features are") as caught:
        source = bnp.as_source(frame)
    assert source.columns.names == ("mixed", "long", "days")
    np.testing.assert_array_equal(rows(source)[:4], np.c_[[1.5, 2.5, 3.5, np.nan], U[:4], [0, 7, 14, 21]])
    assert (
        "'none' (no value), 'zip' (codes with leading zeros), 'z' (complex numbers), 'span' (time spans), 'kind' "
        "(categories)"
    ) in str(caught[0].message)
    assert len(caught) == 1


# -- row numbers ------------------------------------------------------------------------------------------------------
def test_row_numbers_are_known_by_name_or_by_value_unless_chosen(tmp_path):
    frame = pd.DataFrame({"u": U, "v": V}, index=RNG.permutation(N))
    frame.to_csv(tmp_path / "t.csv")
    frame.rename_axis("row").to_parquet(tmp_path / "t.parquet")
    for data, name in (
        (tmp_path / "t.csv", ""),
        (pd.read_csv(tmp_path / "t.csv"), "Unnamed: 0"),
        (tmp_path / "t.parquet", "row"),
        (frame.sort_index().reset_index(), "index"),
    ):
        with pytest.warns(UserWarning, match=rf"features are 'u', 'v'; left out: '{name}' \(row numbers\)"):
            assert bnp.as_source(data).columns.names == ("u", "v")
        assert bnp.as_source(data, columns=["v", name]).columns.names == ("v", name)
    few = pd.DataFrame({"dose": [0, 1, 2], "u": U[:3]})
    assert bnp.as_source(few).columns.names == ("dose", "u")


def test_rows_of_recordings_are_numbered_in_each():
    parts = [pd.DataFrame({"t": np.arange(n), "u": U[:n]}) for n in (12, 20)]
    with pytest.warns(UserWarning, match=r"left out: 't' \(row numbers\)"):
        assert bnp.as_source(parts).columns.names == ("u",)


def test_files_may_store_a_column_in_several_ways(tmp_path):
    ways = (
        pa.array([decimal.Decimal(f"{u:.3f}") for u in U]), pa.array(U), pa.array(list(map(str, U))),
        pa.array([None] * N, pa.null()), pa.array(np.arange(N)),
    )  # fmt: skip
    for i, values in enumerate(ways):
        pq.write_table(pa.table({"u": values, "v": pa.array(V)}), tmp_path / f"{i}.parquet")
    expected = np.concatenate([U, U, U, np.full(N, np.nan), np.arange(N)])
    np.testing.assert_array_equal(rows(bnp.as_source(tmp_path))[:, 0], expected)
    pq.write_table(pa.table([pa.array(U), pa.array(V)], names=["u", "u"]), tmp_path / "0.parquet")
    with pytest.raises(DataError, match="several columns of the same name: 'u'"):
        bnp.as_source(tmp_path)


# -- new data ---------------------------------------------------------------------------------------------------------
def blobs():
    rng = np.random.default_rng(1)
    z = np.repeat([0, 1], 30)
    return rng.permutation(np.round(rng.normal(size=(60, 2)) + 9.0 * z[:, None], 2))


@pytest.mark.filterwarnings("ignore:.*features are", "ignore::bnp_dask.ConvergenceWarning")
def test_new_data_are_read_as_those_of_training(tmp_path):
    x = 1000 * blobs()
    written = [[f"{value:,.1f}" for value in column] for column in x.T]
    frame = pd.DataFrame({"row": np.arange(60), "a": written[0], "b": written[1], "who": "x"})
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian(missing="marginalise"))
    train = bnp.as_source(frame, on_bad_cell="missing")
    posterior = bnp.train(model, train, init=bnp.BregmanKMeans(2), schedule=bnp.Memoized(laps=2)).posterior
    posterior.save(tmp_path / "p.zarr")
    posterior = bnp.load(tmp_path / "p.zarr")
    assert posterior.feature_names == ("a", "b")
    expected = bnp.predict(posterior, x)
    others = {
        "numbers": pd.DataFrame({"b": x[:, 1], "a": x[:, 0]}),
        "decimals": pa.table({n: [decimal.Decimal(f"{v:.1f}") for v in c] for n, c in zip("ab", x.T, strict=True)}),
        "some rows": frame.iloc[20:],
        "in another order": frame[["who", "b", "row", "a"]],
        "with rows numbered": pd.DataFrame(x, columns=["a", "b"]).reset_index(),
    }
    for name, data in others.items():
        wanted = expected[20:] if name == "some rows" else expected
        np.testing.assert_array_equal(bnp.predict(posterior, data), wanted)
    frame.to_csv(tmp_path / "t.csv", index=False)
    np.testing.assert_array_equal(bnp.predict(posterior, tmp_path / "t.csv"), expected)
    dd = pytest.importorskip("dask.dataframe")
    np.testing.assert_array_equal(bnp.predict(posterior, dd.from_pandas(frame, npartitions=2)).compute(), expected)
    assert np.isfinite(bnp.score(posterior, frame.assign(a="?")))  # as in training: missing
    with pytest.raises(DataError, match="no column 'b'"):
        bnp.predict(posterior, frame.drop(columns="b"))
    with pytest.warns(UserWarning, match="'extra' were not in training and are left out"):
        np.testing.assert_array_equal(bnp.predict(posterior, frame.assign(extra=1.0)), expected)


@pytest.mark.filterwarnings("ignore:.*features are", "ignore::bnp_dask.ConvergenceWarning", "ignore:.*not converged")
def test_runs_grow_and_estimators_fit_by_the_same_columns(tmp_path):
    pytest.importorskip("sklearn")
    x = blobs()
    frame = pd.DataFrame({"row": np.arange(60), "a": x[:, 0].astype(str), "b": x[:, 1]})
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    settings = {"init": bnp.BregmanKMeans(2), "schedule": bnp.Memoized(laps=2)}
    bnp.train(model, frame, store=tmp_path / "run", **settings)
    grown = bnp.update(tmp_path / "run", frame.iloc[10:40])
    assert grown.posterior.feature_names == ("a", "b") and grown.posterior.summary["N"].sum() == pytest.approx(90)
    mixture = bnp.DirichletProcessMixture(n_clusters=2, random_state=0).fit(frame)
    assert mixture.feature_names_in_.tolist() == ["a", "b"]
    again = mixture.predict(frame.iloc[5:])
    np.testing.assert_array_equal(again, mixture.labels_[5:])
    assert (again.index == frame.index[5:]).all()
    states = bnp.SequenceModel(n_states=2, max_laps=2, random_state=0).fit([frame, frame.iloc[:30]])
    assert [len(part) for part in states.predict([frame, frame.iloc[:30]])] == [60, 30]


# -- other arrays -----------------------------------------------------------------------------------------------------
class Tensor:
    """An array of another library, of which nothing but the array of NumPy is known."""

    def __init__(self, x):
        self.x = x

    def __array__(self, dtype=None, copy=None):
        return self.x if dtype is None else self.x.astype(dtype)

    def __iter__(self):
        return map(Tensor, self.x)

    def __len__(self):
        return len(self.x)


class OnDevice(Tensor):
    def __array__(self, dtype=None, copy=None):
        raise TypeError("copy the tensor\nto the host first")


X = np.concatenate([RNG.normal(mean, 1, (60, 2)) for mean in (-6, 6)])
RECORDS = np.array([tuple(row) for row in X], [("a", float), ("b", float)])
VERBS = {
    "as_source": bnp.as_source,
    "train": lambda data: bnp.train(bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), data, init=bnp.BregmanKMeans(2)),
    "fit": bnp.DirichletProcessMixture(observation="diag_gaussian", n_clusters=2).fit,
}


@pytest.mark.parametrize("door", VERBS)
@pytest.mark.parametrize(
    "data",
    [Tensor(X), memoryview(X), RECORDS, RECORDS.view(np.recarray), np.ma.array(RECORDS)],
    ids=["tensor", "buffer", "fields", "recarray", "masked fields"],
)
def test_arrays_of_other_libraries_and_with_fields_are_taken(door, data):
    found = VERBS[door](data)
    if door == "as_source":
        np.testing.assert_array_equal(rows(found), X)
        return
    posterior = found.posterior if door == "train" else found.posterior_
    assert posterior.n_clusters >= 2 and bnp.predict(posterior, X).shape == (120,)


def test_a_list_of_tensors_is_a_list_of_sequences():
    own = bnp.as_source([Tensor(X[:60]), Tensor(X[60:])])
    np.testing.assert_array_equal(own.all_offsets(), [0, 60, 120])
    np.testing.assert_array_equal(rows(own), X)


def test_lists_for_models_of_sequences():
    series = [X[:60, 0], X[60:, 0]]
    for door in (bnp.SequenceModel().fit, lambda data: bnp.train(bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian()), data)):
        for data in (series, [*map(pd.Series, series)], [*map(Tensor, series)]):
            with pytest.raises(DataError, match=r"list of 2 arrays of one axis.*reshape.*np.stack"):
                door(data)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(id=np.repeat([3, 8, 3], [50, 40, 30]))
    with pytest.warns(UserWarning, match=r"features are 'a', 'b'; left out: 'id' \(ids\)"):
        bnp.as_source([frame[:50], frame[50:90], frame[90:]])


@pytest.mark.parametrize("door", VERBS)
@pytest.mark.parametrize(
    ("data", "match"),
    [
        (OnDevice(X), "data is a OnDevice that gives no array of NumPy: copy the tensor to the host first"),
        (np.array([(row,) for row in X], [("v", float, 2)]), "structured_to_unstructured"),
        ({"a": X[:, 0], "b": X[:, 1]}, "pandas.DataFrame"),
        (pd.Series(X[:, 0]), r"to_frame\(\)"),
        (pd.DataFrame(X).iloc[0], r"to_frame\(\) if it is one feature; one row is .*iloc\[\[0\]\]"),
        (X[0], r"reshape\(-1, 1\) if it is one feature, [xX].reshape\(1, -1\) if it is one row"),
        (pd.date_range("2020", periods=9), r"to_frame\(\)"),
        (X + 1j, "np.column_stack"),
    ],
    ids=["device", "nested fields", "columns by name", "one column", "one row", "array of one row", "dates", "complex"],
)
def test_what_is_no_table_of_numbers_is_told_how_to_become_one(door, data, match):
    with pytest.raises(DataError, match=match):
        VERBS[door](data)


def test_frames_with_missing_or_sparse_numbers_at_an_estimator():
    frame = pd.DataFrame(X, columns=["a", "b"])
    own = bnp.DirichletProcessMixture(observation="diag_gaussian", n_clusters=2, random_state=0)
    expected = own.fit_predict(frame)
    np.testing.assert_array_equal(own.fit_predict(frame.astype(pd.SparseDtype(float, 0.0))), expected)
    for other in (frame[["b", "a"]], frame.rename(columns={"a": "z"})):
        with pytest.raises(DataError, match=r"other columns than in fit.*X\[model.feature_names_in_\]"):
            own.predict(other)
    with pytest.raises(DataError, match=r"shape \(0, 2\).*pass all rows"):
        own.predict(frame[:0])
    with pytest.raises(DataError, match="X contains NaN: row 3, column 'b'"):
        own.fit(frame.astype("Float64").mask(np.arange(240).reshape(120, 2) == 7))


def test_arrays_with_labels_are_the_arrays_that_they_are():
    xr = pytest.importorskip("xarray")
    x = RNG.normal(size=(120, 2))
    assert bnp.as_source(xr.DataArray(x)).n_features == 2
    np.testing.assert_array_equal(rows(bnp.as_source(xr.DataArray(x))), x)
    named = xr.DataArray(x, dims=("row", "what"), coords={"what": ["a", "b"]})
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    posterior = bnp.train(model, named, init=bnp.BregmanKMeans(2), moves=()).posterior
    assert posterior.feature_names == ("a", "b")
    expected = bnp.predict(posterior, x)
    for data in (named[:, ::-1], xr.DataArray(x), named.chunk({"row": 50}), xr.DataArray(x).chunk({"dim_0": 50})):
        np.testing.assert_array_equal(np.asarray(bnp.predict(posterior, data)), expected)
    with pytest.raises(DataError, match="two axes"):
        bnp.as_source(xr.DataArray(x[:, 0]))
    with pytest.raises(DataError, match="data is Dataset"):
        bnp.as_source(named.to_dataset("what"))


def anndata_store(path, x, kind):
    import zarr

    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    group.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
    if kind == "array":
        group.create_array("X", data=x.toarray(), chunks=(5, x.shape[1])).attrs["encoding-type"] = "array"
        return path
    held = group.create_group("X")
    held.attrs.update({"encoding-type": kind, "encoding-version": "0.1.0", "shape": list(x.shape)})
    parts = x.tocsr() if kind == "csr_matrix" else x.tocsc()
    for name in ("data", "indices", "indptr"):
        held.create_array(name, data=getattr(parts, name), chunks=(7,))
    return path


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_the_matrix_of_an_anndata_store_is_read_as_it_is(tmp_path):
    x = sparse.csr_array(RNG.poisson(0.4, (20, 9)).astype(np.float32))
    store = anndata_store(tmp_path / "a.zarr", x, "csr_matrix")
    for place in (store, store / "X"):
        source = bnp.as_source(place, batch_size=8)
        assert (source.is_sparse, source.n_batches, source.n_atoms, source.n_features) == (True, 3, 20, 9)
        np.testing.assert_array_equal(rows(source), x.toarray())
    np.testing.assert_array_equal(rows(bnp.as_source(anndata_store(tmp_path / "d.zarr", x, "array"))), x.toarray())
    with pytest.raises(DataError, match=r"stored by columns.*tocsr\(\)"):
        bnp.as_source(anndata_store(tmp_path / "c.zarr", x, "csc_matrix"))
    (tmp_path / "x.h5ad").write_bytes(b"HDF")
    with pytest.raises(DataError, match="anndata.read_h5ad"):
        bnp.as_source(tmp_path / "x.h5ad")
    report = bnp.ingest(store, tmp_path / "out.zarr")
    assert report.kind == "counts" and report.n_features == 9
    import zarr

    bare = zarr.open_group(str(tmp_path / "bare.zarr"), mode="w")
    for name in ("data", "indices", "indptr"):
        bare.create_array(name, data=getattr(x, name))
    with pytest.raises(DataError, match="parts of a sparse matrix.*csr_matrix"):
        bnp.as_source(tmp_path / "bare.zarr")


def test_an_anndata_is_its_matrix():
    anndata = pytest.importorskip("anndata")
    x = sparse.csr_matrix(RNG.poisson(0.4, (20, 3)).astype(np.float32))
    made = anndata.AnnData(x, var=pd.DataFrame(index=["g1", "g2", "g3"]))
    source = bnp.as_source(made)
    assert source.is_sparse and source.columns.names == ("g1", "g2", "g3")
    np.testing.assert_array_equal(rows(source), x.toarray())


# -- text tables as people have them -----------------------------------------------------------------------------------
LINES = [f"{u},{v}" for u, v in PAIRS.tolist()]
PLAIN = "\n".join(["u,v", *LINES]) + "\n"
TEXT_TABLES = {
    "byte order mark": ("\ufeff" + PLAIN).encode(),
    "utf-16": PLAIN.encode("utf-16"),
    "utf-16, big endian": ("\ufeff" + PLAIN).encode("utf-16-be"),
    "carriage returns": PLAIN.replace("\n", "\r\n").encode(),
    "blank lines": (PLAIN + "\n\n").encode(),
    "semicolons": PLAIN.replace(",", ";").encode(),
    "decimal commas": PLAIN.replace(",", ";").replace(".", ",").encode(),
    "tabs": PLAIN.replace(",", "\t").encode(),
    "quoted names": PLAIN.replace("u,v", '"u","v"').encode(),
    "spaces": PLAIN.replace(",", ", ").encode(),
    "quoted after spaces": PLAIN.replace("u,v", 'u, "v"').encode(),
    "quoted numbers": PLAIN.replace(LINES[3], '"{}","{}"'.format(*LINES[3].split(","))).encode(),
    "packed": gzip.compress(PLAIN.encode()),
}


@pytest.mark.parametrize("kind", TEXT_TABLES)
def test_text_tables_are_read_however_they_are_written(kind, tmp_path):
    path = tmp_path / ("t.csv.gz" if kind == "packed" else "t.csv")
    path.write_bytes(TEXT_TABLES[kind])
    report = bnp.ingest(path, tmp_path / "t.zarr")
    for data in (path, tmp_path / "t.zarr"):
        source = bnp.as_source(data)
        assert source.columns.names == ("u", "v")
        np.testing.assert_array_equal(rows(source), PAIRS)
    assert report.n_features == 2


@pytest.mark.filterwarnings("ignore:.*features are")
@pytest.mark.parametrize(
    ("text", "match"),
    [
        (PLAIN.replace("u,v", "u,u"), "names several columns 'u'"),
        (PLAIN.replace("u,v", "u, u"), "names several columns 'u'"),
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n4.7,3.2,setosa\n", "holds the number 5.1 beside texts, and no names"),
        (PLAIN + "1.0,oops\n", "row 24, column 'v' is 'oops', which is no number"),
        (PLAIN + '1.0,"0,5"\n', "row 24, column 'v' is '0,5', which is no number"),
        (PLAIN + "1.0\n", "Expected 2 columns, got 1"),
        (PLAIN.replace("u,v", "naïve,v"), "no UTF-8.*encoding="),
    ],
)
def test_text_tables_that_leave_open_what_they_hold_are_refused(text, match, tmp_path):
    (tmp_path / "t.csv").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=match):
        rows(bnp.as_source(tmp_path / "t.csv"))
    with pytest.raises(DataError, match=match):
        bnp.ingest(tmp_path / "t.csv", tmp_path / "t.zarr")
    assert not (tmp_path / "t.zarr").exists()


def test_a_first_line_of_numbers_is_data(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(LINES) + "\n")
    source = bnp.as_source(tmp_path / "t.csv")
    np.testing.assert_array_equal(rows(source), PAIRS)


# -- job files and the command line -----------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:.*features are", "ignore::bnp_dask.ConvergenceWarning")
def test_jobs_and_commands_say_what_becomes_of_bad_cells(tmp_path, capsys):
    x = blobs()
    frame = pd.DataFrame({"row": np.arange(60), "a": x[:, 0].astype(str), "b": x[:, 1]})
    frame.loc[7, "a"] = "?"
    frame.to_csv(tmp_path / "t.csv", index=False)
    job = {
        "model": {"allocation": "DPMixture", "observation": {"type": "DiagGaussian", "missing": "marginalise"}},
        "data": {"path": str(tmp_path / "t.csv"), "on_bad_cell": "missing"},
        "init": {"type": "BregmanKMeans", "n_clusters": 2},
        "schedule": {"type": "Memoized", "laps": 2},
        "store": str(tmp_path / "run"),
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    assert main(["train", str(tmp_path / "job.yaml"), "--quiet"]) == 0
    assert bnp.load(tmp_path / "run").feature_names == ("a", "b")
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "t.csv"), str(tmp_path / "labels.zarr")]) == 0
    capsys.readouterr()
    assert main(["ingest", str(tmp_path / "t.csv"), str(tmp_path / "t.zarr"), "--on-bad-cell", "missing"]) == 0
    assert np.isnan(rows(bnp.as_source(tmp_path / "t.zarr"))[7, 0])
    with pytest.raises(SettingError, match="on_bad_cell"):
        bnp.as_source(tmp_path / "t.csv", on_bad_cell="skip")


def test_arrays_of_objects_and_row_numbers_in_arrays():
    x = np.array([[decimal.Decimal("1.5"), "2,500.5"], ["3", 4]], object)
    np.testing.assert_array_equal(rows(bnp.as_source(x)), [[1.5, 2500.5], [3, 4]])
    np.testing.assert_array_equal(rows(bnp.as_source(x.astype(str))), [[1.5, 2500.5], [3, 4]])
    with pytest.raises(DataError, match=r"row 1, column '1' is '\?', which is no number"):
        bnp.as_source(np.array([[1, 2], [3, "?"], [4, 5]], object))
    with pytest.raises(DataError, match="Python objects"):
        bnp.as_source(np.array([["a", 2], ["b", 5]], object))
    with pytest.warns(UserWarning, match=r"all 2 columns are features, also 1, which numbers the rows"):
        assert bnp.as_source(np.column_stack([U, np.arange(N)])).n_features == 2


def test_a_column_that_has_only_nan_is_left_out_at_every_door(tmp_path):
    frame = pd.DataFrame({"a": np.arange(N) + 0.5, "n": np.full(N, np.nan)})
    frame.to_parquet(tmp_path / "x.parquet")
    frame.to_feather(tmp_path / "x.arrow")
    frame.to_csv(tmp_path / "x.csv", index=False)
    for data in (frame, *(str(tmp_path / f"x.{kind}") for kind in ("parquet", "arrow", "csv"))):
        with pytest.warns(UserWarning, match=r"left out: 'n' \(no value\)"):
            assert bnp.as_source(data).columns.names == ("a",)
        with pytest.warns(UserWarning, match=r"left out: 'n' \(no value\)"):
            assert bnp.ingest(data, tmp_path / "x.zarr", overwrite=True).n_features == 1


def test_masked_entries_are_stored_as_missing_ones(tmp_path):
    x = np.ma.masked_array(np.arange(12.0).reshape(6, 2), mask=False)
    x[3, 1] = np.ma.masked
    bnp.ingest(x, tmp_path / "x.zarr")
    found = letting_miss(bnp.as_source(str(tmp_path / "x.zarr"))).reader(0)().x
    np.testing.assert_array_equal(np.isnan(found), np.ma.getmaskarray(x))


class Masked(np.ma.MaskedArray):
    """A masked array of somebody else's class."""


def test_a_masked_array_of_a_derived_class_keeps_its_mask():
    """Its values were taken alone, and the number under the mask was read."""
    masked = np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[1, 0], [0, 0]]).view(Masked)
    assert listed(masked) is masked and listed([masked, masked])[0] is masked


def test_fields_of_any_order_of_bytes_are_columns_and_others_are_refused_by_name():
    x = np.array([(1.5, 2), (2.5, 3)], [("a", ">f8"), ("b", ">i4")])
    np.testing.assert_array_equal(rows(bnp.as_source(x)), [[1.5, 2], [2.5, 3]])
    assert listed(np.ma.array(x, mask=[(1, 0), (0, 0)]))["a"].null_count == 1
    with pytest.raises(DataError, match="field 'c' of the array has dtype complex128"):
        listed(np.zeros(2, [("a", float), ("c", complex)]))


def test_ragged_lists_of_sequences_are_no_series():
    assert not _are_series([[[1, 2], [3]], [[3, 4]]])
