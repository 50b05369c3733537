"""The shipped suite over the guest likelihood."""

import scipy.stats
from negbin import NegativeBinomial

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
