"""Clusters that only new data have are found at their first visit, however many of the new atoms are theirs."""

from __future__ import annotations

import numpy as np
import pytest

import bnp_dask as bnp
from tests.growing.parts import begin, gap, grow

FAR = np.array([[0.0, 0.0, 0.0], [60.0, 0.0, 0.0], [0.0, 60.0, 0.0], [0.0, 0.0, 60.0], [-60.0, 0.0, 0.0]])


def rows(number, clusters, n=200):
    """Rows of a day, from some clusters far from each other."""
    rng = np.random.default_rng(4000 + number)
    return FAR[rng.choice(clusters, size=n)] + rng.normal(size=(n, 3))


@pytest.mark.first_case
@pytest.mark.parametrize("observation", [bnp.Gaussian(), bnp.FixedVarianceGaussian(1.0)])
def test_a_cluster_that_fills_all_new_batches_is_found_in_a_pure_stream(tmp_path, observation):
    model = bnp.Model(bnp.DPMixture(), observation)
    begin(tmp_path / "run", rows(0, [0, 1]), model=model, batch_size=50, laps=10)
    assert bnp.load(tmp_path / "run").n_clusters == 2
    for number in (2, 3, 4):
        found = grow(tmp_path / "run", rows(number, [number]), batch_size=50, revisit=0)
        assert found.posterior.n_clusters == number + 1
        assert found.posterior.summary["N"][-1] == pytest.approx(200, abs=1e-6)
        assert gap(tmp_path / "run") < 1e-12
    found = grow(tmp_path / "run", rows(5, [0, 3]), batch_size=50, revisit=0)
    assert found.posterior.n_clusters == 5
