"""Differences that hold only what is not zero: the bits are those of whole matrices."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy import sparse

from bnp_dask.core.summary import FEW, Field, RunningTotal, Summary, difference
from bnp_dask.errors import SummaryError
from bnp_dask.kernels.numeric.compensated import SparseSum, is_mostly_zero, two_sum_into

FIELDS = {"N": Field(), "x": Field(("cluster", "word")), "H": Field(("cluster",), merge="tracked")}
SHAPE = (5, 40)


def mostly_zeros(rng, share=0.1, shape=SHAPE):
    # numbers of very different sizes, so that both parts of a sum are in use, and some that cancel exactly
    size = 10.0 ** rng.integers(-9, 9, shape)
    return np.where(rng.random(shape) < share, size * rng.choice([1.0, -1.0, 1 / 3, np.pi], shape), 0.0)


def whole(arrays, signs):
    high, low = np.zeros(SHAPE), np.zeros(SHAPE)
    for array, sign in zip(arrays, signs, strict=True):
        two_sum_into(high, low, array, sign)
    return high, low


@pytest.mark.parametrize("seed", range(20))
def test_sums_have_the_bits_of_whole_matrices(seed):
    rng = np.random.default_rng(seed)
    arrays = [mostly_zeros(rng) for _ in range(6)]
    arrays[3] = arrays[0]  # cancels
    signs = [1.0, 1.0, -1.0, -1.0, 1.0, -1.0]
    total = SparseSum.of(arrays[0])
    for array, sign in zip(arrays[1:], signs[1:], strict=True):
        total = total.plus(SparseSum.of(array), sign)
    for found, expected in zip(total.to_dense(), whole(arrays, signs), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert (np.diff(total.place) > 0).all()
    assert np.all((total.high != 0) | (total.low != 0))


def test_a_remainder_that_outlives_its_number_is_kept():
    large, small = np.zeros(SHAPE), np.zeros(SHAPE)
    large[1, 3], small[1, 3] = 1e8, 1e-9
    left = SparseSum.of(large).plus(SparseSum.of(small), 1.0).plus(SparseSum.of(large), -1.0)
    high, low = left.to_dense()
    np.testing.assert_array_equal(high + low, small)


def test_adding_to_a_whole_matrix_takes_both_numbers():
    rng = np.random.default_rng(1)
    summed = SparseSum.of(mostly_zeros(rng, 0.6)).plus(SparseSum.of(mostly_zeros(rng, 0.6)))
    assert np.any(summed.low != 0)
    start = rng.normal(size=SHAPE)
    for sign in (1.0, -1.0):
        high, low = start.copy(), np.zeros(SHAPE)
        expected = start.copy(), np.zeros(SHAPE)
        summed.add_to(high, low, sign)
        for part in summed.to_dense():
            two_sum_into(*expected, part, sign)
        np.testing.assert_array_equal(high, expected[0])
        np.testing.assert_array_equal(low, expected[1])
    with pytest.raises(ValueError, match="C-contiguous"):
        summed.add_to(np.zeros(SHAPE, order="F"), np.zeros(SHAPE))


def test_sparse_rows_and_matrices_agree():
    array = mostly_zeros(np.random.default_rng(2))
    rows = sparse.csr_array(array)
    a, b = SparseSum.of(array), SparseSum.of_csr(rows.data, rows.indices, rows.indptr, SHAPE[1])
    for name in ("place", "high", "low"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    more = a.with_rows(2)
    np.testing.assert_array_equal(more.to_dense()[0], np.vstack([array, np.zeros((2, SHAPE[1]))]))
    assert is_mostly_zero(array, 0.25)
    assert not is_mostly_zero(array + 1.0, 0.25)


def test_what_is_not_a_number_is_not_lost():
    array = np.zeros(SHAPE)
    array[1, 2] = np.nan
    assert np.isnan(SparseSum.of(array).plus(SparseSum.of(array), -1.0).to_dense()[0][1, 2])


def summary(rng, share):
    x = np.abs(mostly_zeros(rng, share))
    values = {"N": x.sum(axis=1), "x": x, "H": rng.random(SHAPE[0])}
    return Summary(np.arange(SHAPE[0]), FIELDS, values)


def dense(new, old):
    total = RunningTotal(new)
    if old is not None:
        total.subtract(old)
    return total


def assert_same(found, expected):
    found = found.whole()
    for name in FIELDS:
        np.testing.assert_array_equal(found.high[name], expected.high[name])
        np.testing.assert_array_equal(found.low[name], expected.low[name])
    assert found.high.fields.keys() == expected.high.fields.keys()


@pytest.mark.parametrize("shares", [(0.1, 0.1), (0.1, 0.9), (0.9, 0.1), (0.9, 0.9), (0.1, None)])
def test_differences_do_not_depend_on_how_they_are_held(shares):
    rng = np.random.default_rng(3)
    new = summary(rng, shares[0]).with_pairs(np.array([[0, 1]]))
    old = None if shares[1] is None else summary(rng, shares[1])
    found = difference(new, old)
    assert bool(found.sparse) == (shares[0] <= FEW)
    assert_same(found, dense(new, old))
    assert_same(pickle.loads(pickle.dumps(found)), dense(new, old))
    if old is not None:
        assert_same(difference(new, RunningTotal(old)), dense(new, old))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("order", [(0.1, 0.1), (0.1, 0.9), (0.9, 0.1)])
def test_totals_take_differences_of_both_kinds(order, sign):
    rng = np.random.default_rng(4)
    pairs = [(summary(rng, share), summary(rng, share)) for share in order]
    total = RunningTotal(summary(np.random.default_rng(5), 0.5))
    expected = total.copy()
    summed, plain = difference(*pairs[0]), dense(*pairs[0])
    summed.join(difference(*pairs[1]), sign)
    plain.join(dense(*pairs[1]), sign)
    assert_same(summed, plain)
    total.join(summed, sign)
    expected.join(plain, sign)
    assert_same(total, expected)
    born = summed.insert_empty(np.array([9]))
    assert_same(born, plain.insert_empty(np.array([9])))


def test_a_difference_takes_less_and_is_not_edited():
    rng = np.random.default_rng(6)
    found = difference(summary(rng, 0.05), summary(rng, 0.05))
    assert found.nbytes < 0.5 * dense(summary(rng, 0.05), None).nbytes
    with pytest.raises(SummaryError, match="not edited"):
        found.apply([])


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_sum_can_be_taken_back_to_the_bit(share):
    rng = np.random.default_rng(7)
    pairs = np.array([[0, 1], [3, 2]])
    total = RunningTotal(summary(rng, 0.5).with_pairs(pairs), summary(rng, 0.2).with_pairs(pairs).scale(1e-17))
    delta = difference(summary(rng, share).with_pairs(pairs), summary(rng, 0.1))
    assert bool(delta.sparse) == (share <= FEW)
    before = total.copy()
    undo = total.before(delta)
    total.join(delta)
    after = before.copy()
    after.join(delta)
    assert_same(total, after)
    undo()
    assert_same(total, before)
    np.testing.assert_array_equal(total.high.pair_values["H"], before.high.pair_values["H"])
    total.join(delta)
    assert_same(total, after)


def test_one_value_of_a_sum():
    rng = np.random.default_rng(8)
    for share in (0.05, 0.9):
        found = difference(summary(rng, share), summary(rng, share))
        for name in FIELDS:
            np.testing.assert_array_equal(found.value_of(name), found.value()[name])
