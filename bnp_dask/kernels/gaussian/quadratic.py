"""Quadratic features: log likelihoods and second moments of full-covariance Gaussians as matrix products.

A Gaussian log density is linear in ``[y, 1, y_i y_j (i <= j)]`` of a centred atom y, so log likelihoods of all
clusters are one matrix product of features and coefficients, and second moments are one product of
responsibilities and features.  The features of a few hundred atoms are built in a buffer with the atoms on the
contiguous axis, block by block, so the buffer stays near the cache size for any D.

Symmetric matrices are stored as their packed upper triangle in row order: ``(0,0), (0,1), ..., (1,1), ...``.
Coefficients are laid out as ``[linear (D), constant, packed quadratic]``; models without a mean leave out
``linear``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np

from bnp_dask.kernels.mixture.ragged import by_cluster, moments_of_pairs
from bnp_dask.kernels.mixture.resp import RaggedResp, Resp, SparseResp
from bnp_dask.kernels.numeric.arithmetic import matmul
from bnp_dask.kernels.numeric.fixed_order import is_fixed
from bnp_dask.kernels.options import njit

BUFFER = 2**18
"""Numbers in a feature buffer (2 MB) if the shapes allow it: it should stay in the cache of a core."""

LOCAL_BLOCK = 2304
"""Features that the local step takes in one matrix product: all features of 64 data columns."""

SPARSE_SHARE = 1 / 8
"""Dense responsibilities with a smaller share of non-zeros are summed like L-sparse ones."""

GROUP_WORK = 2**14
"""Feature sums per cluster below which a matrix product for each cluster costs more to call than it saves."""


# -- packed symmetric matrices --------------------------------------------------------------------------------
def n_packed(n_features: int) -> int:
    """Numbers in the upper triangle: D (D + 1) / 2."""
    return n_features * (n_features + 1) // 2


@njit(nogil=True, cache=True)
def _pack(matrices, out):
    # numpy's fancy indexing takes five to ten times as long, at every global step
    d = matrices.shape[1]
    for k in range(len(matrices)):
        at = 0
        for i in range(d):
            for j in range(i, d):
                out[k, at] = matrices[k, i, j]
                at += 1


@njit(nogil=True, cache=True)
def _unpack(packed, out):
    d = out.shape[1]
    for k in range(len(packed)):
        at = 0
        for i in range(d):
            for j in range(i, d):
                out[k, i, j] = packed[k, at]
                out[k, j, i] = packed[k, at]
                at += 1


@njit(nogil=True, cache=True)
def _packed_outer(a, b, out):
    d = a.shape[1]
    for k in range(len(a)):
        at = 0
        for i in range(d):
            for j in range(i, d):
                out[k, at] = a[k, i] * b[k, j]
                at += 1


def pack(matrices: np.ndarray) -> np.ndarray:
    """Upper triangles ``(..., D (D + 1) / 2)`` of symmetric matrices ``(..., D, D)``."""
    *lead, d, _ = matrices.shape
    out = np.empty((math.prod(lead), n_packed(d)))
    _pack(np.ascontiguousarray(matrices, np.float64).reshape(-1, d, d), out)
    return out.reshape(*lead, n_packed(d))


def unpack(packed: np.ndarray, n_features: int) -> np.ndarray:
    """Symmetric matrices ``(..., D, D)`` from packed upper triangles: the inverse of :func:`pack`."""
    lead = packed.shape[:-1]
    out = np.empty((math.prod(lead), n_features, n_features))
    _unpack(np.ascontiguousarray(packed, np.float64).reshape(-1, n_packed(n_features)), out)
    return out.reshape(*lead, n_features, n_features)


def packed_outer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Packed upper triangles of ``a_k b_k'``, ``(K, D (D + 1) / 2)`` from two ``(K, D)``."""
    out = np.empty((len(a), n_packed(a.shape[1])))
    _packed_outer(a, b, out)
    return out


