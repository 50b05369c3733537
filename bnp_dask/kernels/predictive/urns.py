"""Predictive rules: the probability that the next atom joins a cluster, or opens a new one.

In this order: normalized random measures by a table of their cumulants; generalized gamma processes in closed form;
one atom that takes its seat by these; urns, as allocations hold them; sticks and an urn inside a minibatch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.special import gammaln

from bnp_dask.kernels.mixture import TINY, RaggedResp, Resp
from bnp_dask.kernels.numeric.arithmetic import exp, log, log1p
from bnp_dask.kernels.options import INNER, copy_into, njit

# =====================================================================================================================
# Predictive rule of any normalized random measure, by a table of the cumulants of its jumps.
#
# With Laplace exponent psi(u) and cumulants kappa_m(u) = int s^m e^(-u s) rho(s) ds, the density of v = log U given n
# atoms in K clusters is proportional to ``exp f(v)`` with
#
#     f = n v - psi(U) + sum_k log kappa_{n_k}(U)
#
# and the next atom joins cluster k with probability ``E[U kappa_{n_k + 1} / kappa_{n_k}] / n`` and a new one with
# ``E[U kappa_1] / n`` (James, Lijoi & Pruenster 2009; Tank, Foti & Fox 2015, S2.1, eqs. S6 and S16).
#
# Counts may be expected ones.  The table holds D(m, v) = log kappa_m - log Gamma(m - sigma) + (m - sigma) B(v), where
# sigma is the discount, the order of the jumps' number near zero, and B = log(1 - sigma) - log(kappa_2 / kappa_1).  Of
# a generalized gamma process D is constant and B = log(U + tau).  Columns are even in x = log(m - sigma), in which D
# is smooth: it has its singularities where m is at most sigma.
# =====================================================================================================================

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


# =====================================================================================================================
# Predictive rule of a normalized generalized gamma process, by one quadrature over the auxiliary variable U.
#
# The density of v = log U given n atoms in K clusters is proportional to ``exp f(v)`` with
#
#     f = -n log(1 + tau / U) + sigma K log(U + tau) - a / sigma ((U + tau)^sigma - tau^sigma)
#
# (Tank, Foti & Fox 2015, eq. 6, whose exponent of U + tau has to be n - sigma K: see the product of eq. S20).  It has
# one mode and is analytic, so that the trapezoidal rule on an even grid converges faster than any power of its step.
# =====================================================================================================================

EXACT, MEAN, MODE, LINEAR, GIVEN = 0, 1, 2, 3, 4
"""Rules: predictive probabilities themselves; normalized for each U and averaged; normalized at the mode of U; that of
a Pitman-Yor process of concentration a and discount sigma, which needs no U; and given U, a new cluster weighing a."""

STEP = 0.15
"""Longest step of the grid in log U: singularities lie pi away from the real line at ``log tau``."""

POINTS = 64
"""Fewest intervals of the grid."""


@njit(nogil=True, cache=True)
def log_density(u, n, k, a, sigma, tau):
    """f at ``U = u``, nats, and ``a (u + tau)^sigma``; ``sigma`` above zero."""
    if tau > 0.0:
        log_base = math.log(tau)
        rise = math.log1p(u / tau)
        level = a * math.exp(sigma * log_base)
        more = level * math.expm1(sigma * rise)
        return sigma * k * (log_base + rise) - n * math.log1p(tau / u) - more / sigma, level + more
    power = a * math.exp(sigma * math.log(u))
    return sigma * k * math.log(u) - power / sigma, power


@njit(**INNER)
def _slope(v, n, k, a, sigma, tau):
    """f'(v): ``n - (n - sigma K) U / (U + tau) - a U (U + tau)^(sigma - 1)``."""
    u = math.exp(v)
    base = u + tau
    return n * tau / base + u / base * (sigma * k - a * base**sigma)


