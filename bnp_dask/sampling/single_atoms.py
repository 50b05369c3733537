"""Densities of single atoms in clusters that a few other atoms have joined, cluster by cluster."""

from __future__ import annotations

from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.model import Model
from bnp_dask.observation.interface.single_atoms import Density, sequential_predictive
from bnp_dask.sampling.visit import statistics


def density_of(model: Model, base: Summary, params: Any, atoms: Batch) -> Density:
    """The density of some atoms in the clusters of a summary.

    Parameters
    ----------
    model
        Its likelihood may have a closed form; any other goes by its summaries.
    base, params
        Statistics of the clusters without any of the atoms, and parameters at these.
    atoms
        The few.
    """
    closed = sequential_predictive(model.observation, params, atoms)
    return closed if closed is not None else _by_summaries(model, base, atoms)


def _by_summaries(model: Model, base: Summary, atoms: Batch) -> Density:
    """Densities by the summary of a cluster with those that joined it."""
    singles: dict[int, Summary] = {}

    def density(i: int, k: int, others: list[int]) -> float:
        if k not in singles:
            singles[k] = base.take(base.ids[[k]])
        one, observation = singles[k], model.observation
        few = atoms.take(np.array(others, np.int64))
        whole = one + statistics(model, one.ids, few, np.zeros(len(others), np.int64))
        return float(observation.log_predictive(observation.global_step(whole), atoms.rows(i, i + 1))[0, 0])

    return density
