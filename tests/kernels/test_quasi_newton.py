"""Our own quasi-Newton method and root against SciPy's."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import psi

from bnp_dask.allocation.sticks import TopLevel
from bnp_dask.kernels.numeric.arithmetic import fixed_order
from bnp_dask.kernels.numeric.quasi_newton import maximise, root


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


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (lambda x: x**3 - 2 * x - 5, 2.0, 3.0),
        (lambda x: float(np.cos(x)) - x, 1.0, 0.0),
        (lambda x: float(psi(x)) - 10, 1.0, 1e9),
        (lambda x: x * abs(x) - 1e-3, -1.0, 3.0),
        (lambda x: -1.0 if x < 0.3 else 1.0, 0.0, 1.0),
        (lambda x: x, 0.0, 1.0),
        (lambda x: x - 1.0, 0.0, 1.0),
        (lambda x: float(np.exp(-x)) - 1e-8, -20.0, 60.0),
    ],
)
@pytest.mark.parametrize("tolerances", [{}, {"xtol": 1e-10, "rtol": 1e-14}, {"xtol": 0.1}])
def test_a_root_has_the_bits_and_the_steps_of_scipy(function, low, high, tolerances):
    taken = []
    own = {"absolute": tolerances.get("xtol", 2e-12), "relative": tolerances.get("rtol", 4 * np.finfo(float).eps)}
    found = root(lambda x: taken.append(x) or function(x), low, high, **own)
    usual, facts = brentq(function, low, high, full_output=True, **tolerances)
    assert (found, len(taken)) == (usual, facts.function_calls)


def test_a_root_needs_a_change_of_sign_and_enough_steps():
    with pytest.raises(ValueError, match="no change of sign between 1.0"):
        root(lambda x: x, 1.0, 2.0)
    with pytest.raises(ValueError, match="within 3 steps"):
        root(lambda x: x**3 - 2, 0.0, 100.0, most=3)
    with pytest.raises(ValueError, match="not a number at 0.0"):
        root(lambda x: x if abs(x) == 1 else np.nan, -1.0, 1.0)
