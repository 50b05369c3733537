"""Distributions of directions: von Mises-Fisher with a conjugate prior, whose integrals over the concentration are one-
dimensional.

With ``C(kappa)`` the constant of the density ``C(kappa) exp(kappa mu' x)`` of unit vectors x in D dimensions, beliefs

    q(kappa, mu) = C(kappa)^a exp(kappa s mu' m) / Z(a, s),     Z(a, s) = int C(kappa)^a / C(kappa s) dkappa,

are conjugate: ``mu`` given ``kappa`` is von Mises-Fisher about m with concentration ``kappa s``.  They are proper for
``0 <= s < a``.  Expectations are derivatives of log Z: E[log C(kappa)] by a, and E[kappa mu] = m E[kappa A(kappa s)] by
s, with A the ratio of Bessel functions of orders D/2 and D/2 - 1.

The integrals are sums over a grid of v with ``kappa = c sinh v``.  The integrand is even and analytic; with c where C
has its first singularity, that lies pi / 2 away from the axis, so that such sums are exact to rounding.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial import Polynomial

from bnp_dask.kernels.options import njit

# -- Bessel functions ---------------------------------------------------------------------------------------------
# Logarithms of modified Bessel functions of the first kind, of any order >= 0 and any argument >= 0.
LARGE_ORDER = 20.0
"""Orders from which the uniform expansion is used: with :data:`TERMS` terms its relative error is below 1e-15."""

TERMS = 10
"""Terms of the uniform expansion."""

SERIES_TERMS = 20
"""Terms of the power series, where the square of half the argument is at most the order plus one: the last is 1e-18."""


def _debye(terms: int) -> np.ndarray:
    """Coefficients of u_1 ... of Abramowitz and Stegun 9.3.10, ``(terms, terms + 1)``, lowest power first.

    u_k has the powers k, k + 2, ..., 3 k.
    """
    u, rows = Polynomial([1.0]), np.zeros((terms, terms + 1))
    for k in range(terms):
        u = 0.5 * Polynomial([0, 0, 1, 0, -1]) * u.deriv() + 0.125 * (Polynomial([1, 0, -5]) * u).integ()
        rows[k, : k + 2] = u.coef[k + 1 :: 2]
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
    square, factor = p * p, p / order
    for k in range(TERMS - 1, -1, -1):
        u = 0.0
        for place in range(k + 1, -1, -1):
            u = u * square + DEBYE[k, place]
        total = (total + u) * factor
    return order * exponent - 0.5 * math.log(2.0 * math.pi * order * root) + math.log1p(total)


# -- beliefs about directions -------------------------------------------------------------------------------------
NODES = 80
"""Nodes of the grid: a fourth of a standard deviation apart where the integrand is nearly normal."""

DROP = 40.0
"""Nats below its mode at which the integrand is cut off: a share of 1e-17."""

HALVINGS = 60
"""Halvings of intervals of log kappa, at most: from 200 to 1e-16."""

WIDEST = 100.0
"""Largest ``|log kappa|``."""

TIGHTENED = 4
"""Halvings by which the ends of the grid are found, to a tenth of its width."""

CHEBYSHEV = 64
"""Nodes by which log predictive densities are interpolated; the error is below 1e-11."""


@njit(cache=True)
def log_constant(kappa: float, d: int) -> float:
    """``log C(kappa) + kappa`` in d dimensions, nats: without its leading part, which cancels where it matters."""
    return -0.5 * d * math.log(2.0 * math.pi) - log_reduced_bessel(0.5 * d - 1.0, kappa)


@njit(cache=True)
def mean_length(kappa: float, d: int) -> float:
    """A(kappa): length of the mean of unit vectors in d dimensions of concentration ``kappa``."""
    return bessel_ratio(0.5 * d - 1.0, kappa)


@njit(cache=True)
def concentrations_of(lengths: np.ndarray, d: int) -> np.ndarray:
    """Concentrations ``(K,)`` at which means of unit vectors have these lengths, in [0, 1)."""
    out = np.empty(len(lengths))
    for k in range(len(lengths)):
        low, high = -WIDEST, WIDEST
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            if mean_length(math.exp(middle), d) > lengths[k]:
                high = middle
            else:
                low = middle
        out[k] = math.exp(0.5 * (low + high))
    return out


@njit(cache=True)
def _scale(d: int) -> float:
    """About the first zero of J of order d / 2 - 1, where C has its first singularity."""
    order = 0.5 * d - 1.0
    return 2.4 + order + 1.86 * order ** (1.0 / 3.0) if order > 0.0 else 2.4


@njit(cache=True)
def _log_density(v: float, a: float, s: float, d: int) -> float:
    kappa = _scale(d) * math.sinh(v)
    ratio = a * log_constant(kappa, d) - log_constant(kappa * s, d)
    return ratio - kappa * (a - s) + math.log(math.cosh(v))


@njit(cache=True)
def _force(t: float, a: float, s: float, d: int) -> float:
    """Minus the slope of the log integrand by t = log kappa; it is one at the mode of the integrand times kappa."""
    kappa = math.exp(t)
    return kappa * (a * mean_length(kappa, d) - s * mean_length(kappa * s, d))


@njit(cache=True)
def _mode(a: float, s: float, d: int) -> float:
    """t at which the force is one, to a tenth: by bisection and by secants of its log, which is nearly straight."""
    low, high = -WIDEST, WIDEST
    log_low, log_high, middle = -WIDEST, WIDEST, 0.0
    for i in range(2 * HALVINGS):
        middle = 0.5 * (low + high)
        if i % 2:
            middle = low - log_low * (high - low) / (log_high - log_low)
        force = _force(middle, a, s, d)
        if abs(force - 1.0) < 0.1 or not low < middle < high:
            break
        if force > 1.0:
            high, log_high = middle, math.log(force)
        else:
            low, log_low = middle, math.log(max(force, 1e-50))
    return middle


@njit(cache=True)
def _range(a: float, s: float, d: int) -> tuple[float, float]:
    """Values of v between which the integrand is not negligible."""
    t = _mode(a, s, d)
    bend = (_force(t + 1e-3, a, s, d) - _force(t, a, s, d)) * 1e3
    width = math.sqrt(2.0 * DROP / max(bend, 1e-2))
    scale = _scale(d)
    least = _log_density(math.asinh(math.exp(t) / scale), a, s, d) - DROP
    ends = np.zeros(2)
    for side in range(2):
        if side == 0 and _log_density(0.0, a, s, d) >= least:
            continue
        sign, inside, step = 2.0 * side - 1.0, 0.0, width
        while _log_density(math.asinh(math.exp(t + sign * step) / scale), a, s, d) >= least and step < WIDEST:
            inside, step = step, 1.5 * step
        for _ in range(TIGHTENED):
            middle = 0.5 * (inside + step)
            if _log_density(math.asinh(math.exp(t + sign * middle) / scale), a, s, d) >= least:
                inside = middle
            else:
                step = middle
        ends[side] = math.asinh(math.exp(t + sign * step) / scale)
    return ends[0], ends[1]


@njit(cache=True)
def grid(a: float, s: float, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes kappa and the log mass of each, unnormalised, ``(NODES,)``."""
    kappa, log_mass, _, _ = _grid(a, s, d)
    return kappa, log_mass


