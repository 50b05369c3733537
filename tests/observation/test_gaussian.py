"""Full-covariance Gaussian: oracles, the objective, units, offsets, weights, and singular data."""

import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats
from scipy.special import multigammaln

from bnp_dask.allocation.dp_mixture import DPMixture
from bnp_dask.allocation.finite_mixture import FiniteMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Field, Summary
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import BnpDaskError, DataError, NumericalError, SettingError
from bnp_dask.kernels.gaussian.quadratic import unpack
from bnp_dask.kernels.mixture import SparseResp
from bnp_dask.model import Model
from bnp_dask.observation import wishart
from bnp_dask.observation.gaussian import Gaussian
from bnp_dask.observation.priors import rounding_variance
from bnp_dask.observation.wishart import posterior_scale
from tests.golden.cases import survey_of
from tests.pairwise import in_pairs


def clumps(seed: int = 0, n: int = 400, d: int = 3, k: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((k, d, d))
    label = rng.integers(k, size=n)
    return 3.0 * rng.standard_normal((k, d))[label] + np.einsum(
        "nij,nj->ni", mixing[label], rng.standard_normal((n, d))
    )


def random_resp(seed: int, n: int, k: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(k, 0.5), size=n)


def fitted(x: np.ndarray, k: int = 3, weights=None, **settings):
    """A model with its prior, a batch, a summary of random responsibilities, and the parameters."""
    batch = Batch(x, weights)
    model = Model(DPMixture(2.0), Gaussian(**settings)).with_prior(survey_of(batch))
    resp = random_resp(5, len(x), k)
    summary = model.summarize(np.arange(k), batch, resp if weights is None else resp * weights[:, None])
    return model, batch, summary, model.global_step(summary)


def run(model: Model, batch: Batch, k: int, n_steps: int):
    """Objective after each step, and the last posterior."""
    resp = random_resp(1, batch.n_atoms, k)
    weighted = resp if batch.weights is None else resp * batch.weights[:, None]
    posterior = model.global_step(model.summarize(np.arange(k), batch, weighted))
    values = []
    for _ in range(n_steps):
        summary = model.local_step(posterior, batch)
        posterior = model.global_step(summary)
        values.append(sum(model.elbo(posterior, summary).values()))
    return np.array(values), posterior


# -- settings -------------------------------------------------------------------------------------------------
def test_default_prior_is_the_documented_one():
    x = clumps()
    prior = Gaussian().with_prior(survey_of(Batch(x)))
    assert prior.nu == 5.0
    assert prior.kappa == 0.1
    np.testing.assert_allclose(prior.B / (prior.nu - 3 - 1), np.diag(0.1 * x.var(axis=0)))
    np.testing.assert_allclose(prior.m, x.mean(axis=0))
    np.testing.assert_allclose(prior.center, x.mean(axis=0))


def test_scale_matrix_may_be_a_number_a_diagonal_or_a_matrix():
    survey = survey_of(Batch(clumps()))
    full = np.diag([1.0, 2.0, 3.0]) + 0.1
    np.testing.assert_array_equal(Gaussian(B=2.0).with_prior(survey).B, 2.0 * np.eye(3))
    np.testing.assert_array_equal(Gaussian(B=[1.0, 2.0, 3.0]).with_prior(survey).B, np.diag([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(Gaussian(B=full).with_prior(survey).B, full)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nu": 2.0}, "above 2"),
        ({"nu": np.nan}, "nu="),
        ({"kappa": 0.0}, "kappa"),
        ({"B": -1.0}, "B"),
        ({"B": np.ones((2, 2))}, "shape"),
        ({"B": np.ones((3, 3))}, "not positive definite"),
        ({"B": np.diag([1.0, 1.0, -1.0])}, "not positive definite"),
        ({"B": np.eye(3) + np.triu(np.full((3, 3), 0.1), 1)}, "not symmetric"),
        ({"B": np.full((3, 3), np.nan)}, "finite"),
        ({"m": [1.0, 2.0]}, "m has shape"),
        ({"m": np.inf}, "m="),
        ({"center": np.nan}, "center="),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        Gaussian(**settings).with_prior(survey_of(Batch(clumps())))


def test_check_refuses_wrong_batches():
    model = Gaussian().with_prior(survey_of(Batch(clumps())))
    model.check(Batch(clumps(1)))
    with pytest.raises(DataError, match="2 features"):
        model.check(Batch(clumps(d=2)))
    bad = clumps(1)
    bad[7, 2] = np.nan
    with pytest.raises(DataError, match="row 7, column 2"):
        model.check(Batch(bad))


# -- oracles --------------------------------------------------------------------------------------------------
def test_posterior_is_the_textbook_update():
    x = clumps()
    model, _, summary, posterior = fitted(x, nu=6.0, B=0.7, m=[1.0, -2.0, 0.5], kappa=0.3)
    q, resp = posterior.observation, random_resp(5, len(x), 3)
    for k in range(3):
        n = resp[:, k].sum()
        mean = resp[:, k] @ x / n
        scatter = (resp[:, k, None] * (x - mean)).T @ (x - mean)
        away = mean - model.observation.m
        expected = 0.7 * np.eye(3) + scatter + 0.3 * n / (0.3 + n) * np.outer(away, away)
        np.testing.assert_allclose(q.B[k], expected, rtol=1e-11)
        np.testing.assert_allclose(q.m[k], (0.3 * model.observation.m + n * mean) / (0.3 + n), rtol=1e-12)
        assert (q.nu[k], q.kappa[k]) == pytest.approx((6.0 + n, 0.3 + n), rel=1e-12)
    np.testing.assert_array_equal(q.B, q.B.transpose(0, 2, 1))
    assert summary["xx"].shape == (3, 6)


def samples_of(params, k, size, seed=0):
    """Precision matrices and means drawn from q of one cluster."""
    draws = stats.wishart(params.nu[k], np.linalg.inv(params.B[k])).rvs(size, random_state=seed)
    root = np.linalg.cholesky(np.linalg.inv(params.kappa[k] * draws))
    noise = np.random.default_rng(seed).standard_normal((size, params.m.shape[1]))
    return draws, params.m[k] + np.einsum("nij,nj->ni", root, noise)


def test_expected_log_lik_is_an_average_over_q():
    x = clumps(n=60)
    model, batch, _, posterior = fitted(x)
    actual = model.observation.expected_log_lik(posterior.observation, batch.rows(0, 5))
    lam, mu = samples_of(posterior.observation, 1, 40000)
    for n in range(5):
        away = x[n] - mu
        log_lik = 0.5 * (np.linalg.slogdet(lam)[1] - np.einsum("si,sij,sj->s", away, lam, away))
        log_lik -= 1.5 * np.log(2 * np.pi)
        assert actual[n, 1] == pytest.approx(log_lik.mean(), abs=6 * log_lik.std() / 200)


def test_kl_is_an_average_over_q():
    model, _, _, posterior = fitted(clumps(n=60))
    prior, q = model.observation, posterior.observation
    lam, mu = samples_of(q, 0, 40000)

    def log_density(nu, scale, m, kappa):
        away, d = mu - m, 3
        log_det = np.linalg.slogdet(lam)[1]
        value = 0.5 * (nu - d - 1) * log_det - 0.5 * np.einsum("ij,sji->s", scale, lam)
        value += 0.5 * nu * (np.linalg.slogdet(scale)[1] - d * np.log(2)) - multigammaln(nu / 2, d)
        return value + 0.5 * (
            d * np.log(kappa / (2 * np.pi)) + log_det - kappa * np.einsum("si,sij,sj->s", away, lam, away)
        )

    ratio = log_density(q.nu[0], q.B[0], q.m[0], q.kappa[0]) - log_density(prior.nu, prior.B, prior.m, prior.kappa)
    assert prior.kl(q)[0] == pytest.approx(ratio.mean(), abs=6 * ratio.std() / 200)


def test_kl_of_an_empty_cluster_is_zero():
    model, _, _, posterior = fitted(clumps())
    empty = model.global_step(model.empty_summary(np.arange(2)))
    np.testing.assert_allclose(model.observation.kl(empty.observation), 0.0, atol=1e-11)
    assert (model.observation.kl(posterior.observation) > 0).all()


def test_point_estimate_is_the_normal_density():
    x = clumps()
    model, batch, _, posterior = fitted(x)
    q = model.observation.at_mode(posterior.observation)
    actual = model.observation.expected_log_lik(q, batch)
    for k in range(3):
        expected = stats.multivariate_normal(q.m[k], q.B[k] / q.nu[k]).logpdf(x)
        np.testing.assert_allclose(actual[:, k], expected, rtol=1e-10, atol=1e-10)


def test_log_predictive_is_student_t():
    x = clumps()
    model, batch, _, posterior = fitted(x)
    q = posterior.observation
    actual = model.observation.log_predictive(q, batch)
    for k in range(3):
        freedom = q.nu[k] - 2
        shape = q.B[k] * (q.kappa[k] + 1) / (q.kappa[k] * freedom)
        expected = stats.multivariate_t(q.m[k], shape, df=freedom).logpdf(x)
        np.testing.assert_allclose(actual[:, k], expected, rtol=1e-10, atol=1e-10)


def test_log_predictive_integrates_the_marginal_likelihood():
    """Predictives of one atom after another multiply to the evidence, which the objective equals for K=1."""
    x = clumps(n=12)
    model = Model(FiniteMixture(1.0), Gaussian()).with_prior(survey_of(Batch(x)))
    evidence = 0.0
    for n in range(len(x)):
        seen = model.summarize(np.arange(1), Batch(x[:n]), np.ones((n, 1)))
        params = model.observation.global_step(seen)
        evidence += model.observation.log_predictive(params, Batch(x[n : n + 1]))[0, 0]
    summary = model.local_step(model.global_step(model.empty_summary(np.arange(1))), Batch(x))
    terms = model.elbo(model.global_step(summary), summary)
    assert sum(terms.values()) == pytest.approx(evidence, rel=1e-11)


@pytest.mark.parametrize("mode", [False, True])
def test_score_is_the_sum_of_log_likelihoods(mode):
    x = clumps()
    model, batch, summary, posterior = fitted(x)
    q = model.observation.at_mode(posterior.observation) if mode else posterior.observation
    expected = (random_resp(5, len(x), 3) * model.observation.expected_log_lik(q, batch)).sum(axis=0)
    np.testing.assert_allclose(model.observation.score(q, summary), expected, rtol=1e-11)


def test_point_estimate_is_the_mode_of_score_and_log_prior():
    model, _, summary, posterior = fitted(clumps())
    observation, n = model.observation, summary["N"]
    q = observation.at_mode(posterior.observation)
    best = observation.score(q, summary) + observation.log_prior(q)
    second = unpack(summary["xx"], 3)
    prior_mean = observation.m - observation.center
    rng = np.random.default_rng(0)

    def objective(k, lam, mu):
        scatter = second[k] - np.outer(summary["x"][k], mu) - np.outer(mu, summary["x"][k]) + n[k] * np.outer(mu, mu)
        away = mu - prior_mean
        pull = observation.B + scatter + observation.kappa * np.outer(away, away)
        log_det = np.linalg.slogdet(lam)[1]
        return 0.5 * ((observation.nu + n[k]) * log_det - np.trace(pull @ lam) - n[k] * 3 * np.log(2 * np.pi))

    for k in range(3):
        lam, mu = q.nu[k] * np.linalg.inv(q.B[k]), q.shift[k]
        assert objective(k, lam, mu) == pytest.approx(best[k], rel=1e-11)
        for _ in range(20):
            root = np.eye(3) + 0.05 * rng.standard_normal((3, 3))
            assert objective(k, root @ lam @ root.T, mu + 0.05 * rng.standard_normal(3)) < best[k]


# -- the objective never falls --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    *in_pairs(allocation=[DPMixture, FiniteMixture], estimate=["posterior", "map"], top=[None, 1, 2])
)
def test_objective_never_falls(allocation, estimate, top):
    batch = Batch(clumps(3, n=500))
    model = Model(allocation(1.5, top=top), Gaussian(), estimate=estimate).with_prior(survey_of(batch))
    values, _ = run(model, batch, 6, 25)
    assert np.isfinite(values).all()
    # keeping the top L of many is optimal among L-sparse responsibilities, so no step may lower the objective
    assert (np.diff(values) >= -1e-9 * np.abs(values[0])).all()
    assert values[-1] > values[0]


# -- invariances ----------------------------------------------------------------------------------------------
def test_integer_weights_equal_repeated_rows():
    x = clumps(n=200)
    weights = np.random.default_rng(2).integers(0, 4, size=200).astype(float)
    whole = Batch(np.repeat(x, weights.astype(int), axis=0))
    weighted = Batch(x, weights)
    model = Model(DPMixture(2.0), Gaussian()).with_prior(survey_of(whole))
    again = Model(DPMixture(2.0), Gaussian()).with_prior(survey_of(weighted))
    np.testing.assert_allclose(again.observation.B, model.observation.B, rtol=1e-12)
    resp = random_resp(4, 200, 3)
    repeated = np.repeat(resp, weights.astype(int), axis=0)
    posterior = model.global_step(model.summarize(np.arange(3), whole, repeated))
    for top in (None, 2):
        one = replace(model, allocation=DPMixture(2.0, top=top))
        a, b = one.local_step(posterior, whole), one.local_step(posterior, weighted)
        for name in a.values:
            np.testing.assert_allclose(b[name], a[name], rtol=1e-11, atol=1e-11 * np.abs(a[name]).max(), err_msg=name)


def test_any_split_gives_the_same_total():
    x = clumps(n=300)
    model, batch, _, posterior = fitted(x)
    whole = model.local_step(posterior, batch)
    parts = [model.local_step(posterior, batch.rows(a, b)) for a, b in [(0, 1), (1, 120), (120, 300)]]
    total = parts[2] + parts[0] + parts[1]
    for name in whole.values:
        np.testing.assert_allclose(total[name], whole[name], rtol=1e-12, atol=1e-10, err_msg=name)


def assignments(x: np.ndarray) -> tuple[np.ndarray, float]:
    batch = Batch(x)
    model = Model(DPMixture(2.0), Gaussian()).with_prior(survey_of(batch))
    values, posterior = run(model, batch, 4, 8)
    return model.assign(posterior, batch).resp, values[-1]


def test_huge_offset_costs_no_precision():
    x = np.round(clumps() * 2**16) / 2**16  # so that adding the offset is exact
    offset = 2.0**27  # 1.3e8
    near, near_value = assignments(x)
    far, far_value = assignments(x + offset)
    np.testing.assert_allclose(far, near, atol=1e-6)
    assert far_value == pytest.approx(near_value, rel=1e-8)


def test_units_do_not_matter():
    x = clumps()
    scale = np.array([1e3, 1e-3, 40.0])
    plain, value = assignments(x)
    scaled, scaled_value = assignments(x * scale)
    np.testing.assert_allclose(scaled, plain, atol=1e-9)
    assert scaled_value == pytest.approx(value - len(x) * np.log(scale).sum(), rel=1e-10)


def test_sparse_responsibilities_give_the_dense_summary():
    x = clumps()
    model, batch, _, _ = fitted(x)
    index = np.sort(np.random.default_rng(0).permuted(np.tile(np.arange(5), (400, 1)), axis=1)[:, :2], axis=1)
    sparse = SparseResp(np.ascontiguousarray(index), random_resp(3, 400, 2), 5)
    a = model.observation.summarize(batch, sparse)
    b = model.observation.summarize(batch, sparse.to_dense())
    for name in ("x", "xx"):
        np.testing.assert_allclose(a[name], b[name], rtol=1e-11, atol=1e-11)


# -- ill-conditioned and singular data --------------------------------------------------------------------------
def solve_exactly(matrix: np.ndarray, y: list[Fraction]) -> list[Fraction]:
    """Gaussian elimination in rational numbers."""
    rows = [[Fraction(v) for v in row] + [b] for row, b in zip(matrix.tolist(), y)]
    for i, pivot in enumerate(rows):
        for other in rows[:i] + rows[i + 1 :]:
            ratio = other[i] / pivot[i]
            other[:] = [o - ratio * p for o, p in zip(other, pivot)]
    return [row[-1] / row[i] for i, row in enumerate(rows)]


def exact_log_lik(params, center, x):
    """Log likelihoods at the coefficients, their quadratic part in rational numbers."""
    out = np.empty((len(x), len(params.nu)))
    for n, row in enumerate(x):
        for k, shift in enumerate(params.shift):
            y = [Fraction(a) - Fraction(c) - Fraction(s) for a, c, s in zip(row, center, shift)]
            square = sum(a * b for a, b in zip(y, solve_exactly(params.B[k], y)))
            out[n, k] = params.level[k] - 0.5 * params.nu[k] * float(square)
    return out


@pytest.mark.parametrize("spread", [1e-2, 1e-5, 1e-7])
def test_nearly_collinear_columns_keep_their_digits(spread):
    rng = np.random.default_rng(0)
    z = rng.standard_normal((200, 4))
    x = np.column_stack([z[:, 0], z[:, 0] + spread * z[:, 1], z[:, 2], z[:, 2] - z[:, 0] + spread * z[:, 3]])
    model, batch, _, posterior = fitted(x, B=np.full(4, 1e-3 * spread**2))
    q = posterior.observation
    assert q.whiten.all() == (spread < 1e-4)
    actual = model.observation.expected_log_lik(q, batch.rows(0, 8))
    # what remains is the rounding of the factor of B: an error of 1e-16 times its condition number
    expected = exact_log_lik(q, model.observation.center, x[:8])
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9 + 1e-15 / spread**2)
    if not q.whiten.all():
        return
    # and that is the same small change of the precision for all atoms, not noise that differs between them
    for k in range(3):
        root = [[Fraction(v) for v in row] for row in wishart.root(q.B[k]).tolist()]
        for n in range(8):
            y = [Fraction(a) - Fraction(c) - Fraction(s) for a, c, s in zip(x[n], model.observation.center, q.shift[k])]
            square = sum(sum(a * b for a, b in zip(row, y)) ** 2 for row in root)
            assert actual[n, k] == pytest.approx(q.level[k] - 0.5 * q.nu[k] * float(square), abs=1e-14 / spread)


def test_whitening_and_features_agree():
    model, batch, _, posterior = fitted(clumps())
    q = posterior.observation
    assert not q.whiten.any()
    features = model.observation.expected_log_lik(q, batch)
    for mask in ([True, True, True], [False, True, False]):
        mixed = model.observation.expected_log_lik(replace(q, whiten=np.array(mask)), batch)
        np.testing.assert_allclose(mixed, features, rtol=1e-11, atol=1e-11)
        mode = model.observation.at_mode(replace(q, whiten=np.array(mask)))
        plain = model.observation.expected_log_lik(model.observation.at_mode(q), batch)
        np.testing.assert_allclose(model.observation.expected_log_lik(mode, batch), plain, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", ["few", "one", "duplicates", "constant", "integers", "collinear"])
def test_singular_data_stay_finite(kind):
    rng = np.random.default_rng(0)
    x = {
        "few": rng.standard_normal((4, 20)),
        "one": rng.standard_normal((1, 3)) + 1e8,
        "duplicates": np.repeat(rng.standard_normal((2, 3)), 50, axis=0),
        "constant": np.column_stack([rng.standard_normal((50, 2)), np.full(50, 1e8)]),
        "integers": rng.integers(0, 2, size=(80, 5)).astype(float),
        "collinear": rng.standard_normal((100, 2)) @ rng.standard_normal((2, 6)),
    }[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = Model(DPMixture(1.0), Gaussian()).with_prior(survey_of(Batch(x)))
    values, posterior = run(model, Batch(x), 3, 15)
    assert np.isfinite(values).all()
    assert (np.diff(values) >= -1e-8 * np.abs(values).max()).all()
    assert np.isfinite(model.observation.log_predictive(posterior.observation, Batch(x))).all()


def test_failed_factorisation_names_cluster_and_remedy():
    model = Model(DPMixture(1.0), Gaussian(B=1e-13, m=0.0, center=0.0)).with_prior(survey_of(Batch(clumps())))
    line = np.linspace(-1e4, 1e4, 50)[:, None] * np.array([[1.0, 0.7, 0.3]])
    resp = np.zeros((50, 2))
    resp[:, 1] = 1.0
    summary = model.summarize(np.array([3, 8]), Batch(line), resp)
    wrong = Summary(summary.ids, summary.fields, {**summary.values, "x": 1e6 + summary["x"]})
    with pytest.raises(NumericalError, match=r"cluster 8.*condition number.*larger Gaussian\(B"):
        model.global_step(wrong)
    broken = Summary(summary.ids, summary.fields, {**summary.values, "xx": summary["xx"] * np.nan})
    with pytest.raises(BnpDaskError, match=r"cluster 3.*not finite"):
        model.global_step(broken)


@pytest.mark.parametrize("size", [1e8, 1e10, 1e12, 1e14])
def test_a_row_that_is_far_away_leaves_its_cluster_a_covariance(size):
    """In double precision nothing but that row is left of the matrix: it is widened by no more than its rounding."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3))
    x[7] = size * np.array([1.0, 1.0, 0.5])
    model = Model(DPMixture(1.0), Gaussian()).with_prior(survey_batch(Batch(x)))
    assert np.abs(model.observation.center).max() < 1.0
    labels = (np.arange(500) == 7).astype(int)
    alone = model.summarize(np.arange(2), Batch(x), np.eye(2)[labels])
    for summary in (alone, model.summarize(np.arange(1), Batch(x), np.ones((500, 1)))):
        q = model.global_step(summary).observation
        assert (np.linalg.eigvalsh(q.B / np.sqrt(np.einsum("kii,kjj->kij", q.B, q.B))) > 0).all()
        prior, rounding = model.observation._prior, rounding_variance(model.observation.grain)
        plain = posterior_scale(prior, rounding, summary["N"], summary["x"], summary["xx"], q.kappa)
        np.testing.assert_allclose(q.B, plain, rtol=1e-11)
        assert np.isfinite(model.observation.evidence(summary)).all()
    q = model.global_step(alone).observation
    own = model.observation.expected_log_lik(q, Batch(x))
    np.testing.assert_array_equal(own.argmax(axis=1), labels)


@pytest.mark.parametrize("size", [1e9, 1e10, 1e12, 1e14])
def test_what_rounding_hides_of_a_covariance_does_not_decide_by_chance(size):
    """A row far away that shares its cluster with others: of its matrix only the direction of that row is known.

    The rest came out as any number up to the rounding of the largest, or as none: log determinants differed by 2.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    model = Model(DPMixture(1.0), Gaussian()).with_prior(survey_batch(Batch(x)))
    found = []
    for share in np.linspace(0.4, 0.6, 41):
        x[7], resp = size, np.where(np.arange(200) == 7, 1.0, 0.01 * share)
        summary = model.summarize(np.arange(1), Batch(x), resp[:, None])
        q, prior = model.global_step(summary).observation, model.observation._prior
        plain = posterior_scale(prior, None, summary["N"], summary["x"], summary["xx"], q.kappa)
        found += [q.log_det[0], wishart.log_dets(plain, summary.ids, "Gaussian")[0]]
    assert np.ptp(found) < 1.0


def test_condition_number_ignores_units():
    scale = np.diag([1e6, 1.0, 1e-6])
    assert wishart.condition_number(scale) == pytest.approx(1.0)
    assert wishart.condition_number(np.ones((2, 2))) > 1e15
    assert wishart.condition_number(np.full((2, 2), np.nan)) == np.inf


def test_what_rounding_leaves_of_an_emptied_cluster_has_no_mean():
    """Sums of atoms that came and went may keep 1e-31 of x where 1e-98 of N is left: their ratio means nothing."""
    model = Gaussian(B=1.0, m=0.0, kappa=0.1, center=0.0).with_prior(survey_batch(Batch(np.eye(4, 2))))
    fields = {"N": Field(("cluster",)), **model.fields}
    values = {"N": np.array([1e-98, 0.0]), "x": np.full((2, 2), 3e-31), "xx": np.full((2, 3), -2e-29)}
    params = model.global_step(Summary(np.arange(2), fields, values))
    np.testing.assert_allclose(params.B, np.broadcast_to(np.eye(2), (2, 2, 2)), atol=1e-20)
    np.testing.assert_allclose(params.theta[0], params.theta[1])


def test_fewer_rows_than_columns_of_a_wide_table_are_told():
    rng = np.random.default_rng(0)
    for rows, columns in ((20, 300), (60, 256)):
        survey = survey_batch(Batch(rng.normal(size=(rows, columns))))
        if columns < 300:
            Gaussian().with_prior(survey)
        else:
            with pytest.warns(UserWarning, match=r"20 rows of 300 columns.*DiagGaussian\(\)"):
                Gaussian().with_prior(survey)
