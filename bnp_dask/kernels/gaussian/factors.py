"""Factors of many small symmetric matrices at once, without a call of LAPACK for each."""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import lapack

from bnp_dask.kernels.numeric.fixed_order import is_fixed
from bnp_dask.kernels.options import copy_into, njit

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
