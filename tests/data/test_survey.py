"""Surveys: one pass tells sizes, moments, ranges; combining batches equals looking at all at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.errors import DataError


def whole(x, w):
    mean = np.average(x, axis=0, weights=w)
    return mean, np.average((x - mean) ** 2, axis=0, weights=w)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(lambda s: sum(s) > 0),
    n_features=st.integers(1, 5),
    weighted=st.booleans(),
    counts=st.booleans(),
)
def test_combined_batches_equal_the_whole(seed, sizes, n_features, weighted, counts):
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    x = rng.poisson(0.7, (n, n_features)).astype(float) if counts else rng.normal(3, 2, (n, n_features))
    w = rng.gamma(1.0, size=n) if weighted else None
    edges = np.cumsum([0, *sizes])
    batches = []
    for a, b in zip(edges[:-1], edges[1:], strict=True):
        part = sparse.csr_array(x[a:b]) if counts else x[a:b]
        batches.append(Batch(part, None if w is None else w[a:b], f"batch {len(batches)}"))
    survey = combine(survey_batch(b) for b in batches)
    mean, variance = whole(x, w)
    np.testing.assert_allclose(survey.mean, mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(survey.variance, variance, rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(survey.minimum, x.min(axis=0))
    np.testing.assert_array_equal(survey.maximum, x.max(axis=0))
    assert survey.total_weight == pytest.approx(n if w is None else w.sum())
    assert survey.n_atoms == n and survey.batch_atoms == tuple(sizes) and survey.is_sparse == counts
    assert survey.nbytes == sum(b.nbytes for b in batches) == sum(survey.batch_bytes)
    assert len(survey.checksums) == survey.n_batches == len(sizes)


def test_huge_offsets_do_not_cancel():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(50_000, 3)).round(3)
    x = 1e8 + noise
    exact = np.var(x - 1e8, axis=0)
    split = combine(survey_batch(Batch(part)) for part in np.array_split(x, 13))
    np.testing.assert_allclose(survey_batch(Batch(x)).variance, exact, rtol=1e-7)
    np.testing.assert_allclose(split.variance, exact, rtol=1e-7)


def test_constant_column_has_no_variance():
    x = np.column_stack([np.full(999, 0.1), np.arange(999.0)])
    survey = combine([survey_batch(Batch(x[:500])), survey_batch(Batch(x[500:]))])
    assert survey.variance[0] <= 1e-30
    assert survey.variance[1] == pytest.approx((999**2 - 1) / 12)


def test_sparse_agrees_with_dense():
    rng = np.random.default_rng(1)
    x = rng.poisson(0.2, (200, 30)) * rng.choice([1.0, -2.0], (200, 30))
    w = rng.random(200)
    a, b = survey_batch(Batch(x, w)), survey_batch(Batch(sparse.csr_array(x), w))
    for name in ("mean", "variance", "minimum", "maximum"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-12, atol=1e-15)


def test_a_word_that_one_document_lacks_is_there_zero_times():
    x = np.array([[3.0, 2.0, -1.0], [0.0, 4.0, -2.0], [5.0, 6.0, 0.0]])
    survey = survey_batch(Batch(sparse.csr_array(x)))
    np.testing.assert_array_equal(survey.minimum, [0.0, 2.0, -2.0])
    np.testing.assert_array_equal(survey.maximum, [5.0, 6.0, 0.0])


def test_checksum_sees_content_shape_and_weights():
    x = np.arange(12.0).reshape(3, 4)
    sums = {
        survey_batch(b).checksums[0]
        for b in (Batch(x), Batch(x.reshape(4, 3)), Batch(x + 1e-12), Batch(x, np.ones(3)), Batch(sparse.csr_array(x)))
    }
    assert len(sums) == 5
    assert survey_batch(Batch(x.copy(), name="other")).checksums == survey_batch(Batch(x)).checksums
    wide = sparse.csr_array(x)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    assert survey_batch(Batch(wide)).checksums == survey_batch(Batch(sparse.csr_array(x))).checksums


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite_is_named(value):
    x = np.zeros((300_000, 2))
    x[234_567, 1] = value
    with pytest.raises(DataError, match=r"a.npy batch 3: row 234567, column 1 is"):
        survey_batch(Batch(x, name="a.npy batch 3"))
    y = sparse.csr_array(np.array([[0, 1.0], [0, 0], [2, value]]))
    with pytest.raises(DataError, match="row 2, column 1"):
        survey_batch(Batch(y))


@pytest.mark.parametrize(
    "weights, message",
    [
        (np.array([1.0, -1.0]), "weight of row 1 is -1"),
        (np.array([np.nan, 1.0]), "weight of row 0 is nan"),
        (np.ones(3), r"shape \(3,\); needs one per atom, \(2,\)"),
        (np.array(["a", "b"]), "real numbers"),
    ],
)
def test_bad_weights(weights, message):
    with pytest.raises(DataError, match=message):
        survey_batch(Batch(np.ones((2, 2)), weights))


def test_empty_batches_count_as_nothing_but_empty_data_is_an_error():
    empty = survey_batch(Batch(np.zeros((0, 2)), name="e"))
    full = survey_batch(Batch(np.array([[1.0, 2.0], [3.0, 6.0]])))
    both = combine([empty, full, empty])
    assert both.n_atoms == 2 and both.batch_atoms == (0, 2, 0)
    np.testing.assert_array_equal(both.mean, [2, 4])
    np.testing.assert_array_equal(both.variance, [1, 4])
    with pytest.raises(DataError, match="no atoms"):
        combine([empty, empty])
    with pytest.raises(DataError, match="no batches"):
        combine([])
    with pytest.raises(DataError, match="weight 0"):
        combine([survey_batch(Batch(np.ones((2, 2)), np.zeros(2)))])


def test_mismatched_batches_are_both_named():
    a = survey_batch(Batch(np.ones((2, 3)), name="part-0.parquet batch 0"))
    b = survey_batch(Batch(np.ones((2, 4)), name="part-1.parquet batch 1"))
    with pytest.raises(DataError, match="part-1.parquet batch 1 has 4 features, but part-0.parquet batch 0 has 3"):
        combine([a, b])
    with pytest.raises(DataError, match="sparse counts"):
        combine([a, survey_batch(Batch(sparse.csr_array(np.ones((2, 3))), name="c"))])


def test_checksum_sees_which_rows_are_of_one_group():
    x = np.arange(12.0).reshape(6, 2)
    cuts = [np.array([0, 3, 6]), np.array([0, 2, 6]), np.array([0, 6])]
    assert len({survey_batch(Batch(x, groups=groups)).checksums[0] for groups in cuts}) == 3
