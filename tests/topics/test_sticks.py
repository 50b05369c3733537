"""The top level of the HDP: gradient, optimum, weights."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import approx_fprime
from scipy.special import expit, psi

from bnp_dask.allocation import HDPTopics
from bnp_dask.allocation.sticks import TopLevel, stick_weights, surrogate, u_from_counts
from bnp_dask.core.batch import Batch
from tests.topics import naive
from tests.topics.parts import begin, corpus, fixed, word_model


def level(k=7, seed=0, groups=200.0):
    rng = np.random.default_rng(seed)
    pi = rng.dirichlet(np.ones(k + 1))
    theta = 0.5 * pi + (rng.random((400, k + 1)) < 0.2) * rng.gamma(1.0, 10.0, (400, k + 1))
    log_pi = groups * np.mean(psi(theta) - psi(theta.sum(axis=1, keepdims=True)), axis=0)
    return TopLevel(3.0, 0.5, groups, log_pi[:-1], float(log_pi[-1]))


def test_gradient_against_finite_differences():
    top = level()
    rng = np.random.default_rng(1)
    for _ in range(5):
        x = rng.normal(-1.5, 1.0, 7)
        _, slope = top.value_and_slope(x)
        numeric = approx_fprime(x, lambda v: top.value_and_slope(v)[0], 1e-6)
        assert_allclose(slope, numeric, rtol=1e-4, atol=1e-4 * np.abs(slope).max())


def test_value_is_that_of_the_objective():
    """f (5.37) differs from (5.25) + (5.27) by what does not depend on u."""
    top = level()
    rng = np.random.default_rng(2)
    differences = []
    for _ in range(4):
        x = rng.normal(-1.5, 1.0, 7)
        u, omega = expit(x), top.omega()
        pi, rest = stick_weights(u)
        whole = naive.top_term(u, omega, 3.0, 0.5, 200.0) + 0.5 * (pi @ top.log_pi + rest * top.log_rest)
        assert surrogate(u, omega, 3.0, 0.5, 200.0) == pytest.approx(
            naive.top_term(u, omega, 3.0, 0.5, 200.0), rel=1e-12
        )
        differences.append(whole - top.value_and_slope(x)[0])
    assert_allclose(differences, differences[0], rtol=1e-9)


@pytest.mark.parametrize("k, groups", [(1, 5.0), (7, 200.0), (60, 3000.0), (300, 10000.0)])
def test_optimum(k, groups):
    top = level(k, seed=k, groups=groups)
    u = top.best_u()
    x = np.log(u) - np.log1p(-u)
    best, slope = top.value_and_slope(x)
    assert np.abs(slope).max() <= 1e-5 * groups
    rng = np.random.default_rng(0)
    for size in (1e-3, 0.1, 1.0):
        for _ in range(20):
            assert top.value_and_slope(x + size * rng.normal(size=k))[0] <= best + 1e-12 * abs(best)
    assert_array_equal(top.best_u(), u)


def test_weights_sum_to_one():
    u = np.random.default_rng(0).uniform(size=9)
    pi, rest = stick_weights(u)
    assert pi.sum() + rest == pytest.approx(1.0)
    assert_allclose(pi, [u[k] * np.prod(1 - u[:k]) for k in range(9)])


def test_an_initialisation_without_documents_gives_weights_in_proportion_to_counts():
    counts = np.array([500.0, 100.0, 900.0, 300.0])
    pi, _ = stick_weights(u_from_counts(counts, 1.0))
    assert_allclose(pi, counts / counts.sum(), atol=0.01)
    model = word_model("hdp", **fixed())
    posterior = begin(model, Batch(corpus()[0]))
    start = model.global_step(posterior.summary)
    assert_allclose(start.weights, posterior.summary["N"] / posterior.summary["N"].sum(), atol=0.02)


def test_a_global_step_is_never_worse_than_what_was_believed():
    model = word_model("hdp", **fixed())
    batch = Batch(corpus()[0])
    posterior = begin(model, batch)
    for _ in range(5):
        summary = model.local_step(posterior, batch)
        before = sum(model.elbo(posterior, summary).values())
        posterior = model.global_step(summary)
        assert sum(model.elbo(posterior, summary).values()) >= before
    assert isinstance(model.allocation, HDPTopics)
