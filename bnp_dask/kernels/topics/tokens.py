"""Topics of single tokens: drawn by Gibbs, updated in collapsed form, and used to predict words that were held out."""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.options import INNER, njit

# =====================================================================================================================
# Collapsed Gibbs sampling of the topics of tokens, one pass over some documents at a time.
# =====================================================================================================================

ONE_53 = 2.0**-53
TRIES = 100
"""Draws from a table before its last one is taken: a word in a single topic has only its prior elsewhere."""

POWERS = 200
"""Steps by which the largest eigenvalue of a small matrix is found."""

LEFT, RIGHT, LEFT_AGAIN, LOW = np.uint64(13), np.uint64(7), np.uint64(17), np.uint64(11)


@njit(nogil=True, cache=True)
def next_uniform(state):
    """Next number in [0, 1) by xorshift (Marsaglia 2003); ``state (1,)`` uint64, not zero."""
    x = state[0]
    x ^= x << LEFT
    x ^= x >> RIGHT
    x ^= x << LEFT_AGAIN
    state[0] = x
    return float(x >> LOW) * ONE_53


@njit(nogil=True, cache=True)
def cumulate(counts, totals, share, prior, out):
    """Cumulative ``share_k (counts_vk + prior_v) / (totals_k + sum prior)`` over topics, ``out (V, K)``.

    Returns the share of a single token in it, ``(K,)``.
    """
    n_words, n_topics = counts.shape
    each = share / (totals + prior.sum())
    for v in range(n_words):
        total = 0.0
        for k in range(n_topics):
            total += each[k] * (counts[v, k] + prior[v])
            out[v, k] = total
    return each


