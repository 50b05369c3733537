"""Hidden Markov model with a fixed number of states and symmetric Dirichlet priors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln, psi

from bnp_dask.allocation.chain_step import ChainSteps, stationary, transition_counts
from bnp_dask.core import Summary, register
from bnp_dask.errors import not_how_many
from bnp_dask.inputs import hold, mass_or_zero, positive_mass
from bnp_dask.kernels import inner, log, matmul
from bnp_dask.structure import Chains


@register
@dataclass(frozen=True, eq=False)
class StateRows:
    """q(pi_0) = Dirichlet(theta0 (K,)), q(pi_k) = Dirichlet(theta_k), ``theta (K, K)``, and the logs in use, nats."""

    theta0: np.ndarray
    theta: np.ndarray
    log_start: np.ndarray
    log_trans: np.ndarray


@not_how_many
@register
@dataclass(frozen=True)
class FiniteHMM(ChainSteps):
    """Hidden Markov model with a fixed number of states.

    The start sets the number K: five states for ``train(..., init=ContiguousBlocks(5))``.

    Parameters
    ----------
    alpha
        Total prior mass of each state's successors, > 0: each of K states has alpha / K.
    alpha0
        Total prior mass of the start, > 0.
    kappa
        Extra pseudo-count of staying, >= 0.

    Notes
    -----
    ``pi_0 ~ Dir(alpha0 / K, ...)``, ``pi_k ~ Dir(alpha / K + kappa delta_k)``, and q(pi_j) = Dir(theta_j).  With
    counts M_0 = start and M_k of transitions, and prior pseudo-counts beta_j, the allocation term of the objective is

        sum_{j=0}^{K} [ E log p(z | pi_j) + E log p(pi_j) - E log q(pi_j) ]
      = sum_j c(beta_j) - c(theta_j) + sum_l (M_jl + beta_jl - theta_jl) E[log pi_jl],

    with c(x) = log Gamma(sum x) - sum log Gamma(x): each row's log p(z | pi_j) is sum_l M_jl log pi_jl, and the
    Dirichlet densities give the rest.  It is (6.26) with the prior's own cumulants, which are numbers here, so no
    surrogate is needed; the optimum is theta_j = M_j + beta_j, where the slack vanishes.

    Data are rows in sequences (``Batch.groups``); a weight counts a whole sequence.
    """

    alpha: float = 1.0
    alpha0: float = 1.0
    kappa: float = 0.0
    structure = Chains()
    nonparametric = False

    def __post_init__(self) -> None:
        for name in ("alpha", "alpha0"):
            hold(self, name, positive_mass(name, getattr(self, name), "prior mass"))
        hold(self, "kappa", mass_or_zero("kappa", self.kappa, "pseudo-count of staying"))

    def expected_chain(self, params: StateRows) -> tuple[np.ndarray, np.ndarray]:
        """E[pi_0] ``(K,)`` and E[pi_k] ``(K, K)``."""
        return params.theta0 / params.theta0.sum(), params.theta / params.theta.sum(axis=1, keepdims=True)

    def _prior(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        return np.full(k, self.alpha0 / k), np.full((k, k), self.alpha / k) + self.kappa * np.eye(k)

    def global_step(self, summary: Summary) -> StateRows:
        start, trans = transition_counts(summary)
        prior0, prior = self._prior(summary.n_clusters)
        theta0, theta = start + prior0, trans + prior
        log_trans = psi(theta) - psi(theta.sum(axis=1, keepdims=True))
        return StateRows(theta0, theta, psi(theta0) - psi(theta0.sum()), log_trans)

    def at_mode(self, params: StateRows) -> StateRows:
        log_start = log(params.theta0) - log(params.theta0.sum())
        log_trans = log(params.theta) - log(params.theta.sum(axis=1, keepdims=True))
        return replace(params, log_start=log_start, log_trans=log_trans)

    def log_weights(self, params: StateRows) -> np.ndarray:
        return log(self.weights(params))

    def weights(self, params: StateRows) -> np.ndarray:
        """Share of steps that each state takes in the long run under the expected transitions, ``(K,)``."""
        return stationary(params.theta / params.theta.sum(axis=1, keepdims=True))

    def elbo(self, params: StateRows, summary: Summary) -> dict[str, float]:
        prior0, prior = self._prior(summary.n_clusters)
        slack = inner(summary["M"] + prior - params.theta, params.log_trans)
        slack += matmul(summary["start"] + prior0 - params.theta0, params.log_start)
        value = _cumulants(prior0[None]) + _cumulants(prior)
        value -= _cumulants(params.theta0[None]) + _cumulants(params.theta)
        return {"entropy": float(summary["H"]), "allocation": float(value + slack)}

    def log_joint(self, params: StateRows, summary: Summary) -> dict[str, float]:
        prior0, prior = self._prior(summary.n_clusters)
        value = inner(summary["M"] + prior, params.log_trans) + matmul(summary["start"] + prior0, params.log_start)
        return {"entropy": float(summary["H"]), "allocation": float(value)}


def _cumulants(rows: np.ndarray) -> float:
    """Sum over rows of ``log Gamma(sum x) - sum log Gamma(x)``."""
    return float(gammaln(rows.sum(axis=1)).sum() - gammaln(rows).sum())
