"""Bounds of quadratic forms by float32 products, with the largest possible float32 error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnp_dask.kernels.gaussian.quadratic import _blocks, _products_into
from bnp_dask.kernels.numeric.arithmetic import matmul

UNIT = 2.0**-24
"""Rounding of float32."""


OVERFLOW, SQUARE_FITS = 1e30, 1e15
"""Error of a bound and size of z up to which no intermediate number overflows float32."""

SMALLEST, LARGEST = 1e-15, 1e15
"""Largest size whose square, multiplied by small responsibilities, float32 can hold."""

PIECE = 512
"""Number of atoms whose features are in the buffer at a time."""


ADDED = 320
"""Features multiplied at once: sums of these sums, and not sums of thousands, keep the error and the buffer small."""


@dataclass(frozen=True, eq=False)
class Forms:
    """Log likelihoods of clusters: ``level - nu / 2 (y - shift)' scale^-1 (y - shift)`` with ``y = x - center``.

    Parameters
    ----------
    center
        ``(D,)``.
    shift
        Means about the center, ``(K, D)``.
    scale
        Symmetric positive definite, ``(K, D, D)``.
    nu, level
        ``(K,)``; level in nats.
    """

    center: np.ndarray
    shift: np.ndarray
    scale: np.ndarray
    nu: np.ndarray
    level: np.ndarray


@dataclass(frozen=True, eq=False)
class Bound:
    """A float32 table whose product with features bounds W; ``slack (3, K)`` float32 are A, B, C times their error.

    ``full`` tells whether the features are all products or squares only.
    """

    table: np.ndarray
    slack: np.ndarray
    full: bool

    @staticmethod
    def of(linear: np.ndarray, constant: np.ndarray, quadratic: np.ndarray, size: np.ndarray) -> Bound:
        """From coefficients ``(K, D)``, ``(K,)``, ``(K, P)`` and a bound ``(K,)`` of the quadratic part's norm."""
        rows = np.concatenate([linear, constant[:, None], quadratic], axis=1)
        longest, pieces = _longest_sum(linear.shape[1], rows.shape[1])
        # 8 more for rounding of the coefficients, the features and z itself; a hundredth for this calculation
        error = 1.01 * (longest + pieces + 8) * UNIT
        slack = error * np.stack([0.5 * size, np.linalg.norm(linear, axis=1), np.abs(constant)])
        full = quadratic.shape[1] > linear.shape[1]
        with np.errstate(over="ignore"):  # callers check whether the bound is usable
            return Bound(np.ascontiguousarray(rows.T, np.float32), slack.astype(np.float32), full)

    @property
    def usable(self) -> bool:
        """Whether all numbers fit float32."""
        return bool(np.isfinite(self.table).all() and np.isfinite(self.slack).all())


def _cuts(n_features: int, full: bool) -> list[tuple[int, int, int, int]]:
    """Partition of the products of features: rows ``i:j`` of the triangle, which are its numbers ``start:stop``."""
    return list(_blocks(n_features, ADDED)) if full else [(0, 0, 0, n_features)]


def _longest_sum(n_features: int, n_coefficients: int) -> tuple[int, int]:
    """Most terms of a product of :func:`bound_products`, and the number of products that are added up."""
    cuts = _cuts(n_features, n_coefficients > 2 * n_features + 1)
    return n_features + 1 + max(stop - start for _, _, start, stop in cuts), len(cuts)


def bound_products(z: np.ndarray, bound: Bound) -> np.ndarray:
    """Features times the table, ``(n, K)`` float32."""
    n, d = z.shape
    table = bound.table
    out = np.empty((n, table.shape[1]), np.float32)
    cuts = _cuts(d, bound.full)
    head = d + 1
    buffer = np.empty((head + max(stop - start for _, _, start, stop in cuts)) * PIECE, np.float32)
    more = np.empty((PIECE, table.shape[1]), np.float32)
    for first in range(0, n, PIECE):
        part, to = z[first : first + PIECE], out[first : first + PIECE]
        features = buffer[: len(buffer) // PIECE * len(part)].reshape(-1, len(part))
        features[:d] = part.T
        features[d] = 1.0
        for i, j, start, stop in cuts:
            products = features[head : head + stop - start]
            if bound.full:
                _products_into(features[:d], i, j, products)
            else:
                np.square(features[:d], out=products)
            if start == 0:
                matmul(features[: head + stop].T, table[: head + stop], out=to)
            else:
                matmul(products.T, table[head + start : head + stop], out=more[: len(part)])
                to += more[: len(part)]
    return out
