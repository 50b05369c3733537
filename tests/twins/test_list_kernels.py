"""Twins, slow and in plain loops, of kernels over lists of responsibilities, words and tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from bnp_dask.kernels.mixture import (
    by_cluster,
    columns_of_lists,
    log_sums,
    pair_entropy_of_lists,
    resp_entropy,
    softmax_of_lists,
    softmax_rows,
    softmax_with_tail,
    top_of_lists,
)
from bnp_dask.kernels.topics.anchors import projected_pairs
from bnp_dask.kernels.topics.counts import add_documents, add_tokens, gather_words
from bnp_dask.kernels.topics.document_step import gather_all, gather_some, group_sums, padded
from bnp_dask.kernels.topics.tokens import log_word_shares

N, K = 7, 5


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.fixture
def lists(rng):
    """Offsets, clusters and log weights of lists of one to K clusters."""
    lengths = rng.integers(1, K + 1, N)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    index = np.concatenate([np.sort(rng.choice(K, size, replace=False)) for size in lengths])
    return offsets, index, rng.normal(0.0, 3.0, len(index))


def dense(offsets, index, value, empty=0.0):
    out = np.full((len(offsets) - 1, K), empty)
    for n in range(len(offsets) - 1):
        for i in range(offsets[n], offsets[n + 1]):
            out[n, index[i]] = value[i]
    return out


def softmax(rows):
    logs = rows - special.logsumexp(rows, axis=1, keepdims=True)
    return np.exp(logs), logs


def minus_x_log_x(values, counts):
    """Sum over atoms of minus count r log r, ``(K,)``."""
    out = np.zeros(values.shape[1])
    for n, count in enumerate(counts):
        for k, r in enumerate(values[n]):
            out[k] -= count * r * np.log(r) if r > 0.0 else 0.0
    return out


# -- responsibilities ------------------------------------------------------------------------------------------
def test_pairs_in_the_order_of_clusters(lists):
    offsets, index, _ = lists
    atoms, places, starts = by_cluster(offsets, index, K)
    want = [[(n, i) for n in range(N) for i in range(offsets[n], offsets[n + 1]) if index[i] == k] for k in range(K)]
    for k in range(K):
        found = zip(atoms[starts[k] : starts[k + 1]].tolist(), places[starts[k] : starts[k + 1]].tolist(), strict=True)
        assert list(found) == want[k]


def test_softmax_of_lists(lists):
    offsets, index, weights = lists
    want, logs = softmax(dense(offsets, index, weights, -np.inf))
    kept, where, value, log_value = softmax_of_lists(offsets, index, weights)
    np.testing.assert_allclose(dense(kept, where, value), want, rtol=1e-13)
    np.testing.assert_allclose(dense(kept, where, log_value), np.where(want > 0.0, logs, 0.0), rtol=1e-12)


def test_softmax_of_lists_beside_weights_of_all_others(lists, rng):
    offsets, index, weights = lists
    listed = dense(offsets, index, np.ones(len(index))) > 0.0
    rest = np.where(listed, -np.inf, rng.normal(-6.0, 1.0, (N, K))).astype(np.float32)
    whole = np.where(listed, dense(offsets, index, weights), rest)
    share, logs = softmax(np.float64(whole))
    counts, entropy, tail = rng.random(N), np.zeros(K), rest.copy()
    value, log_value = np.empty(len(index)), np.empty(len(index))
    softmax_with_tail(offsets, weights, tail, counts, value, log_value, entropy)
    np.testing.assert_allclose(dense(offsets, index, value) + tail, share, rtol=2e-6)
    np.testing.assert_allclose(dense(offsets, index, log_value), np.where(listed, logs, 0.0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(entropy, minus_x_log_x(np.where(listed, 0.0, share), counts), rtol=1e-5)


def test_the_largest_of_lists(lists):
    offsets, index, weights = lists
    where, best = np.zeros((N, 3), np.int64), np.zeros((N, 3))
    top_of_lists(offsets, index, weights, 3, K, where, best)
    for n in range(N):
        own = sorted(range(offsets[n], offsets[n + 1]), key=lambda i: -weights[i])[:3]
        taken = {int(index[i]): weights[i] for i in own}
        for k in range(K):
            if len(taken) < 3:
                taken.setdefault(k, -np.inf)
        assert dict(zip(where[n].tolist(), best[n].tolist(), strict=True)) == taken
        assert where[n].tolist() == sorted(taken)


def test_columns_of_lists(lists):
    offsets, index, value = lists
    place = np.full(K, -1)
    place[[3, 1]] = [0, 1]
    out = np.ones((N, 2))
    columns_of_lists(offsets, index, value, place, out)
    np.testing.assert_allclose(out, 1.0 + dense(offsets, index, value)[:, [3, 1]])


@pytest.mark.parametrize("tailed", [False, True])
def test_entropy_of_pairs_of_lists(lists, rng, tailed):
    offsets, index, weights = lists
    value, counts = np.abs(weights) / 20.0, rng.random(N)
    listed = dense(offsets, index, np.ones(len(index))) > 0.0
    tail = np.where(listed, 0.0, 0.01).astype(np.float32) if tailed else np.zeros((N, 0), np.float32)
    whole = dense(offsets, index, value) + (tail if tailed else 0.0)
    pairs, out = np.array([[0, 1], [4, 2]]), np.zeros(2)
    pair_entropy_of_lists(offsets, index, value, tail, counts, pairs, K, out)
    np.testing.assert_allclose(out, minus_x_log_x(whole[:, pairs[:, 0]] + whole[:, pairs[:, 1]], counts), rtol=1e-12)


def test_softmax_of_rows_and_its_entropy(rng):
    logs, shift, counts = rng.normal(0.0, 4.0, (N, K)), rng.normal(size=K), rng.random(N)
    want, want_logs = softmax(logs + shift)
    resp, log_resp = np.empty((N, K)), np.empty((N, K))
    softmax_rows(logs, shift, resp, log_resp, np.empty(0), np.empty(0))
    np.testing.assert_allclose(resp, want, rtol=1e-12)
    np.testing.assert_allclose(log_resp, want_logs, rtol=1e-12, atol=1e-14)
    entropy = np.zeros(K)
    softmax_rows(logs, shift, resp, np.empty((0, 0)), counts, entropy)
    np.testing.assert_allclose(entropy, minus_x_log_x(want, counts), rtol=1e-11)


@pytest.mark.parametrize("weighted", [False, True])
def test_entropy_of_weighted_responsibilities(rng, weighted):
    resp = softmax(rng.normal(size=(N, K)))[0]
    resp[0, 1] = 0.0
    weights = rng.random(N) if weighted else np.ones(N)
    found = resp_entropy(resp * weights[:, None], weights if weighted else None)
    np.testing.assert_allclose(found, minus_x_log_x(resp, weights), rtol=1e-12)


# -- words and tokens ------------------------------------------------------------------------------------------
def test_documents_are_added_to_their_clusters(rng):
    indptr, indices, data = np.array([0, 2, 2, 5]), np.array([0, 2, 1, 2, 3]), rng.random(5)
    words, labels, times = np.array([4, 1, 0, 5]), np.array([[0, 1, 2], [2, 0, -1]]), rng.random(3)
    added, totals = rng.random((6, 3)), rng.random(3)
    want, want_totals = added.copy(), totals.copy()
    for z in labels:
        for i in range(3):
            for j in range(indptr[i], indptr[i + 1]):
                if z[i] >= 0:
                    want[words[indices[j]], z[i]] += times[i] * data[j]
                    want_totals[z[i]] += times[i] * data[j]
    add_documents((indptr, indices, data), words, labels, times, added, totals)
    np.testing.assert_allclose(added, want, rtol=1e-14)
    np.testing.assert_allclose(totals, want_totals, rtol=1e-14)


def test_tokens_are_added_to_their_topics(rng):
    offsets, words, place = np.array([0, 3, 4]), np.array([2, 0]), np.array([0, 1, 0, 1])
    topics, times = np.array([1, -1, 0, 1]), np.array([0.5, 2.0])
    added, totals = np.zeros((3, 2)), np.zeros(2)
    add_tokens(offsets, words, place, topics, times, added, totals)
    np.testing.assert_array_equal(added, [[0.0, 2.0], [0.0, 0.0], [0.5, 0.5]])
    np.testing.assert_array_equal(totals, [0.5, 2.5])


def test_words_are_gathered_from_old_and_new_sums(rng):
    base, added, words = rng.random((6, 2)), rng.random((6, 4)), np.array([5, 0, 5])
    out = np.zeros((3, 5))
    gather_words(base, 0.25, added, 3.0, words, out)
    want = 3.0 * added[words] + 0.25 * np.pad(base, ((0, 0), (0, 2)))[words]
    np.testing.assert_allclose(out[:, :4], want, rtol=1e-14)
    assert not out[:, 4].any()


def test_pairs_of_two_tokens_of_documents(rng):
    from scipy import sparse

    counts, times, basis = rng.integers(0, 4, (6, 5)).astype(float), rng.random(6), rng.random((5, 2))
    counts[counts.sum(axis=1) < 2, :2] += 1.0
    want = np.zeros((5, 5))
    for h, t in zip(counts, times, strict=True):
        n = h.sum()
        want += t * (np.outer(h, h) - np.diag(h)) / (n * (n - 1.0))
    table, row_sums = projected_pairs(sparse.csr_array(counts), times, basis)
    np.testing.assert_allclose(table, want @ basis, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(row_sums, want.sum(axis=1), rtol=1e-12)


def test_log_probabilities_of_words_held_out(rng):
    offsets, row, held = np.array([0, 3, 5]), np.array([0, 2, 1, 1, 2]), np.array([1.0, 0.0, 2.0, 1.0, 1.5])
    starts, topic, count = np.array([0, 2, 3]), np.array([0, 3, 1]), rng.random(3)
    table, base, total, out = rng.random((3, 4)), rng.random(3), np.array([4.0, 5.0]), np.array([1.0, 2.0])
    want = out.copy()
    for d in range(2):
        n_dk = np.zeros(4)
        n_dk[topic[starts[d] : starts[d + 1]]] = count[starts[d] : starts[d + 1]]
        for i in range(offsets[d], offsets[d + 1]):
            want[d] += held[i] * np.log((base[row[i]] + table[row[i]] @ n_dk) / total[d])
    log_word_shares(offsets, row, held, (starts, topic), count, table, base, total, out)
    np.testing.assert_allclose(out, want, rtol=1e-13)


@pytest.mark.parametrize("n", [3, 8, 21])
def test_likelihoods_of_a_document_are_gathered(rng, n):
    table, rows = rng.random((6, K)), rng.integers(0, 6, n)
    lik, grow, ratio = np.zeros((K, padded(n))), np.full(K, 9.0), rng.random(n)
    gather_all(table, rows, lik, ratio, grow)
    np.testing.assert_array_equal(lik[:, :n], table[rows].T)
    np.testing.assert_allclose(grow, ratio @ table[rows], rtol=1e-13)
    index, few = np.array([4, 0]), np.zeros((2, padded(n)))
    gather_some(table, rows, index, few)
    np.testing.assert_array_equal(few[:, :n], table[rows][:, index].T)
    assert (lik[:, n:] == 1.0).all() and (few[:, n:] == 1.0).all()


def test_sums_of_groups(rng):
    values = rng.random(6)
    np.testing.assert_allclose(
        group_sums(np.array([0, 2, 2, 6]), values), [values[:2].sum(), 0.0, values[2:].sum()], rtol=1e-14
    )


@pytest.mark.parametrize("k", [1, 3, 50, 1500])
def test_log_sums(k):
    rng = np.random.default_rng(k)
    logs, shift = rng.normal(scale=30.0, size=(70, k)) - 1e4, rng.normal(size=k)
    logs[0] = -np.inf
    logs[1, 0] = np.nan
    logs[2, -1] = np.inf
    logs[3, 1:] = -np.inf
    out = np.empty(70)
    log_sums(logs, shift, out)
    rows = [(max(row), row) for row in (logs + shift)[3:].tolist()]
    expected = [top + math.log(math.fsum(math.exp(number - top) for number in row)) for top, row in rows]
    np.testing.assert_allclose(out[3:], expected, rtol=1e-15)
    assert out[0] == -np.inf
    assert np.isnan(out[1:3]).all()
