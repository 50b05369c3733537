"""Predictive rule of a normalized generalized gamma process, by one quadrature over the auxiliary variable U.

The density of v = log U given n atoms in K clusters is proportional to ``exp f(v)`` with

    f = -n log(1 + tau / U) + sigma K log(U + tau) - a / sigma ((U + tau)^sigma - tau^sigma)

(Tank, Foti & Fox 2015, eq. 6, whose exponent of U + tau has to be n - sigma K: see the product of eq. S20).  It has one
mode and is analytic, so that the trapezoidal rule on an even grid converges faster than any power of its step.
"""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.options import INNER, njit

EXACT, MEAN, MODE, LINEAR, GIVEN = 0, 1, 2, 3, 4
"""Rules: predictive probabilities themselves; normalized for each U and averaged; normalized at the mode of U; that of
a Pitman-Yor process of concentration a and discount sigma, which needs no U; and given U, a new cluster weighing a."""

DROP = 42.0
"""Nats below its mode at which the density of log U is cut off."""

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
