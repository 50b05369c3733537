"""Objective of the top level of a mixture in strata and its gradient, compiled: births, merges and deletes climb it
hundreds of times in a lap.

See ``allocation/strata.py`` for the objective, and ``tests/twins/strata_top_level.py`` for its twin in NumPy.
"""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.hmm.top_level import trigamma
from bnp_dask.kernels.numeric.special import _psi_gamma
from bnp_dask.kernels.options import njit

LEAST = 1e-300


@njit(nogil=True, cache=True, error_model="numpy")
def value_and_slope(point, counts, gamma, alpha, slope):
    """Objective at ``log a, log b`` and the logs of theta of all parents; its gradient into ``slope``.

    ``counts (S, K)``.  Row p of the moments belongs to parent p: the sticks, then strata 0 to S - 2 of a chain.
    """
    n, k = counts.shape
    width = k + 1
    n_shares = (len(point) - 2 * k) // width
    n_parents = n_shares + 1
    # a, b, a + b, shares, their sums
    size = 3 * k + n_shares * width + n_shares
    given = np.empty(size)
    for i in range(k):
        given[i], given[k + i] = math.exp(point[i]), math.exp(point[k + i])
        given[2 * k + i] = given[i] + given[k + i]
    at, sums = 3 * k, 3 * k + n_shares * width
    for p in range(n_shares):
        total = 0.0
        for i in range(width):
            one = math.exp(point[2 * k + p * width + i])
            given[at + p * width + i] = one
            total += one
        given[sums + p] = total
    psi_given, gam_given = np.empty(size), np.empty(size)
    _psi_gamma(given, psi_given, gam_given)

    log_mean, mean_log = np.empty((n_parents, width)), np.empty((n_parents, width))
    tilted, mean = np.empty((n_parents, width)), np.empty((n_parents, width))
    passed, passed_log, passed_tilted = 0.0, 0.0, 0.0
    for i in range(k):
        a, b, both = given[i], given[k + i], given[2 * k + i]
        log_both, psi_both = math.log(both), psi_given[2 * k + i]
        log_mean[0, i] = passed + math.log(a) - log_both
        mean_log[0, i] = passed_log + psi_given[i] - psi_both
        tilted[0, i] = passed_tilted + psi_given[i] + 1.0 / a - psi_both - 1.0 / both
        passed += math.log(b) - log_both
        passed_log += psi_given[k + i] - psi_both
        passed_tilted += psi_given[k + i] + 1.0 / b - psi_both - 1.0 / both
    log_mean[0, k], mean_log[0, k], tilted[0, k] = passed, passed_log, passed_tilted
    for p in range(n_shares):
        log_total = math.log(given[sums + p])
        for i in range(width):
            one, whole = given[at + p * width + i], given[sums + p]
            log_mean[p + 1, i] = math.log(one) - log_total
            mean_log[p + 1, i] = psi_given[at + p * width + i] - psi_given[sums + p]
            tilted[p + 1, i] = mean_log[p + 1, i] + 1.0 / one - 1.0 / whole

    more = np.empty(n_parents * width)
    for p in range(n_parents):
        for i in range(width):
            mean[p, i] = max(math.exp(log_mean[p, i]), LEAST)
            more[p * width + i] = 1.0 + alpha * mean[p, i]
    psi_more, gam_more = np.empty(len(more)), np.empty(len(more))
    _psi_gamma(more, psi_more, gam_more)

    n_leaves = n - n_shares
    leaves = np.empty(n_leaves * width + n_leaves)
    for s in range(n_leaves):
        total = 0.0
        for i in range(width):
            own = counts[n_shares + s, i] if i < k else 0.0
            one = max(own + alpha * mean[n_shares, i], LEAST)
            leaves[s * width + i] = one
            total += one
        leaves[n_leaves * width + s] = total
    psi_leaves, gam_leaves = np.empty(len(leaves)), np.empty(len(leaves))
    _psi_gamma(leaves, psi_leaves, gam_leaves)

    value = n * math.lgamma(alpha) + k * math.log(gamma)  # -log B(1, gamma) = log gamma
    below = np.zeros((n_parents, width))
    for s in range(n_leaves):
        last = n_leaves * width + s
        value -= gam_leaves[last]
        for i in range(width):
            value += gam_leaves[s * width + i]
            below[n_shares, i] += psi_leaves[s * width + i] - psi_leaves[last]
    short = np.zeros((n_shares, width))
    for p in range(n_shares):
        value -= gam_given[sums + p]
        for i in range(width):
            own = counts[p, i] if i < k else 0.0
            short[p, i] = max(own + alpha * mean[p, i], LEAST) - given[at + p * width + i]
            value += short[p, i] * mean_log[p + 1, i] + gam_given[at + p * width + i]
            below[p, i] += mean_log[p + 1, i]
    for i in range(k):
        a, b, psi_both = given[i], given[k + i], psi_given[2 * k + i]
        value += gam_given[i] + gam_given[k + i] - gam_given[2 * k + i]
        value += (1.0 - a) * (psi_given[i] - psi_both) + (gamma - b) * (psi_given[k + i] - psi_both)

    log_alpha = math.log(alpha)
    by_mean, by_tilted = np.empty((n_parents, width)), np.empty((n_parents, width))
    for p in range(n_parents):
        children = float(n_leaves) if p == n_shares else 1.0
        for i in range(width):
            m, lift = mean[p, i], tilted[p, i] - log_mean[p, i]
            value += children * (log_alpha + mean_log[p, i] - gam_more[p * width + i] - alpha * m * lift)
            by_mean[p, i] = alpha * m * (below[p, i] + children * (1.0 - psi_more[p * width + i] - lift))
            by_tilted[p, i] = -alpha * children * m

    first = float(n_leaves) if n_shares == 0 else 1.0
    after_mean, after_log, after_tilted = by_mean[0, k], first, by_tilted[0, k]
    for i in range(k - 1, -1, -1):
        a, b, both = given[i], given[k + i], given[2 * k + i]
        tri_a, tri_b, tri_both = trigamma(a), trigamma(b), trigamma(both)
        shared = (by_mean[0, i] + after_mean) / both + (first + after_log) * tri_both
        shared += (by_tilted[0, i] + after_tilted) * (tri_both - 1.0 / (both * both))
        shared += (1.0 - a + gamma - b) * tri_both
        by_a = by_mean[0, i] / a + first * tri_a + by_tilted[0, i] * (tri_a - 1.0 / (a * a)) + (1.0 - a) * tri_a
        by_b = after_mean / b + after_log * tri_b + after_tilted * (tri_b - 1.0 / (b * b)) + (gamma - b) * tri_b
        slope[i], slope[k + i] = a * (by_a - shared), b * (by_b - shared)
        after_mean, after_log = after_mean + by_mean[0, i], after_log + first
        after_tilted += by_tilted[0, i]
    for p in range(n_shares):
        children = float(n_leaves) if p + 1 == n_shares else 1.0
        whole = given[sums + p]
        all_mean, all_log, all_tilted = 0.0, 0.0, 0.0
        for i in range(width):
            all_mean += by_mean[p + 1, i]
            all_log += children + short[p, i]
            all_tilted += by_tilted[p + 1, i]
        tri_whole = trigamma(whole)
        lost = all_mean / whole + all_log * tri_whole + all_tilted * (tri_whole - 1.0 / (whole * whole))
        for i in range(width):
            one = given[at + p * width + i]
            tri = trigamma(one)
            own = by_mean[p + 1, i] / one + (children + short[p, i]) * tri
            own += by_tilted[p + 1, i] * (tri - 1.0 / (one * one))
            slope[2 * k + p * width + i] = one * (own - lost)
    return value
