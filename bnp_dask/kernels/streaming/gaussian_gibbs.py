"""Clusters of the points of a minibatch, drawn from their joint distribution given the posterior before it."""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.options import INNER, njit
from bnp_dask.kernels.streaming.counts_gibbs import NONE
from bnp_dask.kernels.streaming.gaussian import add_point, log_predictive_points, take_point
from bnp_dask.kernels.streaming.sticks import choose_cluster, free_position, longer, prior_weights


@njit(**INNER)
def _reset(k, place, tables, start):
    """Give position ``k`` the parameters that ``place`` had before the minibatch."""
    means, roots, inverse, nu, kappa, constant = tables
    means0, roots0, inverse0, nu0, kappa0, constant0 = start
    means[:, k] = means0[:, place]
    roots[:, :, k] = roots0[:, :, place]
    inverse[:, k] = inverse0[:, place]
    nu[k], kappa[k], constant[k] = nu0[place], kappa0[place], constant0[place]


@njit(nogil=True, cache=True)
def _widened(tables, start, more):
    """Tables with room for more clusters, whose parameters are the prior's, the last position of ``start``."""
    means, roots, inverse, nu, kappa, constant = tables
    d, room = means.shape
    wide = room + more
    out = (
        np.empty((d, wide)), np.empty((d, d, wide)), np.empty((d, wide)), np.empty(wide), np.empty(wide), np.empty(wide)
    )  # fmt: skip
    out[0][:, :room] = means
    out[1][:, :, :room] = roots
    out[2][:, :room] = inverse
    out[3][:room], out[4][:room], out[5][:room] = nu, kappa, constant
    for k in range(room, wide):
        _reset(k, len(start[3]) - 1, out, start)
    return out


@njit(nogil=True, cache=True)
def gibbs_gaussian(x, weights, believed, start, gamma, uniform, labels):
    """Draw the cluster of each centred point ``x (n, D)``; arguments and results as in
    :func:`~bnp_dask.kernels.streaming.counts_gibbs.gibbs_counts`.

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
            labels[sweep - first] = z
            for i in range(n):
                if z[i] != NONE:
                    kept[z[i]] = True
    return n_clusters, logs
