"""Rows with missing entries, under Gaussians of full covariance.

Rows are sorted by their missing entries (their pattern), because rows of one pattern share a factor for each cluster.
Write P for a cluster's precision, e for a row minus the cluster's mean, with zero minus the mean for missing entries,
and M for the missing entries.  Then

    min over e_M of e' P e = e' P e - g' P_MM^-1 g,      g = (P e)_M,

which is the quadratic form of the observed entries, and the minimum is at ``e_M - P_MM^-1 g``: the conditional
mean.  So a row with few missing entries costs little more than one with none.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnp_dask.kernels.options import INNER, njit

LOG_2PI = math.log(2.0 * math.pi)

BITS = 52
"""Entries of a row that one number encodes exactly; numbers are made and sorted faster than bytes."""


class Patterns(NamedTuple):
    """Rows with missing entries, grouped by pattern.

    Parameters
    ----------
    rows
        Positions of these rows in the batch, sorted by pattern, ``(R,)`` int64.
    starts
        The rows of pattern p are ``rows[starts[p]:starts[p + 1]]``, ``(P + 1,)`` int64.
    masks
        Which entries are missing, ``(P, D)`` bool.
    """

    rows: np.ndarray
    starts: np.ndarray
    masks: np.ndarray


def patterns_of(missing: np.ndarray) -> Patterns:
    """Rows with some but not all entries missing, grouped by pattern, from a mask ``(n, D)``."""
    n, d = missing.shape
    keys = np.empty((n, -(-d // BITS)))
    for word in range(keys.shape[1]):
        own = missing[:, word * BITS : (word + 1) * BITS]
        keys[:, word] = own.astype(np.float64) @ 2.0 ** np.arange(own.shape[1])  # exact in any order of addition
    full = [2.0 ** min(BITS, d - start) - 1.0 for start in range(0, d, BITS)]
    incomplete = np.flatnonzero((keys != 0.0).any(axis=1) & (keys != full).any(axis=1))
    keys = keys[incomplete]
    order = np.lexsort(keys.T)
    keys, rows = keys[order], incomplete[order]
    first = np.flatnonzero(np.concatenate([np.ones(min(len(rows), 1), np.bool_), (keys[1:] != keys[:-1]).any(axis=1)]))
    return Patterns(rows, np.append(first, len(rows)).astype(np.int64), np.ascontiguousarray(missing[rows[first]]))


@njit(**INNER)
def _factor(precision, lacking, m, lower, inverse):
    """Cholesky factor of ``P_MM`` and its inverse factor, lower triangles; log determinant, NaN without a factor."""
    log_det = 0.0
    for i in range(m):
        for j in range(i + 1):
            total = precision[lacking[i], lacking[j]]
            for c in range(j):
                total -= lower[i, c] * lower[j, c]
            if i == j:
                if not total > 0.0:
                    return math.nan
                lower[i, i] = math.sqrt(total)
                log_det += math.log(total)
            else:
                lower[i, j] = total / lower[j, j]
    for j in range(m):
        inverse[j, j] = 1.0 / lower[j, j]
        for i in range(j + 1, m):
            total = 0.0
            for c in range(j, i):
                total -= lower[i, c] * inverse[c, j]
            inverse[i, j] = total / lower[i, i]
    return log_det


@njit(**INNER)
def _whitened(precision, shift, y, lacking, m, inverse, out):
    """``L^-1 g`` of one row into ``out (m,)``; its square is ``g' P_MM^-1 g``."""
    d = len(y)
    square = 0.0
    for i in range(m):
        # four sums: one would wait for each addition
        s0, s1, s2, s3, row = 0.0, 0.0, 0.0, 0.0, precision[lacking[i]]
        for c in range(0, d - d % 4, 4):
            s0 += row[c] * (y[c] - shift[c])
            s1 += row[c + 1] * (y[c + 1] - shift[c + 1])
            s2 += row[c + 2] * (y[c + 2] - shift[c + 2])
            s3 += row[c + 3] * (y[c + 3] - shift[c + 3])
        for c in range(d - d % 4, d):
            s0 += row[c] * (y[c] - shift[c])
        out[i] = (s0 + s1) + (s2 + s3)
    for i in range(m - 1, -1, -1):
        total = 0.0
        for c in range(i + 1):
            total += inverse[i, c] * out[c]
        out[i] = total
        square += total * total
    return square


