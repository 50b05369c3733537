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


Resp = np.ndarray | SparseResp


def resp_from_weights(log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Normalised exponentials of each row (thesis Alg. 7.1).

    Parameters
    ----------
    log_weights
        W, ``(n, K)``, nats.

    Returns
    -------
    resp
        ``(n, K)``; each row sums to one.
    log_resp
        W minus the log normaliser of its row, ``(n, K)``: finite also where ``resp`` was set to zero.
    """
    log_resp = log_weights - log_weights.max(axis=1, keepdims=True)
    resp = np.exp(log_resp)
    total = resp.sum(axis=1, keepdims=True)
    resp /= total
    log_resp -= np.log(total)
    resp[resp < TINY] = 0.0
    return resp, log_resp


@njit(nogil=True, cache=True)
def _select_top(log_weights, width, index, value):
    n, k_all = log_weights.shape
    best = np.empty(width)
    where = np.empty(width, np.int64)
    for row in range(n):
        filled = 0
        for k in range(k_all):
            w = log_weights[row, k]
            if filled == width and not w > best[width - 1]:
                continue
            j = filled if filled < width else width - 1
            while j > 0 and best[j - 1] < w:
                best[j] = best[j - 1]
                where[j] = where[j - 1]
                j -= 1
            best[j] = w
            where[j] = k
            if filled < width:
                filled += 1
        order = np.argsort(where)
        for j in range(width):
            index[row, j] = where[order[j]]
            value[row, j] = best[order[j]]


def top_resp_from_weights(log_weights: np.ndarray, top: int) -> tuple[SparseResp, np.ndarray]:
    """Keep the ``top`` largest weights of each row and normalise those (thesis Alg. 7.2).

    Ties go to the lower position.  Returns the responsibilities and their logs, ``(n, L)``, L = min(top, K).
    """
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


def cluster_sums(resp: Resp, x: np.ndarray | None = None) -> np.ndarray:
    """Sum over atoms of responsibility times ``x``: ``(K,)`` for None, else ``(K, D)`` for ``(n, D)``."""
    if isinstance(resp, SparseResp):
        if x is None:
            return np.bincount(resp.index.ravel(), resp.value.ravel(), minlength=resp.n_clusters)
        return np.asarray(resp.to_csr().T @ x)
    if x is None:
        return resp.sum(axis=0)
    return resp.T @ x


def cluster_count_sums(resp: Resp, x: sparse.csr_array) -> np.ndarray:
    """Sum over documents of responsibility times sparse counts: ``(K, V)``; cost in the stored counts only."""
    if isinstance(resp, SparseResp):
        return (resp.to_csr().T @ x).toarray()
    return np.ascontiguousarray((x.T @ resp).T)


def cluster_entropy(weighted: Resp, log_resp: np.ndarray) -> np.ndarray:
    """Assignment entropy per cluster, ``(K,)`` nats: minus sum of w r log r (thesis eq. 3.29).

    ``weighted`` are the responsibilities times the atoms' weights, ``log_resp`` their unweighted logs.
    """
    if isinstance(weighted, SparseResp):
        terms = weighted.value * log_resp
        return -np.bincount(weighted.index.ravel(), terms.ravel(), minlength=weighted.n_clusters)
    return -np.einsum("nk,nk->k", weighted, log_resp)


def pair_entropy(resp: Resp, weights: np.ndarray | None, pairs: np.ndarray) -> np.ndarray:
    """Entropy of the union of each pair of positions ``(M, 2)``: minus sum of w (ra+rb) log(ra+rb), ``(M,)``."""
    out = np.zeros(len(pairs))
    if len(pairs) == 0:
        return out
    dense = resp.to_dense() if isinstance(resp, SparseResp) else resp
    for m, (a, b) in enumerate(pairs):
        both = dense[:, a] + dense[:, b]
        terms = both * np.log(np.where(both > 0, both, 1.0))
        out[m] = -(terms.sum() if weights is None else terms @ weights)
    return out
