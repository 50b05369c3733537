"""A job file that ``bnp-dask init`` writes trains as it is."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from bnp_dask.cli import main
from bnp_dask.cli.jobfile import first_job, read_job

pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")


def test_a_job_file_for_rows_trains_as_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).standard_normal((90, 2))
    x[:45] += 9.0
    np.save("x.npy", x)
    (tmp_path / "jobs").mkdir()
    assert main(["init", "x.npy", "jobs/first.yaml"]) == 0
    assert capsys.readouterr().out.endswith("next: bnp-dask train jobs/first.yaml\n")
    assert main(["train", "jobs/first.yaml", "--laps", "2", "--quiet"]) == 0
    assert (tmp_path / "jobs" / "runs" / "first" / "posterior.zarr").exists()
    capsys.readouterr()
    assert main(["init", "x.npy", "jobs/first.yaml"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_job_files_for_counts_and_sequences_have_their_models(tmp_path, monkeypatch):
    pd = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    scipy.sparse.save_npz("counts.npz", scipy.sparse.csr_matrix(np.eye(6, 4, dtype=np.int64)))
    frame = pd.DataFrame({"who": [1, 1, 2, 2], "t": [0, 1, 0, 1], "v": [0.1, 0.2, 0.3, 0.5]})
    frame.to_parquet("steps.parquet")
    for text, allocation in (
        (first_job("counts.npz", None, None, "."), "HDPTopics"),
        (first_job("steps.parquet", "who", "t", "."), "HDPHMM"),
    ):
        (tmp_path / "run.yaml").write_text(text)
        assert type(read_job("run.yaml").model.allocation).__name__ == allocation
    assert read_job("run.yaml").data.groups == "who"


def test_a_job_file_for_a_table_of_several_kinds_has_a_likelihood_for_each(tmp_path, monkeypatch):
    pd = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    kind = np.arange(60) % 2
    height = 9.0 * kind + rng.standard_normal(60)
    height[3] = np.nan
    frame = pd.DataFrame({"größe": height, "kind": np.where(kind, "a", "b"), "visits": rng.poisson(2 + 4 * kind)})
    frame.to_csv("people.csv", index=False)
    assert main(["init", "people.csv"]) == 0
    assert " größe: " in Path("run.yaml").read_text(encoding="utf-8")  # not escaped
    model = read_job("run.yaml").model
    assert repr(model.observation) == (
        'Product({"größe": Gaussian(missing=\'marginalise\'), "visits": Poisson(), "kind": Categorical()})'
    )
    assert main(["train", "run.yaml", "--laps", "2", "--quiet"]) == 0
    frame[["größe", "visits"]].dropna().assign(visits=lambda rows: rows["größe"] ** 2).to_csv("plain.csv", index=False)
    assert "observation: Gaussian " in first_job("plain.csv", None, None, ".")
