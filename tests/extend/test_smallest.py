"""The guest move."""

import numpy as np
from smallest import UniteSmallest

import bnp_dask as bnp


def test_clusters_beyond_those_of_the_data_are_united():
    x = np.random.default_rng(0).normal([[0.0], [30.0]], 1.0, (2, 100)).reshape(-1, 1)
    model, start = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), bnp.RandomExamples(5)
    result = bnp.train(model, x, init=start, moves=[UniteSmallest()], schedule=bnp.Memoized(laps=30))
    assert sorted(result.posterior.summary["N"].round()) == [100, 100]
