"""Thinning sorted values to few weighted points that keep their quantiles."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def _runs(values, weights):
    """Number of distinct values among those that weigh something, and the weight of all."""
    distinct, total, last = 0, 0.0, np.nan
    for i in range(len(values)):
        if weights[i] > 0.0:
            total += weights[i]
            if values[i] != last:
                distinct += 1
                last = values[i]
    return distinct, total


@njit(nogil=True, cache=True)
def _next_run(values, weights, i):
    """Value and weight of the run of equal values from ``i`` on, and where the next begins."""
    value, weight = values[i], 0.0
    while i < len(values) and values[i] == value:
        weight += weights[i]
        i += 1
    return value, weight, i


@njit(nogil=True, cache=True)
def thin_sorted(values, weights, limit, out_values, out_weights):
    """Write at most ``limit`` points that stand for ascending ``values (n,)`` with ``weights (n,)``; how many.

    All distinct values with their weights where there are so few.  Otherwise a value that weighs at least one part in
    ``limit`` of all stays as it is, and the others are shared out among bins of equal weight, each of which is told by
    the value in its middle.  Where the middle falls between two values, bins take the lower and the upper in turn, so
    that thinning again and again does not drift.
    """
    distinct, total = _runs(values, weights)
    heavy = total / limit if distinct > limit else 0.0
    n_heavy, light = 0, total
    i = 0
    while i < len(values) and heavy > 0.0:
        _, weight, i = _next_run(values, weights, i)
        if weight >= heavy:
            n_heavy += 1
            light -= weight
    n_bins = limit - n_heavy
    size = light / n_bins if heavy > 0.0 and n_bins > 0 else 0.0
    found, j, below, i = 0, 0, 0.0, 0
    while i < len(values):
        value, weight, i = _next_run(values, weights, i)
        if weight <= 0.0:
            continue
        if weight >= heavy:
            out_values[found], out_weights[found] = value, weight
            found += 1
            continue
        below += weight
        held = 0.0
        while j < n_bins and ((j + 0.5) * size < below or ((j + 0.5) * size == below and j % 2 == 0)):
            held += size
            j += 1
        if held > 0.0:
            out_values[found], out_weights[found] = value, held
            found += 1
    return found
