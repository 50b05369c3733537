"""Clusters of documents split in two and united by Metropolis & Hastings (Dahl 2005, sequentially allocated).

Moves of single atoms hardly ever split a large cluster, even if two would be much better.  Two documents are chosen at
random.  From one cluster: each other document of it joins one of the two, in a random order, given the documents that
joined before, and the split is accepted or not.  From two clusters: these are united, or not, and the probability of
the reverse move is the probability that such a split gives the current two clusters.
"""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.options import njit
from bnp_dask.kernels.streaming.counts import CHUNK, LEAST, log_predictive_counts
from bnp_dask.kernels.streaming.nggp import log_cumulant, seat_rule, weight_of
from bnp_dask.kernels.streaming.sticks import longer
from bnp_dask.kernels.topics.gibbs import next_uniform


@njit(nogil=True, cache=True)
def split_and_merge(rows, prior, urn, places, known, attempts, state):
    """Attempt splits and unions with equal probability.

    Parameters
    ----------
    rows
        ``indptr, indices, data`` of counts, ``(n, V)``: all documents.
    prior
        Pseudo-counts, ``(V,)``.
    urn
        :meth:`~bnp_dask.kernels.streaming.urn.Seats.packed`.
    places
        Positions of the clusters of the documents, ``(n,)``; updated.  New clusters have positions from ``known`` on.
    known
        Positions in use before.
    attempts
        Number of attempts.
    state
        State of the random numbers, ``(1,)`` uint64.

    Returns
    -------
    n_clusters
        Number of positions in use; some may be empty.
    """
    a, sigma, tau, rule, by_count, logs = urn
    n, n_clusters, occupied, mode = len(places), known, 0, math.log(len(places) + 1.0)
    counts, order = np.zeros(known + 8), np.empty(n, np.int64)
    table, totals, sizes = np.zeros((len(prior), 3)), np.zeros(3), np.zeros(2)
    for i in range(n):
        occupied += counts[places[i]] == 0.0
        counts[places[i]] += 1.0
    for _ in range(attempts):
        i, alike = int(next_uniform(state) * n), next_uniform(state) < 0.5
        here = places[i]
        pool = counts[here] - 1.0 if alike else n - counts[here]
        if pool == 0.0:
            continue
        j = _other(places, i, alike, int(next_uniform(state) * pool))
        there, level = places[j], math.log(max(next_uniform(state), 1e-300))
        m = _members(places, i, j, order, state)
        seat, new, mode = seat_rule(n - 1.0, float(occupied - (not alike)), a, sigma, tau, rule, mode)
        if alike:
            log_q = _allocate(rows, prior, sigma, by_count, places, i, j, order[:m], True, table, totals, sizes, state)
            away = sizes[0]
        else:
            _put_all(rows, places, i, j, order[:m], table, totals, sizes)
            log_q, away = 0.0, counts[here]
        gain = math.log(new / seat) + _evidence_of_two(table, totals, prior)
        gain += log_cumulant(sizes[0], sigma, logs) + log_cumulant(sizes[1], sigma, logs)
        gain -= log_cumulant(1.0, sigma, logs) + log_cumulant(m + 2.0, sigma, logs)
        gain += math.log((m + 1.0) / (n - away))  # ratio of the probabilities of choosing the two in the two states
        if alike:
            if level >= gain - log_q:
                continue
            free = n_clusters
            for k in range(n_clusters - 1, known - 1, -1):
                free = k if counts[k] == 0.0 else free
            n_clusters = max(n_clusters, free + 1)
            if n_clusters > len(counts):
                counts = longer(counts, len(counts))
            places[j] = free
            for s in range(m):
                if order[s] < 0:  # allocated to the second
                    places[-1 - order[s]] = free
            counts[here], counts[free] = sizes[0], sizes[1]
            occupied += 1
            continue
        if level >= -gain:  # the probability of the reverse move is at most one
            continue
        log_q = _allocate(rows, prior, sigma, by_count, places, i, j, order[:m], False, table, totals, sizes, state)
        if level < log_q - gain:
            for s in range(m):
                document = order[s] if order[s] >= 0 else -1 - order[s]
                places[document] = here
            places[j] = here
            counts[here], counts[there] = m + 2.0, 0.0
            occupied -= 1
    return n_clusters


