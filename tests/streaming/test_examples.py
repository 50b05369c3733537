"""Examples of streaming inference draw their pictures, and their job file trains."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.cli import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "smaller", "says"),
    [
        ("stream_bars", {}, "one pass, clusters that are one are united: 16 clusters"),
        ("topics_from_nothing", {"DOCUMENTS": 200, "LAPS": 2}, "topics of more than a hundredth of all tokens"),
    ],
)
def test_an_example_draws_its_picture(name, smaller, says, tmp_path, capsys):
    example = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    example["main"].__globals__.update(smaller)
    example["main"](str(tmp_path / "picture.png"))
    assert says in capsys.readouterr().out
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_the_job_file_filters_a_stream(tmp_path):
    rng = np.random.default_rng(0)
    np.savetxt(tmp_path / "points.csv", 9.0 * rng.integers(2, size=(300, 1)) + rng.normal(size=(300, 2)), delimiter=",")
    shutil.copy(EXAMPLES / "stream.yaml", tmp_path)
    assert main(["ingest", str(tmp_path / "points.csv"), str(tmp_path / "points.zarr")]) == 0
    assert main(["train", str(tmp_path / "stream.yaml")]) == 0
    counts = bnp.load(tmp_path / "runs" / "stream").summary["N"]
    assert counts.sum() == pytest.approx(300)
    assert np.sort(counts)[-2:].sum() > 295
