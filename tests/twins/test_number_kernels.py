"""Twins, slow or from other libraries, of kernels over numbers, matrices and atoms that are seated one by one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import njit
from scipy import special, stats
from scipy.integrate import quad

from bnp_dask.kernels.gaussian import learned, quadratic
from bnp_dask.kernels.gaussian.quadratic import cholesky_factor
from bnp_dask.kernels.gaussian.screen import Bound, bound_products
from bnp_dask.kernels.hmm import Space, add_pairs, exp_all, exponentials, forth, likelihoods
from bnp_dask.kernels.mixture import exp_block
from bnp_dask.kernels.numeric.arithmetic import exp, fixed_order, log, log1p, log_gammas, log_shares, log_sum_exp
from bnp_dask.kernels.numeric.directions import log_constant, log_constants
from bnp_dask.kernels.numeric.quantiles import merge_rows, thin_rows, thin_sorted
from bnp_dask.kernels.numeric.quasi_newton import dot
from bnp_dask.kernels.numeric.simd import aligned_zeros
from bnp_dask.kernels.numeric.special import log_positive, psi_gamma_block
from bnp_dask.kernels.predictive import gaussian
from bnp_dask.kernels.predictive.counts import log_predictive_counts
from bnp_dask.kernels.predictive.gaussian import add_point, log_predictive_points, student_constant
from bnp_dask.kernels.predictive.urns import (
    EXACT,
    MODE,
    choose_cluster,
    expected_clusters,
    free_position,
    log_absent,
    log_density,
    log_not,
    longer,
    mode_of_log,
    note_seated,
    seat_rule,
    standing,
    wider,
)
from bnp_dask.kernels.topics.document_step import FARTHEST, Pull, group_stats, pulled, share_products, share_sums, tilt
from bnp_dask.kernels.topics.tokens import next_uniform


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def positive(rng, d):
    half = rng.normal(size=(d, d + 2))
    return half @ half.T


# -- numbers ---------------------------------------------------------------------------------------------------
def test_exponentials_of_blocks(rng):
    x = np.concatenate([rng.uniform(-690.0, 0.0, 700), [0.0, -1e-300, -800.0]])
    out, power, whole = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    exp_block(x, -690.0, power, out)
    exp_all(x, whole)
    for found in (out, whole):
        np.testing.assert_allclose(found, np.exp(np.maximum(x, -690.0)), rtol=2e-15)


@pytest.mark.parametrize("fixed", [False, True])
def test_logs_of_sums_of_exponentials(rng, fixed):
    x = rng.normal(0.0, 300.0, (4, 6))
    x[1, 2] = x[2] = -np.inf
    with fixed_order(fixed), np.errstate(divide="ignore"):
        np.testing.assert_allclose(log_sum_exp(x), special.logsumexp(x, axis=1), rtol=1e-14)


@pytest.mark.parametrize("fixed", [False, True])
def test_functions_of_numbers(rng, fixed):
    x = rng.uniform(0.1, 9.0, 20)
    with fixed_order(fixed):
        for function, name in ((exp, "exp"), (log, "log"), (log1p, "log1p")):
            np.testing.assert_allclose(function(x), getattr(np, name)(x), rtol=1e-14)
        logs = np.array([-1.0, 0.0, -5000.0])
        np.testing.assert_allclose(exponentials(logs), [np.exp(-1.0), 1.0, 0.0], rtol=1e-14)
    assert dot(x[:3], x[3:6]) == pytest.approx(sum(a * b for a, b in zip(x[:3], x[3:6], strict=True)))


def test_logs_digammas_and_log_gammas_of_positive_numbers(rng):
    x = np.exp(rng.uniform(-20.0, 20.0, 50))
    n, space = len(x), np.empty((5, len(x)))
    psi, gamma = np.empty(n), np.empty(n)
    z, product = space[0].copy(), space[1].copy()
    psi_gamma_block(x.copy(), n, z, z.view(np.int64), product, product.view(np.int64), space[2], space[3], psi, gamma)
    np.testing.assert_allclose(psi, special.digamma(x), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gamma, special.gammaln(x), rtol=1e-12, atol=1e-12)
    lost, logs = x.copy(), np.empty(n)
    log_positive(lost, lost.view(np.int64), n, logs)
    np.testing.assert_allclose(logs, np.log(x), rtol=1e-14, atol=1e-15)


def test_statistics_of_the_topics_of_a_document(rng):
    index, prior = np.array([3, 0, 2]), rng.random(3)
    share, counts, linear = rng.random(3), np.array([1.5, 0.0, 4.0]), rng.random(3)
    work, found = np.empty((7, 3)), np.zeros((4, 5))
    group_stats(index, prior, share, counts, linear, 3, 2.0, work, work.view(np.int64), work[5], work[6], found)
    want = np.zeros((4, 5))
    for k in (0, 2):
        theta = counts[k] + prior[k]
        own = 1.0, special.digamma(theta), special.gammaln(theta), linear[k] - counts[k] * np.log(share[k])
        want[:, index[k]] = 2.0 * np.array(own)
    np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("d", [2, 3, 10])
def test_constants_of_directions(d):
    kappa = np.array([0.3, 5.0, 80.0])
    if d == 3:  # kappa / (4 pi sinh(kappa))
        want = np.log(kappa) - np.log(4.0 * np.pi) - np.log(-0.5 * np.expm1(-2.0 * kappa)) - kappa
    else:
        order = 0.5 * d - 1.0
        bessel = np.log(special.ive(order, kappa)) + kappa
        want = order * np.log(kappa) - 0.5 * d * np.log(2.0 * np.pi) - bessel
    np.testing.assert_allclose(log_constants(kappa, d), want, rtol=1e-11)
    np.testing.assert_allclose(log_constant(5.0, d) - 5.0, want[1], rtol=1e-11)


def test_gamma_draws_and_their_shares():
    shape = np.array([0.05, 0.7, 3.0])
    logs = log_gammas(np.tile(shape, (20000, 1)), np.random.default_rng(0))
    deviation = np.sqrt(special.polygamma(1, shape) / len(logs))
    assert (np.abs(logs.mean(axis=0) - special.digamma(shape)) < 5.0 * deviation).all()
    shares = np.exp(log_shares(logs[:5]))
    np.testing.assert_allclose(shares, np.exp(logs[:5]) / np.exp(logs[:5]).sum(axis=1, keepdims=True), rtol=1e-12)


def test_uniform_numbers_by_xorshift():
    state, x = np.array([88172645463325252], np.uint64), 88172645463325252
    for _ in range(5):
        x ^= x << 13 & 2**64 - 1
        x ^= x >> 7
        x ^= x << 17 & 2**64 - 1
        assert next_uniform(state) == (x >> 11) * 2.0**-53


# -- quantiles -------------------------------------------------------------------------------------------------
def test_few_points_are_kept_with_their_weights():
    values, weights = np.array([1.0, 1.0, 2.0, 5.0, 5.0]), np.array([1.0, 2.0, 0.5, 1.0, 1.0])
    out, weight = np.zeros(4), np.zeros(4)
    assert thin_sorted(values, weights, 4, out, weight) == 3
    np.testing.assert_array_equal(out[:3], [1.0, 2.0, 5.0])
    np.testing.assert_array_equal(weight[:3], [3.0, 0.5, 2.0])


def test_many_points_become_bins_of_equal_weight(rng):
    values = np.sort(rng.normal(size=(2, 1000)), axis=1)
    found, weights, counts = thin_rows(values, np.ones((1, 1000)), 10)
    np.testing.assert_array_equal(counts, 10)
    np.testing.assert_allclose(weights, 100.0)
    for row in range(2):  # the values in the middle of each hundred: one of the two there
        middle = values[row].reshape(10, 100)[:, 49:51]
        assert (found[row][:, None] == middle).any(axis=1).all()


def test_rows_are_merged(rng):
    values, others = np.sort(rng.integers(0, 9, (2, 6)).astype(float), axis=1), np.sort(rng.random((2, 3)) * 9, axis=1)
    weights, more = rng.random((2, 6)), rng.random((2, 3))
    found, found_weights = merge_rows(values, weights, others, more)
    for row in range(2):
        both = np.concatenate([values[row], others[row]])
        order = np.argsort(both, kind="stable")
        np.testing.assert_array_equal(found[row], both[order])
        np.testing.assert_array_equal(found_weights[row], np.concatenate([weights[row], more[row]])[order])


# -- matrices --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fixed", [False, True])
def test_the_factor_of_one_matrix(rng, fixed):
    matrix = positive(rng, 4)
    with fixed_order(fixed):
        lower, inverse, wrong = cholesky_factor(matrix)
        assert not wrong and cholesky_factor(-matrix)[2]
    np.testing.assert_allclose(lower, np.linalg.cholesky(matrix), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(inverse @ lower, np.eye(4), atol=1e-12)


def test_precisions_of_packed_coefficients(rng):
    matrices = np.array([positive(rng, 3) for _ in range(2)])
    packed = quadratic.quadratic_coefficients(matrices)
    np.testing.assert_allclose(quadratic.precision_of(packed), matrices, rtol=1e-14)
    np.testing.assert_allclose(learned.precision_of(packed[1], 3), matrices[1], rtol=1e-14)
    y = rng.normal(size=3)
    rows, columns = np.triu_indices(3)
    np.testing.assert_allclose(packed[0] @ (y[rows] * y[columns]), -0.5 * y @ matrices[0] @ y, rtol=1e-13)


def test_settings_that_are_learned_raise_what_they_say(rng):
    matrices, means = [positive(rng, 3) for _ in range(4)], rng.normal(size=(4, 3))
    total, linear = sum(matrices), sum(m @ mean for m, mean in zip(matrices, means, strict=True))
    found = learned.mean_settings(learned.Precisions(4, total, 0.0), linear)
    slope = sum(m @ (mean - found) for m, mean in zip(matrices, means, strict=True))
    np.testing.assert_allclose(slope, 0.0, atol=1e-9)

    def objective(kappa, spread=7.0):
        return 0.5 * 4 * 3 * np.log(kappa) - 0.5 * kappa * spread - kappa

    best = learned.pseudo_count(4, 3, 7.0)
    assert objective(best) > max(objective(0.99 * best), objective(1.01 * best))

    start, scale, nu = positive(rng, 3), positive(rng, 3), 6.0
    psi = scale / nu
    want = 0.5 * (np.log(np.linalg.det(psi @ np.linalg.inv(start))) - np.trace(np.linalg.solve(start, psi)) + 3)
    value = learned.log_wishart_hyperprior(nu, scale, start)
    np.testing.assert_allclose(value, want - learned.NU_DECAY / 3 * nu, rtol=1e-12)


@pytest.mark.parametrize("full", [False, True])
def test_bounds_are_as_near_as_they_say(rng, full):
    n, d, k = 600, 4, 3
    z, linear, constant = rng.normal(size=(n, d)), rng.normal(size=(k, d)), rng.normal(size=k)
    matrices = np.array([positive(rng, d) for _ in range(k)])
    if not full:
        matrices = np.array([np.diag(np.diagonal(m)) for m in matrices])
    packed = quadratic.quadratic_coefficients(matrices) if full else -0.5 * np.diagonal(matrices, axis1=1, axis2=2)
    bound = Bound.of(linear, constant, packed, np.linalg.norm(matrices, 2, axis=(1, 2)))
    near = z.astype(np.float32)
    want = near @ linear.T + constant - 0.5 * np.einsum("nd,kde,ne->nk", near, matrices, near, dtype=np.float64)
    size = np.sqrt((near**2).sum(axis=1) + 1.0)[:, None]
    slack = bound.slack[0] * size**2 + bound.slack[1] * size + bound.slack[2]
    error = np.abs(bound_products(near, bound) - want)
    assert bound.usable and (error <= slack).all() and slack.max() < 1e-2


# -- sequences -------------------------------------------------------------------------------------------------
def test_a_step_forward_and_sums_over_pairs_of_states(rng):
    prior, lik, filtered = aligned_zeros(8), aligned_zeros(8), aligned_zeros(8)
    prior[:5], lik[:5] = rng.random(5), rng.random(5)
    norm = forth(prior, lik, filtered)
    np.testing.assert_allclose(norm, prior @ lik, rtol=1e-14)
    np.testing.assert_allclose(filtered, prior * lik / (prior @ lik), rtol=1e-14)
    logs, table = rng.normal(0.0, 5.0, (4, 5)), aligned_zeros(4, 8)
    likelihoods(logs, Space(aligned_zeros(8), aligned_zeros(8), np.empty(9, np.int64)), table)
    np.testing.assert_allclose(table, np.pad(np.exp(logs), ((0, 0), (0, 3))), rtol=1e-14)
    alpha, grow, out = aligned_zeros(4, 8), aligned_zeros(5, 8), aligned_zeros(5, 8)
    alpha[:, :5], grow[:, :5] = rng.random((4, 5)), rng.random((5, 5)) * (rng.random((5, 5)) < 0.6)
    add_pairs(alpha, grow, np.empty(9, np.int64), out)
    np.testing.assert_allclose(out, grow[1:, :5].T @ alpha, rtol=1e-13)


# -- tables that grow, and counts of clusters ------------------------------------------------------------------
def test_tables_grow_by_zeros():
    assert longer(np.array([3, 4]), 2).tolist() == [3, 4, 0, 0]
    assert wider(np.ones((2, 1)), 2).tolist() == [[1.0, 0.0, 0.0]] * 2


def test_clusters_that_hold_an_atom(rng):
    absent, counts = -rng.random(4), rng.random(4)
    held = sum(1.0 - math.exp(a) for a in absent)
    assert expected_clusters(absent) == pytest.approx(held)
    assert standing(counts, absent, 4) == pytest.approx((counts.sum(), held, math.log(counts.sum() + 1.0)))


# -- atoms that are seated -------------------------------------------------------------------------------------
def student(x, m, scale, nu, kappa):
    d = len(m)
    spread = scale * (1.0 + 1.0 / kappa) / (nu - d + 1.0)
    return stats.multivariate_t.logpdf(x, m, spread, nu - d + 1.0)


def test_points_under_clusters_and_a_point_more(rng):
    d, k = 3, 2
    m, scale = rng.normal(size=(k + 1, d)), np.array([positive(rng, d) for _ in range(k + 1)])
    nu, kappa = np.array([5.0, 9.0, 6.5]), np.array([0.5, 3.0, 1.0])
    roots = np.linalg.cholesky(scale)
    inverse = 1.0 / np.diagonal(roots, axis1=1, axis2=2)
    constant = [student_constant(nu[i], kappa[i], np.linalg.slogdet(scale[i])[1], float(d)) for i in range(k + 1)]
    tables = [m.T.copy(), np.moveaxis(roots, 0, -1).copy(), inverse.T.copy(), nu, kappa, np.array(constant)]
    x, found = rng.normal(size=d), np.empty(k + 1)
    log_predictive_points(x, *tables, k, np.empty((d, k + 1)), found)
    want = [student(x, m[i], scale[i], nu[i], kappa[i]) for i in range(k + 1)]
    np.testing.assert_allclose(found, want, rtol=1e-12)

    share, old = 0.7, kappa[1]
    away = x - m[1]
    more = scale[1] + share * old / (old + share) * np.outer(away, away)
    mean = m[1] + share / (old + share) * away
    want[1] = student(x, mean, more, nu[1] + share, old + share)
    add_point(x, share, 1, *tables, np.empty(d))
    log_predictive_points(x, *tables, k, np.empty((d, k + 1)), found)
    np.testing.assert_allclose(found, want, rtol=1e-11)


def test_a_document_under_clusters(rng):
    prior, table = rng.random(6), np.ascontiguousarray(rng.random((6, 3)) * 5)
    table[:, 2] = 0.0
    words, held, found = np.array([0, 4, 5]), np.array([2.0, 1.0, 300.0]), np.empty(3)
    length = log_predictive_counts(words, held, prior, prior.sum(), 50, table, table.sum(axis=0), 2, np.empty(3), found)
    assert length == held.sum()
    for k in range(3):
        a, h = prior + table[:, k], np.bincount(words, held, 6)
        want = (special.gammaln(a + h) - special.gammaln(a)).sum()
        want += special.gammaln(a.sum()) - special.gammaln(a.sum() + h.sum())
        np.testing.assert_allclose(found[k], want, rtol=1e-12)


@pytest.mark.parametrize("tau", [0.0, 2.0])
def test_the_predictive_rule_by_quadrature(tau):
    n, k, a, sigma = 12.0, 4.0, 1.5, 0.4

    def level(v):
        return log_density(math.exp(v), n, k, a, sigma, tau)[0]

    mode = mode_of_log(n, k, a, sigma, tau, 0.0, 1e-12)
    assert level(mode) > max(level(mode - 1e-3), level(mode + 1e-3))

    def integral(function):
        return quad(lambda v: function(math.exp(v)) * math.exp(level(v) - level(mode)), mode - 25, mode + 12, limit=500)

    mass = integral(lambda u: 1.0)[0]
    seat = integral(lambda u: u / (n * (u + tau)))[0] / mass
    new = integral(lambda u: u / (n * (u + tau)) * a * (u + tau) ** sigma)[0] / mass
    found = seat_rule(n, k, a, sigma, tau, EXACT, 0.0)
    np.testing.assert_allclose(found[:2], [seat, new], rtol=1e-7)
    np.testing.assert_allclose((n - sigma * k) * found[0] + found[1], 1.0, rtol=1e-9)
    fresh = a * (math.exp(mode) + tau) ** sigma
    total = n - sigma * k + fresh
    np.testing.assert_allclose(seat_rule(n, k, a, sigma, tau, MODE, 0.0)[:2], [1.0 / total, fresh / total], rtol=1e-9)
    assert seat_rule(n, k, a, 0.0, tau, EXACT, 0.0)[:2] == (1.0 / (n + a), a / (n + a))


@pytest.mark.parametrize("weighted", [False, True])
def test_probabilities_that_no_atom_is_in_a_cluster(rng, weighted):
    resp = rng.dirichlet(np.ones(3), 6)
    resp[0] = [1.0, 0.0, 0.0]
    weights = rng.integers(1, 4, 6).astype(float)
    want, absent = np.zeros(3), np.zeros(3)
    for n in range(6):
        for k in range(3):
            times, before = weights[n] if weighted else 1.0, math.exp(absent[k])
            want[k] += times * max(math.log1p(-min(resp[n, k], 1.0 - 1e-15)), -50.0)
            rise = note_seated(absent, k, times, resp[n, k])
            assert rise == pytest.approx(before - math.exp(absent[k]), abs=1e-15)
    found = log_absent(resp * weights[:, None] if weighted else resp, weights if weighted else None)
    np.testing.assert_allclose(found, want, rtol=1e-8)
    np.testing.assert_allclose(absent, want, rtol=1e-8)
    assert log_not(0.25) == pytest.approx(math.log(0.75))


def test_clusters_are_chosen_in_proportion(rng):
    logs, weight, part = rng.normal(-500.0, 2.0, 4), np.array([0.3, 0.0, 0.5, 0.2]), np.empty(4)
    share = weight * np.exp(logs - logs.max())
    for uniform in np.linspace(0.0, 0.999, 37):
        k, level = choose_cluster(logs, weight, 3, uniform, part)
        assert k == np.searchsorted(np.cumsum(share), uniform * share.sum(), side="right")
        assert level == pytest.approx(logs.max() + math.log(share.sum()))


def test_positions_that_are_free():
    members, kept = np.array([0, 3, 0, 0]), np.array([False, False, True, False])
    assert free_position(members, kept, 1, 4) == 3
    assert free_position(members, kept, 1, 3) == 3
    assert free_position(members, kept, 0, 4) == 0


# -- one atom, given the few that joined its cluster -------------------------------------------------------------
FEW = [np.array([], np.int64), np.array([2]), np.array([0, 3, 4, 5])]


@pytest.mark.parametrize("others", FEW, ids=len)
def test_the_density_of_an_atom_given_few_others(rng, others):
    """SciPy's densities at the textbook updates by the atoms that joined."""
    d, m, i = 3, len(others), 1
    x, mean, kappa, nu = rng.normal(size=(6, d)), rng.normal(size=d), 0.7, 4.5
    own = x[others].mean(axis=0) if m else np.zeros(d)
    away, pull, wider = own - mean, kappa * m / (kappa + m), 1.0 + 1.0 / (kappa + m)
    center = mean + m / (kappa + m) * away

    scale, unrecorded = positive(rng, d), 0.1 * positive(rng, d)
    moved = (x[others] - own).T @ (x[others] - own) + pull * np.outer(away, away)
    given, df = scale + moved + m * unrecorded, nu + m + 1.0 - d
    want = stats.multivariate_t.logpdf(x[i], center, given * wider / df, df)
    before = scale.copy()
    found = gaussian.gaussian_density(x, others, i, mean, scale, nu, kappa, unrecorded)
    np.testing.assert_allclose(found, want, rtol=1e-12)
    np.testing.assert_array_equal(scale, before)

    beta, unrecorded = rng.uniform(0.5, 2.0, d), rng.uniform(0.0, 0.3, d)
    wide = (beta + np.diag(moved) + m * unrecorded) * wider / (nu + m)
    want = stats.t.logpdf(x[i], nu + m, center, np.sqrt(wide)).sum()
    found = gaussian.diagonal_density(x, others, i, mean, beta, nu, kappa, unrecorded)
    np.testing.assert_allclose(found, want, rtol=1e-12)

    variance = rng.uniform(0.5, 2.0, d)
    want = stats.norm.logpdf(x[i], center, np.sqrt(wider * variance)).sum()
    found = gaussian.known_variance_density(x, others, i, mean, variance, kappa)
    np.testing.assert_allclose(found, want, rtol=1e-12)

    bits, a, b = rng.integers(0, 2, (6, d)).astype(float), rng.uniform(0.5, 2.0, d), rng.uniform(0.5, 2.0, d)
    one = (a + bits[others].sum(axis=0)) / (a + b + m)
    found = gaussian.bits_density(bits, others, i, a, b)
    np.testing.assert_allclose(found, stats.bernoulli.logpmf(bits[i], one).sum(), rtol=1e-12)

    counts = rng.poisson(3.0, (6, d)).astype(float)
    rate = b + m
    want = stats.nbinom.logpmf(counts[i], a + counts[others].sum(axis=0), rate / (1.0 + rate)).sum()
    np.testing.assert_allclose(gaussian.rates_density(counts, others, i, a, b), want, rtol=1e-12)


