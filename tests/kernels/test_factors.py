"""Factors of many matrices against LAPACK through numpy, and the same refusals on both sides of the size limit."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bnp_dask.kernels.gaussian.quadratic import (
    BLOCKED,
    HIDDEN,
    absolute_forms,
    cholesky_factors,
    eigenvectors,
    errors_of_pivots,
    factor_all,
    hides_pivots,
)
from bnp_dask.kernels.numeric.arithmetic import fixed_order
from tests.pairwise import in_pairs


def matrices(k, d, condition, seed=0):
    rng = np.random.default_rng(seed)
    out = np.empty((k, d, d))
    for i in range(k):
        q, _ = np.linalg.qr(rng.standard_normal((d, d)))
        out[i] = (q * np.geomspace(1.0, 1.0 / condition, d)) @ q.T
    return 0.5 * (out + out.transpose(0, 2, 1))


@pytest.mark.parametrize(
    *in_pairs(scale=[1.0, 1e-200, 1e150], condition=[1.0, 1e8], d=[1, 2, 3, 7, BLOCKED, BLOCKED + 1, 50])
)
def test_factors(d, condition, scale):
    given = matrices(4, d, condition) * scale
    kept = given.copy()
    lower, inverse, wrong = cholesky_factors(given)
    assert wrong == -1
    np.testing.assert_array_equal(given, kept)
    unit = np.sqrt(scale)
    np.testing.assert_allclose(lower @ lower.transpose(0, 2, 1) / scale, given / scale, atol=1e-14)
    np.testing.assert_allclose(lower / unit, np.linalg.cholesky(given / scale), atol=1e-14 * condition)
    np.testing.assert_allclose(inverse @ lower, np.tile(np.eye(d), (4, 1, 1)), atol=1e-15 * d * condition)
    for factor in (lower, inverse):
        assert not np.triu(factor, 1).any()


@pytest.mark.parametrize(*in_pairs(place=[0, -1], spoil=[np.nan, np.inf, -1.0], d=[5, BLOCKED + 3]))
def test_what_has_no_factor_is_named(d, spoil, place):
    given = matrices(6, d, 10.0)
    given[4, place, place] = spoil
    assert cholesky_factors(given)[2] == 4
    off = matrices(6, d, 10.0)
    off[2, 0, 1] = off[2, 1, 0] = 1e3
    assert cholesky_factors(off)[2] == 2
    singular = np.ones((1, d, d))
    assert cholesky_factors(singular)[2] == 0
    assert cholesky_factors(np.empty((0, d, d)))[2] == -1


@pytest.mark.parametrize("d", [1, 3, 4, 9])
def test_absolute_forms(d):
    rng = np.random.default_rng(d)
    given, vectors = rng.standard_normal((5, d, d)), rng.random((5, d))
    expected = [v @ np.abs(m) @ v for m, v in zip(given, vectors)]
    np.testing.assert_allclose(absolute_forms(given, vectors), expected, rtol=1e-14)


@pytest.mark.parametrize("size", [1.0, 1e24])
def test_rounding_hides_pivots_as_small_as_its_error(size):
    """The second pivot of [[s, s], [s, s + p]] is p, exactly."""
    least = HIDDEN * 2.0 * np.finfo(np.float64).eps * size
    matrices = size * np.ones((3, 2, 2))
    matrices[:, 1, 1] += [0.5 * least, 2.0 * least, size]
    np.testing.assert_allclose(errors_of_pivots(matrices)[2], [least / HIDDEN, 2.0 * least / HIDDEN])
    assert hides_pivots(cholesky_factors(matrices)[0], matrices).tolist() == [True, False, False]


def test_eigenvectors_in_fixed_order_are_those_of_lapack():
    rng = np.random.default_rng(4)
    for d in (1, 2, 7, 30):
        root = rng.normal(size=(3, d, d)) * np.exp(3.0 * rng.normal(size=d))
        matrices = root.transpose(0, 2, 1) @ root
        matrices[2] = np.diag(np.diag(matrices[2]))
        with fixed_order(True):
            values, vectors = eigenvectors(matrices)
        expected = eigenvectors(matrices)[0]
        assert_allclose(values, expected, atol=1e-13 * np.abs(expected).max())
        assert_allclose(vectors * values[:, None] @ vectors.transpose(0, 2, 1), matrices, atol=1e-13 * expected.max())
        assert_allclose(vectors.transpose(0, 2, 1) @ vectors, np.tile(np.eye(d), (3, 1, 1)), atol=1e-13)


def test_all_factors_in_one_call():
    given = matrices(3, 4, 10.0)
    lower, inverse = np.empty_like(given), np.empty_like(given)
    assert factor_all(given, lower, inverse) == -1
    np.testing.assert_allclose(lower, np.linalg.cholesky(given), atol=1e-14)
    np.testing.assert_allclose(inverse, np.linalg.inv(lower), atol=1e-13)
    given[1] *= -1.0
    assert factor_all(given, lower, inverse) == 1
