"""Chains of a few atoms in memory, and how far their partitions are from enumeration."""

from __future__ import annotations

from collections import Counter

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.model import Model
from bnp_dask.sampling.chain import add_batch, begin_sweep, draw_clusters, end_sweep, first_chain
from bnp_dask.sampling.sweep import Task, assign
from tests.streaming.oracle import Oracle, Partition

NO_ROWS = np.zeros(0, np.int64)


def canonical(labels: np.ndarray) -> Partition:
    """A partition with clusters numbered in the order of their first atoms."""
    names: dict[int, int] = {}
    return tuple(names.setdefault(int(label), len(names)) for label in labels)


def visited(
    model: Model, batches: list[Batch], n_sweeps: int, n_clusters: int = 1, seed: int = 0
) -> Counter[Partition]:
    """How often a chain visits each partition; the atoms lie in some batches."""
    start = model.empty_summary(np.arange(n_clusters))
    chain, found = first_chain(model, start), Counter()
    before = [None] * len(batches)
    for lap in range(n_sweeps):
        drawn = draw_clusters(model, chain, 0, lap, 0, 8, float(sum(b.n_atoms for b in batches)))
        begin_sweep(model, chain, drawn, 0)
        for i, batch in enumerate(batches):
            own = assign(model, drawn, batch, Task("few", i, 0, NO_ROWS), before[i])
            add_batch(chain, own, NO_ROWS, NO_ROWS)
            before[i] = own.labels
        end_sweep(model, chain)
        found[canonical(np.concatenate([own.ids for own in before]))] += 1
    return found


def distance(model: Model, batch: Batch, n_sweeps: int, n_clusters: int | None = None) -> float:
    """Total variation between the partitions of a chain and their exact posterior."""
    exact = Oracle(model, batch, n_clusters).posterior
    middle = batch.n_atoms // 2
    halves = [batch.rows(0, middle), batch.rows(middle, batch.n_atoms)]
    found = visited(model, halves, n_sweeps, 1 if n_clusters is None else n_clusters)
    total = sum(found.values())
    return 0.5 * sum(abs(found[p] / total - probability) for p, probability in exact.items())