# -- responses of documents --------------------------------------------------------------------------------------
def documents(rng, n_topics):
    """Counts of topics in documents: one is empty, one shorter than a token; and how often each counts, one never."""
    dense = rng.uniform(0.0, 4.0, (6, n_topics)) * (rng.random((6, n_topics)) < 0.7)
    dense[3], dense[4] = 0.0, 0.6 * dense[4] / dense[4].sum()
    where = [np.flatnonzero(row) for row in dense]
    offsets = np.concatenate([[0], np.cumsum([len(some) for some in where])])
    return dense, offsets, np.concatenate(where), dense[dense > 0.0]


def test_sums_of_shares_and_their_products(rng):
    dense, *counts = documents(rng, 4)
    other, *more = documents(rng, 3)
    length = dense.sum(axis=1) + other.sum(axis=1) + np.r_[0.5, np.zeros(5)]
    times, target = np.array([1.0, 2.5, 0.0, 1.0, 1.0, 0.3]), rng.normal(size=(6, 2))
    zz, z_target, zy = rng.random((4, 4)), rng.random((4, 2)), rng.random((4, 3))
    want_zz, want_target, want_zy = zz.copy(), z_target.copy(), zy.copy()
    for d in np.flatnonzero(length):
        z, y, n = dense[d] / length[d], other[d] / length[d], max(length[d], 1.0)
        want_zz += times[d] * ((1.0 - 1.0 / n) * np.outer(z, z) + np.diag(z) / n)
        want_target += times[d] * np.outer(z, target[d])
        want_zy += times[d] * (1.0 - 1.0 / n) * np.outer(z, y)
    share_sums(*counts, length, times, target, zz, z_target)
    share_products(*counts, *more, length, times, zy)
    for found, want in ((zz, want_zz), (z_target, want_target), (zy, want_zy)):
        np.testing.assert_allclose(found, want, rtol=1e-12)


