"""Prediction of held-out words of documents from the rest of them."""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.options import njit

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
