"""Sequences on the command line: from a table to states and a page, by a job file."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import bnp_dask as bnp
from bnp_dask.analysis.metrics import hamming_distance
from bnp_dask.cli import main
from bnp_dask.cli.console import job_data
from bnp_dask.cli.jobfile import parse_job, read_job
from bnp_dask.errors import SettingError
from bnp_dask.store import JOB_NAME, RunStore

# runs of a few laps stop at their limit
pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")

ROOT = Path(__file__).resolve().parents[2]


def recording(path, shuffle=False):
    """Three recordings of three phases each, with a hole in the second; true phases."""
    rng = np.random.default_rng(0)
    means = np.array([[-4.0, 0.0], [0.0, 4.0], [4.0, -2.0]])
    truth = np.concatenate([np.repeat([0, 1, 2], 40), np.repeat([2, 0, 1], 50), np.repeat([1, 2], 30)])
    ids = np.repeat(["mon", "tue", "wed"], [120, 150, 60])
    step = np.concatenate([np.arange(120), np.arange(150) + (np.arange(150) >= 70) * 9, np.arange(60)])
    x = means[truth] + rng.normal(size=(330, 2))
    order = rng.permutation(330) if shuffle else np.arange(330)
    order = np.concatenate([[0, 120, 270], order[~np.isin(order, [0, 120, 270])]]) if shuffle else order
    made = pa.table({"recording": ids, "step": step, "x0": x[:, 0], "x1": x[:, 1]}).take(order)
    pq.write_table(made, path, row_group_size=100)
    return truth


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "sequences.yaml", tmp_path)
    return tmp_path


def test_the_job_file_from_end_to_end(folder, capsys):
    pd = pytest.importorskip("pandas")
    truth = recording(folder / "recording.parquet")
    job = read_job(folder / "sequences.yaml")
    assert isinstance(job.model.allocation, bnp.HDPHMM) and job.data.cut == 3000
    assert job.data.open().n_cuts == 1
    assert main(["train", "sequences.yaml", "--laps", "5", "--quiet"]) == 0
    assert main(["predict", "runs/sequences", "recording.parquet", "states.parquet"]) == 0
    assert main(["predict", "runs/sequences/posterior.zarr", "recording.parquet", "again.parquet", "--group-column",
                 "recording", "--order-column", "step", "--gaps", "cut"]) == 0  # fmt: skip
    frame, again = pd.read_parquet("states.parquet"), pd.read_parquet("again.parquet")
    assert frame.equals(again)
    assert frame.sequence.tolist() == np.repeat(["mon", "tue", "wed"], [120, 150, 60]).tolist()
    assert frame.step.tolist() == [*range(120), *range(150), *range(60)]
    assert frame.state.nunique() == 3 and hamming_distance(truth, frame.state) < 0.02
    capsys.readouterr()
    assert main(["score", "runs/sequences", "recording.parquet"]) == 0
    assert "nats per step" in capsys.readouterr().out
    assert main(["report", "runs/sequences", "page.html"]) == 0
    page = (folder / "page.html").read_text()
    assert "4 sequences with 330 steps in all" in page and "they were cut in 1 place:" in page
    # a block of "tue" is shown as such
    assert main(["report", "runs/sequences", "other.html", "--data", "recording.parquet", "--group-column", "recording",
                 "--order-column", "step", "--gaps", "ignore"]) == 0  # fmt: skip
    assert "3 sequences with 330 steps in all" in (folder / "other.html").read_text()
    (folder / "recording.parquet").unlink()
    assert main(["report", "runs/sequences", "late.html"]) == 0
    assert "could not be read" in (folder / "late.html").read_text()


@pytest.mark.long
def test_by_way_of_a_store(folder, capsys):
    truth = recording(folder / "t.parquet", shuffle=True)
    words = ["ingest", "t.parquet", "t.zarr", "--group-column", "recording", "--order-column", "step"]
    assert main(words) == 2
    assert "group 'tue' has a gap" in capsys.readouterr().err
    assert main([*words, "--gaps", "cut"]) == 0
    assert "4 groups: 3 in the source, cut in 1 places" in capsys.readouterr().out
    job = yaml.safe_load((folder / "sequences.yaml").read_text())
    job |= {"data": "t.zarr", "store": "run", "schedule": {"type": "Memoized", "laps": 4}, "moves": ["Merge"]}
    job["model"]["allocation"] = {"type": "FiniteHMM", "kappa": 20.0}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    assert main(["train", "job.yaml", "--quiet"]) == 0
    assert main(["predict", "run", "t.zarr", "labels.parquet"]) == 0
    labels = pq.read_table("labels.parquet")
    assert labels["sequence"].to_pylist() == np.repeat(["mon", "tue", "wed"], [120, 150, 60]).tolist()
    assert hamming_distance(truth, labels["state"], "many-to-one") < 0.02
    assert main(["report", "run", "page.html"]) == 0
    assert "4 sequences with 330 steps in all" in (folder / "page.html").read_text()


def test_groups_of_topic_models(folder):
    """Images of pixels, hospitals of patients: a document is a group of rows, also in a job file."""
    recording(folder / "t.parquet")
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(330, 2)))
    np.save(folder / "offsets.npy", np.array([0, 120, 270, 330]))
    base = {
        "model": {"allocation": "HDPTopics", "observation": "Gaussian"},
        "init": {"type": "RandomExamples", "n_clusters": 3},
        "schedule": {"type": "Memoized", "laps": 2},
    }
    for data in ({"path": "t.parquet", "groups": "recording", "columns": ["x0", "x1"]},
                 {"path": "x.npy", "groups": "offsets.npy"}):  # fmt: skip
        source = parse_job({**base, "data": data}, folder).data.open()
        assert source.n_groups == 3 and source.n_features == 2
    (folder / "job.yaml").write_text(yaml.safe_dump({**base, "data": data, "store": "run"}))
    assert main(["train", "job.yaml", "--quiet"]) == 0
    assert bnp.load("run/posterior.zarr").summary["N"].sum() == pytest.approx(330)
    with pytest.raises(SettingError, match=r"data.gaps: 'cutt' is none of refuse, cut, ignore; did you mean 'cut'"):
        parse_job({**base, "data": {**data, "gaps": "cutt"}}, folder)
    with pytest.raises(SettingError, match=r"data.group: there is no such setting; did you mean 'groups'"):
        parse_job({**base, "data": {"path": "x", "group": "a"}}, folder)


def test_wrong_rows_are_one_line(folder, capsys):
    recording(folder / "t.parquet")
    job = yaml.safe_load((folder / "sequences.yaml").read_text())
    for data, message in (
        (
            {"path": "t.parquet", "groups": "recording", "order": "step"},
            "has a gap between rows 189 and 190",
        ),
        ({"path": "t.parquet", "columns": ["x0"]}, "name the column of groups"),
        ({"path": "t.parquet", "groups": "step", "columns": ["x0"]}, "lie in"),
    ):
        (folder / "job.yaml").write_text(yaml.safe_dump({**job, "data": data}))
        assert main(["train", "job.yaml", "--quiet"]) == 2
        err = capsys.readouterr().err.strip().splitlines()[-1]
        assert err.startswith("bnp-dask: error:") and message in err, err


# -- the example -------------------------------------------------------------------------------------------------
def run_example(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["segment_recording.py", *map(str, words)])
    runpy.run_path(str(ROOT / "examples" / "segment_recording.py"), run_name="__main__")


@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
def test_the_example_on_a_table(folder, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    truth = recording(folder / "t.parquet")
    table = pq.read_table("t.parquet").append_column("phase", pa.array(truth))
    table.to_pandas().to_csv("t.csv", index=False)
    run_example(monkeypatch, "t.csv", "--id", "recording", "--order", "step", "--label", "phase", "--laps", "3")
    out = capsys.readouterr().out
    assert "3 sequences, 330 steps of 2 numbers" in out and "many-to-one" in out
    assert Path("segmentation.png").stat().st_size > 5000


@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
def test_the_example_carries_its_recording(folder, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    run_example(monkeypatch, "--write", "recording.parquet")
    assert "1 sequences, 6,000 steps of 2 numbers" in capsys.readouterr().out
    source = read_job(folder / "sequences.yaml").data.open()
    assert (source.n_atoms, source.n_features, source.n_cuts) == (6000, 2, 1)


@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
def test_the_example_reads_matlab(folder, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    from scipy.io import savemat

    rng = np.random.default_rng(0)
    (folder / "dances").mkdir()
    for i in (1, 2):
        change = np.zeros((60, 1))
        change[30] = 1
        savemat(folder / "dances" / f"d{i}.mat", {"Y": np.cumsum(rng.normal(size=(60, 3)), axis=0), "L": change})
    run_example(monkeypatch, "dances", "--laps", "2", "--out", "d.png")
    assert "of the ends of phases have a change of state" in capsys.readouterr().out
    x = [np.cumsum(rng.normal(size=(n, 2)), axis=0) for n in (41, 31)]
    parts = np.zeros(2, [("X", object), ("Xprev", object), ("TrueZ", object), ("filename", object)])
    for part, rows in zip(parts, x, strict=True):
        part["X"], part["Xprev"], part["filename"] = rows[1:], rows[:-1], "walk.amc"
        part["TrueZ"] = np.repeat([1, 2], len(rows) // 2)
    savemat(folder / "m.mat", {"DataBySeq": parts})
    run_example(monkeypatch, "m.mat", "--laps", "2", "--out", "m.png")
    out = capsys.readouterr().out
    assert "2 sequences, 72 steps of 2 numbers" in out and "Hamming distance" in out
    assert (folder / "m.png").exists() and (folder / "d.png").exists()


@pytest.mark.parametrize("text", [b"model: [", b"model: of another version", bytes([255])])
def test_a_run_whose_job_cannot_be_read_is_read_without_it(tmp_path, text):
    RunStore.create(tmp_path / "run", {}, {JOB_NAME: text}).close()
    assert job_data(str(tmp_path / "run")) is None
