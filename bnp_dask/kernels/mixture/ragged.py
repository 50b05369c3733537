"""Lists of clusters per atom, of any length: loops over the pairs (atom, cluster) that matter.

Pairs lie atom by atom, as in a CSR matrix: atom n has the pairs ``offsets[n]:offsets[n + 1]``, clusters ascending.  For
sums by cluster, pairs are first brought into the order of clusters (atoms ascending in each), which fixes the order of
additions.  A *tail* ``(n, K)`` float32 may hold the values of clusters that are not listed; it is zero for the others.
"""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.mixture.softmax import TINY
from bnp_dask.kernels.numeric.arithmetic import fused
from bnp_dask.kernels.options import INNER, njit

NOTHING_32 = np.float32(-40.0)
ROUND_32 = np.float32(1.5 * 2.0**23)
LOG2_E_32 = np.float32(1.44269504)
LN2_HIGH_32 = np.float32(0.693359375)
LN2_LOW_32 = np.float32(-2.12194440e-4)

ROWS = 128
"""Number of pairs of one cluster processed together: they and their products stay in cache."""


@njit(nogil=True, cache=True)
def by_cluster(offsets, index, n_clusters):
    """Atoms and places of all pairs in the order of clusters, and where each cluster starts ``(K + 1,)``."""
    starts = np.zeros(n_clusters + 1, np.int64)
    for i in range(offsets[0], offsets[-1]):
        starts[index[i] + 1] += 1
    for k in range(n_clusters):
        starts[k + 1] += starts[k]
    at = starts[:-1].copy()
    atoms = np.empty(len(index), np.int64)
    places = np.empty(len(index), np.int64)
    for n in range(len(offsets) - 1):
        for i in range(offsets[n], offsets[n + 1]):
            j = at[index[i]]
            at[index[i]] = j + 1
            atoms[j] = n
            places[j] = i
    return atoms, places, starts


@njit(**INNER)
def _upper_product(rows, upper, out):
    # rows (n, D) times an upper triangle (D, D), each number one chain in the order of kernels/numeric/arithmetic.py
    d = upper.shape[0]
    out[:] = 0.0
    whole = len(rows) - len(rows) % 4
    for i in range(0, whole, 4):
        a, b, c, e = out[i], out[i + 1], out[i + 2], out[i + 3]
        for j in range(d):
            other = upper[j]
            w, x, y, z = rows[i, j], rows[i + 1, j], rows[i + 2, j], rows[i + 3, j]
            for k in range(j, d):
                a[k] = fused(w, other[k], a[k])
                b[k] = fused(x, other[k], b[k])
                c[k] = fused(y, other[k], c[k])
                e[k] = fused(z, other[k], e[k])
    for i in range(whole, len(rows)):
        for j in range(d):
            for k in range(j, d):
                out[i, k] = fused(rows[i, j], upper[j, k], out[i, k])


@njit(**INNER)
def _upper_squares(left, right, out):
    # the upper triangle of left.T (D, n) times right (n, D), each number one chain over the rows
    n, d = left.shape
    out[:] = 0.0
    whole = n - n % 4
    for a in range(d):
        to = out[a]
        for i in range(0, whole, 4):
            w, x, y, z = left[i, a], left[i + 1, a], left[i + 2, a], left[i + 3, a]
            p, q, r, s = right[i], right[i + 1], right[i + 2], right[i + 3]
            for b in range(a, d):
                to[b] = fused(z, s[b], fused(y, r[b], fused(x, q[b], fused(w, p[b], to[b]))))
        for i in range(whole, n):
            for b in range(a, d):
                to[b] = fused(left[i, a], right[i, b], to[b])


