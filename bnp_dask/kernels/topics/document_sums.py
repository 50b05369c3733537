"""Sums over a document, given the topics of its tokens."""

from __future__ import annotations

import math

from bnp_dask.kernels.mixture.resp import TINY
from bnp_dask.kernels.numeric.simd import fill, fused, load, total
from bnp_dask.kernels.numeric.special import log_positive, psi_gamma_block, psi_one
from bnp_dask.kernels.options import njit


@njit(nogil=True, cache=True, error_model="numpy")
def assign(lik, live, width, share, weight, log_share, totals, work, bits, logs, count, linear):
    """Final responsibilities times weights of one document, in ``lik``; sets ``count`` and the entropy's part.

    Rows of the ``width`` topics, ``live`` in ascending order, move to the front.  ``weight`` is zero in the padding of
    a row.  ``totals (n,)``, ``work (n,)`` with its integer view ``bits``, and ``logs (n,)`` are scratch.
    """
    n = lik.shape[1]
    for i in range(n):
        totals[i] = 0.0
    for k in range(width):
        row, to, e = lik[live[k]], lik[k], share[k]
        for i in range(n):
            r = row[i] * e
            to[i] = r
            totals[i] += r
    for i in range(n):
        work[i] = totals[i]
        totals[i] = 1.0 / totals[i]
    log_positive(work, bits, n, logs)
    for i in range(len(log_share)):
        logs[i] -= log_share[i]
    for k in range(width):
        row = lik[k]
        for i in range(n):
            r = row[i] * totals[i]
            row[i] = 0.0 if r < TINY else r * weight[i]
        held = part = fill(0.0)
        for i in range(0, n, 8):
            r = load(row, i)
            held, part = held + r, fused(r, load(logs, i), part)
        count[k], linear[k] = total(held), total(part)


@njit(nogil=True, cache=True)
def spread(lik, times, rows, index, sums):
    """Add the final responsibilities of one document to the rows of its tokens, a cache line of tokens at a time.

    ``sums (R, K)``: topic k of ``lik (topics, tokens or more)`` is column ``index[k]``.
    """
    width, n = lik.shape[0], len(rows)
    for i in range(0, n - n % 8, 8):
        a, b, c, d = sums[rows[i]], sums[rows[i + 1]], sums[rows[i + 2]], sums[rows[i + 3]]
        e, f, g, h = sums[rows[i + 4]], sums[rows[i + 5]], sums[rows[i + 6]], sums[rows[i + 7]]
        for k in range(width):
            r, j = lik[k, i : i + 8], index[k]
            a[j] += times * r[0]
            b[j] += times * r[1]
            c[j] += times * r[2]
            d[j] += times * r[3]
            e[j] += times * r[4]
            f[j] += times * r[5]
            g[j] += times * r[6]
            h[j] += times * r[7]
    for i in range(n - n % 8, n):
        a = sums[rows[i]]
        for k in range(width):
            a[index[k]] += times * lik[k, i]


@njit(nogil=True, cache=True)
def pair_sums(pairs, place, lik, prior, count, times, out):
    """Adds one document's share of each pair's statistics; ``place`` is -1 for topics that it does not use."""
    n = lik.shape[1]
    for m in range(len(pairs)):
        a, b = place[pairs[m, 0]], place[pairs[m, 1]]
        if a < 0 and b < 0:
            continue
        both = (count[a] if a >= 0 else 0.0) + (count[b] if b >= 0 else 0.0)
        theta = both + (prior[pairs[m, 0]] + prior[pairs[m, 1]])
        out[0, m] += times
        out[1, m] += times * psi_one(theta)
        out[2, m] += times * math.lgamma(theta)
        if a < 0 or b < 0:
            continue
        lost = 0.0
        for i in range(n):
            ra, rb = lik[a, i], lik[b, i]
            if ra > 0.0 and rb > 0.0:
                lost += ra * math.log1p(rb / ra) + rb * math.log1p(ra / rb)
        out[3, m] += times * lost


@njit(nogil=True, cache=True)
def group_stats(index, prior, share, counts, linear, width, times, work, bits, psi, gamma, stats):
    """Adds one document's share of the statistics of each topic that it uses.

    ``work (5, K)``, ``bits``, the integer view of its first two rows, ``psi (K,)`` and ``gamma (K,)`` are scratch.
    """
    for k in range(width):
        work[2, k] = counts[k] + prior[k]
    psi_gamma_block(work[2], width, work[0], bits[0], work[1], bits[1], work[3], work[4], psi, gamma)
    for k in range(width):
        work[0, k] = share[k]
    log_positive(work[0], bits[0], width, work[3])
    for k in range(width):
        count = counts[k]
        if count == 0.0:
            continue
        j = index[k]
        stats[0, j] += times
        stats[1, j] += times * psi[k]
        stats[2, j] += times * gamma[k]
        stats[3, j] += times * (linear[k] - count * work[3, k])
