"""Types between a structure and its model: results of local steps, methods of an allocation, the model as a whole.

A structure uses the classes above it through these protocols, without importing them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, TypeVar, runtime_checkable

import numpy as np

from bnp_dask.core import Batch, Field, GroupStates, Summary
from bnp_dask.inputs import is_a
from bnp_dask.kernels import Chains, Resp, ScreenedWeights, log
from bnp_dask.kernels.topics import document_step as kernel
from bnp_dask.observation import Observation

# -- results of local steps ---------------------------------------------------------------------------------------
LogLik = np.ndarray | ScreenedWeights
"""Log likelihoods of atoms, ``(n, K)`` nats, or their sums with the log weights after screening (mixtures only)."""


NO_DONORS = np.zeros(0, np.int64)
"""Empty array of positions of clusters."""

LOWEST = -230.0
"""Log likelihoods of tokens are cut this far below the best topic of a row: products of two such numbers are still
normal."""

LogLikOf = Callable[[Batch], np.ndarray]
"""Function that returns the log likelihoods of some atoms, ``(m, K)`` nats, in a new array."""


@dataclass(frozen=True, eq=False)
class ChainState:
    """Facts about the sequences of a tile that a trial needs.

    ``log_start (K,)``, ``log_trans (K, K)`` and ``log_lik (n, K)`` are the shifted logs given to the kernel,
    ``weights (G,)`` how often each sequence counts.
    """

    chains: Chains
    offsets: np.ndarray
    weights: np.ndarray
    log_start: np.ndarray
    log_trans: np.ndarray
    log_lik: np.ndarray

    @property
    def row_weights(self) -> np.ndarray:
        """Weight of each step, ``(n,)``."""
        return np.repeat(self.weights, np.diff(self.offsets))


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
        Pair posteriors of atoms in sequences, for trials.
    """

    resp: Resp
    values: Mapping[str, np.ndarray]
    pair_values: Mapping[str, np.ndarray] = field(default_factory=dict)
    chain: ChainState | None = None


@dataclass(frozen=True, eq=False)
class Tokens:
    """Tokens of G groups, without their likelihoods.

    ``offsets (G + 1,)`` delimit groups in ``row (T,)``, rows of the table of likelihoods, and in ``weight (T,)``, how
    often each token counts.  ``times (G,)`` is how often each group counts.  ``log_share (T,)`` is the log of the share
    of each token to assign, empty for all of it.  ``response (G,)`` are observed responses, NaN for none; None for data
    without.
    """

    offsets: np.ndarray
    row: np.ndarray
    weight: np.ndarray
    times: np.ndarray
    log_share: np.ndarray = field(default_factory=lambda: np.zeros(0))
    response: np.ndarray | None = None

    @property
    def length(self) -> np.ndarray:
        """Tokens of each group N_d, ``(G,)``."""
        return kernel.group_sums(self.offsets, self.weight)

    def part(self, mass: np.ndarray) -> tuple[Tokens, np.ndarray]:
        """Tokens with only ``mass (T,)`` of their weights, and the positions of the tokens with mass left."""
        index = np.flatnonzero(mass > 0.0)
        kept = np.concatenate([[0], np.cumsum(mass > 0.0)])
        share = log(mass[index] / self.weight[index])
        offsets = kept[self.offsets].astype(np.int64)
        return Tokens(offsets, self.row[index], mass[index], self.times, share), index


@dataclass(frozen=True, eq=False)
class GroupStep:
    """Result of a local step on groups of tokens.

    Parameters
    ----------
    sums
        Weight times responsibility by row of the table of likelihoods, ``(R, K)``.
    values, pair_values
        As in :class:`~bnp_dask.structure.protocols.LocalStep`.
    mass
        Weight times responsibility of each token in each requested set, ``(T, J)``.
    states
        States from which the next visit starts, by position of clusters; None if none are kept.
    counts
        Counts of topics in each group, by position of clusters; None for data without responses.
    """

    sums: np.ndarray
    values: dict[str, np.ndarray]
    pair_values: dict[str, np.ndarray]
    mass: np.ndarray
    states: GroupStates | None
    counts: GroupStates | None = None


@dataclass(frozen=True, eq=False)
class Receivers:
    """Facts about the receivers of a trial by which responses can pull on the tokens that are shared out.

    ``params`` are their parameters of the allocation, if they take the tokens of all topics, else None; ``places (J,)``
    their positions among all topics, -1 for new ones; ``counts`` are the counts of all topics in each group.
    """

    params: Any | None
    places: np.ndarray
    counts: GroupStates


@dataclass(frozen=True, eq=False)
class Members:
    """Share of each token of a batch in one cluster.

    ``mass (T,)`` is weight times responsibility; ``groups`` are positions of groups with enough tokens of the cluster
    to be gathered for it.
    """

    mass: np.ndarray
    groups: np.ndarray