@njit(**INNER)
def _first_above(row, value):
    low, high = 0, len(row) - 1
    while low < high:
        middle = (low + high) // 2
        if row[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@njit(**INNER)
def _from_table(row, old, worth, state):
    """A topic by the cumulative ``row (K,)``, in which ``worth`` at the topic ``old`` (or -1) is left out."""
    for _ in range(TRIES):
        k = _first_above(row, next_uniform(state) * row[-1])
        if k != old:
            break
        if next_uniform(state) * (row[k] - (row[k - 1] if k > 0 else 0.0)) >= worth:
            break
    return k


@njit(nogil=True, cache=True)
def sample_pass(offsets, words, topics, prior, table, each, counts, totals, state):
    """Draw the topic of each token given the topics of all others.

    A token of word v in document d comes from k with probability in proportion to ``(N_dk + a_k) phi_kv``, with phi
    from all other tokens.  The part with N_dk concerns the few topics of the document and is exact; the part with a_k
    is drawn from ``table``, with phi as of the beginning of the pass.

    Parameters
    ----------
    offsets, words
        Tokens ``words (T,)`` of documents, ``offsets (D + 1,)``.
    topics
        Topic of each token, ``(T,)``; overwritten.  -1: it has none yet, and does not count.
    prior
        Pseudo-counts of words, ``(V,)``.
    table, each
        Results of :func:`cumulate` for ``a_k``, ``(V, K)`` and ``(K,)``.
    counts, totals
        Tokens by word and topic, ``(V, K)``, and by topic, ``(K,)``; kept up to date.
    state
        State of the random numbers, ``(1,)`` uint64; advanced.

    Returns
    -------
    Documents with a token of each topic, ``(K,)``.
    """
    n_topics, whole = len(totals), prior.sum()
    here, part = np.zeros(n_topics, np.int64), np.empty(n_topics)
    listed, place = np.empty(n_topics, np.int64), np.empty(n_topics, np.int64)
    inverse, documents = 1.0 / (totals + whole), np.zeros(n_topics)
    for d in range(len(offsets) - 1):
        used = 0
        for i in range(offsets[d], offsets[d + 1]):
            k = topics[i]
            if k >= 0:
                if here[k] == 0:
                    listed[used], place[k] = k, used
                    used += 1
                here[k] += 1
        for i in range(offsets[d], offsets[d + 1]):
            v, k = words[i], topics[i]
            old, worth = k, 0.0
            if k >= 0:
                worth = each[k]
                here[k] -= 1
                counts[v, k] -= 1
                totals[k] -= 1
                inverse[k] = 1.0 / (totals[k] + whole)
                if here[k] == 0:
                    used -= 1
                    listed[place[k]], place[listed[used]] = listed[used], place[k]
            row, own = counts[v], 0.0
            for j in range(used):
                t = listed[j]
                own += here[t] * (row[t] + prior[v]) * inverse[t]
                part[j] = own
            at = next_uniform(state) * (own + max(table[v, n_topics - 1] - worth, 0.0))
            if at < own:
                k = listed[_first_above(part[:used], at)]
            else:
                k = _from_table(table[v], old, worth, state)
            topics[i] = k
            if here[k] == 0:
                listed[used], place[k] = k, used
                used += 1
            here[k] += 1
            counts[v, k] += 1
            totals[k] += 1
            inverse[k] = 1.0 / (totals[k] + whole)
        for j in range(used):
            documents[listed[j]] += 1.0
            here[listed[j]] = 0
    return documents


@njit(nogil=True, cache=True)
def contrast(offsets, places, n_words):
    """Two sets of words that a topic's documents use one or the other of: how clearly there are two.

    Pairs of tokens in the documents, each of two of ``n_words`` words, are compared with the numbers expected if words
    were independent within a document of the topic: residuals ``(O - E) / sqrt(E)``.  Those of a single topic are
    noise of variance one, whose largest eigenvalue is about ``2 sqrt(n_words)`` (Wigner 1958).  With two topics in one,
    words of the same topic meet too often, and the eigenvector of the largest eigenvalue has one sign for each.

    Parameters
    ----------
    offsets, places
        Tokens of documents ``(G + 1,)``, each a word ``0 ... n_words - 1``, or -1 for one that is not compared,
        ``(T,)``.
    n_words
        Number of words compared.

    Returns
    -------
    strength
        Largest eigenvalue as a multiple of that of noise.
    score
        Each document's place between the two, ``(G,)``: negative on one side, zero without any of the words.
    """
    residual, used, here = np.zeros((n_words, n_words)), np.empty(n_words, np.int64), np.zeros(n_words)
    for g in range(len(offsets) - 1):
        n_used = 0
        for i in range(offsets[g], offsets[g + 1]):
            v = places[i]
            if v >= 0:
                if here[v] == 0.0:
                    used[n_used] = v
                    n_used += 1
                here[v] += 1.0
        for a in range(n_used):
            for b in range(n_used):
                v, w = used[a], used[b]
                residual[v, w] += here[v] * (here[w] - (1.0 if v == w else 0.0))
        for a in range(n_used):
            here[used[a]] = 0.0
    pairs, score = residual.sum(axis=1), np.zeros(len(offsets) - 1)
    total = pairs.sum()
    if total == 0.0:
        return 0.0, score
    for v in range(n_words):
        for w in range(n_words):
            expected = pairs[v] * pairs[w] / total
            residual[v, w] = (residual[v, w] - expected) / math.sqrt(expected) if expected > 0.0 else 0.0
    # no eigenvalue is below -shift, so that the largest in size is the largest
    shift = 0.0
    for v in range(n_words):
        shift = max(shift, np.abs(residual[v]).sum())
    axis, value = np.ones(n_words), 0.0
    axis[::2] = -1.0
    axis /= math.sqrt(n_words)
    for _ in range(POWERS):
        value = -shift
        after = shift * axis
        for v in range(n_words):
            along = 0.0
            for w in range(n_words):
                along += residual[v, w] * axis[w]
            value += axis[v] * (along + shift * axis[v])
            after[v] += along
        length = math.sqrt((after * after).sum())
        if length == 0.0:
            break
        axis = after / length
    for v in range(n_words):
        axis[v] = axis[v] / math.sqrt(pairs[v]) if pairs[v] > 0.0 else 0.0
    for g in range(len(score)):
        for i in range(offsets[g], offsets[g + 1]):
            if places[i] >= 0:
                score[g] += axis[places[i]]
    return value / (2.0 * math.sqrt(n_words)), score


@njit(nogil=True, cache=True)
def seat_whole(offsets, row, prior, whole, side, scans):
    """Move a topic's documents between two halves, each to where its words are likelier given all others.

    Parameters
    ----------
    offsets, row
        Tokens of the topic ``(T,)``, words ``0 ... R - 1``, in documents ``(G + 1,)``.
    prior, whole
        Pseudo-counts of these words, ``(R,)``, and of all words.
    side
        Half of each document, 0 or 1, ``(G,)``; overwritten.
    scans
        Times that each document is seated.
    """
    counts, totals, value = np.zeros((len(prior), 2)), np.zeros(2), np.empty(2)
    for g in range(len(side)):
        for i in range(offsets[g], offsets[g + 1]):
            counts[row[i], side[g]] += 1.0
            totals[side[g]] += 1.0
    for _ in range(scans):
        for g in range(len(side)):
            first, last = offsets[g], offsets[g + 1]
            for i in range(first, last):
                counts[row[i], side[g]] -= 1.0
            totals[side[g]] -= last - first
            for h in range(2):
                value[h] = 0.0
                for i in range(first, last):
                    value[h] += math.log((counts[row[i], h] + prior[row[i]]) / (totals[h] + i - first + whole))
                    counts[row[i], h] += 1.0
                for i in range(first, last):
                    counts[row[i], h] -= 1.0
            side[g] = 1 if value[1] > value[0] else 0
            for i in range(first, last):
                counts[row[i], side[g]] += 1.0
            totals[side[g]] += last - first


@njit(nogil=True, cache=True)
def add_counts(offsets, words, topics, times, out):
    """Add the tokens by word and topic, each as often as its document counts, ``times (D,)``, to ``out (V, K)``."""
    for d in range(len(offsets) - 1):
        for i in range(offsets[d], offsets[d + 1]):
            out[words[i], topics[i]] += times[d]


# =====================================================================================================================
# Topics of tokens given all other documents: collapsed updates (CVB0) of one document at a time.
# =====================================================================================================================


@njit(nogil=True, cache=True)
def _to_one(values):
    """Divide by the sum; even shares if the sum is zero."""
    total = values.sum()
    if total > 0.0:
        values /= total
    else:
        values[:] = 1.0 / len(values)


@njit(nogil=True, cache=True)
def _begin(row, weight, topic, count, prior, phi, resp, held):
    """Responsibilities ``(n, A)`` at the document's counts, and the counts that they give, ``(A,)``."""
    held[:] = 0.0
    for i in range(len(row)):
        for a in range(len(topic)):
            resp[i, a] = (count[a] + prior[topic[a]]) * phi[row[i], topic[a]]
        _to_one(resp[i])
        held += weight[i] * resp[i]


@njit(nogil=True, cache=True)
def _update(row, weight, times, topic, prior, table, total, lam, lam_total, resp, held):
    """One sweep: each entry is assigned anew by the document's other entries and by all other documents."""
    outside = np.empty(len(topic))
    for a in range(len(topic)):
        outside[a] = max(total[topic[a]] - times * held[a], 0.0) + lam_total
    for i in range(len(row)):
        w = weight[i]
        held -= w * resp[i]
        for a in range(len(topic)):
            others = max(table[row[i], topic[a]] - times * w * resp[i, a], 0.0)
            resp[i, a] = (max(held[a], 0.0) + prior[topic[a]]) * (others + lam[row[i]]) / outside[a]
        _to_one(resp[i])
        held += w * resp[i]


@njit(nogil=True, cache=True)
def collapsed_counts(documents, states, prior, phi, tables, totals, lam, lam_total, out):
    """Expected tokens by word and topic after one sweep at each of some tables of counts; added to ``out``.

    A sweep leaves out the document's own counts in the table before it: its counts after the sweep before.  Only topics
    that a document uses take part; all topics if it uses none.

    Parameters
    ----------
    documents
        Offsets ``(G + 1,)``, rows of the tables ``(T,)``, tokens of each entry ``(T,)``, times each counts ``(G,)``.
    states
        Tokens of each topic that a document begins with: offsets ``(G + 1,)``, topics ``(S,)``, tokens ``(S,)``.
    prior
        Prior mass of topics in a document, ``(K,)``.
    phi
        Word probabilities for the first responsibilities, ``(R, K)``.
    tables, totals
        Counts of the corpus after the sweep before, ``(P, R, K)``, and of all words, ``(P, K)``.
    lam, lam_total
        Prior pseudo-counts of the rows ``(R,)``, and of all words.
    out
        ``(R, K)``.
    """
    offsets, rows, weights, all_times = documents
    starts, topics, counts = states
    everything = np.arange(len(prior))
    for d in range(len(offsets) - 1):
        row, weight = rows[offsets[d] : offsets[d + 1]], weights[offsets[d] : offsets[d + 1]]
        topic, count = topics[starts[d] : starts[d + 1]], counts[starts[d] : starts[d + 1]]
        if len(topic) == 0:
            topic, count = everything, np.zeros(len(prior))
        resp, held = np.empty((len(row), len(topic))), np.empty(len(topic))
        _begin(row, weight, topic, count, prior, phi, resp, held)
        for p in range(len(tables)):
            _update(row, weight, all_times[d], topic, prior, tables[p], totals[p], lam, lam_total, resp, held)
        for i in range(len(row)):
            for a in range(len(topic)):
                out[row[i], topic[a]] += all_times[d] * weight[i] * resp[i, a]


# =====================================================================================================================
# Prediction of held-out words of documents from the rest of them.
# =====================================================================================================================

MIX_1, MIX_2, STEP = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15)


