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
from scipy.special import betaln, gammaln, psi, zeta

from bnp_dask.allocation.sticks import climb
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

    @property
    def parents(self) -> np.ndarray:
        """Row of each stratum's parent: 0 for the sticks, i + 1 for stratum i, ``(S,)``."""
        n = len(self.counts)
        return np.arange(n) if self.is_chain else np.zeros(n, np.int64)

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

        Row p of the moments belongs to parent p, the first to the sticks.  A stratum that is no parent has its best
        theta.  ``psi(x + 1)`` is ``psi(x) + 1 / x``.
        """
        k, alpha = self.counts.shape[1], self.alpha
        a, b = ab = exp(point[: 2 * k]).reshape(2, k)
        shares = exp(point[2 * k :]).reshape(-1, k + 1)
        total, whole = a + b, shares.sum(axis=1)
        log_total = log(total)
        log_mean = np.vstack([_along(log(a) - log_total, log(b) - log_total), log(shares) - log(whole)[:, None]])
        mean = np.maximum(exp(log_mean), LEAST)
        wanted = np.maximum(np.pad(self.counts, ((0, 0), (0, 1))) + alpha * mean[self.parents], LEAST)
        theta = wanted.copy()
        theta[: len(shares)] = shares
        rows, n_children = theta.sum(axis=1), np.bincount(self.parents, minlength=len(mean)).astype(np.float64)[:, None]

        sizes = np.cumsum([2 * k, k, theta.size, len(rows)])
        values = np.concatenate([ab.ravel(), total, theta.ravel(), rows, (1.0 + alpha * mean).ravel()])
        psi_ab, psi_total, psi_theta, psi_rows, psi_mean = np.split(psi(values), sizes)
        gam_ab, gam_total, gam_theta, gam_rows, gam_mean = np.split(gammaln(values), sizes)
        psi_ab, psi_mean = psi_ab.reshape(2, k), psi_mean.reshape(mean.shape)
        log_pi = psi_theta.reshape(theta.shape) - psi_rows[:, None]
        own = log_pi[: len(shares)]
        mean_log = np.vstack([_along(psi_ab[0] - psi_total, psi_ab[1] - psi_total), own])
        more = 1.0 / total
        first = _along(psi_ab[0] - psi_total + 1.0 / a - more, psi_ab[1] - psi_total + 1.0 / b - more)
        tilted = np.vstack([first, own + 1.0 / shares - 1.0 / whole[:, None]])
        lift = tilted - log_mean

        short = wanted - theta
        value = float(np.sum(short * log_pi) + gam_theta.sum() - gam_rows.sum())
        each = log(alpha) + mean_log - gam_mean.reshape(mean.shape) - alpha * mean * lift
        value += float(np.sum(n_children * each) + len(rows) * gammaln(alpha))
        value += float(gam_ab.sum() - gam_total.sum() - k * betaln(1.0, self.gamma))
        value += float(np.sum((1.0 - a) * (psi_ab[0] - psi_total) + (self.gamma - b) * (psi_ab[1] - psi_total)))

        below = np.zeros_like(mean)
        np.add.at(below, self.parents, log_pi)
        by_mean = alpha * mean * (below + n_children * (1.0 - psi_mean - lift))
        by_tilted = -alpha * n_children * mean
        sizes = np.cumsum([2 * k, k, shares.size])
        tri_ab, tri_total, tri_shares, tri_whole = np.split(
            zeta(2.0, np.concatenate([ab.ravel(), total, shares.ravel(), whole])), sizes
        )
        tri_ab, tri_shares, tri_whole = tri_ab.reshape(2, k), tri_shares.reshape(shares.shape), tri_whole[:, None]
        slopes = np.stack([by_mean[0], np.full(k + 1, n_children[0, 0]), by_tilted[0]])
        passing = np.cumsum(slopes[:, ::-1], axis=1)[:, ::-1][:, 1:]
        of_ab = np.stack([1.0 / ab, tri_ab, tri_ab - 1.0 / (ab * ab)], axis=1)
        of_total = np.stack([more, tri_total, tri_total - more * more])
        shared = np.sum((slopes[:, :-1] + passing) * of_total, axis=0)
        shared = shared + (1.0 - a + self.gamma - b) * tri_total
        by_a = np.sum(slopes[:, :-1] * of_ab[0], axis=0) + (1.0 - a) * tri_ab[0] - shared
        by_b = np.sum(passing * of_ab[1], axis=0) + (self.gamma - b) * tri_ab[1] - shared
        out = [a * by_a, b * by_b]
        if len(shares):
            by_mean, by_log, by_tilted = by_mean[1:], n_children[1:] + short[: len(shares)], by_tilted[1:]
            own = by_mean / shares + by_log * tri_shares + by_tilted * (tri_shares - 1.0 / (shares * shares))
            own -= (by_mean.sum(axis=1) / whole)[:, None] + by_log.sum(axis=1, keepdims=True) * tri_whole
            last = by_tilted.sum(axis=1, keepdims=True) * (tri_whole - 1.0 / (whole * whole)[:, None])
            out.append((shares * (own - last)).ravel())
        return value, np.concatenate(out)
