"""Top level of the (sticky) HDP-HMM: weights of states, and transitions whose prior they are.

With K states in use, rows j = 0 (the start) and 1..K (transitions) have ``pi_j ~ Dirichlet(alpha_j pi^G + kappa
delta_j)`` over K + 1 places, the last for all unused states; ``pi^G`` are stick breaking weights with ``q(u_k) =
Beta(u_k omega_k, (1 - u_k) omega_k)``.  The cumulants of these priors are replaced by lower bounds (thesis 5.2.3 and
6.2.3), so that the top level's term of the objective is, with ``a = u omega`` and ``b = (1 - u) omega``,

    constant + sum_k log B(a_k, b_k) - log B(1, gamma) + (ones - a_k) E[log u_k] + (zeros_k - b_k) E[log 1 - u_k]
             + tilt sum_k pi_k(u)

    kappa = 0:  ones = K + 2,  zeros_k = (K + 1)(K + 1 - k) + gamma          (6.28)
    kappa > 0:  ones = K + 1,  zeros_k = K (K + 1 - k) + 1 + gamma           (6.33); the print lacks the 1, which is
                tilt = log(alpha + kappa) - log kappa                        the start row's place for unused states

The sticky bound (6.33) drops ``log Gamma(1 + alpha + kappa) - log Gamma(1 + kappa + alpha pi_j) - sum_l log Gamma(1 +
alpha pi_l)``, which is not negative: with alpha .5 and kappa 300 it is 3 nats for each state, and grows with kappa, so
that (6.33) cannot tell how large kappa should be.  Both ``-log Gamma(kappa + alpha pi)`` and ``-log Gamma(1 + alpha
pi)`` are concave in pi and lie above their chords over [0, 1], which gives the bound with the same pseudo-counts and

    tilt = log Gamma(kappa) + log Gamma(1 + alpha) - log Gamma(alpha + kappa).

It is never below (6.33), and is used where concentrations are learned.  Without kappa the chords give (6.28) itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import betaln, psi

from bnp_dask.allocation import concentrations as learning
from bnp_dask.allocation.sticks import stick_weights
from bnp_dask.kernels.hmm import top_level as chain_top
from bnp_dask.kernels.numeric.arithmetic import exp, log, matmul
from bnp_dask.kernels.numeric.special import psi_gammaln

STEPS = 3000
"""Most steps of an optimisation."""

TINY = 1e-300
"""Least pseudo-count."""

Bound = Literal["printed", "chords"]
"""Bound of the cumulants of sticky rows: (6.33), or the tighter one by chords."""


@dataclass(frozen=True)
class Concentrations:
    """``gamma`` of the top level, ``alpha`` of transitions, ``alpha0`` of the start, ``kappa`` of staying."""

    gamma: float
    alpha: float
    alpha0: float
    kappa: float
    bound: Bound = "printed"

    def pseudo_counts(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """``ones`` and ``zeros`` for K states, ``(K,)`` each."""
        after = np.arange(k, 0, -1.0)
        if self.kappa > 0.0:
            return np.full(k, k + 1.0), k * after + 1.0 + self.gamma
        return np.full(k, k + 2.0), (k + 1.0) * after + self.gamma

    @property
    def tilt(self) -> float:
        """Factor of the sum of the weights in the sticky bound (6.33), or in the one by chords."""
        if self.kappa == 0.0:
            return 0.0
        if self.bound == "chords":
            return float(log(self.alpha) + betaln(self.alpha, self.kappa))
        return float(log(self.alpha + self.kappa) - log(self.kappa))

    def constant(self, k: int) -> float:
        """Term of the objective that depends on K alone, nats."""
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
        """Surrogate of the top level's term of the objective, nats."""
        a, b = u * omega, (1.0 - u) * omega
        ones, zeros = self.pseudo_counts(len(a))
        psi, gammaln = psi_gammaln(np.stack([a, b, a + b]))
        value = np.sum(gammaln[0] + gammaln[1] - gammaln[2])
        value += matmul(ones - a, psi[0] - psi[2]) + matmul(zeros - b, psi[1] - psi[2])
        return self.constant(len(u)) + float(value) + self.tilt * float(stick_weights(u)[0].sum())


@dataclass(frozen=True)
class TransitionCounts:
    """Statistics to which the top level is fitted.

    ``start (K,)`` and ``trans (K, K)`` are expected counts.  :meth:`best` is the joint optimum of u, omega and the
    Dirichlet posteriors.  The posteriors have a closed form (6.40); with it inserted, the objective is

        sum_jl log Gamma(theta_jl(u)) + top term,     theta_jl = M_jl + alpha_j pi_l + kappa delta_jl,

    to whose optimum alternating updates of theta and u converge slowly.
    """

    concentrations: Concentrations
    start: np.ndarray
    trans: np.ndarray

    def learned(self, u: np.ndarray, omega: np.ndarray) -> Concentrations:
        """Concentrations at the best of the objective for this top level, one after the other, hyperpriors included.

        The Dirichlet posteriors follow: ``theta_jl = M_jl + alpha_j pi_l + kappa delta_jl``.
        """
        own, k = self.concentrations, len(self.start)
        weights, rest = stick_weights(u)
        shares, means = np.append(weights, rest), learning.MEANS
        start, trans = np.append(self.start, 0.0), np.hstack([self.trans, np.zeros((k, 1))])
        stay = np.hstack([np.eye(k), np.zeros((k, 1))])
        gamma = learning.of_sticks(float((psi((1.0 - u) * omega) - psi(omega)).sum()), k)

        def of_start(alpha0: float) -> float:
            theta = np.maximum(start + alpha0 * shares, TINY)
            return float(matmul(shares, psi(theta)) - psi(theta.sum())) + k / alpha0 - 1.0 / means["alpha0"]

        def of_alpha(alpha: float) -> float:
            theta = np.maximum(trans + alpha * shares + own.kappa * stay, TINY)
            slope = matmul(psi(theta), shares).sum() - psi(theta.sum(axis=1)).sum() + k * k / alpha
            if own.kappa > 0.0:
                tilt = float(psi(1.0 + alpha) - psi(alpha + own.kappa))
                slope -= tilt * (k - weights.sum())
            return float(slope) - 1.0 / means["alpha"]

        alpha = learning.best(of_alpha)

        def of_kappa(kappa: float) -> float:
            theta = np.maximum(trans + alpha * shares + kappa * stay, TINY)
            slope = float(psi(theta.diagonal()).sum() - psi(theta.sum(axis=1)).sum())
            tilt = float(psi(kappa) - psi(alpha + kappa))
            return slope - tilt * (k - float(weights.sum())) - 1.0 / means["kappa"]

        kappa = learning.best(of_kappa) if own.kappa > 0.0 else 0.0
        return Concentrations(gamma, alpha, learning.best(of_start), kappa, own.bound)

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
