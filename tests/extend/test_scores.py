"""The shipped suite of scores over guests: an allocation, a likelihood, and both together."""

import numpy as np
from negbin import NegativeBinomial
from pitman_yor import PitmanYor

import bnp_dask as bnp
from bnp_dask.testing import ScoreSuite, levels, line


class TestPitmanYor(ScoreSuite):
    def model(self):
        return bnp.Model(PitmanYor(discount=0.4), bnp.Gaussian(missing="marginalise"))

    def batch(self, rng, n):
        return bnp.Batch(rng.normal(size=(n, 2)))

    def space(self):
        return [line(), line()]


class TestNegativeBinomial(ScoreSuite):
    allocation = bnp.DPMixture()
    n_rows = 1

    def model(self):
        return bnp.Model(self.allocation, NegativeBinomial(r=2.0, a=1.0, b=3.0))

    def batch(self, rng, n):
        groups = None if self.n_rows == 1 else self.n_rows * np.arange(n + 1)
        return bnp.Batch(rng.poisson(1.0, (n * self.n_rows, 1)).astype(float), groups=groups)

    def space(self):
        return [levels(6000)]


class TestNegativeBinomialOfPitmanYor(TestNegativeBinomial):
    allocation = PitmanYor()


class TestNegativeBinomialInSequences(TestNegativeBinomial):
    allocation = bnp.HDPHMM(kappa=2.0)
    n_rows = 4


class TestNegativeBinomialInGroups(TestNegativeBinomial):
    allocation = bnp.HDPTopics()
    n_rows = 4