@njit(nogil=True, cache=True)
def whitened_pairs(y, atoms, places, starts, shift, roots, nu, level, fixed, out):
    """``level_k - nu_k / 2 |(y_n - shift_k) roots_k|**2`` of all pairs, put at their places of ``out``.

    ``roots (K, D, D)`` are transposed inverse Cholesky factors; the pairs are in the order of clusters.  ``fixed`` is
    for products without BLAS, in the order of :mod:`bnp_dask.kernels.numeric.arithmetic`.
    """
    d = y.shape[1]
    away = np.empty((ROWS, d))
    white = np.empty((ROWS, d))
    for k in range(len(nu)):
        for start in range(starts[k], starts[k + 1], ROWS):
            size = min(ROWS, starts[k + 1] - start)
            for i in range(size):
                row = y[atoms[start + i]]
                for j in range(d):
                    away[i, j] = row[j] - shift[k, j]
            if fixed:
                _upper_product(away[:size], roots[k], white[:size])
            else:
                np.dot(away[:size], roots[k], white[:size])
            for i in range(size):
                s0 = s1 = s2 = s3 = 0.0
                for j in range(0, d - d % 4, 4):
                    s0 += white[i, j] * white[i, j]
                    s1 += white[i, j + 1] * white[i, j + 1]
                    s2 += white[i, j + 2] * white[i, j + 2]
                    s3 += white[i, j + 3] * white[i, j + 3]
                for j in range(d - d % 4, d):
                    s0 += white[i, j] * white[i, j]
                out[places[start + i]] = level[k] - 0.5 * nu[k] * ((s0 + s1) + (s2 + s3))


@njit(nogil=True, cache=True)
def moments_of_pairs(x, center, atoms, values, starts, fixed, first, second):
    """Add r y to ``first (K, D)`` and r y y' to ``second (K, D (D + 1) / 2)``; pairs in the order of clusters."""
    d = x.shape[1]
    rows = np.empty((ROWS, d))
    scaled = np.empty((ROWS, d))
    square = np.empty((d, d))
    total = np.empty((d, d))
    for k in range(len(starts) - 1):
        if starts[k] == starts[k + 1]:
            continue
        total[:] = 0.0
        for start in range(starts[k], starts[k + 1], ROWS):
            size = min(ROWS, starts[k + 1] - start)
            for i in range(size):
                row, r = x[atoms[start + i]], values[start + i]
                for j in range(d):
                    value = row[j] - center[j]
                    rows[i, j] = value
                    scaled[i, j] = r * value
                    first[k, j] += r * value
            if size < 8:  # not worth a matrix product
                for a in range(d):
                    to = total[a]
                    for i in range(size):
                        value, row = scaled[i, a], rows[i]
                        for b in range(a, d):
                            to[b] += value * row[b]
            else:
                if fixed:
                    _upper_squares(scaled[:size], rows[:size], square)
                else:
                    np.dot(scaled[:size].T, rows[:size], square)
                for a in range(d):
                    for b in range(a, d):
                        total[a, b] += square[a, b]
        at = 0
        for a in range(d):
            for b in range(a, d):
                second[k, at] += total[a, b]
                at += 1


@njit(nogil=True, cache=True)
def softmax_of_lists(offsets, index, weights):
    """Normalised exponentials of lists of log weights; values below TINY are left out.

    Returns offsets, index, responsibilities and their logs.  A list without a finite number gives NaN.
    """
    n = len(offsets) - 1
    kept = np.empty(n + 1, np.int64)
    where = np.empty(len(index), np.int64)
    value = np.empty(len(index))
    logs = np.empty(len(index))
    at = 0
    kept[0] = 0
    for row in range(n):
        start, end = offsets[row], offsets[row + 1]
        top = -np.inf
        broken = start == end
        for i in range(start, end):
            broken |= np.isnan(weights[i])
            if weights[i] > top:
                top = weights[i]
        total = 0.0
        if end - start == 1 and np.isfinite(top):
            total = 1.0
        else:
            for i in range(start, end):
                total += np.exp(weights[i] - top)
        broken |= not total > 0.0
        shift = np.log(total)
        for i in range(start, end):
            share = np.exp(weights[i] - top) / total if end - start > 1 else 1.0
            if broken:
                share = np.nan
            if not share < TINY:
                where[at] = index[i]
                value[at] = share
                logs[at] = (weights[i] - top) - shift
                at += 1
        kept[row + 1] = at
    return kept, where[:at].copy(), value[:at].copy(), logs[:at].copy()


