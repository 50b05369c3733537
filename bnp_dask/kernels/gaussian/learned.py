"""Learned priors of Gaussians: the settings that raise the objective most, given all clusters.

With S = sum_k E[Lam_k] over the K clusters in use, and B = nu Psi, the terms of the objective that depend on the
Wishart prior of :mod:`~bnp_dask.observation.wishart` are

    nu / 2 (sum_k E[log|Lam_k|] + K log|nu Psi| - tr(Psi S) - K D log 2) - K log Gamma_D(nu / 2),

and the terms that depend on the prior of the means are ``K D / 2 log kappa - kappa / 2 sum_k (D / kappa_k +
a_k' E[Lam_k] a_k)`` with ``a_k = m_k - m``.  A weak hyperprior keeps their maximum sensible with few clusters:

    log p(Psi) = (log|Psi Psi0^-1| - tr(Psi Psi0^-1) + D) / 2,   log p(nu) = -nu / (3 D),   log p(kappa) = -kappa,

up to constants and flat in m, where Psi0 is E[covariance] of the prior that learning began with.  Regressions (matrix
A_k, prior mean M, column precision V) have the terms ``K D / 2 log|V| - tr(V G) / 2``, ``G = sum_k (D V_k^-1 +
(M_k - M)' E[Lam_k] (M_k - M))``, and V has the hyperprior of Psi about the V that learning began with.  All follow from
parameters of the clusters alone: no pass over the data is needed.  Independent features have settings of their own
each, as in one dimension (:func:`log_gamma_hyperprior`).

``Model(..., learn_prior="diagonal")`` takes such a step at the end of every lap, after its moves were decided with the
prior that held during the lap.  The reported objective includes the log hyperprior as its term ``prior`` (up to those
constants), so it never falls; it is not comparable with the objective of a fixed prior.  A step that would not raise it
is not taken.  Start with ten clusters or more, as runs do by default: a prior fitted to few refuses smaller ones.

With fewer than ten atoms for each feature two things differ.  The prior mean stays: it has as many free numbers as a
cluster, and where three of five clusters were parts of one group of 30 rows in 256 columns, it moved to that group,
kappa became 6.5 and the parts were never united.  And updates are extrapolated (:func:`extrapolated`).

References
----------
Empirical Bayes: MacKay 1992, "Bayesian interpolation"; Bishop 2006, section 3.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import gammaln, polygamma, psi

from bnp_dask.kernels.gaussian.quadratic import cholesky_factor
from bnp_dask.kernels.numeric.arithmetic import exp, inner, log, matmul
from bnp_dask.kernels.numeric.quasi_newton import maximise

NU_DECAY = 1.0 / 3.0
"""Nats that each degree of freedom costs, times D.  Set on wine, iris, crabs and 16-D blobs, as the constants below."""

MOST_NU = 52
"""Upper limit of the degrees of freedom, times D (and 2 more)."""

MOST_KNOWN = 1e3
"""Upper limit of the degrees of freedom of a random Psi and of its prior, times D: more is a point estimate."""

STEPS = 20
"""Most steps of one climb to the distribution of a random Psi; the next update goes on from there.  Set on
crabs and iris for their processor time; 14 other tables keep their scores."""

ENOUGH = 1e-3
"""Slope at which a climb ends, nats a number of :data:`WIDTH`."""

WIDTH = 20.0
"""Size of the numbers that this climb changes, at their bounds: one is about half of a logarithm."""

FEW = 10
"""Number of clusters below which degrees of freedom may not exceed :data:`FEW_NU`: a prior fitted to a few clusters,
each a union of true ones, would refuse every smaller one.  Set on wine and iris from one cluster.

