"""The top level of the (sticky) HDP-HMM: weights of states and the transitions that they are a prior of.

With K states in use, rows j = 0 (the start) and 1..K (transitions) have ``pi_j ~ Dirichlet(alpha_j pi^G + kappa
delta_j)`` over K + 1 places, the last for all unused states; ``pi^G`` are stick breaking weights with ``q(u_k) =
Beta(u_k omega_k, (1 - u_k) omega_k)``.  The cumulants of these priors are replaced by lower bounds (thesis 5.2.3 and
6.2.3), so that the top level's term of the objective is, with ``a = u omega`` and ``b = (1 - u) omega``,

    constant + sum_k log B(a_k, b_k) - log B(1, gamma) + (ones - a_k) E[log u_k] + (zeros_k - b_k) E[log 1 - u_k]
             + tilt sum_k pi_k(u)

    kappa = 0:  ones = K + 2,  zeros_k = (K + 1)(K + 1 - k) + gamma          (6.28)
    kappa > 0:  ones = K + 1,  zeros_k = K (K + 1 - k) + 1 + gamma           (6.33); the print lacks the 1, which is
                tilt = log(alpha + kappa) - log kappa                        the start row's place for unused states
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import betaln, zeta

from bnp_dask.allocation.sticks import stick_weights
from bnp_dask.kernels.hmm import top_level as chain_top
from bnp_dask.kernels.numeric.arithmetic import exp, log, matmul
from bnp_dask.kernels.numeric.special import psi_gammaln

STEPS = 3000
"""Steps of an optimisation at most."""


@dataclass(frozen=True)
class Concentrations:
    """``gamma`` of the top level, ``alpha`` of transitions, ``alpha0`` of the start, ``kappa`` of staying."""

    gamma: float
    alpha: float
    alpha0: float
    kappa: float

    def pseudo_counts(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """``ones`` and ``zeros`` for K states, ``(K,)`` each."""
        after = np.arange(k, 0, -1.0)
        if self.kappa > 0.0:
            return np.full(k, k + 1.0), k * after + 1.0 + self.gamma
        return np.full(k, k + 2.0), (k + 1.0) * after + self.gamma

    @property
    def tilt(self) -> float:
        """Factor of the sum of the weights in the sticky bound (6.33)."""
        return float(log(self.alpha + self.kappa) - log(self.kappa)) if self.kappa > 0.0 else 0.0

    def constant(self, k: int) -> float:
        """Term of the objective that depends on nothing but K, nats."""
        value = k * log(self.alpha0) + k * k * log(self.alpha) - k * betaln(1.0, self.gamma)
        return float(value - k * self.tilt)

    def prior(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pseudo-counts of the start ``(K + 1,)`` and of transitions ``(K, K + 1)``."""
        pi, rest = stick_weights(u)
        shares = np.append(pi, rest)
        rows = np.tile(self.alpha * shares, (len(u), 1))
        rows[np.arange(len(u)), np.arange(len(u))] += self.kappa
        return self.alpha0 * shares, rows

    def top_term(self, u: np.ndarray, omega: np.ndarray) -> float:
        """The surrogate of the top level's term of the objective, nats."""
        value, *_ = self._beta_terms(u * omega, (1.0 - u) * omega)
        return self.constant(len(u)) + value + self.tilt * float(stick_weights(u)[0].sum())

    def _beta_terms(self, a: np.ndarray, b: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """The part of the objective that is a sum over sticks, with slopes by log a and log b."""
        ones, zeros = self.pseudo_counts(len(a))
        omega = a + b
        psi, gammaln = psi_gammaln(np.stack([a, b, omega]))
        value = np.sum(gammaln[0] + gammaln[1] - gammaln[2])
        value += matmul(ones - a, psi[0] - psi[2]) + matmul(zeros - b, psi[1] - psi[2])
        shared = (ones + zeros - omega) * zeta(2.0, omega)
        return float(value), a * ((ones - a) * zeta(2.0, a) - shared), b * ((zeros - b) * zeta(2.0, b) - shared)


@dataclass(frozen=True)
class TransitionCounts:
    """Statistics that the top level is fitted to.

    ``start (K,)`` and ``trans (K, K)`` are expected counts.  :meth:`best` is the optimum of u, omega and the
    Dirichlet posteriors together: the latter are closed form (6.40), and with them put in, the objective is

        sum_jl log Gamma(theta_jl(u)) + top term,     theta_jl = M_jl + alpha_j pi_l + kappa delta_jl,

    whose optimum alternating updates of theta and u approach slowly.
    """

    concentrations: Concentrations
    start: np.ndarray
    trans: np.ndarray

    def value_and_slope(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Objective at ``log a, log b (2K,)`` and its gradient."""
        own = self.concentrations
        k = len(self.start)
        a, b = exp(point[:k]), exp(point[k:])
        u = a / (a + b)
        prior0, prior = own.prior(u)
        theta = np.empty((k + 1, k + 1))
        theta[0], theta[1:] = prior0, prior
        theta[0, :k] += self.start
        theta[1:, :k] += self.trans
        np.maximum(theta, 1e-300, out=theta)
        psi, gammaln = psi_gammaln(theta)
        value, slope_a, slope_b = own._beta_terms(a, b)
        by_weight = own.alpha0 * psi[0] + own.alpha * psi[1:].sum(axis=0)
        by_weight[:k] += own.tilt
        value += float(gammaln.sum()) + own.tilt * float(prior0[:k].sum() / own.alpha0)
        by_logit = _by_logit(u, b / (a + b), by_weight)
        return value, np.concatenate([slope_a + by_logit, slope_b - by_logit])

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        """u and omega ``(K,)`` at the optimum: a function of the counts alone, so a resumed run has the same bits."""
        own, k = self.concentrations, len(self.start)
        counts = np.zeros((k + 1, k + 1))
        counts[0, :k] = self.start
        counts[1:, :k] = self.trans + own.kappa * np.eye(k)
        alphas = np.append(own.alpha0, np.full(k, own.alpha))
        ones, zeros = own.pseudo_counts(k)
        point = log(np.concatenate([ones, zeros]))
        chain_top.climb(point, counts, alphas, ones, zeros, own.tilt, STEPS)
        a, b = exp(point[:k]), exp(point[k:])
        return a / (a + b), a + b


@dataclass(frozen=True)
class ExpectedLogs:
    """The top level's objective for Dirichlet posteriors that are held fixed (6.45), (6.47).

    ``log_start (K + 1,)`` and ``log_trans (K, K + 1)`` are E[log pi_j].
    """

    concentrations: Concentrations
    log_start: np.ndarray
    log_trans: np.ndarray

    def value_and_slope(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Objective at ``log a, log b (2K,)`` and its gradient."""
        own = self.concentrations
        k = len(self.log_trans)
        a, b = exp(point[:k]), exp(point[k:])
        u = a / (a + b)
        value, slope_a, slope_b = own._beta_terms(a, b)
        by_weight = own.alpha0 * self.log_start + own.alpha * self.log_trans.sum(axis=0)
        by_weight[:k] += own.tilt
        pi, rest = stick_weights(u)
        value += float(matmul(by_weight, np.append(pi, rest)))
        by_logit = _by_logit(u, b / (a + b), by_weight)
        return value, np.concatenate([slope_a + by_logit, slope_b - by_logit])

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        """u and omega ``(K,)`` at the optimum."""
        return _climb(self.value_and_slope, self.concentrations, len(self.log_trans))


def _by_logit(u: np.ndarray, rest: np.ndarray, by_weight: np.ndarray) -> np.ndarray:
    """Slope by the logit of u of a function with slope ``by_weight (K + 1,)`` by the weights; ``rest`` is 1 - u."""
    before = np.concatenate([[1.0], np.cumprod(rest)])
    terms = np.append(u * before[:-1], before[-1]) * by_weight
    after = np.cumsum(terms[::-1])[::-1][1:]
    return terms[:-1] * rest - after * u


def _climb(
    value_and_slope: Callable[[np.ndarray], tuple[float, np.ndarray]], concentrations: Concentrations, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Maximise over ``log a, log b`` from the weights that the prior has without data."""
    ones, zeros = concentrations.pseudo_counts(k)
    scale = 1.0 / (k + 1.0)

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = value_and_slope(point)
        return -scale * value, -scale * slope

    begin = log(np.concatenate([ones, zeros]))
    bounds = [(-chain_top.LARGEST_LOG, chain_top.LARGEST_LOG)] * (2 * k)
    options = {"maxiter": STEPS, "maxfun": 6000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 10}
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    a, b = exp(found.x[:k]), exp(found.x[k:])
    return a / (a + b), a + b
