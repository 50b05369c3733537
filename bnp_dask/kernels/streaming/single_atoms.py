"""Log predictive density of one atom in a cluster that a few atoms have joined since its parameters were computed.

All take ``x (n, D)``, the ``others (m,)`` among its rows that joined, the row ``i`` of the atom, and the parameters of
the cluster without any of these.  Sums run over few rows, so a summary of the cluster would not pay.
"""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.options import njit
from bnp_dask.kernels.streaming.gaussian import student_constant

LOG_2PI = math.log(2.0 * math.pi)


@njit(nogil=True, cache=True)
def _mean_of(x, others):
    """Mean of some rows, ``(D,)``; zeros for none."""
    out = np.zeros(x.shape[1])
    for row in others:
        for j in range(len(out)):
            out[j] += x[row, j]
    if len(others):
        out /= len(others)
    return out


@njit(nogil=True, cache=True)
def gaussian_density(x, others, i, mean, scale, nu, kappa, unrecorded):
    """Student density under a Normal-Wishart: ``mean (D,)``, ``scale (D, D)``; ``unrecorded (D, D)`` is the covariance
    of each atom about its recorded values."""
    m, d = len(others), x.shape[1]
    own, root = _mean_of(x, others), scale.copy()
    pull = kappa * m / (kappa + m)
    away = np.empty(d)
    for row in others:
        for j in range(d):
            away[j] = x[row, j] - own[j]
        for j in range(d):
            for c in range(j + 1):
                root[j, c] += away[j] * away[c]
    for j in range(d):
        away[j] = own[j] - mean[j]
    for j in range(d):
        for c in range(j + 1):
            root[j, c] += pull * away[j] * away[c] + m * unrecorded[j, c]
    share = m / (kappa + m)
    kappa, nu = kappa + m, nu + m
    log_det, squares = 0.0, 0.0
    for j in range(d):
        for c in range(j + 1):
            total = root[j, c]
            for b in range(c):
                total -= root[j, b] * root[c, b]
            if c < j:
                root[j, c] = total / root[c, c]
            else:
                root[j, j] = math.sqrt(total)
        log_det += 2.0 * math.log(root[j, j])
        whitened = x[i, j] - mean[j] - share * away[j]
        for c in range(j):
            whitened -= root[j, c] * own[c]
        own[j] = whitened / root[j, j]  # the mean is not needed again: its place holds the whitened atom
        squares += own[j] * own[j]
    return student_constant(nu, kappa, log_det, float(d)) - 0.5 * (nu + 1.0) * math.log1p(squares / (1.0 + 1.0 / kappa))


@njit(nogil=True, cache=True)
def diagonal_density(x, others, i, mean, beta, nu, kappa, unrecorded):
    """Product of Student densities under Normal-Gammas: ``mean, beta, unrecorded (D,)``."""
    m, d = len(others), x.shape[1]
    own, spread = _mean_of(x, others), np.zeros(d)
    for row in others:
        for j in range(d):
            spread[j] += (x[row, j] - own[j]) ** 2
    pull, share = kappa * m / (kappa + m), m / (kappa + m)
    kappa, nu = kappa + m, nu + m
    out = d * (math.lgamma(0.5 * (nu + 1.0)) - math.lgamma(0.5 * nu))
    for j in range(d):
        away = own[j] - mean[j]
        wide = (beta[j] + spread[j] + pull * away * away + m * unrecorded[j]) * (1.0 + 1.0 / kappa)
        off = x[i, j] - mean[j] - share * away
        out -= 0.5 * (math.log(math.pi * wide) + (nu + 1.0) * math.log1p(off * off / wide))
    return out


@njit(nogil=True, cache=True)
def known_variance_density(x, others, i, mean, variance, kappa):
    """Gaussian density where only the mean is unknown: ``mean, variance (D,)``."""
    m, own, out = len(others), _mean_of(x, others), 0.0
    share = m / (kappa + m)
    wider = 1.0 + 1.0 / (kappa + m)
    for j in range(x.shape[1]):
        off = x[i, j] - mean[j] - share * (own[j] - mean[j])
        out -= 0.5 * (LOG_2PI + math.log(wider * variance[j]) + off * off / (wider * variance[j]))
    return out


@njit(nogil=True, cache=True)
def bits_density(x, others, i, ones, zeros):
    """Probability of zeros and ones under Betas: ``ones, zeros (D,)``."""
    m, own, out = len(others), _mean_of(x, others), 0.0
    for j in range(x.shape[1]):
        first, second = ones[j] + m * own[j], zeros[j] + m * (1.0 - own[j])
        out += math.log((first if x[i, j] > 0.5 else second) / (first + second))
    return out


@njit(nogil=True, cache=True)
def rates_density(x, others, i, a, b):
    """Probability of counts under Gammas, negative binomials: ``a, b (D,)``."""
    m, own, out = len(others), _mean_of(x, others), 0.0
    for j in range(x.shape[1]):
        shape, rate, count = a[j] + m * own[j], b[j] + m, x[i, j]
        out += math.lgamma(shape + count) - math.lgamma(shape) - math.lgamma(count + 1.0)
        out -= shape * math.log1p(1.0 / rate) + count * math.log1p(rate)
    return out
