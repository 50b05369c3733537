"""Priors that fit themselves: no better settings exist, and what they are raises the objective."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.stats import gamma

from bnp_dask import Memoized, train
from bnp_dask.allocation import HDPHMM, DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import SettingError
from bnp_dask.kernels.gaussian import learned as rules
from bnp_dask.model import Model
from bnp_dask.moves.prior import better_prior
from bnp_dask.observation import (
    AutoRegressiveGaussian,
    DiagGaussian,
    Gaussian,
    Poisson,
    SemiConjugateGaussian,
    ZeroMeanGaussian,
    wishart,
)
from bnp_dask.structure.prior import prior_terms, scale_shape
from bnp_dask.training.train import ConvergenceWarning
from tests.pairwise import in_pairs

D, K = 3, 12


def drawn(seed=0, spread=4.0):
    """Atoms of K clusters of unlike sizes, and about as wide as one another."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(K, size=600, p=rng.dirichlet(np.full(K, 2.0)))
    roots = (np.eye(D) + 0.3 * rng.normal(size=(K, D, D))) * np.array([0.2, 1.0, 3.0])[:, None]
    x = spread * rng.normal(size=(K, D))[labels] + np.einsum("nij,nj->ni", roots[labels], rng.normal(size=(600, D)))
    return x, np.eye(K)[labels]


def fitted(observation, seed=0, shape="diagonal", spread=4.0, times=1.0, shift=0.0):
    """A model to learn, and statistics of the clusters."""
    x, resp = drawn(seed, spread)
    batch = Batch(x * times + shift)
    model = Model(DPMixture(), observation, learn_prior=shape).with_prior(survey_batch(batch))
    return model, model.summarize(np.arange(K), batch, resp)


def objective(model, params, summary):
    """The part of the objective that depends on the prior's settings, at parameters that stay."""
    return model.data_terms(params, summary).sum() + prior_terms(model)["prior"]


def better(model, params, used=slice(None)):
    mask = np.zeros(K, np.bool_)
    mask[used] = True
    observation = model.observation.learned(params, mask, model.reference, scale_shape(model))
    return replace(model, observation=observation)


