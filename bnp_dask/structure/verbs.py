"""Methods of an allocation that each structure needs, beyond :class:`~bnp_dask.allocation.base.Allocation`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Field, GroupStates
from bnp_dask.inputs.protocols import is_a
from bnp_dask.kernels.mixture.resp import Resp
from bnp_dask.structure.steps import NO_DONORS, GroupStep, LocalStep, LogLik, LogLikOf, Receivers, Tokens

Params = Any
"""Frozen dataclass of arrays; each allocation model has its own."""


class CommonAllocation(Protocol):
    """Methods of an allocation that all structures need."""

    @property
    def nonparametric(self) -> bool:
        """Whether the number of clusters is unbounded, so that moves learn it."""
        ...

    @property
    def fields(self) -> Mapping[str, Field]:
        """Summary fields besides the count ``N``, which the model itself provides."""
        ...

    def tiles(self, batch: Batch, n_clusters: int) -> Iterator[Batch]:
        """Pieces of the batch small enough for an (n, K) matrix, cut only where atoms are independent."""
        ...

    def log_weights(self, params: Params) -> np.ndarray:
        """Log prior weight of each cluster as the local step uses it, ``(K,)`` nats."""
        ...

    def weights(self, params: Params) -> np.ndarray:
        """Expected share of each cluster, ``(K,)``; the rest to one belongs to unseen clusters."""
        ...


@runtime_checkable
class MixtureAllocation(Protocol):
    """Methods of an allocation of independent atoms, given the weights; its structure is ``Independent()``."""

    def local_step(self, params: Params, log_lik: LogLik, batch: Batch, pairs: np.ndarray) -> LocalStep:
        """Optimal q(z) for atoms with log likelihoods ``(n, K)``; tracks unions of the positions ``pairs``."""
        ...

    def reassign(self, params: Params, log_lik: np.ndarray, batch: Batch, mass: np.ndarray) -> LocalStep:
        """Restricted local step (thesis 4.2.1, 4.3.1): share out ``mass (n,)``, which includes the atoms' weights."""
        ...


@runtime_checkable
class SummingAllocation(Protocol):
    """Allocation of independent atoms with fields that are linear in responsibilities, such as counts by stratum."""

    def sums(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        """Values of these fields; ``resp`` is already multiplied by the atoms' weights."""
        ...


def linear_sums(allocation: Any, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
    """Values of the allocation's fields that are linear in responsibilities; none for most."""
    return allocation.sums(batch, resp) if is_a(allocation, SummingAllocation) else {}


@runtime_checkable
class GroupedAllocation(Protocol):
    """Methods of an allocation whose atoms are tokens of groups (documents); its structure is ``Groups()``.

    Weights of a batch of sparse counts say how often each document counts; weights of dense atoms, how often each atom
    counts.
    """

    @property
    def keeps_states(self) -> bool:
        """Whether a visit returns states from which the next one starts."""
        ...

    def local_step(
        self,
        params: Params,
        tokens: Tokens,
        log_lik: np.ndarray,
        pairs: np.ndarray,
        sets: np.ndarray,
        states: GroupStates | None,
    ) -> GroupStep:
        """Optimal q(z) and q(pi_d) of some groups, given log likelihoods of the table's rows ``(R, K)``.

        Tracks unions of the positions ``pairs (M, 2)``, and the mass of each token in ``sets (J, K)`` of topics;
        starts from ``states`` (by position) if there are any.
        """
        ...

    def reassign(
        self,
        params: Params,
        donors: np.ndarray,
        beliefs: np.ndarray,
        tokens: Tokens,
        log_lik: np.ndarray,
        mass: np.ndarray,
        states: GroupStates | None = None,
        freed: np.ndarray = NO_DONORS,
        receivers: Receivers | None = None,
    ) -> GroupStep:
        """Share out the mass of the positions ``donors`` in each token, ``mass (T,)``, among receivers.

        ``states`` give the present holdings of receivers that are donors too.  Prior mass of the positions ``freed``
        goes to unseen clusters, if the model has a place for them; values without a cluster axis then hold the
        resulting change.  ``receivers`` is given only to allocations with responses, for data with responses.

        ``log_lik (R, J)`` is the likelihood under the receivers, ``beliefs (J,)`` their weights.  Statistics cover all
        groups, so that they can replace the statistics of the donors.
        """
        ...

    def within(self, share: float) -> Self:
        """Distribution over parts of clusters with the expected ``share`` of a group's weight, given their total in the
        group: parts of a Dirichlet distribution are Dirichlet distributed with their own prior mass."""
        ...

    def prior_mass(self, params: Params) -> tuple[np.ndarray, float]:
        """Prior mass ``alpha pi_k (K,)``, and ``alpha pi_{>K}`` for all unseen topics (0 if the model has none)."""
        ...


class ResponseModel(Protocol):
    """Model of the responses of groups, as answers and pages use it."""

    @property
    def takes_classes(self) -> bool:
        """Whether responses are classes, else numbers."""
        ...

    @property
    def classes(self) -> tuple[str | int, ...] | None:
        """Names of the classes; None for numbers, and before the data are known."""
        ...

    def with_prior(self, y: np.ndarray, classes: tuple[str | int, ...] | None = None) -> Any:
        """With settings that were None set from the observed responses ``y (n,)``: numbers, or positions of classes."""
        ...

    def coefficients(self, params: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each topic's coefficient, ``(K,)``, or of each class, ``(K, C)``."""
        ...

    def told(self, params: Any) -> list[str]:
        """The response that each topic stands for, in words."""
        ...

    def predict(self, params: Any, z: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the responses of documents, ``(G,)``, or ``(G, C)`` of the indicators of classes;
        ``z (G, K)`` are expected shares of topics in ``length (G,)`` tokens."""
        ...


@runtime_checkable
class RespondingAllocation(Protocol):
    """An allocation whose groups have responses."""

    @property
    def response(self) -> Any:
        """A :class:`ResponseModel`, or None without responses."""
        ...


def response_of(allocation: Any) -> ResponseModel | None:
    """Model of the responses of an allocation's groups; None if it has none."""
    return allocation.response if is_a(allocation, RespondingAllocation) else None


@runtime_checkable
class ChainedAllocation(Protocol):
    """Methods of an allocation whose atoms are steps of sequences; its structure is ``Chains()``."""

    def local_step(self, params: Params, log_lik: np.ndarray, batch: Batch, pairs: np.ndarray) -> LocalStep:
        """Optimal q(z) of sequences with log likelihoods ``(n, K)``; tracks unions of the positions ``pairs``."""
        ...

    def sweep(
        self, params: Params, log_lik: LogLikOf, batch: Batch, pairs: np.ndarray
    ) -> Iterator[tuple[Batch, LocalStep]]:
        """Local step in pieces, not in row order, for visits that need sums only and have no trials.

        A piece's ``resp`` is valid until the next piece is requested.
        """
        ...

    def path(self, params: Params, log_lik: np.ndarray, batch: Batch) -> np.ndarray:
        """Most likely states of each sequence together, positions ``(n,)``; ``log_lik (n, K)`` is overwritten."""
        ...

    def expected_chain(self, params: Params) -> tuple[np.ndarray, np.ndarray]:
        """Expected probabilities of the first state ``(W,)``, and of transitions from row to column ``(W, W)``.

        W is K, or K + 1 if there may be unseen states, which the last place stands for.  The start and each row sum to
        one; otherwise the density of sequences would not.
        """
        ...

    def untied(self) -> Any:
        """Mixture of steps, for small runs on steps that were sampled one by one."""
        ...
