"""Features that best distinguish clusters, by the Bhattacharyya distance between clusters.

The distance B of two distributions bounds the error of classifying atoms of the two: it is at most
``sqrt(w_1 w_2) exp(-B)`` (Kailath, 1967).  Distances in features that are independent add up.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

CLUSTERS = 30
"""Clusters that are compared, the heaviest: their pairs are held at once for each feature."""


def of_normals(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Distances of all pairs of clusters in each feature, ``(D, K, K)``, from means and variances ``(K, D)``."""
    m, v = mean.T, np.maximum(variance.T, 1e-300)
    between = 0.5 * (v[:, :, None] + v[:, None, :])
    apart = (m[:, :, None] - m[:, None, :]) ** 2 / (8.0 * between)
    distance: np.ndarray = apart + 0.5 * np.log(between / np.sqrt(v[:, :, None] * v[:, None, :]))
    return distance


def of_levels(probability: np.ndarray) -> np.ndarray:
    """Distances of all pairs of clusters in one column, ``(K, K)``, from the probabilities of its levels ``(K, L)``."""
    root = np.sqrt(np.maximum(probability, 0.0))
    distance: np.ndarray = -np.log(np.clip(root @ root.T, 1e-300, 1.0))
    return distance


def of_values(kind: str, value: np.ndarray) -> np.ndarray:
    """Distances in each feature, ``(D, K, K)``: of Bernoullis, of Poissons and shares, or half squared differences."""
    v = value.T
    if kind == "probability":
        return np.stack([of_levels(np.stack([p, 1.0 - p], axis=1)) for p in v])
    if kind in ("rate", "share"):
        v = np.sqrt(np.maximum(v, 0.0))
    distance: np.ndarray = 0.5 * (v[:, :, None] - v[:, None, :]) ** 2
    return distance


def telling(distance: np.ndarray, weights: np.ndarray, n: int) -> np.ndarray:
    """Positions of ``n`` features, the best first: each leaves the least confusion together with the features before.

    Parameters
    ----------
    distance
        Distances of all pairs of clusters in each feature, ``(D, K, K)``.
    weights
        Shares of the clusters, ``(K,)``.
    """
    first, second = np.triu_indices(len(weights), 1)
    # the log of the bound on the error between each pair, which sums do not round to zero
    left = 0.5 * np.log(np.maximum(weights[first] * weights[second], 1e-300))
    pairs = distance[:, first, second]
    chosen: list[int] = []
    for _ in range(min(n, len(pairs))):
        error = logsumexp(left - pairs, axis=1) if len(left) else np.zeros(len(pairs))
        error[chosen] = np.inf
        chosen.append(int(error.argmin()))
        left = left - pairs[chosen[-1]]
    return np.array(chosen, np.int64)
