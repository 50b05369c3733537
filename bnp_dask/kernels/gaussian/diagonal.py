"""Distances of atoms to all clusters, summed over features that each have their own width; NaN features add nothing."""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.options import njit

MOST = 1e100
"""Product of factors above which logarithms are taken."""

ROWS = 64
"""Atoms of a tile."""


def diagonal_squares(y: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """``sum_d (y_d - mean_kd)**2 / scale_kd`` of atoms ``y (n, D)`` and clusters ``mean, scale (K, D)``, ``(n, K)``."""
    y, mean, scale = (np.ascontiguousarray(part, np.float64) for part in (y, mean, scale))
    return np.asarray(_squares(y, mean, scale))


def student_falls(y: np.ndarray, mean: np.ndarray, scale: np.ndarray, nu: np.ndarray) -> np.ndarray:
    """Nats by which products of Student densities are below their peaks, ``(n, K)``.

    ``sum_d (nu_kd + 1) / 2 log(1 + (y_d - mean_kd)**2 / scale_kd)``.

    Parameters
    ----------
    y
        Atoms, ``(n, D)``.
    mean, scale
        Of clusters, ``(K, D)``; the scale is nu times the squared width.
    nu
        Degrees of freedom, ``(K, 1)`` if shared by all features of a cluster, or ``(K, D)``.
    """
    y, mean, scale, nu = (np.ascontiguousarray(part, np.float64) for part in (y, mean, scale, nu))
    return np.asarray((_falls if nu.shape[1] == 1 else _falls_by_feature)(y, mean, scale, nu))


@njit(nogil=True, cache=True)
def _squares(y, mean, scale):
    n, d = y.shape
    out, narrow = np.empty((n, len(mean))), np.empty(d)
    for k in range(len(mean)):
        for j in range(d):
            narrow[j] = 1.0 / scale[k, j]
        for i in range(n):
            total = 0.0
            for j in range(d):
                off = y[i, j] - mean[k, j]
                if off == off:
                    total += off * off * narrow[j]
            out[i, k] = total
    return out


@njit(nogil=True, cache=True)
def _falls(y, mean, scale, nu):
    """Multiplies factors with one exponent before it takes a logarithm.  It keeps the product minus one, which loses no
    digits where it is small.  Atoms lie feature by feature in a tile, so that several are in one register."""
    n, d = y.shape
    out, tile = np.empty((n, len(mean))), np.empty((d, ROWS))
    grown, after, logs = np.empty(ROWS), np.empty(ROWS), np.empty(ROWS)
    for first in range(0, n, ROWS):
        size = min(ROWS, n - first)
        for i in range(size):
            for j in range(d):
                tile[j, i] = y[first + i, j]
        for k in range(len(mean)):
            grown[:] = 0.0
            logs[:] = 0.0
            for j in range(d):
                row, middle, narrow, large = tile[j], mean[k, j], 1.0 / scale[k, j], 0
                for i in range(size):
                    off = row[i] - middle
                    more = off * off * narrow
                    more = more if more == more else 0.0
                    after[i] = (grown[i] + more) + grown[i] * more
                    large |= after[i] > MOST
                if large:
                    for i in range(size):
                        if after[i] > MOST:
                            logs[i] += math.log1p(grown[i]) + math.log1p((row[i] - middle) ** 2 * narrow)
                            after[i] = 0.0
                grown, after = after, grown
            for i in range(size):
                out[first + i, k] = 0.5 * (nu[k, 0] + 1.0) * (logs[i] + math.log1p(grown[i]))
    return out


@njit(nogil=True, cache=True)
def _falls_by_feature(y, mean, scale, nu):
    n, d = y.shape
    out = np.zeros((n, len(mean)))
    for k in range(len(mean)):
        for i in range(n):
            for j in range(d):
                off = y[i, j] - mean[k, j]
                if off == off:
                    out[i, k] += 0.5 * (nu[k, j] + 1.0) * math.log1p(off * off / scale[k, j])
    return out
