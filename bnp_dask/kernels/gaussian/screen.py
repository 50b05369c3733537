"""Screening: float32 finds the clusters that can have a responsibility for an atom; float64 evaluates only these.

The log likelihood of a Gaussian cluster of full covariance is a *form*, ``level - nu / 2 (y - m)' B^-1 (y - m)``.  A
float32 matrix product bounds the forms of all clusters for a few hundred atoms at a time:

- the *coarse* bound is linear in ``[z, z**2]``: with Sigma the covariance of a cluster, C its correlations and
  ``lam`` at least the largest eigenvalue of C, ``Sigma^-1 >= diag(Sigma)^-1 / lam``.  It costs a D-th of the form;
- the *fine* bound is the form itself, linear in ``[z, 1, z_i z_j (i <= j)]``.

z is the atom in the coordinates in which the average cluster is round, which removes common units, offsets and
correlations of columns.  Each bound comes with the largest error that float32 can have made in it, for any order of
additions: a product of P terms is wrong by at most ``(P + 8) u`` times the sum of their sizes, u = 2**-24, and that
sum is at most ``A |z|**2 / 2 + B |z| + C`` with norms A, B, C of the cluster's coefficients.

One cluster of each atom is evaluated in float64; all whose bound is not :data:`MARGIN` nats below it are candidates
and are evaluated in float64, too, by whitening, which is the accurate way.  The clusters left out have responsibilities
below 1e-17.  If there are many candidates, those below 1e-9 may keep their float32 value, if its error is small.
The way of a tile is decided from a sample of its own atoms: the same on every machine and every repetition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bnp_dask.kernels.gaussian.bounds import OVERFLOW, SQUARE_FITS, UNIT, Bound, Forms, bound_products
from bnp_dask.kernels.gaussian.factors import cholesky_factor, cholesky_factors
from bnp_dask.kernels.gaussian.homes import FAR, Diagonal, Groups, merged_lists
from bnp_dask.kernels.gaussian.quadratic import n_packed, quadratic_coefficients
from bnp_dask.kernels.mixture.ragged import by_cluster, whitened_pairs
from bnp_dask.kernels.mixture.resp import ScreenedWeights
from bnp_dask.kernels.numeric.arithmetic import exp, matmul
from bnp_dask.kernels.numeric.copying import copy_into
from bnp_dask.kernels.numeric.fixed_order import is_fixed
from bnp_dask.kernels.options import njit

MARGIN = 40.0
"""Nats below the best cluster at which a cluster is left out: responsibilities below 5e-18."""

CORE = 16.0
"""Nats below the best cluster at which float32 can be enough: responsibilities below 1e-7."""

HARMLESS = 1e-10
"""Largest product of a responsibility and its bounded log error for which float32 is enough."""


PROBE = 256
"""Number of atoms that decide the way of a tile."""


@dataclass(frozen=True)
class Costs:
    """Approximate nanoseconds per atom of the ways to a summary: only their order matters.

    Measured on one core with 43 (86) GFLOP/s in large products of float64 (float32).  With K clusters, D features and
    P products of them; ``pairs`` is the number of pairs (atom, cluster) of an atom.
    """

    n_clusters: int
    n_features: int

    @property
    def ready(self) -> float:
        """Nanoseconds of preparing factors and bounds, for all atoms together."""
        return self.n_clusters * (0.6 * self.n_features**3 + 3000)

    def dense(self, pairs: float) -> float:
        """All clusters in float64; moments of few pairs are summed one by one."""
        k, p = self.n_clusters, self._products
        if pairs < k / 8:
            return k * (0.047 * p + 10) + 0.6 * p + pairs * (70 + 0.07 * self.n_features**2)
        return k * (0.093 * p + 12) + 1.2 * p

    def coarse(self, pairs: float) -> float:
        """The coarse bound, and pairs in float64."""
        return self.n_clusters * (0.047 * self.n_features + 3) + 250 + self._pairs(pairs)

    def fine(self, pairs: float) -> float:
        """The fine bound, and pairs in float64."""
        return self._pass() + 250 + self._pairs(pairs)

    def tail(self, pairs: float) -> float:
        """The fine bound, moments of all clusters in float32, and pairs in float64."""
        return 2 * self._pass() + 250 + self._pairs(pairs)

    def _pass(self) -> float:
        return self.n_clusters * (0.0233 * self._products + 4) + 0.6 * self._products

    def _pairs(self, pairs: float) -> float:
        return pairs * (70 + 0.138 * self.n_features**2)

    @property
    def _products(self) -> int:
        return n_packed(self.n_features) + self.n_features + 1


class Screen:
    """Forms prepared for atoms: factors and bounds, computed when first used, whatever the batch.

    Parameters
    ----------
    forms
        Of all clusters.
    log_weights
        ``(K,)`` nats.
    """

    def __init__(self, forms: Forms, log_weights: np.ndarray) -> None:
        self.forms, self.log_weights = forms, log_weights
        k, d = forms.shift.shape
        self.n_clusters, self.n_features = k, d
        self.costs = Costs(k, d)

    @cached_property
    def roots(self) -> np.ndarray:
        """Transposed inverses of the Cholesky factors of the scale matrices, ``(K, D, D)``."""
        return self._roots_and_spreads[0]

    @cached_property
    def _roots_and_spreads(self) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray] | None]:
        # one pass, so that only the roots are ever held for all clusters; the variances of the coordinates z, (K, D),
        # and bounds of the largest eigenvalues of their correlations, (K,), or None if they are not numbers
        k, d = self.n_clusters, self.n_features
        roots, variance, largest = np.empty((k, d, d)), np.empty((k, d)), np.empty(k)
        usable = self.basis is not None
        for few in _some(k):
            lower, inverse, wrong = cholesky_factors(self.forms.scale[few])
            assert wrong < 0  # the global step has factored them
            roots[few] = inverse.transpose(0, 2, 1)
            if self.basis is None or not usable:
                continue
            half = matmul(self.basis[0], lower)
            spread = matmul(half, half.transpose(0, 2, 1)) / self.forms.nu[few, None, None]
            variance[few] = np.diagonal(spread, axis1=1, axis2=2)
            usable = bool(np.isfinite(spread).all() and (variance[few] > 0).all())
            if usable:
                root = np.sqrt(variance[few])
                largest[few] = _largest_eigenvalue(spread / root[:, :, None] / root[:, None, :])
        return roots, (variance, largest) if usable else None

    @cached_property
    def basis(self) -> tuple[np.ndarray, np.ndarray] | None:
        """``z = y @ to_z.T`` and ``y = z @ from_z.T``, or None if they would lose too many digits."""
        share = exp(self.log_weights - self.log_weights.max())
        share /= share.sum()
        with np.errstate(over="ignore", invalid="ignore"):
            pooled = np.einsum("k,kij->ij", share / self.forms.nu, self.forms.scale)
        unit = np.sqrt(pooled.diagonal())
        if not (np.isfinite(pooled).all() and (unit > 0).all()):
            return None
        from_z, to_z, wrong = cholesky_factor(pooled / unit / unit[:, None])
        if wrong:
            return None
        lost = _norm(matmul(np.abs(to_z), np.abs(from_z))) * self.n_features**2 * 2.0**-53
        return (to_z / unit, unit[:, None] * from_z) if lost < UNIT / 4 else None

    @cached_property
    def diagonal(self) -> Diagonal | None:
        """The coarse bound on log weight plus log likelihood, as a sum of squares."""
        spreads = self._roots_and_spreads[1]
        if self.basis is None or spreads is None:
            return None
        to_z, _ = self.basis
        inverse = 1.0 / (spreads[0] * spreads[1][:, None])
        return Diagonal(matmul(self.forms.shift, to_z.T), inverse, self.log_weights + self.forms.level)

    @cached_property
    def coarse(self) -> Bound | None:
        """The coarse bound as a product of features."""
        if self.diagonal is None:
            return None
        mean, inverse = self.diagonal.mean, self.diagonal.precision
        linear = inverse * mean
        constant = self.diagonal.top - 0.5 * np.sum(linear * mean, axis=1)
        return _usable(Bound.of(linear, constant, -0.5 * inverse, inverse.max(axis=1)))

    @cached_property
    def groups(self) -> Groups:
        """The clusters in groups, for atoms that are screened by their homes."""
        assert self.diagonal is not None and self.coarse is not None
        return Groups.of(self.diagonal, self.coarse)

    @cached_property
    def fine(self) -> Bound | None:
        """The form itself."""
        if self.basis is None:
            return None
        to_z, from_z = self.basis
        k, d = self.n_clusters, self.n_features
        mean = matmul(self.forms.shift, to_z.T)
        linear, quadratic, size = np.empty((k, d)), np.empty((k, n_packed(d))), np.empty(k)
        for few in _some(k):
            root = matmul(self.roots[few].transpose(0, 2, 1), from_z)
            precision = matmul(root.transpose(0, 2, 1), root) * self.forms.nu[few, None, None]
            linear[few] = np.einsum("kij,kj->ki", precision, mean[few])
            quadratic[few] = quadratic_coefficients(precision)
            size[few] = np.abs(precision).sum(axis=2).max(axis=1)
        constant = self.log_weights + self.forms.level - 0.5 * np.sum(linear * mean, axis=1)
        return _usable(Bound.of(linear, constant, quadratic, size))


def _some(n_clusters: int) -> Iterator[slice]:
    """Slices of a few clusters at a time, so that preparation takes little memory."""
    return (slice(start, start + 32) for start in range(0, n_clusters, 32))


@dataclass
class Patience:
    """How the tiles of one batch went: after tiles that needed all clusters, ``rest`` are not screened."""

    rest: int = 0
    waits: int = 0


def screened_weights(
    screen: Screen, x: np.ndarray, patience: Patience, tail: bool = True, way: str | None = None
) -> ScreenedWeights | None:
    """Log weight plus log likelihood of the clusters that matter, for the atoms ``(n, D)`` of one tile.

    ``patience`` is that of the tile's batch; ``tail`` lets small responsibilities stay in float32; ``way`` takes the
    named way (coarse, fine, tail or dense) instead of the cheapest.  None if evaluating all clusters is cheaper, or if
    float32 cannot distinguish them.
    """
    if way is None and patience.rest > 0:  # the last tile needed all clusters: those after it are likely to
        patience.rest -= 1
        return None
    if screen.coarse is None:
        return None
    if way is None:
        way = _way(screen, x[:: -(-len(x) // PROBE)], tail)
    if way == "dense":
        patience.waits = 2 * patience.waits + 1
        patience.rest = patience.waits
        return None
    bound = screen.coarse if way == "coarse" or screen.fine is None else screen.fine
    seen = _Seen(screen, bound, x)
    return seen.lists_and_tail() if way == "tail" else seen.lists()


def _way(screen: Screen, x: np.ndarray, tail: bool) -> str:
    """The cheapest way for a tile, from some of its atoms: coarse, fine, tail or dense."""
    assert screen.coarse is not None
    costs = screen.costs
    pairs = _Seen(screen, screen.coarse, x).candidates(MARGIN)[1]
    cost = {"coarse": costs.coarse(len(pairs) / len(x))}
    if cost["coarse"] > costs.fine(1.0) and screen.fine is not None:
        seen = _Seen(screen, screen.fine, x)
        pairs = seen.candidates(MARGIN)[1]
        cost["fine"] = costs.fine(len(pairs) / len(x))
        if tail:
            cost["tail"] = costs.tail(len(seen.candidates(CORE)[1]) / len(x))
    cost["dense"] = costs.dense(len(pairs) / len(x))
    return min(cost, key=cost.__getitem__)


def suits_homes(screen: Screen, x: np.ndarray) -> bool:
    """Whether the atoms ``(n, D)`` of a batch, judged by some of them, belong to few clusters each."""
    if screen.coarse is None:
        return False
    few = x[:: -(-len(x) // PROBE)]
    return len(_Seen(screen, screen.coarse, few).candidates(MARGIN)[1]) <= FEW * len(few)


def weights_by_home(screen: Screen, x: np.ndarray) -> ScreenedWeights:
    """As :func:`screened_weights` by the coarse bound, for many atoms ``(n, D)`` and clusters at once."""
    groups, d = screen.groups, screen.n_features
    assert screen.basis is not None and screen.coarse is not None
    y = np.subtract(x, screen.forms.center)
    with np.errstate(over="ignore", invalid="ignore"):
        z = matmul(y, screen.basis[0].T).astype(np.float32)
        size = np.sqrt(np.einsum("nd,nd->n", z, z, dtype=np.float64) + 1.0)
    home = groups.homes(z)
    level = (screen.log_weights + screen.forms.level)[home]
    weight = exact_pairs(screen, y, np.arange(len(y) + 1), home)
    # NaN and what float32 cannot represent are far from everything
    is_near = (level - weight <= 0.5 * (d + FAR * np.sqrt(2.0 * d))) & (size < SQUARE_FITS)
    near, far = np.flatnonzero(is_near), np.flatnonzero(~is_near)
    offsets, index = groups.candidates(z[near], home[near], weight[near] - MARGIN, size[near])
    ends, others = np.zeros(1, np.int64), [np.zeros(0, np.int64)]
    for start in range(0, len(far), ALONE):
        own, found = _Seen(screen, screen.coarse, x[far[start : start + ALONE]]).candidates(MARGIN)
        ends, others = np.append(ends, ends[-1] + own[1:]), [*others, found]
    offsets, index = merged_lists(near, offsets, index, far, ends, np.concatenate(others), len(x))
    return ScreenedWeights(offsets, index, exact_pairs(screen, y, offsets, index), screen.n_clusters)


FEW = 8.0
"""Clusters that an atom may belong to, on average, where atoms are screened by their homes: a guess."""

ALONE = 512
"""Atoms far from their homes that are screened against all clusters at a time."""


def exact_pairs(screen: Screen, y: np.ndarray, offsets: np.ndarray, index: np.ndarray) -> np.ndarray:
    """W of some pairs in float64; ``y (n, D)`` are the atoms about the center."""
    forms, out = screen.forms, np.empty(len(index))
    atoms, places, starts = by_cluster(offsets, index, screen.n_clusters)
    level = forms.level + screen.log_weights
    whitened_pairs(y, atoms, places, starts, forms.shift, screen.roots, forms.nu, level, is_fixed(), out)
    return out


class _Seen:
    """Bounds of all clusters for some atoms."""

    def __init__(self, screen: Screen, bound: Bound, x: np.ndarray) -> None:
        assert screen.basis is not None  # bounds are made with it
        self.screen, self.bound = screen, bound
        self.y = y = np.subtract(x, screen.forms.center)
        # atoms that float32 cannot represent evaluate all clusters
        with np.errstate(over="ignore", invalid="ignore"):
            z = matmul(y, screen.basis[0].T).astype(np.float32)
            self.weights = bound_products(z, bound)
        self.size = np.sqrt(np.einsum("nd,nd->n", z, z, dtype=np.float64) + 1.0)
        self.best = self.weights.argmax(axis=1)
        single = np.arange(len(y) + 1)
        self.best_weight = self.exact(single, self.best)

    def exact(self, offsets: np.ndarray, index: np.ndarray) -> np.ndarray:
        """W of some pairs in float64."""
        return exact_pairs(self.screen, self.y, offsets, index)

    def candidates(self, margin: float) -> tuple[np.ndarray, np.ndarray]:
        """Pairs that may be within ``margin`` of the best; below MARGIN, also pairs whose error may matter."""
        return _candidates(self.weights, self.bound.slack, self.size, self.best_weight, self.best, margin)

    def lists(self) -> ScreenedWeights:
        offsets, index = self.candidates(MARGIN)
        return ScreenedWeights(offsets, index, self.exact(offsets, index), self.screen.n_clusters)

    def lists_and_tail(self) -> ScreenedWeights:
        offsets, index = self.candidates(CORE)
        value = self.exact(offsets, index)
        _forget(offsets, index, self.weights)
        return ScreenedWeights(offsets, index, value, self.screen.n_clusters, self.weights)


@njit(nogil=True, cache=True)
def _depth(error, margin):
    # number of nats below the best at which a weight with this error is harmless
    if margin == MARGIN or not error < 1.0:
        return MARGIN
    return min(max(np.log(error / HARMLESS), margin), MARGIN) if error > 0.0 else margin


@njit(nogil=True, cache=True)
def _candidates(weights, slack, size, best_weight, best, margin):
    n, n_clusters = weights.shape
    widest = np.array([slack[0].max(), slack[1].max(), slack[2].max()])
    offsets = np.empty(n + 1, np.int64)
    index = np.empty(4 * n + 4 * n_clusters, np.int64)
    offsets[0] = at = 0
    for row in range(n):
        if at + n_clusters > len(index):
            longer = np.empty(2 * len(index) + n_clusters, np.int64)
            copy_into(longer, index[:at])
            index = longer
        w, s, top = weights[row], size[row], best_weight[row]
        most = widest[0] * s * s + widest[1] * s + widest[2]
        if not (most < OVERFLOW and s < SQUARE_FITS):  # float32 may have overflowed, and bounds nothing
            for k in range(n_clusters):
                index[at + k] = k
            at += n_clusters
            offsets[row + 1] = at
            continue
        # no number below this can be listed, with any error; NaN never is below
        least = np.float32(top - _depth(most, margin) - most - 1e-6 * abs(top))
        for start in range(0, n_clusters, 8):
            stop = min(start + 8, n_clusters)
            nothing = True
            for k in range(start, stop):
                nothing &= w[k] < least
            if nothing and not start <= best[row] < stop:
                continue
            for k in range(start, stop):
                error = slack[0, k] * s * s + slack[1, k] * s + slack[2, k]
                if k == best[row] or not w[k] + error < top - _depth(error, margin):
                    index[at] = k
                    at += 1
        offsets[row + 1] = at
    return offsets, index[:at].copy()


@njit(nogil=True, cache=True)
def _forget(offsets, index, weights):
    for row in range(len(offsets) - 1):
        for i in range(offsets[row], offsets[row + 1]):
            weights[row, index[i]] = -np.inf


def _largest_eigenvalue(matrices: np.ndarray) -> np.ndarray:
    """At least the largest eigenvalue of positive semidefinite matrices ``(K, D, D)``, at most D**(1/8) times it."""
    rows = np.abs(matrices).sum(axis=2).max(axis=1)
    power = matrices.astype(np.float32)
    power = matmul(power, power)
    power = matmul(power, power)
    norm = np.linalg.norm(power.astype(np.float64), axis=(1, 2))
    return np.minimum(rows, 1.001 * (np.sqrt(np.sqrt(norm)) if is_fixed() else norm**0.25))


def _norm(matrix: np.ndarray) -> float:
    """Root of the sum of squares."""
    return float(np.sqrt((matrix * matrix).sum()) if is_fixed() else np.linalg.norm(matrix))


def _usable(bound: Bound) -> Bound | None:
    return bound if bound.usable else None
