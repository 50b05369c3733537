"""Stores with groups: tables are sorted on their way in, and what was stored comes back."""

from __future__ import annotations

import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from bnp_dask.cli import main
from bnp_dask.data import as_source
from bnp_dask.data.ingestion.ingest import ingest
from bnp_dask.errors import DataError, SettingError
from tests.data.reading import read_all
from tests.data.test_groups import LENGTHS, OFFSETS, WITH_ROWS, X, same_groups, table


def shuffled():
    """Rows in any order, but for the first of each group; the table, and the rows as they should come."""
    rng = np.random.default_rng(8)
    first = OFFSETS[:-1][LENGTHS > 0]
    rest = rng.permutation(np.setdiff1d(np.arange(33), first))
    return table().take(np.concatenate([first, rest]))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("mixed", [False, True])
def test_rows_are_put_into_groups_and_order(tmp_path, kind, mixed):
    made = shuffled() if mixed else table()
    path = tmp_path / f"x.{kind}"
    if kind == "csv":
        made.to_pandas().to_csv(path, index=False, float_format="%.17g")
    else:
        pq.write_table(made, path, row_group_size=6)
    report = ingest(path, tmp_path / "out.zarr", group_column="site", order_column="time", weights="w", batch_size=12)
    assert report.n_groups == len(WITH_ROWS) and f"{len(WITH_ROWS)} groups" in str(report)
    assert bool(report.notes) == mixed
    batches = same_groups(as_source(tmp_path / "out.zarr"), lengths=WITH_ROWS)
    np.testing.assert_array_equal(np.concatenate([b.weights for b in batches]), np.arange(33.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same_groups(as_source(tmp_path / "out.zarr", batch_size=4), lengths=WITH_ROWS, rows=11)


def test_without_an_order_rows_keep_theirs(tmp_path):
    ids, x = np.array([3, 1, 3, 2, 1, 3]), np.arange(6.0)
    pq.write_table(pa.table({"id": ids, "x": x}), tmp_path / "x.parquet")
    ingest(tmp_path / "x.parquet", tmp_path / "out.zarr", group_column="id")
    (batch,) = read_all(as_source(tmp_path / "out.zarr"))
    assert batch.x[:, 0].tolist() == [0, 2, 5, 1, 4, 3]
    assert batch.groups.tolist() == [0, 3, 5, 6]


def test_dates_sort_rows(tmp_path):
    day = np.array(["2026-01-03", "2026-01-01", "2026-01-02"], "M8[D]")
    pq.write_table(pa.table({"id": [1, 1, 1], "day": day, "x": [3.0, 1.0, 2.0]}), tmp_path / "x.parquet")
    ingest(tmp_path / "x.parquet", tmp_path / "out.zarr", group_column="id", order_column="day")
    (batch,) = read_all(as_source(tmp_path / "out.zarr"))
    assert batch.x[:, 0].tolist() == [1, 2, 3]


def test_a_store_with_groups_keeps_them(tmp_path):
    pq.write_table(table(), tmp_path / "x.parquet")
    ingest(tmp_path / "x.parquet", tmp_path / "a.zarr", group_column="site", columns=["a", "b", "c"], dtype="float32")
    ingest(tmp_path / "a.zarr", tmp_path / "b.zarr", batch_size=12)
    source = as_source(tmp_path / "b.zarr")
    same_groups(source, X.astype(np.float32), WITH_ROWS)
    assert source.describe()["dtype"] == "float32"
    with pytest.raises(DataError, match="holds its groups already"):
        as_source(tmp_path / "b.zarr", groups=OFFSETS)


def test_a_store_of_other_origin(tmp_path):
    group = zarr.create_group(tmp_path / "mine.zarr")
    group.create_array("x", data=X, chunks=(8, 3))
    group.create_array("groups", data=OFFSETS)
    same_groups(as_source(tmp_path / "mine.zarr", batch_size=12))
    group["groups"][3] = 0
    with pytest.raises(DataError, match="fall from 5 to 0"):
        as_source(tmp_path / "mine.zarr")


def test_wrong_columns(tmp_path):
    pq.write_table(table(), tmp_path / "x.parquet")
    np.save(tmp_path / "x.npy", X)
    out = tmp_path / "out.zarr"
    with pytest.raises(DataError, match="needs named columns"):
        ingest(tmp_path / "x.npy", out, group_column="site")
    with pytest.raises(SettingError, match="give group_column= too"):
        ingest(tmp_path / "x.parquet", out, order_column="time")
    with pytest.raises(DataError, match="no column 'sit'"):
        ingest(tmp_path / "x.parquet", out, group_column="sit")
    holes = table().set_column(0, "site", pa.array([1.0] * 7 + [np.nan] + [2.0] * 25))
    pq.write_table(holes, tmp_path / "holes.parquet", row_group_size=5)
    with pytest.raises(DataError, match="row 7 has no 'site'"):
        ingest(tmp_path / "holes.parquet", out, group_column="site", weights="w", columns=["a", "b", "c"])
    with pytest.raises(DataError, match="order column 'site' is"):
        ingest(tmp_path / "x.parquet", out, group_column="time", order_column="site", weights="w")
    assert not out.exists()


def test_the_command_line(tmp_path, capsys):
    pq.write_table(shuffled(), tmp_path / "x.parquet")
    out = tmp_path / "out.zarr"
    main(["ingest", str(tmp_path / "x.parquet"), str(out), "--group-column", "site", "--order-column", "time",
          "--columns", "a,b,c"])  # fmt: skip
    assert f"{len(WITH_ROWS)} groups" in capsys.readouterr().out
    same_groups(as_source(out), lengths=WITH_ROWS, rows=33)
