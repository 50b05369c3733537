"""Pitman-Yor mixture: stick-breaking weights whose sizes fall as a power of their rank, nested truncation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self

import numpy as np
from scipy.special import betaln, psi

from bnp_dask.allocation import concentrations
from bnp_dask.allocation.dp_mixture import StickParams, mass_after, stick_log_weights, stick_weights
from bnp_dask.allocation.mixture_step import mixture_local_step, mixture_reassign, mixture_tiles
from bnp_dask.core import Batch, Field, Summary, register
from bnp_dask.inputs import hold, positive_mass, share_below_one, whole_or_none
from bnp_dask.kernels import Urn, log, log_gammas, matmul, urns
from bnp_dask.structure import Independent, LocalStep, LogLik


@register
@dataclass(frozen=True)
class PitmanYorMixture(concentrations.LearnedConcentrations):
    """Mixture with an unbounded number of clusters, among them more small ones than a Dirichlet process expects.

    Stick k = 1, 2, ... is Beta(1 - discount, gamma + k discount).  The number of clusters grows like n^discount, and
    like log n in a Dirichlet process.

    Parameters
    ----------
    gamma
        Concentration, > 0: larger expects more clusters.
    discount
        0 to less than 1: larger expects more small clusters.  0 is ``DPMixture(gamma)``.
    top
        Clusters kept per atom, or None for all.

    Notes
    -----
    The objective is exact, as with ``DPMixture``: births, merges and deletes are accepted only if it rises.
    ``Model(..., learn_prior="diagonal")`` learns ``gamma``, and leaves the discount.  Filters, expectation propagation
    and Gibbs sampling use the predictive rule, which gives a cluster of n_k atoms ``n_k - discount`` and a new one
    ``gamma + K discount``.  Filters know only expected counts: for them K is the number of clusters that earlier
    batches left, whatever the probability that one of these is empty.

    References
    ----------
    Pitman & Yor, "The two-parameter Poisson-Dirichlet distribution derived from a stable subordinator", 1997.
    The objective is (3.31) of the thesis with these priors of the sticks.
    """

    gamma: float = 1.0
    discount: float = 0.25
    top: int | None = None
    structure = Independent()
    nonparametric = True

    def __post_init__(self) -> None:
        hold(self, "gamma", positive_mass("gamma", self.gamma, "concentration"))
        hold(self, "discount", share_below_one("discount", self.discount, "a discount"))
        hold(self, "top", whole_or_none("top", self.top, "a whole number of clusters per atom"))

    @property
    def urn(self) -> Urn:
        """Predictive rule for atoms that are seated one after the other."""
        return Urn(float(self.gamma), float(self.discount), 0.0, urns.LINEAR)

    @property
    def fields(self) -> Mapping[str, Field]:
        return MappingProxyType({"H": Field(("cluster",), merge="tracked")})

    def tiles(self, batch: Batch, n_clusters: int) -> Iterator[Batch]:
        return mixture_tiles(batch, n_clusters)

    def local_step(self, params: StickParams, log_lik: LogLik, batch: Batch, pairs: np.ndarray) -> LocalStep:
        return mixture_local_step(self.log_weights(params), log_lik, batch, pairs, self.top)

    def reassign(self, params: StickParams, log_lik: np.ndarray, batch: Batch, mass: np.ndarray) -> LocalStep:
        return mixture_reassign(self.log_weights(params), log_lik, batch, mass, self.top)

    def global_step(self, summary: Summary) -> StickParams:
        eta1, eta0 = self._posterior(summary["N"])
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
        eta1, eta0 = self._posterior(summary["N"])
        ones, zeros = self._prior(summary.n_clusters)
        constant = np.sum(betaln(params.eta1, params.eta0) - betaln(ones, zeros))
        slack = matmul(eta1 - params.eta1, params.log_u) + matmul(eta0 - params.eta0, params.log_not_u)
        return {"entropy": float(summary["H"].sum()), "allocation": float(constant + slack)}

    def log_joint(self, params: StickParams, summary: Summary) -> dict[str, float]:
        eta1, eta0 = self._posterior(summary["N"])
        value = matmul(eta1, params.log_u) + matmul(eta0, params.log_not_u)
        return {"entropy": float(summary["H"].sum()), "allocation": float(value)}

    # -- learning of concentrations; see bnp_dask.structure.prior
    def learned(self, params: StickParams, summary: Summary) -> Self:
        """Mixture with the best gamma given the sticks.

        The terms of the objective that depend on it are ``sum_k log Gamma(gamma + 1 + (k - 1) d) - log Gamma(gamma +
        k d) + gamma E[log(1 - u_k)]``; the slope of their sum falls, and is zero at the best gamma.
        """
        place, d = np.arange(len(params.log_not_u)), self.discount
        level = float(params.log_not_u.sum()) - 1.0 / concentrations.MEANS["gamma"]

        def slope(gamma: float) -> float:
            return float(np.sum(psi(gamma + 1.0 + place * d) - psi(gamma + (place + 1.0) * d)) + level)

        return replace(self, gamma=concentrations.best(slope))

    def draw_weights(self, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return log_gammas(counts - self.discount, rng)

    def certain_values(self, counts: np.ndarray) -> dict[str, np.ndarray]:
        return {"H": np.zeros(len(counts))}

    def log_partition(self, counts: np.ndarray) -> float:
        """Log probability of a partition into blocks of ``counts (K,)`` atoms, all positive, nats."""
        return self.urn.log_partition(counts)

    def _prior(self, n_clusters: int) -> tuple[np.ndarray, np.ndarray]:
        """Parameters of the prior of each stick, ``(K,)`` each."""
        return np.full(n_clusters, 1.0 - self.discount), self.gamma + self.discount * np.arange(1.0, n_clusters + 1.0)

    def _posterior(self, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Parameters of the optimal q(u), ``(K,)`` each."""
        ones, zeros = self._prior(len(n))
        return ones + n, zeros + mass_after(n)