# -- allocations --------------------------------------------------------------------------------------------------
# Methods that each structure needs, beyond :class:`~bnp_dask.allocation.base.Allocation`.
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

    def untied(self) -> Any:
        """Mixture of atoms, for small runs on atoms of several clusters."""
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


# -- the model and its posterior ----------------------------------------------------------------------------------
class Tied(Protocol):
    """Structure as used by beliefs and documents."""

    @property
    def is_tied(self) -> bool:
        """Whether the clusters of atoms of one group or sequence depend on each other."""
        ...

    @property
    def is_ordered(self) -> bool:
        """Whether atoms follow one another."""
        ...

    @property
    def has_shares(self) -> bool:
        """Whether groups have weights of their own."""
        ...

    @property
    def atom(self) -> str:
        """Noun of an atom."""
        ...

    def takes_words(self, model: WholeModel) -> bool:
        """Whether atoms are the word tokens of documents if data are sparse counts."""
        ...


class Beliefs(Protocol):
    """Posterior as structures see it; its class is :class:`bnp_dask.model.Posterior`."""

    @property
    def model(self) -> WholeModel:
        """The model, with all priors set."""
        ...

    @property
    def ids(self) -> np.ndarray:
        """Cluster ids, ``(K,)``."""
        ...

    @property
    def allocation(self) -> Any:
        """Parameters of the allocation model."""
        ...

    @property
    def observation(self) -> Any:
        """Parameters of the observation model."""
        ...

    @property
    def summary(self) -> Summary | None:
        """Statistics from which the parameters were computed; None if they were not sent along."""
        ...

    @property
    def n_clusters(self) -> int:
        """Number of clusters K."""
        ...

    @property
    def weights(self) -> np.ndarray:
        """Expected share of each cluster, ``(K,)``."""
        ...

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """Positions of cluster ids, in the shape of ``ids``."""
        ...

    def for_visits(self, n_atoms: int) -> Self:
        """Posterior reduced to the parts that local steps on batches of at most ``n_atoms`` atoms use."""
        ...


class WholeModel(Protocol):
    """Model as structures see it, allocation times observation; its class is :class:`bnp_dask.model.Model`."""

    @property
    def allocation(self) -> CommonAllocation:
        """Allocation model, by which atoms come from clusters."""
        ...

    @property
    def observation(self) -> Observation:
        """Likelihood of the atoms of a cluster."""
        ...

    @property
    def structure(self) -> Tied:
        """Dependence between atoms; its full type is in a module above."""
        ...

    @property
    def estimate(self) -> Literal["posterior", "map"]:
        """Whether estimates are full posteriors or point estimates."""
        ...

    @property
    def precision(self) -> Literal["mixed", "double"]:
        """Whether float32 may decide which clusters matter to an atom."""
        ...

    @property
    def reproducible(self) -> bool:
        """Whether results are the same on every processor."""
        ...

    @property
    def learn_prior(self) -> Literal["auto", "never", "diagonal", "full", "random"]:
        """Whether settings of the prior are learned."""
        ...

    @property
    def learn_concentrations(self) -> Literal["auto", "never", "always"]:
        """Whether concentrations of the allocation are learned."""
        ...

    @property
    def reference(self) -> Observation | None:
        """Likelihood with the prior from which learning began; None for a fixed prior."""
        ...

    @property
    def of_units(self) -> Mapping[str, Field]:
        """Field of the counts of units, in models of linked atoms; else empty."""
        ...

    @property
    def fields(self) -> Mapping[str, Field]:
        """All fields of summaries."""
        ...

    @property
    def screens(self) -> bool:
        """Whether local steps may look only at the clusters that matter to an atom."""
        ...

    @property
    def marginalises(self) -> bool:
        """Whether NaN in dense rows is a missing entry."""
        ...

    @property
    def lags(self) -> int:
        """Number of preceding steps that the likelihood takes from plain sequences for each step; 0 for most."""
        ...

    def check(self, batch: Batch) -> None:
        """Raise DataError for a batch that the likelihood cannot have produced, or whose groups make no sense."""
        ...

    def with_allocation(self, allocation: Any) -> Self:
        """Model with another allocation."""
        ...

    def empty_summary(self, ids: np.ndarray, pairs: np.ndarray = ...) -> Summary:
        """Summary of no atoms."""
        ...

    def summary_of(
        self, ids: np.ndarray, batch: Batch, step: LocalStep, params: Any, pairs: np.ndarray = ...
    ) -> Summary:
        """Summary of atoms from the result of a local step; ``params`` belong to the clusters ``ids``."""
        ...

    def local_step(self, posterior: Any, batch: Batch, pairs: np.ndarray = ...) -> Summary:
        """Assign the atoms of a batch and summarize them; ``posterior`` is the model's own."""
        ...

    def allocation_step(self, summary: Summary) -> Any:
        """Optimal parameters of the allocation model."""
        ...

    def global_step(self, summary: Summary) -> Any:
        """Optimal beliefs given whole-data statistics."""
        ...


M = TypeVar("M", bound=WholeModel)
"""Type of a model that is returned changed."""
