"""Dirichlet process mixture with stick-breaking weights (thesis Ch. 3), nested truncation (3.4.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self

import numpy as np
from scipy.special import betaln, psi

from bnp_dask.allocation import concentrations
from bnp_dask.allocation.mixture_step import mixture_local_step, mixture_reassign, mixture_tiles
from bnp_dask.core import Batch, Field, Summary, register
from bnp_dask.inputs import hold, positive_mass, whole_or_none
from bnp_dask.kernels import Urn, log, log_gammas, matmul
from bnp_dask.structure import Independent, LocalStep, LogLik

FIELDS: Mapping[str, Field] = MappingProxyType({"H": Field(("cluster",), merge="tracked")})
"""Entropies of the clusters."""


@register
@dataclass(frozen=True, eq=False)
class StickParams:
    """q(u_k) = Beta(eta1_k, eta0_k) (eq. 3.14) and the log stick lengths in use; all ``(K,)``."""

    eta1: np.ndarray
    eta0: np.ndarray
    log_u: np.ndarray
    log_not_u: np.ndarray


@register
@dataclass(frozen=True)
class DPMixture(concentrations.LearnedConcentrations):
    """Mixture with an unbounded number of clusters; only clusters in use are represented.

    Parameters
    ----------
    gamma
        Concentration of the Dirichlet process, > 0: larger expects more clusters.
    top
        Clusters kept per atom (L of thesis 7.1), or None for all.

    References
    ----------
    Thesis Ch. 3: sticks (3.14), objective (3.31), global step (3.43; its second line needs N_k^>).
    """

    gamma: float = 1.0
    top: int | None = None
    structure = Independent()
    nonparametric = True

    def __post_init__(self) -> None:
        hold(self, "gamma", positive_mass("gamma", self.gamma, "concentration"))
        hold(self, "top", whole_or_none("top", self.top, "a whole number of clusters per atom"))

    @property
    def urn(self) -> Urn:
        """Chinese restaurant process: predictive rule for atoms that are seated one after the other."""
        return Urn(float(self.gamma))

    @property
    def small_run_gamma(self) -> float | None:
        """See :class:`~bnp_dask.allocation.base.SmallRunAllocation`."""
        return float(self.gamma) if self.top is None else None

    @property
    def fields(self) -> Mapping[str, Field]:
        return FIELDS

    def tiles(self, batch: Batch, n_clusters: int) -> Iterator[Batch]:
        return mixture_tiles(batch, n_clusters)

    def local_step(self, params: StickParams, log_lik: LogLik, batch: Batch, pairs: np.ndarray) -> LocalStep:
        return mixture_local_step(self.log_weights(params), log_lik, batch, pairs, self.top)

    def reassign(self, params: StickParams, log_lik: np.ndarray, batch: Batch, mass: np.ndarray) -> LocalStep:
        return mixture_reassign(self.log_weights(params), log_lik, batch, mass, self.top)

    def global_step(self, summary: Summary) -> StickParams:
        return self.from_counts(summary["N"])

    def from_counts(self, counts: np.ndarray) -> StickParams:
        """See :class:`~bnp_dask.allocation.base.StickAllocation`."""
        eta1 = 1.0 + counts
        eta0 = self.gamma + mass_after(counts)
        total = psi(eta1 + eta0)
        return StickParams(eta1, eta0, psi(eta1) - total, psi(eta0) - total)

    def at_mode(self, params: StickParams) -> StickParams:
        total = log(params.eta1 + params.eta0)
        return replace(params, log_u=log(params.eta1) - total, log_not_u=log(params.eta0) - total)

    def log_weights(self, params: StickParams) -> np.ndarray:
        return stick_log_weights(params)

    def weights(self, params: StickParams) -> np.ndarray:
        return stick_weights(params)

    def elbo(self, params: StickParams, summary: Summary) -> dict[str, float]:
        n = summary["N"]
        # betaln is minus the thesis' c_Beta; for the prior it is betaln(1, gamma) = -log gamma
        constant = np.sum(betaln(params.eta1, params.eta0) + log(self.gamma))
        slack = matmul(n + 1.0 - params.eta1, params.log_u) + matmul(
            mass_after(n) + self.gamma - params.eta0, params.log_not_u
        )
        return {"entropy": float(summary["H"].sum()), "allocation": float(constant + slack)}

    # -- learning of concentrations; see bnp_dask.structure.prior
    def learned(self, params: StickParams, summary: Summary) -> Self:
        """Mixture with the best gamma: the terms of (3.31) that depend on it are ``K log gamma + gamma sum_k
        E[log(1 - u_k)]``."""
        return replace(self, gamma=concentrations.of_sticks(float(params.log_not_u.sum()), len(params.log_not_u)))

    def log_joint(self, params: StickParams, summary: Summary) -> dict[str, float]:
        n = summary["N"]
        value = matmul(n + 1.0, params.log_u) + matmul(mass_after(n) + self.gamma, params.log_not_u)
        return {"entropy": float(summary["H"].sum()), "allocation": float(value)}

    def draw_weights(self, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return log_gammas(counts, rng)

    def certain_values(self, counts: np.ndarray) -> dict[str, np.ndarray]:
        return {"H": np.zeros(len(counts))}

    def log_partition(self, counts: np.ndarray) -> float:
        """Log probability of a partition into blocks of ``counts (K,)`` atoms, all positive, nats."""
        return self.urn.log_partition(counts)


def stick_log_weights(params: StickParams) -> np.ndarray:
    """Expected log weights of the clusters in use, ``(K,)`` nats, or at the point estimate."""
    before = np.concatenate([[0.0], np.cumsum(params.log_not_u)[:-1]])
    return params.log_u + before


def stick_weights(params: StickParams) -> np.ndarray:
    """Expected weights of the clusters in use, ``(K,)``; the rest to one belongs to all others."""
    u = params.eta1 / (params.eta1 + params.eta0)
    before = np.concatenate([[1.0], np.cumprod(1.0 - u)[:-1]])
    return u * before


def mass_after(n: np.ndarray) -> np.ndarray:
    """N_k^>, the mass of all clusters after k in stick order, ``(K,)``."""
    return np.concatenate([np.cumsum(n[::-1])[::-1][1:], [0.0]])
