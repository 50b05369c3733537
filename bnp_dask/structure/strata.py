"""Atoms in strata, which share the clusters and have weights of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.finite import require_finite_rows
from bnp_dask.errors import SettingError
from bnp_dask.inputs.column_notation import positions
from bnp_dask.kernels.numeric.arithmetic import log, log_sum_exp
from bnp_dask.observation.given import Given
from bnp_dask.observation.interface.describing import Axis, Estimate
from bnp_dask.observation.labelled import unlabelled
from bnp_dask.observation.product import Product
from bnp_dask.structure.answers.density import UNSEEN_MASS, log_predictives, unseen_cluster
from bnp_dask.structure.answers.drawing import drawn_atoms
from bnp_dask.structure.asking import Beliefs, WholeModel
from bnp_dask.structure.independent import Independent

STRATA = "strata"
"""Name of the summary field that counts the atoms of each stratum in each cluster, and of the estimate of weights."""


@dataclass(frozen=True)
class Strata(Independent):
    """Structure of mixtures in strata: atoms are independent given the weights of their stratum."""

    def require_fitting(self, model: WholeModel) -> None:
        observation = unlabelled(model.observation)
        parts = observation.parts if isinstance(observation, Product) else ()
        if sum(isinstance(part, Given) for part in parts) != 1:
            raise SettingError(
                f"{type(model.allocation).__name__} needs to know which column holds the strata; use "
                'Product({"site": Given(), ("height", "weight"): Gaussian()})'
            )
        allocation: Any = model.allocation
        if not isinstance(observation, Product) or observation.n_features is None or observation.places is None:
            return  # its prior is not set yet
        if allocation.column is None:
            return
        names, place = self.given(observation)
        if (allocation.column, allocation.n_strata) != (place, len(names)):
            raise SettingError(
                f"column={allocation.column}, n_strata={allocation.n_strata}: the data have {len(names)} strata in "
                f"column {place}; leave both out"
            )

    def screens(self, model: WholeModel) -> bool:
        return False

    def log_density(self, model: WholeModel, posterior: Beliefs, batch: Batch) -> np.ndarray:
        """Log of the mixture of the clusters' predictive densities with the weights of each atom's stratum, ``(n,)``
        nats."""
        allocation: Any = model.allocation
        shares = allocation.shares(posterior.allocation)
        unseen = unseen_cluster(model) if (shares[:, -1] > UNSEEN_MASS).any() else None
        with np.errstate(divide="ignore"):
            log_shares = log(shares if unseen is not None else shares[:, :-1])
        rows = [np.zeros(0)]
        for tile in allocation.tiles(batch, posterior.n_clusters + 1):
            terms = log_predictives(model, posterior, unseen, tile)
            rows.append(log_sum_exp(terms + log_shares[allocation.strata_of(tile)]))
        out = np.concatenate(rows)
        require_finite_rows(out, batch, "log density")
        return out

    def estimates(self, posterior: Beliefs) -> dict[str, Estimate]:
        """``strata``: expected weights of the clusters in each stratum, ``(K, S)``."""
        allocation: Any = posterior.model.allocation
        names, _ = self.given(posterior.model.observation)
        shares = allocation.shares(posterior.allocation)[:, :-1].T
        return {STRATA: Estimate((Axis("stratum", names),), lambda: shares)}

    def draw(self, posterior: Beliefs, n: int, length: int | None, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
        """Atoms of strata in proportion to the atoms that training had of each."""
        if length is not None:
            raise SettingError(f"length={length!r}: rows have no length; leave it out")
        allocation: Any = posterior.model.allocation
        mass = np.maximum(posterior.allocation.mass, 0.0)  # sums that cancelled may have left less than nothing
        shares = allocation.shares(posterior.allocation)[:, :-1]
        stratum = rng.choice(len(mass), n, p=mass / mass.sum())
        edges = np.cumsum(shares, axis=1)[stratum]
        chosen = np.sum(rng.random(n)[:, None] * edges[:, -1:] >= edges, axis=1)
        place = np.minimum(chosen, shares.shape[1] - 1)
        x = drawn_atoms(posterior, place, rng)
        x[:, allocation.column] = stratum
        return x, place

    def given(self, observation: Any) -> tuple[tuple[str, ...], int]:
        """Names of the strata, and the position of their column; the likelihood has its prior."""
        product = unlabelled(observation)
        assert isinstance(product, Product) and product.places is not None and product.n_features is not None
        for part, place in zip(product.parts, product.places, strict=True):
            if isinstance(part, Given):
                return tuple(map(str, part.levels or ())), int(positions(place, product.n_features)[0])
        raise SettingError("no column of strata: a Product needs a part Given()")
