"""Rows in groups: every source delivers them whole, in order, with offsets, and refuses what does not fit."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bnp_dask.core import Cutting, Location
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.data import as_source
from bnp_dask.data.groups import Names, Runs, blocks_of, check_offsets, cut_groups, whole_groups
from bnp_dask.errors import DataError
from tests.data.reading import read_all

RNG = np.random.default_rng(3)
LENGTHS = np.array([5, 0, 3, 11, 1, 0, 0, 7, 2, 4, 0])
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
X = RNG.normal(size=(33, 3))


def same_groups(source, x=X, lengths=LENGTHS, rows=12):
    """All rows in order, all groups in order, none cut; what the survey says of them."""
    batches = read_all(source)
    np.testing.assert_array_equal(np.concatenate([b.x for b in batches]), x)
    np.testing.assert_array_equal(np.concatenate([np.diff(b.groups) for b in batches]), lengths)
    assert all(b.groups.dtype == np.int64 and 0 < b.n_atoms <= rows for b in batches)
    assert source.describe()["n_groups"] == len(lengths)
    survey = combine(survey_batch(b) for b in batches)
    assert (survey.n_groups, survey.n_atoms) == (len(lengths), len(x))
    return batches


FEATURES = ["a", "b", "c"]


def table(shuffled=False):
    """A table of the rows with ids of their groups; groups without rows cannot be told there."""
    ids = np.repeat([f"site {g}" for g in range(len(LENGTHS))], LENGTHS)
    time = np.concatenate([np.arange(n) for n in LENGTHS])
    made = pa.table({"site": ids, "time": time, "a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "w": np.arange(33.0)})
    return made.take(RNG.permutation(33)) if shuffled else made


WITH_ROWS = LENGTHS[LENGTHS > 0]


def test_arrays_with_offsets():
    batches = same_groups(as_source(X, groups=OFFSETS, batch_size=12))
    assert len(batches) == 4
    same_groups(as_source(X, groups=OFFSETS.tolist()), rows=33)
    source = as_source(X, groups=OFFSETS, batch_size=12, weights=np.arange(33.0))
    np.testing.assert_array_equal(np.concatenate([b.weights for b in same_groups(source)]), np.arange(33.0))


def test_a_list_of_arrays_is_a_list_of_groups():
    parts = np.split(X, OFFSETS[1:-1])
    same_groups(as_source(parts, batch_size=12))
    with pytest.raises(DataError, match=r"group 1 has shape \(2, 4\), but group 0 \(5, 3\)"):
        as_source([parts[0], np.zeros((2, 4))])
    with pytest.raises(DataError, match="list of arrays, each a group"):
        as_source(parts, groups=OFFSETS)
    with pytest.raises(DataError, match="no rows"):
        as_source([np.zeros((0, 3))])
    # rows in a list are still rows
    assert as_source([X[0], X[1]]).n_atoms == 2


def test_files_and_dask_arrays_with_offsets(tmp_path):
    import dask.array as da

    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "offsets.npy", OFFSETS)
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(4, 3))
    same_groups(as_source(tmp_path / "x.npy", groups=OFFSETS, batch_size=12))
    same_groups(as_source(tmp_path / "x.npy", groups=tmp_path / "offsets.npy", batch_size=12))
    same_groups(as_source(tmp_path / "x.zarr", groups=OFFSETS, batch_size=12))
    same_groups(as_source(da.from_array(X, chunks=(10, 3)), groups=OFFSETS, batch_size=12))
    pq.write_table(table().select(["a", "b", "c"]), tmp_path / "x.parquet", row_group_size=9)
    same_groups(as_source(tmp_path / "x.parquet", groups=OFFSETS, batch_size=12))


@pytest.mark.parametrize("batch_size", [1, 5, 12, 100])
def test_parquet_with_a_column_of_ids(tmp_path, batch_size):
    folder = tmp_path / "many"
    folder.mkdir()
    # a group goes on in the next file
    for i, (a, b) in enumerate([(0, 9), (9, 10), (10, 33)]):
        pq.write_table(table().slice(a, b - a), folder / f"{i}.parquet", row_group_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = as_source(folder, groups="site", order="time", weights="w", batch_size=batch_size)
    batches = same_groups(source, lengths=WITH_ROWS, rows=max(batch_size, 11))
    np.testing.assert_array_equal(np.concatenate([b.weights for b in batches]), np.arange(33.0))
    assert source.describe()["columns"] == ["a", "b", "c"]


def test_tables_in_memory_and_csv(tmp_path):
    wanted = {"groups": "site", "order": "time", "batch_size": 12, "weights": "w"}
    same_groups(as_source(table(), **wanted), lengths=WITH_ROWS)
    same_groups(as_source(table().to_pandas(), **wanted), lengths=WITH_ROWS)
    same_groups(as_source(table().to_pandas(), groups=OFFSETS, columns=["a", "b", "c"], batch_size=12))
    table().to_pandas().to_csv(tmp_path / "x.csv", index=False, float_format="%.17g")
    same_groups(as_source(tmp_path / "x.csv", **wanted), lengths=WITH_ROWS)


def test_dask_frames():
    import dask.dataframe as dd

    frame = dd.from_pandas(table().to_pandas(), npartitions=1)
    source = as_source(frame, groups="site", order="time", weights="w")
    (batch,) = read_all(source)
    np.testing.assert_array_equal(np.diff(batch.groups), WITH_ROWS)
    assert source.describe()["groups"] == ["site", "time"]
    with pytest.raises(DataError, match="lie in . places.*Partitions must end where groups end"):
        as_source(dd.from_pandas(table().to_pandas(), npartitions=4), groups="site", weights="w", columns=FEATURES)
    with pytest.raises(DataError, match="name the column of groups"):
        as_source(frame, groups=OFFSETS, columns=["a", "b", "c"])


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 5, 4, 33], "fall from 5 to 4 at position 2"),
        ([0, 5, 32], "run from 0 to 32, the data have 33 rows"),
        ([1, 33], "run from 1 to 33"),
        ([0.0, 2.5, 33.0], "not whole"),
        ([0.0, np.nan, 33.0], "not whole"),
        ([33], r"shape \(1,\)"),
        (np.zeros(33, "U1"), "dtype <U1"),
        (np.zeros((2, 2)), r"shape \(2, 2\)"),
    ],
)
def test_wrong_offsets(offsets, message):
    with pytest.raises(DataError, match=message):
        as_source(X, groups=offsets)


def test_what_has_no_groups():
    counts = sparse.csr_array(RNG.poisson(0.3, (20, 9)))
    with pytest.raises(DataError, match="document in each row"):
        as_source(counts, groups=[0, 20])
    with pytest.raises(DataError, match="'site' names a column"):
        as_source(X, groups="site")
    with pytest.raises(DataError, match="say which column holds the groups"):
        as_source(X, order="time")
    with pytest.raises(DataError, match="groups told by a column"):
        as_source(X, groups=OFFSETS, order="time")
    with pytest.raises(DataError, match="already a source"):
        as_source(as_source(X), groups=OFFSETS)
    with pytest.raises(DataError, match="no column 'sites' for the groups of rows; nearest existing name: 'site'"):
        as_source(table(), groups="sites")


def test_wrong_ids(tmp_path):
    path = tmp_path / "x.parquet"

    def write(made):
        pq.write_table(made, path, row_group_size=5)
        return path

    with pytest.raises(DataError, match="'site 0'.*lie in 2 places"):
        as_source(write(pa.concat_tables([table(), table().slice(0, 2)])), groups="site", weights="w", columns=FEATURES)
    falling = table().set_column(1, "time", pa.array(np.arange(33)[::-1]))
    with pytest.raises(DataError, match="'time' falls within group 'site 0' at row 1"):
        as_source(write(falling), groups="site", order="time", weights="w")
    holes = table().set_column(0, "site", pa.array([1.0] * 7 + [np.nan] + [2.0] * 25))
    with pytest.raises(DataError, match="row 7 has no 'site'"):
        as_source(write(holes), groups="site", weights="w", columns=FEATURES)
    nulls = table().set_column(0, "site", pa.array([1] * 7 + [None] + [2] * 25))
    with pytest.raises(DataError, match="row 7 has no 'site'"):
        as_source(write(nulls), groups="site", weights="w", columns=FEATURES)
    for data in (nulls, nulls.to_pandas()):
        with pytest.raises(DataError, match="row 7 has no 'site'"):
            as_source(data, groups="site", weights="w", columns=FEATURES)


def test_a_group_larger_than_a_batch_is_reported():
    with pytest.warns(UserWarning, match=r"1 group\(s\) have more than the 10 rows of a batch \(group 3: 11\)"):
        batches = same_groups(as_source(X, groups=OFFSETS, batch_size=10))
    assert [b.n_atoms for b in batches] == [8, 11, 10, 4]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40).filter(sum), st.integers(1, 20))
def test_cuts(lengths, rows):
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        starts = cut_groups(check_offsets(offsets, offsets[-1], "x"), rows, "x")
    assert starts[0] == 0 and starts[-1] == len(lengths) and (np.diff(starts) > 0).all()
    sizes = np.diff(offsets[starts])
    assert (sizes > 0).all()
    for a, b, n in zip(starts[:-1], starts[1:], sizes, strict=True):
        assert n <= rows or np.count_nonzero(lengths[a:b]) == 1


def blocks_by_hand(whole, breaks, cut):
    """Each row's block as ``(group, first row within the group)``: begun anew at breaks, then as few pieces as fit."""
    found = []
    for g, (first, last) in enumerate(zip(whole[:-1], whole[1:], strict=True)):
        edges = [first, *[b for b in breaks if first < b < last], last]
        for a, b in zip(edges[:-1], edges[1:], strict=True):
            pieces = 1 if cut is None else max(1, -(-(b - a) // cut))
            found += [(g, a + i * (b - a) // pieces - first) for i in range(pieces)]
    return found


@pytest.mark.parametrize("cut", [None, 1, 3, 4, 100])
def test_blocks_begin_at_each_break_of_any_group(cut):
    breaks = np.array([2, 9, 12, 16, 21, 22, 24])  # two and three of one group, and one in each of others
    offsets, blocks = blocks_of(OFFSETS, breaks, cut)
    wanted = blocks_by_hand(OFFSETS.tolist(), breaks.tolist(), cut)
    assert blocks.tolist() == [list(own) for own in wanted]
    assert offsets.tolist() == [*(int(OFFSETS[g]) + at for g, at in wanted), 33]
    assert cut is None or np.diff(offsets).max() <= cut
    again, cuts = whole_groups(offsets, blocks)
    assert again.tolist() == OFFSETS.tolist()
    assert cuts.tolist() == [int(OFFSETS[g]) + at for g, at in wanted if at > 0]


@pytest.mark.parametrize("where", ["memory", "file", "numbers"])
def test_names_of_any_part_of_the_groups_are_those_of_all(where, tmp_path):
    ids = pa.array([f"site {g}" for g in range(11)])
    _, blocks = blocks_of(OFFSETS, np.array([2, 9, 12, 21]), 4)
    every = [f"site {g}" if where != "numbers" else g for g in range(11)]
    pq.write_table(pa.table({"id": ids}), tmp_path / "ids.parquet", row_group_size=3)
    held = {"memory": ids, "file": Location.of(str(tmp_path / "ids.parquet")), "numbers": None}[where]
    wanted = [every[g] for g in blocks[:, 0]]
    for first, last in itertools.combinations(range(len(blocks) + 1), 2):
        found, begin = Names(held, blocks).part((first, last))()
        assert found.to_pylist() == wanted[first:last]
        assert begin.tolist() == blocks[first:last, 1].tolist()
    for first, last in itertools.combinations(range(12), 2):  # groups that were not cut
        found, begin = Names(held).part((first, last))()
        assert found.to_pylist() == every[first:last]
        assert not begin.any()


@pytest.mark.parametrize("size", [1, 2, 5, 50])
def test_groups_whose_rows_come_in_many_pieces_are_found(size):
    lengths, times = [4, 1, 7, 3], [0, 1, 2, 9, 0, 0, 1, 5, 6, 7, 8, 12, 3, 4, 5]
    ids = pa.array(np.repeat(["d", "a", "c", "b"], lengths))
    runs = Runs("table", "id", "time", Cutting(gaps="cut", step=1.0))
    for at in range(0, 15, size):
        runs.add(ids[at : at + size], pa.array(times[at : at + size]))
    assert runs.offsets().tolist() == [0, 4, 5, 12, 15] and runs.ids().to_pylist() == ["d", "a", "c", "b"]
    assert runs.breaks().tolist() == [3, 7, 11]
    runs.add(pa.array(["b"]), pa.array([6]))
    with pytest.raises(DataError, match=r"rows 15 and 16 of group 'b' have the same 'time'"):
        runs.add(pa.array(["b"]), pa.array([6]))
    with pytest.raises(DataError, match=r"'time' falls within group 'b' at row 16"):
        runs.add(pa.array(["b"]), pa.array([5]))


def test_a_step_is_the_median_distance_which_a_few_gaps_do_not_move():
    runs = Runs("table", "id", "time", Cutting(gaps="cut"))
    runs.add(pa.array(["a"] * 7), pa.array([0, 1, 2, 3, 1000, 1001, 1003]))
    assert runs.breaks().tolist() == [4, 6]
