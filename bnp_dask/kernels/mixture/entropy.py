"""Entropy of assignments: from weighted responsibilities alone, and of unions of two clusters."""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.mixture import ragged
from bnp_dask.kernels.mixture.resp import RaggedResp, Resp, SparseResp
from bnp_dask.kernels.options import njit


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
