"""Independent priors of mean and covariance: the shipped suite, and integrals over both by scipy."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import gammaln, logsumexp

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.initialize.kmeans import best_joint, best_joint_by_clusters, distances_between
from bnp_dask.kernels.gaussian import semi_conjugate
from bnp_dask.kernels.numeric.arithmetic import fixed_order
from bnp_dask.model import Model
from bnp_dask.observation import SemiConjugateGaussian
from bnp_dask.testing import ObservationSuite, survey_of
from tests.streaming.oracle import Oracle, partitions


class TestSemiConjugateGaussian(ObservationSuite):
    n_draws = 250

    def model(self):
        return SemiConjugateGaussian()

    def batch(self, rng, n_atoms):
        mix = np.array([[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [0.0, 1.0, 0.3]])
        return Batch(rng.normal(size=(n_atoms, 3)) @ mix + np.array([5.0, -2.0, 0.0]))

    def draw(self, params, k, rng):
        found = self._ready.at_draw(params, rng)
        return found.mean[k], found.covariance[k]

    def ready(self, seed=0):
        found = super().ready(seed)
        self._ready = found[0]
        return found

    def log_density(self, phi, x):
        return stats.multivariate_normal(phi[0], phi[1]).logpdf(x)


@pytest.mark.long
class TestPriorsThatContradict(TestSemiConjugateGaussian):
    """Narrow priors of the mean, far from the data."""

    def model(self):
        return SemiConjugateGaussian(nu=4.5, B=[0.5, 1.0, 0.1], m=[0.0, 3.0, 1.0], V=[0.3, 2.0, 0.5])


# -- quadrature over mean and precision ----------------------------------------------------------------------------
def on_a_grid(model, x, weights):
    """Log evidence and expectations of one column by sums over a grid of mu and log lam."""
    prior_sd, center = float(np.sqrt(model.V[0, 0])), float(model.m[0])
    low, high = min(x.min(), center - 9 * prior_sd), max(x.max(), center + 9 * prior_sd)
    mu = np.linspace(low, high, 601)
    log_lam = np.linspace(-16.0, 8.0, 201)[:, None]
    lam, nu, scale = np.exp(log_lam), float(model.nu), float(model.B[0, 0])
    log_p = stats.norm(center, prior_sd).logpdf(mu) + stats.gamma(nu / 2, scale=2.0 / scale).logpdf(lam) + log_lam
    first, second = weights @ x, weights @ x**2
    squares = second - 2.0 * mu * first + weights.sum() * mu**2
    log_p = log_p + 0.5 * weights.sum() * (log_lam - np.log(2.0 * np.pi)) - 0.5 * lam * squares
    log_z = logsumexp(log_p)
    p = np.exp(log_p - log_z)
    means = [np.sum(p * of) for of in (mu * np.ones_like(lam), lam + 0 * mu, lam * mu, lam * mu**2, log_lam + 0 * mu)]
    means.append(np.sum(p / lam))
    return log_z + np.log((mu[1] - mu[0]) * (log_lam[1, 0] - log_lam[0, 0])), means


@pytest.mark.parametrize("far", [0.0, 4.0, 14.0], ids=["agrees", "contradicts", "far"])
@pytest.mark.parametrize("n", [2, 30])
def test_evidence_and_expectations_are_integrals_over_mean_and_precision(n, far):
    rng = np.random.default_rng(n)
    x, weights = far + rng.normal(size=n), rng.random(n)
    model = SemiConjugateGaussian(nu=3.0, B=0.7, m=0.5, V=0.8, center=1.0, grain=0.0, null=np.zeros((2, 0, 1)))
    batch = Batch(x[:, None])
    model = model.with_prior(survey_of(batch))
    summary = Model(bnp.DPMixture(), model).summarize(np.arange(1), batch, weights[:, None])
    log_z, (mean, lam, lam_mu, lam_mu_mu, log_lam, variance) = on_a_grid(model, x, weights)
    assert_allclose(model.evidence(summary), log_z, rtol=1e-9)
    params = model.global_step(summary)
    assert_allclose(params.mean, mean, rtol=1e-8)
    assert_allclose(params.covariance, variance, rtol=1e-4)  # its law has a long tail, which the grid cuts off
    at = np.array([-3.0, 0.2, 9.0])
    expected = 0.5 * (log_lam - np.log(2 * np.pi)) - 0.5 * (lam * at**2 - 2 * lam_mu * at + lam_mu_mu)
    assert_allclose(model.expected_log_lik(params, Batch(at[:, None]))[:, 0], expected, rtol=1e-8)
    few = [on_a_grid(model, np.append(x, v), np.append(weights, 1.0))[0] - log_z for v in (0.2, 9.0)]
    assert_allclose(model.log_predictive(params, Batch(np.array([[0.2], [9.0]])))[:, 0], few, rtol=1e-7)


def log_integral_over_means(a, n, inverse, f):
    """Log of E[(1 + n (f - z)^2 / inverse)^-a] over a standard normal z, by a grid that is dense at the data."""
    width = np.sqrt(inverse / (n * a))
    z = np.unique(np.concatenate([np.linspace(-14, f + 14, 60_001), f + width * np.linspace(-60, 60, 60_001)]))
    log_p = -0.5 * z**2 - 0.5 * np.log(2 * np.pi) - a * np.log1p(n * (f - z) ** 2 / inverse)
    top = log_p.max()
    return top + np.log(np.trapezoid(np.exp(log_p - top), z))


@pytest.mark.parametrize("shift", [-1.0, -0.02, 0.0, 0.02, 1.0])
def test_integrals_with_two_modes_have_the_mass_of_both(shift):
    a, n, inverse = 1000.0, 2000.0, 750.0
    f = 149.5
    for _ in range(50):  # where both modes are as high
        f = np.sqrt(2.0 * a * np.log1p(n * f**2 / inverse))
    f += shift
    out, zero = np.empty(1), np.zeros((1, 1))
    semi_conjugate.log_integrals(a, n, np.array([inverse]), np.array([f]), zero, 0.0, 0.0, out)
    assert_allclose(out[0], log_integral_over_means(a, n, inverse, f), rtol=1e-9)
    modes = [semi_conjugate.joint_modes(a, n, np.array([inverse]), np.array([[f + s]]))[0] for s in (-2.0, 2.0)]
    assert modes[0] > 100.0 * modes[1]  # at the data's mean, and then at the prior's


def test_integrals_of_huge_counts_and_distant_atoms_are_finite_and_right():
    n = np.array([1e-9, 0.3, 1e3, 1e7])
    for count in n:
        a = 0.5 * (3.0 + count)
        for f in (0.0, 3.0, 1e3):
            inverse, out = np.array([0.2 + count * 0.1]), np.empty(1)
            semi_conjugate.log_integrals(a, count, inverse, np.array([f]), np.zeros((1, 1)), 0.0, 0.0, out)
            if f < 1e3:
                assert_allclose(out[0], log_integral_over_means(a, count, inverse[0], f), rtol=1e-7, atol=1e-9)
            assert np.isfinite(out[0])


def test_integrals_of_two_columns_are_sums_over_a_grid_of_means():
    rng = np.random.default_rng(3)
    V, A = np.array([[2.0, 0.7], [0.7, 1.0]]), np.array([[3.0, -1.0], [-1.0, 0.9]])
    x = rng.normal(size=(6, 2)) + 1.5
    model = SemiConjugateGaussian(nu=4.0, B=A, m=[0.5, 0.0], V=V).with_prior(survey_of(Batch(x)))
    summary = Model(bnp.DPMixture(), model).summarize(np.arange(1), Batch(x), np.ones((6, 1)))
    axis = np.linspace(-14, 14, 401)
    mu = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    away = x[:, None] - mu
    scale = A + np.einsum("nmi,nmj->mij", away, away)
    log_p = stats.multivariate_normal([0.5, 0.0], V).logpdf(mu) - 0.5 * 10.0 * np.linalg.slogdet(scale)[1]
    normalizer = [
        bnp.observation.wishart.log_normalizer(nu, log_det, 2)
        for nu, log_det in ((10.0, 0.0), (4.0, np.linalg.slogdet(A)[1]))
    ]
    expected = logsumexp(log_p) + 2 * np.log(axis[1] - axis[0]) + normalizer[0] - normalizer[1] - 6 * np.log(2 * np.pi)
    assert_allclose(model.evidence(summary)[0], expected, rtol=1e-9)


def test_nodes_are_equidistant_and_hold_the_mass_of_the_integral():
    a, n, inverse, f = 4.0, 5.0, np.array([2.0, 0.4]), np.array([1.0, -3.0])
    out, (nodes, heights) = np.empty(1), semi_conjugate.nodes_of(a, n, inverse, f, 1.0)
    semi_conjugate.log_integrals(a, n, inverse, f, np.zeros((1, 2)), 0.0, 0.0, out)
    step = np.diff(np.sort(nodes))
    assert_allclose(step, step[0])
    assert_allclose(logsumexp(heights) + np.log(step[0]) - gammaln(a), out[0], rtol=1e-12)
    v = 2.0 * n * np.exp(nodes[:, None])
    expected = a * nodes - np.exp(nodes)
    expected = expected - 0.5 * np.sum(np.log1p(v / inverse) + v * f**2 / (inverse + v), axis=1)
    assert_allclose(heights, expected, rtol=1e-12, atol=1e-12)


def test_draws_have_the_law_of_the_integrand():
    """Quantiles of w at which draws are interpolated, against a grid sixteen times finer."""
    for a, n, f in ((2.0, 1.0, 3.0), (60.0, 110.0, 5.0)):
        inverse, away = np.array([1.5, 0.2]), np.array([f, 0.5])
        uniform = (np.arange(20_000) + 0.5) / 20_000
        found = []
        for share in (1 / 8, 1 / 128):
            _, t, mass = SemiConjugateGaussian._nodes(a, n, inverse, away, share)
            found.append(np.interp(uniform, np.cumsum(mass) - 0.5 * mass, t))
            spread = np.sqrt(mass @ t**2 - (mass @ t) ** 2)
        assert np.abs(found[0] - found[1]).mean() < 1e-3 * spread


def test_single_atoms_are_clusters_of_one_atom():
    rng = np.random.default_rng(2)
    batch = Batch(np.concatenate([rng.normal(size=(20, 2)), [[40.0, -30.0]]]))
    for observation in (SemiConjugateGaussian(), SemiConjugateGaussian(m=5.0, V=0.3, grain=0.5)):
        model = Model(bnp.DPMixture(), observation).with_prior(survey_of(batch))
        assert_allclose(best_joint(model, batch).value, best_joint_by_clusters(model, batch).value, rtol=1e-9)
        plain = replace(batch)
        found = distances_between(model, batch)(np.array([0, 20]))
        centres = model.observation.at_mode(
            model.observation.global_step(model.summarize(np.arange(21), plain, np.eye(21)))
        )
        joint = model.observation.expected_log_lik(centres, plain) + model.observation.log_prior(centres)
        expected = np.diag(joint)[:, None] - joint[:, [0, 20]]
        assert_allclose(found, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.long
def test_numbers_in_fixed_order_are_those_of_lapack():
    batch = Batch(np.random.default_rng(1).normal(size=(30, 3)))
    model = Model(bnp.DPMixture(), SemiConjugateGaussian()).with_prior(survey_of(batch))
    summary = model.summarize(np.arange(2), batch, np.tile([0.3, 0.7], (30, 1)))
    usual = model.observation.global_step(summary)
    with fixed_order(True):
        fixed = model.observation.global_step(summary)
    assert_allclose(fixed.divergence, usual.divergence, rtol=1e-10)
    assert_allclose(fixed.expected.theta, usual.expected.theta, rtol=1e-9, atol=1e-12)


# -- mixtures ------------------------------------------------------------------------------------------------------
def test_the_objective_is_below_the_evidence_of_all_partitions():
    x = np.array([[0.0], [0.4], [3.0], [3.3], [9.0]])
    model = Model(bnp.DPMixture(1.0), SemiConjugateGaussian(nu=3.0, B=0.5, m=3.0, V=10.0)).with_prior(
        survey_of(Batch(x))
    )
    oracle = Oracle(model, Batch(x))
    evidence = logsumexp([oracle.log_joint(partition) for partition in partitions(5)])
    for start in (1, 3):
        result = bnp.train(model, x, init=bnp.BregmanKMeans(start), schedule=bnp.FullBatch(laps=30), moves=(), rng=0)
        elbo = [row["elbo"] for row in result.history]
        assert np.diff(elbo).min() >= -1e-10
        assert elbo[-1] < evidence
        best = max(oracle.log_joint(partition) for partition in partitions(5))
    assert elbo[-1] > best - 5.0


def blobs(n=600):
    rng = np.random.default_rng(0)
    truth = rng.integers(4, size=n)
    x = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 9.0], [30.0, 30.0]])[truth] + rng.normal(size=(n, 2))
    return x, truth


@pytest.mark.long
def test_clusters_are_born_and_united_and_the_objective_never_falls(tmp_path):
    x, truth = blobs()
    model = Model(bnp.DPMixture(), SemiConjugateGaussian())
    whole = bnp.train(model, x, batch_size=150, schedule=bnp.Memoized(laps=12), rng=0, store=tmp_path / "run")
    exact = np.array([row["elbo"] for row in whole.history if row["exact"]])
    assert np.diff(exact).min() >= -1e-10 * abs(exact[-1])
    labels = bnp.predict(whole.posterior, x)
    assert whole.posterior.n_clusters == 4
    assert all(len(np.unique(labels[truth == k])) == 1 for k in range(4))
    whole.posterior.save(tmp_path / "posterior")
    again = bnp.load(tmp_path / "posterior")
    assert bnp.score(again, x) == bnp.score(whole.posterior, x)


def test_what_is_not_given_is_refused_by_name():
    with pytest.raises(SettingError, match="V is not positive definite"):
        SemiConjugateGaussian(V=np.array([[1.0, 2.0], [2.0, 1.0]])).with_prior(survey_of(Batch(blobs(20)[0])))
    x = blobs(20)[0]
    x[3, 1] = np.nan
    with pytest.raises(DataError, match="nan"):
        bnp.train(Model(bnp.DPMixture(), SemiConjugateGaussian()), x)


# -- priors at the borders of double precision ----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"V": 5e-324}, "V of column 0 is 4.94e-324"),
        ({"V": 1e-145}, "V of column 0 is 1e-145"),
        ({"V": 1e200}, r"V of column 0 is 1e\+200"),
        ({"V": 1e300}, r"V of column 0 is 1e\+300"),
        ({"m": 1e14}, r"m of column 0 is 1e\+14, and its values lie between"),
        ({"m": [0.0, -1e100]}, r"m of column 1 is -1e\+100.*Leave m out"),
    ],
)
def test_priors_beyond_double_precision_are_refused_by_name(settings, message):
    with pytest.raises(SettingError, match=message):
        SemiConjugateGaussian(**settings).with_prior(survey_of(Batch(blobs(20)[0])))


@pytest.mark.parametrize("settings", [{"V": 1e-135}, {"V": 1e139}, {"m": 1e5}, {"m": -1e6, "V": 1e4}])
def test_priors_just_within_have_all_numbers(settings):
    batch = Batch(blobs(20)[0])
    model = Model(bnp.DPMixture(1.0), SemiConjugateGaussian(**settings)).with_prior(survey_of(batch))
    n, observation = batch.n_atoms, model.observation
    for total in (model.empty_summary(np.arange(3)), model.summarize(np.arange(n), batch, np.eye(n))):
        params = observation.global_step(total)
        drawn = observation.at_draw(params, np.random.default_rng(0))
        for found in (params, drawn, observation.at_mode(params)):
            assert np.isfinite(observation.expected_log_lik(found, batch)).all()
        assert np.isfinite(observation.kl(params)).all() and np.isfinite(model.best_data_terms(total)).all()
