"""Gains of merging pairs of clusters, for many pairs at once (thesis 4.1.4)."""

from __future__ import annotations

import numpy as np
from scipy.special import xlogy

from bnp_dask.core.summary import Summary
from bnp_dask.kernels.numeric.arithmetic import matmul
from bnp_dask.model import Model, Posterior
from bnp_dask.moves.lap_policy import LAP
from bnp_dask.observation.base import numbers_per_cluster
from bnp_dask.structure.base import without_data


def all_pairs(ids: np.ndarray) -> np.ndarray:
    """Every unordered pair of ids in the order of the clusters, ``(K (K - 1) / 2, 2)``."""
    first, second = np.triu_indices(len(ids), 1)
    return np.stack([ids[first], ids[second]], axis=1)


def data_gains(model: Model, value: Summary, pairs: np.ndarray, alone: np.ndarray | None = None) -> np.ndarray:
    """Exact change of the data term (eq. 4.6) for each pair of ids, ``(M,)`` nats.

    ``alone (K,)`` are the data terms of the present clusters, if the caller can compute them from parameters.

    The union of each pair is stored as a cluster of its own, so that many pairs are scored together.
    """
    alone = model.best_data_terms(value) if alone is None else alone
    place = value.positions(pairs)
    gains = np.empty(len(pairs))
    size = max(LAP.scored_pairs, LAP.scored_numbers // numbers_per_cluster(model.observation))
    for start in range(0, len(pairs), size):
        here = slice(start, start + size)
        a, b = place[here, 0], place[here, 1]
        gains[here] = model.best_data_terms(_unions(value, a, b)) - alone[a] - alone[b]
    return gains


def _unions(value: Summary, a: np.ndarray, b: np.ndarray) -> Summary:
    values = {
        name: v[a] + v[b] if value.fields[name].n_cluster_axes == 1 else v
        for name, v in value.values.items()
        if value.fields[name].n_cluster_axes < 2
    }
    return Summary(np.arange(len(a)), value.fields, values)


def gain_matrix(model: Model, posterior: Posterior, value: Summary) -> np.ndarray:
    """Gain of merging each pair of positions, symmetric ``(K, K)`` nats; -inf on the diagonal.

    For topics of words, only the pairs of :func:`alike`; -inf for the others.  With a hundred topics and ten thousand
    words all pairs would take longer than a lap.
    """
    n_clusters = value.n_clusters
    gains = np.full((n_clusters, n_clusters), -np.inf)
    words = [n for n in model.observation.fields if value.fields[n].dims == ("cluster", "word")]
    if model.structure.policy.scores_alike_only and words:
        first, second = alike(value[words[0]])
    else:
        first, second = np.triu_indices(n_clusters, 1)
    pairs = np.stack([value.ids[first], value.ids[second]], axis=1)
    gains[first, second] = data_gains(model, value, pairs, model.data_terms(posterior.observation, value))
    gains[second, first] = gains[first, second]
    return gains


def alike(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of pairs of rows of ``counts (K, V)``, of which one is among the ``LAP.alike`` nearest of the other.

    Nearness is the Bhattacharyya coefficient of the shares of words, ``sum_v sqrt(p_v q_v)``.
    """
    roots = np.sqrt(np.maximum(counts, 0.0))
    roots /= np.maximum(np.sqrt((roots * roots).sum(axis=1, keepdims=True)), 1e-300)
    near = matmul(roots, roots.T)
    np.fill_diagonal(near, -1.0)
    best = np.argsort(-near, axis=1, kind="stable")[:, : min(LAP.alike, len(near) - 1)]
    wanted = np.zeros(near.shape, np.bool_)
    np.put_along_axis(wanted, best, True, axis=1)
    first, second = np.nonzero(np.triu(wanted | wanted.T, 1))
    return first, second


def rough_allocation_gains(counts: np.ndarray) -> np.ndarray:
    """Approximation of :func:`allocation_gains` from counts alone, for all pairs of positions, ``(K, K)`` nats.

    Weights at their most likely values: ``N_ab log N_ab - N_a log N_a - N_b log N_b``.
    """
    alone = xlogy(counts, counts)
    both = counts[:, None] + counts
    return xlogy(both, both) - alone[:, None] - alone


def allocation_gains(model: Model, value: Summary, pairs: np.ndarray) -> np.ndarray:
    """Change of the allocation term without the entropy, for each pair of ids, ``(M,)`` nats; exact for mixtures."""
    if not model.structure.policy.knows_pair_weights:
        place = np.array([value.position(int(i)) for i in pairs.ravel()], np.int64).reshape(-1, 2)
        return rough_allocation_gains(value["N"])[place[:, 0], place[:, 1]]
    slim = without_data(model, value.without_pairs())
    before = model.allocation_terms(slim)["allocation"]
    if any(field.n_cluster_axes != 1 for field in slim.fields.values()):
        unions = (slim.with_pairs(pairs).merge(int(a), int(b)) for a, b in pairs)
    else:
        unions = (_united(slim, slim.position(a), slim.position(b)) for a, b in pairs)
    return np.array([model.allocation_terms(union)["allocation"] - before for union in unions])


def _united(slim: Summary, a: int, b: int) -> Summary:
    """Summary in which position ``a`` absorbs ``b``, entropies aside; faster than ``merge`` of the summary algebra."""
    values = {}
    for name, value in slim.values.items():
        new = np.delete(value, b, axis=0)
        new[a - (b < a)] += value[b]
        values[name] = new
    return Summary(np.delete(slim.ids, b), slim.fields, values)
