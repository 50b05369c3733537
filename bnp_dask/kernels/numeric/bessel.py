"""Logarithms of modified Bessel functions of the first kind, of any order >= 0 and any argument >= 0."""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial import Polynomial

from bnp_dask.kernels.options import njit

LARGE_ORDER = 20.0
"""Orders from which the uniform expansion is used: with :data:`TERMS` terms its relative error is below 1e-15."""

TERMS = 10
"""Terms of the uniform expansion."""

SERIES_TERMS = 20
"""Terms of the power series, where the square of half the argument is at most the order plus one: the last is 1e-18."""


def _debye(terms: int) -> np.ndarray:
    """Coefficients of u_1 ... of Abramowitz and Stegun 9.3.10, ``(terms, 3 * terms + 1)``, lowest power first."""
    u, rows = Polynomial([1.0]), np.zeros((terms, 3 * terms + 1))
    for k in range(terms):
        u = 0.5 * Polynomial([0, 0, 1, 0, -1]) * u.deriv() + 0.125 * (Polynomial([1, 0, -5]) * u).integ()
        rows[k, : len(u.coef)] = u.coef
    return rows


DEBYE = _debye(TERMS)


@njit(cache=True)
def log_reduced_bessel(order: float, x: float) -> float:
    """``log(I_order(x) x^-order exp(-x))``, regular at 0.

    Power series for small arguments; else the uniform expansion for large orders (Abramowitz and Stegun 9.7.7), from
    which small orders follow by recurrence downwards, which is stable.
    """
    if x * x <= 4.0 * (order + 1.0):
        return _series(order, x)
    above = max(0, math.ceil(LARGE_ORDER - order))
    value = _uniform(order + above, x)
    ratio = math.exp(_uniform(order + above + 1.0, x) - value)
    for _ in range(above):
        # I_{m-1} = 2 m / x I_m + I_{m+1}
        above_order = order + above
        step = 2.0 * above_order / x + ratio
        value += math.log(step)
        ratio = 1.0 / step
        above -= 1
    return value - order * math.log(x)


@njit(cache=True)
def bessel_ratio(order: float, x: float) -> float:
    """``I_{order + 1}(x) / I_order(x)``, in [0, 1): A_D of directions in D = 2 order + 2 dimensions."""
    return x * math.exp(log_reduced_bessel(order + 1.0, x) - log_reduced_bessel(order, x))


@njit(cache=True)
def _series(order: float, x: float) -> float:
    quarter, total, term = 0.25 * x * x, 1.0, 1.0
    for k in range(1, SERIES_TERMS + 1):
        term *= quarter / (k * (order + k))
        total += term
    return math.log(total) - order * math.log(2.0) - math.lgamma(order + 1.0) - x


@njit(cache=True)
def _uniform(order: float, x: float) -> float:
    """``log(I_order(x) exp(-x))``."""
    z = x / order
    root = math.sqrt(1.0 + z * z)
    # sqrt(1 + z^2) - z without loss of digits
    exponent = 1.0 / (root + z) + math.log(z / (1.0 + root))
    p, total = 1.0 / root, 0.0
    for k in range(TERMS - 1, -1, -1):
        u = 0.0
        for power in range(3 * (k + 1), -1, -1):
            u = u * p + DEBYE[k, power]
        total = (total + u) / order
    return order * exponent - 0.5 * math.log(2.0 * math.pi * order * root) + math.log1p(total)
