"""One sweep over the tokens of a document, given its likelihoods and the shares of its topics.

Likelihoods of a document are a contiguous matrix ``(topics, tokens)``: tokens are the long axis of nearly every
document once the topics that it does not use are gone, and taking topics out of it moves whole rows.
"""

from __future__ import annotations

from numba import njit

from bnp_dask.kernels.document_sums import FAST


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def sweep(lik, share, weight, total, ratio, grow):
    """total_i = sum_k lik_ki share_k, and grow_k = sum_i weight_i lik_ki / total_i: N_k is share_k grow_k."""
    width, n = lik.shape
    for i in range(n):
        total[i] = 0.0
    for k in range(0, width - width % 4, 4):
        a, b, c, d = lik[k], lik[k + 1], lik[k + 2], lik[k + 3]
        ea, eb, ec, ed = share[k], share[k + 1], share[k + 2], share[k + 3]
        for i in range(n):
            total[i] += (ea * a[i] + eb * b[i]) + (ec * c[i] + ed * d[i])
    for k in range(width - width % 4, width):
        a, ea = lik[k], share[k]
        for i in range(n):
            total[i] += ea * a[i]
    for i in range(n):
        ratio[i] = weight[i] / total[i]
    for k in range(0, width - width % 4, 4):
        a, b, c, d = lik[k], lik[k + 1], lik[k + 2], lik[k + 3]
        sa = sb = sc = sd = 0.0
        for i in range(n):
            r = ratio[i]
            sa += a[i] * r
            sb += b[i] * r
            sc += c[i] * r
            sd += d[i] * r
        grow[k], grow[k + 1], grow[k + 2], grow[k + 3] = sa, sb, sc, sd
    for k in range(width - width % 4, width):
        a = lik[k]
        sa = 0.0
        for i in range(n):
            sa += a[i] * ratio[i]
        grow[k] = sa


@njit(nogil=True, cache=True)
def gather_all(table, rows, lik):
    """Likelihoods ``(K, n)`` of some rows of the table ``(R, K)`` under all topics."""
    width, n = lik.shape
    for i in range(0, n - n % 8, 8):  # a cache line of the result at a time
        a, b, c, d = table[rows[i]], table[rows[i + 1]], table[rows[i + 2]], table[rows[i + 3]]
        e, f, g, h = table[rows[i + 4]], table[rows[i + 5]], table[rows[i + 6]], table[rows[i + 7]]
        for k in range(width):
            to = lik[k, i : i + 8]
            to[0], to[1], to[2], to[3] = a[k], b[k], c[k], d[k]
            to[4], to[5], to[6], to[7] = e[k], f[k], g[k], h[k]
    for i in range(n - n % 8, n):
        a = table[rows[i]]
        for k in range(width):
            lik[k, i] = a[k]


@njit(nogil=True, cache=True)
def gather_some(table, rows, index, lik):
    """The same under some topics."""
    width, n = lik.shape
    for i in range(n):
        source = table[rows[i]]
        for k in range(width):
            lik[k, i] = source[index[k]]


@njit(nogil=True, cache=True)
def keep_rows(lik, n, keep, kept):
    """Move the rows of ``n`` numbers that are kept, in ascending order, to the front of a flat matrix."""
    for j in range(kept):
        k = keep[j]
        if k != j:
            to, source = lik[j * n : (j + 1) * n], lik[k * n : (k + 1) * n]
            for i in range(n):
                to[i] = source[i]
