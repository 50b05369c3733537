"""Gaussian with full covariance whose mean and covariance have independent priors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from scipy.special import gammaln, psi

from bnp_dask.core import OPTIONAL, Batch, Field, Summary, Survey, bulk_of, column_name, register
from bnp_dask.errors import SettingError
from bnp_dask.inputs import MOST_MASS
from bnp_dask.kernels import (
    EMPTY,
    Forms,
    Resp,
    cholesky_factors,
    eigenvectors,
    exp,
    joint_modes,
    log,
    log1p,
    log_integrals,
    matmul,
    nodes_of,
    pack,
)
from bnp_dask.kernels.gaussian import learned
from bnp_dask.observation import wishart
from bnp_dask.observation.base import LearnsPrior, ScaleShape
from bnp_dask.observation.dependence import without_null
from bnp_dask.observation.gaussian import FIELDS, Gaussian
from bnp_dask.observation.interface import (
    Axis,
    Density,
    Estimate,
    Estimates,
    Names,
    by_feature,
    compared_by_settings,
    mean_and_deviation,
)
from bnp_dask.observation.priors import (
    LARGEST,
    LOG_2PI,
    check_dense,
    known,
    require_near,
    usual_variance,
    width,
)
from bnp_dask.observation.wishart import NormalWishart, at_level, coefficients, posterior_scale

FINER = 1.0 / 8.0
"""Part of the usual distance of nodes at which draws of w are interpolated: a 16th of a standard deviation."""

FARTHEST_MEAN = 1e5
"""Ranges of the data, or prior deviations, that m may be away from the data: at 1e7, draws of clusters of single atoms
lose all digits."""

ROOM = 1.0 - 1e-12
"""Share of the prior's least eigenvalue that is surely below those of any posterior."""


@register
@dataclass(frozen=True, eq=False)
class IndependentWishart:
    """q(mu, Lam) per cluster, the exact posterior given the cluster's statistics.

    Coordinates are ``z = W y`` with ``W V W' = I`` and ``W A W'`` diagonal, A the scale matrix of Lam at a known mean.

    Parameters
    ----------
    expected
        Coefficients of E[log p(x | mu, Lam)], as a Normal-Wishart of the same form has them.
    n
        Atoms, ``(K,)``.
    bar
        Means of the atoms less the center, ``(K, D)``.
    nu, log_det
        Degrees of freedom, and ``log|A|``, ``(K,)``.
    inverse
        Diagonal of A in the coordinates, ``(K, D)``.
    away
        Mean of the atoms less the prior's, in the coordinates, ``(K, D)``.
    W
        ``(K, D, D)``.
    log_integral
        Log of the expectation of ``(1 + q)^-(nu / 2)`` over the prior of mu, ``(K,)`` nats.
    divergence
        KL(q || p), ``(K,)`` nats.
    mean, covariance
        E[mu] ``(K, D)`` and E[Lam^-1] ``(K, D, D)``.
    """

    expected: NormalWishart
    n: np.ndarray
    bar: np.ndarray
    nu: np.ndarray
    log_det: np.ndarray
    inverse: np.ndarray
    away: np.ndarray
    W: np.ndarray
    log_integral: np.ndarray
    divergence: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray


