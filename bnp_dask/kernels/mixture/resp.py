"""Responsibilities: from log weights to probabilities, dense or L-sparse, and sums weighted by them.

A dense responsibility is an ``(n, K)`` float64 array.  An L-sparse one (thesis 7.1) is a :class:`SparseResp`.
Values below 2**-53 are set to exact zero: they change no sum, and denormal numbers are slow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from bnp_dask.kernels.mixture import ragged, softmax
from bnp_dask.kernels.numeric.arithmetic import matmul
from bnp_dask.kernels.options import INNER, njit

TINY = softmax.TINY


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

    @property
    def shape(self) -> tuple[int, int]:
        """n and K."""
        return len(self.index), self.n_clusters

    def to_dense(self) -> np.ndarray:
        """Responsibilities as an ``(n, K)`` array."""
        dense = np.zeros((len(self.index), self.n_clusters))
        np.put_along_axis(dense, self.index, self.value, axis=1)
        return dense

    def to_csr(self) -> sparse.csr_array:
        """Responsibilities as an ``(n, K)`` sparse matrix."""
        n, width = self.index.shape
        indptr = np.arange(0, n * width + 1, width)
        return sparse.csr_array((self.value.ravel(), self.index.ravel(), indptr), shape=(n, self.n_clusters))


@dataclass(frozen=True, eq=False)
class WordResp:
    """Responsibilities of word tokens, summed by word, as all tokens of a word enter sums alike.

    Parameters
    ----------
    counts
        Expected tokens of each word in each cluster, ``(R, K)``.
    words
        Words of the rows, ``(R,)``; every other word has no token.
    """

    counts: np.ndarray
    words: np.ndarray

    def by_cluster(self, n_words: int) -> np.ndarray:
        """Counts of all words, ``(K, V)`` contiguous."""
        out = np.zeros((self.counts.shape[1], n_words))
        out[:, self.words] = self.counts.T
        return out


@dataclass(frozen=True, eq=False)
class RaggedResp:
    """Clusters with a non-zero responsibility for each atom, any number of them.

    Parameters
    ----------
    offsets
        The pairs (atom, cluster) of atom n are ``offsets[n]:offsets[n + 1]``, ``(n + 1,)`` int64.
    index
        Positions of the clusters, ascending for each atom, ``(M,)`` int64.
    value
        Their responsibilities, ``(M,)`` float64.
    n_clusters
        K.
    tail
        Responsibilities of the clusters that are not listed, all small, ``(n, K)`` float32; None for zero.
    """

    offsets: np.ndarray
    index: np.ndarray
    value: np.ndarray
    n_clusters: int
    tail: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """n and K."""
        return len(self.offsets) - 1, self.n_clusters

    def to_dense(self) -> np.ndarray:
        """Responsibilities as an ``(n, K)`` array."""
        n = len(self.offsets) - 1
        dense = np.zeros((n, self.n_clusters)) if self.tail is None else self.tail.astype(np.float64)
        dense[np.repeat(np.arange(n), np.diff(self.offsets)), self.index] = self.value
        return dense

    def to_csr(self) -> sparse.csr_array:
        """Responsibilities as an ``(n, K)`` sparse matrix."""
        if self.tail is not None:
            return sparse.csr_array(self.to_dense())
        return sparse.csr_array((self.value, self.index, self.offsets), shape=(len(self.offsets) - 1, self.n_clusters))


@dataclass(frozen=True, eq=False)
class ScreenedWeights:
    """Log weight plus log likelihood of the clusters that matter to each atom, laid out as in :class:`RaggedResp`.

    ``value (M,)`` nats; ``tail (n, K)`` float32 holds them for the other clusters and ``-inf`` for listed ones; without
    a tail the others have zero responsibility.  See :mod:`bnp_dask.kernels.gaussian.screen`.
    """

    offsets: np.ndarray
    index: np.ndarray
    value: np.ndarray
    n_clusters: int
    tail: np.ndarray | None = None


Resp = np.ndarray | SparseResp | RaggedResp

AnyResp = Resp | WordResp
"""Responsibilities of atoms one by one, or of word tokens by word."""


def resp_from_weights(log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Normalised exponentials of each row (thesis Alg. 7.1).

    Parameters
    ----------
    log_weights
        W, ``(n, K)``, nats.  ``-inf`` forbids a cluster; a row of ``-inf`` only, or with NaN, gives a row of NaN.

    Returns
    -------
    resp
        ``(n, K)``; each row sums to one.
    log_resp
        W minus the log normaliser of its row, ``(n, K)``: finite also where ``resp`` was set to zero.
    """
    log_weights = np.ascontiguousarray(log_weights, np.float64)
    n_clusters = log_weights.shape[1]
    resp, log_resp = np.empty(log_weights.shape), np.empty(log_weights.shape)
    softmax.softmax_rows(log_weights, np.zeros(n_clusters), resp, log_resp, np.empty(0), np.empty(0))
    return resp, log_resp


