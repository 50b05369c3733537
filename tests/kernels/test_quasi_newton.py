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


@pytest.mark.parametrize("begin", [[0.0, 0.0], [50.0, -50.0], [-5.0, 5.0]])
def test_both_bounds_are_met_alike_and_no_point_beyond_them_is_looked_at(begin):
    top, seen = np.array([9.0, 1.0]), []

    def climbed(sign):
        points = []

        def value_and_slope(x):
            points.append(x.copy())
            gap = sign * x - top
            return -(gap**4).sum() - (gap**2).sum(), -sign * (4.0 * gap**3 + 2.0 * gap)

        found = maximise(value_and_slope, sign * np.array(begin), 5.0, 1e-6, 100)
        assert (np.abs(points) <= 5.0).all()
        seen.append(len(points))
        return sign * found

    upper, lower = climbed(1.0), climbed(-1.0)
    np.testing.assert_array_equal(upper, lower)
    np.testing.assert_allclose(upper, [5.0, 1.0], atol=1e-6)
    assert seen[0] == seen[1] < 60


def test_more_steps_than_are_remembered_end_at_the_top():
    scale, top = 10.0 ** np.linspace(0.0, 3.0, 30), np.linspace(-3.0, 3.0, 30)

    def value_and_slope(x):
        return -0.5 * (scale * (x - top) ** 2).sum(), -scale * (x - top)

    np.testing.assert_allclose(maximise(value_and_slope, np.zeros(30), 40.0, 1e-9, 2000), top, atol=1e-5)
