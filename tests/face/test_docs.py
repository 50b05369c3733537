"""What the README, the examples and the cluster set-ups say is true."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from bnp_dask import _names
from bnp_dask.cli import build_parser
from bnp_dask.cli.jobfile import parse_job, read_job

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_two_lines_come_first():
    lines = README.splitlines()[:30]
    assert 'pip install ".[all]" && bnp-dask demo' in lines
    assert 'pip install ".[test]" && pytest' in lines


def test_pictures_and_files_exist_and_are_small():
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / path).exists(), path
    assert (ROOT / "docs" / "demo.png").stat().st_size < 200_000


def test_every_public_class_is_named():
    groups = (_names.ALLOCATIONS, _names.OBSERVATIONS, _names.SCHEDULES, _names.INITIALIZATIONS, _names.MOVES)
    for name in (name for group in groups for name in group):
        assert f"`{name}" in README, name


def test_every_command_exists():
    commands = next(a for a in build_parser()._actions if a.dest == "command").choices
    for line in re.findall(r"^bnp-dask (\w+)", README, re.MULTILINE):
        assert line in commands


@pytest.mark.filterwarnings("ignore")
def test_the_python_in_the_readme_runs(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    (tmp_path / "bnp-dask-demo").mkdir()
    patches = rng.standard_normal((600, 8)) * np.where(rng.random((600, 1)) < 0.5, 0.1, 2.0)
    np.save(tmp_path / "patches.npy", patches)
    monkeypatch.chdir(tmp_path)
    import bnp_dask as bnp

    bnp.ingest("patches.npy", "bnp-dask-demo/patches.zarr", batch_size=100)
    _, first, second, third = blocks("python")
    exec(first, {})
    assert "nats per patch" in capsys.readouterr().out
    pytest.importorskip("sklearn")
    scope = {"X": patches}
    exec(second, scope)
    assert len(scope["labels"]) == 600
    walk = np.repeat([[0.0, 0.0], [9.0, 9.0], [0.0, 9.0]], 80, axis=0) + rng.normal(size=(240, 2))
    scope = {"bnp": bnp, "walk": walk, "another": walk[::-1].copy()}
    exec(third, scope)
    assert scope["states"].shape == (480,)


@pytest.mark.filterwarnings("ignore")
def test_the_python_about_topics_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    import bnp_dask as bnp

    monkeypatch.chdir(tmp_path)
    texts = [(f"d{i}", ("open a socket and listen", "read a file and write")[i % 2] * 3) for i in range(40)]
    bnp.ingest(texts, "bnp-dask-demo/docstrings.zarr", text=bnp.Text(min_df=1))
    bnp.ingest(texts[:6], "bnp-dask-demo/heldout.zarr", vocabulary="bnp-dask-demo/docstrings.zarr")
    model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial())
    schedule, store = bnp.Memoized(laps=2), "bnp-dask-demo/run"
    start = bnp.RandomExamples(3)
    bnp.train(model, "bnp-dask-demo/docstrings.zarr", init=start, moves=(), schedule=schedule, store=store)
    scope = {}
    exec(blocks("python")[0], scope)
    assert "nats per held-out token" in capsys.readouterr().out
    assert scope["shares"].shape == (1, 4)
    assert scope["prepared"]["doc_topic_dists"].shape == (6, 3)


# -- examples -------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore")
def test_quickstart(capsys):
    runpy.run_path(str(ROOT / "examples" / "quickstart.py"), run_name="__main__")
    out = capsys.readouterr().out
    agree = float(re.search(r"([\d.]+)% lie in a cluster of their own kind", out)[1])
    assert agree > 98


@pytest.mark.filterwarnings("ignore")
def test_text_mixture(capsys):
    pytest.importorskip("sklearn")
    runpy.run_path(str(ROOT / "examples" / "text_mixture.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "DPMixture of Multinomial" in out


@pytest.mark.timeout(300)
def test_on_a_cluster(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "on_a_cluster.py")]
    command += ["--dir", str(tmp_path / "work"), "--atoms", "4000", "--laps", "2"]
    for _ in range(2):  # the second time it finds a finished run
        done = subprocess.run(command, capture_output=True, text=True, timeout=140, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        assert "TrainResult" in done.stdout


# -- job files ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["examples/run.yaml", "examples/topics.yaml", "cluster_configs/local.yaml"])
def test_job_files_are_right(path):
    assert read_job(ROOT / path).store is not None


def test_the_job_file_in_the_documentation_is_right(tmp_path):
    from bnp_dask.cli import jobfile

    text = jobfile.__doc__.split(".. code-block:: yaml")[1].split("Only ``model``")[0]
    job = parse_job(yaml.safe_load(text), tmp_path)
    assert [type(move).__name__ for move in job.moves] == ["Birth", "Merge", "Delete"]
