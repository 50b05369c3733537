"""von Mises-Fisher: the shipped suite, closed forms in two and three dimensions, and integrals by scipy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, special, stats

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.kernels.numeric import directions
from bnp_dask.observation.von_mises_fisher import VonMisesFisher
from bnp_dask.testing import ObservationSuite, random_resp, survey_of

ONE = np.ones(1)


def units(rng, n, d, mean=3.0):
    x = rng.normal(size=(n, d)) + mean * np.eye(d)[0]
    return x / np.linalg.norm(x, axis=1, keepdims=True)


class TestVonMisesFisher(ObservationSuite):
    dimension = 4

    def model(self):
        return VonMisesFisher()

    def batch(self, rng, n_atoms):
        return Batch(units(rng, n_atoms, self.dimension))

    def draw(self, params, k, rng):
        d = params.m.shape[1]
        kappa = directions.draw_concentrations(params.a, params.s, d, np.array([k]), rng)
        return directions.draw_directions(params.m[[k]], kappa * params.s[k], rng)[0], kappa[0]

    def log_density(self, phi, x):
        mu, kappa = phi
        return stats.vonmises_fisher(mu / np.linalg.norm(mu), kappa).logpdf(x / np.linalg.norm(x, axis=1)[:, None])


class TestManyDimensions(TestVonMisesFisher):
    dimension = 60

    def model(self):
        return VonMisesFisher(a=0.5, b=0.0)


@pytest.mark.parametrize("order", [0.0, 0.5, 3.0, 19.5, 24.0])
def test_bessel_functions_are_those_of_scipy_where_these_do_not_underflow(order):
    x = np.array([0.3, 2.0, 7.0, 40.0, 900.0])
    found = [directions.log_reduced_bessel(order, v) + order * np.log(v) for v in x]
    assert_allclose(found, np.log(special.ive(order, x)), rtol=1e-11, atol=1e-13)
    ratio = [directions.bessel_ratio(order, v) for v in x]
    assert_allclose(ratio, special.ive(order + 1, x) / special.ive(order, x), rtol=1e-11)


def test_bessel_functions_are_finite_from_nothing_to_far_beyond_float64():
    assert directions.log_reduced_bessel(0.0, 0.0) == 0.0
    assert_allclose(directions.log_reduced_bessel(383.0, 0.0), -383.0 * np.log(2.0) - special.gammaln(384.0))
    for order in (0.0, 2.5, 383.0):
        found = directions.log_reduced_bessel(order, 1e40)
        assert_allclose(found, -0.5 * np.log(2 * np.pi * 1e40) - order * np.log(1e40), rtol=1e-12)


def log_c(kappa):
    """log C(kappa) of three dimensions."""
    return np.log(kappa / (2 * np.pi)) - kappa - np.log(-np.expm1(-2 * kappa))


@pytest.mark.parametrize(("a", "s"), [(0.1, 0.05), (3.1, 0.0), (5.1, 4.9), (200.0, 150.0), (1000.1, 1000.05)])
def test_normalisers_and_expectations_are_the_integrals_of_three_dimensions(a, s):
    kappa, log_mass = directions.grid(a, s, 3)
    top = log_mass.max()

    def mass(value):
        below = log_c(value * s) if s else -np.log(4 * np.pi)
        return np.exp(a * log_c(value) - below - top)

    def mean(of):
        points = kappa[:: len(kappa) // 8][1:-1]
        return integrate.quad(lambda v: of(v) * mass(v), max(kappa[0], 1e-12), kappa[-1], points=points, limit=400)[0]

    total = mean(lambda v: 1.0)
    found = directions.expectations(a * ONE, s * ONE, 3)[:, 0]
    assert_allclose(found[0], np.log(total) + top, rtol=1e-9, atol=1e-9)

    def pull(value):
        return value * special.ive(1.5, value * s) / special.ive(0.5, value * s) if s else 0.0

    expected = [mean(f) / total for f in (log_c, pull, lambda v: v)]
    assert_allclose(found[1:3], expected[:2], rtol=1e-9)
    assert_allclose(found[3], expected[2], rtol=1e-6)


@pytest.mark.parametrize("d", [2, 3, 50])
def test_means_have_the_length_that_concentrations_say(d):
    lengths = np.array([1e-6, 0.1, 0.9, 1 - 1e-9])
    kappa = directions.concentrations_of(lengths, d)
    assert_allclose([directions.mean_length(v, d) for v in kappa], lengths, rtol=1e-12)


def test_the_predictive_of_circles_and_balls_integrates_to_one():
    angles = np.linspace(0, 2 * np.pi, 20_001)[:-1]
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    a, s = np.array([0.1, 12.0, 4000.0]), np.array([0.02, 9.0, 3999.0])
    log_z = directions.log_normalizers(a, s, 2)
    density = np.exp(directions.log_predictive(a, s, log_z, np.repeat(circle[:, :1], 3, axis=1), 2))
    assert_allclose(density.mean(axis=0) * 2 * np.pi, 1.0, rtol=1e-9)
    nodes, weights = np.polynomial.legendre.leggauss(400)
    log_z = directions.log_normalizers(a, s, 3)
    density = np.exp(directions.log_predictive(a, s, log_z, np.repeat(nodes[:, None], 3, axis=1), 3))
    assert_allclose(weights @ density * 2 * np.pi, 1.0, rtol=1e-9)


@pytest.mark.parametrize("d", [3, 40])
def test_interpolated_predictives_are_ratios_of_normalisers(d):
    cosine = np.linspace(-1, 1, 81)[:, None]
    for a, s in ((0.1, 0.03), (1.1, 1.02), (900.0, 899.9)):
        log_z = directions.log_normalizers(a * ONE, s * ONE, d)
        found = directions.log_predictive(a * ONE, s * ONE, log_z, cosine, d)[:, 0]
        length = np.sqrt(s * s + 1 + 2 * s * cosine[:, 0])
        exact = directions.log_normalizers(np.full(81, a + 1), np.minimum(length, s + 1), d) - log_z
        assert_allclose(found, exact, rtol=1e-10, atol=1e-10)


def test_few_vectors_have_the_densities_that_they_have_among_many():
    rng = np.random.default_rng(0)
    cosine, a, s = rng.uniform(-1.0, 1.0, size=(100, 2)), np.array([30.0, 2.0]), np.array([25.0, 0.3])
    log_z = directions.log_normalizers(a, s, 6)
    many, few = (directions.log_predictive(a, s, log_z, cosine[:n], 6) for n in (100, 7))
    assert_allclose(few, many[:7], rtol=1e-9)


def test_drawn_directions_have_the_mean_and_the_density_of_their_clusters():
    rng = np.random.default_rng(0)
    mean = np.tile(np.eye(5)[1], (40_000, 1))
    drawn = directions.draw_directions(mean, np.full(40_000, 6.0), rng)
    assert_allclose(np.linalg.norm(drawn, axis=1), 1.0, rtol=1e-12)
    assert_allclose(drawn.mean(axis=0), directions.mean_length(6.0, 5) * np.eye(5)[1], atol=0.01)


@pytest.mark.long
def test_clusters_of_embeddings_are_found_and_their_number_learned():
    rng = np.random.default_rng(1)
    truth = rng.integers(6, size=900)
    centers = units(rng, 6, 20, 0.0)
    x = directions.draw_directions(centers[truth], np.array([60.0, 80, 100, 120, 200, 400])[truth], rng)
    result = bnp.train(bnp.Model(bnp.DPMixture(), VonMisesFisher()), x, batch_size=300, rng=0)
    assert result.posterior.n_clusters == 6
    found = bnp.predict(result.posterior, x)
    assert all(len(np.unique(found[truth == k])) == 1 for k in range(6))
    exact = [row["elbo"] for row in result.history if row["exact"]]
    assert np.diff(exact).min() >= -1e-10 * abs(exact[-1])
    kappa = np.sort(result.posterior.observation.kappa)
    assert_allclose(kappa, [60, 80, 100, 120, 200, 400], rtol=0.15)


def test_rows_of_other_lengths_are_refused_or_taken_by_their_direction():
    rng = np.random.default_rng(2)
    x = units(rng, 30, 3)
    long = x * rng.uniform(0.5, 9.0, (30, 1))
    with pytest.raises(DataError, match=r"not of length one .*normalize=True"):
        VonMisesFisher().check(Batch(long))
    VonMisesFisher().check(Batch(x.astype(np.float16).astype(float)))
    with pytest.raises(DataError, match="zeros has no direction"):
        VonMisesFisher(normalize=True).check(Batch(np.vstack([long, np.zeros(3)])))
    params = []
    for model, rows in ((VonMisesFisher(a=0.1, b=0.0), x), (VonMisesFisher(a=0.1, b=0.0, normalize=True), long)):
        ready = model.with_prior(survey_of(Batch(rows)))
        resp = random_resp(np.random.default_rng(3), 30, 2)
        params.append(ready.global_step(TestVonMisesFisher().summary(ready, Batch(rows), resp)))
    assert_allclose(params[0].theta, params[1].theta, rtol=1e-10)


@pytest.mark.parametrize("b", [[0.2, 0.0, 0.0], [0.1, 0.0], 0.05])
def test_a_resultant_that_is_too_long_or_of_another_shape_is_refused(b):
    survey = survey_of(Batch(units(np.random.default_rng(0), 9, 3)))
    with pytest.raises(SettingError, match="b="):
        VonMisesFisher(a=0.2, b=np.array(b)).with_prior(survey)


def test_one_column_has_no_direction():
    with pytest.raises(SettingError, match="two features"):
        VonMisesFisher().with_prior(survey_of(Batch(np.ones((5, 1)))))


def test_rows_that_are_all_alike_are_one_cluster_of_finite_concentration():
    x = np.tile(units(np.random.default_rng(0), 1, 3), (50, 1))
    found = bnp.train(bnp.Model(bnp.DPMixture(), VonMisesFisher()), x, init=bnp.BregmanKMeans(1), moves=()).posterior
    assert np.isfinite(found.observation.kappa).all()
    assert np.isfinite(bnp.score(found, x))


@pytest.mark.long
@pytest.mark.parametrize(("a", "n_clusters"), [(None, 12), (50.0, 3), (400.0, 3)])
def test_a_prior_of_many_rows_keeps_clusters_within_a_group_together(a, n_clusters):
    rng = np.random.default_rng(0)
    fine = np.repeat(np.eye(10)[:3], 4, axis=0) + 0.15 * rng.normal(size=(12, 10))
    fine /= np.linalg.norm(fine, axis=1, keepdims=True)
    truth = np.repeat(np.arange(12), 100)
    x = fine[truth] + 0.08 * rng.normal(size=(1200, 10))
    model = bnp.DirichletProcessMixture(VonMisesFisher(a=a, normalize=True), random_state=0)
    labels = model.fit_predict(x)
    assert len(np.unique(labels)) == n_clusters
    assert n_clusters == 12 or all(len(np.unique(labels[truth // 4 == k])) == 1 for k in range(3))


def test_atoms_that_cancel_have_a_direction_all_the_same():
    model = bnp.VonMisesFisher(a=1.0, b=0.0).with_prior(survey_of(Batch(np.eye(3))))
    x = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    own = bnp.Model(bnp.FiniteMixture(), model)
    params = model.global_step(own.summarize(np.arange(3), Batch(x), np.array([[1.0, 0, 0], [1.0, 0, 0], [0, 1.0, 0]])))
    assert np.isfinite(params.m).all() and np.allclose(np.linalg.norm(params.m, axis=1), 1.0)
    assert np.allclose(params.theta[[0, 2]], 0.0) and params.m[1].tolist() == [0.0, 1.0, 0.0]


def test_the_prior_mean_of_rows_of_any_length_is_that_of_their_directions():
    x = np.eye(3)[[0, 0, 1, 2]]
    one = bnp.VonMisesFisher(normalize=True).with_prior(survey_of(Batch(x)))
    long = bnp.VonMisesFisher(normalize=True).with_prior(survey_of(Batch(7.0 * x)))
    np.testing.assert_allclose(one.b, 0.1 * x.mean(axis=0))
    np.testing.assert_allclose(long.b, one.b)


def test_drawn_directions_spread_as_the_atoms_behind_them_let_them():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)) + [2.0, 0.0, 0.0]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    model = bnp.VonMisesFisher().with_prior(survey_of(Batch(x)))
    own = bnp.Model(bnp.FiniteMixture(), model)
    params = model.global_step(own.summarize(np.arange(1), Batch(x), np.ones((40, 1))))
    drawn = np.array([model.at_draw(params, rng).m[0] for _ in range(150)])
    # of a mean of concentration kappa s in three dimensions: coth(kappa s) - 1 / (kappa s)
    certain = 1.0 - 1.0 / (params.kappa[0] * params.s[0])
    assert (drawn @ params.m[0]).mean() == pytest.approx(certain, abs=0.01)
    rows = model.draw(params, np.zeros(300, np.int64), rng)
    assert (rows @ params.m[0]).mean() == pytest.approx(params.s[0] / params.a[0] * certain, abs=0.08)