@njit(nogil=True, cache=True)
def mode_of_log(n, k, a, sigma, tau, start, tolerance):
    """Mode of log U: the one zero of a falling slope, by bisection from ``start``."""
    step, low, high = 0.01, start, start
    while _slope(low, n, k, a, sigma, tau) < 0.0 and low > -690.0:
        high, low, step = low, low - step, 2.0 * step
    step = 0.01
    while _slope(high, n, k, a, sigma, tau) > 0.0 and high < 690.0:
        low, high, step = high, high + step, 2.0 * step
    while high - low > tolerance * (1.0 + abs(low)):
        middle = 0.5 * (low + high)
        if _slope(middle, n, k, a, sigma, tau) > 0.0:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


@njit(nogil=True, cache=True)
def _end(mode, sign, width, top, n, k, a, sigma, tau):
    """Distance from the mode at which the density becomes negligible on one side, to a third."""
    step = width
    while top - log_density(math.exp(mode + sign * step), n, k, a, sigma, tau)[0] < DROP and step < 600.0:
        step *= 1.3
    return step


@njit(**INNER)
def _grid(mode, n, k, a, sigma, tau):
    """First point, number of intervals, step and largest f of a grid that holds the density of log U."""
    u = math.exp(mode)
    base = u + tau
    top, power = log_density(u, n, k, a, sigma, tau)
    curve = u / base * (tau / base * (n + power - sigma * k) + sigma * power * u / base)
    width = 6.0 / math.sqrt(curve) if curve > 1e-4 else 600.0
    left = _end(mode, -1.0, width, top, n, k, a, sigma, tau)
    right = _end(mode, 1.0, min(width, 1.0), top, n, k, a, sigma, tau)
    count = max(POINTS, math.ceil((left + right) / STEP))
    return mode - left, count, (left + right) / count, top


@njit(nogil=True, cache=True)
def seat_rule(n, k, a, sigma, tau, rule, start):
    """Predictive rule after ``n`` atoms in ``k`` clusters (expected numbers will do).

    Returns
    -------
    seat, new, mode
        A cluster of n_k atoms has probability ``seat (n_k - sigma)``, a new one ``new``; ``mode`` is the mode of log U,
        near which the next call may start.
    """
    if n <= 0.0:
        return 0.0, 1.0, start
    if rule == GIVEN:
        return 1.0, a, start
    if rule == LINEAR or sigma == 0.0:
        return 1.0 / (n + a), (a + sigma * k) / (n + a), start
    mode = mode_of_log(n, k, a, sigma, tau, start, 1e-12 if rule == MODE else 1e-3)
    if rule == MODE:
        fresh = a * (math.exp(mode) + tau) ** sigma
        total = n - sigma * k + fresh
        return 1.0 / total, fresh / total, mode
    first, count, h, top = _grid(mode, n, k, a, sigma, tau)
    u, factor = math.exp(first), math.exp(h)
    mass, seat, new = 0.0, 0.0, 0.0
    for _ in range(count + 1):
        level, power = log_density(u, n, k, a, sigma, tau)
        weight = math.exp(level - top)
        mass += weight
        if rule == EXACT:
            share = weight * u / (n * (u + tau))
        else:
            share = weight / (n - sigma * k + power)
        seat += share
        new += share * power
        u *= factor
    return seat / mass, new / mass, mode


@njit(nogil=True, cache=True)
def log_mass(n, k, a, sigma, tau):
    """log of ``V(n, K) = a^K / Gamma(n) integral of U^(n-1) (U + tau)^(sigma K - n) exp(-...) dU``, nats.

    A partition into blocks of n_k atoms has probability ``V(n, K) prod Gamma(n_k - sigma) / Gamma(1 - sigma)``.
    """
    if sigma == 0.0:
        return k * math.log(a) + math.lgamma(a) - math.lgamma(a + n)
    mode = mode_of_log(n, k, a, sigma, tau, math.log(n + 1.0), 1e-3)
    first, count, h, top = _grid(mode, n, k, a, sigma, tau)
    mass = 0.0
    for i in range(count + 1):
        mass += math.exp(log_density(math.exp(first + i * h), n, k, a, sigma, tau)[0] - top)
    return k * math.log(a) - math.lgamma(n) + top + math.log(mass * h)


