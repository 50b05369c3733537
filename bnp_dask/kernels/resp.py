"""Responsibilities: from log weights to probabilities, dense or L-sparse, and what is summed with them.

A dense responsibility is an ``(n, K)`` float64 array.  An L-sparse one (thesis 7.1) is a :class:`SparseResp`.
Values below 2**-53 are set to exact zero: they change no sum, and denormal numbers are slow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from scipy import sparse

TINY = 2.0**-53


@dataclass(frozen=True, eq=False)
class SparseResp:
    """At most L clusters per atom.

    Parameters
    ----------
    index
        Positions of the clusters, ``(n, L)`` int64, ascending in each row.
    value
        Their responsibilities, ``(n, L)`` float64.
    n_clusters
        K.
    """

    index: np.ndarray
    value: np.ndarray
    n_clusters: int

    def to_dense(self) -> np.ndarray:
        """The same as an ``(n, K)`` array."""
        dense = np.zeros((len(self.index), self.n_clusters))
        np.put_along_axis(dense, self.index, self.value, axis=1)
        return dense

    def to_csr(self) -> sparse.csr_array:
        """The same as an ``(n, K)`` sparse matrix."""
        n, width = self.index.shape
        indptr = np.arange(0, n * width + 1, width)
        return sparse.csr_array((self.value.ravel(), self.index.ravel(), indptr), shape=(n, self.n_clusters))


@dataclass(frozen=True, eq=False)
class WordResp:
    """Responsibilities of word tokens, which are alike enough to be summed at once: by word.

    Parameters
    ----------
    counts
        Expected tokens of each word in each cluster, ``(R, K)``.
    words
        Which words the rows are, ``(R,)``; every other word has no token.
    """

    counts: np.ndarray
    words: np.ndarray

    def by_cluster(self, n_words: int) -> np.ndarray:
        """Counts of all words, ``(K, V)`` contiguous."""
        out = np.zeros((self.counts.shape[1], n_words))
        out[:, self.words] = self.counts.T
        return out


Resp = np.ndarray | SparseResp

AnyResp = Resp | WordResp
"""Responsibilities of atoms one by one, or of word tokens by word."""


def resp_from_weights(log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Normalised exponentials of each row (thesis Alg. 7.1).

    Parameters
    ----------
    log_weights
        W, ``(n, K)``, nats.  ``-inf`` forbids a cluster; a row of nothing else, or with NaN, gives a row of NaN.

    Returns
    -------
    resp
        ``(n, K)``; each row sums to one.
    log_resp
        W minus the log normaliser of its row, ``(n, K)``: finite also where ``resp`` was set to zero.
    """
    log_weights = np.ascontiguousarray(log_weights, np.float64)
    resp = np.empty(log_weights.shape)
    log_resp = np.empty(log_weights.shape)
    _softmax_rows(log_weights, log_weights.max(axis=1), resp, log_resp)
    return resp, log_resp


LOG2_E = 1.4426950408889634
LN2_HIGH = 6.93147180369123816490e-01
LN2_LOW = 1.90821492927058770002e-10
ROUND = 1.5 * 2.0**52  # adding and subtracting it rounds to the nearest whole number
LOG_NOTHING = -40.0  # below log(TINY) by enough that what is left out changes no row's sum
LOG_NEVER = -1e300  # stands for -inf, so that zero times a log is zero


@njit(nogil=True, cache=True)
def _softmax_rows(log_weights, top, resp, log_resp):
    # exp is written out because numba's calls a scalar library function: 2**z from its bits, times a Taylor
    # polynomial on |r| <= log(2) / 2 (relative error 3e-16); no branch, so that it compiles to vector code
    n, k_all = log_weights.shape
    whole = k_all - k_all % 4
    bits = np.empty(k_all, np.int64)
    power = bits.view(np.float64)
    for row in range(n):
        highest = top[row]
        source = log_weights[row]
        out = resp[row]
        log_out = log_resp[row]
        for k in range(k_all):
            d = source[k] - highest
            log_out[k] = d if d > LOG_NEVER else LOG_NEVER
            c = d if d > LOG_NOTHING else LOG_NOTHING
            z = (c * LOG2_E + ROUND) - ROUND
            bits[k] = np.int64(np.int32(z) + np.int32(1023)) << 52
            r = (c - z * LN2_HIGH) - z * LN2_LOW
            p = 1.0 / 6227020800.0
            p = p * r + 1.0 / 479001600.0
            p = p * r + 1.0 / 39916800.0
            p = p * r + 1.0 / 3628800.0
            p = p * r + 1.0 / 362880.0
            p = p * r + 1.0 / 40320.0
            p = p * r + 1.0 / 5040.0
            p = p * r + 1.0 / 720.0
            p = p * r + 1.0 / 120.0
            p = p * r + 1.0 / 24.0
            p = p * r + 1.0 / 6.0
            p = p * r + 0.5
            p = p * (r * r) + r
            out[k] = p + 1.0 if d > LOG_NOTHING else 0.0
        for k in range(k_all):
            out[k] *= power[k]
        # four partial sums in a fixed order: the same bits on every machine, unlike a compiler's reduction
        s0 = s1 = s2 = s3 = 0.0
        for k in range(0, whole, 4):
            s0 += out[k]
            s1 += out[k + 1]
            s2 += out[k + 2]
            s3 += out[k + 3]
        for k in range(whole, k_all):
            s0 += out[k]
        total = (s0 + s1) + (s2 + s3)
        if not total > 0.0:
            total = np.nan  # the highest weight was not finite
        shift = np.log(total)
        for k in range(k_all):
            share = out[k] / total
            out[k] = 0.0 if share < TINY else share
            log_out[k] -= shift