@dataclass(frozen=True, eq=False)
class SingleAtoms:
    """Atoms as clusters of one atom each, at modes of their posteriors, in coordinates of :class:`IndependentWishart`.

    Parameters
    ----------
    away, inverse
        Atoms less the prior mean, ``(n, D)``, and the diagonal of A, ``(D,)``.
    nu
        Degrees of freedom.
    deviation, share
        Atoms less the means of their clusters d, ``(n, D)``, and ``d' A^-1 d``, ``(n,)``.
    joint, size
        Log likelihood plus log prior of each atom in its own cluster, and the absolute sizes of their terms, ``(n,)``
        nats.
    """

    away: np.ndarray
    inverse: np.ndarray
    nu: float
    deviation: np.ndarray
    share: np.ndarray
    joint: np.ndarray
    size: np.ndarray

    def joint_with(self, index: np.ndarray) -> np.ndarray:
        """Log likelihood plus log prior of all atoms at the modes of the clusters of the atoms ``index (m,)``, ``(n,
        m)`` nats."""
        out = np.empty((len(self.away), len(index)))
        for column, c in enumerate(index.tolist()):
            own, bent = self.deviation[c], 1.0 + self.share[c]
            z = self.away - (self.away[c] - own)
            squares = np.einsum("nd,nd,d->n", z, z, 1.0 / self.inverse)
            squares = squares - matmul(z, own / self.inverse) ** 2 / bent
            # J of the atom itself has a form of share / (1 + share)
            out[:, column] = self.joint[c] - 0.5 * self.nu * (squares - self.share[c] / bent)
        return out


def _require_variance(variance: np.ndarray, scale: np.ndarray, survey: Survey) -> None:
    """SettingError unless float64 holds squares of B, diagonal ``scale (D,)``, and of data in units of V, and back."""
    reach = survey.maximum - survey.minimum
    least = np.maximum(scale, np.where(np.isfinite(reach), reach, 0.0) ** 2) / LARGEST
    wrong = ~((variance >= least) & (variance <= LARGEST))
    if wrong.any():
        column = int(wrong.argmax())
        raise SettingError(
            f"V of {column_name(survey.names, column)} is {variance[column]:.3g}, in squared units of the data; double "
            f"precision holds the integrals over means for {least[column]:.2g} to {LARGEST:g}. Pass another V, or "
            "rescale the column"
        )


class _Prior(NamedTuple):
    """Settings that are derived: inverse Cholesky factor of V, and the least eigenvalue of B in units of V."""

    root: np.ndarray
    least: float


class _GivenW(NamedTuple):
    """xbar - mu of a cluster given each of some w, in coordinates: Gaussian, with independent entries.

    ``t = log w`` and its probabilities ``mass``, ``(m,)``; mean and variance, ``(m, D)``; the log of the integral over
    w; and E[log(1 + q)].
    """

    t: np.ndarray
    mass: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    log_integral: float
    log_spread: float

    def squares(self, weights: np.ndarray) -> np.ndarray:
        """Sum over w of ``weights (m,)`` times the second moments, ``(D, D)``."""
        return np.asarray(matmul(self.mean.T, self.mean * weights[:, None]) + np.diag(matmul(weights, self.variance)))


class _Places(NamedTuple):
    """Statistics of clusters in coordinates; see :class:`IndependentWishart`."""

    n: np.ndarray
    bar: np.ndarray
    nu: np.ndarray
    scale: np.ndarray
    log_det: np.ndarray
    inverse: np.ndarray
    away: np.ndarray
    W: np.ndarray


def _log_density(at: _Places, i: int, log_integral: float, y: np.ndarray) -> np.ndarray:
    """Log predictive density of atoms ``y (n, D)`` in the cluster at position i, ``(n,)`` nats."""
    d, out = y.shape[1], np.empty(len(y))
    n, inverse = at.n[i] if at.n[i] > EMPTY else 0.0, at.inverse[i]
    share, a = n / (n + 1.0), 0.5 * (at.nu[i] + 1.0)
    u = np.ascontiguousarray(matmul(y - at.bar[i], at.W[i].T))
    log_integrals(a, n + 1.0, inverse, at.away[i], u, 1.0 / (n + 1.0), share, out)
    log_det = at.log_det[i] + log1p(share * np.einsum("nd,nd,d->n", u, u, 1.0 / inverse))
    before = wishart.log_normalizer(at.nu[i : i + 1], at.log_det[i], d) + log_integral
    return np.asarray(wishart.log_normalizer(np.full(1, 2.0 * a), log_det, d) + out - before - 0.5 * d * LOG_2PI)


