"""The guest move."""

import numpy as np
from smallest import UniteSmallest

import bnp_dask as bnp
from bnp_dask.testing import MoveSuite


class TestUniteSmallest(MoveSuite):
    def move(self):
        return UniteSmallest()

    def model(self):
        return bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())

    def data(self):
        return np.random.default_rng(0).normal([[0.0], [30.0]], 1.0, (2, 100)).reshape(-1, 1)


def test_clusters_beyond_those_of_the_data_are_united():
    x, start = TestUniteSmallest().data(), bnp.RandomExamples(5)
    result = bnp.train(TestUniteSmallest().model(), x, init=start, moves=[UniteSmallest()])
    assert sorted(result.posterior.summary["N"].round()) == [100, 100]