@njit(nogil=True, cache=True)
def _insert(best, where, size, w, k):
    # best[:size] is descending; equal weights stay in order of their position
    j = size
    while j > 0 and best[j - 1] < w:
        best[j] = best[j - 1]
        where[j] = where[j - 1]
        j -= 1
    best[j] = w
    where[j] = k


@njit(nogil=True, cache=True)
def _sort_by_position(where, best):
    for i in range(1, len(where)):
        k, w = where[i], best[i]
        j = i
        while j > 0 and where[j - 1] > k:
            where[j] = where[j - 1]
            best[j] = best[j - 1]
            j -= 1
        where[j] = k
        best[j] = w


@njit(nogil=True, cache=True)
def _select_top(log_weights, width, index, value):
    n, k_all = log_weights.shape
    for row in range(n):
        w = log_weights[row]
        best = value[row]
        where = index[row]
        broken = False
        for k in range(width):
            broken |= np.isnan(w[k])
            _insert(best, where, k, w[k], k)
        least = best[width - 1]
        for start in range(width, k_all, 4):
            # most are too small: one branch for four of them, which NaN takes too
            if start + 4 <= k_all and (
                (w[start] <= least) & (w[start + 1] <= least) & (w[start + 2] <= least) & (w[start + 3] <= least)
            ):
                continue
            for k in range(start, min(start + 4, k_all)):
                broken |= np.isnan(w[k])
                if w[k] > least:
                    _insert(best, where, width - 1, w[k], k)
                    least = best[width - 1]
        _sort_by_position(where, best)
        if broken:
            best[:] = np.nan


def top_resp_from_weights(log_weights: np.ndarray, top: int) -> tuple[SparseResp, np.ndarray]:
    """Keep the ``top`` largest weights of each row and normalise those (thesis Alg. 7.2).

    Ties go to the lower position; a row with NaN gives a row of NaN.  Returns the
    responsibilities and their logs, ``(n, L)``, L = min(top, K).
    """
    log_weights = np.ascontiguousarray(log_weights, np.float64)
    n, k = log_weights.shape
    width = min(top, k)
    index = np.empty((n, width), np.int64)
    value = np.empty((n, width))
    _select_top(log_weights, width, index, value)
    resp, log_resp = resp_from_weights(value)
    return SparseResp(index, resp, k), log_resp


def scale_rows(resp: Resp, weights: np.ndarray | None) -> Resp:
    """Responsibilities times one weight per atom, ``(n,)``."""
    if weights is None:
        return resp
    if isinstance(resp, SparseResp):
        return SparseResp(resp.index, resp.value * weights[:, None], resp.n_clusters)
    return resp * weights[:, None]


def cluster_sums(resp: AnyResp, x: np.ndarray | None = None) -> np.ndarray:
    """Sum over atoms of responsibility times ``x``: ``(K,)`` for None, else ``(K, D)`` for ``(n, D)``."""
    if isinstance(resp, WordResp):
        if x is not None:
            raise TypeError("responsibilities summed by word know no atoms")
        return resp.counts.sum(axis=0)
    if isinstance(resp, SparseResp):
        if x is None:
            return np.bincount(resp.index.ravel(), resp.value.ravel(), minlength=resp.n_clusters)
        return np.asarray(resp.to_csr().T @ x)
    if x is None:
        return resp.sum(axis=0)
    return resp.T @ x


def column_sums(resp: Resp, columns: np.ndarray) -> np.ndarray:
    """Mass of each atom on the clusters at the positions ``columns``, ``(n,)``."""
    if isinstance(resp, SparseResp):
        return np.where(np.isin(resp.index, columns), resp.value, 0.0).sum(axis=1)
    return resp[:, columns].sum(axis=1)


def cluster_entropy(weighted: Resp, log_resp: np.ndarray) -> np.ndarray:
    """Assignment entropy per cluster, ``(K,)`` nats: minus sum of w r log r (thesis eq. 3.29).

    ``weighted`` are the responsibilities times the atoms' weights, ``log_resp`` their unweighted logs.
    """
    if isinstance(weighted, SparseResp):
        terms = weighted.value * log_resp
        return -np.bincount(weighted.index.ravel(), terms.ravel(), minlength=weighted.n_clusters)
    return -np.einsum("nk,nk->k", weighted, log_resp)


def resp_entropy(weighted: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """The same from weighted responsibilities ``(n, K)`` alone and the weights that are in them."""
    return _resp_entropy(weighted, np.ones(len(weighted)) if weights is None else weights)


@njit(nogil=True, cache=True)
def _resp_entropy(weighted, weights):
    out = np.zeros(weighted.shape[1])
    for row in range(len(weighted)):
        for k in range(weighted.shape[1]):
            mass = weighted[row, k]
            if mass != 0.0:
                out[k] -= mass * np.log(mass / weights[row])
    return out


def pair_entropy(resp: Resp, weights: np.ndarray | None, pairs: np.ndarray) -> np.ndarray:
    """Entropy of the union of each pair of positions ``(M, 2)``: minus sum of w (ra+rb) log(ra+rb), ``(M,)``."""
    out = np.zeros(len(pairs))
    if len(pairs) == 0:
        return out
    dense = resp.to_dense() if isinstance(resp, SparseResp) else resp
    counts = np.ones(len(dense)) if weights is None else weights
    _pair_entropy(dense, counts, np.asarray(pairs, np.int64), out)
    return out


@njit(nogil=True, cache=True)
def _pair_entropy(resp, weights, pairs, out):
    # most atoms belong to neither cluster, and their logs are not computed
    for row in range(len(resp)):
        for m in range(len(pairs)):
            both = resp[row, pairs[m, 0]] + resp[row, pairs[m, 1]]
            if both != 0.0:
                out[m] -= weights[row] * both * np.log(both)
