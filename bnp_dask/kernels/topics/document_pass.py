"""One sweep over the tokens of a document, given its likelihoods and the shares of its topics.

Likelihoods of a document are a contiguous matrix ``(topics, tokens)``: tokens are the long axis of nearly every
document once its unused topics are dropped; their rows are then not read.  Rows are padded with tokens of weight zero
whose likelihoods are one: their totals are at least as large as the totals of other tokens.

Every sum has an order that is written out.  An order left to the compiler depends on the width of the processor's
vectors and on the code optimised together with a kernel: a process that compiles then has other last bits than one that
loads compiled code.  Explicit vectors take as long (KOS, 20 and 100 topics: .94 and 1.03 of the time).
"""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.numeric.simd import fill, fused, load, store, total
from bnp_dask.kernels.options import INNER, njit

LANES = 16
"""Multiple to which tokens of a document are padded: vector code would process the remainder one by one."""


@njit(nogil=True, cache=True)
def padded(n):
    """Places for ``n`` tokens in a row of a document's matrix."""
    return (n + LANES - 1) // LANES * LANES


@njit(nogil=True, cache=True, error_model="numpy")
def sweep(lik, live, width, share, weight, totals, ratio, grow):
    """total_i = sum_k lik_ki share_k, and grow_k = sum_i weight_i lik_ki / total_i: N_k is share_k grow_k.

    Topic k of the ``width`` topics has row ``live[k]`` of ``lik (topics, n)``; ``weight``, ``totals`` and ``ratio`` are
    at least as long as its rows.
    """
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
    """Totals of a first sweep from shares common to all documents: sum_k table_rk share_k, ``(R,)``."""
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
    """Likelihoods ``(K, n)`` of some rows of the table ``(R, K)`` under all topics; the padding of a row is one.

    They are read from distant memory, so half of the first sweep is done meanwhile: ``grow_k = sum_i ratio_i lik_ki``.
    """
    width, n = lik.shape[0], len(rows)
    grow[:width] = 0.0
    for i in range(0, n - n % 8, 8):  # a cache line of the result at a time
        a, b, c, d = table[rows[i]], table[rows[i + 1]], table[rows[i + 2]], table[rows[i + 3]]
        e, f, g, h = table[rows[i + 4]], table[rows[i + 5]], table[rows[i + 6]], table[rows[i + 7]]
        ra, rb, rc, rd = ratio[i], ratio[i + 1], ratio[i + 2], ratio[i + 3]
        re, rf, rg, rh = ratio[i + 4], ratio[i + 5], ratio[i + 6], ratio[i + 7]
        for k in range(width):
            to = lik[k, i : i + 8]
            va, vb, vc, vd, ve, vf, vg, vh = a[k], b[k], c[k], d[k], e[k], f[k], g[k], h[k]
            to[0], to[1], to[2], to[3], to[4], to[5], to[6], to[7] = va, vb, vc, vd, ve, vf, vg, vh
            left = (ra * va + rb * vb) + (rc * vc + rd * vd)
            grow[k] += left + ((re * ve + rf * vf) + (rg * vg + rh * vh))
    for i in range(n - n % 8, n):
        a, ra = table[rows[i]], ratio[i]
        for k in range(width):
            lik[k, i] = a[k]
            grow[k] += ra * a[k]
    lik[:, n:] = 1.0


@njit(nogil=True, cache=True)
def gather_some(table, rows, index, lik):
    """Likelihoods of a document under some topics: row k is topic ``index[k]``."""
    width, n = lik.shape[0], len(rows)
    for i in range(0, n - n % 8, 8):
        a, b, c, d = table[rows[i]], table[rows[i + 1]], table[rows[i + 2]], table[rows[i + 3]]
        e, f, g, h = table[rows[i + 4]], table[rows[i + 5]], table[rows[i + 6]], table[rows[i + 7]]
        for k in range(width):
            to, j = lik[k, i : i + 8], index[k]
            va, vb, vc, vd, ve, vf, vg, vh = a[j], b[j], c[j], d[j], e[j], f[j], g[j], h[j]
            to[0], to[1], to[2], to[3], to[4], to[5], to[6], to[7] = va, vb, vc, vd, ve, vf, vg, vh
    for i in range(n - n % 8, n):
        a = table[rows[i]]
        for k in range(width):
            lik[k, i] = a[index[k]]
    lik[:, n:] = 1.0
