"""The share of steps that are independent evidence: known correlations, and what has none."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import bnp_dask as bnp
from bnp_dask.analysis.sequences import LONGEST, _share
from bnp_dask.errors import SettingError


def stays(rho, seed=0, n=8, steps=400):
    """Sequences of long stays at two places, with noise that follows itself by the factor ``rho``."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        noise = rng.normal(size=(steps, 2))
        for t in range(1, steps):
            noise[t] = rho * noise[t - 1] + np.sqrt(1.0 - rho**2) * noise[t]
        out.append(noise + np.repeat([[0.0, 0.0], [30.0, 30.0]], steps // 2, axis=0))
    return out


def trained(rows, observation=None):
    model = bnp.Model(bnp.HDPHMM(kappa=50.0), observation or bnp.Gaussian())
    init = bnp.ContiguousBlocks(2, 50)
    return bnp.train(model, rows, init=init, schedule=bnp.Memoized(laps=3), moves=(), rng=0).posterior


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_the_share_of_steps_is_that_of_their_autocorrelation(rho):
    rows = stays(rho)
    found = bnp.independent_share(trained(rows), rows)
    # the sum ends at the first correlation below 0.05
    wanted = 1.0 / (1.0 + 2.0 * sum(rho**lag for lag in range(1, 60) if rho**lag >= 0.05))
    assert_allclose(found, wanted, rtol=0.15)
    parts = bnp.independent_share(trained(rows), rows, batch_size=400)
    assert_allclose(parts, found, rtol=1e-9)


def test_sums_of_products_become_a_share():
    pairs = np.full(LONGEST + 1, 100.0)
    products = np.zeros(LONGEST + 1)
    products[:4] = 200.0, 100.0, 40.0, 2.0  # correlations .5 and .2, and one that is noise
    assert_allclose(_share(products, pairs), 1.0 / (1.0 + 2.0 * 0.7))
    pairs[2] = 3.0  # too few to tell
    assert_allclose(_share(products, pairs), 1.0 / (1.0 + 2.0 * 0.5))
    assert _share(0.0 * products, pairs) == 1.0


def test_a_stay_of_equal_rows_counts_once():
    length, count = 80, 100.0
    pairs = np.zeros(LONGEST + 1)
    pairs[:length] = count * np.arange(length, 0, -1)
    assert_allclose(_share(3.0 * pairs, pairs), 1.0 / length)


@pytest.mark.parametrize("rho", [0.5, 0.9])
def test_the_share_is_the_variance_of_sums_of_independent_steps_by_that_of_sums_over_stays(rho):
    length = 30
    lags = np.arange(length)
    kept = rho**lags >= 0.05
    covariance = np.where(kept[np.abs(lags[:, None] - lags)], rho ** np.abs(lags[:, None] - lags), 0.0)
    pairs, products = np.zeros((2, LONGEST + 1))
    pairs[:length] = 1e3 * np.arange(length, 0, -1)
    products[:length] = pairs[:length] * rho**lags
    assert_allclose(_share(products, pairs), length / covariance.sum())


@pytest.mark.filterwarnings("ignore::bnp_dask.training.train.ConvergenceWarning")
def test_only_states_of_plain_rows_have_a_share():
    x = np.random.default_rng(0).normal(size=(60, 2))
    mixture = bnp.train(bnp.Model(bnp.FiniteMixture(), bnp.Gaussian()), x, init=bnp.RandomExamples(2), moves=())
    with pytest.raises(SettingError, match="hidden Markov model of plain rows"):
        bnp.independent_share(mixture.posterior, x)
