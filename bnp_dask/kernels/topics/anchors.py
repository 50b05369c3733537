"""Anchor words: corners of a cloud of points, and every point as a mixture of the corners."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from bnp_dask.kernels.numeric.arithmetic import matmul
from bnp_dask.kernels.options import njit

ROUNDING = 1e-12
"""Squared distances below this share of the largest are rounding errors."""

ONE_PAIR = 2.0
"""Ordered pairs of two tokens."""


def farthest_points(halves: np.ndarray, candidates: np.ndarray, number: int, noise: float = 0.0) -> np.ndarray:
    """Points that span the cloud: each the farthest candidate from the affine hull of the points before.

    Stabilised Gram-Schmidt (Arora et al. 2013, Algorithm 4 without its last loop).  Every point was measured twice,
    with errors that are independent: the product of the two distances from the hull estimates the squared distance
    free of them, and a quarter of the squared difference is the squared error of their mean.

    Parameters
    ----------
    halves
        Both measurements, ``(2, V, p)``.
    candidates
        Positions that may be chosen, ``(C,)``.
    number
        Largest number of points.
    noise
        Points whose squared distance is less than this many squared errors, their own plus the mean error of the chosen
        points (the hull's error), are not taken.

    Returns
    -------
    ``(K,)``; fewer if the candidates lie in the hull of the points found.
    """
    one, two = halves[0, candidates], halves[1, candidates]
    squared = np.einsum("vp,vp->v", one, two)
    chosen = [int(squared.argmax())]
    origin = 0.5 * (one[chosen[0]] + two[chosen[0]])
    one, two = one - origin, two - origin
    largest = None
    while len(chosen) < min(number, len(candidates)):
        squared = np.einsum("vp,vp->v", one, two)
        error = 0.25 * np.sum((one - two) ** 2, axis=1)
        squared[chosen] = 0.0
        squared[squared <= noise * (error + error[chosen].mean())] = 0.0
        far = int(squared.argmax())
        largest = squared[far] if largest is None else largest
        if squared[far] <= ROUNDING * largest:
            break
        chosen.append(far)
        direction = one[far] + two[far]
        direction /= np.sqrt(matmul(direction, direction))
        one -= matmul(one, direction)[:, None] * direction
        two -= matmul(two, direction)[:, None] * direction
    return candidates[np.array(chosen)]


@njit(cache=True, nogil=True)
def _of_itself(count):  # pragma: no cover
    # share of each of the tokens behind an expected count; a whole number with a rounding error is that number
    return count / max(np.ceil(count * (1.0 - 1e-9)), 1.0)


@njit(cache=True, nogil=True)
def _together(indptr, indices, data, times, least, basis, table, row_sums):  # pragma: no cover
    p = basis.shape[1]
    whole = np.empty(p)
    for d in range(len(indptr) - 1):
        first, last = indptr[d], indptr[d + 1]
        length, alone = 0.0, 0.0
        for i in range(first, last):
            length += data[i]
            alone += data[i] * _of_itself(data[i])
        pairs = length * length - alone
        if pairs <= ROUNDING * length * length:
            continue
        whole[:] = 0.0
        for i in range(first, last):
            row, count = basis[indices[i]], data[i]
            for j in range(p):
                whole[j] += count * row[j]
        weight = times[d] / max(pairs, least)
        for i in range(first, last):
            row, out, share = basis[indices[i]], table[indices[i]], weight * data[i]
            itself = _of_itself(data[i])
            row_sums[indices[i]] += share * (length - itself)
            for j in range(p):
                out[j] += share * (whole[j] - itself * row[j])


def projected_pairs(x: sparse.csr_array, times: np.ndarray, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum over documents of their pairs of two tokens, by words, times a matrix ``basis``; and its row sums.

    For a document with counts h, n tokens in all, it is ``(h h' - diag(h)) / (n (n - 1))``.  Counts may be expected
    ones: c tokens that each belong to the part with probability h / c, where c is the next whole number, make
    ``h h - h h / c`` pairs of two of them.  Documents count ``times (D,)``.  Documents without a pair do not count, and
    documents with less than one pair (parts with almost nothing left) count by that fraction of a pair.

    Parameters
    ----------
    x
        Counts, ``(D, V)``.
    times
        Weights of documents, ``(D,)``.
    basis
        ``(V, p)``.

    Returns
    -------
    ``(V, p)`` and ``(V,)``.
    """
    table, row_sums = np.zeros(basis.shape), np.zeros(len(basis))
    _together(x.indptr, x.indices, x.data, times, ONE_PAIR, basis, table, row_sums)
    return table, row_sums


@njit(cache=True, nogil=True)
def _mix(gram, target, tolerance, steps, out):  # pragma: no cover
    n, k = target.shape
    for i in range(n):
        weight, slope = out[i], np.empty(k)
        best = 0
        for j in range(k):
            if gram[j, j] - 2.0 * target[i, j] < gram[best, best] - 2.0 * target[i, best]:
                best = j
        weight[:] = 0.0
        weight[best] = 1.0
        for j in range(k):
            slope[j] = gram[j, best] - target[i, j]
        for _ in range(steps):
            to, giver = 0, -1
            for j in range(k):
                if slope[j] < slope[to]:
                    to = j
                if weight[j] > 0.0 and (giver < 0 or slope[j] > slope[giver]):
                    giver = j
            gap = slope[giver] - slope[to]
            curve = gram[to, to] + gram[giver, giver] - 2.0 * gram[to, giver]
            if gap <= tolerance or curve <= 0.0:
                break
            move = min(gap / curve, weight[giver])
            weight[to] += move
            # all of it: the remainder would be a rounding error that never goes away
            weight[giver] = 0.0 if move == weight[giver] else weight[giver] - move
            for j in range(k):
                slope[j] += move * (gram[j, to] - gram[j, giver])


def convex_weights(gram: np.ndarray, target: np.ndarray, steps: int = 1000) -> np.ndarray:
    """Nearest mixture of K corners to each of n points: ``argmin_c |x - sum_k c_k s_k|^2``, c >= 0, sum c = 1.

    Exact line searches along the pair of corners with the steepest exchange.

    Parameters
    ----------
    gram
        Inner products of the corners, ``(K, K)``.
    target
        Inner products of points and corners, ``(n, K)``.
    steps
        Largest number of exchanges per point.

    Returns
    -------
    ``(n, K)``, rows sum to one.
    """
    out = np.zeros(target.shape)
    if target.size:
        tolerance = 1e-7 * float(np.abs(np.diagonal(gram)).max())
        _mix(np.ascontiguousarray(gram), np.ascontiguousarray(target), tolerance, steps, out)
    return out
