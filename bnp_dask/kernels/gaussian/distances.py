"""Squared distances of atoms to all clusters, each in the metric of its cluster, without terms that cancel."""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.numeric.simd import LANES, aligned_zeros, fill, fused, load, store
from bnp_dask.kernels.options import INNER, njit

# -- full covariance ----------------------------------------------------------------------------------------------
# Thirty-two atoms at a time lie feature by feature in a tile.  The mean of a cluster is subtracted from the tile, and
# each row of its triangular root takes one pass over it; sums stay in registers.  The order of additions and roundings
# is written out, so that the bits are the same on every processor.
ROWS = 4 * LANES
"""Atoms of a tile: four groups of lanes hide the latency of a sum of products."""


def cluster_distances(y: np.ndarray, shift: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """``|root_k (y - shift_k)|**2`` of each atom and cluster, ``(n, K)``.

    Parameters
    ----------
    y
        Atoms, ``(n, D)``.
    shift
        Means of clusters, ``(K, D)``.
    roots
        Inverse Cholesky factors of scale matrices, ``(K, D, D)``; entries above the diagonals are not read.
    """
    y, shift, roots = (np.ascontiguousarray(part, np.float64) for part in (y, shift, roots))
    out = np.empty((len(y), len(shift)))
    n_clusters, d = shift.shape
    _distances(y, shift, roots, aligned_zeros(d * ROWS), aligned_zeros(d * ROWS), aligned_zeros(n_clusters * ROWS), out)
    return out


@njit(nogil=True, cache=True)
def _distances(y, shift, roots, tile, away, found, out):
    n, d = y.shape
    for first in range(0, n, ROWS):
        size = min(ROWS, n - first)
        # unused places of the last tile hold atoms of the tile before, or zeros: their results are not read
        for row in range(size):
            for j in range(d):
                tile[j * ROWS + row] = y[first + row, j]
        for k in range(len(shift)):
            _distances_of_tile(tile, shift[k], roots[k], away, found, k * ROWS)
        for row in range(size):
            for k in range(len(shift)):
                out[first + row, k] = found[k * ROWS + row]


@njit(**INNER)
def _distances_of_tile(tile, mean, root, away, found, at):
    d = len(mean)
    s0 = s1 = s2 = s3 = fill(0.0)
    for i in range(d):
        below = fill(-mean[i])
        z0 = z1 = z2 = z3 = fill(0.0)
        place = i * ROWS
        for group in range(place, place + ROWS, LANES):
            store(away, group, load(tile, group) + below)
        for j in range(i + 1):
            factor, place = fill(root[i, j]), j * ROWS
            z0 = fused(factor, load(away, place), z0)
            z1 = fused(factor, load(away, place + LANES), z1)
            z2 = fused(factor, load(away, place + 2 * LANES), z2)
            z3 = fused(factor, load(away, place + 3 * LANES), z3)
        s0, s1, s2, s3 = fused(z0, z0, s0), fused(z1, z1, s1), fused(z2, z2, s2), fused(z3, z3, s3)
    store(found, at, s0)
    store(found, at + LANES, s1)
    store(found, at + 2 * LANES, s2)
    store(found, at + 3 * LANES, s3)


# -- features of their own width ----------------------------------------------------------------------------------
# Sums over features; NaN features add nothing.
MOST = 1e100
"""Product of factors above which logarithms are taken."""

TILE = 64
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
    out, tile = np.empty((n, len(mean))), np.empty((d, TILE))
    grown, after, logs = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    for first in range(0, n, TILE):
        size = min(TILE, n - first)
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
