"""Sweeps of documents whose tokens keep L topics each, against NumPy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bnp_dask.kernels.topics.document_step import keep_top, padded, same_sweep, top_sweep
from tests.topics import naive


def case(n, n_topics, seed=0):
    """Likelihoods ``(topics, tokens)`` filled up with ones, rows in use, shares and weights."""
    rng = np.random.default_rng(seed)
    live = np.sort(rng.choice(n_topics + 3, n_topics, replace=False))
    lik = np.ones((n_topics + 3, padded(n)))
    lik[:, :n] = rng.gamma(0.5, size=(n_topics + 3, n)) + 1e-9
    weight = np.zeros(padded(n))
    weight[:n] = rng.uniform(0.5, 3.0, n)
    return lik, live, rng.gamma(0.5, size=n_topics) + 1e-9, weight


def expected(lik, live, share, weight, n, kept):
    """Totals of the tokens and growth of the topics where each token keeps some."""
    own = lik[live, :n].T
    total = np.where(kept, own * share, 0.0).sum(axis=1)
    return total, (np.where(kept, own, 0.0) * (weight[:n] / total)[:, None]).sum(axis=0)


@pytest.mark.parametrize("top", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 40])
def test_sweeps_over_the_best_topics_of_each_token(n, top):
    lik, live, share, weight = case(n, 11)
    chosen, total, grow = np.zeros((n, top), np.int32), np.zeros(padded(n)), np.zeros(11)
    top_sweep(lik, live, 11, share, weight, chosen, total, grow)
    kept = naive.chosen(np.log(lik[live, :n].T * share), top)
    assert [set(row) for row in chosen] == [set(np.flatnonzero(row)) for row in kept]
    for found, value in zip((total[:n], grow), expected(lik, live, share, weight, n, kept), strict=True):
        assert_allclose(found, value, rtol=1e-12)
    # the same topics at other shares
    share = share[::-1].copy()
    same_sweep(lik, live, 11, share, weight, chosen, total, grow)
    for found, value in zip((total[:n], grow), expected(lik, live, share, weight, n, kept), strict=True):
        assert_allclose(found, value, rtol=1e-12)
    # all others are left out of the likelihoods, and nothing else is touched
    before = lik.copy()
    keep_top(lik, live, 11, chosen)
    before[live, :n] = np.where(kept.T, before[live, :n], 0.0)
    assert np.array_equal(lik, before)


def test_of_equal_topics_the_first_are_kept():
    lik, live, share, weight = np.ones((5, padded(3))), np.arange(5), np.ones(5), np.ones(padded(3))
    chosen = np.zeros((3, 2), np.int32)
    top_sweep(lik, live, 5, share, weight, chosen, np.zeros(padded(3)), np.zeros(5))
    assert chosen.tolist() == [[0, 1]] * 3
