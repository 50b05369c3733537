"""Predictive densities of atoms, each of which comes from a cluster whatever the others do."""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.finite import require_finite_rows
from bnp_dask.kernels.mixture.softmax import log_sums
from bnp_dask.kernels.numeric.arithmetic import log, log_sum_exp
from bnp_dask.kernels.numeric.fixed_order import is_fixed
from bnp_dask.structure.asking import Beliefs, WholeModel

UNSEEN_MASS = 1e-12
"""Prior mass of clusters without atoms below which it is rounding of weights that sum to one."""


def mixture_density(model: WholeModel, posterior: Beliefs, batch: Batch) -> np.ndarray:
    """Log of the mixture of the clusters' predictive densities at each atom, ``(n,)`` nats.

    Clusters that are not there yet predict as the prior does.
    """
    weights = posterior.weights
    with np.errstate(divide="ignore"):
        log_weights = log(weights)
    rest = 1.0 - float(np.sum(weights))
    prior = model.observation.global_step(model.empty_summary(np.zeros(1, np.int64))) if rest > UNSEEN_MASS else None
    out = np.empty(batch.n_atoms)
    start = 0
    for tile in model.allocation.tiles(batch, posterior.n_clusters + 1):
        terms, shift = model.observation.log_predictive(posterior.observation, tile), log_weights
        if prior is not None:
            unseen = model.observation.log_predictive(prior, tile)
            terms, shift = np.concatenate([terms, unseen], axis=1), np.append(shift, math.log(rest))
        part = out[start : start + tile.n_atoms]
        if is_fixed():
            part[...] = log_sum_exp(terms + shift)
        else:
            log_sums(np.ascontiguousarray(terms), shift, part)
        start += tile.n_atoms
    require_finite_rows(out, batch, "log density")
    return out
