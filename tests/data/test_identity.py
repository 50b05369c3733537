"""What data are recognised by, views of a source, and stores whose batches come in pieces of any size."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from scipy import sparse

from bnp_dask.core import Batch, Columns, Location, Roles
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.data import as_source, output
from bnp_dask.data.base import build_csr, fingerprint_of_content, fingerprint_of_files, opened_as
from bnp_dask.data.ingestion.streams import TextTable, _separators
from bnp_dask.data.ingestion.writers import CountsWriter
from bnp_dask.data.output import Layout, _raw, csv_part, put, write, zarr_chunk
from bnp_dask.data.sources import held
from bnp_dask.data.sources.columns import PLAIN_READING
from bnp_dask.data.sources.frames import table_batch
from bnp_dask.data.sources.held import table_in_file
from bnp_dask.data.view import SHARE, PlacedSource, ResampledSource, WithoutBatches, stand_in
from bnp_dask.errors import DataError
from bnp_dask.execute import SerialExecutor
from tests.data.reading import read_all

RNG = np.random.default_rng(5)


# -- what data are recognised by -----------------------------------------------------------------------------------
def test_a_fingerprint_counts_all_files_and_tells_of_a_change_in_any(tmp_path):
    places = [Location.of(str(tmp_path / f"{n}.npy")) for n in "abcd"]
    for n, place in enumerate(places):
        (tmp_path / place.basename).write_bytes(b"x" * (n + 1))
    first = fingerprint_of_files(places)
    assert (first["files"], first["bytes"]) == (4, 10)
    assert fingerprint_of_files([*places, places[0]]) == first
    for n, place in enumerate(places):
        path = tmp_path / place.basename
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        os.utime(path, ns=(times[0], times[1] + 10**9))
        assert fingerprint_of_files(places) != first, n
        os.utime(path, ns=times)
        assert fingerprint_of_files(places) == first


def test_a_fingerprint_of_content_tells_of_a_change_in_any_batch():
    x = RNG.normal(size=(9, 2))
    first = fingerprint_of_content(as_source(x, batch_size=3))
    assert fingerprint_of_content(as_source(x.copy(), batch_size=3)) == first
    for row in range(9):
        other = x.copy()
        other[row, 1] += 1.0
        assert fingerprint_of_content(as_source(other, batch_size=3)) != first


def test_places_beside_the_data_are_kept_so_that_they_are_opened_again(tmp_path):
    np.save(tmp_path / "x.npy", RNG.normal(size=(4, 2)))
    source = as_source(tmp_path / "x.npy")
    beside = {name: str(tmp_path / f"{name}.npy") for name in ("labels", "responses", "links", "weights")}
    found = opened_as(tmp_path / "x.npy", source, 2, **beside)
    assert found["labels"] == {"place": beside["labels"], "names": None}
    assert (found["responses"], found["links"], found["weights"]) == (
        beside["responses"],
        beside["links"],
        beside["weights"],
    )
    assert (found["place"], found["batch_size"]) == (str(tmp_path / "x.npy"), 2)
    for name in beside:
        assert opened_as(tmp_path / "x.npy", source, 2, **{**beside, name: np.zeros(4)}) is None


def test_another_file_of_weights_is_other_data(tmp_path):
    x = RNG.normal(size=(4, 2))
    np.save(tmp_path / "w.npy", np.ones(4))
    source = as_source(x, weights=str(tmp_path / "w.npy"))
    first = source.fingerprint()
    assert source.fingerprint() == first
    np.save(tmp_path / "w.npy", np.arange(1.0, 5.0))
    os.utime(tmp_path / "w.npy", ns=(0, 10**9))
    assert source.fingerprint() != first


def test_words_beyond_two_billion_keep_their_numbers():
    words = np.array([2**31 + 7, 3, 2**31 + 8], np.int64)
    found = build_csr(np.array([1, 2]), words, np.array([1.0, 2.0, 3.0]), 2**31 + 9, "counts")
    assert found.indices.tolist() == [2**31 + 7, 3, 2**31 + 8] and found.indptr.tolist() == [0, 1, 3]


# -- views ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", [np.array, sparse.csr_array])
def test_columns_are_put_at_their_places_and_some_are_left_out(form):
    x = RNG.integers(0, 3, (7, 4)).astype(np.float64)
    place = np.array([5, -1, 0, 3])
    batches = read_all(PlacedSource(as_source(form(x), batch_size=3), 6, place))
    wanted = np.zeros((7, 6))
    wanted[:, [5, 0, 3]] = x[:, [0, 2, 3]]
    found = [b.x.toarray() if b.is_sparse else b.x for b in batches]
    np.testing.assert_array_equal(np.concatenate(found), wanted)
    assert all(b.x.has_sorted_indices for b in batches if b.is_sparse)
    if form is np.array:
        low = read_all(PlacedSource(as_source(x), 6, np.array([1, -1, 0, 2])))[0]
        assert low.read_width == 3  # no column beyond was read


def test_a_resample_holds_the_same_units_at_each_visit_and_others_in_each_batch():
    weights = RNG.uniform(1.0, 2.0, 3000)
    source = ResampledSource(as_source(np.arange(3000.0)[:, None], weights=weights, batch_size=1000), 7, by_group=False)
    found = [b.weights > 0 for b in read_all(source)]
    for one, again in zip(found, read_all(source), strict=True):
        np.testing.assert_array_equal(one, again.weights > 0)
    kept = np.concatenate(found)
    assert abs(kept.mean() - SHARE) < 0.04
    np.testing.assert_array_equal(np.concatenate([b.weights for b in read_all(source)]), np.where(kept, weights, 0.0))
    for i, j in ((0, 1), (1, 2), (0, 2)):  # independent: two agree where both hold a unit, or neither does
        assert abs((found[i] == found[j]).mean() - (SHARE**2 + (1 - SHARE) ** 2)) < 0.06


def test_a_resample_of_groups_holds_whole_groups():
    lengths = RNG.integers(0, 4, 900)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    source = ResampledSource(as_source(np.arange(float(offsets[-1]))[:, None], groups=offsets), 1, by_group=True)
    (batch,) = read_all(source)
    sums = [batch.weights[a:b].mean() for a, b in zip(offsets[:-1], offsets[1:], strict=True) if b > a]
    assert set(sums) == {0.0, 1.0} and abs(np.mean(sums) - SHARE) < 0.08


def test_what_stands_for_a_batch_is_grouped_or_sparse_as_the_others_are():
    grouped = as_source(np.zeros((4, 2)), groups=[0, 1, 4])
    survey = combine(survey_batch(b) for b in read_all(grouped))
    empty = stand_in(grouped, survey, 0)()
    assert empty.groups.tolist() == [0] and empty.x.shape == (0, 2)
    counts = as_source(sparse.csr_array(np.eye(3)))
    empty = stand_in(counts, combine(survey_batch(b) for b in read_all(counts)), 2)()
    assert empty.groups is None and empty.is_sparse and empty.x.shape == (0, 3)


def test_batches_that_cannot_be_read_are_empty_only_where_tasks_can_do_without_them():
    def broken():
        raise DataError("batch 1 is spoiled")

    class Spoiled(type(as_source(np.zeros((6, 2)), batch_size=2))):
        def block(self, index, name):
            return broken if index == 1 else super().block(index, name)

    whole = as_source(np.arange(12.0).reshape(6, 2), batch_size=2)
    source = Spoiled(whole.name, whole.x, whole.spans)
    forgiving = WithoutBatches(source, ((2, "known"),), is_forgiving=True)
    assert [forgiving.reader(i)().n_atoms for i in range(3)] == [2, 0, 0]
    strict = WithoutBatches(source, ((2, "known"),))
    assert strict.reader(2)().n_atoms == 0
    with pytest.raises(DataError, match="batch 1 is spoiled"):
        strict.reader(1)()


# -- tables that come in pieces ------------------------------------------------------------------------------------
def test_rows_of_a_table_in_three_pieces_are_read_and_counted_through():
    columns = replace(Columns.of(["a", "b"]), roles=Roles(weights="w"))
    a, b, w = np.arange(9.0), np.arange(9.0) + 50, np.arange(9.0) + 0.5
    whole = pa.table({"b": b, "a": a, "w": w})
    pieces = [whole.slice(at, n).to_batches()[0] for at, n in ((0, 2), (2, 4), (6, 3))]
    batch = table_batch(pieces, 9, columns, "table")
    np.testing.assert_array_equal(batch.x, np.stack([a, b], axis=1))
    np.testing.assert_array_equal(batch.weights, w)
    texts = pa.table({"b": pa.array(list(map(str, b))), "a": pa.array(list(map(str, a))), "w": w})
    for name, row in (("a", 8), ("b", 7)):
        dirty = texts.column(name).to_pylist()
        dirty[row] = "spoiled"
        wrong = texts.set_column(texts.column_names.index(name), name, pa.array(dirty))
        pieces = [wrong.slice(at, n).to_batches()[0] for at, n in ((0, 2), (2, 4), (6, 3))]
        with pytest.raises(DataError, match=f"row {row}.*'{name}'"):
            table_batch(pieces, 9, columns, "table")


def test_bad_cells_of_a_text_table_are_named_by_their_row_in_the_file(monkeypatch):
    text = "a,b\n" + "".join(f"{i},{i}.5\n" for i in range(9))
    table = TextTable.read(lambda: io.BytesIO(text.encode()), "t.csv", ",")
    columns = table.choose(None, Roles(), PLAIN_READING)
    rows = pa.table({"a": [str(i) for i in range(9)], "b": [*map(str, range(7)), "spoiled", "8"]})
    pieces = [rows.slice(at, n).to_batches()[0] for at, n in ((0, 2), (2, 4), (6, 3))]
    monkeypatch.setattr(TextTable, "batches", lambda self, used: iter(pieces))
    with pytest.raises(DataError, match="row 7"):
        list(table.rows(columns))


def test_decimals_have_commas_if_more_numbers_have_one_than_a_point(tmp_path):
    assert _separators("a;b\n1.5;2.5\n1,234;3.5\n", ",") == (";", False)
    assert _separators("a;b\n1,5;2,5\n1.234;3,5\n", ",") == (";", True)
    path = tmp_path / "t.csv"
    path.write_text("a;b\n1.234,5;2,25\n-0,5;1.000.000\n7;-3,0\n")
    with pytest.warns(UserWarning, match="texts that are read as numbers"):
        (batch,) = read_all(as_source(path))
    np.testing.assert_array_equal(batch.x, [[1234.5, 2.25], [-0.5, 1e6], [7.0, -3.0]])


def test_the_first_rows_of_three_files_are_those_of_one(tmp_path, monkeypatch):
    whole = pa.table({"a": np.arange(30.0)})
    for n in range(3):
        pq.write_table(whole.slice(10 * n, 10), tmp_path / f"part-{n}.parquet")
    monkeypatch.setattr(held, "READ_ROWS", 4)
    for n in (1, 9, 11, 25, 30):
        assert table_in_file(tmp_path, n).column("a").to_pylist() == list(range(n))
    monkeypatch.setattr(held, "MOST_HELD", 8 * 25)
    with pytest.raises(DataError, match="more than"):
        table_in_file(tmp_path)


def test_the_array_x_of_a_file_of_several_is_read(tmp_path):
    x = RNG.normal(size=(4, 2))
    np.savez(tmp_path / "both.npz", a=np.zeros((2, 2)), x=x)
    np.testing.assert_array_equal(read_all(as_source(tmp_path / "both.npz"))[0].x, x)


# -- outputs -------------------------------------------------------------------------------------------------------
CUTS = (0, 3, 3, 10, 11, 20)


def columns_of_batch(shared, reader):
    """Columns about the rows of a batch, by their numbers."""
    n = reader().x[:, 0]
    return {"label": n.astype(np.int64), "both": np.stack([n + 0.25, -n], axis=1)}


def test_lines_of_a_csv_file_are_those_of_all_batches_with_names_in_order(tmp_path):
    x = np.arange(20.0)[:, None]
    readers = [partial(Batch, x[a:b]) for a, b in zip(CUTS[:-1], CUTS[1:], strict=True)]
    layouts = (Layout("label", "<i8", None), Layout("both", "<f8", 2, ("east", "north")))
    write(tmp_path / "out.csv", layouts, columns_of_batch, None, readers, SerialExecutor(), 2, {})
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "label,east,north"
    found = np.array([line.split(",") for line in lines[1:]], float)
    np.testing.assert_array_equal(found, np.stack([x[:, 0], x[:, 0] + 0.25, -x[:, 0]], axis=1))
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
    assert Layout("both", "<f8", 3).flat == ("both_1", "both_2", "both_3")
    part = Location.of(str(tmp_path / "part.csv"))
    assert csv_part(None, columns_of_batch, readers[2], layouts, part) == 7


@pytest.mark.parametrize("rows", [1, 2, 7, 20])
def test_chunks_are_put_together_from_parts_of_any_length(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(output, "CHUNK_BYTES", 16 * rows)
    x = np.arange(20.0)[:, None]
    readers = [partial(Batch, x[a:b]) for a, b in zip(CUTS[:-1], CUTS[1:], strict=True)]
    layouts = (Layout("label", "<i8", None), Layout("both", "<f8", 2))
    write(tmp_path / "out.zarr", layouts, columns_of_batch, None, readers, SerialExecutor(), 2, {})
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    np.testing.assert_array_equal(group["label"][...], np.arange(20))
    np.testing.assert_array_equal(group["both"][...], np.stack([x[:, 0] + 0.25, -x[:, 0]], axis=1))
    assert group["both"].chunks == (rows, 2)
    parts = Location.of(str(tmp_path / "parts"))
    put(_raw(parts, layouts[1], 0), np.arange(10.0).tobytes())
    zarr_chunk(Location.of(str(tmp_path / "out.zarr" / "both")), layouts[1], 4, 6, parts, ((0, 3, 2),))
    assert zarr.open_group(tmp_path / "out.zarr", mode="r")["both"][4:6].tolist() == [[6.0, 7.0], [8.0, 9.0]]


# -- stores of counts ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("docs", "entries"), [(4, 10**6), (None, 9)])
def test_documents_that_come_in_pieces_are_cut_by_their_number_or_their_entries(tmp_path, docs, entries):
    x = (RNG.random((31, 6)) < 0.4) * RNG.integers(1, 9, (31, 6)).astype(np.float64)
    x[[5, 6, 30]] = 0.0
    writer = CountsWriter(Location.of(str(tmp_path / "s.zarr")), np.dtype(np.int32), entries, docs)
    at = 0
    for n, width in ((3, 5), (9, 6), (1, 4), (13, 6), (5, 5)):  # later pieces may know fewer words
        part = x[at : at + n]
        part[:, width:] = 0.0
        writer.add(sparse.csr_array(part[:, :width]), np.arange(at, at + n) + 0.5)
        at += n
    assert (writer.n_atoms, writer.n_words, writer.n_entries) == (31, 6, np.count_nonzero(x))
    assert (writer.n_empty, writer.total) == (int((x.sum(axis=1) == 0).sum()), x.sum())
    writer.close({"counts": "integer"}, "test")
    batches = read_all(as_source(tmp_path / "s.zarr"))
    np.testing.assert_array_equal(np.concatenate([b.x.toarray() for b in batches]), x)
    np.testing.assert_array_equal(np.concatenate([b.weights for b in batches]), np.arange(31) + 0.5)
    sizes, cost = [b.n_atoms for b in batches], np.maximum((x > 0).sum(axis=1), 1)
    if docs is not None:
        assert sizes == [docs] * (31 // docs) + [31 % docs] * (31 % docs > 0)
        return
    ends = np.cumsum(sizes)
    for first, last in zip(ends - sizes, ends, strict=True):
        assert cost[first:last].sum() <= entries or last - first == 1
        assert last == 31 or cost[first : last + 1].sum() > entries  # no batch is smaller than it need be
