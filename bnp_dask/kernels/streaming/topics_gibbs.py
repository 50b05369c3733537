"""Topics of the tokens of a minibatch, drawn given top-level weights and the posterior of words before it."""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.options import INNER, copy_into, njit
from bnp_dask.kernels.streaming.counts import NONE
from bnp_dask.kernels.streaming.sticks import free_position, longer
from bnp_dask.kernels.topics.gibbs import next_uniform


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
