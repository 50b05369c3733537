"""Points that join and leave a Gaussian cluster, against its parameters computed from scratch."""

from __future__ import annotations

import numpy as np
import pytest

from bnp_dask.kernels.predictive.gaussian import add_point, student_constant, take_point


def tables(x, weights, d):
    """Parameters of one cluster under a standard prior with its weighted points, as the kernels keep them."""
    kappa, nu = 0.5 + weights.sum(), d + 2.0 + weights.sum()
    mean = weights @ x / kappa
    scale = np.eye(d) + (x * weights[:, None]).T @ x - kappa * np.outer(mean, mean)
    root = np.linalg.cholesky(scale)
    constant = student_constant(nu, kappa, np.linalg.slogdet(scale)[1], d)
    vectors = [np.array([value]) for value in (nu, kappa, constant)]
    return [mean[:, None].copy(), root[:, :, None].copy(), 1.0 / np.diag(root)[:, None], *vectors]


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("share", [1.0, 0.3])
def test_a_point_that_joins_or_leaves_changes_a_cluster_as_computed_from_scratch(d, share):
    rng = np.random.default_rng(d)
    x, weights = rng.normal(size=(6, d)), np.r_[rng.uniform(0.2, 1.5, 5), share]
    without, whole = tables(x[:5], weights[:5], d), tables(x, weights, d)
    joined = [part.copy() for part in without]
    add_point(x[5], share, 0, *joined, np.empty(d))
    left = [part.copy() for part in whole]
    assert take_point(x[5], share, 0, *left, np.empty(d))
    lower = np.tri(d, dtype=bool)[:, :, None]
    for found, expected in ((joined, whole), (left, without)):
        for place, (one, other) in enumerate(zip(found, expected)):
            one, other = (one[lower], other[lower]) if place == 1 else (one, other)
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


def test_a_point_whose_leaving_would_cost_the_digits_is_refused():
    x = np.array([[1e9, 0.0]])
    assert not take_point(x[0], 1.0, 0, *tables(x, np.ones(1), 2), np.empty(2))
