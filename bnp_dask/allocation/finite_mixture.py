"""Finite mixture with a symmetric Dirichlet prior on its weights (thesis 2.4-2.6)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln, psi

from bnp_dask.allocation.mixture_step import MixtureSteps
from bnp_dask.core import Summary, register
from bnp_dask.errors import not_how_many
from bnp_dask.inputs import hold, positive_mass, whole_or_none
from bnp_dask.kernels import log, log_gammas, matmul


@register
@dataclass(frozen=True, eq=False)
class DirichletParams:
    """q(pi) = Dirichlet(theta) and the log weights in use; both ``(K,)``."""

    theta: np.ndarray
    log_pi: np.ndarray


@not_how_many
@register
@dataclass(frozen=True)
class FiniteMixture(MixtureSteps):
    """Mixture of a fixed number of clusters K: the number of the start, such as five for ``init=BregmanKMeans(5)``.

    Parameters
    ----------
    gamma
        Total prior mass of the symmetric Dirichlet, > 0; each of K clusters has gamma / K (eq. 2.68).
    top
        Clusters kept per atom (L of thesis 7.1), or None for all.  ``top=1`` is hard assignment.

    References
    ----------
    Thesis 2.6: objective (2.102), global step (2.93), point estimate (2.77).
    """

    gamma: float = 1.0
    top: int | None = None
    nonparametric = False

    def __post_init__(self) -> None:
        hold(self, "gamma", positive_mass("gamma", self.gamma, "prior mass"))
        hold(self, "top", whole_or_none("top", self.top, "a whole number of clusters per atom"))

    def global_step(self, summary: Summary) -> DirichletParams:
        theta = summary["N"] + self.gamma / summary.n_clusters
        return DirichletParams(theta, psi(theta) - psi(theta.sum()))

    def at_mode(self, params: DirichletParams) -> DirichletParams:
        return replace(params, log_pi=log(params.theta) - log(params.theta.sum()))

    def log_weights(self, params: DirichletParams) -> np.ndarray:
        return params.log_pi

    def weights(self, params: DirichletParams) -> np.ndarray:
        return params.theta / params.theta.sum()

    def elbo(self, params: DirichletParams, summary: Summary) -> dict[str, float]:
        k = summary.n_clusters
        prior = gammaln(self.gamma) - k * gammaln(self.gamma / k)
        posterior = gammaln(params.theta.sum()) - gammaln(params.theta).sum()
        slack = matmul(summary["N"] + self.gamma / k - params.theta, params.log_pi)
        return {"entropy": float(summary["H"].sum()), "allocation": float(prior - posterior + slack)}

    def log_joint(self, params: DirichletParams, summary: Summary) -> dict[str, float]:
        value = matmul(summary["N"] + self.gamma / summary.n_clusters, params.log_pi)
        return {"entropy": float(summary["H"].sum()), "allocation": float(value)}

    def draw_weights(self, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return log_gammas(counts + self.gamma / len(counts), rng)

    def log_partition(self, counts: np.ndarray) -> float:
        """Log probability of assignments to labelled clusters with ``counts (K,)`` atoms each, nats."""
        share = self.gamma / len(counts)
        constant = gammaln(self.gamma) - gammaln(self.gamma + counts.sum())
        return float(constant + np.sum(gammaln(counts + share) - gammaln(share)))
