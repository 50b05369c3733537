"""Criteria of Akaike and of Schwarz, as scikit-learn and hmmlearn give them."""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.model import Posterior
from bnp_dask.observation import AutoRegressiveGaussian, Categorical, Multinomial, Product
from bnp_dask.observation.base import Observation
from bnp_dask.observation.labelled import unlabelled
from bnp_dask.observation.missing.entries import is_about_missing


def aic_of(free: int, value: float) -> float:
    """Akaike's criterion of a log probability, nats."""
    return 2.0 * free - 2.0 * value


def bic_of(free: int, value: float, count: int) -> float:
    """The Bayesian information criterion of the log probability of ``count`` observations, nats."""
    return free * math.log(count) - 2.0 * value


def free_parameters(posterior: Posterior, of_weights: int) -> int:
    """Number of free parameters of all clusters, plus the number ``of_weights`` or transitions."""
    observation = unlabelled(posterior.model.observation)
    sizes = observation.sizes
    dims = [f.dims for name, f in observation.fields.items() if f.n_cluster_axes and not is_about_missing(name)]
    own = sum(int(np.prod([sizes[d] for d in axes if d != "cluster"])) for axes in dims)
    return posterior.n_clusters * (own - _not_free(observation)) + of_weights


def _not_free(observation: Observation) -> int:
    """Number of a cluster's parameters that follow from the others, or are not parameters.

    Shares of words or levels sum to one, and autoregressions do not model the spread of the rows before.
    """
    if isinstance(observation, Product):
        return sum(map(_not_free, observation.parts))
    if isinstance(observation, AutoRegressiveGaussian):
        rows = (math.isqrt(8 * observation.sizes["packed"] + 1) - 1) // 2
        before = rows - len(observation.B)  # type: ignore[arg-type]
        return before * (before + 1) // 2
    return (
        len(observation.levels or ()) if isinstance(observation, Categorical) else isinstance(observation, Multinomial)
    )
