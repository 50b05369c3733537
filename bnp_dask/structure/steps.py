"""Tokens and results of local steps: what a structure hands to an allocation and gets back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.group_states import GroupStates
from bnp_dask.kernels.hmm.forward_backward import Chains
from bnp_dask.kernels.mixture.resp import Resp, ScreenedWeights
from bnp_dask.kernels.numeric.arithmetic import log
from bnp_dask.kernels.topics import document_step as kernel

LogLik = np.ndarray | ScreenedWeights
"""Log likelihoods of atoms, ``(n, K)`` nats, or what screening left of them and of the log weights (mixtures only)."""


NO_DONORS = np.zeros(0, np.int64)
"""Positions of no cluster."""

LOWEST = -230.0
"""Log likelihoods of tokens are cut this far below the best topic of a row: products of two such numbers are still
normal."""

LogLikOf = Callable[[Batch], np.ndarray]
"""Gives the log likelihoods of some atoms, ``(m, K)`` nats, a new array."""


@dataclass(frozen=True, eq=False)
class ChainState:
    """Facts about the sequences of a tile that a trial needs.

    ``log_start (K,)``, ``log_trans (K, K)`` and ``log_lik (n, K)`` are the shifted logs that the kernel took,
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
        Of atoms in sequences: their pair posteriors, for trials.
    """

    resp: Resp
    values: Mapping[str, np.ndarray]
    pair_values: Mapping[str, np.ndarray] = field(default_factory=dict)
    chain: ChainState | None = None


@dataclass(frozen=True, eq=False)
class Tokens:
    """Tokens of G groups, without their likelihoods.

    ``offsets (G + 1,)`` into ``row (T,)``, a row of the table of likelihoods, and ``weight (T,)``, how often the
    token counts; ``times (G,)``: how often the group counts.  ``log_share (T,)`` is the log of the share of each token
    that is to be assigned, empty for all of it.
    """

    offsets: np.ndarray
    row: np.ndarray
    weight: np.ndarray
    times: np.ndarray
    log_share: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def length(self) -> np.ndarray:
        """Tokens of each group N_d, ``(G,)``."""
        return kernel.group_sums(self.offsets, self.weight)

    def part(self, mass: np.ndarray) -> tuple[Tokens, np.ndarray]:
        """Only a share of each token, ``mass (T,)`` of its weight; and the positions of those of which any is left."""
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
        Weight times responsibility of each token in each of the sets that were asked for, ``(T, J)``.
    states
        Where to start the next visit, by position of clusters; None when nothing is kept.
    """

    sums: np.ndarray
    values: dict[str, np.ndarray]
    pair_values: dict[str, np.ndarray]
    mass: np.ndarray
    states: GroupStates | None


@dataclass(frozen=True, eq=False)
class Members:
    """Share of each token of a batch in one cluster.

    ``mass (T,)`` is weight times responsibility; ``groups`` are those that have enough tokens of the cluster to be
    gathered for it.
    """

    mass: np.ndarray
    groups: np.ndarray
