"""Sweeps over the tokens of a document with every sum in an order that is written out.

Twins of the functions of the same names in :mod:`~bnp_dask.kernels.topics.document_pass` and
:mod:`~bnp_dask.kernels.topics.document_sums`, which leave the order of their sums to the compiler, and with it to the
width of the processor's vectors.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bnp_dask.kernels.mixture.resp import TINY
from bnp_dask.kernels.numeric.simd import fill, fused, load, store, total
from bnp_dask.kernels.numeric.special import log_positive
from bnp_dask.kernels.options import INNER
from bnp_dask.kernels.topics.document_pass import gather_with_sums


@njit(nogil=True, cache=True, error_model="numpy")
def sweep(lik, live, width, share, weight, totals, ratio, grow):
    """See :func:`bnp_dask.kernels.topics.document_pass.sweep`."""
    n = lik.shape[1]
    pairs, fours = width - width % 2, width - width % 4
    for i in range(0, n, 16):
        a = b = c = d = fill(0.0)
        for k in range(0, pairs, 2):  # topics with even and odd numbers apart: each sum waits for itself
            x, y, first, second = fill(share[k]), fill(share[k + 1]), lik[live[k]], lik[live[k + 1]]
            a, b = fused(x, load(first, i), a), fused(x, load(first, i + 8), b)
            c, d = fused(y, load(second, i), c), fused(y, load(second, i + 8), d)
        if pairs < width:
            x, first = fill(share[pairs]), lik[live[pairs]]
            a, b = fused(x, load(first, i), a), fused(x, load(first, i + 8), b)
        store(totals, i, a + c)
        store(totals, i + 8, b + d)
    for i in range(n):
        ratio[i] = weight[i] / totals[i]
    for k in range(0, fours, 4):
        one, two, three, four = lik[live[k]], lik[live[k + 1]], lik[live[k + 2]], lik[live[k + 3]]
        a = b = c = d = fill(0.0)
        for i in range(0, n, 8):
            r = load(ratio, i)
            a, b = fused(load(one, i), r, a), fused(load(two, i), r, b)
            c, d = fused(load(three, i), r, c), fused(load(four, i), r, d)
        grow[k], grow[k + 1], grow[k + 2], grow[k + 3] = total(a), total(b), total(c), total(d)
    for k in range(fours, width):
        grow[k] = _product(lik[live[k]], ratio, n)


@njit(**INNER, error_model="numpy")
def _product(x, y, n):
    # n is a multiple of eight
    held = fill(0.0)
    for i in range(0, n, 8):
        held = fused(load(x, i), load(y, i), held)
    return total(held)


@njit(nogil=True, cache=True, error_model="numpy")
def row_totals(table, share):
    """See :func:`bnp_dask.kernels.topics.document_pass.row_totals`."""
    out = np.empty(len(table))
    whole = len(share) - len(share) % 8
    for r in range(len(table)):
        row = table[r]
        value = _product(row, share, whole)
        for k in range(whole, len(share)):
            value += row[k] * share[k]
        out[r] = value
    return out


@njit(nogil=True, cache=True)
def gather_all(table, rows, lik, ratio, grow):
    """See :func:`bnp_dask.kernels.topics.document_pass.gather_all`."""
    gather_with_sums(table, rows, lik, ratio, grow)


@njit(nogil=True, cache=True, error_model="numpy")
def assign(lik, live, width, share, weight, log_share, totals, work, bits, logs, count, linear):
    """See :func:`bnp_dask.kernels.topics.document_sums.assign`."""
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
