"""Mixture allocations: the shipped suite, and direct numerical formulas for their objectives."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, stats
from scipy.special import gammaln

from bnp_dask.allocation.dp_mixture import DPMixture
from bnp_dask.allocation.finite_mixture import FiniteMixture
from bnp_dask.core.summary import Field, Summary
from bnp_dask.errors import SettingError
from bnp_dask.testing import AllocationSuite

SIZES = np.array([30.0, 0.5, 12.0, 3.0])


class TestDPMixture(AllocationSuite):
    def model(self, top=None):
        return DPMixture(gamma=2.5, top=top)


class TestFiniteMixture(AllocationSuite):
    def model(self, top=None):
        return FiniteMixture(gamma=3.0, top=top)


class TestSparsePriorFiniteMixture(AllocationSuite):
    def model(self, top=None):
        return FiniteMixture(gamma=0.01, top=top)


def summary(sizes, entropy=None):
    fields = {"N": Field(("cluster",)), "H": Field(("cluster",), merge="tracked")}
    values = {"N": np.asarray(sizes), "H": np.zeros(len(sizes)) if entropy is None else entropy}
    return Summary(np.arange(len(sizes)), fields, values)


def beta_expectation(function, a, b):
    """E[function(u)] for u ~ Beta(a, b), by quadrature."""

    # in logits the integrand is smooth and its tails fall off exponentially
    def integrand(t):
        u, not_u = 1 / (1 + np.exp(-t)), 1 / (1 + np.exp(t))
        return function(u, not_u) * np.exp(a * np.log(u) + b * np.log(not_u) - log_beta)

    log_beta = gammaln(a) + gammaln(b) - gammaln(a + b)
    center, width = np.log(a / b), 40 * np.sqrt(1 / a + 1 / b)
    return integrate.quad(integrand, center - width, center + width, epsabs=1e-12, limit=500)[0]


def test_dp_objective_against_quadrature():
    """E[log p(z|u)] + E[log p(u)] - E[log q(u)] (thesis eq. 3.31), term by term."""
    model = DPMixture(gamma=2.5)
    params = model.global_step(summary(SIZES))
    total = 0.0
    for k in range(4):
        after = SIZES[k + 1 :].sum()
        a, b = 1.0 + SIZES[k], 2.5 + after
        assert_allclose([params.eta1[k], params.eta0[k]], [a, b])
        log_u = beta_expectation(lambda u, v: np.log(u), a, b)
        log_not_u = beta_expectation(lambda u, v: np.log(v), a, b)
        assert_allclose([params.log_u[k], params.log_not_u[k]], [log_u, log_not_u], rtol=1e-8)
        total += SIZES[k] * log_u + after * log_not_u
        total += np.log(2.5) + 1.5 * log_not_u + stats.beta(a, b).entropy()
    assert_allclose(model.elbo(params, summary(SIZES))["allocation"], total, rtol=1e-8)


def test_dp_objective_away_from_the_optimum():
    """Any q(u) with any summary: the terms that cancel at the optimum are there."""
    model = DPMixture(gamma=2.5)
    params = model.global_step(summary(SIZES[::-1]))
    total = 0.0
    for k in range(4):
        prior, q = stats.beta(1.0, 2.5), stats.beta(params.eta1[k], params.eta0[k])
        total += SIZES[k] * params.log_u[k] + SIZES[k + 1 :].sum() * params.log_not_u[k]
        total += q.expect(prior.logpdf) + q.entropy()
    assert_allclose(model.elbo(params, summary(SIZES))["allocation"], total, rtol=1e-6)


def test_dp_truncation_is_nested():
    """An empty cluster at the end changes no term and takes its weight from what was left (thesis 3.4.3)."""
    model = DPMixture(gamma=2.5)
    small, large = summary(SIZES), summary(SIZES).insert_empty([7, 8])
    a, b = model.global_step(small), model.global_step(large)
    assert_allclose(model.elbo(b, large)["allocation"], model.elbo(a, small)["allocation"], rtol=1e-13)
    assert_allclose(model.log_weights(b)[:4], model.log_weights(a))
    assert_allclose(model.weights(b)[:4], model.weights(a))
    left = 1.0 - model.weights(a).sum()
    assert_allclose(model.weights(b)[4], left / 3.5)
    assert_allclose(1.0 - model.weights(b).sum(), left * (2.5 / 3.5) ** 2)


def test_dp_evidence_is_the_chinese_restaurant():
    """With certain assignments the bound is log p(z), averaged over sticks: at most the CRP's with labels."""
    gamma = 2.5
    sizes = np.array([5.0, 3.0, 1.0])
    model = DPMixture(gamma)
    value = model.elbo(model.global_step(summary(sizes)), summary(sizes))["allocation"]
    # q(u) is the exact posterior, so the bound is the exact log p(z) of these stick labels
    after = np.array([4.0, 1.0, 0.0])
    exact = np.sum(np.log(gamma) + gammaln(1 + sizes) + gammaln(gamma + after) - gammaln(1 + gamma + sizes + after))
    assert_allclose(value, exact)
    crp = 3 * np.log(gamma) + gammaln(sizes).sum() + gammaln(gamma) - gammaln(gamma + 9)
    assert value < crp


def test_finite_objective_is_the_exact_evidence_of_certain_assignments():
    """Dirichlet-multinomial of an ordered sequence of labels, and a Dirichlet from scipy off the optimum."""
    model = FiniteMixture(gamma=3.0)
    sizes = np.array([5.0, 3.0, 0.0, 2.0])
    a = np.full(4, 0.75)
    exact = gammaln(3.0) - gammaln(13.0) + np.sum(gammaln(a + sizes) - gammaln(a))
    assert_allclose(model.elbo(model.global_step(summary(sizes)), summary(sizes))["allocation"], exact)
    params = model.global_step(summary(sizes[::-1]))
    q = stats.dirichlet(params.theta)
    log_prior = gammaln(3.0) - 4 * gammaln(0.75) + (a - 1) @ params.log_pi
    expected = sizes @ params.log_pi + log_prior + q.entropy()
    assert_allclose(model.elbo(params, summary(sizes))["allocation"], expected)


def test_objective_adds_the_entropy():
    entropy = np.array([1.0, 2.0, 0.5, 0.0])
    for model in (DPMixture(), FiniteMixture()):
        params = model.global_step(summary(SIZES))
        assert model.elbo(params, summary(SIZES, entropy))["entropy"] == pytest.approx(3.5)


def test_tiles_follow_the_shape_only():
    """The same tiles whatever the weights, so that sums are added in one order everywhere."""
    from bnp_dask.core.batch import Batch

    x = np.zeros((5000, 3))
    for n_clusters in (1, 100, 5000):
        sizes = [[t.n_atoms for t in DPMixture().tiles(Batch(x, w), n_clusters)] for w in (None, np.ones(5000))]
        assert sizes[0] == sizes[1]
        assert sum(sizes[0]) == 5000


@pytest.mark.parametrize("allocation", [DPMixture, FiniteMixture])
def test_refuses_impossible_settings(allocation):
    for gamma in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(SettingError, match="gamma"):
            allocation(gamma=gamma)
    for top in (0, -1, 1.5, "2"):
        with pytest.raises(SettingError, match="top"):
            allocation(top=top)
