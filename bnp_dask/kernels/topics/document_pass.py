"""One sweep over the tokens of a document, given its likelihoods and the shares of its topics.

Likelihoods of a document are a contiguous matrix ``(topics, tokens)``: tokens are the long axis of nearly every
document once the topics that it does not use are gone, which then are rows that are not read.  Rows are filled up with
tokens of weight zero whose likelihoods are one: their totals are at least as large as those of the others.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bnp_dask.kernels.topics.document_sums import FAST

LANES = 16
"""Tokens of a document are filled up to a multiple of this: what vector code leaves over would be done one by one."""


@njit(nogil=True, cache=True)
def padded(n):
    """Places for ``n`` tokens in a row of a document's matrix."""
    return (n + LANES - 1) // LANES * LANES


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def sweep(lik, live, width, share, weight, total, ratio, grow):
    """total_i = sum_k lik_ki share_k, and grow_k = sum_i weight_i lik_ki / total_i: N_k is share_k grow_k.

    Topic k of the ``width`` topics has row ``live[k]`` of ``lik (topics, n)``; ``weight``, ``total`` and ``ratio`` are
    at least as long as its rows.
    """
    n = lik.shape[1]
    for i in range(n):
        total[i] = 0.0
    for k in range(0, width - width % 4, 4):
        a, b, c, d = lik[live[k]], lik[live[k + 1]], lik[live[k + 2]], lik[live[k + 3]]
        ea, eb, ec, ed = share[k], share[k + 1], share[k + 2], share[k + 3]
        for i in range(n):
            total[i] += (ea * a[i] + eb * b[i]) + (ec * c[i] + ed * d[i])
    for k in range(width - width % 4, width):
        a, ea = lik[live[k]], share[k]
        for i in range(n):
            total[i] += ea * a[i]
    for i in range(n):
        ratio[i] = weight[i] / total[i]
    for k in range(0, width - width % 4, 4):
        a, b, c, d = lik[live[k]], lik[live[k + 1]], lik[live[k + 2]], lik[live[k + 3]]
        sa = sb = sc = sd = 0.0
        for i in range(n):
            r = ratio[i]
            sa += a[i] * r
            sb += b[i] * r
            sc += c[i] * r
            sd += d[i] * r
        grow[k], grow[k + 1], grow[k + 2], grow[k + 3] = sa, sb, sc, sd
    for k in range(width - width % 4, width):
        a = lik[live[k]]
        sa = 0.0
        for i in range(n):
            sa += a[i] * ratio[i]
        grow[k] = sa


@njit(nogil=True, cache=True, fastmath=FAST)
def row_totals(table, share):
    """Totals of a first sweep from shares that all documents have in common: sum_k table_rk share_k, ``(R,)``."""
    out = np.empty(len(table))
    for r in range(len(table)):
        row, total = table[r], 0.0
        for k in range(len(share)):
            total += row[k] * share[k]
        out[r] = total
    return out


@njit(nogil=True, cache=True, fastmath=FAST)
def gather_all(table, rows, lik, ratio, grow):
    """Likelihoods ``(K, n)`` of some rows of the table ``(R, K)`` under all topics; what is left of a row is one.

    They are read from afar, so that half of the first sweep is done on the way: ``grow_k = sum_i ratio_i lik_ki``.
    """
    gather_with_sums(table, rows, lik, ratio, grow)


@njit(inline="always")
def gather_with_sums(table, rows, lik, ratio, grow):
    """:func:`gather_all` under the floating-point rules of the caller."""
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