@register
@compared_by_settings
@dataclass(frozen=True, eq=False)
class SemiConjugateGaussian(LearnsPrior):
    """Gaussian of full covariance with independent priors: mu ~ Normal(m, V), Lam ~ Wishart(nu, B^-1).

    The covariance is inverse Wishart, and the mean spreads as V whatever it is: clusters may be narrow and lie far
    apart, which :class:`Gaussian` believes only with small ``kappa``.

    Parameters
    ----------
    nu, B
        As in :class:`Gaussian`, with the same defaults: degrees of freedom and scale matrix.
    m
        Prior mean, ``(D,)`` or a number.  Default: mean of the data's bulk.
    V
        Covariance of the mean: a number, its diagonal ``(D,)``, or ``(D, D)`` symmetric positive definite; squared data
        units.  Default: diagonal, the variance of the data's bulk.
    center, grain, null
        As in :class:`Gaussian`.

    Notes
    -----
    q(mu, Lam) is the exact posterior given expected statistics, not a product q(mu) q(Lam): given one number w, mu is
    Gaussian, given mu, Lam is Wishart, and all expectations, the evidence, and the predictive density are integrals
    over w, exact to rounding (:mod:`bnp_dask.kernels.gaussian.semi_conjugate`).  So the objective is a function of
    summaries alone, higher than that of a product, and Gibbs sampling draws (mu, Lam) at once, not in turn.

    A global step costs an eigendecomposition for each cluster, and a predictive density some 80 times the sums over
    features that of :class:`Gaussian` costs.  The prior is learned if ``Model(..., learn_prior="diagonal")`` or
    ``"full"`` asks for it, not by default.

    Missing entries are refused; :class:`Gaussian` and :class:`DiagGaussian` integrate over them.  Statistics could be
    completed as theirs are, but an atom with the entries O alone has no predictive density of one integral: integrated
    over mu_M, Lam and x_M, the posterior leaves ``(1 + q)^-(nu / 2)`` in all of mu beside powers of forms in mu_O
    alone, a positive one among them.  Each needs a w of its own, nested, since N(m, V) and A have no common axes within
    O.  Scores of such atoms would be no ratio of evidences, and would not integrate to one.

    References
    ----------
    Prior: Gelman et al., "Bayesian Data Analysis", 3rd ed., 3.6.  Statistics as for :class:`Gaussian`.
    """

    nu: float | None = None
    B: np.ndarray | float | None = None
    m: np.ndarray | float | None = None
    V: np.ndarray | float | None = None
    center: np.ndarray | float | None = None
    grain: np.ndarray | float | None = field(default=None, metadata=OPTIONAL)
    null: np.ndarray | None = field(default=None, metadata=OPTIONAL)

    @property
    def fields(self) -> Mapping[str, Field]:
        return FIELDS

    @property
    def sizes(self) -> Mapping[str, int]:
        return self._gaussian.sizes

    def with_prior(self, survey: Survey) -> Self:
        d = survey.n_features
        found = self._gaussian.with_prior(survey)
        spread = np.diag(usual_variance(bulk_of(survey))) if self.V is None else wishart.scale_matrix(self.V, d, "V")
        _require_variance(spread.diagonal(), known("B", found.B).diagonal(), survey)
        require_near(known("m", found.m), spread.diagonal(), survey, "m", FARTHEST_MEAN)
        settings = {name: getattr(found, name) for name in ("nu", "B", "m", "center", "grain", "null")}
        return replace(self, V=spread, **settings)

    def correlated(self, n_features: int, names: object) -> np.ndarray:
        return np.arange(n_features)

    def check(self, batch: Batch) -> None:
        check_dense(self, batch, width("center", self.center), self.center, self.B)

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        return self._gaussian.summarize(batch, resp)

    # -- posteriors -----------------------------------------------------------------------------------------------
    def global_step(self, summary: Summary) -> IndependentWishart:
        at, prior = self._places(summary), self._gaussian._prior
        k, d = at.bar.shape
        log_integral, log_det_mean, form = np.empty(k), np.empty(k), np.empty(k)
        deviation, covariance = np.empty((k, d)), np.empty((k, d, d))
        precision, pull = np.empty((k, d, d)), np.empty((k, d))
        for i in range(k):
            a, n, inverse, axes = 0.5 * at.nu[i], at.n[i], at.inverse[i], matmul(known("V", self.V), at.W[i].T)
            given = self._given_w(a, n, inverse, at.away[i])
            log_integral[i], mass, mean = given.log_integral, given.mass, given.mean
            deviation[i] = matmul(mass, mean)
            scatter = given.squares(mass)
            by_w = mass * exp(given.t)
            first = matmul(by_w, mean)
            second = given.squares(by_w)
            # E[Lam | mu] = nu (A + n d d')^-1 = nu A^-1 - 2 E[w | mu] n A^-1 d d' A^-1, with d = xbar - mu
            inner = np.diag(at.nu[i] / inverse) - 2.0 * n * second / np.outer(inverse, inverse)
            precision[i] = matmul(at.W[i].T, matmul(inner, at.W[i]))
            pull[i] = matmul(at.W[i].T, 2.0 * first / inverse)  # E[Lam d]
            form[i] = 2.0 * np.sum(np.diag(second) / inverse)  # E[d' Lam d]
            log_det_mean[i] = given.log_spread
            covariance[i] = at.scale[i] + n * matmul(axes, matmul(scatter, axes.T))
            deviation[i] = matmul(axes, deviation[i])
        precision = 0.5 * (precision + precision.transpose(0, 2, 1))
        covariance = 0.5 * (covariance + covariance.transpose(0, 2, 1))
        _, root, log_det_precision = wishart.factor(precision, summary.ids, type(self).__name__)
        inverted = matmul(root.transpose(0, 2, 1), root)
        shift = at.bar - np.einsum("kij,kj->ki", inverted, pull)
        log_det = wishart.expected_log_det(at.nu, at.log_det, d) - log_det_mean
        left = np.maximum(form - np.einsum("ki,kij,kj->k", pull, inverted, pull), d / MOST_MASS)
        expected = self._expected(
            nu=at.nu,
            scale=inverted * at.nu[:, None, None],
            log_det=d * log(at.nu) - log_det_precision,
            shift=shift,
            precision=precision,
            kappa=d / left,
            level=0.5 * (log_det - left),
        )
        data = at.scale - prior.B
        score = 0.5 * (at.n * (log_det - d * LOG_2PI - form) - np.einsum("kij,kij->k", precision, data))
        return IndependentWishart(
            expected=expected,
            n=at.n,
            bar=at.bar,
            nu=at.nu,
            log_det=at.log_det,
            inverse=at.inverse,
            away=at.away,
            W=at.W,
            log_integral=log_integral,
            divergence=score - self._evidence(at, log_integral),
            mean=at.bar - deviation + prior.center,
            covariance=wishart.expected_covariance(covariance, at.nu),
        )

    def evidence(self, summary: Summary) -> np.ndarray:
        at = self._places(summary)
        return self._evidence(at, self._log_integrals(at))

    def at_mode(self, params: IndependentWishart) -> IndependentWishart:
        k, d = params.bar.shape
        shift, scale = np.empty((k, d)), np.empty((k, d, d))
        for i in range(k):
            a, n, inverse, away = 0.5 * params.nu[i], params.n[i], params.inverse[i], params.away[i]
            w = joint_modes(a, n, inverse, away[None])[0]
            shift[i], scale[i] = self._at_mean(params, i, away * inverse / (inverse + 2.0 * n * w))
        scale, root, log_det = wishart.factor(scale, np.arange(k), type(self).__name__)
        precision = matmul(root.transpose(0, 2, 1), root) * params.nu[:, None, None]
        found = self._expected(
            nu=params.nu,
            scale=scale,
            log_det=log_det,
            shift=shift,
            precision=precision,
            kappa=np.full(k, MOST_MASS),
            level=0.5 * (d * log(params.nu) - log_det),
        )
        return replace(params, expected=found, mean=shift + self._center, covariance=scale / params.nu[:, None, None])

    def at_draw(self, params: IndependentWishart, rng: np.random.Generator) -> IndependentWishart:
        k, d = params.bar.shape
        shift, scale = np.empty((k, d)), np.empty((k, d, d))
        normal = rng.standard_normal((k, d))
        uniform = rng.random((k,))
        for i in range(k):
            shift[i], scale[i] = self._at_mean(params, i, self._deviations(params, i, uniform[i : i + 1], normal[i]))
        known_mean = np.full(k, np.inf)
        given = replace(params.expected, nu=params.nu, B=scale, shift=shift, kappa=known_mean)
        found = self._gaussian.at_draw(given, rng)
        return replace(params, expected=found, mean=found.m, covariance=found.B)

    # -- log likelihoods ------------------------------------------------------------------------------------------
    def expected_log_lik(self, params: IndependentWishart, batch: Batch) -> np.ndarray:
        return self._gaussian.expected_log_lik(params.expected, batch)

    def lean(self, params: IndependentWishart, screened: bool) -> IndependentWishart:
        expected = self._gaussian.lean(params.expected, screened)
        return replace(params, expected=expected, W=params.W[:0], covariance=params.covariance[:0])

    def forms(self, params: IndependentWishart) -> Forms:
        return self._gaussian.forms(params.expected)

    def score(self, params: IndependentWishart, summary: Summary) -> np.ndarray:
        return self._gaussian.score(params.expected, summary)

    def kl(self, params: IndependentWishart) -> np.ndarray:
        return params.divergence

    def log_prior(self, params: IndependentWishart) -> np.ndarray:
        """``nu/2 log|Lam| - tr(B Lam)/2 - (mu - m)' V^-1 (mu - m)/2``: the density whose mode is the point estimate of
        :meth:`at_mode`, that is, with respect to ``|Lam|^(-(D + 1) / 2) dLam dmu``."""
        found, prior = params.expected, self._gaussian._prior
        d = found.shift.shape[1]
        log_det = d * log(found.nu) - found.log_det
        away = matmul(found.shift - (prior.m - prior.center), self._derived.root.T)
        trace = matmul(found.theta[:, d + 1 :], pack(prior.B))
        return 0.5 * prior.nu * log_det + trace - 0.5 * np.einsum("kd,kd->k", away, away)

    def log_predictive(self, params: IndependentWishart, batch: Batch) -> np.ndarray:
        """Log of the ratio of evidences with and without the atom: an integral over w for each."""
        y = np.asarray(batch.x, np.float64) - self._center
        at = _Places(
            n=params.n,
            bar=params.bar,
            nu=params.nu,
            scale=params.covariance,
            log_det=params.log_det,
            inverse=params.inverse,
            away=params.away,
            W=params.W,
        )
        columns = [_log_density(at, i, params.log_integral[i], y) for i in range(len(params.n))]
        return np.stack(columns, axis=1)

    def sequential_predictive(self, params: IndependentWishart, batch: Batch) -> Density:
        y, unrecorded = np.asarray(batch.x, np.float64) - self._center, self._gaussian._unrecorded

        def density(i: int, k: int, others: list[int]) -> float:
            n, own = float(params.n[k]), y[others]
            count = n + len(others)
            bar = (n * params.bar[k] + own.sum(axis=0)) / count if others else params.bar[k]
            axes = matmul(known("V", self.V), params.W[k].T)
            about, moved = own - bar, params.bar[k] - bar
            scale = matmul(axes * params.inverse[k], axes.T) + n * np.outer(moved, moved) + matmul(about.T, about)
            if unrecorded is not None:
                scale += len(others) * unrecorded
            at = self._in_coordinates(np.full(1, count), bar[None], scale[None], np.zeros(1, np.int64))
            return float(_log_density(at, 0, self._log_integrals(at)[0], y[i : i + 1])[0])

        return density

    def draw(self, params: IndependentWishart, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        n, d = len(place), params.bar.shape[1]
        uniform, normal = rng.random(n), rng.standard_normal((2, n, d))
        own, width = rng.standard_normal(n), rng.chisquare(params.nu[place] - d + 1.0)
        out = np.empty((n, d))
        for i in np.unique(place):
            rows = place == i
            axes = matmul(known("V", self.V), params.W[i].T)
            deviation = self._deviations(params, i, uniform[rows], normal[0, rows])
            # a draw of N(0, A + n d d'), which a chi-square makes a Student t about mu
            spread = normal[1, rows] * np.sqrt(params.inverse[i]) + np.sqrt(params.n[i]) * deviation * own[rows, None]
            z = spread / np.sqrt(width[rows, None]) - deviation
            out[rows] = params.bar[i] + without_null(matmul(z, axes.T), self.null)
        return out + self._center

    def single_atoms(self, batch: Batch) -> SingleAtoms:
        """Clusters of one atom each at the modes of their posteriors: all have the coordinates of the prior."""
        scale = self._gaussian._prior.B
        if self._gaussian._unrecorded is not None:
            scale = scale + self._gaussian._unrecorded
        root, prior = self._derived.root, self._gaussian._prior
        (inverse,), (vectors,) = eigenvectors(matmul(root, matmul(scale, root.T))[None])
        away = np.ascontiguousarray(matmul(np.asarray(batch.x, np.float64) - prior.m, matmul(vectors.T, root).T))
        nu, d = prior.nu + 1.0, len(inverse)
        w = joint_modes(0.5 * nu, 1.0, inverse, away)
        deviation = away * inverse / (inverse + 2.0 * w[:, None])  # of the atom from its cluster's mean
        share = np.einsum("nd,nd,d->n", deviation, deviation, 1.0 / inverse)
        log_det = d * log(nu) - log(inverse).sum() + 2.0 * log(np.diag(root)).sum() - log1p(share)
        level = 0.5 * (nu * (log_det - d) - d * LOG_2PI - np.sum((away - deviation) ** 2, axis=1))
        size = np.abs(nu * log_det) + nu * (d + np.einsum("nd,nd,d->n", away, away, 1.0 / inverse)) - level
        return SingleAtoms(away, inverse, nu, deviation, share, level, np.abs(size))

    # -- a learned prior ------------------------------------------------------------------------------------------
    # With q(mu_k, Lam_k) held fixed, the terms of the objective that depend on the prior are those of a Wishart, see
    # bnp_dask.kernels.gaussian.learned, and
    #
    #     -K/2 log|V| - tr(V^-1 G) / 2,      G = sum_k Cov[mu_k] + (E[mu_k] - m) (E[mu_k] - m)',
    #
    # largest at ``m = sum_k E[mu_k] / K``.  V^-1 has the hyperprior of a column precision there, about the V that
    # learning began with: it counts as one mean more, ``V = (G + V0) / (K + 1)``.
    @property
    def learns_by_default(self) -> bool:
        return False

    def _learned(
        self, params: IndependentWishart, used: np.ndarray, start: Self, shape: ScaleShape, calm: bool
    ) -> Self:
        prior, places = self._gaussian._prior, np.flatnonzero(used)
        d = params.bar.shape[1]
        own, start_V = params.mean[places] - prior.center, known("V", start.V)
        spread, log_spread = np.zeros((d, d)), 0.0
        for i in places:
            given = self._given_w(0.5 * params.nu[i], params.n[i], params.inverse[i], params.away[i])
            axes, mean = matmul(known("V", self.V), params.W[i].T), matmul(given.mass, given.mean)
            about = given._replace(mean=given.mean - mean).squares(given.mass)
            spread += matmul(axes, matmul(about, axes.T))
            log_spread += given.log_spread
        found = wishart.precisions(params.expected.theta[places, d + 1 :], params.nu[places], params.log_det[places], d)
        found = replace(found, log_det=found.log_det - log_spread)
        first = wishart.expected_scale(start._gaussian._prior.nu, start._gaussian._prior.B)
        nu, scale = learned.wishart_settings(found, prior.nu, first, shape == "full", calm)
        # as for Gaussian, the prior mean stays with few atoms
        few = wishart.has_few_atoms(float(params.n[places].sum()), d)
        mean = prior.m - prior.center if few else own.mean(axis=0)
        spread += matmul((own - mean).T, own - mean)
        V = learned.column_covariance(len(places), 0.5 * (spread + spread.T), start_V, shape == "full")
        return replace(self, nu=nu, B=scale, m=mean + prior.center, V=V)

    def log_hyperprior(self, start: Self) -> float:
        prior, first = self._gaussian._prior, start._gaussian._prior
        own = learned.log_wishart_hyperprior(prior.nu, prior.B, wishart.expected_scale(first.nu, first.B))
        return own + learned.log_covariance_hyperprior(known("V", self.V), known("V", start.V))

    # -- descriptions ---------------------------------------------------------------------------------------------
    def estimates(self, params: IndependentWishart, names: Names) -> Estimates:
        square = (Axis("feature", names), Axis("feature", names))
        covariance = Estimate(square, lambda: params.covariance)
        return {"mean": by_feature(params.mean, names), "covariance": covariance}

    def describe(self, params: IndependentWishart, k: int, names: Names) -> str:
        return mean_and_deviation(params.mean[k], np.diag(params.covariance[k]), names)

    # -- parts ----------------------------------------------------------------------------------------------------
    @cached_property
    def _gaussian(self) -> Gaussian:
        """Statistics and quadratic forms, which do not depend on the prior of the mean."""
        return Gaussian(self.nu, self.B, self.m, 1.0, self.center, grain=self.grain, null=self.null)

    @property
    def _derived(self) -> _Prior:
        # not kept: its bits depend on the order of arithmetic in use
        spread, scale = known("V", self.V), known("B", self.B)
        root = cholesky_factors(spread[None])[1][0]
        values, _ = eigenvectors(matmul(root, matmul(scale, root.T))[None])
        return _Prior(root, float(values[0, 0]))

    @property
    def _center(self) -> np.ndarray:
        return self._gaussian._prior.center

    def _places(self, summary: Summary) -> _Places:
        prior, n = self._gaussian._prior, np.maximum(summary["N"], 0.0)
        x, own = summary["x"], prior.m - prior.center
        held = n[:, None] > EMPTY
        bar = np.where(held, np.divide(x, n[:, None], out=np.zeros_like(x), where=held), own)
        alone = prior._replace(kappa=0.0)  # without shrinkage of the mean
        scale = posterior_scale(alone, self._gaussian._unrecorded, n, x, summary["xx"], np.ones_like(n))
        return self._in_coordinates(n, bar, scale, summary.ids)

    def _in_coordinates(self, n: np.ndarray, bar: np.ndarray, scale: np.ndarray, ids: np.ndarray) -> _Places:
        prior, derived = self._gaussian._prior, self._derived
        scale, _, log_det = wishart.factor(scale, ids, type(self).__name__)
        white = matmul(derived.root, matmul(scale, derived.root.T))
        values, vectors = eigenvectors(0.5 * (white + white.transpose(0, 2, 1)))
        W = matmul(vectors.transpose(0, 2, 1), derived.root)
        away = np.einsum("kij,kj->ki", W, bar - (prior.m - prior.center))
        return _Places(n, bar, prior.nu + n, scale, log_det, np.maximum(values, ROOM * derived.least), away, W)

    @classmethod
    def _given_w(cls, a: float, n: float, inverse: np.ndarray, away: np.ndarray) -> _GivenW:
        log_integral, t, mass = cls._nodes(a, n, inverse, away, 1.0)
        variance = inverse / (inverse + 2.0 * n * exp(t)[:, None])
        return _GivenW(t, mass, away * variance, variance, log_integral, float(psi(a) - np.sum(mass * t)))

    @staticmethod
    def _log_integrals(at: _Places) -> np.ndarray:
        zero, found = np.zeros((1, at.bar.shape[1])), np.zeros((len(at.n), 1))
        for i in np.flatnonzero(at.n > EMPTY):
            log_integrals(0.5 * at.nu[i], at.n[i], at.inverse[i], at.away[i], zero, 0.0, 0.0, found[i])
        return found[:, 0]

    def _evidence(self, at: _Places, log_integral: np.ndarray) -> np.ndarray:
        prior = self._gaussian._prior
        return wishart.log_evidence(at.n, at.nu, at.log_det, prior.nu, prior.B) + log_integral

    @staticmethod
    def _nodes(
        a: float, n: float, inverse: np.ndarray, away: np.ndarray, share: float
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """Log of the integral, and nodes t with their probabilities."""
        t, height = nodes_of(a, n, inverse, away, share)
        order = np.argsort(t)
        t, height = t[order], height[order]
        top = height.max()
        mass = exp(height - top)
        total = mass.sum()
        return float(top + log(total * (t[1] - t[0])) - gammaln(a)), t, mass / total

    def _deviations(self, params: IndependentWishart, i: int, uniform: np.ndarray, normal: np.ndarray) -> np.ndarray:
        """Draws of xbar - mu in the coordinates, from uniform ``(m,)`` and normal ``(m, D)`` or ``(D,)`` numbers."""
        inverse = params.inverse[i]
        _, t, mass = self._nodes(0.5 * params.nu[i], params.n[i], inverse, params.away[i], FINER)
        w = exp(np.interp(uniform, np.cumsum(mass) - 0.5 * mass, t))[:, None]
        variance = inverse / (inverse + 2.0 * params.n[i] * w)
        found = params.away[i] * variance + np.sqrt(variance) * normal
        return found if normal.ndim > 1 else found[0]

    def _at_mean(self, params: IndependentWishart, i: int, deviation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean less the center, and scale matrix of Lam, at a deviation ``(D,)`` of the mean in the coordinates."""
        axes = matmul(known("V", self.V), params.W[i].T)
        away = matmul(axes, deviation)
        scale = matmul(axes * params.inverse[i], axes.T) + params.n[i] * np.outer(away, away)
        return params.bar[i] - away, 0.5 * (scale + scale.T)

    def _expected(
        self,
        *,
        nu: np.ndarray,
        scale: np.ndarray,
        log_det: np.ndarray,
        shift: np.ndarray,
        precision: np.ndarray,
        kappa: np.ndarray,
        level: np.ndarray,
    ) -> NormalWishart:
        """Coefficients with the log likelihood ``level (K,)`` at the mean, besides constants of all clusters."""
        d = shift.shape[1]
        spread = np.sqrt(np.diagonal(scale, axis1=1, axis2=2) / nu[:, None] + shift**2)
        theta = coefficients(precision, shift)
        level = level - 0.5 * d * LOG_2PI + self._gaussian._unrecorded_loss(theta, d)
        return at_level(
            NormalWishart(
                nu=nu,
                B=scale,
                m=shift + self._center,
                kappa=kappa,
                shift=shift,
                log_det=log_det,
                level=level,
                theta=theta,
                whiten=wishart.needs_whitening(precision, spread),
            ),
            level,
        )
