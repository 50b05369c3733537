"""Top level of a mixture in strata in NumPy, for the compiled one."""

from __future__ import annotations

import numpy as np
from scipy.special import betaln, gammaln, psi, zeta

LEAST = 1e-300


def along(first, rest):
    return np.append(first, 0.0) + np.concatenate([[0.0], np.cumsum(rest)])


def value_and_slope(point, counts, gamma, alpha):
    """Objective and gradient: row p of the moments belongs to parent p, the first to the sticks."""
    k = counts.shape[1]
    a, b = ab = np.exp(point[: 2 * k]).reshape(2, k)
    shares = np.exp(point[2 * k :]).reshape(-1, k + 1)
    parents = np.arange(len(counts)) if len(shares) else np.zeros(len(counts), np.int64)
    total, whole = a + b, shares.sum(axis=1)
    log_total = np.log(total)
    log_mean = np.vstack([along(np.log(a) - log_total, np.log(b) - log_total), np.log(shares) - np.log(whole)[:, None]])
    mean = np.maximum(np.exp(log_mean), LEAST)
    wanted = np.maximum(np.pad(counts, ((0, 0), (0, 1))) + alpha * mean[parents], LEAST)
    theta = wanted.copy()
    theta[: len(shares)] = shares
    rows, n_children = theta.sum(axis=1), np.bincount(parents, minlength=len(mean)).astype(np.float64)[:, None]

    sizes = np.cumsum([2 * k, k, theta.size, len(rows)])
    values = np.concatenate([ab.ravel(), total, theta.ravel(), rows, (1.0 + alpha * mean).ravel()])
    psi_ab, psi_total, psi_theta, psi_rows, psi_mean = np.split(psi(values), sizes)
    gam_ab, gam_total, gam_theta, gam_rows, gam_mean = np.split(gammaln(values), sizes)
    psi_ab, psi_mean = psi_ab.reshape(2, k), psi_mean.reshape(mean.shape)
    log_pi = psi_theta.reshape(theta.shape) - psi_rows[:, None]
    own = log_pi[: len(shares)]
    mean_log = np.vstack([along(psi_ab[0] - psi_total, psi_ab[1] - psi_total), own])
    more = 1.0 / total
    first = along(psi_ab[0] - psi_total + 1.0 / a - more, psi_ab[1] - psi_total + 1.0 / b - more)
    tilted = np.vstack([first, own + 1.0 / shares - 1.0 / whole[:, None]])
    lift = tilted - log_mean

    short = wanted - theta
    value = float(np.sum(short * log_pi) + gam_theta.sum() - gam_rows.sum())
    each = np.log(alpha) + mean_log - gam_mean.reshape(mean.shape) - alpha * mean * lift
    value += float(np.sum(n_children * each) + len(rows) * gammaln(alpha))
    value += float(gam_ab.sum() - gam_total.sum() - k * betaln(1.0, gamma))
    value += float(np.sum((1.0 - a) * (psi_ab[0] - psi_total) + (gamma - b) * (psi_ab[1] - psi_total)))

    below = np.zeros_like(mean)
    np.add.at(below, parents, log_pi)
    by_mean = alpha * mean * (below + n_children * (1.0 - psi_mean - lift))
    by_tilted = -alpha * n_children * mean
    sizes = np.cumsum([2 * k, k, shares.size])
    tri_ab, tri_total, tri_shares, tri_whole = np.split(
        zeta(2.0, np.concatenate([ab.ravel(), total, shares.ravel(), whole])), sizes
    )
    tri_ab, tri_shares, tri_whole = tri_ab.reshape(2, k), tri_shares.reshape(shares.shape), tri_whole[:, None]
    slopes = np.stack([by_mean[0], np.full(k + 1, n_children[0, 0]), by_tilted[0]])
    passing = np.cumsum(slopes[:, ::-1], axis=1)[:, ::-1][:, 1:]
    of_ab = np.stack([1.0 / ab, tri_ab, tri_ab - 1.0 / (ab * ab)], axis=1)
    of_total = np.stack([more, tri_total, tri_total - more * more])
    shared = np.sum((slopes[:, :-1] + passing) * of_total, axis=0)
    shared = shared + (1.0 - a + gamma - b) * tri_total
    by_a = np.sum(slopes[:, :-1] * of_ab[0], axis=0) + (1.0 - a) * tri_ab[0] - shared
    by_b = np.sum(passing * of_ab[1], axis=0) + (gamma - b) * tri_ab[1] - shared
    out = [a * by_a, b * by_b]
    if len(shares):
        by_mean, by_log, by_tilted = by_mean[1:], n_children[1:] + short[: len(shares)], by_tilted[1:]
        own = by_mean / shares + by_log * tri_shares + by_tilted * (tri_shares - 1.0 / (shares * shares))
        own -= (by_mean.sum(axis=1) / whole)[:, None] + by_log.sum(axis=1, keepdims=True) * tri_whole
        last = by_tilted.sum(axis=1, keepdims=True) * (tri_whole - 1.0 / (whole * whole)[:, None])
        out.append((shares * (own - last)).ravel())
    return value, np.concatenate(out)
