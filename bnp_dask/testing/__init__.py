"""Test suites that the author of a new model part subclasses.

A test of a new likelihood needs the model, random data, draws of its parameters from q, and its density::

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
must equal the sum of the log predictive densities of one atom after another.

Structures, moves, executors and sources have suites as well; :class:`AlgebraSuite` takes the fields of a model through
all changes of clusters and all ways to sum.  :class:`ScoreSuite` checks for an allocation times a likelihood that
held-out scores are probabilities: over all atoms, documents or sequences they sum to one.  Needs pytest.
"""

from bnp_dask.testing.algebra import AlgebraSuite
from bnp_dask.testing.allocation import AllocationSuite
from bnp_dask.testing.engine import ExecutorSuite, MoveSuite, SourceSuite
from bnp_dask.testing.observation import ObservationSuite
from bnp_dask.testing.parts import assert_stationary_maximum, random_resp, sparse_resp, survey_of
from bnp_dask.testing.score import ScoreSuite, circle, documents, levels, line, log_orders
from bnp_dask.testing.structure import StructureSuite

__all__ = [
    "AlgebraSuite",
    "AllocationSuite",
    "ExecutorSuite",
    "MoveSuite",
    "ObservationSuite",
    "ScoreSuite",
    "SourceSuite",
    "StructureSuite",
    "assert_stationary_maximum",
    "circle",
    "documents",
    "levels",
    "line",
    "log_orders",
    "random_resp",
    "sparse_resp",
    "survey_of",
]
