"""Test suites that the author of a new model part subclasses.

A new likelihood is tested by saying what it is, what its data look like, how to draw its parameters from q, and
its density::

    class TestPoisson(ObservationSuite):
        def model(self):
            return Poisson(a=2.0)

        def batch(self, rng, n_atoms):
            return Batch(rng.poisson([1.0, 20.0], (n_atoms, 2)).astype(float))

        def draw(self, params, k, rng):
            return rng.gamma(params.a[k], 1 / params.b[k])

        def log_density(self, phi, x):
            return scipy.stats.poisson.logpmf(x, phi).sum(axis=1)

The strongest of the tests needs no oracle at all: for one cluster the objective is the exact log evidence, so it
must equal the sum of the log predictive densities of one atom after another.  Needs pytest.
"""

from bnp_dask.testing.allocation import AllocationSuite
from bnp_dask.testing.observation import ObservationSuite
from bnp_dask.testing.parts import assert_stationary_maximum, random_resp, sparse_resp, survey_of

__all__ = [
    "AllocationSuite",
    "ObservationSuite",
    "assert_stationary_maximum",
    "random_resp",
    "sparse_resp",
    "survey_of",
]
