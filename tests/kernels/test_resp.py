"""Responsibilities and what is summed with them, against the slow twins."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import logsumexp

from bnp_dask.kernels import mixture as kernel
from bnp_dask.kernels.mixture import pair_entropy
from tests import naive

shapes = st.tuples(st.integers(1, 9), st.integers(1, 13))
moderate = st.floats(-60.0, 60.0)
extreme = st.one_of(st.sampled_from([0.0, -1.0, -745.0, -1e6, 1e6, -1e15, 1e15]), st.floats(-1e12, 1e12))
any_size = st.one_of(moderate, extreme)


@st.composite
def weights_of(draw, elements=any_size):
    return draw(hnp.arrays(np.float64, draw(shapes), elements=elements))


@st.composite
def resp_and_more(draw):
    """Responsibilities (dense and maybe L-sparse), atoms' weights, and rows of data."""
    log_weights = draw(weights_of(st.floats(-50.0, 50.0)))
    n = len(log_weights)
    top = draw(st.none() | st.integers(1, 15))
    counts = draw(st.none() | hnp.arrays(np.float64, n, elements=st.floats(0.0, 5.0)))
    x = draw(hnp.arrays(np.float64, (n, 3), elements=st.floats(-100.0, 100.0)))
    if top is None:
        resp, log_resp = kernel.resp_from_weights(log_weights)
    else:
        resp, log_resp = kernel.top_resp_from_weights(log_weights, top)
    return resp, log_resp, counts, x


def dense_of(resp):
    return resp.to_dense() if isinstance(resp, kernel.SparseResp) else resp


@given(weights_of())
def test_resp_like_naive(log_weights):
    resp, log_resp = kernel.resp_from_weights(log_weights)
    want, want_log = naive.resp_from_weights(log_weights.tolist())
    # logs of size 1e15 have no digits after the point, and neither then has the responsibility
    digits = 1e-15 * np.abs(log_weights).max() + 1e-15
    np.testing.assert_allclose(log_resp, want_log, rtol=1e-14, atol=4 * digits)
    np.testing.assert_allclose(resp, want, rtol=4e-15 + 8 * min(digits, 1.0), atol=2 * naive.TINY)
    np.testing.assert_allclose(resp.sum(axis=1), 1.0, rtol=1e-14)
    assert ((resp == 0) | (resp >= kernel.TINY)).all()
    assert np.isfinite(log_resp).all()


@pytest.mark.parametrize("n_clusters", [1, 2, 3, 4, 5, 63, 64, 65, 1000])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0, 1e4])
def test_resp_is_accurate(n_clusters, spread):
    log_weights = np.random.default_rng(n_clusters).normal(0.0, spread, (50, n_clusters))
    resp, log_resp = kernel.resp_from_weights(log_weights)
    want = log_weights - logsumexp(log_weights, axis=1, keepdims=True)
    np.testing.assert_allclose(log_resp, want, rtol=1e-15, atol=4e-15 + 2e-15 * spread)
    kept = resp > 0
    # both subtract the normaliser from W, whose last digits the responsibility inherits
    np.testing.assert_allclose(resp[kept], np.exp(want[kept]), rtol=3e-15 + 2e-15 * spread)
    assert (np.exp(want[~kept]) < 1.0001 * kernel.TINY).all()


def test_resp_shares_equal_weights_and_leaves_its_input():
    log_weights = np.full((3, 8), -1e300)
    before = log_weights.copy()
    resp, log_resp = kernel.resp_from_weights(log_weights)
    np.testing.assert_array_equal(resp, 0.125)
    np.testing.assert_allclose(log_resp, -np.log(8))
    np.testing.assert_array_equal(log_weights, before)


