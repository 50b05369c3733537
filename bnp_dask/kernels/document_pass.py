"""One sweep over the tokens of a document, given its likelihoods and the shares of its topics."""

from __future__ import annotations

from numba import njit

from bnp_dask.kernels.document_sums import FAST


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def pass_all(lik, share, weight, total, grow):
    """total_i = sum_k lik_ik share_k, and grow_k = sum_i weight_i lik_ik / total_i: N_k is share_k grow_k."""
    n, width = lik.shape
    for k in range(width):
        grow[k] = 0.0
    i = 0
    while i + 3 < n:
        a, b, c, d = lik[i], lik[i + 1], lik[i + 2], lik[i + 3]
        sa = sb = sc = sd = 0.0
        for k in range(width):
            e = share[k]
            sa += a[k] * e
            sb += b[k] * e
            sc += c[k] * e
            sd += d[k] * e
        total[i], total[i + 1], total[i + 2], total[i + 3] = sa, sb, sc, sd
        wa, wb, wc, wd = weight[i] / sa, weight[i + 1] / sb, weight[i + 2] / sc, weight[i + 3] / sd
        for k in range(width):
            grow[k] += (wa * a[k] + wb * b[k]) + (wc * c[k] + wd * d[k])
        i += 4
    while i < n:
        a = lik[i]
        sa = 0.0
        for k in range(width):
            sa += a[k] * share[k]
        total[i] = sa
        wa = weight[i] / sa
        for k in range(width):
            grow[k] += wa * a[k]
        i += 1


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def pass_few(flip, share, weight, total, ratio, grow):
    """The same for few topics, from the transposed matrix ``(K, n)``: the long axis is innermost."""
    width, n = flip.shape
    for i in range(n):
        total[i] = 0.0
    for k in range(0, width - width % 4, 4):
        a, b, c, d = flip[k], flip[k + 1], flip[k + 2], flip[k + 3]
        ea, eb, ec, ed = share[k], share[k + 1], share[k + 2], share[k + 3]
        for i in range(n):
            total[i] += (ea * a[i] + eb * b[i]) + (ec * c[i] + ed * d[i])
    for k in range(width - width % 4, width):
        a, ea = flip[k], share[k]
        for i in range(n):
            total[i] += ea * a[i]
    for i in range(n):
        ratio[i] = weight[i] / total[i]
    for k in range(0, width - width % 4, 4):
        a, b, c, d = flip[k], flip[k + 1], flip[k + 2], flip[k + 3]
        sa = sb = sc = sd = 0.0
        for i in range(n):
            r = ratio[i]
            sa += a[i] * r
            sb += b[i] * r
            sc += c[i] * r
            sd += d[i] * r
        grow[k], grow[k + 1], grow[k + 2], grow[k + 3] = sa, sb, sc, sd
    for k in range(width - width % 4, width):
        a = flip[k]
        sa = 0.0
        for i in range(n):
            sa += a[i] * ratio[i]
        grow[k] = sa


@njit(nogil=True, cache=True)
def flip_into(lik, flip):
    n, width = lik.shape
    for k in range(width):
        out = flip[k]
        for i in range(n):
            out[i] = lik[i, k]


@njit(nogil=True, cache=True)
def gather_rows(table, rows, index, width, lik):
    """Likelihoods of some tokens under some topics, as the rows of a contiguous matrix."""
    at = 0
    everything = width == table.shape[1]
    for k in range(width):
        everything = everything and index[k] == k  # an earlier visit may have had them in another order
    for i in range(len(rows)):
        source = table[rows[i]]
        if everything:
            out = lik[at : at + width]
            for k in range(width):
                out[k] = source[k]
        else:
            for k in range(width):
                lik[at + k] = source[index[k]]
        at += width
