"""Squared distances of atoms to all clusters, each in the metric of its cluster, without terms that cancel.

Thirty-two atoms at a time lie feature by feature in a tile.  The mean of a cluster is subtracted from the tile, and
each row of its triangular root takes one pass over it; sums stay in registers.  The order of additions and roundings is
written out, so that the bits are the same on every processor.
"""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.numeric.simd import LANES, aligned_zeros, fill, fused, load, store
from bnp_dask.kernels.options import INNER, njit

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
