"""Zero-mean Gaussian: oracles, the objective, units, weights, and singular data."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.special import multigammaln

from bnp_dask.allocation.dp_mixture import DPMixture
from bnp_dask.allocation.finite_mixture import FiniteMixture
from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError, NumericalError, SettingError
from bnp_dask.model import Model
from bnp_dask.observation.zero_mean_gaussian import ZeroMeanGaussian
from tests.golden.cases import survey_of


def textures(seed: int = 0, n: int = 400, d: int = 3, k: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((k, d, d)) * np.array([0.3, 1.0, 4.0])[:k, None, None]
    return np.einsum("nij,nj->ni", mixing[rng.integers(k, size=n)], rng.standard_normal((n, d)))


def random_resp(seed: int, n: int, k: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(k, 0.5), size=n)


def fitted(x: np.ndarray, k: int = 3, **settings):
    model = Model(DPMixture(2.0), ZeroMeanGaussian(**settings)).with_prior(survey_of(Batch(x)))
    summary = model.summarize(np.arange(k), Batch(x), random_resp(5, len(x), k))
    return model, Batch(x), summary, model.global_step(summary)


def run(model: Model, batch: Batch, k: int, n_steps: int):
    posterior = model.global_step(model.summarize(np.arange(k), batch, random_resp(1, batch.n_atoms, k)))
    values = []
    for _ in range(n_steps):
        summary = model.local_step(posterior, batch)
        posterior = model.global_step(summary)
        values.append(sum(model.elbo(posterior, summary).values()))
    return np.array(values), posterior


def test_default_prior_is_the_documented_one():
    x = textures() + 2.0
    prior = ZeroMeanGaussian().with_prior(survey_of(Batch(x)))
    assert prior.nu == 5.0
    np.testing.assert_allclose(prior.B, np.diag(0.1 * (x**2).mean(axis=0)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"nu": 1.5}, "above 2"), ({"B": 0.0}, "B"), ({"B": -np.eye(3)}, "not positive definite")],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        ZeroMeanGaussian(**settings).with_prior(survey_of(Batch(textures())))


def test_check_refuses_wrong_batches():
    model = ZeroMeanGaussian().with_prior(survey_of(Batch(textures())))
    model.check(Batch(textures(1)))
    with pytest.raises(DataError, match="2 features"):
        model.check(Batch(textures(d=2)))


def test_posterior_is_the_textbook_update():
    x = textures()
    _, _, _, posterior = fitted(x, nu=6.0, B=0.7)
    resp = random_resp(5, len(x), 3)
    for k in range(3):
        expected = 0.7 * np.eye(3) + (resp[:, k, None] * x).T @ x
        np.testing.assert_allclose(posterior.observation.B[k], expected, rtol=1e-12)
    np.testing.assert_allclose(posterior.observation.nu, 6.0 + resp.sum(axis=0), rtol=1e-13)


def test_expected_log_lik_and_kl_are_averages_over_q():
    x = textures(n=60)
    model, batch, _, posterior = fitted(x)
    prior, q, size = model.observation, posterior.observation, 40000
    lam = stats.wishart(q.nu[1], np.linalg.inv(q.B[1])).rvs(size, random_state=0)
    log_det = np.linalg.slogdet(lam)[1]
    actual = prior.expected_log_lik(q, batch.rows(0, 5))
    for n in range(5):
        log_lik = 0.5 * (log_det - np.einsum("i,sij,j->s", x[n], lam, x[n])) - 1.5 * np.log(2 * np.pi)
        assert actual[n, 1] == pytest.approx(log_lik.mean(), abs=6 * log_lik.std() / np.sqrt(size))

    def log_density(nu, scale):
        constant = 0.5 * nu * (np.linalg.slogdet(scale)[1] - 3 * np.log(2)) - multigammaln(nu / 2, 3)
        return constant + 0.5 * (nu - 4) * log_det - 0.5 * np.einsum("ij,sji->s", scale, lam)

    ratio = log_density(q.nu[1], q.B[1]) - log_density(prior.nu, prior.B)
    assert prior.kl(q)[1] == pytest.approx(ratio.mean(), abs=6 * ratio.std() / np.sqrt(size))
    empty = model.global_step(model.empty_summary(np.arange(2)))
    np.testing.assert_allclose(prior.kl(empty.observation), 0.0, atol=1e-11)


def test_point_estimate_is_the_normal_density():
    x = textures()
    model, batch, _, posterior = fitted(x)
    q = model.observation.at_mode(posterior.observation)
    actual = model.observation.expected_log_lik(q, batch)
    for k in range(3):
        expected = stats.multivariate_normal(np.zeros(3), q.B[k] / q.nu[k]).logpdf(x)
        np.testing.assert_allclose(actual[:, k], expected, rtol=1e-10, atol=1e-10)


def test_log_predictive_is_student_t():
    x = textures()
    model, batch, _, posterior = fitted(x)
    q = posterior.observation
    actual = model.observation.log_predictive(q, batch)
    for k in range(3):
        freedom = q.nu[k] - 2
        expected = stats.multivariate_t(np.zeros(3), q.B[k] / freedom, df=freedom).logpdf(x)
        np.testing.assert_allclose(actual[:, k], expected, rtol=1e-10, atol=1e-10)


def test_predictives_multiply_to_the_evidence():
    x = textures(n=12)
    model = Model(FiniteMixture(1.0), ZeroMeanGaussian()).with_prior(survey_of(Batch(x)))
    evidence = 0.0
    for n in range(len(x)):
        params = model.observation.global_step(model.summarize(np.arange(1), Batch(x[:n]), np.ones((n, 1))))
        evidence += model.observation.log_predictive(params, Batch(x[n : n + 1]))[0, 0]
    summary = model.local_step(model.global_step(model.empty_summary(np.arange(1))), Batch(x))
    terms = model.elbo(model.global_step(summary), summary)
    assert sum(terms.values()) == pytest.approx(evidence, rel=1e-11)


@pytest.mark.parametrize("mode", [False, True])
def test_score_is_the_sum_of_log_likelihoods(mode):
    x = textures()
    model, batch, summary, posterior = fitted(x)
    q = model.observation.at_mode(posterior.observation) if mode else posterior.observation
    expected = (random_resp(5, len(x), 3) * model.observation.expected_log_lik(q, batch)).sum(axis=0)
    np.testing.assert_allclose(model.observation.score(q, summary), expected, rtol=1e-11)


@pytest.mark.parametrize("top", [None, 1, 2])
@pytest.mark.parametrize("estimate", ["posterior", "map"])
def test_objective_never_falls(estimate, top):
    batch = Batch(textures(3, n=500))
    model = Model(DPMixture(1.5, top=top), ZeroMeanGaussian(), estimate=estimate).with_prior(survey_of(batch))
    values, _ = run(model, batch, 6, 25)
    assert np.isfinite(values).all()
    assert (np.diff(values) >= -1e-9 * np.abs(values[0])).all()
    assert values[-1] > values[0]


def test_integer_weights_equal_repeated_rows():
    x = textures(n=200)
    weights = np.random.default_rng(2).integers(0, 4, size=200)
    model, _, _, posterior = fitted(x)
    a = model.local_step(posterior, Batch(np.repeat(x, weights, axis=0)))
    b = model.local_step(posterior, Batch(x, weights.astype(float)))
    for name in a.values:
        np.testing.assert_allclose(b[name], a[name], rtol=1e-11, atol=1e-11 * np.abs(a[name]).max(), err_msg=name)


def test_units_do_not_matter():
    x, scale = textures(), np.array([1e3, 1e-3, 40.0])
    results = []
    for data in (x, x * scale):
        model = Model(DPMixture(2.0), ZeroMeanGaussian()).with_prior(survey_of(Batch(data)))
        values, posterior = run(model, Batch(data), 4, 8)
        results.append((model.assign(posterior, Batch(data)).resp, values[-1]))
    np.testing.assert_allclose(results[1][0], results[0][0], atol=1e-9)
    assert results[1][1] == pytest.approx(results[0][1] - len(x) * np.log(scale).sum(), rel=1e-10)


def test_patches_without_mean_are_singular_and_stay_finite():
    x = textures(d=6, n=300)
    x -= x.mean(axis=1, keepdims=True)
    model = Model(DPMixture(1.0), ZeroMeanGaussian()).with_prior(survey_of(Batch(x)))
    values, _ = run(model, Batch(x), 4, 15)
    assert np.isfinite(values).all()
    assert (np.diff(values) >= -1e-9 * np.abs(values[0])).all()


def test_zero_column_is_announced_and_stays_finite():
    x = textures()
    x[:, 1] = 0.0
    with pytest.warns(UserWarning, match="constant"):
        model = Model(DPMixture(1.0), ZeroMeanGaussian()).with_prior(survey_of(Batch(x)))
    values, _ = run(model, Batch(x), 2, 5)
    assert np.isfinite(values).all()


def test_whitening_and_features_agree():
    model, batch, _, posterior = fitted(textures())
    q = posterior.observation
    features = model.observation.expected_log_lik(q, batch)
    for mask in ([True, True, True], [False, True, False]):
        mixed = model.observation.expected_log_lik(replace(q, whiten=np.array(mask)), batch)
        np.testing.assert_allclose(mixed, features, rtol=1e-11, atol=1e-11)


def test_failed_factorisation_names_cluster_and_remedy():
    model = Model(DPMixture(1.0), ZeroMeanGaussian(B=1e-13)).with_prior(survey_of(Batch(textures())))
    line = np.linspace(-1e4, 1e4, 50)[:, None] * np.array([[1.0, 0.7, 0.3]])
    summary = model.summarize(np.array([4]), Batch(line), np.ones((50, 1)))
    assert np.isfinite(model.global_step(summary).observation.log_det).all()  # it is singular by rounding alone
    broken = summary["xx"] * np.where(np.arange(6) == 1, 1.5, 1.0)
    summary = replace(summary, values={**summary.values, "xx": broken})
    with pytest.raises(NumericalError, match=r"cluster 4.*larger ZeroMeanGaussian\(B"):
        model.global_step(summary)