@njit(**INNER)
def _lacking(mask, out):
    m = 0
    for c in range(len(mask)):
        if mask[c]:
            out[m] = c
            m += 1
    return m


@njit(nogil=True, cache=True)
def add_marginal(y, rows, starts, masks, precision, shift, log_lik):
    """Turn log likelihoods of rows filled with zeros into log likelihoods of the observed entries.

    Parameters
    ----------
    y
        Centred rows, zero where an entry is missing, ``(n, D)``.
    rows, starts, masks
        See :class:`Patterns`.
    precision, shift
        ``(K, D, D)`` and centred means ``(K, D)``.
    log_lik
        ``(n, K)`` nats, changed in place.

    Returns
    -------
    bool
        False where a block of a precision is not positive definite in double precision.
    """
    d, k = y.shape[1], len(shift)
    # clusters last: they share the processor's vector lanes
    laid, means = np.empty((d, d, k)), np.empty((d, k))
    for c in range(k):
        for a in range(d):
            means[a, c] = shift[c, a]
            for b in range(d):
                laid[a, b, c] = precision[c, a, b]
    most = 0
    for p in range(len(masks)):
        most = max(most, masks[p].sum())
    lacking, lower, inverse = np.empty(d, np.int64), np.empty((most, most, k)), np.empty((most, most, k))
    log_det, away, white = np.empty(k), np.empty((d, k)), np.empty((most, k))
    for p in range(len(masks)):
        m = _lacking(masks[p], lacking)
        if not _factors(laid, lacking, m, lower, inverse, log_det):
            return False
        for r in range(starts[p], starts[p + 1]):
            row, out = y[rows[r]], log_lik[rows[r]]
            for a in range(d):
                for c in range(k):
                    away[a, c] = row[a] - means[a, c]
            for i in range(m):
                _product(laid[lacking[i]], away, d, white[i])
            for i in range(m - 1, -1, -1):
                # g of the earlier entries is still stored
                _scaled(inverse[i, : i + 1], white, i, white[i])
            for c in range(k):
                square = 0.0
                for i in range(m):
                    square += white[i, c] * white[i, c]
                out[c] += 0.5 * (square + m * LOG_2PI - log_det[c])
    return True


@njit(**INNER)
def _factors(laid, lacking, m, lower, inverse, log_det):
    """:func:`_factor` of all clusters side by side, ``(m, m, K)``; False if one has no factor."""
    k = len(log_det)
    log_det[:] = 0.0
    for i in range(m):
        for j in range(i + 1):
            total = lower[i, j]
            total[:] = laid[lacking[i], lacking[j]]
            for b in range(j):
                for c in range(k):
                    total[c] -= lower[i, b, c] * lower[j, b, c]
            if i == j:
                for c in range(k):
                    if not total[c] > 0.0:
                        return False
                    log_det[c] += math.log(total[c])
                    total[c] = math.sqrt(total[c])
            else:
                for c in range(k):
                    total[c] /= lower[j, j, c]
    for j in range(m):
        for c in range(k):
            inverse[j, j, c] = 1.0 / lower[j, j, c]
        for i in range(j + 1, m):
            total = inverse[i, j]
            total[:] = 0.0
            for b in range(j, i):
                for c in range(k):
                    total[c] -= lower[i, b, c] * inverse[b, j, c]
            for c in range(k):
                total[c] /= lower[i, i, c]
    return True


@njit(**INNER)
def _product(row, away, d, out):
    """Sum over entries of ``row (D, K)`` times ``away (D, K)``, for each cluster, ``(K,)``."""
    out[:] = 0.0
    for a in range(d):
        for c in range(len(out)):
            out[c] += row[a, c] * away[a, c]


