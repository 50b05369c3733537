"""Protocols of allocation models, by which atoms come from clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from bnp_dask.core import Summary, Survey
from bnp_dask.errors import SettingError
from bnp_dask.inputs import require
from bnp_dask.kernels import Urn
from bnp_dask.structure import CommonAllocation, Structure

Params = Any
"""Frozen dataclass of arrays; each allocation model has its own."""


@runtime_checkable
class Allocation(CommonAllocation, Protocol):
    """Distribution of the cluster of each atom.

    Its fields, tiles and weights are described with the methods of its local step, which its structure calls: see
    :mod:`bnp_dask.structure.protocols`.
    """

    @property
    def structure(self) -> Structure:
        """Dependence between atoms: ``Independent()``, ``Groups()`` or ``Chains()``."""
        ...

    def global_step(self, summary: Summary) -> Params:
        """Optimal q(u) given a summary, with expected log weights."""
        ...

    def elbo(self, params: Params, summary: Summary) -> dict[str, float]:
        """Terms of the objective, nats: ``entropy`` and ``allocation``."""
        ...


@runtime_checkable
class PointAllocation(Protocol):
    """Methods of an allocation whose weights have a point estimate; ``estimate="map"`` needs them."""

    def at_mode(self, params: Params) -> Params:
        """q(u) with log weights at its point estimate."""
        ...

    def log_joint(self, params: Params, summary: Summary) -> dict[str, float]:
        """Terms of the point-estimate objective, nats: ``entropy`` and ``allocation`` (thesis eq. 2.74)."""
        ...


@runtime_checkable
class SizedAllocation(Protocol):
    """Allocation model with statistics that have axes of their own."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Length of every axis other than ``"cluster"`` that the fields name."""
        ...


@runtime_checkable
class PreparedAllocation(SizedAllocation, Protocol):
    """Allocation model with settings that come from the data."""

    def with_prior(self, survey: Survey, observation: Any) -> Self:
        """Allocation with every setting that was None computed from the data; the likelihood is ready already."""
        ...


@runtime_checkable
class UrnAllocation(Protocol):
    """Allocation model whose atoms can be seated one after the other, without weights of clusters."""

    @property
    def urn(self) -> Urn:
        """The predictive rule."""
        ...


@runtime_checkable
class UnscoredAllocation(Protocol):
    """Allocation model without a variational objective: it is trained only by schedules that need none."""

    @property
    def no_objective(self) -> str:
        """Reason why there is no objective, and schedules that need none, for messages."""
        ...


@runtime_checkable
class StickAllocation(Protocol):
    """Allocation model whose posterior sticks follow from counts: truncation-free stochastic inference needs them."""

    @property
    def gamma(self) -> float:
        """Concentration of the sticks, whose prior is Beta(1, gamma)."""
        ...

    def from_counts(self, counts: np.ndarray) -> Params:
        """Parameters with sticks Beta(1 + c_k, gamma + c_>k) for ``counts (K,)`` in stick order.

        Counts are atoms in mixtures, and tables (draws of topics at the top level) in topic models.
        """
        ...


@runtime_checkable
class SmallRunAllocation(Protocol):
    """Allocation model of atoms that are independent given sticks Beta(1, gamma), whose small runs may be compiled."""

    @property
    def small_run_gamma(self) -> float | None:
        """Concentration of the sticks; None if the clusters of an atom are limited."""
        ...


@runtime_checkable
class SampledAllocation(Protocol):
    """Methods of an allocation for Gibbs sampling: the cluster of each atom is sampled given the weights."""

    def draw_weights(self, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw unnormalized log weights of clusters of ``counts (K,)`` atoms given the partition, ``(K,)``.

        If the number of clusters is unbounded, counts are positive and include all clusters; the allocation is then a
        :class:`UrnAllocation` too, whose exact rule opens further clusters.
        """
        ...

    def certain_values(self, counts: np.ndarray) -> dict[str, np.ndarray]:
        """Values of :attr:`Allocation.fields` for ``counts (K,)`` atoms whose clusters are known."""
        ...

    def log_partition(self, counts: np.ndarray) -> float:
        """Log probability of assignments with ``counts (K,)`` atoms in clusters, nats; if the number of clusters is
        unbounded, log probability of the partition, with positive counts."""
        ...


@runtime_checkable
class SampledTopics(Protocol):
    """Methods of an allocation of tokens of documents for Gibbs sampling.

    The weights ``beta`` of the top level are drawn given *tables*: how often each topic was drawn from the top level
    (direct assignment; Teh, Jordan, Beal & Blei 2006, 5.3).
    """

    @property
    def gamma(self) -> float:
        """Concentration of the top level."""
        ...

    @property
    def alpha(self) -> float:
        """Concentration of a document's weights about the top level's."""
        ...

    def certain_values(
        self, held: np.ndarray, topic: np.ndarray, lengths: np.ndarray, beta: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Terms of documents whose tokens' topics are known: additive, and unchanged by topics that come or go.

        Parameters
        ----------
        held, topic
            Tokens of a topic in a document, positive, and the topic, ``(J,)``: one entry for each topic in a document.
        lengths
            Tokens of each document, ``(G,)``.
        beta
            Weights of topics at the top level, ``(K,)``.
        """
        ...

    def completed(self, summary: Summary, beta: np.ndarray) -> Summary:
        """Statistics of all documents from sums of :meth:`certain_values`, at weights ``beta (K,)`` of all topics."""
        ...

    def log_assignments(self, summary: Summary) -> float:
        """Log probability of the topics of all tokens given ``beta``, nats, from sums of :meth:`certain_values`."""
        ...


@runtime_checkable
class SampledStates(Protocol):
    """Methods of an allocation of sequences for blocked Gibbs sampling; tables as in :class:`SampledTopics`."""

    @property
    def gamma(self) -> float:
        """Concentration of the top level."""
        ...

    def draw_rows(
        self, start: np.ndarray, trans: np.ndarray, beta: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw logs of the start ``(K,)`` and of transitions ``(K, K)`` given counts of both, and ``beta (K,)``."""
        ...

    def draw_tables(
        self, start: np.ndarray, trans: np.ndarray, beta: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw the tables of each state given counts of starts ``(K,)`` and transitions ``(K, K)``, ``(K,)``."""
        ...

    def log_assignments(self, start: np.ndarray, trans: np.ndarray, beta: np.ndarray) -> float:
        """Log probability of paths with these counts given ``beta``, nats."""
        ...


TABLED = (SampledTopics, SampledStates)
"""Allocations whose chains carry tables."""


def require_allocation(allocation: Any, estimate: str) -> None:
    """Raise SettingError unless this is an instance with all methods of its structure, and has the ``estimate``."""
    require("allocation", allocation, Allocation, "DPMixture()")
    require("allocation.structure", allocation.structure, Structure, "Independent()")
    allocation.structure.require(allocation)
    if estimate == "map" and not isinstance(allocation, PointAllocation):
        raise SettingError(
            f"{type(allocation).__name__} has no point estimate: {allocation.structure.hidden} are beliefs; "
            'use estimate="posterior"'
        )
