"""Predictive rule of any normalized random measure, by a table of the cumulants of its jumps.

With Laplace exponent psi(u) and cumulants kappa_m(u) = int s^m e^(-u s) rho(s) ds, the density of v = log U given n
atoms in K clusters is proportional to ``exp f(v)`` with

    f = n v - psi(U) + sum_k log kappa_{n_k}(U)

and the next atom joins cluster k with probability ``E[U kappa_{n_k + 1} / kappa_{n_k}] / n`` and a new one with
``E[U kappa_1] / n`` (James, Lijoi & Pruenster 2009; Tank, Foti & Fox 2015, S2.1, eqs. S6 and S16).

Counts may be expected ones.  The table holds D(m, v) = log kappa_m - log Gamma(m - sigma) + (m - sigma) B(v), where
sigma is the discount, the order of the jumps' number near zero, and B = log(1 - sigma) - log(kappa_2 / kappa_1).  Of a
generalized gamma process D is constant and B = log(U + tau).  Columns are even in x = log(m - sigma), in which D is
smooth: it has its singularities where m is at most sigma.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from bnp_dask.kernels.options import INNER, njit

TERMS = 8
"""Nodes of the interpolation in x."""

LEAST = -5.0
"""x of the first column."""

DROP = 42.0
"""Nats below its mode at which the density of log U is cut off."""

INTERVALS = 64
"""Fewest intervals of the quadrature over log U, if the table has as many."""

LONGEST = 0.15
"""Longest step of the quadrature: the same as for closed forms."""


@dataclass(frozen=True, eq=False)
class Table:
    """Cumulants of the jumps of a random measure.

    Parameters
    ----------
    first, step
        First log U, and step.
    psi
        Laplace exponent, ``(J,)``.
    base
        B, ``(J,)``.
    rest
        D, ``(J, X)``; column i belongs to x = LEAST + i width.  Orders nearer to the discount have the first column.
    width
        Step in x.
    sigma
        Discount.
    """

    first: float
    step: float
    psi: np.ndarray
    base: np.ndarray
    rest: np.ndarray
    width: float
    sigma: float

    @property
    def log_u(self) -> np.ndarray:
        """Nodes, ``(J,)``."""
        return self.first + self.step * np.arange(len(self.psi))

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, float, float]:
        """The table as :func:`table_rule` takes it."""
        return self.psi, self.base, self.rest, self.first, self.step, self.width

    def log_cumulants(self, m: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """log kappa_m at some nodes or all, ``(J, M)`` nats; every m has to exceed the discount."""
        rest, base = (self.rest, self.base) if rows is None else (self.rest[rows], self.base[rows])
        own = interpolated(rest, np.asarray(m, np.float64), self.sigma, self.width)
        return np.asarray(own + gammaln(m - self.sigma) - base[:, None] * (m - self.sigma))

    def log_terms(self, counts: np.ndarray, times: np.ndarray) -> np.ndarray:
        """f at all nodes, ``(J,)``, of clusters of ``counts`` atoms that are there ``times`` times, ``(K,)`` each."""
        whole, beyond = float(counts @ times), float((counts - self.sigma) @ times)
        columns = column_weights(counts, times, self.sigma, self.width, self.rest.shape[1])
        logs = self.rest @ columns + float(times @ gammaln(counts - self.sigma))
        return np.asarray(whole * self.log_u - self.psi + logs - beyond * self.base)


NO_TABLE = (np.empty(0), np.empty(0), np.empty((0, 0)), 0.0, 1.0, 1.0)
"""In place of a table, for rules in closed form."""


@njit(nogil=True, cache=True)
def _place(m, sigma, width, columns, out):
    """First of the columns among which ``m`` lies, and the Lagrange weights of these in ``out (TERMS,)``."""
    t = (math.log(m - sigma) - LEAST) / width if m > sigma else 0.0
    t = max(t, 0.0)
    first = min(max(math.floor(t) - TERMS // 2 + 1, 0), columns - TERMS)
    t -= first
    for j in range(TERMS):
        value = 1.0
        for i in range(TERMS):
            if i != j:
                value *= (t - i) / (j - i)
        out[j] = value
    return first


@njit(nogil=True, cache=True)
def column_weights(counts, times, sigma, width, columns):
    """Weights of the columns in the sum over clusters of ``times (K,)`` D at ``counts (K,)``, ``(X,)``."""
    out, own = np.zeros(columns), np.empty(TERMS)
    for k in range(len(counts)):
        at = _place(counts[k], sigma, width, columns, own)
        for i in range(TERMS):
            out[at + i] += times[k] * own[i]
    return out


@njit(nogil=True, cache=True)
def interpolated(rest, m, sigma, width):
    """D at rows ``rest (J, X)`` of a table and at orders ``m (M,)``, ``(J, M)``."""
    out, own = np.zeros((len(rest), len(m))), np.empty(TERMS)
    for k in range(len(m)):
        at = _place(m[k], sigma, width, rest.shape[1], own)
        for j in range(len(rest)):
            for i in range(TERMS):
                out[j, k] += own[i] * rest[j, at + i]
    return out


@njit(**INNER)
def _level(j, n, beyond, whole, table):
    """f at node ``j``, up to a constant."""
    psi, base, rest, first, step, _ = table
    out = n * (first + step * j) - psi[j] - beyond * base[j]
    for x in range(len(whole)):
        out += rest[j, x] * whole[x]
    return out


@njit(nogil=True, cache=True)
def table_rule(n, counts, absent, n_clusters, sigma, table, start, out):
    """Predictive probabilities of clusters.

    Parameters
    ----------
    n
        Expected atoms.
    counts, absent
        Expected atoms of each cluster, and the log probability that it has none, ``(C,)``.
    n_clusters
        K.
    sigma, table
        Discount, and :meth:`Table.arrays`.
    start
        log U near which the mode is sought.
    out
        Filled with the probabilities of the first K.

    Returns
    -------
    new, mode
        Probability of a new cluster, and the mode of log U.
    """
    if n <= 0.0:
        out[:n_clusters] = 0.0
        return 1.0, start
    _, base, rest, first, step, width = table
    nodes, columns = rest.shape
    whole, own, beyond = np.zeros(columns), np.empty(TERMS), 0.0
    place, weight = np.empty((2, n_clusters), np.int64), np.empty((2, n_clusters, TERMS))
    for k in range(n_clusters):
        there = 1.0 - math.exp(min(absent[k], 0.0))
        if there > 0.0 and counts[k] > 0.0:
            content = max(counts[k] / there, 1.0)
            at = _place(content, sigma, width, columns, own)
            for i in range(TERMS):
                whole[at + i] += there * own[i]
            beyond += there * (content - sigma)
        for more in range(2):
            place[more, k] = _place(counts[k] + more, sigma, width, columns, weight[more, k])
    mode = min(max(int((start - first) / step), 0), nodes - 1)
    top = _level(mode, n, beyond, whole, table)
    for sign in (-1, 1):  # up the slope in growing strides, then in single steps
        stride = 16
        while stride > 0:
            there = mode + sign * stride
            level = _level(there, n, beyond, whole, table) if 0 <= there < nodes else -math.inf
            if level > top:
                mode, top = there, level
            else:
                stride //= 2
    low, high, stride = mode, mode, 1
    while low > 0 and top - _level(low, n, beyond, whole, table) < DROP:
        low, stride = max(low - stride, 0), stride + 1
    stride = 1
    while high < nodes - 1 and top - _level(high, n, beyond, whole, table) < DROP:
        high, stride = min(high + stride, nodes - 1), stride + 1
    stride = max(1, min((high - low) // INTERVALS, int(LONGEST / step)))
    mass, new, factor = 0.0, 0.0, math.exp(math.lgamma(1.0 - sigma))
    out[:n_clusters] = 0.0
    at = _place(1.0, sigma, width, columns, own)
    for j in range(low, high + 1, stride):
        weight_j = math.exp(_level(j, n, beyond, whole, table) - top)
        mass += weight_j
        share = weight_j * math.exp(first + step * j) / n
        level = (sigma - 1.0) * base[j]
        for i in range(TERMS):
            level += own[i] * rest[j, at + i]
        new += share * factor * math.exp(level)
        share *= math.exp(-base[j])
        for k in range(n_clusters):
            if counts[k] > sigma:
                rise = 0.0
                for i in range(TERMS):
                    rise += weight[1, k, i] * rest[j, place[1, k] + i] - weight[0, k, i] * rest[j, place[0, k] + i]
                out[k] += share * math.exp(rise)
    for k in range(n_clusters):
        out[k] = max(counts[k] - sigma, 0.0) * out[k] / mass
    return new / mass, first + step * mode
