"""Tokens and results of local steps: inputs and outputs between a structure and an allocation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import GroupStates
from bnp_dask.kernels.hmm.forward_backward import Chains
from bnp_dask.kernels.mixture.resp import Resp, ScreenedWeights
from bnp_dask.kernels.numeric.arithmetic import log
from bnp_dask.kernels.topics import document_step as kernel

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
        As in :class:`~bnp_dask.structure.steps.LocalStep`.
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
