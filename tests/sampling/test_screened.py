"""Sampling from the clusters that matter to an atom is sampling from all of them."""

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.structure.screened import worthwhile

N, K, D = 4000, 40, 16


@pytest.mark.long
@pytest.mark.parametrize(
    "allocation", [bnp.DPMixture(2.0), pytest.param(bnp.FiniteMixture(), marks=pytest.mark.long)], ids=["DP", "finite"]
)
def test_a_chain_that_screens_is_the_chain_that_looks_at_all_clusters(allocation):
    assert worthwhile(N, K, D)
    rng = np.random.default_rng(0)
    centers = 3.0 * rng.normal(size=(K, D))
    x = centers[rng.integers(K, size=N)] + rng.normal(size=(N, D))
    x[:1000] = 0.5 * (x[:1000] + x[1000:2000])  # between clusters
    chains = []
    for precision in ("mixed", "double"):
        model = bnp.Model(allocation, bnp.Gaussian(), precision=precision)
        schedule = bnp.Gibbs(laps=4, burn_in=1, thin=1, chains=1, rows=range(N))
        chains.append(bnp.train(model, x, schedule=schedule, init=bnp.BregmanKMeans(K), rng=0).draws)
    screened, whole = chains
    np.testing.assert_array_equal(screened.labels, whole.labels)
    np.testing.assert_array_equal(screened.log_joint, whole.log_joint)
    assert (np.diff(whole.labels, axis=1) != 0).any(), "no atom changed its cluster: nothing was tested"
