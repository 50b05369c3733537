"""Filter of counts of words under Dirichlet priors: documents seated one after the other."""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.options import INNER, njit
from bnp_dask.kernels.streaming.seating import give_up, note_left, note_seated, seat_atom, standing, weigh

CHUNK, LEAST = 16, 1e-18
"""Number of factors multiplied before a logarithm is taken: from 1e-18 to 1e15 each, they stay within double range; one
at a time if a prior is smaller."""

MANY = 64.0
"""Count of a word above which the rising factorial is a difference of log Gammas."""


@njit(nogil=True, cache=True)
def log_predictive_counts(words, held, prior, prior_total, chunk, table, totals, n_clusters, factors, log_pred):
    """Dirichlet-multinomial log densities of one document, without its coefficient, under K clusters and the prior."""
    wide = n_clusters + 1
    length = 0.0
    for k in range(wide):
        log_pred[k] = 0.0
        factors[k] = 1.0
    pending = 0
    for j in range(len(words)):
        word, count = words[j], held[j]
        if count <= 0.0:
            continue
        length += count
        base, row = prior[word], table[word]
        if count > MANY:
            for k in range(wide):
                log_pred[k] += math.lgamma(base + row[k] + count) - math.lgamma(base + row[k])
            continue
        for c in range(int(count)):
            more = base + c
            for k in range(wide):
                factors[k] *= row[k] + more
            pending += 1
            if pending == chunk:
                for k in range(wide):
                    log_pred[k] += math.log(factors[k])
                    factors[k] = 1.0
                pending = 0
    for k in range(wide):
        whole = prior_total + totals[k]
        log_pred[k] += math.log(factors[k]) - math.lgamma(whole + length) + math.lgamma(whole)
    return length


@njit(**INNER)
def _take_document(words, held, share, table, totals, k, empty):
    """Take a share of a document out of cluster ``k``, or clear the cluster if it is then ``empty``."""
    if empty:
        table[:, k] = 0.0
        totals[k] = 0.0
        return
    for j in range(len(words)):
        kept = max(table[words[j], k] - share * held[j], 0.0)
        totals[k] -= table[words[j], k] - kept
        table[words[j], k] = kept


@njit(nogil=True, cache=True)
def filter_counts(rows, prior, weights, urn, epsilon, old, tables, n_clusters, first, out):
    """Seat documents in order, until the last or until tables or lists are full.

    Parameters
    ----------
    rows
        ``indptr, indices, data`` of counts, ``(n, V)``.
    prior
        Pseudo-counts, ``(V,)``.
    weights
        Weights of the documents, ``(n,)``; documents of weight zero belong to no cluster.
    urn
        :meth:`~bnp_dask.kernels.streaming.urn.Urn.packed`.
    epsilon
        Probability above which a new cluster is opened.
    old
        ``offsets (n + 1,), index (L,), value (L,), least``: responsibilities of the visit before, which are part of the
        tables and leave them atom by atom, and the least content of a cluster, below which it is closed.
    tables
        ``words (V, C), totals (C,), counts (C,), absent (C,)`` of the clusters, with room for C; position K is empty.
        Updated.
    n_clusters, first
        K, and the first document.
    out
        ``offsets (n + 1,), index (M,), value (M,), logs (n,)``: responsibilities in lists, log predictive densities.

    Returns
    -------
    n_clusters, next
        K, and the document to go on with.
    """
    indptr, indices, data = rows
    table, totals, counts, absent = tables
    offsets, index, value, logs = out
    sites, places, shares, least = old
    room = len(counts)
    prior_total = prior.sum()
    chunk = CHUNK if prior.min() > LEAST else 1
    mass, expected, mode = standing(counts, absent, n_clusters)
    log_pred, factors, resp, seats = np.empty(room), np.empty(room), np.empty(room), np.empty(room)
    for n in range(first, len(weights)):
        used = offsets[n]
        if n_clusters + 1 >= room or used + n_clusters + 1 > len(index):
            return n_clusters, n
        offsets[n + 1], logs[n] = used, 0.0
        if weights[n] == 0.0:
            continue
        words, held = indices[indptr[n] : indptr[n + 1]], data[indptr[n] : indptr[n + 1]]
        vacant = -1
        for s in range(sites[n], sites[n + 1]):
            k = places[s]
            if counts[k] > 0.0:
                share = weights[n] * shares[s]
                less, fall, empty = note_left(counts, absent, k, weights[n], shares[s])
                mass, expected = mass - less, expected - fall
                _take_document(words, held, share, table, totals, k, empty)
                vacant = k if empty else vacant
        new, mode = weigh(urn, counts, absent, n_clusters, mass, expected, mode, seats)
        length = log_predictive_counts(
            words, held, prior, prior_total, chunk, table, totals, n_clusters, factors, log_pred
        )
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
            totals[k] += share * length
            for j in range(len(words)):
                table[words[j], k] += share * held[j]
            expected += note_seated(absent, k, weights[n], resp[k])
        offsets[n + 1] = used
        mass += weights[n]
        if least > 0.0:
            less, fall = give_up(counts, absent, n_clusters, least)
            mass, expected = mass - less, expected - fall
    return n_clusters, len(weights)
