"""Gaussians: factors of covariances, log likelihoods and second moments, distances, and rows with missing entries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

from bnp_dask.kernels.mixture import RaggedResp, Resp, SparseResp, by_cluster, moments_of_pairs
from bnp_dask.kernels.numeric.arithmetic import is_fixed, matmul
from bnp_dask.kernels.numeric.simd import LANES, aligned_zeros, fill, fused, load, store
from bnp_dask.kernels.options import INNER, copy_into, njit

# =====================================================================================================================
# Factors of many small symmetric matrices at once, without a call of LAPACK for each.
# =====================================================================================================================

BLOCKED = 32
"""Columns up to which a call of LAPACK costs more than it saves."""

HIDDEN = 4.0
"""Multiple of its error below which a pivot is a rounding error, not a property of the matrix."""

SLIGHT = 1e-16
"""Entry off the diagonal that counts as zero, in units of the root of the product of its two diagonal entries."""

SWEEPS = 40
"""Sweeps of Jacobi's rotations, at most; six to ten are usual."""


def cholesky_factors(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Cholesky factors of symmetric matrices ``(K, D, D)``, and their inverses; both lower triangular.

    Returns
    -------
    lower, inverse
        ``(K, D, D)``.
    wrong
        Position of the first matrix that is not positive definite in double precision, or not finite; -1 if all are.
    """
    matrices = np.ascontiguousarray(matrices, np.float64)
    lower, inverse = np.empty_like(matrices), np.empty_like(matrices)
    if matrices.shape[1] <= BLOCKED or is_fixed():
        return lower, inverse, factor_all(matrices, lower, inverse)
    for k, matrix in enumerate(matrices):
        # the transpose of a symmetric matrix in C order is the same matrix in LAPACK's order: one copy less
        lower[k], info = lapack.dpotrf(matrix.T, lower=1, clean=1)
        # any number that is not finite reaches the diagonal
        if info != 0 or not math.isfinite(lower[k].diagonal().sum()):
            return lower, inverse, k
        inverse[k], _ = lapack.dtrtri(lower[k], lower=1)
    return lower, inverse, -1


def eigenvectors(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues, ascending ``(K, D)``, and eigenvectors in columns of symmetric matrices, both ``(K, D, D)``.

    LAPACK chooses code by the processor; in fixed order Jacobi's rotations give the same bits on every one.
    """
    if not is_fixed():
        return np.linalg.eigh(matrices)
    left, vectors = np.array(matrices, np.float64, order="C"), np.empty(matrices.shape)
    _rotate_all(left, vectors)
    values = np.einsum("kii->ki", left)
    order = np.argsort(values, axis=1, kind="stable")
    return np.take_along_axis(values, order, axis=1), np.take_along_axis(vectors, order[:, None], axis=2)


@njit(nogil=True, cache=True)
def _rotate_all(matrices, vectors):
    d = matrices.shape[1]
    for k in range(len(matrices)):
        a, v = matrices[k], vectors[k]
        v[:] = 0.0
        for i in range(d):
            v[i, i] = 1.0
        for _ in range(SWEEPS):
            rotated = False
            for p in range(d):
                for q in range(p + 1, d):
                    if abs(a[p, q]) <= SLIGHT * math.sqrt(abs(a[p, p] * a[q, q])):
                        continue
                    rotated = True
                    ratio = (a[q, q] - a[p, p]) / (2.0 * a[p, q])
                    t = math.copysign(1.0, ratio) / (abs(ratio) + math.sqrt(ratio * ratio + 1.0))
                    c = 1.0 / math.sqrt(t * t + 1.0)
                    s = t * c
                    for i in range(d):
                        x, y = a[i, p], a[i, q]
                        a[i, p], a[i, q] = c * x - s * y, s * x + c * y
                    for i in range(d):
                        x, y = a[p, i], a[q, i]
                        a[p, i], a[q, i] = c * x - s * y, s * x + c * y
                        x, y = v[i, p], v[i, q]
                        v[i, p], v[i, q] = c * x - s * y, s * x + c * y
            if not rotated:
                break


def errors_of_pivots(matrices: np.ndarray) -> np.ndarray:
    """Approximate rounding errors of the pivots of Cholesky factors of ``(K, D, D)`` matrices, ``(K, D)``."""
    diagonal: np.ndarray = np.diagonal(matrices, axis1=1, axis2=2)
    return matrices.shape[1] * np.finfo(np.float64).eps * diagonal


def hides_pivots(lower: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """Whether rounding hides a pivot of each of ``matrices (K, D, D)``, ``lower`` being their factors; ``(K,)``.

    A pivot is the square of a diagonal entry of the factor.  If it is as small as its error, chance has decided
    whether there is a factor at all, and its logarithm means nothing.
    """
    pivots = np.diagonal(lower, axis1=1, axis2=2) ** 2
    return np.asarray((pivots < HIDDEN * errors_of_pivots(matrices)).any(axis=1))


def cholesky_factor(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Lower Cholesky factor of one matrix ``(D, D)``, its inverse, and whether the matrix has none."""
    if is_fixed():
        lower, inverse, wrong = cholesky_factors(matrix[None])
        return lower[0], inverse[0], wrong >= 0
    factor, info = lapack.dpotrf(matrix, lower=1, clean=1)
    return (factor, factor, True) if info != 0 else (factor, lapack.dtrtri(factor, lower=1)[0], False)


@njit(nogil=True, cache=True)
def factor_all(matrices, lower, inverse):
    """Factors and their inverses, both lower triangular with zeros above; the position of the first wrong matrix or -1.

    Four rows are subtracted from another in one loop along memory, one after the other: the bits do not depend on it.
    """
    n, d = matrices.shape[0], matrices.shape[1]
    upper = np.empty((d, d))
    for k in range(n):
        root = inverse[k]
        for i in range(d):
            row = upper[i]
            copy_into(row, matrices[k, i])
            whole = i - i % 4
            for j in range(0, whole, 4):
                t0, t1, t2, t3 = upper[j, i], upper[j + 1, i], upper[j + 2, i], upper[j + 3, i]
                u0, u1, u2, u3 = upper[j], upper[j + 1], upper[j + 2], upper[j + 3]
                for c in range(i, d):
                    row[c] = (((row[c] - t0 * u0[c]) - t1 * u1[c]) - t2 * u2[c]) - t3 * u3[c]
            for j in range(whole, i):
                t0, u0 = upper[j, i], upper[j]
                for c in range(i, d):
                    row[c] -= t0 * u0[c]
            pivot = row[i]
            if not (pivot > 0.0 and pivot < np.inf):
                return k
            size = math.sqrt(pivot)
            row[i] = size
            for c in range(i + 1, d):
                row[c] /= size
        root[:] = 0.0
        for i in range(d):
            row = root[i]
            whole = i - i % 4
            for j in range(0, whole, 4):
                t0, t1, t2, t3 = upper[j, i], upper[j + 1, i], upper[j + 2, i], upper[j + 3, i]
                u0, u1, u2, u3 = root[j], root[j + 1], root[j + 2], root[j + 3]
                # beyond its diagonal a row is zero, and nothing is subtracted
                for c in range(j + 4):
                    row[c] = (((row[c] - t0 * u0[c]) - t1 * u1[c]) - t2 * u2[c]) - t3 * u3[c]
            for j in range(whole, i):
                t0, u0 = upper[j, i], root[j]
                for c in range(j + 1):
                    row[c] -= t0 * u0[c]
            for c in range(i):
                row[c] /= upper[i, i]
            row[i] = 1.0 / upper[i, i]
            for j in range(d):
                lower[k, i, j] = upper[j, i] if j <= i else 0.0
    return -1


@njit(nogil=True, cache=True)
def absolute_forms(matrices, vectors):
    """Sum of ``|v_i P_ij v_j|`` for each of ``matrices (K, D, D)`` and non-negative ``vectors (K, D)``: ``(K,)``."""
    n, d = vectors.shape
    out = np.zeros(n)
    for k in range(n):
        for i in range(d):
            s0 = s1 = s2 = s3 = 0.0
            for j in range(0, d - d % 4, 4):
                s0 += abs(matrices[k, i, j]) * vectors[k, j]
                s1 += abs(matrices[k, i, j + 1]) * vectors[k, j + 1]
                s2 += abs(matrices[k, i, j + 2]) * vectors[k, j + 2]
                s3 += abs(matrices[k, i, j + 3]) * vectors[k, j + 3]
            for j in range(d - d % 4, d):
                s0 += abs(matrices[k, i, j]) * vectors[k, j]
            out[k] += vectors[k, i] * ((s0 + s1) + (s2 + s3))
    return out


# =====================================================================================================================
# Quadratic features: log likelihoods and second moments of full-covariance Gaussians as matrix products.
#
# A Gaussian log density is linear in ``[y, 1, y_i y_j (i <= j)]`` of a centred atom y, so log likelihoods of all
# clusters are one matrix product of features and coefficients, and second moments are one product of
# responsibilities and features.  The features of a few hundred atoms are built in a buffer with the atoms on the
# contiguous axis, block by block, so the buffer stays near the cache size for any D.
#
# Symmetric matrices are stored as their packed upper triangle in row order: ``(0,0), (0,1), ..., (1,1), ...``.
# Coefficients are laid out as ``[linear (D), constant, packed quadratic]``; models without a mean leave out
# ``linear``.
# =====================================================================================================================

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


# =====================================================================================================================
# Squared distances of atoms to all clusters, each in the metric of its cluster, without terms that cancel.
# =====================================================================================================================


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


# =====================================================================================================================
# Rows with missing entries, under Gaussians of full covariance.
#
# Rows are sorted by their missing entries (their pattern), because rows of one pattern share a factor for each
# cluster. Write P for a cluster's precision, e for a row minus the cluster's mean, with zero minus the mean for
# missing entries, and M for the missing entries.  Then
#
#     min over e_M of e' P e = e' P e - g' P_MM^-1 g,      g = (P e)_M,
#
# which is the quadratic form of the observed entries, and the minimum is at ``e_M - P_MM^-1 g``: the conditional
# mean.  So a row with few missing entries costs little more than one with none.
# =====================================================================================================================

LOG_2PI = math.log(2.0 * math.pi)

BITS = 52
"""Entries of a row that one number encodes exactly; numbers are made and sorted faster than bytes."""


class Patterns(NamedTuple):
    """Rows with missing entries, grouped by pattern.

    Parameters
    ----------
    rows
        Positions of these rows in the batch, sorted by pattern, ``(R,)`` int64.
    starts
        The rows of pattern p are ``rows[starts[p]:starts[p + 1]]``, ``(P + 1,)`` int64.
    masks
        Which entries are missing, ``(P, D)`` bool.
    """

    rows: np.ndarray
    starts: np.ndarray
    masks: np.ndarray


def patterns_of(missing: np.ndarray) -> Patterns:
    """Rows with some but not all entries missing, grouped by pattern, from a mask ``(n, D)``."""
    n, d = missing.shape
    keys = np.empty((n, -(-d // BITS)))
    for word in range(keys.shape[1]):
        own = missing[:, word * BITS : (word + 1) * BITS]
        keys[:, word] = own.astype(np.float64) @ 2.0 ** np.arange(own.shape[1])  # exact in any order of addition
    full = [2.0 ** min(BITS, d - start) - 1.0 for start in range(0, d, BITS)]
    incomplete = np.flatnonzero((keys != 0.0).any(axis=1) & (keys != full).any(axis=1))
    keys = keys[incomplete]
    order = np.lexsort(keys.T)
    keys, rows = keys[order], incomplete[order]
    first = np.flatnonzero(np.concatenate([np.ones(min(len(rows), 1), np.bool_), (keys[1:] != keys[:-1]).any(axis=1)]))
    return Patterns(rows, np.append(first, len(rows)).astype(np.int64), np.ascontiguousarray(missing[rows[first]]))


@njit(**INNER)
def _factor(precision, lacking, m, lower, inverse):
    """Cholesky factor of ``P_MM`` and its inverse factor, lower triangles; log determinant, NaN without a factor."""
    log_det = 0.0
    for i in range(m):
        for j in range(i + 1):
            total = precision[lacking[i], lacking[j]]
            for c in range(j):
                total -= lower[i, c] * lower[j, c]
            if i == j:
                if not total > 0.0:
                    return math.nan
                lower[i, i] = math.sqrt(total)
                log_det += math.log(total)
            else:
                lower[i, j] = total / lower[j, j]
    for j in range(m):
        inverse[j, j] = 1.0 / lower[j, j]
        for i in range(j + 1, m):
            total = 0.0
            for c in range(j, i):
                total -= lower[i, c] * inverse[c, j]
            inverse[i, j] = total / lower[i, i]
    return log_det


@njit(**INNER)
def _whitened(precision, shift, y, lacking, m, inverse, out):
    """``L^-1 g`` of one row into ``out (m,)``; its square is ``g' P_MM^-1 g``."""
    d = len(y)
    square = 0.0
    for i in range(m):
        # four sums: one would wait for each addition
        s0, s1, s2, s3, row = 0.0, 0.0, 0.0, 0.0, precision[lacking[i]]
        for c in range(0, d - d % 4, 4):
            s0 += row[c] * (y[c] - shift[c])
            s1 += row[c + 1] * (y[c + 1] - shift[c + 1])
            s2 += row[c + 2] * (y[c + 2] - shift[c + 2])
            s3 += row[c + 3] * (y[c + 3] - shift[c + 3])
        for c in range(d - d % 4, d):
            s0 += row[c] * (y[c] - shift[c])
        out[i] = (s0 + s1) + (s2 + s3)
    for i in range(m - 1, -1, -1):
        total = 0.0
        for c in range(i + 1):
            total += inverse[i, c] * out[c]
        out[i] = total
        square += total * total
    return square


@njit(**INNER)
def _lacking(mask, out):
    m = 0
    for c in range(len(mask)):
        if mask[c]:
            out[m] = c
            m += 1
    return m


@njit(nogil=True, cache=True)
def add_marginal(y, rows, starts, masks, precision, shift, log_lik):
    """Turn log likelihoods of rows filled with zeros into log likelihoods of the observed entries.

    Parameters
    ----------
    y
        Centred rows, zero where an entry is missing, ``(n, D)``.
    rows, starts, masks
        See :class:`Patterns`.
    precision, shift
        ``(K, D, D)`` and centred means ``(K, D)``.
    log_lik
        ``(n, K)`` nats, changed in place.

    Returns
    -------
    bool
        False where a block of a precision is not positive definite in double precision.
    """
    d, k = y.shape[1], len(shift)
    # clusters last: they share the processor's vector lanes
    laid, means = np.empty((d, d, k)), np.empty((d, k))
    for c in range(k):
        for a in range(d):
            means[a, c] = shift[c, a]
            for b in range(d):
                laid[a, b, c] = precision[c, a, b]
    most = 0
    for p in range(len(masks)):
        most = max(most, masks[p].sum())
    lacking, lower, inverse = np.empty(d, np.int64), np.empty((most, most, k)), np.empty((most, most, k))
    log_det, away, white = np.empty(k), np.empty((d, k)), np.empty((most, k))
    for p in range(len(masks)):
        m = _lacking(masks[p], lacking)
        if not _factors(laid, lacking, m, lower, inverse, log_det):
            return False
        for r in range(starts[p], starts[p + 1]):
            row, out = y[rows[r]], log_lik[rows[r]]
            for a in range(d):
                for c in range(k):
                    away[a, c] = row[a] - means[a, c]
            for i in range(m):
                _product(laid[lacking[i]], away, d, white[i])
            for i in range(m - 1, -1, -1):
                # g of the earlier entries is still stored
                _scaled(inverse[i, : i + 1], white, i, white[i])
            for c in range(k):
                square = 0.0
                for i in range(m):
                    square += white[i, c] * white[i, c]
                out[c] += 0.5 * (square + m * LOG_2PI - log_det[c])
    return True


@njit(**INNER)
def _factors(laid, lacking, m, lower, inverse, log_det):
    """:func:`_factor` of all clusters side by side, ``(m, m, K)``; False if one has no factor."""
    k = len(log_det)
    log_det[:] = 0.0
    for i in range(m):
        for j in range(i + 1):
            total = lower[i, j]
            total[:] = laid[lacking[i], lacking[j]]
            for b in range(j):
                for c in range(k):
                    total[c] -= lower[i, b, c] * lower[j, b, c]
            if i == j:
                for c in range(k):
                    if not total[c] > 0.0:
                        return False
                    log_det[c] += math.log(total[c])
                    total[c] = math.sqrt(total[c])
            else:
                for c in range(k):
                    total[c] /= lower[j, j, c]
    for j in range(m):
        for c in range(k):
            inverse[j, j, c] = 1.0 / lower[j, j, c]
        for i in range(j + 1, m):
            total = inverse[i, j]
            total[:] = 0.0
            for b in range(j, i):
                for c in range(k):
                    total[c] -= lower[i, b, c] * inverse[b, j, c]
            for c in range(k):
                total[c] /= lower[i, i, c]
    return True


@njit(**INNER)
def _product(row, away, d, out):
    """Sum over entries of ``row (D, K)`` times ``away (D, K)``, for each cluster, ``(K,)``."""
    out[:] = 0.0
    for a in range(d):
        for c in range(len(out)):
            out[c] += row[a, c] * away[a, c]


@njit(**INNER)
def _scaled(inverse, white, i, out):
    """Row i of ``L^-1 g``, ``(K,)``, in place of row i of g."""
    for c in range(len(out)):
        out[c] *= inverse[i, c]
    for b in range(i):
        for c in range(len(out)):
            out[c] += inverse[b, c] * white[b, c]


@njit(nogil=True, cache=True)
def add_completed(y, rows, starts, masks, precision, shift, resp, first, second, entropy):
    """Add the contributions of missing entries, by their conditional distributions, to sums over rows with zeros there.

    Parameters
    ----------
    y, rows, starts, masks, precision, shift
        As in :func:`add_marginal`.
    resp
        Responsibilities times weights of the rows with missing entries, in the order of ``rows``, ``(R, K)``.
    first, second
        Sums of r y and of r y y', packed, ``(K, D)`` and ``(K, D (D + 1) / 2)``, changed in place: the missing entries
        count with their conditional means, and with their conditional covariances.
    entropy
        Entropy of the missing entries, ``(K,)`` nats, added to.

    Returns
    -------
    bool
        False where a block of a precision is not positive definite in double precision.
    """
    d, k = y.shape[1], len(shift)
    lacking, lower, inverse, white = np.empty(d, np.int64), np.empty((d, d)), np.empty((d, d)), np.empty(d)
    step, at = np.empty(d), np.empty(d, np.int64)
    for i in range(d):
        at[i] = i * d - i * (i - 1) // 2 - i  # of (i, j) in the packed triangle, less j
    for p in range(len(masks)):
        m = _lacking(masks[p], lacking)
        for c in range(k):
            mass = 0.0
            for r in range(starts[p], starts[p + 1]):
                mass += resp[r, c]
            if mass == 0.0:
                continue
            log_det = _factor(precision[c], lacking, m, lower, inverse)
            if math.isnan(log_det):
                return False
            entropy[c] += 0.5 * mass * (m * (1.0 + LOG_2PI) - log_det)
            for i in range(m):
                for j in range(i, m):
                    total = 0.0
                    for a in range(j, m):
                        total += inverse[a, i] * inverse[a, j]
                    second[c, at[lacking[i]] + lacking[j]] += mass * total
            for r in range(starts[p], starts[p + 1]):
                share, row = resp[r, c], y[rows[r]]
                if share == 0.0:
                    continue
                _whitened(precision[c], shift[c], row, lacking, m, inverse, white)
                for i in range(m):
                    total = 0.0
                    for a in range(i, m):
                        total -= inverse[a, i] * white[a]
                    step[i] = total
                for i in range(m):
                    own = lacking[i]
                    first[c, own] += share * step[i]
                    for j in range(i, m):
                        second[c, at[own] + lacking[j]] += share * step[i] * step[j]
                    for j in range(d):  # zero for missing entries
                        place = at[own] + j if own <= j else at[j] + own
                        second[c, place] += share * step[i] * row[j]
    return True


@njit(nogil=True, cache=True)
def add_conditional_means(y, rows, starts, masks, precision, shift, resp, out):
    """Add ``sum_k r_nk E[y_M | y_O, k]`` to the missing entries of ``out (n, D)``, centred; else as above."""
    d, k = y.shape[1], len(shift)
    lacking, lower, inverse, white = np.empty(d, np.int64), np.empty((d, d)), np.empty((d, d)), np.empty(d)
    for p in range(len(masks)):
        m = _lacking(masks[p], lacking)
        for c in range(k):
            if math.isnan(_factor(precision[c], lacking, m, lower, inverse)):
                return False
            for r in range(starts[p], starts[p + 1]):
                _whitened(precision[c], shift[c], y[rows[r]], lacking, m, inverse, white)
                for i in range(m):
                    total = 0.0
                    for a in range(i, m):
                        total -= inverse[a, i] * white[a]
                    out[rows[r], lacking[i]] += resp[r, c] * total
    return True
