"""The top level of the HDP-HMM: gradients, optima, bounds, and what the sticky model adds."""

import pickle
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import quad
from scipy.special import gammaln, polygamma, psi

from bnp_dask.allocation import HDPHMM, FiniteHMM, StateSticks
from bnp_dask.allocation.chain_step import CHAIN_FIELDS, stationary
from bnp_dask.allocation.hdp_hmm import Concentrations, TransitionCounts
from bnp_dask.core.summary import Field, Summary
from bnp_dask.kernels.numeric.special import trigamma
from tests.chains import naive
from tests.chains.top_level import ExpectedLogs, climbed, value_and_slope


def own(kappa):
    return Concentrations(3.0, 0.6, 4.0, kappa)


def counts(k, seed=0):
    rng = np.random.default_rng(seed)
    return rng.gamma(0.3, 5.0, k), rng.gamma(0.2, 20.0, (k, k)) + 50 * np.eye(k)


def summary_of(start, trans):
    values = {"N": trans.sum(axis=0) + start, "M": trans, "start": start, "H": np.zeros(())}
    return Summary(np.arange(len(start)), {"N": Field(("cluster",)), **CHAIN_FIELDS}, values)


@pytest.mark.parametrize("kappa", [0.0, 0.5, 40.0])
@pytest.mark.parametrize("k", [1, 2, 7])
def test_top_term_and_gradients(k, kappa):
    top = own(kappa)
    rng = np.random.default_rng(k)
    u, omega = rng.uniform(0.1, 0.9, k), rng.uniform(5.0, 60.0, k)
    assert top.top_term(u, omega) == pytest.approx(naive.top_term(u, omega, 3.0, 0.6, 4.0, kappa))
    start, trans = counts(k)
    prior0, prior = top.prior(u)
    theta0, theta = prior0 + np.append(start, 0.0), prior + np.hstack([trans, np.zeros((k, 1))])
    logs = ExpectedLogs(top, psi(theta0) - psi(theta0.sum()), psi(theta) - psi(theta.sum(axis=1, keepdims=True)))
    point = np.log(np.concatenate([u * omega, (1 - u) * omega]))
    fitted = TransitionCounts(top, start, trans)
    for at, best in ((partial(value_and_slope, fitted), fitted.best()), (logs.value_and_slope, logs.best())):
        _, slope = at(point)
        steps = 1e-5 * np.eye(2 * k)
        ends = [[at(point + s * e)[0] for e in steps] for s in (1, -1)]
        assert_allclose(slope, (np.array(ends[0]) - ends[1]) / 2e-5, rtol=1e-5, atol=1e-5)
        here = np.log(np.concatenate([best[0] * best[1], (1 - best[0]) * best[1]]))
        assert np.abs(at(here)[1]).max() < 1e-3
        for _ in range(20):
            assert at(here + 0.1 * rng.normal(size=2 * k))[0] < at(here)[0]


@pytest.mark.parametrize("kappa", [0.0, 0.5, 100.0])
@pytest.mark.parametrize("k", [1, 3, 30])
def test_compiled_optimum_against_scipy(k, kappa):
    objective = TransitionCounts(own(kappa), *counts(k, seed=k))

    def at(u, omega):
        return value_and_slope(objective, np.log(np.concatenate([u * omega, (1 - u) * omega])))

    value, slope = at(*objective.best())
    assert np.abs(slope).max() < 1e-6
    assert value >= at(*climbed(partial(value_and_slope, objective), own(kappa), k))[0] - 1e-9 * abs(value)
    assert_array_equal(objective.best()[0], objective.best()[0])
    x = np.exp(np.linspace(-20, 20, 200))
    assert_allclose([trigamma(v) for v in x], polygamma(1, x), rtol=1e-14)


@pytest.mark.parametrize("kappa", [0.0, 8.0])
def test_global_step_is_the_optimum_of_the_objective(kappa):
    """Also over theta, which the optimiser never sees."""
    model = HDPHMM(3.0, 0.6, 4.0, kappa)
    summary = summary_of(*counts(5))
    params = model.global_step(summary)
    best = model.elbo(params, summary)["allocation"]
    rng = np.random.default_rng(0)
    for size in (1.0, 0.1, 0.01):
        for _ in range(30):
            u = 1 / (1 + np.exp(-(np.log(params.u / (1 - params.u)) + size * rng.normal(size=5))))
            omega = params.omega * np.exp(size * rng.normal(size=5))
            theta0, theta = (t * np.exp(size * rng.normal(size=t.shape)) for t in (params.theta0, params.theta))
            for other in (
                StateSticks.of(u, omega, params.theta0, params.theta),
                StateSticks.of(params.u, params.omega, theta0, theta),
                StateSticks.of(u, omega, theta0, theta),
            ):
                assert model.elbo(other, summary)["allocation"] < best


