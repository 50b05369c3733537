"""Sequences: order, gaps, missing values, and long ones cut into blocks; nothing lost, and refusals name the place."""

from __future__ import annotations

import pickle
import warnings

import dask.array
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from bnp_dask.cli import main
from bnp_dask.data import as_source
from bnp_dask.data import groups as groups_module
from bnp_dask.data.groups import blocks_of, whole_groups
from bnp_dask.data.ingestion.ingest import ingest
from bnp_dask.errors import DataError, SettingError
from tests.data.reading import read_all

LENGTHS = {"walk": 7, "run": 1, "sit": 12, "jump": 5}


def table(times=None, order=None):
    """Sequences as rows of a table; the value is 100 for each sequence plus the step."""
    ids = np.repeat(list(LENGTHS), list(LENGTHS.values()))
    step = np.concatenate([np.arange(n) for n in LENGTHS.values()])
    value = 100.0 * np.repeat(np.arange(4), list(LENGTHS.values())) + step
    made = pa.table({"id": ids, "frame": step if times is None else times, "x": value, "y": -value})
    return made if order is None else made.take(order)


def named(source):
    """Sequence, step within it, and first feature of every row, as predictions will be labelled."""
    found = []
    for index, batch in enumerate(read_all(source)):
        ids, begin = pickle.loads(pickle.dumps(source.batch_names(index)))()
        for g, (first, last) in enumerate(zip(batch.groups[:-1], batch.groups[1:], strict=True)):
            found += [(ids[g].as_py(), int(begin[g]) + t, batch.x[first + t, 0]) for t in range(last - first)]
    return found


EXPECTED = [(name, t, 100.0 * g + t) for g, (name, n) in enumerate(LENGTHS.items()) for t in range(n)]


def sources(made, folder, **settings):
    """The same table from Parquet, pandas, Arrow and CSV."""
    pq.write_table(made, folder / "t.parquet", row_group_size=6)
    made.to_pandas().to_csv(folder / "t.csv", index=False)
    for data in (folder / "t.parquet", made, made.to_pandas(), folder / "t.csv"):
        yield lambda data=data: as_source(data, groups="id", order="frame", **settings)


