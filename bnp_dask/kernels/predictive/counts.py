"""Counts of words under Dirichlet priors, whose parameters are integrated out: mixtures of documents, and topics."""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.options import INNER, copy_into, njit
from bnp_dask.kernels.predictive.urns import (
    choose_cluster,
    free_position,
    give_up,
    log_cumulant,
    longer,
    note_left,
    note_seated,
    prior_weights,
    seat_atom,
    seat_rule,
    standing,
    weigh,
    weight_of,
    wider,
)
from bnp_dask.kernels.topics.tokens import next_uniform

# =====================================================================================================================
# Counts of words under Dirichlet priors: documents seated one after the other, drawn by Gibbs, or seated again.
# =====================================================================================================================


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
        :meth:`~bnp_dask.kernels.predictive.urns.Urn.packed`.
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
        :meth:`~bnp_dask.kernels.predictive.urns.Seats.packed`.
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


# =====================================================================================================================
# Clusters of documents split in two and united by Metropolis & Hastings (Dahl 2005, sequentially allocated).
#
# Moves of single atoms hardly ever split a large cluster, even if two would be much better.  Two documents are chosen
# at random.  From one cluster: each other document of it joins one of the two, in a random order, given the documents
# that joined before, and the split is accepted or not.  From two clusters: these are united, or not, and the
# probability of the reverse move is the probability that such a split gives the current two clusters.
# =====================================================================================================================


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
        :meth:`~bnp_dask.kernels.predictive.urns.Seats.packed`.
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


# =====================================================================================================================
# Topics of the tokens of a minibatch, drawn given top-level weights and the posterior of words before it.
# =====================================================================================================================


@njit(nogil=True, cache=True)
def _widened(table, totals, own_words, prior_total, more):
    """Table with room for more topics, which start at the prior."""
    rows, room = table.shape
    out, sums = np.empty((rows, room + more)), np.full(room + more, prior_total)
    for r in range(rows):
        copy_into(out[r], table[r])
        out[r, room:] = own_words[r]
    copy_into(sums, totals)
    return out, sums


@njit(**INNER)
def _take_token(v, k, times, n_known, prior, weight, members, table, totals):
    """Take a token out of a topic; return the weight that is freed if it was the last of a topic opened here."""
    own_words, prior_total = prior
    members[k] -= 1
    table[v, k] -= times
    totals[k] -= times
    if members[k] > 0 or k < n_known:
        return 0.0
    copy_into(table[:, k], own_words)
    totals[k] = prior_total
    free = weight[k]
    weight[k] = 0.0
    return free


@njit(nogil=True, cache=True)
def sweep_topics(tokens, prior, weights, sticks, believed, places, state):
    """Draw the topic of each token given the topics of all others in the minibatch (Wang & Blei 2012, S.2.2).

    Parameters
    ----------
    tokens
        ``offsets (n + 1,), words (T,), topics (T,)``: rows of the table, and positions, which are overwritten; -1: none
        yet.
    prior
        Pseudo-counts of words ``(R,)``, and their sum over all words.
    weights
        Weights of the documents, ``(n,)``; tokens of documents of weight zero get no topic.
    sticks
        ``weight (C,)`` of topics at the top level, ``rest`` beside all of them, ``alpha`` and ``gamma``.
    believed
        ``table (R, C), totals (C,)``: words of topics, with pseudo-counts and the tokens of the minibatch; unused
        positions equal the prior.
    places
        ``n_known, n_topics, members (C,), kept (C,)``: topics from before the minibatch, positions in use, tokens of
        the minibatch in each, and whether a sample has it.
    state
        State of the random numbers, ``(1,)`` uint64; advanced.

    Returns
    -------
    n_topics, weight, rest, table, totals, members, kept, log_predictive
        As given, with more room if needed; the sum over tokens of weight times log probability given the draws before
        it, nats, which is meaningful only if no token had a topic.
    """
    offsets, words, topics = tokens
    own_words, prior_total = prior
    weight, rest, alpha, gamma = sticks
    table, totals = believed
    n_known, n_topics, members, kept = places
    room, logs = len(totals), 0.0
    here, part, inverse = np.zeros(room), np.empty(room), 1.0 / totals
    for d in range(len(weights)):
        times = weights[d]
        if times == 0.0:
            continue
        here[:n_topics] = 0.0
        placed = 0.0
        for i in range(offsets[d], offsets[d + 1]):
            if topics[i] != NONE:
                here[topics[i]] += 1.0
                placed += 1.0
        for i in range(offsets[d], offsets[d + 1]):
            v, old = words[i], topics[i]
            if old != NONE:
                here[old] -= 1.0
                placed -= 1.0
                rest += _take_token(v, old, times, n_known, prior, weight, members, table, totals)
                inverse[old] = 1.0 / totals[old]
            if n_topics + 1 >= room:
                more = room + 8
                table, totals = _widened(table, totals, own_words, prior_total, more)
                weight, members, kept = longer(weight, more), longer(members, more), longer(kept, more)
                here, room = longer(here, more), room + more
                part, inverse = np.empty(room), 1.0 / totals
            row, total = table[v], 0.0
            for k in range(n_topics):
                part[k] = (here[k] + alpha * weight[k]) * row[k] * inverse[k]
            for k in range(n_topics):
                total += part[k]
                part[k] = total
            known = total
            total += alpha * rest * own_words[v] / prior_total
            logs += times * math.log(total / (placed + alpha))
            at = next_uniform(state) * total
            if at < known:
                k = 0
                while part[k] <= at:
                    k += 1
            else:
                k = free_position(members, kept, n_known, n_topics)
                n_topics = max(n_topics, k + 1)
                weight[k] = rest * (1.0 - (1.0 - next_uniform(state)) ** (1.0 / gamma))
                rest -= weight[k]
                here[k] = 0.0
            topics[i] = k
            here[k] += 1.0
            placed += 1.0
            members[k] += 1
            table[v, k] += times
            totals[k] += times
            inverse[k] = 1.0 / totals[k]
    return n_topics, weight, rest, table, totals, members, kept, logs


@njit(nogil=True, cache=True)
def draw_tables(offsets, topics, weights, share, n_topics, state):
    """Tables of each topic: sums over documents of the number of its tokens that open one, ``(K,)``.

    The i-th token of a topic in a document opens a table with probability ``share_k / (share_k + i)``, i = 0, 1, ...;
    ``share (C,)`` are alpha times the top-level weights.
    """
    out, here = np.zeros(n_topics), np.zeros(n_topics)
    for d in range(len(weights)):
        if weights[d] == 0.0:
            continue
        for i in range(offsets[d], offsets[d + 1]):
            k = topics[i]
            if here[k] == 0.0 or next_uniform(state) * (share[k] + here[k]) < share[k]:
                out[k] += weights[d]
            here[k] += 1.0
        for i in range(offsets[d], offsets[d + 1]):
            here[topics[i]] = 0.0
    return out
