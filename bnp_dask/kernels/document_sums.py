"""What a document leaves behind, once it is known which topics its tokens come from."""

from __future__ import annotations

import math

from numba import njit

from bnp_dask.kernels.resp import TINY
from bnp_dask.kernels.special import psi_one

FAST = {"reassoc", "contract", "nsz", "arcp"}  # keeps NaN, so that bad numbers show


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def assign(lik, share, weight, log_share, times, rows, index, sums, count, linear):
    """Final responsibilities of one document: adds them to ``sums``, and sets ``count`` and the entropy's part."""
    n, width = lik.shape
    for k in range(width):
        count[k] = 0.0
        linear[k] = 0.0
    for i in range(n):
        row = lik[i]
        total = 0.0
        for k in range(width):
            r = row[k] * share[k]
            row[k] = r
            total += r
        log_total = math.log(total)
        if len(log_share):
            log_total -= log_share[i]
        to = sums[rows[i]]
        scale = weight[i]
        for k in range(width):
            r = row[k] / total
            r = 0.0 if r < TINY else r * scale
            row[k] = r
            count[k] += r
            linear[k] += r * log_total
        for k in range(width):
            to[index[k]] += times * row[k]


@njit(nogil=True, cache=True)
def pair_sums(pairs, place, lik, prior, count, times, out):
    """Adds one document's share of each pair's statistics; ``place`` is -1 for topics that it does not use."""
    n = len(lik)
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
            ra, rb = lik[i, a], lik[i, b]
            if ra > 0.0 and rb > 0.0:
                lost += ra * math.log1p(rb / ra) + rb * math.log1p(ra / rb)
        out[3, m] += times * lost


@njit(nogil=True, cache=True)
def group_stats(index, prior, share, counts, linear, width, times, stats):
    """Adds one document's share of the statistics of each topic that it uses."""
    for k in range(width):
        count = counts[k]
        if count == 0.0:
            continue
        theta = count + prior[k]
        j = index[k]
        stats[0, j] += times
        stats[1, j] += times * psi_one(theta)
        stats[2, j] += times * math.lgamma(theta)
        stats[3, j] += times * (linear[k] - count * math.log(share[k]))