@njit(nogil=True, cache=True)
def weight_of(count, sigma, by_count):
    """Weight of a cluster of so many atoms: ``count - sigma``, or, given U, from a table by whole numbers."""
    return by_count[int(count + 0.5)] if len(by_count) else count - sigma


@njit(nogil=True, cache=True)
def log_cumulant(count, sigma, logs):
    """Log factor of a cluster of so many atoms in the probability of a partition, nats, up to a constant."""
    return logs[int(count + 0.5)] if len(logs) else math.lgamma(count - sigma)


def rule_of(n: float, k: float, a: float, sigma: float, tau: float, rule: int = EXACT) -> tuple[float, float]:
    """``seat`` and ``new`` of :func:`seat_rule`."""
    seat, new, _ = seat_rule(float(n), float(k), float(a), float(sigma), float(tau), rule, np.log(n + 1.0))
    return seat, new


# =====================================================================================================================
# Seating one atom: responsibilities from predictive densities and an urn, shared by all filters.
# =====================================================================================================================

Packed = tuple[float, float, float, int, tuple[np.ndarray, np.ndarray, np.ndarray, float, float, float]]
"""``a, sigma, tau, rule, table`` of an urn."""


@njit(nogil=True, cache=True)
def weigh(urn, counts, absent, n_clusters, mass, expected, start, out):
    """Predictive probabilities of clusters.

    Parameters
    ----------
    urn
        ``a, sigma, tau, rule, table``; the table is empty for rules in closed form.
    counts, absent
        Expected atoms of each cluster, and log probability that it has none, ``(C,)``.
    n_clusters
        K.
    mass, expected
        Expected atoms and expected clusters.
    start
        Approximate mode of log U.
    out
        Filled for the first K.

    Returns
    -------
    new, mode
        Probability of a new cluster, and the mode of log U.
    """
    a, sigma, tau, rule, table = urn
    if len(table[0]):
        return table_rule(mass, counts, absent, n_clusters, sigma, table, start, out)
    seat, new, mode = seat_rule(mass, expected, a, sigma, tau, rule, start)
    for k in range(n_clusters):
        out[k] = max(seat * (counts[k] - sigma), 0.0)
    return new, mode


@njit(nogil=True, cache=True)
def seat_atom(log_pred, held, n_clusters, new, epsilon, resp):
    """Responsibilities of one atom (Tank et al. 2015, Alg. 1).

    Parameters
    ----------
    log_pred
        Log predictive density under each cluster, and at position K under the prior, nats.
    held
        Predictive probability of each cluster: expected counts below the discount take nothing away.
    n_clusters
        K.
    new
        Predictive probability of a new cluster; together they are normalized here.
    epsilon
        Probability above which a new cluster is opened.
    resp
        Filled for the first K, or K + 1 positions; below 2**-53 it is exactly zero.

    Returns
    -------
    log_density, opened
        Log predictive density of the atom, nats, and whether position K is a cluster from now on.
    """
    top = log_pred[n_clusters] if new > 0.0 else -math.inf
    for k in range(n_clusters):
        if held[k] > 0.0 and log_pred[k] > top:
            top = log_pred[k]
    total, mass = 0.0, new
    for k in range(n_clusters):
        resp[k] = held[k] * math.exp(log_pred[k] - top) if held[k] > 0.0 else 0.0
        total += resp[k]
        mass += held[k]
    fresh = new * math.exp(log_pred[n_clusters] - top)
    whole = total + fresh
    opened = fresh > epsilon * whole or total == 0.0
    if opened:
        resp[n_clusters] = fresh
        total = whole
    kept = 0.0
    for k in range(n_clusters + opened):
        resp[k] = resp[k] / total
        if resp[k] < TINY:
            resp[k] = 0.0
        kept += resp[k]
    for k in range(n_clusters + opened):
        resp[k] /= kept
    return top + math.log(whole / mass), opened


