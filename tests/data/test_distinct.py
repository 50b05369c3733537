"""Rows that occur several times: kept once, in the order of their first occurrence, with their weights or without."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import zarr
from numpy.testing import assert_allclose, assert_array_equal

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.data.ingestion import ingest as distinct
from bnp_dask.data.ingestion.ingest import DistinctRows
from bnp_dask.errors import DataError, SettingError

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((300, 3))
DEALT = RNG.permutation(np.repeat(np.arange(300), RNG.integers(1, 6, 300)))
X = ROWS[DEALT]


def slowly(x, weights=None):
    """Distinct rows and the sums of their weights, one row after the other."""
    found: dict[bytes, list] = {}
    for i, row in enumerate(x):
        weight = 1.0 if weights is None else weights[i]
        found.setdefault(row.tobytes(), [row, 0.0])[1] += weight
    rows, times = zip(*found.values(), strict=True)
    return np.array(rows), np.array(times)


def stored(path):
    group = zarr.open_group(path, mode="r")
    return group["x"][:], group["weights"][:] if "weights" in group else None


@pytest.fixture
def table(tmp_path):
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


@pytest.mark.parametrize("batch_size", [None, 7])
def test_each_row_is_kept_once_with_how_often_it_occurred(table, tmp_path, batch_size):
    report = bnp.ingest(table, tmp_path / "out.zarr", deduplicate="weights", batch_size=batch_size)
    x, weights = stored(tmp_path / "out.zarr")
    rows, times = slowly(X)
    assert_array_equal(x, rows)
    assert_array_equal(weights, times)
    assert report.n_atoms == 300
    assert f"300 of {len(X):,} rows are distinct: each is kept once, with its weights summed" in str(report)


def test_or_counts_once(table, tmp_path):
    report = bnp.ingest(table, tmp_path / "out.zarr", deduplicate="once")
    x, weights = stored(tmp_path / "out.zarr")
    assert_array_equal(x, slowly(X)[0])
    assert weights is None and "and counts once" in str(report)


def test_weights_are_summed(tmp_path):
    weights = RNG.integers(0, 5, len(X)) / 4
    pd.DataFrame(X, columns=list("abc")).assign(w=weights).to_parquet(tmp_path / "x.parquet", row_group_size=50)
    bnp.ingest(tmp_path / "x.parquet", tmp_path / "out.zarr", weights="w", deduplicate="weights")
    x, found = stored(tmp_path / "out.zarr")
    rows, times = slowly(X, weights)
    assert_array_equal(x, rows)
    assert_allclose(found, times, rtol=1e-15)
    assert bnp.as_source(tmp_path / "out.zarr").columns.names == ("a", "b", "c")


@pytest.mark.parametrize("kind", ["uint8", "float32", "int16"])
def test_values_are_compared_as_they_are_stored(tmp_path, kind):
    x = RNG.integers(0, 3, (500, 5)).astype(kind)
    np.save(tmp_path / "x.npy", x)
    bnp.ingest(tmp_path / "x.npy", tmp_path / "out.zarr", deduplicate="weights")
    found, weights = stored(tmp_path / "out.zarr")
    rows, times = slowly(x)
    assert found.dtype == kind
    assert_array_equal(found, rows)
    assert_array_equal(weights, times)
    near = np.array([[1.0], [1.0 + 1e-12]])
    np.save(tmp_path / "near.npy", near)
    assert bnp.ingest(tmp_path / "near.npy", tmp_path / "two.zarr", deduplicate="once").n_atoms == 2
    assert bnp.ingest(tmp_path / "near.npy", tmp_path / "one.zarr", deduplicate="once", dtype="float32").n_atoms == 1


def test_missing_entries_and_signs_of_zero_are_equal(tmp_path):
    other = np.frombuffer(np.uint64(0xFFF8000000000001).tobytes(), np.float64)[0]
    assert np.isnan(other)
    np.save(tmp_path / "x.npy", np.array([[np.nan, 0.0], [other, -0.0], [1.0, 0.0]]))
    bnp.ingest(tmp_path / "x.npy", tmp_path / "out.zarr", deduplicate="weights")
    x, weights = stored(tmp_path / "out.zarr")
    assert_array_equal(x, [[np.nan, 0.0], [1.0, 0.0]])
    assert_array_equal(weights, [2.0, 1.0])


def test_pieces_and_parts_change_nothing(monkeypatch):
    """Also where a part holds most rows, and where pieces that come out are smaller than one that went in."""

    def found(parts, piece, bytes_out):
        monkeypatch.setattr(distinct, "PARTS", parts)
        monkeypatch.setattr(distinct, "PIECE_BYTES", bytes_out)
        pieces = (((X[i : i + piece], None), 0.0) for i in range(0, len(X), piece))
        out = list(DistinctRows("weights").pieces(pieces))
        assert out[-1][1] == 1.0
        return [np.concatenate(arrays) for arrays in zip(*(piece for piece, _ in out), strict=True)]

    expected = slowly(X)
    for case in ((1, len(X), 10**6), (256, 11, 10**6), (7, 50, 100)):
        for ours, theirs in zip(found(*case), expected, strict=True):
            assert_array_equal(ours, theirs)


def test_projected_rows(table, tmp_path):
    whole = bnp.ingest(table, tmp_path / "whole.zarr", project=2, deduplicate="weights")
    assert whole.n_atoms == 300 and whole.n_features == 2


@pytest.mark.long
def test_copies_learn_the_number_of_the_rows_that_they_copy(tmp_path):
    """Twelve clusters of a hundred rows, each row twenty times: with its copies each row is a cluster, nearly."""
    centers = 30.0 * np.random.default_rng(5).standard_normal((12, 4))
    rows = np.concatenate([c + np.random.default_rng(i).standard_normal((100, 4)) for i, c in enumerate(centers)])
    np.save(tmp_path / "x.npy", np.tile(rows, (20, 1)))
    bnp.ingest(tmp_path / "x.npy", tmp_path / "once.zarr", deduplicate="once")
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian())
    assert bnp.train(model, tmp_path / "once.zarr").posterior.n_clusters == 12


def test_weighted_rows_teach_what_all_do(table, tmp_path):
    bnp.ingest(table, tmp_path / "out.zarr", deduplicate="weights")
    x, weights = stored(tmp_path / "out.zarr")
    model = bnp.Model(bnp.FiniteMixture(), bnp.Gaussian(nu=5.0, B=np.eye(3), m=np.zeros(3), kappa=1.0), copies="count")

    def objective(data, start):
        with pytest.warns(bnp.ConvergenceWarning):
            result = bnp.train(model, data, init=start, schedule=bnp.FullBatch(laps=2, tolerance=0.0))
        return result.history[-1]["elbo"], bnp.FromPosterior(result.posterior)

    begin = objective(X, bnp.RandomExamples(3))[1]
    assert objective(bnp.as_source(x, weights=weights), begin)[0] == pytest.approx(objective(X, begin)[0], rel=1e-12)


def test_the_command(table, tmp_path, capsys):
    assert main(["ingest", str(table), str(tmp_path / "a.zarr"), "--deduplicate"]) == 0
    assert main(["ingest", str(table), str(tmp_path / "b.zarr"), "--deduplicate", "once"]) == 0
    assert capsys.readouterr().out.count("rows are distinct") == 2
    assert stored(tmp_path / "a.zarr")[1].sum() == len(X) and stored(tmp_path / "b.zarr")[1] is None


def test_what_makes_no_sense_is_refused(table, tmp_path):
    out = tmp_path / "out.zarr"
    with pytest.raises(SettingError, match=r"deduplicate='twice'"):
        bnp.ingest(table, out, deduplicate="twice")
    with pytest.raises(SettingError, match='deduplicate="once" lets every row count once'):
        bnp.ingest(table, out, deduplicate="once", weights=np.ones(len(X)))
    frame = pd.DataFrame(X, columns=list("abc")).assign(g=np.arange(len(X)) // 50)
    frame.to_parquet(tmp_path / "x.parquet")
    with pytest.raises(SettingError, match="has its rows in groups"):
        bnp.ingest(tmp_path / "x.parquet", out, group_column="g", deduplicate="once")
    (tmp_path / "x.svm").write_text("1 1:2 3:1\n0 2:1\n")
    with pytest.raises(DataError, match="deduplicate= are for dense rows"):
        bnp.ingest(tmp_path / "x.svm", out, format="svmlight", deduplicate="once")
    assert not out.exists()
