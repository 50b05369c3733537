"""Topics of tokens given all other documents: collapsed updates (CVB0) of one document at a time."""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.options import njit


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