class Slots(NamedTuple):
    """What a pull reads and changes of the memory of a document's ascent."""

    topic: np.ndarray
    held: np.ndarray
    share: np.ndarray


@njit
def tilted(space: Any, width: int, pull: Any, d: int, is_first: bool) -> float:
    value = pulled(space, 0, width, pull, d)
    tilt(space, 0, width, pull, d, is_first)
    return value


@pytest.mark.parametrize("size", [7.0, 0.6])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_response_pulls_by_the_slope_of_its_term(rng, size, is_first):
    """The slope is that of the term by its definition, by differences."""
    n_topics, topic = 5, np.array([3, 0, 4])
    first, half = rng.normal(size=(2, n_topics)), rng.normal(size=(n_topics, 2))
    second, held = half @ half.T, rng.dirichlet(np.ones(3)) * 0.9 * size  # a part of the tokens is assigned elsewhere
    first[1, 0] = 1e4  # farther than any factor goes
    last, share = rng.normal(size=n_topics), np.array([0.4, 0.7, 0.0])
    n, steep = max(size, 1.0), 2.5

    def term(counts, d):
        z = np.zeros(n_topics)
        z[topic] = counts / size
        return first[d] @ z - ((1.0 - 1.0 / n) * z @ second @ z + np.diag(second) @ z / n) / 2.0

    for d in range(2):
        space = Slots(topic[None], held[None], share[None].copy())
        on, sizes, kept = np.array([True, True]), np.full(2, size), last.copy()
        pull = Pull(first, second, on, sizes, steep, kept, np.empty(n_topics), np.empty(n_topics))
        np.testing.assert_allclose(tilted(space, 3, pull, d, is_first), term(held, d), rtol=1e-11)
        step = 1e-4 * np.eye(3)
        slope = np.array([term(held + one, d) - term(held - one, d) for one in step]) / 2e-4
        moved = np.clip(slope - slope @ held / size, -FARTHEST, FARTHEST)
        part = 1.0 if is_first else 1.0 / (1.0 + steep / size)
        want = part * (np.log(share[:2]) + moved[:2]) + (1.0 - part) * last[topic[:2]]
        np.testing.assert_allclose(np.log(space.share[0, :2]), want, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(kept[topic[:2]], want, rtol=1e-6, atol=1e-7)
        assert space.share[0, 2] == 0.0
        rest = np.delete(np.arange(n_topics), topic[:2])
        np.testing.assert_array_equal(kept[rest], last[rest])

    off = Pull(first, second, np.array([False, True]), sizes, steep, kept, np.empty(n_topics), np.empty(n_topics))
    for none in (off, None):
        space = Slots(topic[None], held[None], share[None].copy())
        assert tilted(space, 3, none, 0, is_first) == 0.0
        np.testing.assert_array_equal(space.share[0], share)
