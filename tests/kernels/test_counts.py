"""Kernels on sparse counts, against dense numpy, scipy and exact whole numbers."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.special import gammaln

from bnp_dask.kernels.topics.counts import (
    LOG_FACTORIAL,
    count_sums,
    rising,
    rising_sums,
    row_log_factorials,
    table_product,
    transposed,
)
from bnp_dask.testing import random_resp, sparse_resp


@pytest.fixture(params=[np.int32, np.int64])
def counts(request):
    rng = np.random.default_rng(0)
    x = sparse.csr_array(rng.poisson(0.3, (70, 23)) * rng.integers(1, 2000, (70, 23)).astype(float))
    x.indices, x.indptr = x.indices.astype(request.param), x.indptr.astype(request.param)
    return x


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (33, 70), (64, 32)])
def test_transposed(shape):
    x = np.random.default_rng(0).normal(size=shape)
    for layout in (x, np.asfortranarray(x)):
        assert_array_equal(transposed(layout), x.T)
        assert transposed(layout).flags.c_contiguous


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("k", [1, 2, 9])
def test_table_product(counts, k, order):
    table = np.asarray(np.random.default_rng(1).normal(size=(k, 23)), order=order)
    assert_allclose(table_product(counts, table), counts.toarray() @ table.T, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("k", [1, 3, 12])
def test_count_sums_of_all_kinds_agree(counts, k):
    rng = np.random.default_rng(1)
    resp = random_resp(rng, 70, k)
    assert_allclose(count_sums(resp, counts), resp.T @ counts.toarray(), rtol=1e-12)
    top = sparse_resp(resp, min(2, k))
    found = count_sums(top, counts)
    assert_array_equal(found, count_sums(top.to_dense(), counts))
    assert_allclose(found, top.to_dense().T @ counts.toarray(), rtol=1e-12)
    assert found.flags.c_contiguous
    assert count_sums(resp, counts).flags.c_contiguous


def test_the_loop_chosen_does_not_change_the_bits(counts):
    """Full columns beside switch the loop, and must change nothing in the others."""
    few = np.zeros((70, 12))
    few[np.arange(70), np.arange(70) % 5] = np.random.default_rng(0).random(70)
    beside = np.hstack([few, np.ones((70, 12))])
    assert 4 * np.count_nonzero(few) < few.size
    assert 4 * np.count_nonzero(beside) >= beside.size
    assert_array_equal(count_sums(few, counts), count_sums(beside, counts)[:12])


def test_row_log_factorials(counts):
    assert_allclose(row_log_factorials(counts), gammaln(counts.toarray() + 1).sum(axis=1), rtol=1e-13)
    empty = sparse.csr_array((3, 4))
    assert_array_equal(row_log_factorials(empty), np.zeros(3))


def exact_rising(a: int, x: int) -> float:
    """log of a (a + 1) ... (a + x - 1), from whole numbers of any size."""
    return float(math.fsum(math.log(a + i) for i in range(x)))


@pytest.mark.parametrize("a", [1, 7, 63, 64, 65, 1000, 10**6, 10**9, 10**14])
def test_rising_has_no_cancellation(a):
    x = np.array([0, 1, 2, 15, 16, 17, 18, 100, 5000])
    found = rising(x.astype(float), np.array([float(a)]))[:, 0]
    assert_allclose(found, [exact_rising(a, int(n)) for n in x], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("a", [1e-200, 1e-20, 1e-3, 0.1, 0.5, 3.3, 70.0, 1e18])
def test_rising_of_any_base(a):
    x = np.array([1.0, 3.0, 16.0, 17.0, 40.0, 1e9])
    found = rising(x, np.array([a]))[:, 0]
    assert np.isfinite(found).all()
    if a < 100:
        assert_allclose(found, gammaln(a + x) - gammaln(a), rtol=1e-10)


def test_rising_sums(counts):
    table = np.random.default_rng(2).gamma(1.0, 5.0, (4, 23))
    dense = counts.toarray()[:, None, :]
    expected = np.sum(gammaln(table + dense) - gammaln(table), axis=2)
    assert_allclose(rising_sums(counts, table), expected, rtol=1e-9)


@pytest.mark.parametrize("count", [len(LOG_FACTORIAL) + i for i in (-2, -1, 0, 1)] + [0, 1, 2, 10**9])
def test_log_factorials_at_the_end_of_the_table(count):
    """Counts that have a place in it, and the first that have none."""
    x = sparse.csr_array(np.array([[float(count), 3.0]]))
    expected = float(gammaln(count + 1.0)) + np.log(6.0)
    assert row_log_factorials(x)[0] == pytest.approx(expected, rel=1e-14)


def test_rising_of_a_base_near_the_smallest_number():
    """A product of few factors falls below the smallest normal number; its log does not."""
    x = sparse.csr_array(np.array([[1.0]]))
    assert_allclose(rising_sums(x, np.array([[1e-305]])), [[math.log(1e-305)]], rtol=1e-12)
    x = sparse.csr_array(np.array([[2.0]]))
    assert_allclose(rising_sums(x, np.array([[5e-324]])), [[math.log(5e-324)]], rtol=1e-12)


def test_log_factorials_of_fractions_are_those_of_the_gamma_function():
    x = sparse.csr_array(np.array([[2.5, 0.0, 3.0], [0.5, 1023.5, 1.0]]))
    np.testing.assert_allclose(row_log_factorials(x), gammaln(x.toarray() + 1.0).sum(axis=1), rtol=1e-13)