The limit holds until clusters are calm.  Kept to the end it made the objective depend on the way there: five clusters
of 120 rows in eight columns, found by every start, ended 28.6 nats lower from the truth than from 25 clusters."""

FEW_NU = 2.0
"""Upper limit of the degrees of freedom, times D, while clusters are few."""

BISECTIONS = 40
"""Halvings of the range of the degrees of freedom of independent features: the last is 1e-10 wide."""

LEAST_SCALE = 1e-6
"""Least share of the initial scale: clusters of equal rows would make it zero."""


@dataclass(frozen=True, eq=False)
class Precisions:
    """Statistics of the precisions of the clusters in use, as far as their prior needs them.

    Parameters
    ----------
    n_clusters
        Clusters in use, K.
    total
        S, ``(D, D)``.
    log_det
        Sum of ``E[log|Lam_k|]``, nats.
    """

    n_clusters: int
    total: np.ndarray
    log_det: float


@dataclass(frozen=True, eq=False)
class Widths:
    """Statistics of the precisions of the clusters in use, feature by feature: each has a prior of its own.

    Parameters
    ----------
    n_clusters
        Clusters in use, K.
    total
        Sums of ``E[lam_kd]``, ``(D,)``.
    log_total
        Sums of ``E[log lam_kd]``, ``(D,)``.
    """

    n_clusters: int
    total: np.ndarray
    log_total: np.ndarray


@dataclass(frozen=True, eq=False)
class Settings:
    """Settings of a Wishart or Normal-Wishart prior: nu, B ``(D, D)``, and kappa (1 if there is none)."""

    nu: float
    scale: np.ndarray
    kappa: float = 1.0


def precision_of(quadratic: np.ndarray, n_features: int) -> np.ndarray:
    """The matrix P ``(D, D)`` of packed coefficients of ``-y' P y / 2``."""
    out = np.zeros((n_features, n_features))
    out[_upper(n_features)] = -quadratic
    return out + out.T


