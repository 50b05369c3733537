"""Pitman-Yor mixture: stick-breaking weights whose sizes fall as a power of their rank, nested truncation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.special import betaln, psi

from bnp_dask.allocation import concentrations
from bnp_dask.allocation.dp_mixture import StickMixture, StickParams, mass_after
from bnp_dask.core import Summary, register
from bnp_dask.inputs import hold, positive_mass, share_below_one, whole_or_none
from bnp_dask.kernels import Urn, log_gammas, urns


@register
@dataclass(frozen=True)
class PitmanYorMixture(StickMixture):
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

    def __post_init__(self) -> None:
        hold(self, "gamma", positive_mass("gamma", self.gamma, "concentration"))
        hold(self, "discount", share_below_one("discount", self.discount, "a discount"))
        hold(self, "top", whole_or_none("top", self.top, "a whole number of clusters per atom"))

    @property
    def urn(self) -> Urn:
        """Predictive rule for atoms that are seated one after the other."""
        return Urn(float(self.gamma), float(self.discount), 0.0, urns.LINEAR)

    def _posterior(self, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ones, zeros = self._prior(len(n))
        return ones + n, zeros + mass_after(n)

    def _log_beta(self, n_clusters: int) -> np.ndarray:
        return betaln(*self._prior(n_clusters))

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

    def _prior(self, n_clusters: int) -> tuple[np.ndarray, np.ndarray]:
        """Parameters of the prior of each stick, ``(K,)`` each."""
        return np.full(n_clusters, 1.0 - self.discount), self.gamma + self.discount * np.arange(1.0, n_clusters + 1.0)
