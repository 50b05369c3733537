"""Thinning sorted values to few weighted points that keep their quantiles."""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.options import INNER, njit


@njit(nogil=True, cache=True)
def _runs(values, weights):
    """Number of distinct values with positive weight, and the total weight."""
    distinct, total, last = 0, 0.0, np.nan
    for i in range(len(values)):
        if weights[i] > 0.0:
            total += weights[i]
            if values[i] != last:
                distinct += 1
                last = values[i]
    return distinct, total


@njit(**INNER)
def _next_run(values, weights, i):
    """Value and weight of the run of equal values from ``i`` on, and the start of the next."""
    value, weight = values[i], 0.0
    while i < len(values) and values[i] == value:
        weight += weights[i]
        i += 1
    return value, weight, i


@njit(nogil=True, cache=True)
def thin_sorted(values, weights, limit, out_values, out_weights):
    """Write at most ``limit`` points that represent ascending ``values (n,)`` with ``weights (n,)``; their number.

    If there are at most ``limit`` distinct values, all are kept with their weights.  Otherwise a value with at least a
    ``limit``-th of the total weight is kept, and the others are divided into bins of equal weight, each represented by
    its middle value.  If the middle falls between two values, bins take the lower and the upper in turn, so that
    repeated thinning does not drift.
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


@njit(nogil=True, cache=True)
def thin_rows(values, weights, limit):
    """Points of each ascending row of ``values (D, M)``: values and weights ``(D, limit)``, and their number ``(D,)``.

    ``weights`` are ``(D, M)``, or ``(1, M)`` for all rows.  Places beyond the last point of a row repeat its value with
    weight zero.
    """
    n_rows, n_weights = len(values), len(weights)
    out_values, out_weights = np.zeros((n_rows, limit)), np.zeros((n_rows, limit))
    counts = np.zeros(n_rows, np.int64)
    for j in range(n_rows):
        found = thin_sorted(values[j], weights[min(j, n_weights - 1)], limit, out_values[j], out_weights[j])
        if found > 0:
            out_values[j, found:] = out_values[j, found - 1]
        counts[j] = found
    return out_values, out_weights, counts


@njit(nogil=True, cache=True)
def merge_rows(values, weights, other_values, other_weights):
    """Merge ascending rows ``(D, M)`` and ``(D, N)`` and their weights, ``(D, M + N)``; ties: the first's first."""
    n_rows, m, n = len(values), values.shape[1], other_values.shape[1]
    out_values, out_weights = np.zeros((n_rows, m + n)), np.zeros((n_rows, m + n))
    for row in range(n_rows):
        i, j = 0, 0
        for place in range(m + n):
            if j == n or (i < m and values[row, i] <= other_values[row, j]):
                out_values[row, place], out_weights[row, place] = values[row, i], weights[row, i]
                i += 1
            else:
                out_values[row, place], out_weights[row, place] = other_values[row, j], other_weights[row, j]
                j += 1
    return out_values, out_weights