@njit(nogil=True, cache=True)
def standing(counts, absent, n_clusters):
    """Atoms, expected non-empty clusters, and an approximate mode of log U, before the first atom is seated."""
    mass, expected = 0.0, 0.0
    for k in range(n_clusters):
        mass += counts[k]
        expected += 1.0 - math.exp(min(absent[k], 0.0))
    return mass, expected, math.log(mass + 1.0)


@njit(nogil=True, cache=True)
def note_seated(absent, k, weight, r):
    """Record that an atom belongs to cluster ``k`` with probability ``r``; return the rise of the expected clusters."""
    before = math.exp(min(absent[k], 0.0))
    absent[k] += weight * log_not(r)
    return before - math.exp(min(absent[k], 0.0))


@njit(nogil=True, cache=True)
def log_not(r):
    """``log(1 - r)``, at least -50: see :data:`bnp_dask.kernels.predictive.urns.ABSENT`."""
    return max(math.log1p(-min(r, 1.0 - 1e-15)), -50.0)


VACANT = 1e-9
"""Atoms in a cluster below which only rounding errors are left of it."""


@njit(nogil=True, cache=True)
def note_left(counts, absent, k, weight, r):
    """Record that an atom that belonged to cluster ``k`` with probability ``r`` left it.

    Returns
    -------
    mass, fall, vacant
        Fall of the sum of the counts, fall of the expected clusters, and whether the cluster is now empty.
    """
    mass, before = counts[k], math.exp(min(absent[k], 0.0))
    counts[k] -= weight * r
    absent[k] = min(absent[k] - weight * log_not(r), 0.0)
    vacant = counts[k] < VACANT
    if vacant:
        counts[k], absent[k] = 0.0, 0.0
    return mass - counts[k], math.exp(absent[k]) - before, vacant


@njit(nogil=True, cache=True)
def give_up(counts, absent, n_clusters, least):
    """Close clusters with less than ``least``; return the falls of the sum of counts and of the expected clusters."""
    mass, fall = 0.0, 0.0
    for k in range(n_clusters):
        if 0.0 < counts[k] < least:
            mass += counts[k]
            fall += 1.0 - math.exp(min(absent[k], 0.0))
            counts[k], absent[k] = 0.0, 0.0
    return mass, fall


# =====================================================================================================================
# Urns: the probability that the next atom joins a cluster or opens a new one, given how many atoms clusters have.
# =====================================================================================================================

ABSENT = "absent"
"""Name of the summary field that holds the sum over atoms of log(1 - r_nk): the log probability that cluster k is empty
(Tank et al. 2015, eq. S18, whose products underflow)."""

LEAST_LOG = -50.0
"""Log probability with which an atom is taken not to belong to a cluster that is certain to hold it."""


NO_SEATS = np.empty(0)
"""In place of weights by count, for rules in closed form."""