def scatter_matrices(
    xx: np.ndarray, x: np.ndarray, mean: np.ndarray, shrinkage: np.ndarray, away: np.ndarray
) -> np.ndarray:
    """Symmetric matrices ``xx_k - x_k mean_k' + shrinkage_k away_k away_k'``, ``(K, D, D)``.

    ``xx (K, D (D + 1) / 2)`` is packed; ``x``, ``mean`` and ``away`` are ``(K, D)``, and ``shrinkage`` is ``(K,)``.
    """
    out = np.empty((len(x), x.shape[1], x.shape[1]))
    _scatter_matrices(xx.copy(), x, mean, shrinkage, away, out)
    return out


@njit(nogil=True, cache=True)
def _scatter_matrices(xx, x, mean, shrinkage, away, out):
    d = x.shape[1]
    for k in range(len(x)):
        at = 0
        for i in range(d):
            for j in range(i, d):
                entry = (xx[k, at] - x[k, i] * mean[k, j]) + shrinkage[k] * (away[k, i] * away[k, j])
                out[k, i, j] = entry
                out[k, j, i] = entry
                at += 1


@cache
def _diagonal(n_features: int) -> np.ndarray:
    """Places of the diagonal in a packed triangle, ``(D,)``."""
    return np.cumsum(np.arange(n_features, 0, -1)) - np.arange(n_features, 0, -1)


def quadratic_coefficients(precision: np.ndarray) -> np.ndarray:
    """Packed coefficients of ``-y' precision y / 2``: ``(K, D (D + 1) / 2)`` from ``(K, D, D)``."""
    packed = pack(precision)
    np.negative(packed, out=packed)
    packed[:, _diagonal(precision.shape[-1])] *= 0.5
    return packed


def precision_of(coefficients: np.ndarray) -> np.ndarray:
    """Symmetric matrices ``(K, D, D)`` from packed coefficients: the inverse of :func:`quadratic_coefficients`."""
    d = (math.isqrt(8 * coefficients.shape[1] + 1) - 1) // 2
    found = unpack(-coefficients, d)
    found[:, np.arange(d), np.arange(d)] *= 2.0
    return found


