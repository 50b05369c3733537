"""What an allocation model provides: how atoms come from clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False)
class DrawnWeights:
    """Weights of clusters at one draw, not normalized.

    Parameters
    ----------
    log_size
        Log weight of every cluster that can get an atom: of those with atoms in their order, then of new ones,
        ``(K,)``.
    limit
        Weight above which clusters are always open to an atom.  The others are open to atoms whose slice is at most
        their weight; the slice of an atom is uniform up to the weight of its cluster, or to ``limit`` where that is
        less.  None: all clusters are open to all atoms.
    """

    log_size: np.ndarray
    limit: float | None = None


@runtime_checkable
class SampledAllocation(Protocol):
    """Verbs of an allocation whose clusters are sampled, each atom by itself given the weights; Gibbs sampling needs
    them."""

    def draw_weights(self, counts: np.ndarray, least: np.ndarray | None, rng: np.random.Generator) -> DrawnWeights:
        """Weights drawn from their posterior given ``counts (K,)`` atoms in clusters.

        ``least (K,)`` are the smallest of uniform numbers, one for each atom, in each cluster: times the weight of the
        cluster or the limit they are the smallest slices.  All weights that may exceed one of these are drawn.  None:
        atoms have no clusters yet, and all are open to them.
        """
        ...

    def certain_values(self, counts: np.ndarray) -> dict[str, np.ndarray]:
        """Values of :attr:`Allocation.fields` for ``counts (K,)`` atoms whose clusters are known."""
        ...

    def log_partition(self, counts: np.ndarray) -> float:
        """Log probability of assignments with ``counts (K,)`` atoms in clusters, nats: of the partition where the
        number of clusters is unbounded, and then all are positive."""
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
