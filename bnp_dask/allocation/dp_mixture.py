"""Dirichlet process mixture with stick-breaking weights (thesis Ch. 3), nested truncation (3.4.3)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from scipy.special import betaln, psi

from bnp_dask.allocation import concentrations
from bnp_dask.allocation.mixture_step import MixtureSteps
from bnp_dask.core import Summary, register
from bnp_dask.inputs import hold, positive_mass, whole_or_none
from bnp_dask.kernels import Urn, log, log_gammas, matmul


@register
@dataclass(frozen=True, eq=False)
class StickParams:
    """q(u_k) = Beta(eta1_k, eta0_k) (eq. 3.14) and the log stick lengths in use; all ``(K,)``."""

    eta1: np.ndarray
    eta0: np.ndarray
    log_u: np.ndarray
    log_not_u: np.ndarray


class StickMixture(MixtureSteps, concentrations.LearnedConcentrations):
    """Base of mixtures with stick-breaking weights, an independent Beta prior for each stick and an ``urn``."""

    nonparametric = True

    @property
    @abstractmethod
    def urn(self) -> Urn:
        """Predictive rule for atoms that are seated one after the other."""

    @abstractmethod
    def _posterior(self, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Parameters ``eta1, eta0`` of the optimal q(u) for counts ``n (K,)``; ``(K,)`` each."""

    @abstractmethod
    def _log_beta(self, n_clusters: int) -> Any:
        """Logarithm of the beta function at the prior of the sticks, ``(K,)`` or a number for all."""

    def _params(self, n: np.ndarray) -> StickParams:
        """Optimal q(u) for counts ``n (K,)``."""
        eta1, eta0 = self._posterior(n)
        total = psi(eta1 + eta0)
        return StickParams(eta1, eta0, psi(eta1) - total, psi(eta0) - total)

    def global_step(self, summary: Summary) -> StickParams:
        return self._params(summary["N"])

    def at_mode(self, params: StickParams) -> StickParams:
        total = log(params.eta1 + params.eta0)
        return replace(params, log_u=log(params.eta1) - total, log_not_u=log(params.eta0) - total)

    def log_weights(self, params: StickParams) -> np.ndarray:
        """Expected log weights of the clusters in use, ``(K,)`` nats, or at the point estimate."""
        before = np.concatenate([[0.0], np.cumsum(params.log_not_u)[:-1]])
        return params.log_u + before

    def weights(self, params: StickParams) -> np.ndarray:
        """Expected weights of the clusters in use, ``(K,)``; the rest to one belongs to all others."""
        u = params.eta1 / (params.eta1 + params.eta0)
        before = np.concatenate([[1.0], np.cumprod(1.0 - u)[:-1]])
        return u * before

    def elbo(self, params: StickParams, summary: Summary) -> dict[str, float]:
        eta1, eta0 = self._posterior(summary["N"])
        # betaln is minus the thesis' c_Beta
        constant = np.sum(betaln(params.eta1, params.eta0) - self._log_beta(len(eta1)))
        slack = matmul(eta1 - params.eta1, params.log_u) + matmul(eta0 - params.eta0, params.log_not_u)
        return {"entropy": float(summary["H"].sum()), "allocation": float(constant + slack)}

    def log_joint(self, params: StickParams, summary: Summary) -> dict[str, float]:
        eta1, eta0 = self._posterior(summary["N"])
        value = matmul(eta1, params.log_u) + matmul(eta0, params.log_not_u)
        return {"entropy": float(summary["H"].sum()), "allocation": float(value)}

    def log_partition(self, counts: np.ndarray) -> float:
        """Log probability of a partition into blocks of ``counts (K,)`` atoms, all positive, nats."""
        return self.urn.log_partition(counts)


@register
@dataclass(frozen=True)
class DPMixture(StickMixture):
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

    def _posterior(self, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 1.0 + n, self.gamma + mass_after(n)

    def _log_beta(self, n_clusters: int) -> float:
        return -float(log(self.gamma))

    def from_counts(self, counts: np.ndarray) -> StickParams:
        """See :class:`~bnp_dask.allocation.base.StickAllocation`."""
        return self._params(counts)

    # -- learning of concentrations; see bnp_dask.structure.prior
    def learned(self, params: StickParams, summary: Summary) -> Self:
        """Mixture with the best gamma: the terms of (3.31) that depend on it are ``K log gamma + gamma sum_k
        E[log(1 - u_k)]``."""
        return replace(self, gamma=concentrations.of_sticks(float(params.log_not_u.sum()), len(params.log_not_u)))

    def draw_weights(self, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return log_gammas(counts, rng)


def mass_after(n: np.ndarray) -> np.ndarray:
    """N_k^>, the mass of all clusters after k in stick order, ``(K,)``."""
    return np.concatenate([np.cumsum(n[::-1])[::-1][1:], [0.0]])