def resp_and_entropy(
    log_weights: np.ndarray, shift: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Normalised exponentials of each row of ``log_weights (n, K)`` + ``shift (K,)``, and their entropy.

    Parameters
    ----------
    log_weights
        Overwritten, and returned as the responsibilities if possible.
    shift
        Added to each row, nats.
    weights
        How often each atom counts in the entropy, ``(n,)``; None for once.

    Returns
    -------
    resp
        ``(n, K)``, not multiplied by the weights.
    entropy
        Minus the sum of weight r log r of each cluster, ``(K,)`` nats.
    """
    resp = np.ascontiguousarray(log_weights, np.float64)
    entropy = np.zeros(resp.shape[1])
    counts = np.ones(len(resp)) if weights is None else weights
    softmax.softmax_rows(resp, shift, resp, np.empty((0, 0)), counts, entropy)
    return resp, entropy


@njit(**INNER)
def _insert(best, where, size, w, k):
    # best[:size] is descending; equal weights stay in order of their position
    j = size
    while j > 0 and best[j - 1] < w:
        best[j] = best[j - 1]
        where[j] = where[j - 1]
        j -= 1
    best[j] = w
    where[j] = k


@njit(**INNER)
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
            # most are too small: one branch for four of them, also taken for NaN
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
    """Keep the ``top`` largest weights of each row and normalise them (thesis Alg. 7.2).

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


def resp_from_screened(screened: ScreenedWeights, weights: np.ndarray | None) -> tuple[RaggedResp, np.ndarray]:
    """Normalised exponentials of screened log weights, and their entropy.

    Parameters
    ----------
    screened
        Its tail is overwritten.
    weights
        How often each atom counts in the entropy, ``(n,)``; None for once.

    Returns
    -------
    resp
        Not multiplied by the weights.
    entropy
        Minus the sum of weight r log r of each cluster, ``(K,)`` nats.
    """
    k = screened.n_clusters
    if screened.tail is None:
        offsets, index, value, logs = ragged.softmax_of_lists(screened.offsets, screened.index, screened.value)
        resp = RaggedResp(offsets, index, value, k)
        entropy = np.zeros(k)
    else:
        value, logs, entropy = np.empty(len(screened.value)), np.empty(len(screened.value)), np.zeros(k)
        counts = np.ones(len(screened.offsets) - 1) if weights is None else weights
        tail = screened.tail
        ragged.softmax_with_tail(screened.offsets, screened.value, tail, counts, value, logs, entropy)
        resp = RaggedResp(screened.offsets, screened.index, value, k, tail)
    return resp, entropy + cluster_entropy(scale_rows(replace(resp, tail=None), weights), logs)


def top_resp_from_screened(screened: ScreenedWeights, top: int) -> tuple[SparseResp, np.ndarray]:
    """The L largest responsibilities of each atom, as :func:`top_resp_from_weights`, from screened log weights, L <
    K."""
    if screened.tail is not None:
        dense = RaggedResp(screened.offsets, screened.index, screened.value, screened.n_clusters, screened.tail)
        return top_resp_from_weights(dense.to_dense(), top)
    n = len(screened.offsets) - 1
    index, value = np.empty((n, top), np.int64), np.empty((n, top))
    ragged.top_of_lists(screened.offsets, screened.index, screened.value, top, screened.n_clusters, index, value)
    resp, log_resp = resp_from_weights(value)
    return SparseResp(index, resp, screened.n_clusters), log_resp


def scale_rows(resp: Resp, weights: np.ndarray | None) -> Resp:
    """Responsibilities times one weight per atom, ``(n,)``."""
    if weights is None:
        return resp
    if isinstance(resp, RaggedResp):
        tail = None if resp.tail is None else resp.tail * weights[:, None].astype(np.float32)
        value = resp.value * np.repeat(weights, np.diff(resp.offsets))
        return replace(resp, value=value, tail=tail)
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
        return np.asarray(matmul(resp.to_csr().T, x))
    if isinstance(resp, RaggedResp):
        if x is not None:
            return np.asarray(matmul(resp.to_csr().T, x))
        sums = np.bincount(resp.index, resp.value, minlength=resp.n_clusters)
        return sums if resp.tail is None else sums + resp.tail.sum(axis=0, dtype=np.float64)
    if x is None:
        return resp.sum(axis=0)
    return matmul(resp.T, x)


def columns_of(resp: Resp, columns: np.ndarray) -> np.ndarray:
    """Responsibilities of the clusters at the positions ``columns (J,)``, a new array ``(n, J)``."""
    if isinstance(resp, np.ndarray):
        return resp[:, columns]
    place = np.full(resp.n_clusters, -1)
    place[columns] = np.arange(len(columns))
    if isinstance(resp, SparseResp):
        out = np.zeros((len(resp.index), len(columns) + 1))
        np.put_along_axis(out, place[resp.index], resp.value, axis=1)  # clusters of no interest: the last column
        return out[:, :-1]
    n = len(resp.offsets) - 1
    out = np.zeros((n, len(columns))) if resp.tail is None else resp.tail[:, columns].astype(np.float64)
    ragged.columns_of_lists(resp.offsets, resp.index, resp.value, place, out)
    return out


def atom_sums(resp: Resp) -> np.ndarray:
    """Total responsibility of each atom, its weight, ``(n,)``."""
    if isinstance(resp, RaggedResp):
        atom = np.repeat(np.arange(len(resp.offsets) - 1), np.diff(resp.offsets))
        sums = np.bincount(atom, resp.value, minlength=len(resp.offsets) - 1)
        return sums if resp.tail is None else sums + resp.tail.sum(axis=1, dtype=np.float64)
    return (resp.value if isinstance(resp, SparseResp) else resp).sum(axis=1)


def cluster_entropy(weighted: Resp, log_resp: np.ndarray) -> np.ndarray:
    """Assignment entropy per cluster, ``(K,)`` nats: minus sum of w r log r (thesis eq. 3.29).

    ``weighted`` are the responsibilities times the atoms' weights, ``log_resp`` their unweighted logs.
    """
    if isinstance(weighted, SparseResp):
        terms = weighted.value * log_resp
        return -np.bincount(weighted.index.ravel(), terms.ravel(), minlength=weighted.n_clusters)
    if isinstance(weighted, RaggedResp):
        return -np.bincount(weighted.index, weighted.value * log_resp, minlength=weighted.n_clusters)
    return -np.einsum("nk,nk->k", weighted, log_resp)


# -- entropy of assignments, and of unions of two clusters --------------------------------------------------------
def resp_entropy(weighted: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Entropy per cluster, ``(K,)`` nats, of weighted responsibilities ``(n, K)`` with the weights in them."""
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
    if isinstance(resp, RaggedResp):
        counts = np.ones(len(resp.offsets) - 1) if weights is None else weights
        tail = np.zeros((len(counts), 0), np.float32) if resp.tail is None else resp.tail
        pairs = np.asarray(pairs, np.int64)
        ragged.pair_entropy_of_lists(resp.offsets, resp.index, resp.value, tail, counts, pairs, resp.n_clusters, out)
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
