"""Jumps of a normalized generalized gamma process given a partition: the weights of clusters before normalization.

Given the auxiliary variable U and a partition of n atoms, the jump of a cluster of n_k atoms is
``Gamma(n_k - sigma, U + tau)``, and those that no atom has are the points of a Poisson process with intensity
``a / Gamma(1 - sigma) s^(-1 - sigma) exp(-(U + tau) s)`` (James, Lijoi & Pruenster 2009; Favaro & Teh 2013).  Jumps are
in units of ``1 / (U + tau)`` here, so that one atom weighs about one; all of them are scaled alike, which changes no
weight.  Of a Dirichlet process (sigma = 0) U then drops out.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from bnp_dask.kernels.streaming.nggp import _grid, log_density, mode_of_log

TRIES = 10_000
"""Points that are proposed for U before the density is taken to be broken; about two in three are accepted."""


@njit(nogil=True, cache=True)
def _log_densities(points, n, k, a, sigma, tau):
    out = np.empty(len(points))
    for i in range(len(points)):
        out[i] = log_density(math.exp(points[i]), n, k, a, sigma, tau)[0]
    return out


def draw_auxiliary(n: float, k: float, a: float, sigma: float, tau: float, rng: np.random.Generator) -> float:
    """A draw of U given n atoms in k clusters, sigma above zero.

    The density of log U is log-concave, so that between two points of a grid it is at most the larger of its values
    there, or that at its mode: rejection from such steps is exact but for tails of e-42.
    """
    mode = mode_of_log(n, k, a, sigma, tau, math.log(n + 1.0), 1e-9)
    first, count, h, _ = _grid(mode, n, k, a, sigma, tau)
    points = first + h * np.arange(count + 1)
    values = _log_densities(points, n, k, a, sigma, tau)
    top = _log_densities(np.array([mode]), n, k, a, sigma, tau)[0]
    above = np.maximum(values[:-1], values[1:])
    above[(points[:-1] <= mode + 1e-6) & (points[1:] >= mode - 1e-6)] = top + 1e-9
    edges = np.cumsum(np.exp(above - top))
    for _ in range(TRIES):
        step = min(int(np.searchsorted(edges, rng.random() * edges[-1], side="right")), len(above) - 1)
        v = np.array([points[step] + h * rng.random()])
        if math.log(1.0 - rng.random()) <= _log_densities(v, n, k, a, sigma, tau)[0] - above[step]:
            return float(np.exp(v[0]))
    raise ArithmeticError("no point of the density of U was accepted")


def unused_jumps(mass: float, sigma: float, least: float, rng: np.random.Generator) -> np.ndarray:
    """Jumps above ``least`` (below one) that no atom has: a Poisson process of ``mass s^(-1 - sigma) exp(-s)``.

    Below one they are those of a power law, above one those of an exponential, each thinned to the product.
    """
    log_least = math.log(least)
    total = -log_least if sigma == 0.0 else math.expm1(-sigma * log_least) / sigma
    u = rng.random(rng.poisson(mass * total))
    small = least**u if sigma == 0.0 else (1.0 + u * sigma * total) ** (-1.0 / sigma)
    large = 1.0 + rng.standard_exponential(rng.poisson(mass * math.exp(-1.0)))
    kept = rng.random(len(small)) < np.exp(-small), rng.random(len(large)) < large ** (-1.0 - sigma)
    return np.concatenate([small[kept[0]], large[kept[1]]])


def unused_small_jumps(
    mass: float, sigma: float, most: float, ends: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Jumps below ``most`` that no atom has, and their marks, as far as windows show them.

    Marks are uniform on a circle of length one.  The window that ends at ``w`` shows a jump s where the mark is at most
    ``s / most`` before w.  A jump that several of the windows ``ends (m,)`` show is that of the first.
    """
    shown = mass * most ** (-sigma) / (1.0 - sigma)  # integral of mass s^(-1 - sigma) s / most
    sizes, marks = [], []
    for i, end in enumerate(ends):
        size = most * rng.random(rng.poisson(shown)) ** (1.0 / (1.0 - sigma))
        mark = (end - size / most * rng.random(len(size))) % 1.0
        kept = rng.random(len(size)) < np.exp(-size)
        kept &= ~is_shown(size[:, None], mark[:, None], ends[:i], most).any(axis=1)
        sizes.append(size[kept])
        marks.append(mark[kept])
    return np.concatenate([np.zeros(0), *sizes]), np.concatenate([np.zeros(0), *marks])


def is_shown(size: np.ndarray, mark: np.ndarray, end: np.ndarray, most: float) -> np.ndarray:
    """Whether windows show jumps, of any shapes that go together; those of ``most`` and more are in every window."""
    return (end - mark) % 1.0 * most < size