# -- local step -----------------------------------------------------------------------------------------------
def quadratic_log_lik(x: np.ndarray, center: np.ndarray | None, coefficients: np.ndarray) -> np.ndarray:
    """Coefficients times quadratic features, for all atoms and clusters.

    Parameters
    ----------
    x
        Atoms, ``(n, D)``.
    center
        Subtracted from each atom, ``(D,)``; None for models without a mean: no centring and no linear terms.
    coefficients
        ``(K, D + 1 + D (D + 1) / 2)``, or without the first D columns when ``center`` is None.

    Returns
    -------
    numpy.ndarray
        ``(n, K)``.
    """
    n, d = x.shape
    # more features are added up anyway, so in pieces that stay in cache
    blocks = list(_blocks(d, LOCAL_BLOCK if n_packed(d) <= LOCAL_BLOCK else 512))
    widest = max(stop - start for _, _, start, stop in blocks)
    rows = min(max(BUFFER // (d + 1 + widest), 128), max(n, 1))  # with fewer rows a matrix product gains less
    buffer = np.empty((d + 1 + widest) * rows)
    n_head = coefficients.shape[1] - n_packed(d)
    out = np.empty((n, len(coefficients)))
    for first in range(0, n, rows):
        part = out[first : first + rows]
        # contiguous in every tile, the last one included: features are [y, 1, products] by atoms
        features = buffer[: (d + 1 + widest) * len(part)].reshape(-1, len(part))
        _center_into(x[first : first + rows], center, features[:d])
        features[d] = 1.0
        for i, j, start, stop in blocks:
            products = features[d + 1 : d + 1 + stop - start]
            _products_into(features[:d], i, j, products)
            if start == 0:
                head = features[d + 1 - n_head : d + 1 + stop]
                matmul(head.T, coefficients[:, : n_head + stop].T, out=part)
            else:
                part += matmul(products.T, coefficients[:, n_head + start : n_head + stop].T)
    return out


def whitened_squares(y: np.ndarray, shift: np.ndarray | None, root: np.ndarray) -> np.ndarray:
    """``|root (y - shift)|**2`` for each atom, ``(n,)``: the accurate way for ill-conditioned clusters.

    Nothing cancels here, while the quadratic features of an atom can be larger than their sum by the condition
    number of the cluster.  ``root (D, D)`` is the inverse Cholesky factor of the scale matrix.
    """
    z = matmul(y if shift is None else y - shift, root.T)
    return np.einsum("nd,nd->n", z, z)


# -- summary --------------------------------------------------------------------------------------------------
def moment_sums(x: np.ndarray, center: np.ndarray | None, resp: Resp) -> tuple[np.ndarray, np.ndarray]:
    """Responsibility-weighted first and second moments.

    Parameters
    ----------
    x
        Atoms, ``(n, D)``.
    center
        Subtracted from each atom, ``(D,)``, or None.
    resp
        Responsibilities times weights (>= 0).  When L-sparse, or dense with few non-zeros, the cost grows with
        the non-zeros and not with n K.

    Returns
    -------
    first
        Sums of r y, ``(K, D)``.
    second
        Sums of r y y', packed, ``(K, D (D + 1) / 2)``.
    """
    n, d = x.shape
    if isinstance(resp, RaggedResp):
        return _ragged_sums(x, center, resp)
    if isinstance(resp, SparseResp):
        atom, slot = np.nonzero(resp.value)
        group, value = resp.index[atom, slot], resp.value[atom, slot]
        if len(atom) * n_packed(d) < GROUP_WORK * resp.n_clusters and n * n_packed(d) <= 8 * BUFFER:
            return _scattered_sums(x, center, atom, group, value, resp.n_clusters)
        return _grouped_sums(x, center, atom, group, value, resp.n_clusters)
    # below this size one product for all clusters is always cheaper than one for each; far above it, when the
    # clusters are few, writing the features costs more than multiplying them
    few = 8 * resp.shape[1] <= d or np.count_nonzero(resp) < SPARSE_SHARE * resp.size
    if few and n * d * d >= 4 * BUFFER:
        atom, group = np.nonzero(resp)
        return _grouped_sums(x, center, atom, group, resp[atom, group], resp.shape[1])
    return _dense_sums(x, center, resp)


def _ragged_sums(x: np.ndarray, center: np.ndarray | None, resp: RaggedResp) -> tuple[np.ndarray, np.ndarray]:
    d = x.shape[1]
    first, second = np.zeros((resp.n_clusters, d)), np.zeros((resp.n_clusters, n_packed(d)))
    if resp.tail is not None:
        _tail_sums(x, center, resp.tail, first, second)
    atoms, places, starts = by_cluster(resp.offsets, resp.index, resp.n_clusters)
    moments_of_pairs(
        x, np.zeros(d) if center is None else center, atoms, resp.value[places], starts, is_fixed(), first, second
    )
    return first, second


def _tail_sums(
    x: np.ndarray, center: np.ndarray | None, tail: np.ndarray, first: np.ndarray, second: np.ndarray
) -> None:
    """Sums of the small responsibilities, in float32: their error is below the float64 error of the large ones."""
    n, d = x.shape
    # powers of two, so that squares of any unit fit float32 and nothing is rounded
    y = x if center is None else x - center
    power = np.ldexp(1.0, -np.frexp(np.abs(y).max(axis=0, initial=0.0))[1])
    pairs = packed_outer(power[None], power[None])[0]
    rows = 2048
    for top in range(0, n, rows):
        part = tail[top : top + rows].T
        size = part.shape[1]
        atoms = np.empty((d, size), np.float32)
        np.multiply(y[top : top + rows].T, power[:, None], out=atoms, casting="same_kind")
        first += matmul(part, atoms.T) * (1.0 / power)
        for i, j, start, stop in _blocks(d, max(BUFFER // size, 256)):
            features = np.empty((stop - start, size), np.float32)
            _products_into(atoms, i, j, features)
            second[:, start:stop] += matmul(part, features.T) * (1.0 / pairs[start:stop])


def _dense_sums(x: np.ndarray, center: np.ndarray | None, resp: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n, d = x.shape
    if not (resp.flags.c_contiguous or resp.flags.f_contiguous):
        resp = np.ascontiguousarray(resp)
    first, second = np.zeros((resp.shape[1], d)), np.zeros((resp.shape[1], n_packed(d)))
    rows = 1024  # short tiles stay in cache, but each adds up K times the features
    for top in range(0, n, rows):
        part = resp[top : top + rows].T
        size = part.shape[1]
        y = np.empty((d, size))
        _center_into(x[top : top + rows], center, y)
        first += matmul(part, y.T)
        for i, j, start, stop in _blocks(d, max(BUFFER // size, 256)):
            features = np.empty((stop - start, size))
            _products_into(y, i, j, features)
            second[:, start:stop] += matmul(part, features.T)
    return first, second


def _grouped_sums(
    x: np.ndarray, center: np.ndarray | None, atom: np.ndarray, group: np.ndarray, value: np.ndarray, n_clusters: int
) -> tuple[np.ndarray, np.ndarray]:
    """One symmetric product per cluster, on the atoms that belong to it."""
    d = x.shape[1]
    # numpy sorts 16-bit keys by counting; the order of atoms within a cluster is kept
    key = group.astype(np.uint16) if n_clusters < 2**16 else group
    order = np.argsort(key, kind="stable")
    atom, value = atom[order], value[order]
    ends = np.cumsum(np.bincount(group, minlength=n_clusters))
    root = np.sqrt(value)
    upper = np.ravel_multi_index(np.triu_indices(d), (d, d))
    first, second = np.zeros((n_clusters, d)), np.zeros((n_clusters, n_packed(d)))
    start = 0
    for k, end in enumerate(ends):
        if end > start:
            y = x[atom[start:end]]
            if center is not None:
                y = y - center
            first[k] = matmul(value[start:end], y)
            y = y * root[start:end, None]
            second[k] = matmul(y.T, y).ravel()[upper]
        start = end
    return first, second


def _scattered_sums(
    x: np.ndarray, center: np.ndarray | None, atom: np.ndarray, group: np.ndarray, value: np.ndarray, n_clusters: int
) -> tuple[np.ndarray, np.ndarray]:
    """Products of each atom, added to its few clusters in the order of the atoms: for small D."""
    y = np.asarray(x[atom], np.float64)
    if center is not None:
        y = y - center
    first, second = np.zeros((n_clusters, y.shape[1])), np.zeros((n_clusters, n_packed(y.shape[1])))
    _scatter(y, group, np.asarray(value, np.float64), first, second)
    return first, second


@njit(nogil=True, cache=True)
def _scatter(y, group, value, first, second):
    d = y.shape[1]
    for m in range(len(y)):
        k, weight, at = group[m], value[m], 0
        for i in range(d):
            first[k, i] += weight * y[m, i]
            for j in range(i, d):
                second[k, at] += weight * (y[m, i] * y[m, j])
                at += 1


# -- features -------------------------------------------------------------------------------------------------
def _blocks(n_features: int, limit: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut the packed triangle at whole rows: ``(row i, row j, start, stop)`` with at most ``limit`` numbers if
    a row allows."""
    i = start = 0
    while i < n_features:
        j, stop = i, start
        while j < n_features and (j == i or stop + n_features - j - start <= limit):
            stop += n_features - j
            j += 1
        yield i, j, start, stop
        i, start = j, stop


def _center_into(x: np.ndarray, center: np.ndarray | None, out: np.ndarray) -> None:
    """Transposed centred atoms, ``(D, n)``."""
    if center is None:
        out[...] = x.T
    else:
        np.subtract(x.T, center[:, None], out=out)


@njit(nogil=True, cache=True)
def _products_into(y, i, j, out):
    # rows i to j - 1 of the triangle of products of the features y (D, n); atoms on the contiguous axis
    d, n = y.shape
    at = 0
    for a in range(i, j):
        for b in range(a, d):
            for atom in range(n):
                out[at, atom] = y[a, atom] * y[b, atom]
            at += 1