def with_settings(model, z, shape):
    """Settings from unconstrained numbers: log (nu - D), log diagonal or Cholesky factor of B / nu, m, log kappa."""
    nu = D + np.exp(z[0])
    if shape == "diagonal":
        scale, rest = np.diag(np.exp(z[1 : D + 1])), z[D + 1 :]
    else:
        root = np.zeros((D, D))
        root[np.tril_indices(D)] = z[1 : 1 + D * (D + 1) // 2]
        scale, rest = root @ root.T, z[1 + D * (D + 1) // 2 :]
    more = {"m": model.observation.center + rest[:D], "kappa": np.exp(rest[D])} if len(rest) else {}
    return replace(model, observation=replace(model.observation, nu=nu, B=nu * scale, **more))


@pytest.mark.parametrize("shape", ["diagonal", "full"])
@pytest.mark.parametrize("observation", [Gaussian(), ZeroMeanGaussian()])
def test_an_optimizer_finds_no_better_settings(observation, shape):
    model, summary = fitted(observation, shape=shape, spread=4.0 if isinstance(observation, Gaussian) else 0.0)
    params = model.observation_step(summary)
    found = better(model, params)
    for _ in range(20):  # m, kappa and the scale are each best given the others
        found = better(found, params)

    def loss(z):
        return -objective(with_settings(model, z, shape), params, summary)

    own = found.observation
    psi = own.B / own.nu
    scale = np.log(psi.diagonal()) if shape == "diagonal" else np.linalg.cholesky(psi)[np.tril_indices(D)]
    more = [*(own.m - own.center), np.log(own.kappa)] if isinstance(own, Gaussian) else []
    ours = np.array([np.log(own.nu - D), *scale, *more])
    start = ours + 0.3 * np.random.default_rng(1).normal(size=len(ours))
    theirs = minimize(loss, start, method="BFGS", options={"gtol": 1e-6, "maxiter": 2000})
    assert_allclose(-objective(found, params, summary), theirs.fun, rtol=1e-7)
    assert -objective(found, params, summary) <= theirs.fun + 1e-6


def test_an_optimizer_finds_no_better_settings_of_independent_features():
    model, summary = fitted(DiagGaussian())
    params = model.observation_step(summary)
    found = better(model, params)
    for _ in range(20):
        found = better(found, params)

    def loss(z):
        log_nu, log_scale, m, log_kappa = z.reshape(4, D)
        nu = np.exp(log_nu)
        settings = {"nu": nu, "beta": nu * np.exp(log_scale), "m": model.observation.center + m}
        other = replace(model.observation, kappa=np.exp(log_kappa), **settings)
        return -objective(replace(model, observation=other), params, summary)

    own = found.observation
    ours = np.concatenate([np.log(own.nu), np.log(own.beta / own.nu), own.m - own.center, np.log(own.kappa)])
    start = ours + 0.3 * np.random.default_rng(1).normal(size=len(ours))
    theirs = minimize(loss, start, method="BFGS", options={"gtol": 1e-6, "maxiter": 2000})
    assert_allclose(loss(ours), theirs.fun, rtol=1e-7)
    assert loss(ours) <= theirs.fun + 1e-6


@pytest.mark.parametrize("shape", ["diagonal", "full"])
def test_an_optimizer_finds_no_better_prior_of_means_apart_from_covariances(shape):
    model, summary = fitted(SemiConjugateGaussian(nu=9.0), shape=shape)
    params = model.observation_step(summary)
    n_root = D if shape == "diagonal" else D * (D + 1) // 2
    # means over draws of the posterior, without the rule's own expectations
    rng = np.random.default_rng(3)
    draws = [model.observation.at_draw(params, rng) for _ in range(400)]
    mu = np.array([each.mean for each in draws])
    lam = np.linalg.inv(np.array([each.covariance for each in draws]))
    log_det, total = np.linalg.slogdet(lam)[1].mean(axis=0).sum(), lam.mean(axis=0).sum(axis=0)

    def parts(z):
        scales, m = z[1 : 2 * n_root + 1].reshape(2, n_root), z[2 * n_root + 1 :]
        if shape == "diagonal":
            psi, V = (np.diag(np.exp(each)) for each in scales)
        else:
            psi, V = (square(each) for each in scales)
        return D + np.exp(z[0]), psi, V, model.observation.center + m

    def loss(z):
        nu, psi, V, m = parts(z)
        wish = 0.5 * nu * (log_det - np.sum(psi * total)) - K * wishart.prior_normalizer(nu, nu * psi)
        away = mu - m
        normal = -0.5 * np.einsum("ski,ij,skj->", away, np.linalg.inv(V), away) / len(mu)
        normal -= 0.5 * K * np.linalg.slogdet(V)[1]
        own = replace(model.observation, nu=nu, B=nu * psi, V=V, m=m)
        return -(wish + normal + own.log_hyperprior(model.reference))

    found = better(model, params)
    for _ in range(20):
        found = better(found, params)
    own = found.observation
    scales = [np.log(each.diagonal()) if shape == "diagonal" else triangle(each) for each in (own.B / own.nu, own.V)]
    ours = np.array([np.log(own.nu - D), *np.concatenate(scales), *(own.m - own.center)])
    theirs = minimize(loss, ours, method="BFGS", options={"gtol": 1e-5, "maxiter": 2000})
    assert loss(ours) - theirs.fun < 1.0  # of draws


def regressions(shape, seed=0):
    """A model of K regressions of unlike noise to learn, and statistics of the clusters."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(K, size=600, p=rng.dirichlet(np.full(K, 2.0)))
    before = rng.normal(size=(600, D)) * [1.0, 0.3, 20.0]
    ways = np.eye(D) + np.array([0.3, 1.0, 0.02]) * rng.normal(size=(K, D, D))
    noise = np.exp(0.3 * rng.normal(size=(K, 1)))[labels] * rng.normal(size=(600, D)) * [0.1, 1.0, 0.5]
    batch = Batch(np.hstack([np.einsum("nij,nj->ni", ways[labels], before) + noise, before]))
    model = Model(DPMixture(), AutoRegressiveGaussian(), learn_prior=shape).with_prior(survey_batch(batch))
    return model, model.summarize(np.arange(K), batch, np.eye(K)[labels])


def triangle(matrix):
    """Entries of the Cholesky factor, from which an optimizer may go anywhere."""
    return np.linalg.cholesky(matrix)[np.tril_indices(D)]


def square(entries):
    root = np.zeros((D, D))
    root[np.tril_indices(D)] = entries
    return root @ root.T


@pytest.mark.parametrize("shape", ["diagonal", "full"])
def test_an_optimizer_finds_no_better_settings_of_regressions(shape):
    model, summary = regressions(shape)
    params = model.observation_step(summary)
    found = better(model, params)
    size = np.sqrt(np.outer(*[model.observation.V.diagonal()] * 2))  # columns differ by 20 times

    def loss(z):
        scale, columns = np.split(z[1:], 2)
        to = square if shape == "full" else lambda logs: np.diag(np.exp(logs))
        nu = D + np.exp(z[0])
        other = replace(model.observation, nu=nu, B=nu * to(scale), V=size * to(columns))
        return -objective(replace(model, observation=other), params, summary)

    own, to = found.observation, triangle if shape == "full" else lambda matrix: np.log(matrix.diagonal())
    ours = np.concatenate([[np.log(own.nu - D)], to(own.B / own.nu), to(own.V / size)])
    theirs = minimize(loss, ours + 0.2 * np.random.default_rng(1).normal(size=len(ours)), options={"maxiter": 2000})
    assert_allclose(loss(ours), -objective(found, params, summary), rtol=1e-12)
    assert_allclose(loss(ours), theirs.fun, rtol=1e-7)
    assert loss(ours) <= theirs.fun + 1e-6
    assert_array_equal(own.M, model.observation.M)


@pytest.mark.parametrize("shape", ["diagonal", "full"])
def test_learned_priors_of_regressions_raise_the_objective_with_clusters_refitted(shape):
    model, summary = regressions(shape, seed=1)
    trace = []
    for _ in range(8):
        params = model.observation_step(summary)
        trace.append(objective(model, params, summary))
        model = better(model, params)
    assert np.diff(trace).min() >= -1e-12 * abs(trace[-1])
    assert trace[1] > trace[0] + 1.0


@pytest.mark.parametrize(
    ("allocation", "settings", "learns"),
    [(DPMixture(), {}, True), (DPMixture(), {"M": 0.5}, True), (DPMixture(), {"V": 1.0}, False), (HDPHMM(), {}, False)],
)
def test_regressions_learn_their_prior_by_default_in_mixtures_where_it_is_left_open(allocation, settings, learns):
    rows = Batch(np.random.default_rng(0).normal(size=(60, 2 * D)))
    model = Model(allocation, AutoRegressiveGaussian(**settings)).with_prior(survey_batch(rows), may_learn=True)
    assert (model.reference is not None) == learns


def test_a_feature_in_which_all_clusters_are_alike_costs_little():
    x, resp = drawn()
    x[:, 2] = np.random.default_rng(5).normal(size=len(x))
    batch = Batch(x)
    model = Model(DPMixture(), DiagGaussian(), learn_prior="diagonal").with_prior(survey_batch(batch))
    summary = model.summarize(np.arange(K), batch, resp)
    found = better(model, model.observation_step(summary))
    for _ in range(10):
        found = better(found, found.observation_step(summary))
    kappa, nu = found.observation.kappa, found.observation.nu
    assert kappa[2] > 20 * kappa[:2].max() and nu[2] > 5.0


@pytest.mark.parametrize(
    *in_pairs(
        seed=range(3),
        observation=[
            Gaussian(),
            ZeroMeanGaussian(),
            Gaussian(nu=9.0, B=np.eye(3) + 0.3),
            DiagGaussian(),
            SemiConjugateGaussian(),
        ],
        shape=["diagonal", "full"],
    )
)
def test_updates_raise_the_objective_with_clusters_refitted(observation, shape, seed):
    model, summary = fitted(observation, seed, shape)
    trace = []
    for _ in range(8):
        params = model.observation_step(summary)
        trace.append(objective(model, params, summary))
        model = better(model, params)
    assert np.diff(trace).min() >= -1e-12 * abs(trace[-1])
    assert trace[1] > trace[0] + 1.0


def test_units_and_offsets_of_the_data_make_no_difference():
    model, summary = fitted(Gaussian())
    found = better(model, model.observation_step(summary)).observation
    times, shift = np.array([1e-3, 7.0, 1e4]), np.array([5.0, -1e6, 3e7])
    other, summary = fitted(Gaussian(), times=times, shift=shift)
    there = better(other, other.observation_step(summary)).observation
    assert_allclose(there.nu, found.nu, rtol=1e-6)
    assert_allclose(there.kappa, found.kappa, rtol=1e-6)
    assert_allclose(there.B.diagonal(), found.B.diagonal() * times**2, rtol=1e-6)
    assert_allclose(there.m, found.m * times + shift, rtol=1e-6)


def settings_along(times):
    """Settings whose logarithms are ``end + times ** t way``, and their end."""
    end = np.array([0.3, -1.0, 2.0, 4.0, -0.7])
    way = np.array([1.0, -2.0, 0.5, 0.3, 1.5])

    def at(place):
        nu = 2.0 + np.exp(place[3])
        return rules.Settings(nu, nu * np.diag(np.exp(place[:3])), np.exp(place[4]))

    return [at(end + times**t * way) for t in range(3)], at(end)


def test_updates_that_shrink_by_one_factor_are_extrapolated_to_their_end():
    trail, end = settings_along(0.97)
    found = rules.extrapolated(trail)
    assert_allclose([found.nu, found.kappa], [end.nu, end.kappa], rtol=1e-9)
    assert_allclose(found.scale, end.scale, rtol=1e-9)


def test_updates_that_turn_round_are_not_extrapolated():
    assert rules.extrapolated(settings_along(-1.5)[0]) is None


def test_extrapolated_degrees_of_freedom_keep_their_limits():
    trail, _ = settings_along(0.97)
    steep = [replace(each, nu=2.0 + (each.nu - 2.0) * 1.5**t, scale=each.scale) for t, each in enumerate(trail)]
    assert rules.extrapolated(steep).nu == max(steep[-1].nu, rules.FEW_NU * D + 2.0)


def few_atoms():
    """Three clusters of 12 atoms in 20 dimensions."""
    rng = np.random.default_rng(4)
    labels = np.repeat(np.arange(3), 12)
    batch = Batch(1.5 * rng.normal(size=(3, 20))[labels] + rng.normal(size=(36, 20)))
    model = Model(DPMixture(), Gaussian(), learn_prior="diagonal").with_prior(survey_batch(batch))
    return model, model.summarize(np.arange(3), batch, np.eye(3)[labels])


def test_with_few_atoms_one_lap_learns_what_many_updates_do():
    model, summary = few_atoms()

    def worth(model):
        return objective(model, model.observation_step(summary), summary)

    plain = model
    for _ in range(400):
        observation = plain.observation
        params = plain.observation_step(summary)
        used = np.ones(3, np.bool_)
        plain = replace(plain, observation=observation.learned(params, used, plain.reference, scale_shape(plain)))
    lap = better_prior(model, summary)
    assert worth(model) + 50.0 < worth(lap)
    assert_allclose(worth(lap), worth(plain), rtol=1e-5)


def test_with_few_atoms_the_prior_mean_is_not_learned():
    model, summary = few_atoms()
    assert_array_equal(better_prior(model, summary).observation.m, model.observation.m)
    many = replace(summary, values={name: 10.0 * value for name, value in summary.values.items()})
    assert np.abs(better_prior(model, many).observation.m - model.observation.m).max() > 1e-3


@pytest.mark.parametrize("observation", [Gaussian(), ZeroMeanGaussian()])
def test_priors_of_many_atoms_are_not_extrapolated(observation):
    x, _ = drawn()
    model = Model(DPMixture(), observation, learn_prior="diagonal").with_prior(survey_batch(Batch(x)))
    first = model.observation
    second = replace(first, B=1.5 * first.B)
    third = replace(first, B=2.2 * first.B)
    assert third.extrapolated(first, second, 10.0 * D) is None
    assert third.extrapolated(first, second, 9.0 * D).B[0, 0] > third.B[0, 0]


def test_few_clusters_get_no_strong_prior():
    model, summary = fitted(Gaussian(), spread=0.0)
    params = model.observation_step(summary)
    few = better(model, params, slice(0, 1)).observation
    assert few.nu <= rules.FEW_NU * D + 2.0


def test_few_regressions_get_a_stronger_prior_once_they_are_calm():
    model, summary = regressions("diagonal")
    summary = summary.take(summary.ids[np.argsort(-summary["N"])[:4]].tolist())
    params, used = model.observation_step(summary), np.ones(4, np.bool_)
    one = model.observation
    held, calm = (learn(params, used, one, "diagonal") for learn in (one.learned, one.learned_when_calm))
    assert held.nu == rules.FEW_NU * D + 2.0 < calm.nu
    worth = [objective(replace(model, observation=each), params, summary) for each in (one, held, calm)]
    assert worth == sorted(worth)


@pytest.mark.parametrize(("n_clusters", "most"), [(rules.FEW - 1, rules.FEW_NU * D + 2), (1000, rules.MOST_NU * D + 2)])
def test_degrees_of_freedom_of_clusters_that_are_alike_end_at_their_limit(n_clusters, most):
    found = rules.Precisions(n_clusters, n_clusters * np.eye(D), 0.0)
    assert rules.wishart_settings(found, 3.0, np.eye(D), False)[0] == most
    assert rules.most_nu(most + 5.0, n_clusters, D) == most + 5.0


def test_ten_clusters_are_no_longer_few():
    assert rules.most_nu(3.0, rules.FEW, D) == rules.MOST_NU * D + 2.0
    assert rules.most_nu(3.0, 2, D, calm=True) == rules.MOST_NU * D + 2.0


def test_equal_rows_do_not_take_the_scale_to_nothing():
    x = np.repeat(np.random.default_rng(0).normal(size=(K, D)), 50, axis=0)
    batch = Batch(x)
    model = Model(DPMixture(), Gaussian(), learn_prior="diagonal").with_prior(survey_batch(batch))
    summary = model.summarize(np.arange(K), batch, np.repeat(np.eye(K), 50, axis=0))
    first = wishart.expected_scale(model.observation.nu, model.observation.B).diagonal()
    for _ in range(40):
        model = better(model, model.observation_step(summary))
    scale = model.observation.B.diagonal() / model.observation.nu
    assert (scale >= 0.99 * rules.LEAST_SCALE * first).all()


@pytest.mark.parametrize("observation", [Poisson()])
def test_a_likelihood_without_a_rule_says_so(observation):
    with pytest.raises(SettingError, match="cannot be learned"):
        Model(DPMixture(), observation, learn_prior="diagonal")


def test_point_estimates_learn_no_prior():
    with pytest.raises(SettingError, match="point estimates"):
        Model(DPMixture(), Gaussian(), estimate="map", learn_prior="full")


def test_settings_by_feature_are_those_of_features_alone():
    x, resp = drawn()
    nu, kappa = np.array([3.0, 5.5, 40.0]), np.array([0.1, 2.0, 60.0])

    def terms(columns, nu, kappa):
        batch = Batch(x[:, columns])
        model = Model(DPMixture(), DiagGaussian(nu=nu, kappa=kappa)).with_prior(survey_batch(batch))
        summary = model.summarize(np.arange(K), batch, resp)
        params = model.observation_step(summary)
        assert (model.observation.sequential_predictive(params, batch) is None) == (np.ndim(nu) > 0)
        parts = model.observation.score(params, summary), model.observation.kl(params)
        return np.array([*parts, model.observation.log_predictive(params, batch).sum(axis=0)])

    alone = sum(terms([j], nu[j], kappa[j]) for j in range(D))
    assert_allclose(terms([0, 1, 2], nu, kappa), alone, rtol=1e-9)


@pytest.mark.parametrize("n", [8, 400])
def test_the_place_of_the_data_moves_a_learned_mean_and_nothing_else(n):
    x = np.random.default_rng(0).normal(size=(n, 3)) * [1.0, 2.0, 3.0] + np.repeat([[0.0], [6.0]], n // 2, axis=0)
    found = []
    for shift in (0.0, 100.0):
        model = Model(
            DPMixture(), learn_prior="diagonal", observation=DiagGaussian(center=90.0 if shift else 0.0, m=1.0 + shift)
        )
        model = model.with_prior(survey_batch(Batch(x + shift)))
        posterior = model.global_step(
            model.summarize(np.arange(2), Batch(x + shift), np.eye(2)[np.repeat([0, 1], n // 2)])
        )
        own = model.observation
        found.append(own.learned(posterior.observation, np.ones(2, bool), model.reference, scale_shape(model)))
    assert_allclose(found[1].m, found[0].m + 100.0, rtol=1e-9)
    for name in ("nu", "beta", "kappa"):
        assert_allclose(getattr(found[1], name), getattr(found[0], name), rtol=1e-7)


def test_expected_variances_are_those_of_the_inverse_of_a_gamma_number():
    model = DiagGaussian(nu=6.0, beta=8.0).with_prior(survey_batch(Batch(np.random.default_rng(0).normal(size=(9, 2)))))
    own = Model(DPMixture(), model)
    params = model.global_step(own.empty_summary(np.arange(1)))
    assert_allclose(model.estimates(params, None)["variance"].compute(), [[2.0, 2.0]])


# -- a scale matrix that is random ------------------------------------------------------------------------------------
def some_doubt(d, m=9.5, b=6.5):
    return rules.Doubt(known=m, prior_known=b, spread=np.linspace(0.5, 2.0, d))


def test_divergence_and_charge_of_one_feature_are_those_of_the_definition():
    """Psi^-1 is a Gamma variate, and integrals over it are sums over a fine grid."""
    doubt, nu, mean = some_doubt(1), 4.0, 0.7
    m, b, s = doubt.known, doubt.prior_known, doubt.spread[0]
    q, p = gamma(m / 2, scale=2.0 / ((m - 2.0) * mean)), gamma(b / 2, scale=2.0 / (b * s))
    grid = np.linspace(1e-6, 60.0, 2_000_001)
    weight = q.pdf(grid) * (grid[1] - grid[0])
    assert_allclose((weight / grid).sum(), mean, rtol=1e-6)
    assert_allclose(
        rules.divergence(nu, np.array([[nu * mean]]), doubt), (weight * (q.logpdf(grid) - p.logpdf(grid))).sum(), 1e-5
    )
    assert_allclose(rules.charge(nu, doubt), 0.5 * nu * (np.log(mean) + (weight * np.log(grid)).sum()), rtol=1e-5)


def test_divergence_and_charge_of_several_features_are_those_of_wishart_distributions():
    doubt, nu, d = some_doubt(3), 6.0, 3
    root = np.array([[1.0, 0.0, 0.0], [0.4, 0.8, 0.0], [-0.3, 0.2, 1.1]])
    mean = root @ root.T
    inner_scale = (doubt.known - d - 1.0) * mean
    precision = doubt.known * np.linalg.inv(inner_scale)
    log_det, m = np.linalg.slogdet(inner_scale)[1], np.array([doubt.known])
    quadratic = wishart.coefficients(precision[None], np.zeros((1, d)))[:, d + 1 :]
    expected = wishart.wishart_kl(
        m, np.array([log_det]), doubt.prior_known, doubt.prior_known * np.diag(doubt.spread), quadratic
    )
    assert_allclose(rules.divergence(nu, nu * mean, doubt), expected[0], rtol=1e-10)
    log_psi = -wishart.expected_log_det(m, np.array([log_det]), d)[0]
    assert_allclose(rules.charge(nu, doubt), 0.5 * nu * (np.linalg.slogdet(mean)[1] - log_psi), rtol=1e-10)


def tied(seed=0, k=8):
    """Atoms of clusters with one covariance of strong correlations."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=400)
    root = np.outer(np.ones(4), [1.0, 0, 0, 0]) + 0.15 * np.eye(4)
    return 3.0 * rng.normal(size=(k, 4))[labels] + rng.normal(size=(400, 4)) @ root.T, labels


def random_model(k=8):
    x, labels = tied(k=k)
    batch = Batch(x)
    model = Model(DPMixture(), Gaussian(), learn_prior="random").with_prior(survey_batch(batch))
    return model, model.summarize(np.arange(k), batch, np.eye(k)[labels])


def test_learning_raises_the_terms_of_the_prior_and_no_nearby_distribution_is_better():
    model, summary = random_model()
    params = model.observation_step(summary)
    used, start = np.ones(8, np.bool_), model.reference
    found, point = (
        replace(model, observation=model.observation.learned(params, used, start, shape))
        for shape in ("random", "diagonal")
    )
    for _ in range(5):  # a climb goes on where the last one ended
        found = replace(found, observation=found.observation.learned(params, used, start, "random"))
    best = objective(found, params, summary)
    assert found.observation.doubt is not None
    assert best > objective(point, params, summary) + 10.0
    own = found.observation
    for i in range(len(own.doubt)):
        for times in (0.98, 1.02):
            doubt = own.doubt.copy()
            doubt[i] *= times
            other = replace(found, observation=replace(own, doubt=doubt))
            assert objective(other, params, summary) < best + 1e-4
    for change in (
        0.98 * own.B,
        1.02 * own.B,
        own.B + 0.02 * np.diag(own.B.diagonal()),
        0.5 * (own.B + point.observation.B),
    ):
        other = replace(found, observation=replace(own, B=change))
        assert objective(other, params, summary) < best + 1e-4


def test_slopes_of_the_bound_are_differences_of_its_values():
    total = np.array([[3.0, 1.0], [1.0, 2.0]])
    bound = rules._BoundOfDoubt(rules.Precisions(3, total, -1.0), np.array([1.0, 2.0]), 2.0, 106.0)
    place = bound.place(5.0, 4.0, 12.0, np.array([0.6, 1.5]))
    slope = bound.value_and_slope(place)[1]
    for i in range(len(place)):
        step = 1e-5 * np.eye(len(place))[i]
        both = [bound.value_and_slope(place + sign * step)[0] for sign in (1.0, -1.0)]
        assert_allclose((both[0] - both[1]) / 2e-5, slope[i], rtol=1e-5, atol=1e-7)


def test_clusters_without_correlation_keep_a_point():
    found, start = rules.Precisions(2, np.diag([4.0, 2.0]), -3.0), np.eye(2)
    nu, scale, doubt = rules.random_settings(found, 4.0, None, start, calm=True)
    point = rules.wishart_settings(found, 4.0, start, is_full=False, calm=True)
    assert doubt is None
    assert nu == point[0]
    assert_array_equal(scale, point[1])


def test_a_distribution_that_is_known_well_is_the_point():
    """As b grows, the bound at its best m tends to that of the diagonal point with mean s."""
    total = np.array([[3.0, 1.0], [1.0, 2.0]])
    bound = rules._BoundOfDoubt(rules.Precisions(3, total, -1.0), np.ones(2), 2.0, 106.0)
    spread = np.array([0.6, 1.5])
    values = [bound.value_and_slope(bound.place(5.0, b, b + 15.0, spread))[0] for b in (200.0, 1000.0, 1999.0)]
    gaps = bound.of_point(5.0, 5.0 * np.diag(spread)) - np.array(values)
    assert (np.abs(gaps) < np.array([1.0, 0.2, 0.1])).all()


def test_clusters_are_judged_by_the_reported_bound():
    """The evidence of a cluster, in small runs too, is its term of the objective."""
    model, summary = random_model()
    model = better_prior(model, summary, opens=True)
    observation, params = model.observation, model.observation_step(summary)
    terms = model.data_terms(params, summary)
    assert observation.doubt is not None
    assert_allclose(observation.evidence(summary), terms, rtol=1e-9)
    assert_allclose(observation.small_run(1.0).evidence(summary.values), terms, rtol=1e-9)


def test_whole_runs_never_fall_and_go_on_from_a_checkpoint(tmp_path):
    x, _ = tied()
    model, store = Model(DPMixture(), Gaussian(), learn_prior="random"), str(tmp_path / "run")
    with pytest.warns(ConvergenceWarning):
        whole = train(model, x, rng=0, schedule=Memoized(laps=6))
    elbo = np.array(whole.history["elbo"][1:])
    assert np.diff(elbo).min() > -1e-9 * abs(elbo[-1])
    found = whole.posterior.model.observation.doubt
    assert found is not None
    with pytest.warns(ConvergenceWarning):
        train(model, x, rng=0, schedule=Memoized(laps=3), store=store)
    with pytest.warns(ConvergenceWarning):
        resumed = train(model, x, rng=0, schedule=Memoized(laps=6), store=store, resume=True)
    assert_array_equal(resumed.posterior.model.observation.doubt, found)
    assert resumed.history["elbo"][-1] == whole.history["elbo"][-1]


def test_reproducible_bits_and_random_scales_exclude_each_other():
    with pytest.raises(SettingError, match="eigenvalues"):
        Model(DPMixture(), Gaussian(), learn_prior="random", reproducible=True)
