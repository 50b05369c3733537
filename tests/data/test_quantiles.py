"""Quantiles of every feature from one pass: near enough, exact where few values occur, small, the same bits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import (
    MOST_SPARSE,
    NO_BATCHES,
    POINTS,
    TOTAL_POINTS,
    QuantileTotal,
    bulk_of,
    combine,
    extend,
    quantiles_of,
    survey_batch,
    unknown,
)
from bnp_dask.kernels.numeric import quantiles
from bnp_dask.training.survey_pass import survey_from_arrays, survey_to_arrays

SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def survey_in(x, n_batches, w=None):
    parts = np.array_split(np.arange(len(x)), n_batches)
    batches = [Batch(x[p], None if w is None else w[p], f"batch {i}") for i, p in enumerate(parts)]
    return combine(survey_batch(b) for b in batches)


def weighted_rank(x, w, value):
    return w[x <= value].sum() / w.sum(), w[x < value].sum() / w.sum()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 3000),
    n_batches=st.integers(1, 40),
    kind=st.sampled_from(["normal", "cauchy", "counts", "mostly zero"]),
    is_sorted=st.booleans(),
    is_weighted=st.booleans(),
)
def test_ranks_are_near_whatever_the_order_and_the_batches(seed, n, n_batches, kind, is_sorted, is_weighted):
    rng = np.random.default_rng(seed)
    x = {
        "normal": lambda: rng.normal(size=n),
        "cauchy": lambda: rng.standard_cauchy(n),
        "counts": lambda: rng.poisson(3.0, n).astype(float),
        "mostly zero": lambda: np.where(rng.random(n) < 0.9, 0.0, rng.normal(50, 5, n)),
    }[kind]()
    x = np.sort(x) if is_sorted else x
    w = rng.gamma(2.0, size=n) if is_weighted else np.ones(n)
    found = survey_in(x[:, None], n_batches, w if is_weighted else None).quantiles
    assert found.values.shape[1] <= TOTAL_POINTS
    assert found.weights.sum() == pytest.approx(w.sum())
    doublings = np.ceil(np.log2(n_batches))
    off = 1.0 / (2 * POINTS) + (doublings + 1) / (2 * TOTAL_POINTS) + w.max() / w.sum()
    for share in SHARES:
        at_or_below, below = weighted_rank(x, w, found.at(share)[0])
        assert below - off <= share <= at_or_below + off


@pytest.mark.parametrize("n_batches", [1, 3, 50])
def test_few_distinct_values_are_exact(n_batches):
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.integers(0, POINTS, 5000), rng.choice([-1e12, 0.0, 7.0], 5000, p=[0.01, 0.98, 0.01])])
    w = rng.random(5000)
    found = survey_in(x, n_batches, w).quantiles
    for d in range(2):
        values, places = np.unique(x[:, d], return_inverse=True)
        held = found.weights[d] > 0
        np.testing.assert_array_equal(found.values[d][held], values)
        np.testing.assert_allclose(found.weights[d][held], np.bincount(places, w), rtol=1e-12)


def test_a_value_that_many_share_stays_exact():
    rng = np.random.default_rng(1)
    x = np.where(rng.random(20_000) < 0.3, 5.0, rng.normal(size=20_000))
    found = survey_in(x[:, None], 64).quantiles
    assert found.weights[0][found.values[0] == 5.0] == pytest.approx((x == 5.0).sum())


def test_sparse_columns_have_the_quantiles_of_dense_ones_but_vocabularies_none():
    rng = np.random.default_rng(2)
    x = rng.poisson(0.4, (500, 30)).astype(float)
    w = rng.random(500)
    for weights in (None, w):
        a, b = quantiles_of(x, weights), quantiles_of(sparse.csr_array(x), weights)
        np.testing.assert_array_equal(a.values, b.values)
        np.testing.assert_allclose(a.weights, b.weights, rtol=1e-12)
    wide = quantiles_of(sparse.csr_array((3, MOST_SPARSE + 1)), None)
    assert wide.is_unknown
    assert bulk_of(survey_batch(Batch(sparse.csr_array(np.ones((3, MOST_SPARSE + 1)))))).mean[0] == 1.0


def test_batches_without_atoms_or_weight_change_nothing():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 2))
    full = survey_batch(Batch(x))
    empty, light = survey_batch(Batch(np.zeros((0, 2)))), survey_batch(Batch(np.full((5, 2), 9.0), np.zeros(5)))
    found = combine([empty, light, full, empty]).quantiles
    np.testing.assert_array_equal(found.values, full.quantiles.values)
    np.testing.assert_array_equal(found.weights, full.quantiles.weights)


def test_a_point_is_thinned_only_as_often_as_the_number_of_batches_doubles():
    rng, total = np.random.default_rng(5), NO_BATCHES
    for n in range(1, 40):
        total = total.with_batch(quantiles_of(rng.normal(size=(50, 2)), None))
        levels = [level for level, _ in total.parts]
        assert sum(2**level for level in levels) == n
        assert levels == sorted(set(levels), reverse=True)


def test_same_bits_and_a_bounded_size():
    x = np.random.default_rng(4).normal(size=(20_000, 3))
    a, b = survey_in(x, 300).quantiles, survey_in(x, 300).quantiles
    assert a.values.tobytes() == b.values.tobytes() and a.weights.tobytes() == b.weights.tobytes()
    assert survey_batch(Batch(x)).quantiles.values.shape == (3, POINTS)


# -- the bulk ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["normal", "uniform", "bimodal", "rare zeros", "bits", "constant"])
def test_the_bulk_of_clean_data_has_their_exact_moments(kind):
    rng = np.random.default_rng(5)
    x = {
        "normal": rng.normal(3, 2, 50_000),
        "uniform": rng.random(50_000),
        "bimodal": rng.normal(size=50_000) + 1e6 * (rng.random(50_000) < 0.3),
        "rare zeros": np.where(rng.random(50_000) < 0.98, 0.0, rng.normal(50, 5, 50_000)),
        "bits": (rng.random(50_000) < 0.01).astype(float),
        "constant": np.full(50_000, 0.1),
    }[kind]
    survey = survey_in(x[:, None], 20)
    bulk = bulk_of(survey)
    for name in ("mean", "variance", "minimum", "maximum"):
        np.testing.assert_array_equal(getattr(bulk, name), getattr(survey, name))


@pytest.mark.parametrize("size", [1e4, 1e6, 1e12, -1e15])
@pytest.mark.parametrize("share", ["one row", "4 percent"])
def test_far_rows_do_not_change_the_bulk(size, share):
    rng = np.random.default_rng(6)
    clean = rng.normal(5, 2, (24_000, 2))
    x = clean.copy()
    few = [1234] if share == "one row" else rng.choice(len(x), 960, replace=False)
    x[few, 0] = size
    bulk = bulk_of(survey_in(x, 24))
    np.testing.assert_allclose(bulk.mean, clean.mean(axis=0), atol=0.05)
    np.testing.assert_allclose(bulk.variance, clean.var(axis=0), rtol=0.1)
    assert bulk.mean[1] == pytest.approx(clean[:, 1].mean(), rel=1e-12)


def test_heavy_tails_have_a_bulk():
    rng = np.random.default_rng(7)
    x = rng.standard_cauchy((50_000, 1))
    bulk = bulk_of(survey_in(x, 10))
    assert abs(bulk.mean[0]) < 1 and bulk.variance[0] < 50 < x.var()


def test_a_far_row_does_not_hide_how_other_values_of_a_rare_column_spread():
    rng = np.random.default_rng(8)
    x = np.where(rng.random((24_000, 1)) < 0.98, 0.0, rng.normal(50, 5, (24_000, 1)))
    clean = x.var()
    x[7] = 1e9
    assert bulk_of(survey_in(x, 10)).variance[0] == pytest.approx(clean, rel=0.1)


def test_a_survey_that_goes_on_after_a_stop_comes_to_the_same_bits():
    x = np.random.default_rng(4).normal(size=(700, 3))
    parts = [survey_batch(Batch(np.ascontiguousarray(rows))) for rows in np.array_split(x, 11)]
    whole = combine(parts)
    for stop in range(1, 11):
        kept = survey_from_arrays(survey_to_arrays(extend(None, parts[:stop])))
        found = extend(kept, parts[stop:])
        for one, other in zip(found.points.to_arrays(), whole.points.to_arrays(), strict=True):
            assert one.tobytes() == other.tobytes()
        np.testing.assert_array_equal(found.quantiles.values, whole.quantiles.values)


def test_more_batches_after_those_of_a_survey_without_quantiles_leave_these_unknown():
    parts = [survey_batch(Batch(np.arange(12.0).reshape(4, 3) + i)) for i in range(3)]
    begun = replace(combine(parts[:1]), points=QuantileTotal(((0, unknown()),)))
    found = extend(begun, parts[1:])
    assert found.quantiles.is_unknown and found.features(np.array([0])).quantiles.is_unknown


def test_of_equal_values_those_of_the_first_come_first_and_rows_have_weights_of_their_own():
    values, weights = quantiles.merge_rows(
        np.array([[1.0, 3.0], [2.0, 2.0]]), np.array([[5.0, 6.0], [1.0, 2.0]]),
        np.array([[1.0, 3.0], [2.0, 9.0]]), np.array([[7.0, 8.0], [3.0, 4.0]]),
    )  # fmt: skip
    assert values.tolist() == [[1.0, 1.0, 3.0, 3.0], [2.0, 2.0, 2.0, 9.0]]
    assert weights.tolist() == [[5.0, 7.0, 6.0, 8.0], [1.0, 2.0, 3.0, 4.0]]


def test_thinned_points_keep_heavy_values_and_the_middles_of_bins():
    rows = np.array([[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 0.0, 1.0, 1.0, 1.0, 2.0]])
    weights = np.array([[1.0, 1.0, 1.0, 5.0, 1.0, 0.0], [1.0, 0.0, 1.0, 1.0, 1.0, 2.0]])
    values, kept, counts = quantiles.thin_rows(rows, weights, 3)
    # heavy: at least a third of nine; the others are two bins of two, whose middles fall on ends: the lower, the upper
    assert values[0].tolist() == [0.0, 3.0, 4.0] and kept[0].tolist() == [2.0, 5.0, 2.0]
    # three distinct values are kept with their weights, and of the second row the first weight alone is zero
    assert values[1].tolist() == [0.0, 1.0, 2.0] and kept[1].tolist() == [1.0, 3.0, 2.0] and counts.tolist() == [3, 3]
    values, kept, counts = quantiles.thin_rows(rows[1:], np.array([[0.0, 0.0, 1.0, 0.0, 0.0, 2.0]]), 4)
    assert (
        values.tolist() == [[1.0, 2.0, 2.0, 2.0]] and kept.tolist() == [[1.0, 2.0, 0.0, 0.0]] and counts.tolist() == [2]
    )