@pytest.mark.parametrize("kappa", [0.0, 2.0, 30.0])
def test_the_surrogate_is_a_bound_from_below(kappa):
    """Of E[log p(u) / q(u)] + sum of the priors' cumulants, for one state, by quadrature."""
    top = Concentrations(3.0, 0.6, 4.0, kappa)
    for u, omega in ((0.6, 9.0), (0.3, 30.0)):
        a, b = u * omega, (1 - u) * omega
        norm = gammaln(a + b) - gammaln(a) - gammaln(b)

        def cumulant(x):
            return gammaln(sum(x)) - sum(gammaln(v) for v in x)

        def integrand(x, a=a, b=b, norm=norm, cumulant=cumulant):
            log_q = norm + (a - 1) * np.log(x) + (b - 1) * np.log1p(-x)
            log_p = np.log(3.0) + 2.0 * np.log1p(-x)
            start, row = [4.0 * x, 4.0 * (1 - x)], [0.6 * x + kappa, 0.6 * (1 - x)]
            return np.exp(log_q) * (log_p - log_q + cumulant(start) + cumulant(row))

        exact = quad(integrand, 0.0, 1.0, limit=200)[0]
        assert top.top_term(np.array([u]), np.array([omega])) <= exact + 1e-8


def test_counts_that_rounding_made_negative_and_none_at_all():
    model = HDPHMM(kappa=3.0)
    start, trans = counts(3)
    rough = model.global_step(summary_of(start - start.min() - 1e-17, trans * (trans > 5) - 1e-18))
    assert np.isfinite(rough.log_trans).all()
    nothing = summary_of(np.zeros(3), np.zeros((3, 3)))
    params = model.global_step(nothing)
    assert np.isfinite(params.log_trans).all() and (params.u > 0).all()
    loose = Summary(nothing.ids, nothing.fields, {**nothing.values, "N": np.array([10.0, 30.0, 60.0])})
    # without sequences, states are taken to follow one another by chance
    weights = model.global_step(loose).theta[:, :3]
    assert (np.argmax(weights[1:], axis=1) == 2).all() or (weights[:2, 2] > weights[:2, 0]).all()


def test_one_state_and_pickles():
    model = HDPHMM()
    params = model.global_step(summary_of(np.array([3.0]), np.array([[90.0]])))
    assert params.theta.shape == (1, 2)
    assert 0.9 < model.weights(params)[0] < 1.0
    again = pickle.loads(pickle.dumps((model, params)))
    assert again[0] == model
    assert_array_equal(again[1].log_trans, params.log_trans)


def test_stationary_shares():
    rng = np.random.default_rng(0)
    moves = rng.dirichlet(np.full(6, 0.2), 6) + 1e-9
    moves /= moves.sum(axis=1, keepdims=True)
    share = stationary(moves)
    assert_allclose(share @ moves, share, atol=1e-14)
    assert stationary(np.ones((1, 1))).tolist() == [1.0]


def test_weights_of_finitely_many_states_are_the_steps_that_the_expected_chain_takes_in_the_long_run():
    start, trans = counts(4)
    model = FiniteHMM(alpha=2.0, alpha0=1.5, kappa=0.7)
    params = model.global_step(summary_of(start, trans))
    expected = params.theta / params.theta.sum(axis=1, keepdims=True)
    share = np.full(4, 0.25)
    for _ in range(20_000):
        share = share @ expected
    assert_allclose(model.weights(params), share, rtol=1e-6)
    assert_allclose(model.log_weights(params), np.log(share), rtol=1e-6)
    assert np.abs(share @ expected.T - share).max() > 1e-3  # rows and columns differ


def test_the_joint_density_of_finitely_many_states_has_the_priors_of_all_rows():
    start, trans = counts(3)
    model = FiniteHMM(alpha=2.0, alpha0=1.5, kappa=0.7)
    summary = summary_of(start, trans)
    mode = model.at_mode(model.global_step(summary))
    rows = [(start + 1.5 / 3, mode.log_start)]
    rows += [(trans[j] + 2.0 / 3 + 0.7 * np.eye(3)[j], mode.log_trans[j]) for j in range(3)]
    assert_allclose(model.log_joint(mode, summary)["allocation"], sum(n @ log_p for n, log_p in rows), rtol=1e-12)
    for _, log_p in rows:
        assert_allclose(np.exp(log_p).sum(), 1.0)