@njit(**INNER)
def _scaled(inverse, white, i, out):
    """Row i of ``L^-1 g``, ``(K,)``, in place of row i of g."""
    for c in range(len(out)):
        out[c] *= inverse[i, c]
    for b in range(i):
        for c in range(len(out)):
            out[c] += inverse[b, c] * white[b, c]


@njit(nogil=True, cache=True)
def add_completed(y, rows, starts, masks, precision, shift, resp, first, second, entropy):
    """Add the contributions of missing entries, by their conditional distributions, to sums over rows with zeros there.

    Parameters
    ----------
    y, rows, starts, masks, precision, shift
        As in :func:`add_marginal`.
    resp
        Responsibilities times weights of the rows with missing entries, in the order of ``rows``, ``(R, K)``.
    first, second
        Sums of r y and of r y y', packed, ``(K, D)`` and ``(K, D (D + 1) / 2)``, changed in place: the missing entries
        count with their conditional means, and with their conditional covariances.
    entropy
        Entropy of the missing entries, ``(K,)`` nats, added to.

    Returns
    -------
    bool
        False where a block of a precision is not positive definite in double precision.
    """
    d, k = y.shape[1], len(shift)
    lacking, lower, inverse, white = np.empty(d, np.int64), np.empty((d, d)), np.empty((d, d)), np.empty(d)
    step, at = np.empty(d), np.empty(d, np.int64)
    for i in range(d):
        at[i] = i * d - i * (i - 1) // 2 - i  # of (i, j) in the packed triangle, less j
    for p in range(len(masks)):
        m = _lacking(masks[p], lacking)
        for c in range(k):
            mass = 0.0
            for r in range(starts[p], starts[p + 1]):
                mass += resp[r, c]
            if mass == 0.0:
                continue
            log_det = _factor(precision[c], lacking, m, lower, inverse)
            if math.isnan(log_det):
                return False
            entropy[c] += 0.5 * mass * (m * (1.0 + LOG_2PI) - log_det)
            for i in range(m):
                for j in range(i, m):
                    total = 0.0
                    for a in range(j, m):
                        total += inverse[a, i] * inverse[a, j]
                    second[c, at[lacking[i]] + lacking[j]] += mass * total
            for r in range(starts[p], starts[p + 1]):
                share, row = resp[r, c], y[rows[r]]
                if share == 0.0:
                    continue
                _whitened(precision[c], shift[c], row, lacking, m, inverse, white)
                for i in range(m):
                    total = 0.0
                    for a in range(i, m):
                        total -= inverse[a, i] * white[a]
                    step[i] = total
                for i in range(m):
                    own = lacking[i]
                    first[c, own] += share * step[i]
                    for j in range(i, m):
                        second[c, at[own] + lacking[j]] += share * step[i] * step[j]
                    for j in range(d):  # zero for missing entries
                        place = at[own] + j if own <= j else at[j] + own
                        second[c, place] += share * step[i] * row[j]
    return True


@njit(nogil=True, cache=True)
def add_conditional_means(y, rows, starts, masks, precision, shift, resp, out):
    """Add ``sum_k r_nk E[y_M | y_O, k]`` to the missing entries of ``out (n, D)``, centred; else as above."""
    d, k = y.shape[1], len(shift)
    lacking, lower, inverse, white = np.empty(d, np.int64), np.empty((d, d)), np.empty((d, d)), np.empty(d)
    for p in range(len(masks)):
        m = _lacking(masks[p], lacking)
        for c in range(k):
            if math.isnan(_factor(precision[c], lacking, m, lower, inverse)):
                return False
            for r in range(starts[p], starts[p + 1]):
                _whitened(precision[c], shift[c], y[rows[r]], lacking, m, inverse, white)
                for i in range(m):
                    total = 0.0
                    for a in range(i, m):
                        total -= inverse[a, i] * white[a]
                    out[rows[r], lacking[i]] += resp[r, c] * total
    return True
