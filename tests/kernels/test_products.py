"""Products of matrices in one order: every number is the chain of fused operations that is promised."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from bnp_dask.kernels.mixture import moments_of_pairs, whitened_pairs
from bnp_dask.kernels.numeric import arithmetic
from bnp_dask.kernels.numeric.arithmetic import fixed_order, fixed_product, inner, is_fixed, matmul

SHAPES = [(7, 3, 5), (6, 40, 8), (61, 300, 19), (130, 70, 41), (5, 600, 530), (200, 17, 1), (1, 90, 90)]
SLOWEST = SHAPES[2:4]


def chain(row, column):
    total = 0.0
    for x, y in zip(row.tolist(), column.tolist(), strict=True):
        total = float(Fraction(x) * Fraction(y) + Fraction(total))  # rounded once
    return total


def small(a, b):
    out = np.empty((1, a.shape[0], b.shape[1]), a.dtype)
    arithmetic._multiply_small(np.ascontiguousarray(a[None]), np.ascontiguousarray(b[None]), out)
    return out[0]


def test_every_number_is_a_chain_of_fused_operations_in_ascending_order():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(50, 300)), rng.normal(size=(300, 13))
    found = fixed_product(a, b)
    for i, j in [(0, 0), (49, 12), (17, 5), (6, 8)]:
        assert found[i, j] == chain(a[i], b[:, j])


@pytest.mark.first_case
@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("shape", [s if s not in SLOWEST else pytest.param(s, marks=pytest.mark.long) for s in SHAPES])
def test_tiles_blocks_and_layouts_leave_the_bits_alone(shape, kind):
    rng = np.random.default_rng(1)
    m, depth, n = shape
    a, b = rng.normal(size=(m, depth)).astype(kind), rng.normal(size=(depth, n)).astype(kind)
    wanted = small(a, b)
    np.testing.assert_allclose(wanted, a.astype(np.float64) @ b, rtol=0, atol=depth * np.finfo(kind).eps * 8)
    for left in (a, np.asfortranarray(a), np.repeat(a, 2, axis=1)[:, ::2]):
        for right in (b, np.asfortranarray(b)):
            found = fixed_product(left, right)
            assert found.dtype == kind
            assert np.array_equal(found, wanted)
    out = np.empty((m, n), kind)
    arithmetic._multiply(a, b.T, arithmetic.LINE // out.itemsize, out)
    assert np.array_equal(out, wanted)


def test_stacks_vectors_and_nothing_at_all():
    rng = np.random.default_rng(2)
    shapes = [((7, 3, 4), (7, 4, 5)), ((3, 4), (7, 4, 5)), ((4, 40, 44), (44, 50)), ((0, 3), (3, 2)), ((3, 0), (0, 2))]
    shapes += [((5, 0, 3, 3), (0, 3, 3)), ((4,), (4,)), ((4,), (4, 3)), ((3, 4), (4,))]
    for left, right in shapes:
        a, b = rng.normal(size=left), rng.normal(size=right)
        with fixed_order(True):
            np.testing.assert_allclose(matmul(a, b), a @ b, atol=1e-12)
    with fixed_order(True):
        assert inner(np.ones((2, 3)), np.full((2, 3), 2.0)) == 12.0


def test_loops_over_pairs_agree_with_blas():
    rng = np.random.default_rng(3)
    n, d = 150, 9
    y, root = rng.normal(size=(n, d)), np.triu(rng.normal(size=(1, d, d)))
    atoms, starts, one = np.arange(n), np.array([0, n]), np.ones(1)
    squares, sums = [], []
    for fixed in (False, True):
        out, first, second = np.empty(n), np.zeros((1, d)), np.zeros((1, d * (d + 1) // 2))
        whitened_pairs(y, atoms, atoms, starts, np.zeros((1, d)), root, one, np.zeros(1), fixed, out)
        moments_of_pairs(y, np.zeros(d), atoms, np.abs(y[:, 0]), starts, fixed, first, second)
        squares.append(out)
        sums.append(second)
    np.testing.assert_allclose(squares[1], squares[0], rtol=1e-12)
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-11, atol=1e-11)
    assert squares[1][4] == pytest.approx(-0.5 * np.sum((y[4] @ root[0]) ** 2))


def test_the_order_is_that_of_the_innermost_block():
    assert not is_fixed()
    with fixed_order(True):
        with fixed_order(False):
            assert not is_fixed()
        assert is_fixed()
    assert not is_fixed()
