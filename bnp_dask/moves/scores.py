"""What merging pairs of clusters would do to the objective, for many pairs at once (thesis 4.1.4)."""

from __future__ import annotations

import numpy as np

from bnp_dask.model import Model, Posterior
from bnp_dask.summary import Summary

CHUNK = 512
"""Pairs whose parameters are held at one time."""


def all_pairs(ids: np.ndarray) -> np.ndarray:
    """Every unordered pair of ids in the order of the clusters, ``(K (K - 1) / 2, 2)``."""
    first, second = np.triu_indices(len(ids), 1)
    return np.stack([ids[first], ids[second]], axis=1)


def data_gains(model: Model, posterior: Posterior, value: Summary, pairs: np.ndarray) -> np.ndarray:
    """Exact change of the data term (eq. 4.6) for each pair of ids, ``(M,)`` nats.

    The union of each pair is written as a cluster of its own, so that one global step scores many pairs.
    """
    alone = model.data_terms(posterior.observation, value)
    place = posterior.positions(pairs)
    gains = np.empty(len(pairs))
    for start in range(0, len(pairs), CHUNK):
        here = slice(start, start + CHUNK)
        a, b = place[here, 0], place[here, 1]
        union = model.data_terms(*_unions(model, value, a, b))
        gains[here] = union - alone[a] - alone[b]
    return gains


def _unions(model: Model, value: Summary, a: np.ndarray, b: np.ndarray):
    values = {
        name: v[a] + v[b] if value.fields[name].n_cluster_axes == 1 else v
        for name, v in value.values.items()
        if value.fields[name].n_cluster_axes < 2
    }
    summary = Summary(np.arange(len(a)), value.fields, values)
    return model.observation_step(summary), summary


def allocation_gains(model: Model, posterior: Posterior, value: Summary, pairs: np.ndarray) -> np.ndarray:
    """Exact change of the allocation term without the entropy, for each pair of ids, ``(M,)`` nats."""
    before = model.allocation_terms(value)["allocation"]
    counts = {name: value[name] for name in value.values if value.fields[name].n_cluster_axes == 1}
    slim = Summary(value.ids, value.fields, {name: counts[name] for name in ("N", *model.allocation.fields)})
    slim = slim.with_pairs(pairs)
    gains = [model.allocation_terms(slim.merge(int(a), int(b)))["allocation"] - before for a, b in pairs]
    return np.array(gains)
