"""What an allocation model provides: how atoms come from clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Field, Summary
from bnp_dask.errors import SettingError
from bnp_dask.inputs.protocols import require
from bnp_dask.kernels.streaming.urn import Urn
from bnp_dask.structure.base import Structure

Params = Any
"""A frozen dataclass of arrays; each allocation model has its own."""


class Allocation(Protocol):
    """A distribution over which cluster each atom comes from.

    The verbs of its local step are those that its structure asks for: see :mod:`bnp_dask.structure.verbs`.
    """

    structure: Structure
    """How atoms hang together: ``Independent()``, ``Groups()`` or ``Chains()``."""

    nonparametric: bool
    """Whether the number of clusters is unbounded, so that moves learn it."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """Summary fields besides the count ``N``, which the model itself provides."""
        ...

    def tiles(self, batch: Batch, n_clusters: int) -> Iterator[Batch]:
        """Pieces of the batch small enough for an (n, K) matrix, cut only where atoms are independent."""
        ...

    def global_step(self, summary: Summary) -> Params:
        """Optimal q(u) given a summary, with expected log weights."""
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


@runtime_checkable
class PointAllocation(Protocol):
    """Verbs of an allocation whose weights have a point estimate; ``estimate="map"`` needs them."""

    def at_mode(self, params: Params) -> Params:
        """The same q(u) with log weights at its point estimate."""
        ...

    def log_joint(self, params: Params, summary: Summary) -> dict[str, float]:
        """Terms of the point-estimate objective, nats: ``entropy`` and ``allocation`` (thesis eq. 2.74)."""
        ...


@runtime_checkable
class UrnAllocation(Protocol):
    """Allocation model whose atoms can be seated one after the other, without weights of clusters."""

    @property
    def urn(self) -> Urn:
        """The predictive rule."""
        ...


def require_allocation(allocation: Any, estimate: str) -> None:
    """SettingError unless this is an instance with all verbs of its structure, and has the ``estimate`` asked for."""
    require("allocation", allocation, Allocation, "DPMixture()")
    require("allocation.structure", allocation.structure, Structure, "Independent()")
    allocation.structure.require(allocation)
    if estimate == "map" and not isinstance(allocation, PointAllocation):
        raise SettingError(
            f"{type(allocation).__name__} has no point estimate: {allocation.structure.hidden} are beliefs; "
            'use estimate="posterior"'
        )
