"""Words of clusters under a learning rate: old counts fade by one factor, and batches add a few words each."""

from __future__ import annotations

from bnp_dask.kernels.options import njit


@njit(nogil=True, cache=True)
def gather_words(base, fade, added, scale, words, out):
    """``fade * base + scale * added`` of some words ``(R,)``, ``base (V, K)`` and ``added (V, C)``, into the first
    columns of ``out (R, C')``."""
    known, wide = base.shape[1], added.shape[1]
    for r in range(len(words)):
        old, new, row = base[words[r]], added[words[r]], out[r]
        for k in range(known):
            row[k] = fade * old[k] + scale * new[k]
        for k in range(known, wide):
            row[k] = scale * new[k]


@njit(nogil=True, cache=True)
def add_documents(rows, words, labels, times, added, totals):
    """Add documents ``rows`` (``indptr, indices, data``) of words ``words (R,)`` to their clusters.

    ``labels (samples, n)`` are positions, -1 for none; ``times (n,)`` is the weight of each in one sample;
    ``added (V, C)`` and ``totals (C,)`` are changed.
    """
    indptr, indices, data = rows
    for z in labels:
        for i in range(len(times)):
            k = z[i]
            if k < 0:
                continue
            for j in range(indptr[i], indptr[i + 1]):
                added[words[indices[j]], k] += times[i] * data[j]
                totals[k] += times[i] * data[j]


@njit(nogil=True, cache=True)
def add_tokens(offsets, words, place, topics, times, added, totals):
    """Add tokens with ``words[place]`` and ``topics``, both ``(T,)``, of documents ``offsets (n + 1,)``; topics below
    zero are none, and the rest is as in :func:`add_documents`."""
    for i in range(len(times)):
        for j in range(offsets[i], offsets[i + 1]):
            k = topics[j]
            if k >= 0:
                added[words[place[j]], k] += times[i]
                totals[k] += times[i]
