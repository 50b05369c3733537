"""Cores: rows of one cluster that lie closer together than its Gaussian expects.

Seeds far apart cut a cluster in two beside one another.  They do not find a thin cluster inside a broad one: rows whose
measure was noted as a round number or as zero, a line in a plane, a tight group, or all but wide outliers.  Such rows
show along a single direction: a column, a column given the others, an axis, or the distance from the mean.  Where a
share ``f`` of ``n`` rows lies in an interval in which the Gaussian expects a share ``p``, a cluster for them wins about

    n f log(f / p) + n (1 - f) log((1 - f) / (1 - p))

nats along this direction alone: the scan statistic of Kulldorff (1997), "A spatial scan statistic".  The small run that
begins with these rows tells the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import gammainc, ndtr, xlogy

from bnp_dask.kernels import matmul
from bnp_dask.moves.policy import SmallRunPolicy


@dataclass(frozen=True, eq=False)
class _Found:
    """Interval along a direction: its gain in nats, the marks of its rows ``(n,)``."""

    gain: float
    inside: np.ndarray


def cores(
    x: np.ndarray, weights: np.ndarray | None, unrecorded: np.ndarray, least: np.ndarray, policy: SmallRunPolicy
) -> list[np.ndarray]:
    """Marks of the rows of different cores ``(n,)``, the most promising first.

    Parameters
    ----------
    x, weights
        Rows of one cluster, ``(n, D)``, and how often each counts, ``(n,)``; None for once.  Rows of a sample that
        stand for many count once.
    unrecorded
        Covariance by rounding that each row has besides, ``(D, D)``.
    least
        Variances that count as none, ``(D,)``.
    policy
        Numbers of small runs.
    """
    n, d = x.shape
    if n < 2 * policy.core_rows:
        return []
    counts = np.ones(n) if weights is None else weights / max(1.0, float(weights.mean()))
    y, roots, axes, rounding = _whitened(x, counts, unrecorded, least)
    # unit vectors among whitened rows: columns, columns given all others, axes
    ways = axes
    if d > 1:
        given = axes / roots
        ways = np.concatenate([axes * roots, given / np.sqrt((given**2).sum(axis=1))[:, None], np.eye(d)])
    found = _scan(matmul(y, ways.T), _widths(ways, rounding), counts, policy)
    found += _scan(np.sqrt((y**2).sum(axis=1))[:, None], np.zeros(1), counts, policy, d)
    # by chance alone the best of so many intervals of a Gaussian comes near the log of their number
    chance = float(np.log(len(found) * len(_intervals(n, policy)[0])))
    enough = max(chance, policy.core_gain * (d + d * (d + 1) / 2))
    chosen: list[_Found] = []
    for one in sorted(found, key=lambda one: -one.gain)[: policy.cores]:
        turned = one if d == 1 else _turned(y, one, rounding, counts, policy)
        if turned.gain >= enough and not any(_alike(turned.inside, other.inside) for other in chosen):
            chosen.append(turned)
    return [one.inside for one in sorted(chosen, key=lambda one: -one.gain)]


def _alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether half of the rows of two cores are common to both."""
    return bool(2 * (one & other).sum() >= (one | other).sum())


def _whitened(
    x: np.ndarray, counts: np.ndarray, unrecorded: np.ndarray, least: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of unit covariance ``(n, D)``; roots ``(D,)`` and axes ``(D, D)`` of the columns' correlations; and the
    covariance by rounding of these rows."""
    y = x - counts @ x / counts.sum()
    covariance = matmul((y * counts[:, None]).T, y) / counts.sum() + unrecorded + np.diag(least)
    deviations = np.sqrt(np.diagonal(covariance))
    squares, axes = np.linalg.eigh(covariance / np.outer(deviations, deviations))
    roots = np.sqrt(np.maximum(squares, 1e-10 * squares[-1]))
    back = axes / roots / deviations[:, None]
    return matmul(y, back), roots, axes, back.T @ unrecorded @ back


def _widths(ways: np.ndarray, rounding: np.ndarray) -> np.ndarray:
    """Steps of rounding along unit vectors ``(M, D)``."""
    return np.sqrt(12.0 * np.maximum(np.einsum("md,de,me->m", ways, rounding, ways), 0.0))


def _scan(
    along: np.ndarray, widths: np.ndarray, counts: np.ndarray, policy: SmallRunPolicy, d: int = 0
) -> list[_Found]:
    """The best interval of each direction: rows ``along`` it ``(n, M)``, of unit variance, known up to ``widths (M,)``;
    or, with ``d``, distances from the mean in so many dimensions."""
    total, (first, last) = counts.sum(), _intervals(len(along), policy)
    order = np.argsort(along, axis=0, kind="stable")
    at = np.take_along_axis(along, order, axis=0)
    half = 0.5 * np.maximum(widths, policy.thinnest)
    low, high = at - half, at + half
    if d:
        below, above = (gammainc(0.5 * d, 0.5 * np.maximum(edge, 0.0) ** 2) for edge in (low, high))
    else:
        below, above = ndtr(low), ndtr(high)
    own = counts[order]
    mass = np.cumsum(own, axis=0)
    share = np.clip((mass[last] - mass[first] + own[first]) / total, 0.0, 1.0 - 1e-12)
    chance = np.clip(above[last] - below[first], 1e-300, 1.0 - 1e-12)
    gain = total * (xlogy(share, share / chance) + xlogy(1.0 - share, (1.0 - share) / (1.0 - chance)))
    gain[share <= chance] = 0.0
    best = gain.argmax(axis=0)
    out = []
    for m, k in enumerate(best.tolist()):
        inside = (along[:, m] >= low[first[k], m]) & (along[:, m] <= high[last[k], m])
        out.append(_Found(float(gain[k, m]), inside))
    return out


@cache
def _intervals(n: int, policy: SmallRunPolicy) -> tuple[np.ndarray, np.ndarray]:
    """First and last places among ``n`` sorted rows of intervals of growing sizes."""
    sizes = set()
    size = float(max(policy.core_rows, int(policy.core_share * n)))
    while size < 0.5 * n:
        sizes |= {int(size), n - int(size)}
        size *= policy.core_growth
    first = [np.arange(0, n - m + 1, max(1, int(policy.core_shift * min(m, n - m)))) for m in sorted(sizes)]
    last = [own + m - 1 for own, m in zip(first, sorted(sizes), strict=True)]
    return np.concatenate(first), np.concatenate(last)


def _turned(y: np.ndarray, one: _Found, rounding: np.ndarray, counts: np.ndarray, policy: SmallRunPolicy) -> _Found:
    """The core along the direction in which its rows are thinnest, as long as that wins."""
    for _ in range(policy.core_turns):
        own, mass = y[one.inside], counts[one.inside][:, None]
        own = own - (mass * own).sum(axis=0) / mass.sum()
        way = np.linalg.eigh(matmul((mass * own).T, own))[1][:, :1]
        then = _scan(matmul(y, way), _widths(way.T, rounding), counts, policy)[0]
        if then.gain <= one.gain:
            break
        one = then
    return one
