"""What an allocation model provides: how atoms come from clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from bnp_dask.batch import Batch
from bnp_dask.kernels.resp import Resp
from bnp_dask.summary import Field, Summary

Params = Any
"""A frozen dataclass of arrays; each allocation model has its own."""


@dataclass(frozen=True, eq=False)
class LocalStep:
    """Result of a local step on some atoms.

    Parameters
    ----------
    resp
        Responsibilities times the atoms' weights.
    values
        Values of the allocation model's own fields.
    pair_values
        Values of its tracked fields for the union of each tracked pair, ``(M,)``.
    """

    resp: Resp
    values: Mapping[str, np.ndarray]
    pair_values: Mapping[str, np.ndarray] = field(default_factory=dict)


class Allocation(Protocol):
    """A distribution over which cluster each atom comes from."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """Summary fields besides the count ``N``, which the model itself provides."""
        ...

    def tiles(self, batch: Batch, n_clusters: int) -> Iterator[Batch]:
        """Pieces of the batch small enough for an (n, K) matrix, cut only where atoms are independent."""
        ...

    def local_step(self, params: Params, log_lik: np.ndarray, batch: Batch, pairs: np.ndarray) -> LocalStep:
        """Optimal q(z) for atoms with log likelihoods ``(n, K)``; tracks unions of the positions ``pairs``."""
        ...

    def reassign(self, params: Params, log_lik: np.ndarray, batch: Batch, mass: np.ndarray) -> LocalStep:
        """Restricted local step (thesis 4.2.1, 4.3.1): share out ``mass (n,)``, which includes the atoms' weights."""
        ...

    def global_step(self, summary: Summary) -> Params:
        """Optimal q(u) given a summary, with expected log weights."""
        ...

    def at_mode(self, params: Params) -> Params:
        """The same q(u) with log weights at its point estimate."""
        ...

    def log_weights(self, params: Params) -> np.ndarray:
        """Log prior weight of each cluster as the local step uses it, ``(K,)`` nats."""
        ...

    def weights(self, params: Params) -> np.ndarray:
        """Expected share of each cluster, ``(K,)``; what is missing to one belongs to unseen clusters."""
        ...

    def elbo(self, params: Params, summary: Summary) -> dict[str, float]:
        """Terms of the objective, nats: ``entropy`` and ``allocation``."""
        ...

    def log_joint(self, params: Params, summary: Summary) -> dict[str, float]:
        """The same terms of the point-estimate objective (thesis eq. 2.74)."""
        ...