@njit(cache=True)
def _grid(a: float, s: float, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """As :func:`grid`; and ``log C(kappa) + kappa``, and the reduced Bessel function of ``kappa s``, of which most of
    the time goes."""
    low, high = _range(a, s, d)
    step = (high - low) / (NODES - 1)
    kappa, log_mass, constant, pulled = np.empty(NODES), np.empty(NODES), np.empty(NODES), np.empty(NODES)
    for i in range(NODES):
        v = low + i * step
        kappa[i] = _scale(d) * math.sinh(v)
        constant[i] = log_constant(kappa[i], d)
        pulled[i] = log_reduced_bessel(0.5 * d - 1.0, kappa[i] * s)
        ratio = a * constant[i] - (-0.5 * d * math.log(2.0 * math.pi) - pulled[i])
        density = ratio - kappa[i] * (a - s) + math.log(math.cosh(v))
        log_mass[i] = density + math.log(step * _scale(d))
    if low == 0.0:  # half of an even function
        log_mass[0] -= math.log(2.0)
    return kappa, log_mass, constant, pulled


@njit(cache=True)
def _log_total(log_mass: np.ndarray) -> float:
    top, total = log_mass.max(), 0.0
    for value in log_mass:
        total += math.exp(value - top)
    return top + math.log(total)


@njit(cache=True)
def log_normalizers(a: np.ndarray, s: np.ndarray, d: int) -> np.ndarray:
    """log Z(a, s), ``(K,)`` nats."""
    out = np.empty(len(a))
    for k in range(len(a)):
        out[k] = _log_total(grid(a[k], s[k], d)[1])
    return out


@njit(cache=True)
def expectations(a: np.ndarray, s: np.ndarray, d: int) -> np.ndarray:
    """Rows log Z(a, s), E[log C(kappa)], E[kappa A(kappa s)] and E[kappa], ``(4, K)``; logs in nats."""
    out, order = np.zeros((4, len(a))), 0.5 * d - 1.0
    for k in range(len(a)):
        kappa, log_mass, constant, pulled = _grid(a[k], s[k], d)
        out[0, k] = _log_total(log_mass)
        for i in range(NODES):
            share, x = math.exp(log_mass[i] - out[0, k]), kappa[i] * s[k]
            length = x * math.exp(log_reduced_bessel(order + 1.0, x) - pulled[i])
            out[1, k] += share * (constant[i] - kappa[i])
            out[2, k] += share * kappa[i] * length
            out[3, k] += share * kappa[i]
        if kappa[0] == 0.0:  # kappa itself is odd: the end of the range counts (Euler-Maclaurin)
            out[3, k] += kappa[1] / 6.0 * math.exp(log_mass[0] - out[0, k])
    return out


def log_constants(kappa: np.ndarray, d: int) -> np.ndarray:
    """``log C(kappa)`` of concentrations ``(K,)``, nats."""
    return np.array([log_constant(value, d) - value for value in kappa.tolist()], np.float64)


def log_predictive(a: np.ndarray, s: np.ndarray, log_z: np.ndarray, cosine: np.ndarray, d: int) -> np.ndarray:
    """Log density of unit vectors with these cosines from the clusters' directions, ``(n, K)`` nats.

    It is ``log Z(a + 1, |s m + x|) - log Z(a, s)``, a smooth function of the cosine: of more vectors than nodes it is
    interpolated by polynomials in ``log(a + 1 - |s m + x|)``, in which its singularity at a + 1 is far away.
    """
    out = np.empty_like(cosine)
    angles = (np.arange(CHEBYSHEV) + 0.5) * (np.pi / CHEBYSHEV)
    for k in range(len(a)):
        length = np.sqrt(np.maximum(s[k] ** 2 + 1.0 + 2.0 * s[k] * cosine[:, k], 0.0))
        if len(length) <= CHEBYSHEV:
            length = np.minimum(length, s[k] + 1.0)
            out[:, k] = log_normalizers(np.full(len(length), a[k] + 1.0), length, d) - log_z[k]
            continue
        ends = math.log(a[k] - s[k]), math.log(a[k] + 1.0 - abs(s[k] - 1.0))
        half, middle = max(0.5 * (ends[1] - ends[0]), 1e-9), 0.5 * (ends[1] + ends[0])
        nodes = np.maximum(a[k] + 1.0 - np.exp(middle + half * np.cos(angles)), 0.0)
        values = log_normalizers(np.full(CHEBYSHEV, a[k] + 1.0), nodes, d)
        terms = 2.0 / CHEBYSHEV * (np.cos(np.outer(np.arange(CHEBYSHEV), angles)) @ values)
        terms[0] *= 0.5
        place = (np.log(np.maximum(a[k] + 1.0 - length, math.exp(ends[0]))) - middle) / half
        out[:, k] = np.polynomial.chebyshev.chebval(np.clip(place, -1.0, 1.0), terms) - log_z[k]
    return out


# -- drawing --------------------------------------------------------------------------------------------------
def draw_concentrations(
    a: np.ndarray, s: np.ndarray, d: int, place: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """A kappa from the beliefs of each of the clusters at the positions ``place (n,)``, ``(n,)``."""
    uniform, out = rng.random(len(place)), np.empty(len(place))
    for k in np.unique(place):
        kappa, log_mass = grid(a[k], s[k], d)
        mass = np.exp(log_mass - log_mass.max())
        below = np.concatenate([[0.0], np.cumsum(0.5 * (mass[1:] + mass[:-1]))])
        mine = place == k
        out[mine] = np.interp(uniform[mine] * below[-1], below, kappa)
    return out


def draw_directions(mean: np.ndarray, kappa: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A unit vector about each of the directions ``mean (n, D)`` with its concentration ``kappa (n,)``, ``(n, D)``.

    References
    ----------
    Wood 1994, "Simulation of the von Mises Fisher distribution".
    """
    n, d = mean.shape
    b = (d - 1.0) / (2.0 * kappa + np.sqrt(4.0 * kappa**2 + (d - 1.0) ** 2))
    x0 = (1.0 - b) / (1.0 + b)
    level = kappa * x0 + (d - 1.0) * np.log1p(-(x0**2))
    cosine, left = np.empty(n), np.arange(n)
    while len(left):
        z = rng.beta(0.5 * (d - 1.0), 0.5 * (d - 1.0), len(left))
        here = b[left]
        w = (1.0 - (1.0 + here) * z) / (1.0 - (1.0 - here) * z)
        worth = kappa[left] * w + (d - 1.0) * np.log1p(-x0[left] * w) - level[left]
        taken = worth >= np.log(rng.random(len(left)))
        cosine[left[taken]] = w[taken]
        left = left[~taken]
    around = rng.standard_normal((n, d))
    around -= (around * mean).sum(axis=1, keepdims=True) * mean
    around /= np.linalg.norm(around, axis=1, keepdims=True)
    return cosine[:, None] * mean + np.sqrt(np.maximum(1.0 - cosine**2, 0.0))[:, None] * around
