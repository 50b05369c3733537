"""Results for programs: JSON and CSV of commands that print tables, labels as CSV, lists of runs and versions."""

import csv
import io
import json
import os
import warnings

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.errors import StoreError
from bnp_dask.execute import SerialExecutor


def blobs(n, seed):
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.standard_normal((n, 2)), rng.standard_normal((60, 2)) + 8.0])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run of two updates, a run without any, and data."""
    folder = tmp_path_factory.mktemp("operations")
    before = os.getcwd()
    os.chdir(folder)
    try:
        for day in range(3):
            np.save(f"day{day}.npy", blobs(60 * (day + 1), day))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for store in ("runs/grown", "runs/alone"):
                bnp.train(
                    bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()),
                    "day0.npy",
                    init=bnp.BregmanKMeans(2),
                    schedule=bnp.Memoized(laps=4),
                    moves=(),
                    store=store,
                    batch_size=60,
                    client=SerialExecutor(0),
                )
        for day in (1, 2):
            bnp.update("runs/grown", f"day{day}.npy", client=SerialExecutor(0))
    finally:
        os.chdir(before)
    return folder


@pytest.fixture(autouse=True)
def here(trained, monkeypatch):
    monkeypatch.chdir(trained)


def printed(capsys, *words):
    capsys.readouterr()
    assert main(list(words)) == 0
    return capsys.readouterr().out


def records(capsys, *words):
    """Records of a command as JSON, after a check that CSV has the same."""
    found = json.loads(printed(capsys, *words, "--format", "json"))
    lines = list(csv.DictReader(io.StringIO(printed(capsys, *words, "--format", "csv"))))
    assert [list(line) for line in lines] == [list(record) for record in found]
    assert len(lines) == len(found) > 0
    return found


def test_versions_of_a_run_have_their_data_and_results(capsys):
    found = bnp.versions("runs/grown")
    assert [v.number for v in found] == [0, 1, 2]
    assert [v.in_force for v in found] == [False, False, True]
    assert [v.before for v in found] == [None, 0, 1]
    assert [v.n_atoms for v in found] == pytest.approx([120, 300, 540])
    assert [v.n_batches for v in found] == [2, 3, 4]
    assert [len(v.data) for v in found] == [0, 1, 1] and found[2].data[0].endswith("day2.npy")
    assert all(v.is_kept and v.when is not None and v.n_clusters == 2 for v in found)
    assert found[0].objective == pytest.approx(bnp.versions("runs/alone")[0].objective)
    told = records(capsys, "versions", "runs/grown")
    assert [r["objective"] for r in told] == [v.objective for v in found]
    assert "rollback runs/grown NUMBER" in printed(capsys, "versions", "runs/grown")


def test_a_run_that_was_never_updated_has_version_0(capsys):
    (only,) = bnp.versions("runs/alone")
    assert (only.number, only.in_force, only.n_clusters) == (0, True, 2)
    np.testing.assert_array_equal(bnp.load("runs/alone@0").weights, bnp.load("runs/alone").weights)
    with pytest.raises(StoreError, match="holds no run"):
        bnp.versions("none")


def test_versions_of_a_run_are_compared_as_a_list(capsys):
    found = bnp.compare(["runs/grown@0", "runs/grown@2"])
    known = bnp.versions("runs/grown")
    assert [line.objective for line in found] == [known[0].objective, known[2].objective]
    told = records(capsys, "compare", "runs/grown@0", "runs/grown@1", "--heldout", "day2.npy")
    assert [r["run"] for r in told] == ["runs/grown@0", "runs/grown@1"]
    assert all(r["heldout"] < 0 for r in told)


def test_ls_lists_the_runs_below_a_folder(capsys):
    found = records(capsys, "ls")
    assert [(r["path"], r["state"], r["version"]) for r in found] == [
        ("runs/alone", "done", None),
        ("runs/grown", "done", 2),
    ]
    assert all(r["model"] == "DPMixture of DiagGaussian" and r["n_clusters"] == 2 for r in found)
    assert [facts.path for facts in bnp.runs("runs")] == ["runs/alone", "runs/grown"]
    assert bnp.runs("runs/alone")[0].laps == found[0]["laps"]
    assert main(["ls", "none"]) == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_ls_of_a_folder_without_runs_says_so(tmp_path, capsys):
    assert printed(capsys, "ls", str(tmp_path)) == f"no runs in {tmp_path}\n"
    assert json.loads(printed(capsys, "ls", str(tmp_path), "--format", "json")) == []


def test_clusters_changes_and_scores_as_records(capsys):
    clusters = records(capsys, "inspect", "runs/grown")
    posterior = bnp.load("runs/grown")
    assert [r["weight"] for r in clusters] == sorted(posterior.weights.tolist(), reverse=True)
    priced = records(capsys, "inspect", "runs/alone", "--prices", "day0.npy")
    assert all(r["without"] > 0 and r["nearest"] in (0, 1) for r in priced)
    changed = records(capsys, "changes", "runs/grown", "--since", "0")
    assert {r["kind"] for r in changed} == {"larger share", "smaller share"}
    found = json.loads(printed(capsys, "score", "runs/grown", "day2.npy", "--format", "json"))
    assert found == {"score": bnp.score(posterior, "day2.npy"), "unit": "nats per atom"}


@pytest.mark.parametrize("more", [[], ["--soft"], ["--top", "2"]])
def test_labels_as_csv(capsys, tmp_path, more):
    """The same numbers as in memory, also of several batches, by position or by name."""
    out = str(tmp_path / "labels.csv")
    printed(capsys, "predict", "runs/grown", "day2.npy", "--out", out, "--batch-size", "70", *more)
    with open(out) as file:
        head, *lines = list(csv.reader(file))
    values = np.array(lines, np.float64)
    posterior = bnp.load("runs/grown")
    if not more:
        assert head == ["label"]
        np.testing.assert_array_equal(values[:, 0], bnp.predict(posterior, "day2.npy"))
    elif more == ["--soft"]:
        assert head == ["resp_0", "resp_1"]
        np.testing.assert_array_equal(values, bnp.predict(posterior, "day2.npy", soft=True))
    else:
        assert head == ["label_1", "label_2", "resp_1", "resp_2"]
        found = bnp.predict(posterior, "day2.npy", top=2)
        np.testing.assert_array_equal(values, np.concatenate([found.label, found.resp], axis=1))
    assert main(["predict", "runs/grown", "day2.npy", out]) == 2
    assert "exists already" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["labels.csv"]


def test_labels_as_csv_in_an_object_store():
    bnp.predict(bnp.load("runs/alone"), "day0.npy", out="memory://operations/labels.csv", batch_size=50)
    import fsspec

    lines = fsspec.filesystem("memory").cat("/operations/labels.csv").decode().splitlines()
    assert lines[0] == "label" and len(lines) == 121
    assert fsspec.filesystem("memory").ls("/operations", detail=False) == ["/operations/labels.csv"]


def test_one_place_for_results_is_needed(capsys, tmp_path):
    assert main(["predict", "runs/alone", "day0.npy"]) == 2
    assert "no OUT is given; needs one, such as predict.csv" in capsys.readouterr().err
    assert main(["predict", "runs/alone", "day0.npy", "a.csv", "--out", "b.csv"]) == 2
    assert "two places are given" in capsys.readouterr().err


@pytest.mark.long
def test_a_report_in_an_object_store_replaces_only_a_page(capsys):
    import fsspec

    store, url = fsspec.filesystem("memory"), "memory://operations/page.html"
    for _ in range(2):
        printed(capsys, "report", "runs/alone", url)
        assert b"<footer>bnp-dask" in store.cat("/operations/page.html")
    store.pipe("/operations/mine.html", b"<p>a page of my own</p>")
    assert main(["report", "runs/alone", "memory://operations/mine.html"]) == 2
    assert "is not a page of bnp-dask" in capsys.readouterr().err
    assert store.cat("/operations/mine.html") == b"<p>a page of my own</p>"
