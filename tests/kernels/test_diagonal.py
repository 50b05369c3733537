"""Distances feature by feature against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bnp_dask.kernels.gaussian.quadratic import diagonal_squares, student_falls

N, K = 150, 3


def numbers(d, seed=0):
    """Atoms with some that are NaN and one far away, means, scales."""
    rng = np.random.default_rng(seed)
    y, mean, scale = rng.normal(size=(N, d)), rng.normal(size=(K, d)), rng.gamma(3.0, size=(K, d))
    y[rng.random((N, d)) < 0.1] = np.nan
    y[7] = 1e30
    return y, mean, scale


def squares_of(y, mean, scale):
    """``(n, K, D)``; zero where a feature is NaN."""
    return np.nan_to_num((y[:, None] - mean) ** 2 / scale, nan=0.0)


@pytest.mark.parametrize("d", [1, 5, 70])
@pytest.mark.parametrize("by_feature", [False, True])
def test_falls_are_sums_of_logarithms(d, by_feature):
    y, mean, scale = numbers(d)
    nu = np.random.default_rng(1).gamma(2.0, 50.0, size=(K, d if by_feature else 1))
    expected = (0.5 * (nu + 1.0) * np.log1p(squares_of(y, mean, scale))).sum(axis=2)
    assert_allclose(student_falls(y, mean, scale, nu), expected, rtol=1e-13)
    assert_array_equal(student_falls(y[40:41], mean, scale, nu)[0], student_falls(y, mean, scale, nu)[40])


def test_small_distances_under_many_degrees_of_freedom_keep_their_digits():
    y, nu = np.full((1, 4), 1e-7), np.full((1, 1), 1e12)
    expected = 0.5 * (1e12 + 1.0) * 4 * np.log1p(1e-14)
    assert_allclose(student_falls(y, np.zeros((1, 4)), np.ones((1, 4)), nu), expected, rtol=1e-12)


def test_products_beyond_the_largest_number_are_finite_logarithms():
    y = np.array([[1e45, 1e140, 1.0, 1e140]])
    expected = np.log1p(y**2).sum()
    assert_allclose(student_falls(y, np.zeros((1, 4)), np.ones((1, 4)), np.ones((1, 1))), expected, rtol=1e-13)


def test_squares_are_sums_over_features_that_are_there():
    y, mean, scale = numbers(6)
    assert_allclose(diagonal_squares(np.asfortranarray(y), mean, scale), squares_of(y, mean, scale).sum(axis=2))
