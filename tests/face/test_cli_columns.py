"""Columns of tables on the command line: predict and score read a table as the run was trained on its own."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml
import zarr

import bnp_dask as bnp
from bnp_dask.analysis.score import score_samples
from bnp_dask.cli import main

# runs of a few laps stop at their limit
pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")

GROUPS = {"age": "Gaussian", "visits, calls": "Poisson"}


def people(n=300, seed=0):
    """Two kinds of people, with a weight, and two columns that nobody asked for."""
    rng = np.random.default_rng(seed)
    old = np.arange(n) % 2
    return pa.table(
        {
            "id": [f"p{i}" for i in range(n)],
            "age": rng.normal(30.0 + 30.0 * old, 3.0),
            "visits": rng.poisson(2.0 + 8.0 * old),
            "calls": rng.poisson(5.0 - 4.0 * old),
            "times": rng.integers(1, 4, n),
            "income": rng.normal(size=n),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run on three of the columns, weighted."""
    folder = tmp_path_factory.mktemp("columns")
    pq.write_table(people(), folder / "train.parquet")
    turned = people(200, seed=1).select(["income", "calls", "times", "age", "visits"])
    pq.write_table(turned, folder / "new.parquet")
    pyarrow.csv.write_csv(turned, folder / "new.csv")
    job = {
        "model": {"allocation": "DPMixture", "observation": {"type": "Product", "groups": GROUPS}},
        "data": {"path": "train.parquet", "columns": ["age", "visits", "calls"], "weights": "times"},
        "init": {"type": "BregmanKMeans", "n_clusters": 2},
        "schedule": {"type": "Memoized", "laps": 3},
        "store": "run",
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    assert main(["train", str(folder / "job.yaml"), "--quiet"]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def scored(capsys, *words):
    capsys.readouterr()
    assert main(["score", *words]) == 0
    return float(capsys.readouterr().out.split()[0])


def test_the_posterior_of_a_job_knows_its_columns(folder):
    posterior = bnp.load("run/posterior.zarr")
    assert posterior.columns.names == ("age", "visits", "calls")
    assert posterior.columns.chosen and posterior.columns.roles.weights == "times"
    assert posterior.columns.kinds == ("float64", "int64", "int64")
    assert [key for key, _ in posterior.model.observation.groups] == ["age", "visits, calls"]


@pytest.mark.parametrize("table", ["new.parquet", "new.csv"])
@pytest.mark.parametrize("run", ["run", "run/posterior.zarr"])
def test_predict_and_score_read_any_table_as_the_run_was_trained(table, run, capsys):
    posterior = bnp.load("run/posterior.zarr")
    new = pq.read_table("new.parquet")
    x = np.column_stack([new[c] for c in ("age", "visits", "calls")]).astype(float)
    each = score_samples(posterior, x)
    assert scored(capsys, run, table) == pytest.approx(np.average(each, weights=new["times"]), rel=1e-9)
    assert main(["predict", run, table, "labels.zarr"]) == 0
    labels = zarr.open_group("labels.zarr", mode="r")["label"][:]
    np.testing.assert_array_equal(labels, bnp.predict(posterior, x))
    shutil.rmtree("labels.zarr")


def test_options_override_what_the_run_says(capsys):
    posterior = bnp.load("run/posterior.zarr")
    new = pq.read_table("new.parquet")
    each = score_samples(posterior, new)
    assert scored(capsys, "run", "new.parquet", "--weights", "none") == pytest.approx(each.mean(), rel=1e-9)
    heavy = np.abs(np.asarray(new["income"]))
    pq.write_table(new.append_column("heavy", pa.array(heavy)).drop_columns(["times"]), "heavy.parquet")
    expected = pytest.approx(np.average(each, weights=heavy), rel=1e-9)
    assert scored(capsys, "run", "heavy.parquet", "--weights", "heavy") == expected
    np.save("heavy.npy", heavy)
    assert scored(capsys, "run", "new.parquet", "--weights", "heavy.npy") == expected
    columns = ["--columns", "calls,visits,age", "--weights", "none"]
    assert scored(capsys, "run", "new.parquet", *columns) == pytest.approx(each.mean(), rel=1e-9)


def test_columns_that_do_not_fit_are_one_line(capsys):
    new = pq.read_table("new.parquet")
    for table, words, message in (
        (new.rename_columns(["income", "call", "times", "age", "visits"]), [], "no column 'calls'"),
        (new.drop_columns(["times"]), [], "no column 'times' for the weights of rows"),
        (new, ["--columns", "age,visits,income"], "no column 'calls'"),
        (new, ["--columns", "age,visit"], "no column 'visit'; nearest existing name: 'visits'"),
    ):
        pq.write_table(table, "wrong.parquet")
        assert main(["score", "run", "wrong.parquet", *words]) == 2
        err = capsys.readouterr().err.strip()
        assert err.startswith("bnp-dask: error:") and message in err and len(err.splitlines()) == 1, err


def test_runs_of_earlier_versions_are_read_by_their_job_file(capsys, monkeypatch):
    """Their posteriors know no columns."""
    posterior = bnp.load("run/posterior.zarr")
    expected = scored(capsys, "run", "new.parquet")
    replace(posterior, columns=None).save("run/posterior.zarr")
    try:
        assert scored(capsys, "run", "new.parquet") == expected
        assert main(["predict", "run", "new.parquet", "old.parquet"]) == 0
        np.testing.assert_array_equal(
            pq.read_table("old.parquet")["label"], bnp.predict(posterior, pq.read_table("new.parquet"))
        )
    finally:
        posterior.save("run/posterior.zarr")


def test_inspect_and_report_speak_of_columns(capsys):
    assert main(["inspect", "run"]) == 0
    out = capsys.readouterr().out
    assert "mean (sd): age " in out and "rates: visits " in out
    assert main(["report", "run", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert "age, visits, calls; weights times" in page and "rates: visits " in page


def test_resume_reads_a_table_in_another_order(folder, capsys):
    job = yaml.safe_load((folder / "job.yaml").read_text())
    job["data"] = {"path": "moving.parquet", "weights": "times"}
    frame = people().drop_columns(["id", "income"])
    pq.write_table(frame, "moving.parquet")
    (folder / "moving.yaml").write_text(yaml.safe_dump({**job, "store": "moving"}))
    assert main(["train", "moving.yaml", "--quiet", "--laps", "2"]) == 0
    pq.write_table(frame.select(["times", "calls", "age", "visits"]), "moving.parquet")
    assert main(["resume", "moving", "--quiet", "--laps", "3"]) == 0
    again, whole = bnp.load("moving/posterior.zarr"), bnp.load("run/posterior.zarr")
    assert again.columns.names == whole.columns.names
    for name, value in whole.summary.values.items():
        np.testing.assert_array_equal(value, again.summary[name])
