"""Top level of a mixture with weights of its own in each stratum, and the bound that makes it tractable.

Stratum s has weights ``pi_s ~ Dirichlet(alpha m)`` over K clusters in use and one place for all others.  ``m`` are the
weights of its parent: global stick-breaking weights with ``q(u_k) = Beta(a_k, b_k)``, or the weights of the stratum
before with ``q(pi) = Dirichlet(theta)``.  The log constant of this prior,

    c(m) = log Gamma(alpha) - sum_k log Gamma(alpha m_k),

has no closed expectation under q.  With ``-log Gamma(x) = log x - log Gamma(1 + x)`` and

    log Gamma(1 + x) = x log x - x + r(x),     r concave, as psi'(1 + x) < 1 / x,

Jensen's inequality for r alone gives a lower bound of all moments that are known,

    E[c(m)] >= log Gamma(alpha) + sum_k log alpha + E[log m_k] - log Gamma(1 + alpha E[m_k])
                                  - alpha (E[m_k log m_k] - E[m_k] log E[m_k]).

It is exact where q is certain of m.  The bound of the thesis (5.2.3) leaves ``log Gamma(1 + alpha m_k)`` out; the loss
grows like alpha times the entropy of m, which strata with alpha above 1 cannot afford.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, gammaln, psi

from bnp_dask.allocation.sticks import climb
from bnp_dask.kernels.mixture import strata_top_level as kernel
from bnp_dask.kernels.numeric.arithmetic import exp, log

LEAST = 1e-300
"""Least expected weight and pseudo-count: keeps logarithms finite."""

LARGEST_LOG = 40.0
"""Bound of the logarithm of each parameter of q."""

ENOUGH = 1e-6
"""Slope of the objective, nats, at which its climb ends: the rest of the way is worth about the square of it."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of weights under q, over K + 1 places: ``log E[m]``, ``E[log m]`` and ``E[m log m] / E[m]``."""

    log_mean: np.ndarray
    mean_log: np.ndarray
    tilted: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Expected weights, ``(K + 1,)``."""
        return np.maximum(exp(self.log_mean), LEAST)


def moments_of_sticks(a: np.ndarray, b: np.ndarray) -> Moments:
    """Moments of the stick-breaking weights under ``q(u_k) = Beta(a_k, b_k)``, ``(K,)`` each."""
    total = a + b
    one, more = psi(total), psi(total + 1.0)
    return Moments(
        _along(log(a) - log(total), log(b) - log(total)),
        _along(psi(a) - one, psi(b) - one),
        _along(psi(a + 1.0) - more, psi(b + 1.0) - more),
    )


def moments_of_shares(theta: np.ndarray) -> Moments:
    """Moments of weights under ``q = Dirichlet(theta)``, ``(K + 1,)``."""
    total = theta.sum()
    return Moments(log(theta) - log(total), psi(theta) - psi(total), psi(theta + 1.0) - psi(total + 1.0))


def _along(first: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Sums along the sticks: that of breaking stick k after passing all before, and of passing all, ``(K + 1,)``."""
    return np.append(first, 0.0) + np.concatenate([[0.0], np.cumsum(rest)])


def constant_bound(parent: Moments, alpha: float) -> float:
    """Lower bound of the expected log constant of ``Dirichlet(alpha m)``, nats."""
    m = parent.mean
    gap = m * (parent.tilted - parent.log_mean)
    return float(gammaln(alpha) + np.sum(log(alpha) + parent.mean_log - gammaln(1.0 + alpha * m) - alpha * gap))


def shares_term(theta: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Terms of weights with ``q = Dirichlet(theta)``, rows ``(S, K + 1)``, whose prior and data ask for ``wanted``,
    without the constant of the prior, ``(S,)`` nats."""
    total = theta.sum(axis=1, keepdims=True)
    value = (wanted - theta) * (psi(theta) - psi(total)) + gammaln(theta)
    return np.asarray(value.sum(axis=1) - gammaln(total[:, 0]))


def sticks_term(a: np.ndarray, b: np.ndarray, gamma: float) -> float:
    """Minus the divergence of the sticks' posteriors from their prior Beta(1, gamma), nats."""
    total = psi(a + b)
    value = betaln(a, b) - betaln(1.0, gamma) + (1.0 - a) * (psi(a) - total) + (gamma - b) * (psi(b) - total)
    return float(value.sum())


@dataclass(frozen=True, eq=False)
class StrataCounts:
    """Statistics to which the top level is fitted: ``counts (S, K)`` of strata with atoms, in their order.

    ``is_chain``: the parent of each stratum is the one before; else all have the global weights as their parent.
    """

    counts: np.ndarray
    gamma: float
    alpha: float
    is_chain: bool

    def best(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``a (K,)``, ``b (K,)`` and ``theta (S, K + 1)`` at the optimum: a function of the counts alone."""
        k = self.counts.shape[1]
        found = climb(self.value_and_slope, self._begin(), 1.0, LARGEST_LOG, ENOUGH)
        a, b = exp(found[:k]), exp(found[k : 2 * k])
        return a, b, self.shares(a, b, exp(found[2 * k :]).reshape(-1, k + 1))

    def shares(self, a: np.ndarray, b: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """``theta (S, K + 1)``, with the best one of each stratum that is no parent."""
        parent = moments_of_sticks(a, b) if not len(theta) else moments_of_shares(theta[-1])
        more = self.counts[len(theta) :]
        wanted = np.pad(more, ((0, 0), (0, 1))) + self.alpha * parent.mean
        return np.maximum(np.concatenate([theta, wanted]), LEAST)

    def _begin(self) -> np.ndarray:
        """Sticks of as many draws of each cluster as a stratum is expected to make, a logarithm of its counts."""
        drawn = np.minimum(self.counts, self.alpha * np.log1p(self.counts / self.alpha)).sum(axis=0)
        after = np.append(np.cumsum(drawn[::-1])[::-1][1:], 0.0)
        a, b = 1.0 + drawn, self.gamma + after
        parts = [a, b]
        if self.is_chain:
            mean = exp(moments_of_sticks(a, b).log_mean)
            parts.append((np.pad(self.counts[:-1], ((0, 0), (0, 1))) + self.alpha * mean).ravel())
        return log(np.maximum(np.concatenate(parts), 1e-12))

    def value_and_slope(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Top level's term of the objective at the logs of a, b and theta of all parents, and its gradient.

        A stratum that is no parent has its best theta.
        """
        slope = np.empty(len(point))
        counts = np.ascontiguousarray(self.counts)
        return float(kernel.value_and_slope(point, counts, self.gamma, self.alpha, slope)), slope
