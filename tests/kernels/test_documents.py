"""The passes over a document's likelihoods, and what it leaves behind, against numpy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bnp_dask.kernels.topics import document_step
from bnp_dask.kernels.topics.document_step import table_of

SIZES = [(1, 1), (5, 7), (16, 16), (33, 9), (40, 130)]


def scene(n, k, seed=0):
    """A table ``(R, K)``, rows of it with one that comes twice, and weights."""
    rng = np.random.default_rng(seed)
    table = rng.gamma(0.3, size=(n + 20, k)) + 1e-9
    rows = rng.permutation(n + 20)[:n]
    rows[-1] = rows[0]
    return rng, table, rows, rng.uniform(0.5, 3.0, n)


def laid(n, k, table, rows, weight):
    """The matrix of a document, its weights up to the length of a row, and what the topics grow by at equal shares."""
    long = document_step.padded(n)
    lik, grow = np.full((k, long), np.nan), np.full(k, np.nan)
    ratio = weight / document_step.row_totals(table, np.ones(k))[rows]
    document_step.gather_all(table, rows, lik, ratio, grow)
    return lik, np.concatenate([weight, np.zeros(long - n)]), grow


def test_rows_are_filled_up_to_whole_vectors():
    assert [document_step.padded(n) for n in (0, 1, 16, 17, 115)] == [0, 16, 16, 32, 128]


@pytest.mark.parametrize("n, k", SIZES)
def test_gathering_all_topics_is_the_first_half_of_a_sweep(n, k):
    _, table, rows, weight = scene(n, k)
    lik, _, grow = laid(n, k, table, rows, weight)
    assert_array_equal(lik[:, :n], table[rows].T)
    assert_array_equal(lik[:, n:], 1.0)
    assert_allclose(grow, (weight / table[rows].sum(axis=1)) @ table[rows], rtol=1e-13)


@pytest.mark.parametrize("n, k", SIZES)
def test_a_sweep_reads_the_live_rows_only(n, k):
    rng, table, rows, weight = scene(n, k)
    live = np.sort(rng.choice(k, (k + 1) // 2, replace=False))
    lik, filled, _ = laid(n, k, table, rows, weight)
    lik[np.setdiff1d(np.arange(k), live)] = np.nan
    share, grow = rng.random(len(live)), np.empty(len(live))
    total, ratio = np.empty(len(filled)), np.empty(len(filled))
    document_step.sweep(lik, live, len(live), share, filled, total, ratio, grow)
    own = table[rows][:, live]
    assert_allclose(total[:n], own @ share, rtol=1e-13)
    assert_allclose(grow, (weight / (own @ share)) @ own, rtol=1e-13)


@pytest.mark.parametrize("n, k", SIZES)
def test_gathering_some_topics_in_any_order(n, k):
    rng, table, rows, _ = scene(n, k)
    index = rng.permutation(k)[: (k + 1) // 2]
    lik = np.full((len(index), document_step.padded(n)), np.nan)
    document_step.gather_some(table, rows, index, lik)
    assert_array_equal(lik[:, :n], table[rows][:, index].T)
    assert_array_equal(lik[:, n:], 1.0)


@pytest.mark.parametrize("n, k", SIZES)
def test_what_a_document_leaves_behind(n, k):
    rng, table, rows, weight = scene(n, k)
    live = np.sort(rng.choice(k, (k + 1) // 2, replace=False))
    width = len(live)
    lik, filled, _ = laid(n, k, table, rows, weight)
    share, log_share = rng.random(width), np.log(rng.uniform(0.1, 1.0, n))
    own = table[rows][:, live] * share
    resp = own / own.sum(axis=1, keepdims=True)
    work, count, linear = np.empty(len(filled)), np.empty(width), np.empty(width)
    document_step.assign(
        lik, live, width, share, filled, log_share, np.empty(len(filled)), work, work.view(np.int64),
        np.empty(len(filled)), count, linear,
    )  # fmt: skip
    assert_allclose(lik[:width, :n], (weight[:, None] * resp).T, rtol=1e-12, atol=1e-14)
    assert_array_equal(lik[:width, n:], 0.0)
    assert_allclose(count, weight @ resp, rtol=1e-12)
    assert_allclose(linear, (weight * (np.log(own.sum(axis=1)) - log_share)) @ resp, rtol=1e-11, atol=1e-12)
    sums, expected = np.ones(table.shape), np.ones(table.shape)
    document_step.spread(lik[:width], 0.5, rows, live, sums)
    for i, row in enumerate(rows):
        expected[row, live] += 0.5 * weight[i] * resp[i]
    assert_allclose(sums, expected, rtol=1e-12)


def test_the_table_is_cut_below_and_keeps_what_is_not_a_number():
    log_lik = np.array([[-3.0, -900.0, -4.0, -5.0, -3.5], [np.nan, 1.0, 2.0, 3.0, 4.0]])
    table = np.empty(log_lik.shape)
    table_of(log_lik, -230.0, table)
    assert_allclose(log_lik[0], [0.0, -230.0, -1.0, -2.0, -0.5])
    assert_allclose(table[0], np.exp(log_lik[0]), rtol=1e-14)
    assert np.isnan(table[1, 0]) and np.isfinite(table[1, 1:]).all()


def test_a_likelihood_that_is_no_number_shows_in_every_count():
    _, table, rows, weight = scene(20, 3)
    lik, filled, _ = laid(20, 3, table, rows, weight)
    lik[1, 4] = np.nan
    scratch, found = np.empty((3, len(filled))), np.empty((2, 3))
    bits = scratch[1].view(np.int64)
    document_step.assign(
        lik, np.arange(3), 3, np.ones(3), filled, np.zeros(0), *scratch[:2], bits, scratch[2], *found,
    )  # fmt: skip
    assert np.isnan(found).all()
