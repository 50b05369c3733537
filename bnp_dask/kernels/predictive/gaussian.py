"""Gaussians whose parameters are integrated out; and the predictive density of single atoms, of several likelihoods."""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.options import INNER, copy_into, njit
from bnp_dask.kernels.predictive.counts import NONE
from bnp_dask.kernels.predictive.urns import (
    choose_cluster,
    free_position,
    give_up,
    longer,
    note_left,
    note_seated,
    prior_weights,
    seat_atom,
    standing,
    weigh,
)

# =====================================================================================================================
# Gaussians of full covariance under Normal-Wishart priors: points seated one after the other, or drawn by Gibbs.
# =====================================================================================================================


# -- filter -------------------------------------------------------------------------------------------------------
LOST = 1e-6
"""Remaining share of a squared pivot after a point is taken out, below which too many digits are lost."""


@njit(nogil=True, cache=True)
def student_constant(nu, kappa, log_det, d):
    """Log density of a Student t with nu - D + 1 degrees of freedom at its center, nats."""
    constant = math.lgamma(0.5 * (nu + 1.0)) - math.lgamma(0.5 * (nu - d + 1.0))
    return constant - 0.5 * (d * math.log(math.pi * (1.0 + 1.0 / kappa)) + log_det)


@njit(nogil=True, cache=True, fastmath={"contract"})
def log_predictive_points(x, means, roots, inverse, nu, kappa, constant, n_clusters, y, log_pred):
    """Student log densities of one point under K clusters and, at position K, the prior, by forward substitution."""
    d, wide = len(x), n_clusters + 1
    for k in range(wide):
        log_pred[k] = 0.0
    for i in range(d):
        row = y[i]
        for k in range(wide):
            row[k] = x[i] - means[i, k]
        for j in range(i):
            root, before = roots[i, j], y[j]
            for k in range(wide):
                row[k] -= root[k] * before[k]
        for k in range(wide):
            row[k] *= inverse[i, k]
            log_pred[k] += row[k] * row[k]
    for k in range(wide):
        stretch = 1.0 + 1.0 / kappa[k]
        log_pred[k] = constant[k] - 0.5 * (nu[k] + 1.0) * math.log1p(log_pred[k] / stretch)


@njit(nogil=True, cache=True)
def add_point(x, share, k, means, roots, inverse, nu, kappa, constant, v):
    """Add a share of a point to cluster ``k``: its mean moves, its scale matrix gets a product, by a rank-one update
    of the Cholesky factor."""
    d = len(x)
    pull = share * kappa[k] / (kappa[k] + share)
    kappa[k] += share
    nu[k] += share
    scale = math.sqrt(pull)
    for i in range(d):
        away = x[i] - means[i, k]
        means[i, k] += share / kappa[k] * away
        v[i] = scale * away
    log_det = 0.0
    for i in range(d):
        old = roots[i, i, k]
        length = math.sqrt(old * old + v[i] * v[i])
        c, s = length / old, v[i] / old
        roots[i, i, k] = length
        inverse[i, k] = 1.0 / length
        log_det += 2.0 * math.log(length)
        for j in range(i + 1, d):
            roots[j, i, k] = (roots[j, i, k] + s * v[j]) / c
            v[j] = c * v[j] - s * roots[j, i, k]
    constant[k] = student_constant(nu[k], kappa[k], log_det, d)


@njit(nogil=True, cache=True)
def take_point(x, share, k, means, roots, inverse, nu, kappa, constant, v):
    """Inverse of :func:`add_point`, by hyperbolic rotations; returns whether enough digits remain."""
    d = len(x)
    kept = kappa[k] - share
    pull = share * kappa[k] / kept
    scale = math.sqrt(pull)
    for i in range(d):
        away = x[i] - means[i, k]
        means[i, k] -= share / kept * away
        v[i] = scale * away
    kappa[k] = kept
    nu[k] -= share
    log_det = 0.0
    for i in range(d):
        old = roots[i, i, k]
        square = old * old - v[i] * v[i]
        if not square > LOST * old * old:
            return False
        length = math.sqrt(square)
        c, s = length / old, v[i] / old
        roots[i, i, k] = length
        inverse[i, k] = 1.0 / length
        log_det += 2.0 * math.log(length)
        for j in range(i + 1, d):
            roots[j, i, k] = (roots[j, i, k] - s * v[j]) / c
            v[j] = c * v[j] - s * roots[j, i, k]
    constant[k] = student_constant(nu[k], kappa[k], log_det, d)
    return True