@dataclass(frozen=True)
class Urn:
    """Predictive rule of a partition: of a generalized gamma process, ``n_k - sigma`` to ``a (U + tau)^sigma``.

    Parameters
    ----------
    a, sigma, tau
        As in :class:`~bnp_dask.allocation.nggp.NGGPMixture`; of a Dirichlet process ``sigma`` is 0.
    rule
        One of the rules of :mod:`bnp_dask.kernels.predictive.urns`.
    table
        Cumulants of any other random measure; ``a``, ``tau`` and ``rule`` have no meaning then.
    """

    a: float
    sigma: float = 0.0
    tau: float = 1.0
    rule: int = EXACT
    table: Table | None = None

    def packed(self) -> Packed:
        """The rule as compiled loops take it."""
        return self.a, self.sigma, self.tau, self.rule, NO_TABLE if self.table is None else self.table.arrays()

    def weights_after(self, counts: np.ndarray, absent: np.ndarray) -> tuple[np.ndarray, float]:
        """Probabilities of K clusters of ``counts (K,)`` atoms, expected numbers, and of a new one.

        ``absent (K,)`` are values of the field :data:`ABSENT`.
        """
        n, out = float(counts.sum()), np.empty(len(counts))
        new, _ = weigh(self.packed(), counts, absent, len(counts), n, expected_clusters(absent), math.log(n + 1.0), out)
        return out, new

    def rule_after(self, n: float, n_clusters: float) -> tuple[float, float]:
        """``seat`` and ``new`` after ``n`` atoms in ``n_clusters`` clusters: a cluster of n_k atoms has probability
        ``seat (n_k - sigma)``, a new one ``new``; for rules without a table."""
        return rule_of(n, n_clusters, self.a, self.sigma, self.tau, self.rule)

    def log_partition(self, counts: np.ndarray) -> float:
        """Log probability of a partition into blocks of ``counts (K,)`` atoms, all positive, nats."""
        n = np.asarray(counts, np.float64)
        if self.table is not None:
            logs = self.table.log_terms(n, np.ones(len(n)))
            return float(_log_sum(logs) + math.log(self.table.step) - gammaln(n.sum()))
        mass = self._log_mass(float(n.sum()), float(len(n)))
        return float(mass + np.sum(gammaln(n - self.sigma) - gammaln(1.0 - self.sigma)))

    def log_unions(self, n_a: np.ndarray, n_b: np.ndarray, counts: np.ndarray, absent: np.ndarray) -> np.ndarray:
        """Log probability of a partition with two clusters of ``n_a`` and ``n_b (M,)`` atoms as one, minus the log
        probability with two, nats; ``counts (K,)`` are the atoms of all clusters, ``absent`` as above."""
        n, s = float(counts.sum()), self.sigma
        if self.table is None:
            price = self._log_price(n, max(expected_clusters(absent) - 1.0, 1.0))
            return np.asarray(gammaln(n_a + n_b - s) - gammaln(n_a - s) - gammaln(n_b - s) + gammaln(1.0 - s) - price)
        there = 1.0 - exp(np.minimum(absent, 0.0))
        held = (there > 0.0) & (counts > 0.0)
        terms = self.table.log_terms(np.maximum(counts[held] / there[held], 1.0), there[held])
        rows = np.flatnonzero(terms > terms.max() - DROP)
        logs = terms[rows] - _log_sum(terms[rows])
        of = [self.table.log_cumulants(m, rows) for m in (n_a + n_b, n_a, n_b)]
        return np.array([_log_sum(logs + column) for column in (of[0] - of[1] - of[2]).T])

    def given(self, counts: np.ndarray, rng: np.random.Generator) -> Seats:
        """The rule for Gibbs sampling of atoms, ``counts (K,)`` in clusters.

        In closed form it integrates over U.  With a table U is drawn given the partition, one of the nodes of its
        quadrature, and clusters have weights of their own given U: moves of atoms given these weights leave the
        posterior of partitions invariant, since it is the sum over the nodes.
        """
        if self.table is None:
            rule = LINEAR if self.rule == LINEAR else EXACT
            return Seats(self.a, self.sigma, self.tau, rule)
        return self.given_node(self.draw_node(counts, rng), round(float(np.sum(counts))))

    def draw_node(self, counts: np.ndarray, rng: np.random.Generator) -> int:
        """A node of the table, drawn given a partition into blocks of ``counts (K,)`` atoms."""
        assert self.table is not None
        held = np.asarray(counts[counts > 0], np.float64)
        logs = self.table.log_terms(held, np.ones(len(held)))
        part = np.cumsum(exp(logs - logs.max()))
        return int(np.searchsorted(part, rng.random() * part[-1], side="right"))

    def given_node(self, node: int, n: int) -> Seats:
        """Weights of clusters of up to ``n`` atoms given U at a node of the table."""
        assert self.table is not None
        logs = self.table.log_cumulants(np.arange(1.0, n + 3.0), np.array([node]))[0]
        seats = np.concatenate([[0.0], exp(np.diff(logs))])
        return Seats(float(exp(logs[0])), self.sigma, 0.0, GIVEN, seats, np.concatenate([[0.0], logs - logs[0]]))

    def _log_mass(self, n: float, k: float) -> float:
        """log V(n, K): a partition has probability ``V(n, K) prod Gamma(n_k - sigma) / Gamma(1 - sigma)``."""
        if self.rule == LINEAR and self.sigma > 0.0:
            share = self.a / self.sigma
            sticks = k * math.log(self.sigma) + gammaln(share + k) - gammaln(share)
            return float(sticks + gammaln(self.a) - gammaln(self.a + n))
        return float(log_mass(n, k, self.a, self.sigma, self.tau))

    def _log_price(self, n: float, n_clusters: float) -> float:
        """Log of the factor of one more cluster in the probability of a partition, ``a E[(U + tau)^sigma]``, nats."""
        if self.sigma == 0.0 or n <= 0.0:
            return float(log(self.a))
        return self._log_mass(n, n_clusters + 1.0) - self._log_mass(n, n_clusters)


