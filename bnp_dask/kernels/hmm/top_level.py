"""Optimum of the HDP-HMM's top level, compiled: it scores many merges in every lap.

A quasi-Newton method with limited memory (L-BFGS) on ``log a, log b (2K,)``; see ``allocation/hdp_hmm.py`` for
the objective, and ``tests/chains/top_level.py`` for its twin in NumPy.
"""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.numeric.quasi_newton import MEMORY, direction, dot
from bnp_dask.kernels.numeric.special import _psi_gamma
from bnp_dask.kernels.options import copy_into, njit

LARGEST_LOG = 40.0
"""Bound of the logs of a and b."""

ENOUGH = 1e-9
"""Largest slope, per stick, at which the climb ends."""

LEVEL = 200
"""Successive steps without a rise in double precision, after which the history of slopes is cleared; after as many
again the climb ends.  Chosen on the climbs of one chain with 50 states: of 14, 13 took 53 to 116 steps in all, and one
3,000 on the spot."""


@njit(nogil=True, cache=True, error_model="numpy")
def trigamma(x):
    """Derivative of digamma at a positive number: shifted by 12, where the series has all digits."""
    total = 0.0
    for j in range(12):
        total += 1.0 / ((x + j) * (x + j))
    z = x + 12.0
    v = 1.0 / (z * z)
    p = -691.0 / 2730.0 + v * (7.0 / 6.0)
    p = 5.0 / 66.0 + v * p
    p = -1.0 / 30.0 + v * p
    p = 1.0 / 42.0 + v * p
    p = -1.0 / 30.0 + v * p
    p = 1.0 / 6.0 + v * p
    return total + 1.0 / z + 0.5 * v + p * v / z


@njit(nogil=True, cache=True, error_model="numpy")
def value_and_slope(point, counts, alphas, ones, zeros, tilt, slope):
    """Objective at ``log a, log b`` and its gradient into ``slope (2K,)``.

    ``counts (K + 1, K + 1)`` are transitions from the start and from each state, with the sticky pseudo-counts, the
    last place for unused states; ``alphas (K + 1,)`` the concentration of each row.
    """
    k = len(ones)
    shares, rest = np.empty(k + 1), np.empty(k)
    left = 1.0
    for i in range(k):
        a, b = math.exp(point[i]), math.exp(point[k + i])
        shares[i] = left * a / (a + b)
        rest[i] = b / (a + b)
        left *= rest[i]
    shares[k] = left
    theta = np.empty((k + 1) * (k + 1) + 3 * k)
    for j in range(k + 1):
        for i in range(k + 1):
            theta[j * (k + 1) + i] = max(counts[j, i] + alphas[j] * shares[i], 1e-300)
    sticks = (k + 1) * (k + 1)
    for i in range(k):
        a, b = math.exp(point[i]), math.exp(point[k + i])
        theta[sticks + i], theta[sticks + k + i], theta[sticks + 2 * k + i] = a, b, a + b
    psi, gamma = np.empty(len(theta)), np.empty(len(theta))
    _psi_gamma(theta, psi, gamma)
    value = 0.0
    terms = np.zeros(k + 1)
    for j in range(k + 1):
        for i in range(k + 1):
            value += gamma[j * (k + 1) + i]
            terms[i] += alphas[j] * psi[j * (k + 1) + i]
    for i in range(k + 1):
        if i < k:
            terms[i] += tilt
            value += tilt * shares[i]
        terms[i] *= shares[i]
    after = 0.0
    for i in range(k - 1, -1, -1):
        after += terms[i + 1]
        a, b = theta[sticks + i], theta[sticks + k + i]
        pa, pb, pw = psi[sticks + i], psi[sticks + k + i], psi[sticks + 2 * k + i]
        value += gamma[sticks + i] + gamma[sticks + k + i] - gamma[sticks + 2 * k + i]
        value += (ones[i] - a) * (pa - pw) + (zeros[i] - b) * (pb - pw)
        shared = (ones[i] + zeros[i] - a - b) * trigamma(a + b)
        logit = terms[i] * rest[i] - after * (1.0 - rest[i])
        slope[i] = a * ((ones[i] - a) * trigamma(a) - shared) + logit
        slope[k + i] = b * ((zeros[i] - b) * trigamma(b) - shared) - logit
    return value


@njit(nogil=True, cache=True, error_model="numpy")
def climb(point, counts, alphas, ones, zeros, tilt, most):
    """Maximise from ``point``, which is overwritten; at most ``most`` steps.  The number of steps taken."""
    size = len(point)
    slope, new_slope, way, new = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
    # turns are minus the change of slope, so that their products with uphill steps are positive
    steps, turns = np.empty((MEMORY, size)), np.empty((MEMORY, size))
    used = level = 0
    value = value_and_slope(point, counts, alphas, ones, zeros, tilt, slope)
    enough = ENOUGH * (len(ones) + 1.0)
    for taken in range(most):
        if np.abs(slope).max() < enough:
            return taken
        direction(slope, steps, turns, used, way)
        rise = dot(way, slope)
        if not rise > 0.0:
            used = 0
            length = math.sqrt(dot(slope, slope)) + 1.0
            for i in range(size):
                way[i] = slope[i] / length
            rise = dot(way, slope)
        length = min(1.0, 5.0 / (np.abs(way).max() + 1e-300))
        better = False
        for _ in range(40):
            for i in range(size):
                new[i] = min(max(point[i] + length * way[i], -LARGEST_LOG), LARGEST_LOG)
            found = value_and_slope(new, counts, alphas, ones, zeros, tilt, new_slope)
            if found >= value + 1e-4 * length * rise or (
                found >= value - 1e-13 * abs(value) and np.abs(new_slope).max() < np.abs(slope).max()
            ):
                better = True
                break
            # the top of the parabola through both values, within bounds
            top = 0.5 * length * length * rise / (value + length * rise - found)
            length = min(max(top, 0.1 * length), 0.5 * length) if top == top else 0.1 * length
        if not better:
            if used == 0:
                return taken
            used = 0  # once more without the history
            continue
        curve = 0.0
        for i in range(size):
            steps[used % MEMORY, i] = new[i] - point[i]
            turns[used % MEMORY, i] = slope[i] - new_slope[i]
            curve += steps[used % MEMORY, i] * turns[used % MEMORY, i]
        if curve > 1e-14 * dot(turns[used % MEMORY], turns[used % MEMORY]):
            used += 1
        level = 0 if found > value + 1e-13 * abs(value) else level + 1
        copy_into(point, new)
        copy_into(slope, new_slope)
        value = found
        if level == LEVEL:
            used = 0
        elif level >= 2 * LEVEL:
            return taken + 1
    return most