def test_forbidden_clusters_get_nothing_and_no_nan():
    resp, log_resp = kernel.resp_from_weights(np.array([[0.0, -np.inf, 0.0], [-np.inf, 3.0, -np.inf]]))
    np.testing.assert_array_equal(resp, [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
    np.testing.assert_allclose(kernel.cluster_entropy(resp, log_resp), [0.5 * np.log(2), 0.0, 0.5 * np.log(2)])


@pytest.mark.parametrize("row", [[np.nan, 0, 1], [0, 1, np.nan], [-np.inf] * 3, [np.inf, 0, 0]])
def test_what_has_no_answer_is_nan_and_not_a_number(row):
    log_weights = np.array([[1.0, 2.0, 3.0], row])
    with np.errstate(invalid="ignore"):
        resp, _ = kernel.resp_from_weights(log_weights)
    assert np.isfinite(resp[0]).all()
    assert np.isnan(resp[1]).all()


@given(weights_of(), st.integers(1, 15))
def test_top_like_naive(log_weights, top):
    got, log_resp = kernel.top_resp_from_weights(log_weights, top)
    index, want = naive.top_resp_from_weights(log_weights.tolist(), top)
    np.testing.assert_array_equal(got.index, index)
    digits = min(1e-15 * np.abs(log_weights).max(), 1.0)
    np.testing.assert_allclose(got.value, want, rtol=1e-14 + 8 * digits, atol=2 * naive.TINY)
    assert log_resp.shape == got.value.shape == (len(log_weights), min(top, log_weights.shape[1]))
    np.testing.assert_array_equal(got.to_dense(), naive.to_dense(index, got.value.tolist(), log_weights.shape[1]))
    np.testing.assert_array_equal(got.to_csr().toarray(), got.to_dense())


@given(hnp.arrays(np.int8, shapes, elements=st.integers(0, 2)), st.integers(1, 15))
def test_ties_go_to_the_lower_position(ranks, top):
    got, _ = kernel.top_resp_from_weights(ranks.astype(np.float64), top)
    np.testing.assert_array_equal(got.index, [naive.top_positions(row, top) for row in ranks.tolist()])


@given(weights_of(moderate))
def test_top_of_everything_is_dense(log_weights):
    got, _ = kernel.top_resp_from_weights(log_weights, log_weights.shape[1])
    resp, _ = kernel.resp_from_weights(log_weights)
    np.testing.assert_array_equal(got.to_dense(), resp)


@pytest.mark.parametrize("place", range(12))
def test_top_never_hides_nan(place):
    log_weights = np.arange(24.0).reshape(2, 12)[:, ::-1].copy()
    log_weights[1, place] = np.nan
    got, _ = kernel.top_resp_from_weights(log_weights, 2)
    assert np.isfinite(got.value[0]).all()
    assert np.isnan(got.value[1]).all()


@given(resp_and_more())
def test_sums_like_naive(drawn):
    resp, log_resp, counts, x = drawn
    plain = dense_of(resp).tolist()
    weighted = kernel.scale_rows(resp, counts)
    want = naive.scale_rows(plain, None if counts is None else counts.tolist())
    np.testing.assert_array_equal(dense_of(weighted), want)
    np.testing.assert_allclose(kernel.cluster_sums(weighted), naive.cluster_sums(want), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(
        kernel.cluster_sums(weighted, x), naive.cluster_sums(want, x.tolist()), rtol=1e-12, atol=1e-11
    )
    if isinstance(resp, kernel.SparseResp):
        logs = naive.to_dense(resp.index.tolist(), log_resp.tolist(), resp.n_clusters)
    else:
        logs = log_resp.tolist()
    np.testing.assert_allclose(
        kernel.cluster_entropy(weighted, log_resp), naive.cluster_entropy(want, logs), rtol=1e-12, atol=1e-13
    )


@given(resp_and_more(), st.data())
def test_pair_entropy_like_naive(drawn, data):
    resp, _, counts, _ = drawn
    plain = dense_of(resp)
    place = st.integers(0, plain.shape[1] - 1)
    pairs = data.draw(st.lists(st.tuples(place, place), max_size=4))
    got = pair_entropy(resp, counts, np.array(pairs, np.int64).reshape(-1, 2))
    want = naive.pair_entropy(plain.tolist(), None if counts is None else counts.tolist(), pairs)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


def test_bits_depend_on_the_row_alone():
    """Tiles, threads and repetitions give the same bits, which the executors rely on."""
    log_weights = np.random.default_rng(1).normal(0, 20, (4000, 37))
    dense, logs = kernel.resp_from_weights(log_weights)
    top, _ = kernel.top_resp_from_weights(log_weights, 5)
    for start in range(0, 4000, 777):
        rows = slice(start, start + 777)
        part, part_logs = kernel.resp_from_weights(log_weights[rows])
        np.testing.assert_array_equal(part, dense[rows])
        np.testing.assert_array_equal(part_logs, logs[rows])
        np.testing.assert_array_equal(kernel.top_resp_from_weights(log_weights[rows], 5)[0].value, top.value[rows])
    with ThreadPoolExecutor(4) as pool:
        for again, _ in pool.map(kernel.resp_from_weights, [log_weights] * 8):
            np.testing.assert_array_equal(again, dense)


def test_other_layouts_and_types_give_the_same():
    log_weights = np.random.default_rng(2).normal(0, 20, (30, 7))
    want, _ = kernel.resp_from_weights(log_weights)
    for other in (np.asfortranarray(log_weights), np.repeat(log_weights, 2, axis=1)[:, ::2]):
        np.testing.assert_array_equal(kernel.resp_from_weights(other)[0], want)
        got = kernel.top_resp_from_weights(other, 7)[0]
        np.testing.assert_array_equal(got.value, want)


@pytest.mark.parametrize("top", [None, 2])
def test_no_atoms(top):
    empty = np.zeros((0, 3))
    resp, log_resp = kernel.resp_from_weights(empty) if top is None else kernel.top_resp_from_weights(empty, top)
    assert log_resp.shape == (0, top or 3)
    np.testing.assert_array_equal(kernel.cluster_sums(resp), np.zeros(3))
    np.testing.assert_array_equal(kernel.cluster_entropy(resp, log_resp), np.zeros(3))
    np.testing.assert_array_equal(kernel.cluster_sums(resp, np.zeros((0, 2))), np.zeros((3, 2)))


@given(weights_of(), st.booleans(), st.data())
def test_resp_and_entropy_is_both(log_weights, weighted, data):
    n, k = log_weights.shape
    shift = data.draw(hnp.arrays(np.float64, k, elements=st.floats(-50.0, 50.0)))
    counts = data.draw(hnp.arrays(np.float64, n, elements=st.floats(0.0, 5.0))) if weighted else None
    want, logs = kernel.resp_from_weights(log_weights + shift)
    entropy_of = kernel.cluster_entropy(kernel.scale_rows(want, counts), logs)
    given_array = log_weights.copy()
    got, entropy = kernel.resp_and_entropy(given_array, shift, counts)
    assert np.shares_memory(got, given_array)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(entropy, entropy_of, rtol=1e-12, atol=1e-13)


@given(weights_of(moderate), st.integers(1, 15), st.booleans(), st.data())
def test_lists_of_all_clusters_are_the_matrix(log_weights, top, tailed, data):
    """Screened weights that leave nothing out, or put some in the float32 tail, against the dense functions."""
    n, k = log_weights.shape
    inside = data.draw(hnp.arrays(np.bool_, (n, k))) if tailed else np.ones((n, k), bool)
    inside[np.arange(n), log_weights.argmax(axis=1)] = True
    offsets = np.concatenate([[0], np.cumsum(inside.sum(axis=1))])
    index = np.ascontiguousarray(np.nonzero(inside)[1])  # as the screen has it: kernels are compiled for a layout
    # numbers that float32 holds exactly, so that both are the same weights
    weights = log_weights.astype(np.float32).astype(np.float64)
    weights[inside] = log_weights[inside]
    tail = np.where(inside, -np.inf, weights).astype(np.float32) if tailed else None
    screened = kernel.ScreenedWeights(offsets, index, weights[inside], k, None if tail is None else tail.copy())
    want, logs = kernel.resp_from_weights(weights)
    if not tailed:
        if top < k:
            got, _ = kernel.top_resp_from_screened(screened, top)
            expected, _ = kernel.top_resp_from_weights(weights, top)
            np.testing.assert_allclose(got.to_dense(), expected.to_dense(), rtol=1e-13)
            np.testing.assert_array_equal(got.index, expected.index)
        resp, entropy = kernel.resp_from_screened(screened, None)
        np.testing.assert_allclose(resp.to_dense(), want, rtol=1e-13, atol=2 * kernel.TINY)
    else:
        resp, entropy = kernel.resp_from_screened(screened, None)
        np.testing.assert_allclose(resp.to_dense(), want, rtol=3e-6, atol=2 * kernel.TINY)
    np.testing.assert_allclose(entropy, kernel.cluster_entropy(want, logs), rtol=1e-5 if tailed else 1e-12, atol=1e-13)
    pairs = np.array([[0, k - 1], [k // 2, 0]])
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    dense = resp.to_dense()
    np.testing.assert_allclose(
        pair_entropy(resp, None, pairs), pair_entropy(dense, None, pairs), rtol=1e-12, atol=1e-14
    )
    np.testing.assert_allclose(kernel.cluster_sums(resp), dense.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(kernel.atom_sums(resp), dense.sum(axis=1), rtol=1e-12)
    x = np.arange(3.0 * n).reshape(n, 3)
    np.testing.assert_allclose(kernel.cluster_sums(resp, x), dense.T @ x, rtol=1e-12, atol=1e-12)


def test_lists_without_a_number_give_none():
    screened = kernel.ScreenedWeights(np.array([0, 2, 3]), np.array([0, 1, 1]), np.array([np.nan, 1.0, 2.0]), 2)
    resp, _ = kernel.resp_from_screened(screened, None)
    dense = resp.to_dense()
    assert np.isnan(dense[0]).all()
    np.testing.assert_array_equal(dense[1], [0.0, 1.0])
