"""What the README, the examples and the cluster set-ups say is true."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bnp_dask import __version__
from bnp_dask.cli.jobfile import parse_job, read_job

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_two_lines_come_first():
    lines = README.splitlines()[:30]
    assert 'pip install ".[all]" && bnp-dask demo' in lines
    assert 'pip install ".[test]" && pytest' in lines


def test_the_readme_is_short():
    assert len(README.splitlines()) < 150


def test_pictures_and_files_exist_and_are_small():
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / path).exists(), path
    assert (ROOT / "docs" / "demo.png").stat().st_size < 200_000


def test_figures_of_speed_in_the_readme_are_cut_from_the_page_of_peers():
    """Nothing but that table (tests/test_peers.py compares it) says how fast it is."""
    speed = README.split("## Speed")[1].split("## ")[0]
    prose = re.sub(r"<!-- peers -->.*?<!-- end of peers -->", "", speed, flags=re.DOTALL)
    assert "(docs/peers.md)" in prose
    assert not re.search(r"\d", prose), prose


def test_the_version_to_cite_is_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert citation["license"] == "BSD-3-Clause"


# -- examples -------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
def test_quickstart(capsys):
    runpy.run_path(str(ROOT / "examples" / "quickstart.py"), run_name="__main__")
    out = capsys.readouterr().out
    agree = float(re.search(r"([\d.]+)% lie in a cluster of their own kind", out)[1])
    assert agree > 98


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
def test_text_mixture(capsys):
    pytest.importorskip("sklearn")
    runpy.run_path(str(ROOT / "examples" / "text_mixture.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "DPMixture of Multinomial" in out


@pytest.mark.long
@pytest.mark.timeout(600)
def test_on_a_cluster(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "on_a_cluster.py")]
    command += ["--dir", str(tmp_path / "work"), "--atoms", "4000", "--laps", "2"]
    for _ in range(2):  # the second time it finds a finished run
        done = subprocess.run(command, capture_output=True, text=True, timeout=290, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        assert "TrainResult" in done.stdout


# -- job files ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "path",
    [
        "examples/run.yaml",
        "examples/stream.yaml",
        "examples/topics.yaml",
        "examples/natural_images.yaml",
        "cluster_configs/local.yaml",
    ],
)
def test_job_files_are_right(path):
    assert read_job(ROOT / path).store is not None


def test_the_job_file_in_the_documentation_is_right(tmp_path):
    from bnp_dask.cli import jobfile

    text = jobfile.__doc__.split(".. code-block:: yaml")[1].split("Classes of other packages")[0]
    job = parse_job(yaml.safe_load(text), tmp_path)
    assert [type(move).__name__ for move in job.moves] == ["Birth", "Merge", "Delete"]