@pytest.mark.parametrize("cut", [None, 1, 5, 6, 100])
@pytest.mark.parametrize("batch_size", [None, 8])
def test_every_step_once_with_its_name(tmp_path, cut, batch_size):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sequences longer than a batch
        for make in sources(table(), tmp_path, cut=cut, batch_size=batch_size):
            source = make()
            assert named(source) == EXPECTED
            longest = max(np.diff(b.groups).max() for b in read_all(source))
            assert longest <= (cut or 12)
            assert source.n_cuts == sum(-(-n // (cut or 100)) - 1 for n in LENGTHS.values())


def test_steps_out_of_order_are_sorted_by_ingest_and_refused_at_open(tmp_path):
    rng = np.random.default_rng(0)
    mixed = table(order=np.concatenate([[0, 7, 8, 20], rng.permutation(np.setdiff1d(np.arange(25), [0, 7, 8, 20]))]))
    for make in sources(mixed, tmp_path):
        with pytest.raises(DataError, match=r"(lie in \d places|'frame' falls within group).*bnp-dask ingest"):
            make()
    for kind in ("parquet", "csv"):
        ingest(tmp_path / f"t.{kind}", tmp_path / f"{kind}.zarr", group_column="id", order_column="frame")
        assert named(as_source(tmp_path / f"{kind}.zarr")) == EXPECTED


@pytest.mark.parametrize("cut", [None, 4])
def test_stores_keep_names_and_blocks(tmp_path, cut):
    pq.write_table(table(), tmp_path / "t.parquet")
    report = ingest(
        tmp_path / "t.parquet", tmp_path / "a.zarr", group_column="id", cut=cut, batch_size=12, columns=["x", "y"]
    )
    assert report.n_cuts == (0 if cut is None else 4)
    assert ("4 of 21 transitions are not counted" in str(report)) == (cut is not None)
    ingest(tmp_path / "a.zarr", tmp_path / "b.zarr", batch_size=30)
    ingest(tmp_path / "a.zarr", tmp_path / "c.zarr", cut=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path, more in (("a", {}), ("a", {"batch_size": 5}), ("a", {"cut": 2}), ("b", {}), ("c", {})):
            source = as_source(tmp_path / f"{path}.zarr", **more)
            assert named(source) == EXPECTED
    assert as_source(tmp_path / "c.zarr").n_cuts == (6 if cut is None else 8)
    assert as_source(tmp_path / "a.zarr", cut=2).n_cuts > 5


def test_rows_of_the_same_time_are_refused(tmp_path):
    times = np.concatenate([np.arange(n) for n in LENGTHS.values()])
    times[13] = times[12]
    for make in sources(table(times), tmp_path):
        with pytest.raises(DataError, match=r"rows 12 and 13 of group 'sit' have the same 'frame' \(4;.*drop one"):
            make()
    with pytest.raises(DataError, match=r"rows 12 and 13 of group 'sit' have the same 'frame'"):
        ingest(tmp_path / "t.parquet", tmp_path / "o.zarr", group_column="id", order_column="frame")
    assert not (tmp_path / "o.zarr").exists()


def gap_table():
    times = 10 * np.concatenate([np.arange(n) for n in LENGTHS.values()])
    times[11:20] += 30  # before row 11, the fourth of "sit"
    return table(times)


def test_gaps(tmp_path):
    for make in sources(gap_table(), tmp_path):
        with pytest.raises(
            DataError,
            match=r"group 'sit' has a gap between rows 10 and 11: 'frame' goes from 20 to 60, and a step is 10",
        ):
            make()
    for make in sources(gap_table(), tmp_path, gaps="ignore"):
        assert make().n_groups == 4
    for make in sources(gap_table(), tmp_path, step=40.0):
        assert make().n_cuts == 0
    for make in sources(gap_table(), tmp_path, gaps="cut"):
        source = make()
        assert [np.diff(b.groups).tolist() for b in read_all(source)] == [[7, 1, 3, 9, 5]]
        assert named(source) == EXPECTED
    for make in sources(gap_table(), tmp_path, gaps="cut", cut=5):
        assert [np.diff(b.groups).tolist() for b in read_all(make())] == [[3, 4, 1, 3, 4, 5, 5]]
    asked = {"group_column": "id", "order_column": "frame"}
    with pytest.raises(DataError, match="group 'sit' has a gap between rows 10 and 11"):
        ingest(tmp_path / "t.parquet", tmp_path / "o.zarr", **asked)
    report = ingest(tmp_path / "t.parquet", tmp_path / "o.zarr", **asked, gaps="cut")
    assert (report.n_groups, report.n_cuts) == (5, 1)
    assert named(as_source(tmp_path / "o.zarr")) == EXPECTED


def test_gaps_between_pieces_and_of_dates(tmp_path, monkeypatch):
    from bnp_dask.data.sources import open as groups_open

    monkeypatch.setattr(groups_open, "PIECE_BYTES", 8 * 3)  # three rows at a time
    pq.write_table(gap_table(), tmp_path / "t.parquet", row_group_size=11)
    with pytest.raises(DataError, match=r"group 'sit' has a gap between rows 10 and 11"):
        as_source(tmp_path / "t.parquet", groups="id", order="frame")
    assert named(as_source(tmp_path / "t.parquet", groups="id", order="frame", gaps="cut")) == EXPECTED
    days = pd.to_datetime("2026-01-01") + pd.to_timedelta([0, 1, 2, 4, 5], "D")
    frame = pd.DataFrame({"id": 1, "day": days, "x": np.arange(5.0)})
    with pytest.raises(DataError, match="group 1 has a gap between rows 2 and 3"):
        as_source(frame, groups="id", order="day")
    assert as_source(frame, groups="id", order="day", gaps="cut").n_cuts == 1


def test_dask_frames(tmp_path):
    dd = pytest.importorskip("dask.dataframe")
    frame = dd.from_pandas(gap_table().to_pandas(), npartitions=1).repartition(divisions=[0, 8, 24])
    settings = {"groups": "id", "order": "frame"}
    with pytest.raises(DataError, match="group 'sit' has a gap"):
        as_source(frame, **settings)
    source = as_source(frame, **settings, gaps="cut", cut=4)
    assert named(source) == EXPECTED
    assert max(np.diff(b.groups).max() for b in read_all(source)) == 4


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_missing_values_name_sequence_and_row(tmp_path, bad):
    made = table()
    x = np.array(made["x"]).copy()
    x[13] = bad
    made = made.set_column(2, "x", pa.array(x))
    for make in sources(made, tmp_path, cut=4):
        with pytest.raises(DataError, match=r"row 5 of group 'sit'.*fill them in, or drop such rows.*gaps='cut'"):
            read_all(make())
    parts = [np.ones((3, 2)), np.zeros((0, 2)), np.array([[1.0, 2.0], [bad, 1.0]])]
    with pytest.raises(DataError, match=r"row 1 of group 2; missing values \(1 rows here\).*without_missing"):
        read_all(as_source(parts))
    # what is done about it
    kept = made.take(pa.array(np.flatnonzero(np.isfinite(x))))
    source = as_source(kept, groups="id", order="frame", gaps="cut")
    assert [np.diff(b.groups).tolist() for b in read_all(source)] == [[7, 1, 5, 6, 5]]


def test_large_values_are_not_missing():
    x = np.full((4, 1), 1e308)
    assert read_all(as_source(x, groups=[0, 2, 4]))[0].x.max() == 1e308


def test_a_sequence_that_no_machine_holds(monkeypatch):
    monkeypatch.setattr(groups_module, "memory_bytes", lambda: 8 * 30)
    parts = [np.zeros((5, 2)), np.zeros((20, 2))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(DataError, match=r"group 1 \(20 rows\): a batch of 20 rows takes .* GB.*cut=10_000"):
            [b for b in map(as_source(parts, batch_size=10).reader, range(2)) if b()]
    with pytest.warns(UserWarning, match=r"1 group\(s\) have more than the 10 rows.*cut=10_000"):
        as_source(parts, batch_size=10)
    blocks = as_source(parts, batch_size=10, cut=10)
    assert [np.diff(b.groups).tolist() for b in read_all(blocks)] == [[5], [10], [10]]


def test_lists_and_stores_and_arrays_are_cut(tmp_path):
    x = np.arange(46.0).reshape(23, 2)
    offsets = np.array([0, 0, 9, 10, 23])
    np.save(tmp_path / "x.npy", x)
    group = zarr.create_group(tmp_path / "x.zarr")
    group.create_array("x", data=x, chunks=(4, 2))
    group.create_array("groups", data=offsets)
    array = zarr.create_array(str(tmp_path / "plain.zarr"), data=x, chunks=(7, 2))
    assert array.shape == (23, 2)
    made = [
        as_source([x[a:b] for a, b in zip(offsets[:-1], offsets[1:], strict=True)], cut=5),
        as_source(x, groups=offsets, cut=5),
        as_source(tmp_path / "x.npy", groups=offsets, cut=5),
        as_source(tmp_path / "x.zarr", cut=5),
        as_source(tmp_path / "plain.zarr", groups=offsets, cut=5),
        as_source(dask.array.from_array(x, chunks=(7, 2)), groups=offsets, cut=5),
    ]
    for source in made:
        (batch,) = read_all(source)
        np.testing.assert_array_equal(batch.x, x)
        # chunks of a store end anywhere: no sequence is cut by one
        assert np.diff(batch.groups).tolist() == [0, 4, 5, 1, 4, 4, 5]
        assert source.n_cuts == 3
        assert [name for name, *_ in named(source)] == [1] * 9 + [2] + [3] * 13
    with pytest.raises(DataError, match="say which rows are of one sequence"):
        as_source(tmp_path / "plain.zarr", cut=5)
    with pytest.raises(DataError, match="say which rows are of one sequence"):
        as_source(x, cut=5)
    (whole,) = read_all(as_source(x, groups=[0, 23], cut=8))
    assert np.diff(whole.groups).tolist() == [7, 8, 8]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(1, 12), st.data())
def test_blocks(lengths, cut, data):
    whole = np.concatenate([[0], np.cumsum(lengths)])
    inside = np.setdiff1d(np.arange(whole[-1]), whole)
    breaks = np.array(sorted(data.draw(st.sets(st.sampled_from(inside.tolist())))) if len(inside) else [], np.int64)
    offsets, blocks = blocks_of(whole, breaks, cut)
    sizes = np.diff(offsets)
    assert offsets[0] == 0 and offsets[-1] == whole[-1] and (sizes >= 0).all() and sizes.max() <= cut
    assert set(whole) | set(breaks) <= set(offsets)
    if blocks is None:
        np.testing.assert_array_equal(offsets, whole)
        return
    np.testing.assert_array_equal(offsets[:-1], whole[blocks[:, 0]] + blocks[:, 1])
    again, cuts = whole_groups(offsets, blocks)
    np.testing.assert_array_equal(again, whole)
    assert set(cuts) == set(offsets) - set(whole)
    # no more blocks than needed
    once = blocks_of(whole, None, cut)[0]
    assert len(once) - 1 == sum(max(1, -(-n // cut)) for n in lengths)


def test_files_of_a_folder(tmp_path):
    """A sequence may go on in the next file; columns must be those of the first."""
    made = table()
    for i, (start, stop) in enumerate([(0, 10), (10, 11), (11, 25)]):
        pq.write_table(made.slice(start, stop - start), tmp_path / f"part{i}.parquet", row_group_size=4)
    assert named(as_source(tmp_path, groups="id", order="frame", batch_size=12)) == EXPECTED
    assert named(as_source(tmp_path, groups="id", order="frame", cut=3)) == EXPECTED
    pq.write_table(made.slice(11).drop_columns(["y"]), tmp_path / "part2.parquet")
    with pytest.raises(DataError, match=r"part2.parquet has no column 'y', which .*part0.parquet has"):
        as_source(tmp_path, groups="id", order="frame")
    assert as_source(tmp_path, groups="id", order="frame", columns=["x"]).n_features == 1
    pq.write_table(made.slice(11).append_column("z", made["x"].slice(11)), tmp_path / "part2.parquet")
    with pytest.raises(DataError, match=r"numeric column\(s\) 'z' that"):
        as_source(tmp_path, groups="id", order="frame")


def test_settings_that_say_nothing(tmp_path):
    made = table()
    for cut in (0, -3, 2.5, True):
        with pytest.raises(SettingError, match="cut="):
            as_source(made, groups="id", cut=cut)
    with pytest.raises(SettingError, match='gaps=\'ct\'.*"refuse" or "cut" or "ignore"'):
        as_source(made, groups="id", order="frame", gaps="ct")
    with pytest.raises(SettingError, match=r"gaps='cut' is about the column that says when each row was"):
        as_source(made, groups="id", gaps="cut")
    with pytest.raises(SettingError, match="step=-1"):
        as_source(made, groups="id", order="frame", step=-1)
    with pytest.raises(DataError, match="data is already a source"):
        as_source(as_source(made, groups="id"), cut=3)
    with pytest.raises(DataError, match=r"\[x.reshape\(-1, 1\) for x in data\]"):
        as_source([np.zeros(3), np.zeros(4)])
    pq.write_table(made, tmp_path / "t.parquet")
    with pytest.raises(SettingError, match="name the column that tells them apart"):
        ingest(tmp_path / "t.parquet", tmp_path / "o.zarr", cut=3, columns=["x"])
    with pytest.raises(DataError, match=r"group 1 has shape \(4, 3\), but group 0 \(5, 2\)"):
        as_source([np.zeros((5, 2)), np.zeros((4, 3))])


def test_the_command_line_cuts(tmp_path, capsys):
    pq.write_table(gap_table(), tmp_path / "t.parquet")
    words = ["ingest", str(tmp_path / "t.parquet"), str(tmp_path / "o.zarr"), "--group-column", "id"]
    assert main([*words, "--order-column", "frame"]) == 2
    assert "has a gap between rows 10 and 11" in capsys.readouterr().err
    assert main([*words, "--order-column", "frame", "--gaps", "cut", "--cut", "5"]) == 0
    assert "7 groups: 4 in the source, cut in 3 places" in capsys.readouterr().out
    assert main([*words[:3], "--overwrite", *words[3:], "--order-column", "frame", "--step", "40"]) == 0
