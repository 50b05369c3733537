"""Collapsed Gibbs sampling of the topics of tokens, one pass over some documents at a time."""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.options import INNER, njit

ONE_53 = 2.0**-53
TRIES = 100
"""Draws from a table before its last one is taken: a word in a single topic has only its prior elsewhere."""

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
def add_counts(offsets, words, topics, times, out):
    """Add the tokens by word and topic, each as often as its document counts, ``times (D,)``, to ``out (V, K)``."""
    for d in range(len(offsets) - 1):
        for i in range(offsets[d], offsets[d + 1]):
            out[words[i], topics[i]] += times[d]