@njit(**INNER)
def _reset(k, place, tables, start):
    """Give position ``k`` of ``tables`` the parameters that ``place`` has in ``start``."""
    means, roots, inverse, nu, kappa, constant = tables
    means0, roots0, inverse0, nu0, kappa0, constant0 = start
    for i in range(len(means)):
        means[i, k], inverse[i, k] = means0[i, place], inverse0[i, place]
        for j in range(len(means)):
            roots[i, j, k] = roots0[i, j, place]
    nu[k], kappa[k], constant[k] = nu0[place], kappa0[place], constant0[place]


@njit(nogil=True, cache=True)
def filter_gaussian(x, weights, urn, epsilon, old, tables, n_clusters, first, out):
    """Seat centred points ``x (n, D)`` in order; arguments and results as in
    :func:`~bnp_dask.kernels.predictive.counts.filter_counts`.

    ``tables`` are ``means (D, C), roots (D, D, C), inverse (D, C), nu (C,), kappa (C,), constant (C,), counts (C,),
    absent (C,)``, where ``roots`` are lower Cholesky factors of the scale matrices and ``inverse`` one over their
    diagonals; all positions from K on are the prior.  The kernel also ends, with room left, if a point cannot be
    taken out of its old clusters without a loss of digits: all tables must then be computed anew, without it.
    """
    means, roots, inverse, nu, kappa, constant, counts, absent = tables
    offsets, index, value, logs = out
    sites, places, shares, least = old
    room, d = len(counts), x.shape[1]
    mass, expected, mode = standing(counts, absent, n_clusters)
    log_pred, resp, seats = np.empty(room), np.empty(room), np.empty(room)
    y, v = np.empty((d, room)), np.empty(d)
    for n in range(first, len(weights)):
        used = offsets[n]
        if n_clusters + 1 >= room or used + n_clusters + 1 > len(index):
            return n_clusters, n
        offsets[n + 1], logs[n] = used, 0.0
        if weights[n] == 0.0:
            continue
        vacant = -1
        for s in range(sites[n], sites[n + 1]):
            k = places[s]
            if counts[k] > 0.0 and shares[s] > 0.0:
                share = weights[n] * shares[s]
                less, fall, empty = note_left(counts, absent, k, weights[n], shares[s])
                mass, expected = mass - less, expected - fall
                if empty:
                    vacant = k
                    _reset(k, n_clusters, tables[:6], tables[:6])
                elif not take_point(x[n], share, k, means, roots, inverse, nu, kappa, constant, v):
                    return n_clusters, n
        new, mode = weigh(urn, counts, absent, n_clusters, mass, expected, mode, seats)
        log_predictive_points(x[n], means, roots, inverse, nu, kappa, constant, n_clusters, y, log_pred)
        logs[n], opened = seat_atom(log_pred, seats, n_clusters, new, epsilon, resp)
        if opened and vacant >= 0:
            resp[vacant] = resp[n_clusters]
        else:
            n_clusters += opened
        for k in range(n_clusters):
            if resp[k] == 0.0:
                continue
            index[used], value[used] = k, resp[k]
            used += 1
            share = weights[n] * resp[k]
            counts[k] += share
            add_point(x[n], share, k, means, roots, inverse, nu, kappa, constant, v)
            expected += note_seated(absent, k, weights[n], resp[k])
        offsets[n + 1] = used
        mass += weights[n]
        if least > 0.0:
            less, fall = give_up(counts, absent, n_clusters, least)
            mass, expected = mass - less, expected - fall
    return n_clusters, len(weights)


