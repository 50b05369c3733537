"""Collapsed Gibbs sampling of the topics of tokens, document by document, given the topics' words."""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.options import INNER, njit


@njit(**INNER)
def _one_sweep(row, table, prior, stays, uniform, topic, held, reached):
    """Draw the topic of each token of a document once; ``held (K,)`` are its tokens by topic, kept up to date."""
    n_topics = len(prior)
    for t in range(len(row)):
        if stays[t]:
            continue
        if topic[t] >= 0:
            held[topic[t]] -= 1.0
        total = 0.0
        for k in range(n_topics):
            total += (held[k] + prior[k]) * table[row[t], k]
            reached[k] = total
        level, chosen = uniform[t] * total, n_topics - 1
        for k in range(n_topics):
            if reached[k] > level:
                chosen = k
                break
        topic[t] = chosen
        held[chosen] += 1.0


@njit(nogil=True, cache=True)
def sweep_documents(offsets, row, table, prior, stays, uniform, topic):
    """Draw the topic of each token once, given all other tokens of its document.

    Parameters
    ----------
    offsets
        Tokens of each document, ``(G + 1,)``.
    row, table, prior
        As in :func:`sample_document`; columns of ``table`` may have any positive factors.
    stays
        Whether a token keeps its topic, ``(T,)``.
    uniform
        Numbers in [0, 1), ``(T,)``.
    topic
        Topic of each token, ``(T,)``; overwritten.  -1: it has none yet, and does not count.
    """
    held, reached = np.empty(len(prior)), np.empty(len(prior))
    for d in range(len(offsets) - 1):
        first, last = offsets[d], offsets[d + 1]
        held[:] = 0.0
        for t in range(first, last):
            if topic[t] >= 0:
                held[topic[t]] += 1.0
        _one_sweep(
            row[first:last], table, prior, stays[first:last], uniform[first:last], topic[first:last], held, reached
        )


@njit(nogil=True, cache=True)
def sample_document(row, table, prior, uniform, out):
    """Draw the topic of each token given the topics of all others, sweep by sweep.

    Parameters
    ----------
    row
        Row of each token's word in ``table``, ``(T,)``.
    table
        Probability of words in topics, ``(R, K)``.
    prior
        Mass of each topic before any token, ``(K,)``.
    uniform
        Numbers in [0, 1), ``(sweeps, T)``; in the first sweep tokens are seated given the tokens before them.
    out
        Filled with the tokens of each topic after each of the last sweeps, ``(samples, K)``.
    """
    held, reached = np.zeros(len(prior)), np.empty(len(prior))
    topic, stays = np.full(len(row), -1), np.zeros(len(row), np.bool_)
    first = len(uniform) - len(out)
    for sweep in range(len(uniform)):
        _one_sweep(row, table, prior, stays, uniform[sweep], topic, held, reached)
        if sweep >= first:
            out[sweep - first] = held