@dataclass(frozen=True, eq=False)
class Seats:
    """Weights of clusters by whole numbers of atoms, and of a new one: :meth:`Urn.given`.

    Parameters
    ----------
    a, sigma, tau, rule
        As in :class:`Urn`, or, given U, the weight of a new cluster, the discount, 0 and ``GIVEN``.
    seats, logs
        Given U: kappa_{n + 1} / kappa_n, and log kappa_n / kappa_1 nats, at 0, 1, ... atoms.
    """

    a: float
    sigma: float
    tau: float
    rule: int
    seats: np.ndarray = field(default_factory=lambda: NO_SEATS)
    logs: np.ndarray = field(default_factory=lambda: NO_SEATS)

    def packed(self) -> tuple[float, float, float, int, np.ndarray, np.ndarray]:
        """The weights as compiled loops take them."""
        return self.a, self.sigma, self.tau, self.rule, self.seats, self.logs

    def weight(self, counts: np.ndarray) -> np.ndarray:
        """Weights of clusters of ``counts (K,)`` atoms, up to a factor."""
        return self.seats[counts.round().astype(np.int64)] if len(self.seats) else counts - self.sigma

    def weight_at(self, count: float) -> float:
        """Weight of one cluster, as :meth:`weight`."""
        return float(self.seats[round(count)]) if len(self.seats) else count - self.sigma

    def price(self, n: float, n_clusters: float) -> float:
        """Weight of a new cluster after ``n`` atoms in ``n_clusters``, up to the same factor."""
        seat, new = rule_of(n, n_clusters, self.a, self.sigma, self.tau, self.rule)
        return new / seat


def _log_sum(logs: np.ndarray) -> float:
    """log of the sum of ``exp(logs)``, nats."""
    top = float(logs.max())
    return top + float(log(exp(logs - top).sum()))


def log_absent(resp: Resp, weights: np.ndarray | None) -> np.ndarray:
    """Values of the field :data:`ABSENT`, ``(K,)`` nats; ``resp (n, K)`` includes the atoms' ``weights (n,)``."""
    if isinstance(resp, RaggedResp):  # an atom adds nothing to clusters that it is not in
        times = None if weights is None else np.repeat(weights, np.diff(resp.offsets))
        share = resp.value
        if times is not None:
            share = np.divide(share, times, out=np.zeros_like(share), where=times > 0)
        logs = np.maximum(log1p(-np.minimum(share, 1.0 - 1e-15)), LEAST_LOG)
        return np.bincount(resp.index, logs if times is None else times * logs, resp.n_clusters)
    dense = resp if isinstance(resp, np.ndarray) else resp.to_dense()
    if weights is None:
        return np.maximum(log1p(-np.minimum(dense, 1.0 - 1e-15)), LEAST_LOG).sum(axis=0)
    share = np.divide(dense, weights[:, None], out=np.zeros_like(dense), where=weights[:, None] > 0)
    logs = np.maximum(log1p(-np.minimum(share, 1.0 - 1e-15)), LEAST_LOG)
    return weights @ logs


