"""Verbs that each structure asks of an allocation, beside those of :class:`~bnp_dask.allocation.base.Allocation`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.group_states import GroupStates
from bnp_dask.core.summary import Field
from bnp_dask.structure.steps import NO_DONORS, GroupStep, LocalStep, LogLik, LogLikOf, Tokens

Params = Any
"""A frozen dataclass of arrays; each allocation model has its own."""


class CommonAllocation(Protocol):
    """Verbs of an allocation that all structures ask for."""

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
    """Verbs of an allocation whose atoms are independent given the weights; its structure is ``Independent()``."""

    def local_step(self, params: Params, log_lik: LogLik, batch: Batch, pairs: np.ndarray) -> LocalStep:
        """Optimal q(z) for atoms with log likelihoods ``(n, K)``; tracks unions of the positions ``pairs``."""
        ...

    def reassign(self, params: Params, log_lik: np.ndarray, batch: Batch, mass: np.ndarray) -> LocalStep:
        """Restricted local step (thesis 4.2.1, 4.3.1): share out ``mass (n,)``, which includes the atoms' weights."""
        ...


@runtime_checkable
class GroupedAllocation(Protocol):
    """Verbs of an allocation whose atoms are tokens of groups (documents); its structure is ``Groups()``.

    The weights of a batch of sparse counts say how often a document counts; those of dense atoms, how often an atom
    does.
    """

    @property
    def keeps_states(self) -> bool:
        """Whether a visit gives states, for the next to start from."""
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
        starts from ``states`` (by position) where there are any.
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
    ) -> GroupStep:
        """Share out what the positions ``donors`` hold of each token, ``mass (T,)``, among receivers.

        ``states`` say what receivers that are donors too hold now.  Prior mass of the positions ``freed`` goes to
        clusters that were not met yet, if there is a place for them, and values without a cluster axis say how much
        they change by that.

        ``log_lik (R, J)`` is that of the receivers, ``beliefs (J,)`` their weights.  Statistics are those of all
        groups, so that they can be exchanged for the donors'.
        """
        ...

    def within(self, share: float) -> Self:
        """The distribution over parts of clusters that have the expected ``share`` of a group's weight, given what a
        group has of them: parts of a Dirichlet distribution are Dirichlet distributed with their own prior mass."""
        ...

    def prior_mass(self, params: Params) -> tuple[np.ndarray, float]:
        """``alpha pi_k (K,)``, and ``alpha pi_{>K}`` for all topics that were not met yet (0 where there are none)."""
        ...


@runtime_checkable
class ChainedAllocation(Protocol):
    """Verbs of an allocation whose atoms are steps of sequences; its structure is ``Chains()``."""

    def local_step(self, params: Params, log_lik: np.ndarray, batch: Batch, pairs: np.ndarray) -> LocalStep:
        """Optimal q(z) of sequences with log likelihoods ``(n, K)``; tracks unions of the positions ``pairs``."""
        ...

    def sweep(
        self, params: Params, log_lik: LogLikOf, batch: Batch, pairs: np.ndarray
    ) -> Iterator[tuple[Batch, LocalStep]]:
        """The local step in pieces, in an order of their own, for visits that need sums and try nothing.

        A piece's ``resp`` holds until the next is asked for.
        """
        ...

    def path(self, params: Params, log_lik: np.ndarray, batch: Batch) -> np.ndarray:
        """Most likely states of each sequence together, positions ``(n,)``; ``log_lik (n, K)`` is overwritten."""
        ...

    def expected_chain(self, params: Params) -> tuple[np.ndarray, np.ndarray]:
        """Expected probabilities of the first state ``(W,)``, and from row to column of the next one ``(W, W)``.

        W is K; or K + 1 where there may be states that were not met yet, all of which the last place stands for.  The
        start and each row sum to one, or the density of sequences would not.
        """
        ...

    def untied(self) -> Any:
        """A mixture of steps, for small runs on steps that were sampled one by one."""
        ...
