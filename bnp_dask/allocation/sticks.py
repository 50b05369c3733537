"""Top level of hierarchical Dirichlet processes: stick-breaking weights under the surrogate bound (thesis 5.2.3).

With D groups and K clusters in use, q(u_k) = Beta(u_k omega_k, (1 - u_k) omega_k), the weights are
pi_k = u_k prod_{l<k} (1 - u_l), and the rest, pi_{>K}, belongs to unused clusters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import betaln, expit, log_expit, psi, zeta

from bnp_dask.kernels import exp, is_fixed, log, maximise, psi_gammaln

LARGEST_LOGIT = 40.0
"""Bound of logit(u): keeps 1 - u in doubles."""


@dataclass(frozen=True)
class TopLevel:
    """Statistics that the top level's objective depends on.

    Parameters
    ----------
    gamma, alpha
        Concentrations of the top level and of the groups.
    groups
        Number of groups D (documents), which may be a sum of weights.
    log_pi, log_rest
        Sums over groups of E[log pi_dk], ``(K,)``, and of E[log pi_d>K] (eq. 5.38), nats.
    """

    gamma: float
    alpha: float
    groups: float
    log_pi: np.ndarray
    log_rest: float

    @property
    def ones(self) -> np.ndarray:
        """Pseudo-counts of breaking each stick in the surrogate bound, ``(K,)``."""
        return np.full(len(self.log_pi), self.groups + 1.0)

    @property
    def zeros(self) -> np.ndarray:
        """Pseudo-counts of passing each stick, ``(K,)``."""
        k = len(self.log_pi)
        return self.groups * np.arange(k, 0, -1.0) + self.gamma

    def omega(self) -> np.ndarray:
        """The variance parameter by the rule (5.39), ``(K,)``."""
        return self.ones + self.zeros

    def value_and_slope(self, logit: np.ndarray) -> tuple[float, np.ndarray]:
        """f of (5.37) with omega by (5.39) at ``u = expit(logit)``, and its gradient by the logit, ``(K,)``."""
        u, rest = expit(logit), expit(-logit)
        omega = self.omega()
        both, gammas = psi_gammaln(np.concatenate([u * omega, rest * omega, omega]))
        psi_a, psi_b, psi_w = both.reshape(3, -1)
        gamma_a, gamma_b, gamma_w = gammas.reshape(3, -1)
        more, less = self.ones - u * omega, self.zeros - rest * omega
        value = np.sum(gamma_a + gamma_b - gamma_w + more * (psi_a - psi_w) + less * (psi_b - psi_w))
        slope = (more * zeta(2.0, u * omega) - less * zeta(2.0, rest * omega)) * omega * u * rest
        log_not = log_expit(-logit)
        pi = u * exp(np.concatenate([[0.0], np.cumsum(log_not)[:-1]]))
        last = float(exp(log_not.sum())) * self.log_rest
        terms = pi * self.log_pi
        after = np.concatenate([np.cumsum(terms[::-1])[::-1][1:], [0.0]]) + last
        value += self.alpha * (terms.sum() + last)
        slope += self.alpha * (terms * rest - after * u)
        return float(value), slope

    def best_u(self) -> np.ndarray:
        """Maximizer u of (5.37), ``(K,)``: a function of these numbers alone, so a resumed run has the same bits."""
        begin = log(self.ones) - log(self.zeros)  # the optimum for alpha = 0: even weights
        return expit(climb(self.value_and_slope, begin, 1.0 / (self.groups + 1.0), LARGEST_LOGIT))


def climb(
    value_and_slope: Callable[[np.ndarray], tuple[float, np.ndarray]],
    begin: np.ndarray,
    scale: float,
    largest: float,
    enough: float = 1e-9,
) -> np.ndarray:
    """Maximizer ``(n,)`` of a smooth function, times ``scale``, within ``largest`` of zero in each number.

    The climb ends where no number of the gradient is larger than ``enough``.
    """

    def times(factor: float, x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = value_and_slope(x)
        return factor * value, factor * slope

    if is_fixed():
        return maximise(partial(times, scale), begin, largest, enough, 2000)
    from scipy.optimize import minimize

    bounds = [(-largest, largest)] * len(begin)
    options = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-14, "gtol": enough, "maxcor": 10}
    found = minimize(partial(times, -scale), begin, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return np.asarray(found.x)


def surrogate(u: np.ndarray, omega: np.ndarray, gamma: float, alpha: float, groups: float) -> float:
    """Surrogate of the top level's term of the objective (5.25), nats."""
    k = len(u)
    one, zero = u * omega, (1.0 - u) * omega
    total = psi(omega)
    value = groups * k * log(alpha) + np.sum(betaln(one, zero) - betaln(1.0, gamma))
    value += np.sum((groups + 1.0 - one) * (psi(one) - total))
    return float(value + np.sum((groups * np.arange(k, 0, -1.0) + gamma - zero) * (psi(zero) - total)))


def u_from_counts(counts: np.ndarray, gamma: float) -> np.ndarray:
    """Sticks u of a DP mixture with these counts (3.43), ``(K,)``: for initialisations, which have no groups yet."""
    after = np.concatenate([np.cumsum(counts[::-1])[::-1][1:], [0.0]])
    return (1.0 + counts) / (1.0 + counts + gamma + after)


def stick_weights(u: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights pi ``(K,)`` and the rest for unused clusters."""
    before = np.concatenate([[1.0], np.cumprod(1.0 - u)])
    return u * before[:-1], float(before[-1])
