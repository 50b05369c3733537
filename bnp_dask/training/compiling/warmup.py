"""Compile before the clock runs: every kernel that visits of a model need, called once on next to nothing.

Kernels are compiled when they are first called, and kept on disk; a process that starts later only loads them, which
still takes a tenth of a second or so for each model.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.kernels.gaussian.bounds import Forms
from bnp_dask.kernels.gaussian.quadratic import moment_sums
from bnp_dask.kernels.gaussian.screen import Screen, screened_weights
from bnp_dask.kernels.mixture.entropy import pair_entropy
from bnp_dask.kernels.mixture.resp import columns_of, resp_from_screened, scale_rows, top_resp_from_screened
from bnp_dask.model import Posterior
from bnp_dask.structure.screened import worthwhile

FEW = 4
"""Atoms, or groups of atoms, that are used."""

MANY = 128
"""Clusters that a run may reach: batches that are not screened with this many never need the screening kernels."""


def warm(posterior: Posterior, batch: Batch) -> float:
    """Call every kernel that local steps may need on a few atoms.

    Parameters
    ----------
    posterior
        Beliefs with any number of clusters.
    batch
        Some of the data: kernels for sparse counts, groups and dense rows are different ones.

    Returns
    -------
    float
        Seconds it took: nearly all for compiling or loading, and next to none when called again in this process.
    """
    start = time.perf_counter()
    model = posterior.model
    rows = batch.groups is None  # without groups, sparse counts have a document in each
    few = batch.rows(0, min(FEW, batch.n_atoms)) if rows else batch.take_groups(np.arange(min(FEW, batch.n_groups)))
    tracked = [name for name, field in model.fields.items() if field.has_pairs]
    pairs = np.array([[posterior.ids[0], posterior.ids[-1]]] if tracked and posterior.n_clusters > 1 else [])
    if few.n_atoms:
        model.visit(posterior, few, pairs.reshape(-1, 2).astype(np.int64))
        model.global_step(posterior.model.local_step(posterior, few))
    if model.screens and _may_screen(posterior.n_clusters, batch):
        _warm_screening()
    return time.perf_counter() - start


def warm_task(posterior: Posterior, reader: Any) -> float:
    """Task: call every kernel once on a little of a batch."""
    return warm(posterior, reader())


def _may_screen(n_clusters: int, batch: Batch) -> bool:
    """Whether clusters of batches of this size may be screened later in a run.

    Compiling that takes several CPU seconds; a run on a few hundred atoms takes one or two.
    """
    return any(worthwhile(batch.n_atoms, k, batch.n_features) for k in (n_clusters, MANY))


def _warm_screening() -> None:
    """Call all ways of screening, and the functions that use their results."""
    scale = np.tile(np.eye(2), (3, 1, 1))
    forms = Forms(np.zeros(2), np.arange(6.0).reshape(3, 2), scale, np.full(3, 4.0), np.zeros(3))
    x, weights = np.arange(20.0).reshape(10, 2), np.ones(10)
    screen = Screen(forms, np.zeros(3))
    pairs = np.array([[0, 1]])
    for way in (None, "coarse", "fine", "tail"):
        found = screened_weights(screen, x, way=way)
        if found is None:
            continue
        few, _ = top_resp_from_screened(found, 1)
        resp, _ = resp_from_screened(found, weights)
        for given in (resp, few, resp.to_dense()):
            moment_sums(x, forms.center, scale_rows(given, weights))
            pair_entropy(given, weights, pairs)
            columns_of(given, np.array([1]))
