"""Tables of topics by words against scipy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import gammaln, psi

from bnp_dask.kernels.topics.counts import TILE, WIDE, dirichlet_table, table_scores


def counts(rng, rows, width):
    extra = rng.gamma(0.3, 20.0, (rows, width)) * (rng.random((rows, width)) < 0.4)
    extra[rows // 2] = 0.0
    return extra


@pytest.mark.parametrize("rows", [1, 3, TILE, TILE + 1])
@pytest.mark.parametrize("width", [1, WIDE - 1, WIDE, WIDE + 1, 3 * WIDE + 7])
def test_posteriors_of_topics(rows, width):
    rng = np.random.default_rng(1)
    prior = rng.gamma(1.0, 0.3, width) + 1e-3
    extra = counts(rng, rows, width)
    total = psi((prior + extra).sum(axis=1))
    lam, log_phi, drift = dirichlet_table(extra, prior, total)
    assert_array_equal(lam, prior + extra)
    assert_allclose(log_phi, psi(lam) - total[:, None], rtol=1e-12, atol=1e-12)
    assert log_phi.flags.f_contiguous
    assert_allclose(drift, np.sum(gammaln(prior) - gammaln(lam) + extra * psi(lam), axis=1), rtol=1e-11, atol=1e-11)
    assert drift[rows // 2] == 0.0
    assert_allclose(table_scores(log_phi, extra), (log_phi * extra).sum(axis=1), rtol=1e-12, atol=1e-12)


def test_a_score_does_not_hide_what_is_not_a_number():
    table = np.zeros((2, 5))
    table[1, 3] = np.nan
    x = np.ones((2, 5))
    assert np.isnan(table_scores(table, x)[1])
    x[1, 3] = np.nan
    assert np.isnan(table_scores(np.zeros((2, 5)), x)[1])