@njit(nogil=True, cache=True)
def _other(places, i, alike, left):
    """Document number ``left``, from 0, in the cluster of ``i`` if ``alike``, else in the other clusters."""
    for j in range(len(places)):
        if j != i and (places[j] == places[i]) == alike:
            if left == 0:
                return j
            left -= 1
    return -1


@njit(nogil=True, cache=True)
def _members(places, i, j, order, state):
    """The other documents in the clusters of two, in a random order, and their number."""
    m = 0
    for document in range(len(places)):
        if document != i and document != j and (places[document] == places[i] or places[document] == places[j]):
            order[m] = document
            m += 1
    for s in range(m - 1, 0, -1):
        t = int(next_uniform(state) * (s + 1))
        order[s], order[t] = order[t], order[s]
    return m


@njit(nogil=True, cache=True)
def _put(rows, document, side, table, totals, sizes):
    indptr, indices, data = rows
    for place in range(indptr[document], indptr[document + 1]):
        table[indices[place], side] += data[place]
        totals[side] += data[place]
    sizes[side] += 1.0


@njit(nogil=True, cache=True)
def _put_all(rows, places, i, j, order, table, totals, sizes):
    """Fill the columns 0 and 1 with the words of the clusters of two documents."""
    table[:], totals[:], sizes[:] = 0.0, 0.0, 0.0
    _put(rows, i, 0, table, totals, sizes)
    _put(rows, j, 1, table, totals, sizes)
    for document in order:
        _put(rows, document, int(places[document] != places[i]), table, totals, sizes)


@njit(nogil=True, cache=True)
def _allocate(rows, prior, sigma, by_count, places, i, j, order, freely, table, totals, sizes, state):
    """Let documents join one of two in order, freely or as they are now; log probability of the outcome, nats.

    Columns 0 and 1 of ``table (V, 3)`` hold the words of both sides after that.  Documents on the second side are
    ``-1 - document`` in ``order``.
    """
    indptr, indices, data = rows
    log_pred, factors, out = np.empty(3), np.empty(3), 0.0
    prior_total, chunk = prior.sum(), CHUNK if prior.min() > LEAST else 1
    table[:], totals[:], sizes[:] = 0.0, 0.0, 0.0
    _put(rows, i, 0, table, totals, sizes)
    _put(rows, j, 1, table, totals, sizes)
    for s in range(len(order)):
        document = order[s]
        own = slice(indptr[document], indptr[document + 1])
        log_predictive_counts(indices[own], data[own], prior, prior_total, chunk, table, totals, 2, factors, log_pred)
        odds = (
            log_pred[1]
            - log_pred[0]
            + math.log(weight_of(sizes[1], sigma, by_count) / weight_of(sizes[0], sigma, by_count))
        )
        first = -math.log1p(math.exp(odds)) if odds < 700.0 else -odds
        if freely:
            side = int(next_uniform(state) >= math.exp(first))
        else:
            side = int(places[document] != places[i])
        out += first + side * odds
        if side == 1:
            order[s] = -1 - document
        _put(rows, document, side, table, totals, sizes)
    return out


@njit(nogil=True, cache=True)
def _evidence_of_two(table, totals, prior):
    """Log evidence of the words in columns 0 and 1 as two clusters, minus the log evidence as one, nats."""
    whole, out = prior.sum(), 0.0
    for w in range(len(prior)):
        first, second, base = table[w, 0], table[w, 1], prior[w]
        if first > 0.0 and second > 0.0:  # else both sides are equal
            out += math.lgamma(base + first) + math.lgamma(base + second)
            out -= math.lgamma(base) + math.lgamma(base + first + second)
    out += math.lgamma(whole) - math.lgamma(whole + totals[0])
    return out - math.lgamma(whole + totals[1]) + math.lgamma(whole + totals[0] + totals[1])
