"""The example of sampling draws what it says, and a sampler's result goes where others go."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

import bnp_dask as bnp

EXAMPLE = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "sample_partitions.py"))


@pytest.fixture(scope="module")
def sampled():
    return EXAMPLE["sample"](load_iris().data, laps=24, burn_in=12)


@pytest.mark.long
def test_the_example_draws_its_picture(sampled, tmp_path):
    x = load_iris().data
    EXAMPLE["draw"](sampled, x, str(tmp_path / "partitions.png"))
    assert (tmp_path / "partitions.png").stat().st_size > 10_000
    assert EXAMPLE["n_large"](sampled).shape == (3, 6)
    together = sampled.draws.co_clustering()
    assert together[:50, :50].mean() > 10 * together[:50, 50:].mean()


def test_results_of_a_sampler_are_inspected_reported_predicted_and_scored(sampled, tmp_path):
    assert f"{sampled.posterior.n_clusters} clusters" in str(bnp.inspect(sampled))
    bnp.report(sampled, tmp_path / "page.html")
    assert "DPMixture" in (tmp_path / "page.html").read_text()
    assert len(np.unique(bnp.predict(sampled.posterior, load_iris().data))) >= 2
    assert np.isfinite(bnp.score(sampled.posterior, load_iris().data))
