"""Sparse counts: products with a table of words, weighted sums, log factorials.

Counts are the three arrays of a CSR matrix: ``indptr (n + 1,)``, ``indices (nnz,)``, ``data (nnz,)`` float64.
The loops run over clusters innermost, where memory is contiguous: 1.3 to 2 times the speed of scipy's products,
and 5 times for L-sparse responsibilities.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import sparse
from scipy.special import gammaln

from bnp_dask.kernels.mixture.resp import RaggedResp, Resp, SparseResp
from bnp_dask.kernels.options import INNER, njit

LOG_FACTORIAL = gammaln(np.arange(1024) + 1.0)
"""log x! for the counts that nearly all words have; larger ones cost a call of lgamma."""


@njit(nogil=True, cache=True)
def _transpose(x, out):
    rows, columns = x.shape
    for i0 in range(0, rows, 32):
        for j0 in range(0, columns, 32):
            for j in range(j0, min(j0 + 32, columns)):
                for i in range(i0, min(i0 + 32, rows)):
                    out[j, i] = x[i, j]


def transposed(x: np.ndarray) -> np.ndarray:
    """A contiguous copy of ``x.T``, in blocks (numpy's own is 4 times slower on large tables)."""
    if x.flags.f_contiguous:
        return x.T
    out = np.empty(x.shape[::-1])
    _transpose(x, out)
    return out


@njit(nogil=True, cache=True)
def _table_product(indptr, indices, data, table, out):
    for n in range(out.shape[0]):
        row = out[n]
        row[:] = 0.0
        j, end = indptr[n], indptr[n + 1]
        while j + 3 < end:
            a, b, c, d = data[j], data[j + 1], data[j + 2], data[j + 3]
            ta, tb, tc, td = table[indices[j]], table[indices[j + 1]], table[indices[j + 2]], table[indices[j + 3]]
            for k in range(row.shape[0]):
                row[k] += (a * ta[k] + b * tb[k]) + (c * tc[k] + d * td[k])
            j += 4
        while j < end:
            a, ta = data[j], table[indices[j]]
            for k in range(row.shape[0]):
                row[k] += a * ta[k]
            j += 1


def table_product(x: sparse.csr_array, table: np.ndarray) -> np.ndarray:
    """Sum over words of count times ``table (K, V)``: ``(n, K)``.

    A table stored with the cluster axis fastest (``order="F"``) is used without a copy.
    """
    out = np.empty((x.shape[0], len(table)))
    _table_product(x.indptr, x.indices, x.data, transposed(table), out)
    return out


@njit(nogil=True, cache=True)
def _sums_all(indptr, indices, data, resp, out):
    for n in range(resp.shape[0]):
        row = resp[n]
        for j in range(indptr[n], indptr[n + 1]):
            a, to = data[j], out[indices[j]]
            for k in range(row.shape[0]):
                to[k] += a * row[k]


@njit(nogil=True, cache=True)
def _sums_active(indptr, indices, data, resp, out):
    for n in range(resp.shape[0]):
        for k in range(resp.shape[1]):
            r = resp[n, k]
            if r != 0.0:
                to = out[k]
                for j in range(indptr[n], indptr[n + 1]):
                    to[indices[j]] += data[j] * r


@njit(nogil=True, cache=True)
def _sums_sparse(indptr, indices, data, index, value, out):
    for n in range(index.shape[0]):
        for i in range(index.shape[1]):
            r, to = value[n, i], out[index[n, i]]
            if r != 0.0:
                for j in range(indptr[n], indptr[n + 1]):
                    to[indices[j]] += data[j] * r


def count_sums(resp: Resp, x: sparse.csr_array) -> np.ndarray:
    """Sum over documents of responsibility times counts: ``(K, V)``, contiguous.

    Three loops with equal bits: each entry adds its documents in order.  Documents mostly belong to a few clusters
    (other responsibilities are exactly zero), so the cost is stored counts times clusters in use.
    """
    n_words = x.shape[1]
    if isinstance(resp, SparseResp):
        out = np.zeros((resp.n_clusters, n_words))
        _sums_sparse(x.indptr, x.indices, x.data, resp.index, resp.value, out)
        return out
    if isinstance(resp, RaggedResp):
        resp = resp.to_dense()
    n_clusters = resp.shape[1]
    if 4 * np.count_nonzero(resp) < resp.size:
        out = np.zeros((n_clusters, n_words))
        _sums_active(x.indptr, x.indices, x.data, resp, out)
        return out
    out = np.zeros((n_words, n_clusters))
    _sums_all(x.indptr, x.indices, x.data, np.ascontiguousarray(resp), out)
    return np.ascontiguousarray(transposed(out))


@njit(**INNER)
def _log_factorial(x, table):
    return table[int(x)] if x < len(table) and x == math.floor(x) else math.lgamma(x + 1.0)


@njit(nogil=True, cache=True)
def _row_log_factorials(indptr, data, table, out):
    for n in range(len(out)):
        total = 0.0
        for j in range(indptr[n], indptr[n + 1]):
            total += _log_factorial(data[j], table)
        out[n] = total


def row_log_factorials(x: sparse.csr_array) -> np.ndarray:
    """Sum over the words of each document of log x!, ``(n,)``."""
    out = np.empty(x.shape[0])
    _row_log_factorials(x.indptr, x.data, LOG_FACTORIAL, out)
    return out


@njit(**INNER)
def _log_rising(a, x):
    """log Gamma(a + x) - log Gamma(a), with no cancellation."""
    if x <= 16.0 and a < 1e15 and x == math.floor(x):
        product = 1.0
        for i in range(int(x)):
            product *= a + i
        # a tiny prior may take the product below the smallest normal number
        return math.log(product) if product > 1e-290 else math.lgamma(a + x) - math.lgamma(a)
    if a < 64.0:
        return math.lgamma(a + x) - math.lgamma(a)
    b = a + x
    # difference of two Stirling series; the next term is below 1e-12
    series = (1.0 / b - 1.0 / a) / 12.0 - (1.0 / b**3 - 1.0 / a**3) / 360.0 + (1.0 / b**5 - 1.0 / a**5) / 1260.0
    return (a - 0.5) * math.log1p(x / a) + x * (math.log(b) - 1.0) + series


@njit(nogil=True, cache=True)
def _rising_sums(indptr, indices, data, table, out):
    for n in range(out.shape[0]):
        out[n] = 0.0
        for j in range(indptr[n], indptr[n + 1]):
            row, x = table[indices[j]], data[j]
            if x > 0.0:
                for k in range(row.shape[0]):
                    out[n, k] += _log_rising(row[k], x)


def rising_sums(x: sparse.csr_array, table: np.ndarray) -> np.ndarray:
    """Sum over words of log Gamma(a + x) - log Gamma(a) with a from ``table (K, V)``: ``(n, K)``."""
    out = np.empty((x.shape[0], len(table)))
    _rising_sums(x.indptr, x.indices, x.data, transposed(table), out)
    return out


def rising(totals: np.ndarray, base: np.ndarray) -> np.ndarray:
    """log Gamma(a + x) - log Gamma(a) for every pair of ``totals (n,)`` and ``base (K,)``: ``(n, K)``."""
    column = sparse.csr_array(totals[:, None])
    return rising_sums(column, base[:, None])
