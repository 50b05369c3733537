"""The share of steps that are independent evidence: known correlations, and what has none."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import bnp_dask as bnp
from bnp_dask.analysis import sequences
from bnp_dask.analysis.sequences import LONGEST, _share
from bnp_dask.errors import SettingError
from bnp_dask.testing import survey_of


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


def given_states(rows, offsets, path, k=2):
    """A posterior whose most likely path is the given one, and a reader of the rows."""
    batch = bnp.Batch(rows, groups=np.asarray(offsets, np.int64))
    model = bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian()).with_prior(survey_of(bnp.Batch(np.nan_to_num(rows))))
    clean = bnp.Batch(np.nan_to_num(rows), groups=batch.groups)
    posterior = model.global_step(model.summarize(np.arange(k), clean, np.eye(k)[path]))
    return posterior, batch


def test_products_of_residuals_stay_within_a_stay_and_a_sequence(monkeypatch):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(9, 2))
    path, offsets = np.array([0, 0, 0, 1, 1, 0, 0, 0, 1]), [0, 6, 6, 9]
    posterior, batch = given_states(rows, offsets, path)
    monkeypatch.setattr(sequences, "_path", lambda *_: (rows, path, batch))
    mean, scale = rng.normal(size=(2, 2)), np.array([[1.0, 2.0], [0.0, 0.5]])
    out = sequences._products(mean, scale, posterior, None)
    stay = np.array([0, 0, 0, 1, 1, 2, 3, 3, 4])  # the sixth step and the seventh are of two sequences
    residual = np.zeros((9, 2))
    for i in range(9):
        for d in range(2):
            if scale[path[i], d] > 0:
                residual[i, d] = (rows[i, d] - mean[path[i], d]) / scale[path[i], d]
    for lag in range(3):
        pairs = [(i, i + lag) for i in range(9 - lag) if stay[i] == stay[i + lag]]
        assert out[1, lag] == len(pairs)
        assert_allclose(out[0, lag], sum((residual[i] * residual[j]).mean() for i, j in pairs))
    assert (out[:, 3:] == 0.0).all()


def test_moments_of_states_are_of_the_entries_that_are_there(monkeypatch):
    rows = np.array([[1.0, np.nan], [3.0, 4.0], [5.0, 6.0], [np.nan, np.nan]])
    path = np.array([0, 0, 1, 1])
    posterior, batch = given_states(rows, [0, 4], path)
    monkeypatch.setattr(sequences, "_path", lambda *_: (rows, path, batch))
    count, first, second = sequences._moments(posterior, None)
    assert count.tolist() == [[2.0, 1.0], [1.0, 1.0]]
    assert first.tolist() == [[4.0, 4.0], [5.0, 6.0]]
    assert second.tolist() == [[10.0, 16.0], [25.0, 36.0]]


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
