"""Counts of words under Dirichlet priors: documents seated one after the other, drawn by Gibbs, or seated again."""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.options import INNER, copy_into, njit
from bnp_dask.kernels.streaming.nggp import seat_rule, weight_of
from bnp_dask.kernels.streaming.seating import give_up, note_left, note_seated, seat_atom, standing, weigh
from bnp_dask.kernels.streaming.sticks import choose_cluster, free_position, longer, prior_weights, wider

# -- filter -------------------------------------------------------------------------------------------------------
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


# -- Gibbs sampling of a minibatch, given the posterior before it -------------------------------------------------
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
            copy_into(labels[sweep - first], z)
            for i in range(n):
                if z[i] != NONE:
                    kept[z[i]] = True
    return n_clusters, logs


# -- reseating: each document leaves its cluster and draws one given all others -----------------------------------
@njit(nogil=True, cache=True)
def _put_or_take(words, held, times, k, table, totals):
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
        _put_or_take(words, held, -1.0, old, table, totals)
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
        _put_or_take(words, held, 1.0, k, table, totals)
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
