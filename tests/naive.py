"""Slow twins of the kernels: plain Python, one number at a time, exactly rounded sums; to compare with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

Matrix = Sequence[Sequence[float]]

TINY = 2.0**-53


def resp_from_weights(log_weights: Matrix) -> tuple[list[list[float]], list[list[float]]]:
    """Normalised exponentials of each row and their logs; values below TINY are zero."""
    resp, log_resp = [], []
    for row in log_weights:
        highest = max(row)
        log_total = highest + math.log(math.fsum(math.exp(w - highest) for w in row))
        logs = [w - log_total for w in row]
        log_resp.append(logs)
        resp.append([0.0 if math.exp(w) < TINY else math.exp(w) for w in logs])
    return resp, log_resp


def top_positions(row: Sequence[float], top: int) -> list[int]:
    """Positions of the ``top`` largest, ascending; of equal ones the first."""
    ranked = sorted(range(len(row)), key=lambda k: (-row[k], k))
    return sorted(ranked[:top])


def top_resp_from_weights(log_weights: Matrix, top: int) -> tuple[list[list[int]], list[list[float]]]:
    """Positions of the ``top`` largest weights of each row, and their responsibilities."""
    index = [top_positions(row, top) for row in log_weights]
    resp, _ = resp_from_weights([[row[k] for k in kept] for row, kept in zip(log_weights, index, strict=True)])
    return index, resp


def to_dense(index: Sequence[Sequence[int]], value: Matrix, n_clusters: int) -> list[list[float]]:
    """L-sparse rows as full rows."""
    dense = [[0.0] * n_clusters for _ in index]
    for row, places, values in zip(dense, index, value, strict=True):
        for k, v in zip(places, values, strict=True):
            row[k] += v
    return dense


def scale_rows(resp: Matrix, weights: Sequence[float] | None) -> list[list[float]]:
    """Rows times their weights."""
    if weights is None:
        return [list(row) for row in resp]
    return [[r * w for r in row] for row, w in zip(resp, weights, strict=True)]


def cluster_sums(resp: Matrix, x: Matrix | None = None) -> list[list[float]] | list[float]:
    """Sum over atoms of responsibility (times ``x``)."""
    n_clusters = len(resp[0])
    if x is None:
        return [math.fsum(row[k] for row in resp) for k in range(n_clusters)]
    return [
        [math.fsum(r[k] * y[d] for r, y in zip(resp, x, strict=True)) for d in range(len(x[0]))]
        for k in range(n_clusters)
    ]


def cluster_entropy(weighted: Matrix, log_resp: Matrix) -> list[float]:
    """Minus the sum over atoms of w r log r, per cluster."""
    n_clusters = len(weighted[0])
    pairs = list(zip(weighted, log_resp, strict=True))
    return [-math.fsum(r[k] * logs[k] for r, logs in pairs) for k in range(n_clusters)]


def pair_entropy(resp: Matrix, weights: Sequence[float] | None, pairs: Iterable[tuple[int, int]]) -> list[float]:
    """Minus the sum over atoms of w (ra + rb) log(ra + rb), per pair."""
    counts = [1.0] * len(resp) if weights is None else weights
    out = []
    for a, b in pairs:
        union = [row[a] + row[b] for row in resp]
        out.append(-math.fsum(w * u * math.log(u) for w, u in zip(counts, union, strict=True) if u > 0.0))
    return out


def dot(x: Sequence[float], y: Sequence[float]) -> float:
    """Sum of products."""
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def exact_sum(numbers: Iterable[float]) -> Fraction:
    """Sum with no rounding at all."""
    return sum((Fraction(x) for x in numbers), Fraction(0))


def row_log_factorials(counts: Matrix) -> list[float]:
    """Sum over the words of each document of log x!."""
    return [math.fsum(math.lgamma(x + 1.0) for x in row) for row in counts]


def rising_sums(counts: Matrix, table: Matrix) -> list[list[float]]:
    """Sum over words of log Gamma(a + x) - log Gamma(a), as the sum of log(a + i) for i < x."""
    return [
        [math.fsum(math.log(a + i) for a, x in zip(base, row, strict=True) for i in range(int(x))) for base in table]
        for row in counts
    ]
