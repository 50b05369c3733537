"""Clusters of the documents of a minibatch, drawn from their joint distribution given the posterior before it."""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.options import njit
from bnp_dask.kernels.streaming.counts import CHUNK, LEAST, log_predictive_counts
from bnp_dask.kernels.streaming.sticks import choose_cluster, free_position, longer, prior_weights, wider

NONE = -1
"""Cluster of an atom that has none yet."""


@njit(nogil=True, cache=True)
def _move(words, held, times, k, table, totals):
    """Add a document to a cluster ``times`` times; a negative number takes it out."""
    for j in range(len(words)):
        table[words[j], k] += times * held[j]
        totals[k] += times * held[j]


@njit(nogil=True, cache=True)
def gibbs_counts(rows, prior, weights, believed, gamma, uniform, labels):
    """Draw the cluster of each document given the clusters of all others in the minibatch, sweep by sweep.

    The first sweep seats them in order, each given the documents before it.

    Parameters
    ----------
    rows
        ``indptr, indices, data`` of counts, ``(n, R)``.
    prior
        Pseudo-counts of these words, ``(R,)``, and the sum over all words.
    weights
        Weights of the documents, ``(n,)``; documents of weight zero get no cluster.
    believed
        ``order (K,), counts (K,), words (R, C), totals (C,)`` of the known clusters, without pseudo-counts; with room
        for C.  The last two are changed, and may be copied to get more room.
    gamma
        Concentration.
    uniform
        Numbers in [0, 1), ``(sweeps, n)``.
    labels
        Filled with the positions that the last sweeps give, ``(samples, n)``; -1: none.

    Returns
    -------
    n_clusters, log_predictive
        K and the clusters opened; sum over documents of weight times log predictive density in the first sweep, without
        coefficients, nats.
    """
    indptr, indices, data = rows
    each, prior_total = prior
    order, counts, table, totals = believed
    n, known = len(weights), len(order)
    n_clusters, room = known, len(totals)
    chunk = CHUNK if each.min() > LEAST else 1
    own, members, kept = np.zeros(room), np.zeros(room, np.int64), np.zeros(room, np.bool_)
    share, log_pred, factors, part = np.empty(room), np.empty(room), np.empty(room), np.empty(room)
    z = np.full(n, NONE)
    first, logs = len(uniform) - len(labels), 0.0
    for sweep in range(len(uniform)):
        for i in range(n):
            if weights[i] == 0.0:
                continue
            words, held = indices[indptr[i] : indptr[i + 1]], data[indptr[i] : indptr[i + 1]]
            old = z[i]
            if old != NONE:
                own[old] -= weights[i]
                members[old] -= 1
                _move(words, held, -weights[i], old, table, totals)
                if members[old] == 0:
                    own[old] = 0.0
                    if old >= known:
                        table[:, old] = 0.0
                        totals[old] = 0.0
            if n_clusters + 1 >= room:
                more = room + 8
                table, totals, own = wider(table, more), longer(totals, more), longer(own, more)
                members, kept = longer(members, more), longer(kept, more)
                room += more
                share, log_pred, factors, part = np.empty(room), np.empty(room), np.empty(room), np.empty(room)
            prior_weights(order, counts, own, n_clusters, gamma, share)
            log_predictive_counts(words, held, each, prior_total, chunk, table, totals, n_clusters, factors, log_pred)
            k, level = choose_cluster(log_pred, share, n_clusters, uniform[sweep, i], part)
            if k == n_clusters:
                k = free_position(members, kept, known, n_clusters)
                n_clusters = max(n_clusters, k + 1)
            if sweep == 0:
                logs += weights[i] * level
            z[i] = k
            own[k] += weights[i]
            members[k] += 1
            _move(words, held, weights[i], k, table, totals)
        if sweep >= first:
            labels[sweep - first] = z
            for i in range(n):
                if z[i] != NONE:
                    kept[z[i]] = True
    return n_clusters, logs