def expected_clusters(absent: np.ndarray) -> float:
    """Expected number of clusters that hold an atom, from values of the field :data:`ABSENT`, ``(K,)`` nats."""
    return float(np.sum(1.0 - exp(np.minimum(absent, 0.0))))


# =====================================================================================================================
# Prior weights of clusters inside a minibatch: sticks of known clusters, an urn of the clusters it opened itself.
#
# Known clusters have sticks Beta(1 + N_k, gamma + N_>k) by falling size (Wang & Blei 2012, section 2.3), to whose
# counts the atoms of the minibatch are added.  The remaining weight is a Dirichlet process of concentration gamma over
# new clusters, whose weights are integrated out too.
# =====================================================================================================================


@njit(nogil=True, cache=True)
def prior_weights(order, counts, own, n_clusters, gamma, out):
    """Expected weights of clusters given the atoms of a minibatch, without the atoms that are being moved.

    Parameters
    ----------
    order
        Known clusters by falling size, ``(K,)``.
    counts
        Atoms of known clusters, ``(K,)``.
    own
        Atoms of the minibatch in each cluster, ``(C,)``: known clusters, then new ones.
    n_clusters
        Positions in use, K + J.
    gamma
        Concentration.
    out
        Filled for positions 0 to K + J - 1, and at K + J with the weight of a new cluster, ``(C,)``.
    """
    known = len(order)
    newborn, later = 0.0, 0.0
    for k in range(known, n_clusters):
        newborn += own[k]
    later = newborn
    for k in range(known):
        later += counts[k] + own[k]
    rest = 1.0
    for j in range(known):
        k = order[j]
        held = counts[k] + own[k]
        later = max(later - held, newborn)
        whole = 1.0 + held + gamma + later
        out[k] = rest * (1.0 + held) / whole
        rest *= (gamma + later) / whole
    rest /= gamma + newborn
    for k in range(known, n_clusters):
        out[k] = rest * own[k]
    out[n_clusters] = rest * gamma


@njit(nogil=True, cache=True)
def choose_cluster(log_pred, weight, n_clusters, uniform, part):
    """Position drawn in proportion to ``weight * exp(log_pred)``, ``(C,)`` both, up to K + J; log of their sum.

    ``part (C,)`` is overwritten.
    """
    top = -math.inf
    for k in range(n_clusters + 1):
        if weight[k] > 0.0 and log_pred[k] > top:
            top = log_pred[k]
    total, last = 0.0, n_clusters
    for k in range(n_clusters + 1):
        if weight[k] > 0.0:
            total += weight[k] * math.exp(log_pred[k] - top)
            last = k
        part[k] = total
    at = uniform * total
    for k in range(last):
        if part[k] > at:
            return k, top + math.log(total)
    return last, top + math.log(total)


@njit(nogil=True, cache=True)
def free_position(members, kept, known, n_clusters):
    """Position of a new cluster: one that was given up and is in no sample, or the next."""
    for k in range(known, n_clusters):
        if members[k] == 0 and not kept[k]:
            return k
    return n_clusters


@njit(nogil=True, cache=True)
def longer(array, more):
    """A vector with ``more`` zeros appended."""
    out = np.zeros(len(array) + more, array.dtype)
    copy_into(out, array)
    return out


@njit(nogil=True, cache=True)
def wider(array, more):
    """A matrix with ``more`` columns of zeros appended."""
    out = np.zeros((array.shape[0], array.shape[1] + more))
    out[:, : array.shape[1]] = array
    return out
