"""Free numbers of a model, by which criteria of information punish it as scikit-learn and hmmlearn count them."""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.gaussian.quadratic import n_packed
from bnp_dask.model import Posterior
from bnp_dask.observation import AutoRegressiveGaussian, Categorical, Multinomial, Product
from bnp_dask.observation.base import Observation
from bnp_dask.observation.missing.entries import is_about_missing


def free_of_clusters(posterior: Posterior) -> int:
    """Free numbers of all clusters: statistics of their likelihoods, less those that follow from others."""
    observation = posterior.model.observation
    sizes = observation.sizes
    dims = [f.dims for name, f in observation.fields.items() if f.n_cluster_axes and not is_about_missing(name)]
    own = sum(int(np.prod([sizes[d] for d in axes if d != "cluster"])) for axes in dims)
    return posterior.n_clusters * (own - _following(observation))


def free_of_chain(posterior: Posterior) -> int:
    """Free numbers of all states, of where sequences start, and of transitions."""
    k = posterior.n_clusters
    return free_of_clusters(posterior) + k - 1 + k * (k - 1)


def aic(free: int, log_likelihood: float) -> float:
    """Akaike's criterion, nats: lower is better."""
    return 2.0 * free - 2.0 * log_likelihood


def bic(free: int, n: int, log_likelihood: float) -> float:
    """The Bayesian information criterion of ``n`` rows, nats: lower is better."""
    return free * float(np.log(n)) - 2.0 * log_likelihood


def _following(observation: Observation) -> int:
    """Statistics of a cluster that are no numbers of its own: shares that sum to one, moments of earlier steps."""
    if isinstance(observation, Product):
        return sum(map(_following, observation.parts))
    if isinstance(observation, AutoRegressiveGaussian):
        width = len(np.asarray(observation.B))
        return n_packed(_n_steps(observation.sizes["packed"], width) * width - width)
    if isinstance(observation, Categorical):
        return len(observation.levels or ())
    return int(isinstance(observation, Multinomial))


def _n_steps(packed: int, width: int) -> int:
    """Steps of ``width`` features in a row of which ``packed`` products are counted."""
    side = int((np.sqrt(8 * packed + 1) - 1) / 2)
    return side // width
