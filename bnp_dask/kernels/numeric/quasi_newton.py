"""A quasi-Newton method with limited memory (L-BFGS) with a fixed order of sums: equal steps on every processor.

See Nocedal & Wright, "Numerical Optimization" (2006), algorithm 7.4.  SciPy's implementation calls BLAS.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from bnp_dask.kernels.options import copy_into, njit

MEMORY = 10
"""Number of remembered steps."""


@njit(nogil=True, cache=True, error_model="numpy")
def dot(a, b):
    """Sum of products, in ascending order."""
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@njit(nogil=True, cache=True, error_model="numpy")
def direction(slope, steps, turns, used, way):
    """Uphill direction by the two-loop recursion over the last ``used`` steps and changes of slope."""
    copy_into(way, slope)
    factor = np.empty(MEMORY)
    for m in range(used - 1, -1, -1):
        s, y = steps[m % MEMORY], turns[m % MEMORY]
        if m < used - MEMORY:
            break
        factor[m % MEMORY] = dot(s, way) / dot(s, y)
        way -= factor[m % MEMORY] * y
    if used > 0:
        s, y = steps[(used - 1) % MEMORY], turns[(used - 1) % MEMORY]
        way *= dot(s, y) / dot(y, y)
    else:
        way /= math.sqrt(dot(slope, slope)) + 1.0
    for m in range(max(0, used - MEMORY), used):
        s, y = steps[m % MEMORY], turns[m % MEMORY]
        way += (factor[m % MEMORY] - dot(y, way) / dot(s, y)) * s


def maximise(
    value_and_slope: Callable[[np.ndarray], tuple[float, np.ndarray]], begin: np.ndarray, largest: float, enough: float,
    most: int,
) -> np.ndarray:  # fmt: skip
    """Maximise a smooth function of ``(n,)`` numbers between ``-largest`` and ``largest``.

    Parameters
    ----------
    value_and_slope
        The function and its gradient ``(n,)``.
    begin
        Starting point, ``(n,)``.
    largest
        Bound of the size of each number.
    enough
        Size of the gradient's largest number at which the climb ends; it also ends when no step rises any more.
    most
        Largest number of steps.
    """
    point = np.clip(begin, -largest, largest)
    value, slope = value_and_slope(point)
    steps, turns, way = np.empty((MEMORY, len(point))), np.empty((MEMORY, len(point))), np.empty(len(point))
    used = 0
    for _ in range(most):
        # steps may not leave the bounds: components that point outside are held
        held = ((point >= largest) & (slope > 0.0)) | ((point <= -largest) & (slope < 0.0))
        free = np.where(held, 0.0, slope)
        if not np.abs(free).max(initial=0.0) > enough:
            break
        direction(free, steps, turns, used, way)
        if not dot(way, free) > 0.0:
            used = 0
            direction(free, steps, turns, used, way)
        found = _search(value_and_slope, point, value, free, way, largest)
        if found is None:
            if used == 0:
                break
            used = 0  # once more without the history
            continue
        new, value, new_slope = found
        step, turn = new - point, slope - new_slope
        if dot(step, turn) > 1e-14 * dot(turn, turn):
            steps[used % MEMORY], turns[used % MEMORY] = step, turn
            used += 1
        point, slope = new, new_slope
    return point


def _search(
    value_and_slope: Callable[[np.ndarray], tuple[float, np.ndarray]], point: np.ndarray, value: float,
    slope: np.ndarray, way: np.ndarray, largest: float,
) -> tuple[np.ndarray, float, np.ndarray] | None:  # fmt: skip
    """Point along the search direction with a sufficient rise, its value and slope; None if there is none."""
    length = min(1.0, 5.0 / float(np.abs(way).max()))
    steep = float(np.abs(slope).max())
    for _ in range(40):
        new = np.clip(point + length * way, -largest, largest)
        if (new == point).all():
            return None
        found, new_slope = value_and_slope(new)
        rise = dot(new - point, slope)
        level = found >= value - 1e-13 * abs(value) and float(np.abs(new_slope).max()) < steep
        if found >= value + 1e-4 * rise or level:
            return new, found, new_slope
        # the top of the parabola through both values, within bounds
        top = 0.5 * length * rise / (value + rise - found) if value + rise > found else np.nan
        length = min(max(top, 0.1 * length), 0.5 * length) if top == top else 0.1 * length
    return None
