"""Clusters as tables and pictures show them: their share and a short description."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnp_dask.analysis.prices import ClusterPrice
from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import in_order
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs.arrays import plain
from bnp_dask.inputs.settings import shown
from bnp_dask.model import Posterior
from bnp_dask.observation.interface.describing import describe_cluster, estimates_of
from bnp_dask.structure.nouns import in_use, noun_of

MEANS = ("mean", "probability", "rate")
"""Names of the expected value of an atom in likelihoods."""


@dataclass(frozen=True)
class ClusterRow:
    """One cluster in a table: id, expected share, atoms (None when unknown), description, and price if known.

    Prices are from :func:`bnp_dask.prices`.
    """

    id: int
    weight: float
    count: float | None
    text: str
    price: ClusterPrice | None = None


def cluster_rows(
    posterior: Posterior,
    names: Sequence[str] | None = None,
    limit: int | None = None,
    prices: Sequence[ClusterPrice] | None = None,
) -> list[ClusterRow]:
    """Clusters by falling weight, the first ``limit`` of them; ``names`` of features or words, ``(D,)``.

    Topics without tokens are left out.

    SettingError if ``prices`` do not belong to the posterior's clusters.
    """
    known = {price.id: price for price in prices or ()}
    if known and sorted(known) != sorted(posterior.ids.tolist()):
        both = len(set(known) & set(posterior.ids.tolist()))
        raise SettingError(
            f"prices= are of {noun_of(posterior.model).count(len(known))}, of which {both} are among the "
            f"{posterior.n_clusters} of the posterior; use bnp_dask.prices(posterior, data)"
        )
    weights = posterior.weights
    order = np.argsort(-weights, kind="stable")
    order = order[in_use(posterior)[order]][:limit]
    counts = None if posterior.summary is None else posterior.summary["N"]
    observation, params = posterior.model.observation, posterior.observation
    return [
        ClusterRow(
            int(posterior.ids[k]),
            float(weights[k]),
            None if counts is None else float(counts[k]),
            describe_cluster(observation, params, int(k), names),
            known.get(int(posterior.ids[k])),
        )
        for k in order
    ]


def means(observation: Any, params: Any) -> np.ndarray | None:
    """Expected value of an atom of each cluster, ``(K, D)``; None if the likelihood has no informative one."""
    found = estimates_of(observation, params, None)
    return next((found[name].values for name in MEANS if name in found), None)


def variances(observation: Any, params: Any) -> np.ndarray | None:
    """Expected variance of each feature within each cluster, ``(K, D)``; None for likelihoods without."""
    found = estimates_of(observation, params, None)
    if "variance" in found:
        return found["variance"].values
    return np.einsum("kii->ki", found["covariance"].values) if "covariance" in found else None


def covariances(observation: Any, params: Any) -> np.ndarray | None:
    """Expected covariance of each cluster, ``(K, D, D)``; None for likelihoods whose features are independent."""
    found = estimates_of(observation, params, None)
    return found["covariance"].values if "covariance" in found else None


def covariance(observation: Any, params: Any, k: int) -> np.ndarray | None:
    """Expected covariance of cluster at position ``k``, ``(D, D)``; None for likelihoods without one."""
    whole = covariances(observation, params)
    if whole is not None:
        return whole[k]
    spread = variances(observation, params)
    return None if spread is None else np.diag(spread[k])


def check_names(posterior: Posterior, names: Sequence[str] | None) -> Sequence[str] | None:
    """The names, or the posterior's own; DataError unless there is one for each feature or word."""
    if names is None:
        return posterior.feature_names
    names = in_order(names)
    if isinstance(names, str) or not isinstance(names, Sized) or plain(names, "vocabulary").ndim != 1:
        raise SettingError(f"vocabulary={shown(names)}: needs a list of names of words or features")
    names = [str(name) for name in names]
    try:
        posterior.model.observation.check(Batch(np.empty((0, len(names))), name="these names"))
    except DataError as error:
        raise DataError(f"{len(names)} names of words or features do not fit the model: {error}") from None
    return names
