"""Eight numbers at once against numpy."""

import numpy as np
import pytest
from numba import njit

from bnp_dask.kernels.hmm import times, times_some, which
from bnp_dask.kernels.numeric.simd import LANES, aligned, aligned_zeros, fill, load, padded, store, total, where_above


@njit
def combine(x, y, floor, out):
    for k in range(0, len(x), 8):
        a, b = load(x, k), load(y, k)
        store(out, k, where_above(a, floor, a * b + fill(2.0)))


@njit
def total_of(x):
    return total(load(x, 0))


@njit
def product(vector, matrix, out):
    times(vector, matrix, out)


@njit
def product_of_some(vector, index, matrix, out):
    times_some(vector, index[: which(vector, index)], matrix, out)


def test_arithmetic():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 3 * LANES))
    x[3] = np.nan
    out = np.empty_like(x)
    combine(x, y, 0.25, out)
    np.testing.assert_allclose(out, np.where(x > 0.25, x * y + 2.0, 0.0), rtol=1e-15)


def test_the_order_of_a_sum_is_fixed():
    x = np.array([1.0, 1e16, 3.0, -1e16, 0.5, 1.0, 2.0, 7.0])
    assert total_of(x) == (((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7])))


def test_room():
    assert [padded(n) for n in (0, 1, 8, 9, 50)] == [8, 8, 8, 16, 56]
    for shape in ((5,), (3, 16), (2, 3, 8)):
        assert aligned(*shape).shape == shape
        assert aligned(*shape).ctypes.data % 64 == 0
        assert not aligned_zeros(*shape).any()


@pytest.mark.parametrize("k", [1, 7, 8, 9, 16, 23, 24, 31, 32, 33, 40, 57, 64, 70])
def test_product_of_a_row_and_a_matrix(k):
    rng = np.random.default_rng(k)
    matrix = aligned_zeros(k, padded(k))
    matrix[:, :k] = rng.normal(size=(k, k))
    row = np.zeros(padded(k))
    row[:k] = rng.normal(size=k) * (rng.random(k) < 0.6)
    out = np.full(padded(k), np.nan)
    product(row, matrix, out)
    np.testing.assert_allclose(out, row[:k] @ matrix, atol=1e-14)
    out[:] = np.nan
    product_of_some(row, np.empty(padded(k) + 1, np.int64), matrix, out)
    np.testing.assert_allclose(out, row[:k] @ matrix, atol=1e-14)