# -- Gibbs sampling of a minibatch, given the posterior before it -------------------------------------------------
@njit(nogil=True, cache=True)
def _widened(tables, start, more):
    """Tables with room for more clusters, whose parameters are the prior's, the last position of ``start``."""
    d, room = tables[0].shape
    wide = room + more
    out = (
        np.empty((d, wide)), np.empty((d, d, wide)), np.empty((d, wide)), np.empty(wide), np.empty(wide), np.empty(wide)
    )  # fmt: skip
    for k in range(room):
        _reset(k, k, out, tables)
    for k in range(room, wide):
        _reset(k, len(start[3]) - 1, out, start)
    return out


@njit(nogil=True, cache=True)
def gibbs_gaussian(x, weights, believed, start, gamma, uniform, labels):
    """Draw the cluster of each centred point ``x (n, D)``; arguments and results as in
    :func:`~bnp_dask.kernels.predictive.counts.gibbs_counts`.

    ``believed`` are ``order (K,), counts (K,)``; ``start`` are ``means (D, K + 1), roots (D, D, K + 1), inverse (D, K +
    1), nu (K + 1,), kappa (K + 1,), constant (K + 1,)``, the prior last.
    """
    order, counts = believed
    n, known, d = len(weights), len(order), x.shape[1]
    n_clusters, room = known, known + 1
    tables = _widened(start, start, 8)
    room += 8
    own, members, kept = np.zeros(room), np.zeros(room, np.int64), np.zeros(room, np.bool_)
    share, log_pred, part, y, v = np.empty(room), np.empty(room), np.empty(room), np.empty((d, room)), np.empty(d)
    z = np.full(n, NONE)
    first, logs = len(uniform) - len(labels), 0.0
    for sweep in range(len(uniform)):
        for i in range(n):
            if weights[i] == 0.0:
                continue
            old = z[i]
            if old != NONE:
                z[i] = NONE
                own[old] -= weights[i]
                members[old] -= 1
                means, roots, inverse, nu, kappa, constant = tables
                place = old if old < known else known
                if members[old] == 0:
                    own[old] = 0.0
                    _reset(old, place, tables, start)
                elif not take_point(x[i], weights[i], old, means, roots, inverse, nu, kappa, constant, v):
                    _reset(old, place, tables, start)
                    for j in range(n):
                        if z[j] == old:
                            add_point(x[j], weights[j], old, means, roots, inverse, nu, kappa, constant, v)
            if n_clusters + 1 >= room:
                more = room + 8
                tables = _widened(tables, start, more)
                own, members, kept = longer(own, more), longer(members, more), longer(kept, more)
                room += more
                share, log_pred, part, y = np.empty(room), np.empty(room), np.empty(room), np.empty((d, room))
            means, roots, inverse, nu, kappa, constant = tables
            prior_weights(order, counts, own, n_clusters, gamma, share)
            log_predictive_points(x[i], means, roots, inverse, nu, kappa, constant, n_clusters, y, log_pred)
            k, level = choose_cluster(log_pred, share, n_clusters, uniform[sweep, i], part)
            if k == n_clusters:
                k = free_position(members, kept, known, n_clusters)
                n_clusters = max(n_clusters, k + 1)
            if sweep == 0:
                logs += weights[i] * level
            z[i] = k
            own[k] += weights[i]
            members[k] += 1
            add_point(x[i], weights[i], k, means, roots, inverse, nu, kappa, constant, v)
        if sweep >= first:
            copy_into(labels[sweep - first], z)
            for i in range(n):
                if z[i] != NONE:
                    kept[z[i]] = True
    return n_clusters, logs


# =====================================================================================================================
# Log predictive density of one atom in a cluster that a few atoms have joined since its parameters were computed.
#
# All take ``x (n, D)``, the ``others (m,)`` among its rows that joined, the row ``i`` of the atom, and the parameters
# of the cluster without any of these.  Sums run over few rows, so a summary of the cluster would not pay.
# =====================================================================================================================

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
