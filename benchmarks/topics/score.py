"""One evaluator for the topics of every program: document completion as in thesis Ch. 7, and topics matched.

Written apart from the package on purpose: dense variational steps from equal counts, topics held fixed, a symmetric
prior of 0.5 in total.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from scipy import sparse
from scipy.optimize import linear_sum_assignment

ALPHA = 0.5
HELD = 0.2
"""Share of the distinct words of a test document that is to be predicted."""

MATCHED = 0.3
"""Total variation below which a topic is the true one."""

USED = 5e-4
"""Share of tokens that makes a topic count as used."""


def split_types(x: sparse.csr_array, seed: int = 0) -> np.ndarray:
    """Which entries are to be predicted, ``(nnz,)``: a fifth of each document's distinct words, at least one."""
    rng = np.random.default_rng(seed)
    held = np.zeros(x.nnz, np.bool_)
    for d in range(x.shape[0]):
        first, last = int(x.indptr[d]), int(x.indptr[d + 1])
        if last - first >= 2:
            number = min(max(1, round(HELD * (last - first))), last - first - 1)
            held[first + rng.permutation(last - first)[:number]] = True
    return held


@njit(cache=True, nogil=True)
def _psi(x):  # pragma: no cover
    below = 0.0
    while x < 8.0:
        below += 1.0 / x
        x += 1.0
    w = 1.0 / (x * x)
    return np.log(x) - 0.5 / x - w * (1.0 / 12.0 - w * (1.0 / 120.0 - w * (1.0 / 252.0 - w / 240.0))) - below


@njit(cache=True, nogil=True)
def _complete(indptr, indices, data, held, phi, prior, sweeps, tolerance):  # pragma: no cover
    n_topics = len(prior)
    value, tokens = 0.0, 0.0
    counts, grow, new = np.empty(n_topics), np.empty(n_topics), np.empty(n_topics)
    for d in range(len(indptr) - 1):
        first, last = indptr[d], indptr[d + 1]
        if last - first < 2:
            continue
        total = 0.0
        for i in range(first, last):
            total += 0.0 if held[i] else data[i]
        counts[:] = total / n_topics
        for _ in range(sweeps):
            change = 0.0
            for k in range(n_topics):
                grow[k] = np.exp(_psi(counts[k] + prior[k]))
                new[k] = 0.0
            for i in range(first, last):
                if held[i]:
                    continue
                row = phi[indices[i]]
                norm = 0.0
                for k in range(n_topics):
                    norm += grow[k] * row[k]
                for k in range(n_topics):
                    new[k] += data[i] * grow[k] * row[k] / norm
            for k in range(n_topics):
                change = max(change, abs(new[k] - counts[k]))
                counts[k] = new[k]
            if change < tolerance:
                break
        share = (counts + prior) / (counts + prior).sum()
        for i in range(first, last):
            if held[i]:
                tokens += data[i]
                value += data[i] * np.log(share @ phi[indices[i]])
    return value / tokens


def completion(test: sparse.csr_array, phi: np.ndarray, prior: np.ndarray | None = None, seed: int = 0) -> float:
    """Log probability per token of the held words, nats; topics ``phi (K, V)``, ``prior (K,)`` or the equal one."""
    prior = np.full(len(phi), ALPHA / len(phi)) if prior is None else prior
    table = np.ascontiguousarray(np.maximum(np.asarray(phi, np.float64), 1e-300).T)
    held = split_types(test, seed)
    return float(_complete(test.indptr, test.indices, test.data, held, table, prior, 200, 1e-3))


def matched(phi: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Total variation of each true topic ``(T, V)`` from the topic matched with it, ascending."""
    cost = np.array([0.5 * np.abs(phi - true).sum(axis=1) for true in truth])
    return np.sort(cost[linear_sum_assignment(cost)])


def figures(
    test: sparse.csr_array,
    phi: np.ndarray,
    sizes: np.ndarray,
    truth: np.ndarray | None,
    prior: np.ndarray | None = None,
) -> dict[str, float]:
    """Score, topics used, and topics matched where the truth is known."""
    out: dict[str, float] = {"score": round(completion(test, phi), 4), "K": len(phi)}
    if prior is not None:
        out["score_own_prior"] = round(completion(test, phi, prior), 4)
    out["used"] = int((sizes / sizes.sum() >= USED).sum())
    if truth is not None:
        distance = matched(phi, truth)
        out["matched"] = int((distance < MATCHED).sum())
        out["true_topics"] = len(truth)
    return out
