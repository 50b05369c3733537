"""Collapsed Gibbs sampling of the topics of one document, given the topics' words."""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.options import njit


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
    n_topics = len(prior)
    held, reached = np.zeros(n_topics), np.empty(n_topics)
    topic = np.full(len(row), -1)
    first = len(uniform) - len(out)
    for sweep in range(len(uniform)):
        for t in range(len(row)):
            if topic[t] >= 0:
                held[topic[t]] -= 1.0
            total = 0.0
            for k in range(n_topics):
                total += (held[k] + prior[k]) * table[row[t], k]
                reached[k] = total
            level, chosen = uniform[sweep, t] * total, n_topics - 1
            for k in range(n_topics):
                if reached[k] > level:
                    chosen = k
                    break
            topic[t] = chosen
            held[chosen] += 1.0
        if sweep >= first:
            out[sweep - first] = held
