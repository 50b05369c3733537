"""Our own quasi-Newton method against SciPy's."""

import numpy as np
import pytest

from bnp_dask.allocation.sticks import TopLevel
from bnp_dask.kernels.numeric.arithmetic import fixed_order
from bnp_dask.kernels.numeric.quasi_newton import maximise


def test_the_top_of_a_narrow_ridge_is_found():
    def banana(x):
        y = x[1] - x[0] ** 2
        return -100 * y * y - (1 - x[0]) ** 2, np.array([400 * x[0] * y + 2 * (1 - x[0]), -200 * y])

    np.testing.assert_allclose(maximise(banana, np.array([-1.2, 1.0]), 40.0, 1e-9, 500), 1.0, rtol=1e-8)


def test_a_top_out_of_bounds_is_met_at_the_bound():
    found = maximise(lambda x: (-((x - [9.0, 1.0]) ** 2).sum(), -2 * (x - [9.0, 1.0])), np.zeros(2), 5.0, 1e-9, 100)
    np.testing.assert_allclose(found, [5.0, 1.0], atol=1e-8)


@pytest.mark.parametrize("k", [1, 5, 60])
def test_weights_of_topics_have_the_same_objective_in_either_order(k):
    rng = np.random.default_rng(k)
    shares = rng.dirichlet(np.full(k + 1, 0.5))
    top = TopLevel(10.0, 0.5, 300.0, 300.0 * np.log(shares[:k] + 1e-3), 300.0 * np.log(1e-4))
    usual = top.best_u()
    with fixed_order(True):
        own = top.best_u()
    best, found = (top.value_and_slope(np.log(u) - np.log1p(-u))[0] for u in (usual, own))
    assert found >= best - 1e-8 * abs(best)
    np.testing.assert_allclose(own, usual, rtol=1e-3)
