"""Sums that do not drift, against exact rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bnp_dask.kernels.numeric.compensated import product_rest, two_sum_into
from tests import naive

numbers = st.floats(-1e150, 1e150, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-100)


@given(st.lists(st.tuples(numbers, st.sampled_from([1.0, -1.0])), min_size=1, max_size=1))
def test_one_addition_is_exact(terms):
    high, low = np.array([1.25e7]), np.zeros(1)
    for x, sign in terms:
        two_sum_into(high, low, np.array([x]), sign)
    assert Fraction(high[0]) + Fraction(low[0]) == naive.exact_sum([1.25e7, *(x * s for x, s in terms)])


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.sampled_from([1.0, -1.0])), max_size=60))
def test_many_additions_keep_double_the_digits(terms):
    high, low = np.zeros(1), np.zeros(1)
    for x, sign in terms:
        two_sum_into(high, low, np.array([x]), sign)
    exact = naive.exact_sum(x * s for x, s in terms)
    size = sum(abs(Fraction(x)) for x, _ in terms)
    assert abs(Fraction(high[0]) + Fraction(low[0]) - exact) <= size * Fraction(2) ** -96


def test_what_enters_and_leaves_leaves_nothing():
    rng = np.random.default_rng(0)
    parts = rng.normal(size=(500, 3, 4)) * 10.0 ** rng.integers(-8, 8, (500, 3, 4))
    high, low, plain = np.ones((3, 4)), np.zeros((3, 4)), np.ones((3, 4))
    for part in parts:
        two_sum_into(high, low, part, 1.0)
        plain += part
    for part in parts[rng.permutation(500)]:
        two_sum_into(high, low, part, -1.0)
        plain -= part
    np.testing.assert_array_equal(high + low, 1.0)
    assert np.abs(plain - 1.0).max() > 1e-12  # what it is for


def test_scalars_in_place():
    high, low = np.array(1.0), np.array(0.0)
    two_sum_into(high, low, np.array(2.0**-70), 1.0)
    assert (float(high), float(low)) == (1.0, 2.0**-70)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_layout_that_would_lose_the_sum_is_refused(which):
    arrays = [np.zeros((2, 3)), np.zeros((2, 3)), np.ones((2, 3))]
    arrays[which] = np.asfortranarray(arrays[which])
    with pytest.raises(ValueError, match="C-contiguous"):
        two_sum_into(*arrays, 1.0)


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"one shape, got \(2,\), \(2,\) and \(3,\)"):
        two_sum_into(np.zeros(2), np.zeros(2), np.zeros(3), 1.0)


@given(st.lists(numbers, min_size=1, max_size=9), st.floats(1e-3, 1e3))
def test_a_product_and_its_rest_are_exact(x, factor):
    rest = product_rest(np.array(x), factor)
    assert [Fraction(a * factor) + Fraction(b) for a, b in zip(x, rest, strict=True)] == [
        Fraction(a) * Fraction(factor) for a in x
    ]


def test_what_cannot_be_split_has_no_rest():
    assert product_rest(np.array([1e303]), 0.3).tolist() == [0.0]
