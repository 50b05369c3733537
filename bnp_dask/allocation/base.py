"""What an allocation model provides: how atoms come from clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import numpy as np

from bnp_dask.allocation.document_step import GroupStep, Tokens
from bnp_dask.core.batch import Batch
from bnp_dask.core.group_states import GroupStates
from bnp_dask.core.summary import Field, Summary
from bnp_dask.kernels.mixture.resp import Resp, ScreenedWeights
from bnp_dask.kernels.streaming.urn import Urn

if TYPE_CHECKING:
    from bnp_dask.allocation.chain_step import ChainState

Params = Any
"""A frozen dataclass of arrays; each allocation model has its own."""

LogLik = np.ndarray | ScreenedWeights
"""Log likelihoods of atoms, ``(n, K)`` nats, or what screening left of them and of the log weights (mixtures only)."""


LogLikOf = Callable[[Batch], np.ndarray]
"""Gives the log likelihoods of some atoms, ``(m, K)`` nats, a new array."""


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
    chain
        Of atoms in sequences: their pair posteriors, for trials.
    """

    resp: Resp
    values: Mapping[str, np.ndarray]
    pair_values: Mapping[str, np.ndarray] = field(default_factory=dict)
    chain: ChainState | None = None


class Allocation(Protocol):
    """A distribution over which cluster each atom comes from."""

    grouped: bool
    """Whether atoms come in groups with weights of their own: then it is a :class:`GroupedAllocation`."""

    nonparametric: bool
    """Whether the number of clusters is unbounded, so that moves learn it."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """Summary fields besides the count ``N``, which the model itself provides."""
        ...

    def tiles(self, batch: Batch, n_clusters: int) -> Iterator[Batch]:
        """Pieces of the batch small enough for an (n, K) matrix, cut only where atoms are independent."""
        ...

    def local_step(self, params: Params, log_lik: LogLik, batch: Batch, pairs: np.ndarray) -> LocalStep:
        """Optimal q(z) for atoms with log likelihoods ``(n, K)``; tracks unions of the positions ``pairs``."""
        ...

    def reassign(self, params: Params, log_lik: np.ndarray, batch: Batch, mass: np.ndarray) -> LocalStep:
        """Restricted local step (thesis 4.2.1, 4.3.1): share out ``mass (n,)``, which includes the atoms' weights."""
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
class LearningAllocation(Protocol):
    """What an allocation model provides besides if its concentration can be learned."""

    @property
    def gamma(self) -> float:
        """The concentration."""
        ...

    def learned(self, params: Params) -> Self:
        """The concentration that raises the objective and the log hyperprior most, for these parameters."""
        ...

    def log_hyperprior(self) -> float:
        """Log density of the concentration, nats, up to a constant."""
        ...


class GroupedAllocation(Protocol):
    """An allocation whose atoms are tokens of groups (documents); the verbs not named here are those of Allocation.

    The weights of a batch of sparse counts say how often a document counts; those of dense atoms, how often an atom
    does.
    """

    grouped: bool
    nonparametric: bool

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
    ) -> GroupStep:
        """Share out what the positions ``donors`` hold of each token, ``mass (T,)``, among receivers.

        ``states`` say what receivers that are donors too hold now.

        ``log_lik (R, J)`` is that of the receivers, ``beliefs (J,)`` their weights.  Statistics are those of all
        groups, so that they can be exchanged for the donors'.
        """
        ...

    def within(self, share: float) -> Self:
        """The distribution over parts of clusters that have the expected ``share`` of a group's weight, given what a
        group has of them: parts of a Dirichlet distribution are Dirichlet distributed with their own prior mass."""
        ...


class ChainedAllocation(Protocol):
    """An allocation whose atoms are steps of sequences; all verbs of Allocation, and this one."""

    def sweep(
        self, params: Params, log_lik: LogLikOf, batch: Batch, pairs: np.ndarray
    ) -> Iterator[tuple[Batch, LocalStep]]:
        """The local step in pieces, in an order of their own, for visits that need sums and try nothing.

        A piece's ``resp`` holds until the next is asked for.
        """
        ...


@runtime_checkable
class UrnAllocation(Protocol):
    """Allocation model whose atoms can be seated one after the other, without weights of clusters."""

    @property
    def urn(self) -> Urn:
        """The predictive rule."""
        ...
