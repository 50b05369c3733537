"""The shipped suite over the guest likelihood."""

from dataclasses import dataclass

import numpy as np
import scipy.stats
from negbin import NegativeBinomial

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.testing import ObservationSuite


class TestNegativeBinomial(ObservationSuite):
    def model(self):
        return NegativeBinomial(r=2.0)

    def batch(self, rng, n_atoms):
        return Batch(rng.poisson([1.0, 20.0], (n_atoms, 2)).astype(float))

    def draw(self, params, k, rng):
        return rng.beta(params.a[k], params.b[k])

    def log_density(self, p, x):
        return scipy.stats.nbinom.logpmf(x, 2.0, 1.0 - p).sum(axis=1)


@bnp.register
@dataclass(frozen=True)
class Compared(NegativeBinomial):
    """The likelihood as a plain dataclass: arrays have no hash, so it has none either."""


def test_births_take_a_likelihood_without_a_hash():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.poisson(mean, (100, 2)) for mean in (1.0, 30.0)]).astype(float)
    model = bnp.Model(bnp.DPMixture(), Compared(r=20.0))
    result = bnp.train(model, x, init=bnp.RandomExamples(1), schedule=bnp.Memoized(40), rng=1)
    assert result.posterior.n_clusters == 2