@njit(**INNER)
def _exp_tail(row, top, power, out):
    # exp(row - top) in float32 to about 1e-7, zero below LOG_NOTHING; no branch, so that it compiles to vector code
    bits = power.view(np.int32)
    for k in range(len(row)):
        d = np.float32(np.float64(row[k]) - top)
        c = d if d > NOTHING_32 else NOTHING_32
        z = (c * LOG2_E_32 + ROUND_32) - ROUND_32
        bits[k] = (np.int32(z) + np.int32(127)) << np.int32(23)
        r = (c - z * LN2_HIGH_32) - z * LN2_LOW_32
        p = np.float32(1.0 / 720.0)
        p = p * r + np.float32(1.0 / 120.0)
        p = p * r + np.float32(1.0 / 24.0)
        p = p * r + np.float32(1.0 / 6.0)
        p = p * r + np.float32(0.5)
        p = p * (r * r) + r
        out[k] = p + np.float32(1.0) if d > NOTHING_32 else np.float32(0.0)
    for k in range(len(row)):
        out[k] *= power[k]


@njit(nogil=True, cache=True)
def softmax_with_tail(offsets, weights, tail, counts, value, logs, entropy):
    """Softmax of lists; ``tail (n, K)`` float32 holds log weights of the clusters not listed, and is overwritten.

    ``counts (n,)`` are the atoms' own weights, and ``entropy (K,)`` gets minus the sum of count r log r of the tail.
    """
    n_clusters = tail.shape[1]
    power = np.empty(n_clusters, np.float32)
    shares = np.empty(n_clusters, np.float32)
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        top = -np.inf
        for i in range(start, end):
            if weights[i] > top:
                top = weights[i]
        # the highest weight is always listed
        _exp_tail(tail[row], top, power, shares)
        total = 0.0
        for i in range(start, end):
            value[i] = np.exp(weights[i] - top)
            total += value[i]
        for k in range(n_clusters):
            total += np.float64(shares[k])
        shift = np.log(total)
        for i in range(start, end):
            share = value[i] / total
            value[i] = 0.0 if share < TINY else share
            logs[i] = (weights[i] - top) - shift
        for k in range(n_clusters):
            share = np.float64(shares[k]) / total
            share = 0.0 if share < TINY else share
            log_share = np.float64(tail[row, k]) - (top + shift)
            log_share = log_share if share > 0.0 else 0.0
            entropy[k] -= counts[row] * share * log_share
            tail[row, k] = np.float32(share)


@njit(nogil=True, cache=True)
def top_of_lists(offsets, index, weights, width, n_clusters, where, best):
    """The ``width`` largest of each list, clusters ascending; shorter lists are filled with clusters of weight -inf."""
    taken = np.zeros(n_clusters, np.bool_)
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        found = min(width, end - start)
        order = np.argsort(-weights[start:end], kind="mergesort")[:found]
        for i in order:
            taken[index[start + i]] = True
        missing = width - found
        k = 0
        while missing > 0:
            if not taken[k]:
                taken[k] = True
                missing -= 1
            k += 1
        place = 0
        for k in range(n_clusters):
            if taken[k]:
                taken[k] = False
                where[row, place] = k
                best[row, place] = -np.inf
                place += 1
        for i in order:
            best[row, np.searchsorted(where[row], index[start + i])] = weights[start + i]


@njit(nogil=True, cache=True)
def columns_of_lists(offsets, index, value, place, out):
    """Add the values of some clusters to their columns of ``out (n, J)``; ``place (K,)`` is -1 for the others."""
    for row in range(len(offsets) - 1):
        for i in range(offsets[row], offsets[row + 1]):
            if place[index[i]] >= 0:
                out[row, place[index[i]]] += value[i]


@njit(nogil=True, cache=True)
def pair_entropy_of_lists(offsets, index, value, tail, counts, pairs, n_clusters, out):
    """Minus the sum of count (ra + rb) log(ra + rb) of pairs of clusters ``(M, 2)``; ``tail`` may have no columns."""
    row = np.zeros(n_clusters)
    for n in range(len(offsets) - 1):
        for k in range(tail.shape[1]):
            row[k] = tail[n, k]
        for i in range(offsets[n], offsets[n + 1]):
            row[index[i]] += value[i]
        for m in range(len(pairs)):
            both = row[pairs[m, 0]] + row[pairs[m, 1]]
            if both != 0.0:
                out[m] -= counts[n] * both * np.log(both)
        for i in range(offsets[n], offsets[n + 1]):
            row[index[i]] = 0.0
