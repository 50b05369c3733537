"""Pull of observed responses on the topics of a document, within its coordinate ascent; and sums over documents.

Tokens of a document keep responsibilities in proportion to likelihood times a factor of each topic, which a response
changes: so that all code beside the factors is as for documents without.
"""

from __future__ import annotations

import math

from bnp_dask.kernels.options import INNER, njit

FARTHEST = 60.0
"""Largest change of a topic's log factor by a response, nats, which keeps products of factors within normal numbers."""


@njit(**INNER)
def _slopes(topic, held, width, total, pull, d):
    """Put the slope of the term per token, for each of ``width`` topics, into ``pull.slope``; return its mean."""
    n, z, slope = max(total, 1.0), pull.share, pull.slope
    for k in range(width):
        z[k] = held[k] / total
    mean = 0.0
    for k in range(width):
        j = topic[k]
        value = 0.0
        for i in range(width):
            value += pull.second[j, topic[i]] * z[i]
        slope[k] = (pull.first[d, j] - (1.0 - 1.0 / n) * value - 0.5 / n * pull.second[j, j]) / total
        mean += z[k] * slope[k]
    return mean


@njit(**INNER)
def tilt(space, slot, width, pull, d, is_first):
    """Multiply the factors ``exp(E[log pi_dk])`` in ``slot`` by the pull of a response at the present counts.

    The term is concave in the shares z, and relative to their entropy its curvature is at most ``4 steep``.  So it is
    above its tangent at z0 minus ``steep KL(z, z0)``, and by convexity above the tangent minus ``steep / N`` times
    the sum of the tokens' divergences from their present responsibilities.  The maximum of this bound with the rest of
    the objective has log factors that go ``1 / (1 + steep / N)`` of the way: no sweep lowers the objective.  The first
    sweep goes all of it, since no factors are known yet.
    """
    if pull is None:
        return
    if not pull.on[d]:
        return
    topic, held, share = space.topic[slot], space.held[slot], space.share[slot]
    total = pull.size[d]
    mean = _slopes(topic, held, width, total, pull, d)
    part = 1.0 if is_first else 1.0 / (1.0 + pull.steep / total)
    for k in range(width):
        if not share[k] > 0.0:
            continue
        j = topic[k]
        new = math.log(share[k]) + min(max(pull.slope[k] - mean, -FARTHEST), FARTHEST)
        if not is_first:
            new = part * new + (1.0 - part) * pull.last[j]
        pull.last[j] = new
        share[k] = math.exp(new)


@njit(**INNER)
def pulled(space, slot, width, pull, d):
    """The term of a response at the counts in ``slot``, nats."""
    if pull is None:
        return 0.0
    if not pull.on[d]:
        return 0.0
    topic, held = space.topic[slot], space.held[slot]
    total = pull.size[d]
    n, value = max(total, 1.0), 0.0
    for k in range(width):
        j, z, inner = topic[k], held[k] / total, 0.0
        for i in range(width):
            inner += pull.second[j, topic[i]] * held[i] / total
        value += z * (pull.first[d, j] - 0.5 * (1.0 - 1.0 / n) * inner - 0.5 / n * pull.second[j, j])
    return value


@njit(nogil=True, cache=True)
def share_sums(offsets, position, count, length, times, target, out_zz, out_z):
    """Add ``E[z z^T]`` and ``target z`` of documents to ``out_zz (K, K)`` and ``out_z (K, R)``.

    Parameters
    ----------
    offsets, position, count
        Expected tokens of topics in documents, as in :class:`~bnp_dask.kernels.topics.document_step.Memory`.
    length, times
        Tokens of each document, and how often it counts, ``(G,)``; documents that count zero times are left out.
    target
        Factors of ``out_z``, ``(G, R)``.
    """
    for d in range(len(offsets) - 1):
        first, last = offsets[d], offsets[d + 1]
        if times[d] == 0.0 or not length[d] > 0.0:
            continue
        n = max(length[d], 1.0)
        for s in range(first, last):
            a, z = position[s], count[s] / length[d]
            out_zz[a, a] += times[d] * z / n
            factor = times[d] * (1.0 - 1.0 / n) * z
            for t in range(first, last):
                out_zz[a, position[t]] += factor * count[t] / length[d]
            for r in range(target.shape[1]):
                out_z[a, r] += times[d] * target[d, r] * z


@njit(nogil=True, cache=True)
def share_products(offsets, position, count, other_offsets, other_position, other_count, length, times, out):
    """Add ``E[z y^T]`` of the same documents' shares z and y of disjoint sets of topics to ``out (J, R)``.

    Arguments are as in :func:`share_sums`, of two sets.
    """
    for d in range(len(offsets) - 1):
        if times[d] == 0.0 or not length[d] > 0.0:
            continue
        factor = times[d] * (1.0 - 1.0 / max(length[d], 1.0)) / length[d] / length[d]
        for s in range(offsets[d], offsets[d + 1]):
            for t in range(other_offsets[d], other_offsets[d + 1]):
                out[position[s], other_position[t]] += factor * count[s] * other_count[t]
