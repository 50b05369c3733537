"""Rows that lack entries under Gaussians: the kernels against plain linear algebra, row by row."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bnp_dask.kernels.gaussian.quadratic import (
    add_completed,
    add_conditional_means,
    add_marginal,
    patterns_of,
)

D, K, N = 5, 3, 40


def parts(seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(K, D, 2 * D))
    precision, shift = root @ root.transpose(0, 2, 1), rng.normal(size=(K, D))
    missing = rng.random((N, D)) < 0.4
    y = np.where(missing, 0.0, rng.normal(size=(N, D)))
    return y, missing, precision, shift, rng.random((N, K))


def conditional(y, gaps, precision, shift):
    """Mean and covariance of the entries ``gaps`` given the others."""
    covariance = np.linalg.inv(precision[np.ix_(gaps, gaps)])
    return shift[gaps] - covariance @ precision[np.ix_(gaps, ~gaps)] @ (y - shift)[~gaps], covariance


def some(missing):
    return np.flatnonzero(missing.any(axis=1) & ~missing.all(axis=1))


@pytest.mark.parametrize("width", [3, 70, 130])
@pytest.mark.parametrize("n", [0, 1, 60])
def test_patterns_hold_each_row_that_lacks_some_but_not_all(width, n):
    missing = np.random.default_rng(n).random((n, width)) < (0.5 if width == 3 else 0.02)
    found = patterns_of(missing)
    assert sorted(found.rows) == some(missing).tolist()
    assert found.starts[-1] == len(found.rows)
    assert len({mask.tobytes() for mask in found.masks}) == len(found.masks)
    for mask, a, b in zip(found.masks, found.starts[:-1], found.starts[1:], strict=True):
        assert (missing[found.rows[a:b]] == mask).all()


def test_marginals_are_the_integrals_of_the_quadratic_forms():
    y, missing, precision, shift, _ = parts()
    filled = np.stack([-0.5 * np.einsum("nd,de,ne->n", y - s, p, y - s) for s, p in zip(shift, precision)], axis=1)
    log_lik = filled.copy()
    assert add_marginal(y, *patterns_of(missing), precision, shift, log_lik)
    for n in some(missing):
        gaps = missing[n]
        for k in range(K):
            mean, covariance = conditional(y[n], gaps, precision[k], shift[k])
            best = y[n].copy()
            best[gaps] = mean
            peak = -0.5 * (best - shift[k]) @ precision[k] @ (best - shift[k])
            assert_allclose(log_lik[n, k], peak + 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1])
    whole = ~missing.any(axis=1)
    assert_allclose(log_lik[whole], filled[whole])


def test_completed_sums_and_conditional_means_are_those_of_each_row():
    y, missing, precision, shift, resp = parts()
    found, upper = patterns_of(missing), np.triu_indices(D)
    first, second, entropy = np.zeros((K, D)), np.zeros((K, len(upper[0]))), np.zeros(K)
    assert add_completed(y, *found, precision, shift, resp[found.rows], first, second, entropy)
    means = y.copy()
    assert add_conditional_means(y, *found, precision, shift, resp[found.rows], means)
    first_twin, second_twin, entropy_twin = np.zeros((K, D)), np.zeros((K, D, D)), np.zeros(K)
    for n in some(missing):
        gaps, expected = missing[n], y[n].copy()
        for k in range(K):
            mean, covariance = conditional(y[n], gaps, precision[k], shift[k])
            row = y[n].copy()
            row[gaps] = mean
            first_twin[k] += resp[n, k] * (row - y[n])
            second_twin[k] += resp[n, k] * (np.outer(row, row) - np.outer(y[n], y[n]))
            second_twin[k][np.ix_(gaps, gaps)] += resp[n, k] * covariance
            entropy_twin[k] += 0.5 * resp[n, k] * np.linalg.slogdet(2 * np.pi * np.e * covariance)[1]
            expected[gaps] += resp[n, k] * mean
        assert_allclose(means[n], expected)
    assert_allclose(first, first_twin)
    assert_allclose(second, second_twin[:, upper[0], upper[1]])
    assert_allclose(entropy, entropy_twin)


def test_a_block_without_a_factor_is_told():
    y, missing = np.zeros((1, 2)), np.array([[True, False]])
    wrong = np.array([[[-1.0, 0.0], [0.0, 1.0]]])
    assert not add_marginal(y, *patterns_of(missing), wrong, np.zeros((1, 2)), np.zeros((1, 1)))