def mix(values: np.ndarray) -> np.ndarray:
    """Scramble 64-bit numbers (the finalizer of SplitMix64): equal inputs give equal outputs, with no other pattern."""
    z = np.asarray(values, np.uint64) + STEP
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return z ^ (z >> np.uint64(31))


@njit(nogil=True, cache=True)
def log_word_shares(offsets, row, held, position, count, table, base, total, out):
    """Sum over the words of each document of weight times log of the word's probability there; added to ``out``.

    The probability of row r in document d is ``(base[r] + sum_k N_dk table[r, k]) / total[d]``: topics that a document
    does not use are in ``base``, so that only its own are looped over.

    Parameters
    ----------
    offsets, row, held
        Words of each document ``(G + 1,)``, ``(T,)``, ``(T,)``: offsets, rows of the table and weights.
    position, count
        ``N_dk > 0``: (offsets ``(G + 1,)`` and positions ``(S,)``), and ``(S,)``.
    table, base
        ``(R, K)`` and ``(R,)``.
    total
        ``(G,)``.
    out
        ``(G,)``.
    """
    starts, topic = position
    for d in range(len(offsets) - 1):
        value = 0.0
        for i in range(offsets[d], offsets[d + 1]):
            if held[i] == 0.0:
                continue
            r = row[i]
            p = base[r]
            for s in range(starts[d], starts[d + 1]):
                p += count[s] * table[r, topic[s]]
            value += held[i] * math.log(p / total[d])
        out[d] += value