@lru_cache(maxsize=8)
def _upper(n_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of packed numbers: those of the same table take longer to make than to use."""
    return np.triu_indices(n_features)


def most_nu(nu: float, n_clusters: int, n_features: int, calm: bool = False) -> float:
    """Upper limit of learned degrees of freedom: the current number, or more with many clusters, or once they are
    calm."""
    times = MOST_NU if calm or n_clusters >= FEW else FEW_NU
    return max(nu, times * n_features + 2.0)


def wishart_settings(
    found: Precisions, nu: float, start: np.ndarray, is_full: bool, calm: bool = False
) -> tuple[float, np.ndarray]:
    """The nu and B ``(D, D)`` of the Wishart prior that raise the objective and the hyperprior most, together.

    Parameters
    ----------
    found
        The clusters.
    nu
        Degrees of freedom now.
    start
        Psi0, ``(D, D)``.
    is_full
        Whether B may have off-diagonal numbers where the start has.
    calm
        Whether clusters are calm, so that few of them too may set the degrees of freedom.
    """
    d = len(start)
    is_full = is_full or bool(start[~np.eye(d, dtype=np.bool_)].any())
    best = _full_scale(found, start) if is_full else _diagonal_scale(found, start)
    k, less = found.n_clusters, np.arange(d)

    def slope(nu: float) -> float:
        scale, log_det = best(nu)
        psi_d = np.add.reduce(psi((nu - less) / 2))
        value = found.log_det + k * (log_det + d * log(nu / 2) + d - psi_d) - inner(scale, found.total)
        return float(0.5 * value - NU_DECAY / d)

    low, high = min(nu, float(d)), most_nu(nu, k, d, calm)
    if slope(low) <= 0:
        nu = low
    elif slope(high) >= 0:
        nu = high
    else:
        from scipy.optimize import brentq

        nu = float(brentq(slope, low, high, xtol=1e-10, rtol=1e-14))
    return nu, nu * best(nu)[0]


def _diagonal_scale(found: Precisions, start: np.ndarray) -> Callable[[float], tuple[np.ndarray, float]]:
    """Best diagonal Psi for each nu, and its log determinant."""
    total, first = found.total.diagonal(), start.diagonal()
    inverse, least, each = 1.0 / first, LEAST_SCALE * first, np.arange(len(start))

    def best(nu: float) -> tuple[np.ndarray, float]:
        scale = np.maximum((found.n_clusters * nu + 1.0) / (nu * total + inverse), least)
        whole = np.zeros(start.shape)
        whole[each, each] = scale
        return whole, float(np.add.reduce(log(scale)))

    return best


def _full_scale(found: Precisions, start: np.ndarray) -> Callable[[float], tuple[np.ndarray, float]]:
    """Best Psi for each nu, and its log determinant."""
    first = _inverse(start)[0]

    def best(nu: float) -> tuple[np.ndarray, float]:
        inverse, log_det = _inverse(nu * found.total + first)
        times = found.n_clusters * nu + 1.0
        scale = times * inverse
        if (scale.diagonal() < LEAST_SCALE * start.diagonal()).any():
            scale = scale + LEAST_SCALE * start
            return scale, -_inverse(scale)[1]
        return scale, len(start) * float(log(times)) - log_det

    return best


def _inverse(matrix: np.ndarray) -> tuple[np.ndarray, float]:
    """Inverse of a symmetric positive definite matrix, and the log determinant of the matrix."""
    lower, root, _ = cholesky_factor(matrix)
    return matmul(root.T, root), 2.0 * float(log(lower.diagonal()).sum())


def mean_settings(found: Precisions, linear: np.ndarray) -> np.ndarray:
    """The prior mean that raises the objective most, ``(D,)``, from the sum of ``E[Lam_k] m_k``, ``linear (D,)``."""
    return matmul(_inverse(found.total)[0], linear)


def pseudo_count(n_clusters: int, n_features: int, spread: float) -> float:
    """The kappa that raises the objective and the hyperprior most.

    ``spread`` is the sum of ``D / kappa_k + (m_k - m)' E[Lam_k] (m_k - m)`` over the clusters.
    """
    return n_clusters * n_features / (spread + 2.0)


def column_precision(n_rows: int, spread: np.ndarray, start: np.ndarray, is_full: bool) -> np.ndarray:
    """The V, ``(P, P)``, of the prior of regressions that raises the objective and the hyperprior most.

    The objective has ``n_rows / 2 log|V| - tr(V G) / 2``, and the hyperprior one row more about V0: ``V = (n_rows + 1)
    (G + V0^-1)^-1``, or of the diagonals.

    Parameters
    ----------
    n_rows
        Rows of all matrices of coefficients together, K D.
    spread
        G, ``(P, P)``.
    start
        V0, ``(P, P)``.
    is_full
        Whether V may have off-diagonal numbers where V0 has none.
    """
    if is_full or start[~np.eye(len(start), dtype=np.bool_)].any():
        return (n_rows + 1.0) * _inverse(spread + _inverse(start)[0])[0]
    return np.diag((n_rows + 1.0) / (spread.diagonal() + 1.0 / start.diagonal()))


def column_covariance(n_rows: int, spread: np.ndarray, start: np.ndarray, is_full: bool) -> np.ndarray:
    """The covariance V^-1, ``(D, D)``, of the same rule as :func:`column_precision`, with ``start`` V0^-1.

    It is ``(G + V0^-1) / (n_rows + 1)``, or the diagonal: of means with a prior of their own, n_rows are clusters.
    """
    total = spread + start
    is_full = is_full or bool(start[~np.eye(len(start), dtype=np.bool_)].any())
    return (total if is_full else np.diag(total.diagonal())) / (n_rows + 1.0)


# -- a scale matrix that is random -------------------------------------------------------------------------------------
# A full point estimate of Psi has D (D + 1) / 2 numbers, for which nothing is paid.  Here Psi^-1 is itself Wishart,
#
#     Lam_k | Psi ~ W(nu, (nu Psi)^-1),      p(Psi^-1) = W(b, (b diag s)^-1),      q(Psi^-1) = W(m, m^-1 H),
#
# and b, s, nu are chosen as all settings are.  With E = E[Psi] = m H^-1 / (m - D - 1) a cluster sees the prior with
# B = nu E, and its KL is more by ``nu / 2 (log|E| - E[log|Psi|])``: E[log|Psi|] stands where log|E| would.  The number
# depends on nu and m alone (:func:`charge`), so that merges, births and small runs judge exactly the bound.  The term
# ``prior`` has -KL(q(Psi) || p(Psi)) (:func:`divergence`).  The E that raises the bound most solves
#
#     E nu S E - (K nu - b) E - b m / (m - D - 1) diag(s) = 0,
#
# in coordinates in which s is one a quadratic equation for each eigenvalue of nu S.  As b grows, m follows and both
# charge and divergence vanish: the diagonal point estimate.  With a small b and a large nu covariances are
# tied.  A Wishart prior of Psi itself would be conjugate, but its covariances have a few small eigenvalues where
# those of data have a few large ones: clusters of crabs have an evidence 17 nats lower with it.
@dataclass(frozen=True, eq=False)
class Doubt:
    """Distribution of a random Psi besides its mean: m and b, and s ``(D,)``."""

    known: float
    prior_known: float
    spread: np.ndarray

    def packed(self) -> np.ndarray:
        """As one array, ``(D + 2,)``: the setting of a likelihood."""
        return np.concatenate([[self.known, self.prior_known], self.spread])


def doubt_of(packed: np.ndarray) -> Doubt:
    """Inverse of :meth:`Doubt.packed`."""
    return Doubt(known=float(packed[0]), prior_known=float(packed[1]), spread=packed[2:])


def charge(nu: float, doubt: Doubt) -> float:
    """``nu / 2 (log|E[Psi]| - E[log|Psi|])``, nats that each cluster pays because Psi is not known."""
    return 0.5 * nu * _excess(doubt.known, len(doubt.spread))


def divergence(nu: float, scale: np.ndarray, doubt: Doubt) -> float:
    """KL(q(Psi) || p(Psi)), nats, of the q whose mean is ``scale / nu``, ``(D, D)``."""
    inverse, log_det = _inverse(scale / nu)
    trace = float(np.add.reduce(inverse.diagonal() * doubt.spread))
    log_spread = float(np.add.reduce(log(doubt.spread)))
    return _divergence(doubt.known, doubt.prior_known, log_det, trace, log_spread, len(scale))


def _divergence(m: float, b: float, log_det: float, trace: float, log_spread: float, d: int) -> float:
    """KL of q(Psi), from ``log|E|``, ``tr(E^-1 diag s)`` and ``log|diag s|``."""
    inner_scale = d * math.log(m - d - 1.0) + log_det  # log|m H^-1|
    mean_log = _psi(m, d) + d * math.log(2.0) - inner_scale
    own = 0.5 * m * (d * math.log(2.0) - inner_scale) + _log_gamma(m, d)
    other = 0.5 * b * (d * math.log(2.0 / b) - log_spread) + _log_gamma(b, d)
    return 0.5 * (m - b) * mean_log - 0.5 * m * d + 0.5 * b * m / (m - d - 1.0) * trace - own + other


def _log_gamma(nu: float, d: int) -> float:
    return float(np.add.reduce(gammaln((nu - np.arange(d)) / 2)))


def _psi(nu: float, d: int) -> float:
    return float(np.add.reduce(psi((nu - np.arange(d)) / 2)))


def _excess(m: float, d: int) -> float:
    """``log|E[Psi]| - E[log|Psi|]``."""
    return _psi(m, d) + d * math.log(2.0 / (m - d - 1.0))


def random_settings(
    found: Precisions, nu: float, doubt: Doubt | None, start: np.ndarray, calm: bool = False
) -> tuple[float, np.ndarray, Doubt | None]:
    """The nu, B and distribution of a random Psi that raise the objective and the hyperprior most.

    The distribution is None where the diagonal point estimate of :func:`wishart_settings` is as good.

    Parameters
    ----------
    found, nu, calm
        As in :func:`wishart_settings`.
    doubt
        The distribution now, None for a point.
    start
        Psi0, ``(D, D)``, diagonal.
    """
    d, k, first = len(start), found.n_clusters, start.diagonal()
    point = wishart_settings(found, nu, start, is_full=False, calm=calm)
    bound = _BoundOfDoubt(found, first, min(nu, float(d)), most_nu(nu, k, d, calm))
    spread = point[1].diagonal() / point[0]
    if doubt is None:
        begin = bound.place(point[0], 2.0 * d, 2.0 * d + k * point[0], spread)
    else:
        begin = bound.place(nu, doubt.prior_known, doubt.known, doubt.spread)
    best = maximise(bound.value_and_slope, begin, WIDTH, ENOUGH, STEPS)
    if not bound.value_and_slope(best)[0] > bound.of_point(*point):
        return (*point, None)
    nu, b, m, spread = bound.settings(best)
    return nu, nu * bound.mean(nu, b, m, spread)[0], Doubt(known=m, prior_known=b, spread=spread)


@dataclass(frozen=True, eq=False)
class _BoundOfDoubt:
    """The terms of the objective that depend on nu, b, m and s, at the best E, as a function of one array.

    Its numbers are logarithms of nu, b - D + 1, m - D - 1 and s / s0, each on the scale of its range, within
    :data:`WIDTH`.
    """

    found: Precisions
    first: np.ndarray
    least_nu: float
    most_nu: float

    @cached_property
    def _ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """Middles and half widths of the logarithms, ``(3 + D,)``."""
        d, most = len(self.first), MOST_KNOWN * len(self.first)
        least_scale, most_scale = np.full(d, math.log(LEAST_SCALE)), np.full(d, -math.log(LEAST_SCALE))
        low = np.concatenate([[math.log(self.least_nu), 0.0, 0.0], least_scale])
        high = np.concatenate([[math.log(self.most_nu), math.log(most), math.log(2.0 * most)], most_scale])
        return 0.5 * (low + high), np.maximum(0.5 * (high - low), 1e-9)

    def place(self, nu: float, b: float, m: float, spread: np.ndarray) -> np.ndarray:
        d = len(spread)
        middle, half = self._ranges
        logs = np.concatenate([[math.log(nu), math.log(b - d + 1.0), math.log(m - d - 1.0)], log(spread / self.first)])
        return np.clip(WIDTH * (logs - middle) / half, -WIDTH, WIDTH)

    def settings(self, place: np.ndarray) -> tuple[float, float, float, np.ndarray]:
        d = len(self.first)
        middle, half = self._ranges
        logs = middle + half / WIDTH * place
        nu, b, m = (float(exp(one)) for one in logs[:3])
        return nu, b + d - 1.0, m + d + 1.0, exp(logs[3:]) * self.first

    def mean(self, nu: float, b: float, m: float, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Best E, its inverse ``(D, D)``, and ``log|E|``."""
        root = np.sqrt(spread)
        outer = np.outer(root, root)
        values, vectors = np.linalg.eigh(nu * self.found.total * outer)
        values = np.maximum(values, np.finfo(float).tiny)
        linear, constant = self.found.n_clusters * nu - b, b * m / (m - len(spread) - 1.0)
        square = np.sqrt(linear**2 + 4.0 * values * constant)
        each = (linear + square) / (2.0 * values) if linear > 0.0 else 2.0 * constant / (square - linear)
        whole = matmul(vectors * each, vectors.T) * outer
        return whole, matmul(vectors / each, vectors.T) / outer, float(np.add.reduce(log(each) + log(spread)))

    def of_point(self, nu: float, scale: np.ndarray) -> float:
        """The same terms at a diagonal point estimate."""
        mean = scale.diagonal() / nu
        log_det = float(np.add.reduce(log(mean)))
        return self._of_clusters(nu, log_det, inner(np.diag(mean), self.found.total)) + self._hyper(nu, mean)

    def _of_clusters(self, nu: float, log_det: float, trace: float) -> float:
        d, k = len(self.first), self.found.n_clusters
        own = k * (0.5 * nu * (d * math.log(0.5 * nu) + log_det) - _log_gamma(nu, d))
        return float(own + 0.5 * nu * (self.found.log_det - trace))

    def _hyper(self, nu: float, spread: np.ndarray) -> float:
        ratio = spread / self.first
        return float(0.5 * np.add.reduce(log(ratio) - ratio + 1.0)) - NU_DECAY / len(spread) * nu

    def value_and_slope(self, place: np.ndarray) -> tuple[float, np.ndarray]:
        nu, b, m, spread = self.settings(place)
        d, k = len(spread), self.found.n_clusters
        mean, inverse, log_det = self.mean(nu, b, m, spread)
        trace, pulls, log_spread = (
            inner(mean, self.found.total),
            inverse.diagonal() * spread,
            np.add.reduce(log(spread)),
        )
        stretch, excess = m / (m - d - 1.0), _excess(m, d)
        all_pull = float(np.add.reduce(pulls))
        value = self._of_clusters(nu, log_det, trace) - 0.5 * k * nu * excess + self._hyper(nu, spread)
        value -= _divergence(m, b, log_det, all_pull, float(log_spread), d)
        # slopes with E held: at the best E the rest vanishes
        by_nu = 0.5 * (self.found.log_det - trace + k * (d * math.log(0.5 * nu) + d + log_det - _psi(nu, d) - excess))
        mean_log = _psi(m, d) + d * math.log(2.0 / (m - d - 1.0)) - log_det
        by_b = 0.5 * (mean_log - stretch * all_pull + d * math.log(0.5 * b) + log_spread + d - _psi(b, d))
        bend = 0.5 * float(np.add.reduce(polygamma(1, (m - np.arange(d)) / 2))) - d / (m - d - 1.0)
        by_m = 0.5 * (b - m - k * nu) * bend - 0.5 * d * (d + 1.0) / (m - d - 1.0)
        by_m += 0.5 * b * (d + 1.0) / (m - d - 1.0) ** 2 * all_pull
        by_spread = 0.5 * (b - b * stretch * pulls + 1.0 - spread / self.first)
        own = [nu * (by_nu - NU_DECAY / d), (b - d + 1.0) * by_b, (m - d - 1.0) * by_m]
        return float(value), np.concatenate([own, by_spread]) * self._ranges[1] / WIDTH


# -- features that are independent ------------------------------------------------------------------------------------
def gamma_settings(
    found: Widths, nu: np.ndarray, start: np.ndarray, calm: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The nu and beta, ``(D,)`` both, of Gamma priors that raise the objective and the hyperprior most.

    The prior of each feature is the Wishart prior of one dimension, with a hyperprior of its own.  With ``beta = nu
    psi`` the best psi is known for each nu, and the slope in nu falls from feature to feature at its own place, so that
    all features are bisected together.

    Parameters
    ----------
    found
        The clusters.
    nu
        Degrees of freedom now, ``(D,)``.
    start
        psi0, ``(D,)``.
    calm
        As in :func:`wishart_settings`.
    """
    k = found.n_clusters

    def best(nu: np.ndarray) -> np.ndarray:
        return np.maximum((k * nu + 1.0) / (nu * found.total + 1.0 / start), LEAST_SCALE * start)

    def slope(nu: np.ndarray) -> np.ndarray:
        scale = best(nu)
        own = found.log_total + k * (log(scale) + log(nu / 2) + 1.0 - psi(nu / 2)) - scale * found.total
        return np.asarray(0.5 * own - NU_DECAY)

    low = np.minimum(nu, 1.0)
    high = np.maximum(nu, (MOST_NU if calm or k >= FEW else FEW_NU) + 2.0)
    least = slope(low) <= 0.0
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        rises = slope(middle) > 0.0
        low, high = np.where(rises & ~least, middle, low), np.where(rises & ~least, high, middle)
    nu = np.where(least, low, 0.5 * (low + high))
    return nu, nu * best(nu)


def pseudo_counts(n_clusters: int, spread: np.ndarray) -> np.ndarray:
    """The kappa of each feature, ``(D,)``, that raises the objective and the hyperprior most.

    ``spread (D,)`` are the sums of ``1 / kappa_k + E[lam_kd] (m_kd - m_d)**2`` over the clusters.
    """
    return n_clusters / (spread + 2.0 / len(spread))


def log_gamma_hyperprior(nu: np.ndarray, beta: np.ndarray, kappa: np.ndarray, start: np.ndarray) -> float:
    """``log p(psi) + log p(nu) + log p(kappa)`` up to a constant, nats; all ``(D,)``, ``start`` is psi0.

    Each feature has the hyperprior of a Wishart prior of one dimension.  All features share what one pseudo-count of
    :func:`pseudo_count` costs.
    """
    ratio = beta / (nu * start)
    own = 0.5 * (log(ratio) - ratio + 1.0) - NU_DECAY * nu - kappa / len(kappa)
    return float(own.sum())


# -- few atoms --------------------------------------------------------------------------------------------------------
def extrapolated(trail: Sequence[Settings]) -> Settings | None:
    """Settings to which two successive updates lead; None if the updates do not go on in one direction.

    Updates are steps of an EM algorithm.  With fewer atoms in a cluster than degrees of freedom the clusters follow the
    prior, and each step goes a small part of the way: with 90 atoms of 256 features three percent.  Squared
    extrapolation (scheme S3) is applied to the logarithms of variances, degrees of freedom and pseudo-count.

    Parameters
    ----------
    trail
        Settings before, between and after the two updates.

    References
    ----------
    Varadhan and Roland 2008, "Simple and globally convergent methods for accelerating the convergence of any EM
    algorithm", equations 7 and 10.
    """
    last = trail[-1]
    d = len(last.scale)
    places = [
        np.concatenate([log(each.scale.diagonal() / each.nu), [log(each.nu - d + 1.0), log(each.kappa)]])
        for each in trail
    ]
    step = places[1] - places[0]
    bend = places[2] - places[1] - step
    size, turn = math.sqrt(inner(step, step)), math.sqrt(inner(bend, bend))
    if not size > turn > 0.0:
        return None
    times = size / turn
    place = places[0] + 2.0 * times * step + times**2 * bend
    few = FEW_NU * d + 2.0
    most = MOST_NU * d + 2.0 if last.nu > few else few  # an update went beyond few: nothing holds it back any more
    nu = min(max(float(exp(place[d])) + d - 1.0, float(d)), max(last.nu, most))
    stretch = exp(0.5 * (place[:d] - places[2][:d]))
    return Settings(nu, last.scale * np.outer(stretch, stretch) * (nu / last.nu), float(exp(place[d + 1])))


def log_wishart_hyperprior(nu: float, scale: np.ndarray, start: np.ndarray) -> float:
    """``log p(Psi) + log p(nu)`` up to a constant, nats, of the prior with nu and B ``(D, D)``; ``start`` is Psi0."""
    return log_scale_hyperprior(scale / nu, start) - NU_DECAY / len(start) * nu


def log_scale_hyperprior(scale: np.ndarray, start: np.ndarray) -> float:
    """``log p(Psi)``, nats, 0 at ``Psi = Psi0``; ``scale`` and ``start`` are Psi and Psi0, or V and V0, ``(D, D)``."""
    inverse, first = _inverse(start)
    return 0.5 * (_inverse(scale)[1] - first - inner(inverse, scale) + len(start))


def log_covariance_hyperprior(covariance: np.ndarray, start: np.ndarray) -> float:
    """The same of precisions, from their inverses ``(D, D)``."""
    return log_scale_hyperprior(_inverse(covariance)[0], _inverse(start)[0])
