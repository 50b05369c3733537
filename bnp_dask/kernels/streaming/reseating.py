"""Reseating of atoms: each leaves its cluster and draws one given the clusters of all others."""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.options import njit
from bnp_dask.kernels.streaming.counts import CHUNK, LEAST, log_predictive_counts
from bnp_dask.kernels.streaming.nggp import seat_rule, weight_of
from bnp_dask.kernels.streaming.sticks import choose_cluster, longer, wider


@njit(nogil=True, cache=True)
def _move(words, held, times, k, table, totals):
    """Add a document to a cluster, or take it out: ``times`` is 1 or -1."""
    for j in range(len(words)):
        now = max(table[words[j], k] + times * held[j], 0.0)
        totals[k] += now - table[words[j], k]
        table[words[j], k] = now


@njit(nogil=True, cache=True)
def reseat_counts(rows, prior, urn, tables, places, order, uniform):
    """Draw the cluster of each document given the clusters of all others (Neal 2000, Alg. 3).

    Parameters
    ----------
    rows
        ``indptr, indices, data`` of counts, ``(n, V)``.
    prior
        Pseudo-counts, ``(V,)``.
    urn
        :meth:`~bnp_dask.kernels.streaming.urn.Seats.packed`.
    tables
        ``words (V, K), totals (K,), counts (K,)`` of the clusters of all data, these documents among them; changed.
    places
        Positions of the clusters of the documents, ``(n,)``; updated.  New clusters have positions from K on.
    order
        Order in which documents leave their clusters, ``(n,)``.
    uniform
        Numbers in [0, 1), ``(n,)``.

    Returns
    -------
    n_clusters
        Number of positions in use; some may be empty.
    """
    indptr, indices, data = rows
    a, sigma, tau, rule, by_count, _ = urn
    table, totals, counts = tables
    known = len(counts)
    n_clusters, room = known, known + 8
    table, totals, counts = wider(table, 8), longer(totals, 8), longer(counts, 8)
    rest, occupied, met, seat, new = counts.sum() - 1.0, 0, -1, 0.0, 0.0
    for k in range(known):
        occupied += counts[k] > 0.5
    mode, prior_total = math.log(rest + 2.0), prior.sum()
    chunk = CHUNK if prior.min() > LEAST else 1
    weight, log_pred, factors, part = np.empty(room), np.empty(room), np.empty(room), np.empty(room)
    for step in range(len(order)):
        i = order[step]
        words, held = indices[indptr[i] : indptr[i + 1]], data[indptr[i] : indptr[i + 1]]
        old = places[i]
        counts[old] -= 1.0
        _move(words, held, -1.0, old, table, totals)
        if counts[old] < 0.5:
            table[:, old], totals[old], counts[old] = 0.0, 0.0, 0.0
            occupied -= 1
        if n_clusters + 1 >= room:
            table, totals, counts = wider(table, room), longer(totals, room), longer(counts, room)
            room *= 2
            weight, log_pred, factors, part = np.empty(room), np.empty(room), np.empty(room), np.empty(room)
        if occupied != met:
            seat, new, mode = seat_rule(rest, float(occupied), a, sigma, tau, rule, mode)
            met = occupied
        log_predictive_counts(words, held, prior, prior_total, chunk, table, totals, n_clusters, factors, log_pred)
        free = n_clusters
        for k in range(n_clusters - 1, -1, -1):
            weight[k] = seat * weight_of(counts[k], sigma, by_count) if counts[k] > 0.5 else 0.0
            if counts[k] < 0.5 and k >= known:
                free = k
        weight[n_clusters] = new
        k, _ = choose_cluster(log_pred, weight, n_clusters, uniform[step], part)
        if k == n_clusters:
            k = free
            n_clusters = max(n_clusters, k + 1)
            occupied += 1
        counts[k] += 1.0
        _move(words, held, 1.0, k, table, totals)
        places[i] = k
    return n_clusters


@njit(nogil=True, cache=True)
def propose(table, weight, uniform, out, level):
    """A position for each atom, drawn in proportion to ``weight exp(log density)``.

    Parameters
    ----------
    table
        Log densities under K clusters and, last, a new one, ``(n, K + 1)`` nats.
    weight
        ``(K + 1,)``.
    uniform
        Numbers in [0, 1), ``(n,)``.
    out, level
        Filled with the positions, K for a new cluster, and the logs of the sums, ``(n,)``.
    """
    n, wide = table.shape
    part = np.empty(wide)
    for i in range(n):
        out[i], level[i] = choose_cluster(table[i], weight, wide - 1, uniform[i], part)
