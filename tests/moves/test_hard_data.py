"""Rounded values, values on a grid, rows far away and noise: as many clusters as without, by default."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import bnp_dask as bnp
from benchmarks import first_use
from bnp_dask.execute import SerialExecutor

FAR = [1e4, 1e6, 1e8, 1e9, 1e10, 1e12]
SEEDS = range(3)


def trained(x, seed):
    return bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, client=SerialExecutor(), rng=seed)


def assert_found(n_true, rows, seed, least):
    """The true number of clusters within one, and the true clusters."""
    result = trained(rows.x, seed)
    assert abs(result.posterior.n_clusters - n_true) <= 1
    assert adjusted_rand_score(rows.labels, bnp.predict(result.posterior, rows.x)) > least
    return result


@pytest.mark.long
def test_a_row_far_away_does_not_end_what_a_run_can_do():
    """Batches kept their older statistics from the second lap on, since rounding had made the objective too high."""
    rows = first_use.twelve(0)
    few = first_use.Rows(rows.x[::20].copy(), rows.labels[::20])
    few.x[123] = 1e9
    result = assert_found(12, few, 0, 0.99)
    assert not any(row["action"] == "kept" for row in result.history)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", FAR)
def test_a_row_far_away_is_a_cluster_of_its_own_at_most(size, seed):
    assert_found(12, first_use.outlier(seed, size), seed, 0.99)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_rounded_values_have_the_clusters_of_the_unrounded(seed):
    assert_found(12, first_use.twelve(seed), seed, 0.99)
    assert_found(12, first_use.rounded(seed), seed, 0.99)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_values_on_a_grid_have_the_clusters_of_their_levels(seed):
    rows = first_use.grid(seed)
    assert_found(len(np.unique(rows.labels)), rows, seed, 0.99)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_a_cluster_at_most(seed):
    assert_found(12, first_use.noisy(seed), seed, 0.97)
