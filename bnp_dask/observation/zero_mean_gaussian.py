"""Gaussian of mean zero and full covariance with a Wishart prior (thesis 2.2; for image patches)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, Self

import numpy as np

from bnp_dask.core import OPTIONAL, Batch, Field, Summary, Survey, bulk_of, register
from bnp_dask.kernels import (
    Forms,
    Resp,
    cholesky_factors,
    cluster_distances,
    log,
    matmul,
    moment_sums,
    n_packed,
    pack,
    quadratic_coefficients,
    quadratic_log_lik,
    unpack,
    whitened_squares,
)
from bnp_dask.kernels.gaussian import learned
from bnp_dask.observation import wishart
from bnp_dask.observation.base import LearnsPrior, ScaleShape
from bnp_dask.observation.dependence import dependence_of, unrecorded_covariance, without_null
from bnp_dask.observation.interface import (
    Axis,
    Estimate,
    Estimates,
    Names,
    compared_by_settings,
    each,
    student_draws,
    vector,
)
from bnp_dask.observation.priors import (
    LOG_2PI,
    check_dense,
    default_variance,
    known,
    require_scale,
    require_spread,
    resolution,
    rounding_variance,
    width,
)


@register
@dataclass(frozen=True, eq=False)
class WishartParams:
    """q(Lam) per cluster, and the coefficients of the log likelihood.

    Parameters
    ----------
    nu, B
        Degrees of freedom ``(K,)`` and scale matrix ``(K, D, D)``.
    log_det
        ``log|B|``, ``(K,)``.
    theta
        Coefficients of ``[1, x_i x_j (i <= j)]``, ``(K, 1 + D (D + 1) / 2)``.
    whiten
        Clusters whose log likelihoods are computed by whitening, because ``theta`` would lose digits, ``(K,)``.
    """

    nu: np.ndarray
    B: np.ndarray
    log_det: np.ndarray
    theta: np.ndarray
    whiten: np.ndarray


@register
@compared_by_settings
@dataclass(frozen=True, eq=False)
class ZeroMeanGaussian(LearnsPrior):
    """Gaussian of mean zero: Lam ~ Wishart(nu, B^-1).

    Parameters
    ----------
    nu
        Degrees of freedom, > D - 1.  Default D + 2, and more if there are fewer than ten atoms for each feature
        (:func:`bnp_dask.observation.wishart.degrees_of_freedom`).
    B
        Scale matrix: a number, its diagonal ``(D,)``, or ``(D, D)`` symmetric positive definite; squared data
        units.  Default: diagonal, E[covariance] = B / (nu - D - 1) is a tenth of the mean square of
        the data's bulk (see :func:`bnp_dask.core.survey.bulk_of`); less along directions in which the data hardly vary
        (:mod:`bnp_dask.observation.dependence`).
    grain
        Resolution of each column, ``(D,)`` or a number, data units: the true value lies within half of it of the
        recorded one.  0 for continuous columns.  Default: found from the data, see
        :func:`bnp_dask.core.survey.grain_of`.  Its
        variance of rounding is part of every cluster's variance (:mod:`bnp_dask.observation.priors`).
    null
        Combinations of columns that are the same in all rows, and the prior's covariance along them,
        ``(2, k, D)``.  Default: found from the data, see :mod:`bnp_dask.observation.dependence`;
        ``np.zeros((2, 0, D))`` for none.

    References
    ----------
    Thesis 2.2; the statistic ``xx`` is the sum of r x x', packed.
    """

    nu: float | None = None
    B: np.ndarray | float | None = None
    grain: np.ndarray | float | None = field(default=None, metadata=OPTIONAL)
    null: np.ndarray | None = field(default=None, metadata=OPTIONAL)

    @property
    def fields(self) -> Mapping[str, Field]:
        return MappingProxyType({"xx": Field(("cluster", "packed"))})

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"packed": n_packed(len(self._prior.B))}

    def with_prior(self, survey: Survey) -> Self:
        require_spread(survey, about_zero=True)
        nu = wishart.degrees_of_freedom(self.nu, survey.n_features, survey.n_atoms)
        bulk = bulk_of(survey)
        about_zero = replace(bulk, variance=bulk.variance + bulk.mean**2)
        grain = resolution(self.grain, survey)
        found = dependence_of(survey, about_zero, rounding_variance(grain), about_zero=True)
        if self.B is None:
            scale = found.scale_along(wishart.default_scale(default_variance(about_zero), nu))
        else:
            scale = wishart.scale_matrix(self.B, survey.n_features)
        null = found.null_setting(wishart.expected_scale(nu, scale)) if self.null is None else self.null
        require_scale("B", scale.diagonal(), survey, 0.0)
        found.tell()
        return replace(self, nu=nu, B=scale, grain=grain, null=null)

    def correlated(self, n_features: int, names: Sequence[str] | None) -> np.ndarray:
        return np.arange(n_features)

    def check(self, batch: Batch) -> None:
        scale = None if self.B is None or np.ndim(self.B) != 2 else self.B
        check_dense(self, batch, width("B", self.B), 0.0, scale)

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        return {"xx": moment_sums(batch.x, None, resp)[1]}

    def global_step(self, summary: Summary) -> WishartParams:
        prior = self._prior
        d, nu = len(prior.B), prior.nu + summary["N"]
        scale = self._posterior_scale(summary)
        scale, root, log_det = wishart.factor(scale, summary.ids, type(self).__name__)
        precision = nu[:, None, None] * matmul(root.transpose(0, 2, 1), root)
        spread = np.sqrt(np.diagonal(scale, axis1=1, axis2=2) / nu[:, None])
        level = 0.5 * (wishart.expected_log_det(nu, log_det, d) - d * LOG_2PI)
        theta = np.concatenate([level[:, None], quadratic_coefficients(precision)], axis=1)
        theta[:, 0] += self._unrecorded_loss(theta)
        return WishartParams(nu, scale, log_det, theta, wishart.needs_whitening(precision, spread))

    def _posterior_scale(self, summary: Summary) -> np.ndarray:
        """B of the posterior, ``(K, D, D)``: prior + second moments + unrecorded covariance."""
        prior = self._prior.B
        scale = prior + unpack(summary["xx"], len(prior))
        if self._unrecorded is not None:
            scale += np.maximum(summary["N"], 0.0)[:, None, None] * self._unrecorded
        return scale

    @property
    def _unrecorded(self) -> np.ndarray | None:
        return unrecorded_covariance(self.grain, self.null)

    def _unrecorded_loss(self, theta: np.ndarray) -> np.ndarray | float:
        """Loss of an atom's log likelihood by its unrecorded covariance, ``(K,)`` nats."""
        covariance = self._unrecorded
        return 0.0 if covariance is None else matmul(theta[:, 1:], pack(covariance))

    def evidence(self, summary: Summary) -> np.ndarray:
        prior, scale = self._prior, self._posterior_scale(summary)
        log_det = wishart.log_dets(scale, summary.ids, type(self).__name__)
        return wishart.log_evidence(summary["N"], prior.nu + summary["N"], log_det, prior.nu, prior.B)

    def at_mode(self, params: WishartParams) -> WishartParams:
        d = len(self._prior.B)
        theta = params.theta.copy()
        theta[:, 0] = 0.5 * (d * log(params.nu) - params.log_det - d * LOG_2PI) + self._unrecorded_loss(theta)
        return replace(params, theta=theta)

    def at_draw(self, params: WishartParams, rng: np.random.Generator) -> WishartParams:
        drawn = wishart.draw_precisions(params.B, params.nu, rng)
        level = -0.5 * (drawn.log_det + len(self._prior.B) * LOG_2PI)
        theta = np.concatenate([level[:, None], quadratic_coefficients(drawn.precision)], axis=1)
        theta[:, 0] += self._unrecorded_loss(theta)
        spread = np.sqrt(np.diagonal(drawn.covariance, axis1=1, axis2=2))
        whiten = wishart.needs_whitening(drawn.precision, spread)
        return WishartParams(np.ones_like(params.nu), drawn.covariance, drawn.log_det, theta, whiten)

    def expected_log_lik(self, params: WishartParams, batch: Batch) -> np.ndarray:
        if params.whiten.all():
            out = np.empty((batch.n_atoms, len(params.nu)))
        else:
            out = quadratic_log_lik(batch.x, None, params.theta)
        for k in np.flatnonzero(params.whiten):
            squares = whitened_squares(batch.x, None, wishart.root(params.B[k]))
            out[:, k] = params.theta[k, 0] - 0.5 * params.nu[k] * squares
        return out

    def lean(self, params: WishartParams, screened: bool) -> WishartParams:
        return wishart.without_scale(params, screened)

    def forms(self, params: WishartParams) -> Forms:
        d = len(self._prior.B)
        return Forms(np.zeros(d), np.zeros((len(params.nu), d)), params.B, params.nu, params.theta[:, 0])

    def score(self, params: WishartParams, summary: Summary) -> np.ndarray:
        quadratic = np.einsum("kp,kp->k", params.theta[:, 1:], summary["xx"])
        return params.theta[:, 0] * summary["N"] + quadratic

    def kl(self, params: WishartParams) -> np.ndarray:
        prior = self._prior
        return wishart.wishart_kl(params.nu, params.log_det, prior.nu, prior.B, params.theta[:, 1:])

    def log_prior(self, params: WishartParams) -> np.ndarray:
        """``nu/2 log|Lam| - tr(B Lam)/2``: the density with respect to ``|Lam|^(-(D + 1)/2) dLam``, whose
        mode is the point estimate of :meth:`at_mode`."""
        prior = self._prior
        log_det = len(prior.B) * log(params.nu) - params.log_det
        return 0.5 * prior.nu * log_det + matmul(params.theta[:, 1:], pack(prior.B))

    def draw(self, params: WishartParams, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return without_null(student_draws(params.B, params.nu, np.ones(len(params.nu)), place, rng), self.null)

    def single_atoms(self, batch: Batch) -> wishart.SingleAtoms:
        """Atoms without missing entries as clusters of one atom each."""
        prior = self._prior
        scale = prior.B if self._unrecorded is None else prior.B + self._unrecorded
        return wishart.single_atoms(batch.x, None, prior.nu, scale, np.inf)

    @property
    def learns_by_default(self) -> bool:
        return False

    def _learned(self, params: WishartParams, used: np.ndarray, start: Self, shape: ScaleShape, calm: bool) -> Self:
        prior = self._prior
        found = wishart.precisions(params.theta[used, 1:], params.nu[used], params.log_det[used], len(prior.B))
        first = wishart.expected_scale(*start._prior)
        nu, scale = learned.wishart_settings(found, prior.nu, first, shape == "full", calm)
        return replace(self, nu=nu, B=scale)

    def extrapolated(self, first: Self, second: Self, n_atoms: float) -> Self | None:
        priors = [each._prior for each in (first, second, self)]
        if not wishart.has_few_atoms(n_atoms, len(priors[-1].B)):
            return None
        found = learned.extrapolated([learned.Settings(each.nu, each.B) for each in priors])
        return None if found is None else replace(self, nu=found.nu, B=found.scale)

    def log_hyperprior(self, start: Self) -> float:
        return learned.log_wishart_hyperprior(*self._prior, wishart.expected_scale(*start._prior))

    def estimates(self, params: WishartParams, names: Names) -> Estimates:
        square = (Axis("feature", names), Axis("feature", names))
        covariance = Estimate(square, lambda: wishart.expected_covariance(params.B, params.nu))
        return {"covariance": covariance, "nu": each(params.nu)}

    def describe(self, params: WishartParams, k: int, names: Names) -> str:
        values = np.linalg.eigvalsh(params.B[k])
        share = values[-1] / values.sum()
        variance = wishart.expected_variance(params.B[k : k + 1], params.nu[k : k + 1])[0]
        return f"sd {vector(np.sqrt(variance), names)}; {share:.0%} of variance in one direction"

    def log_predictive(self, params: WishartParams, batch: Batch) -> np.ndarray:
        """Student t with nu - D + 1 degrees of freedom."""
        d = len(self._prior.B)
        squares = cluster_distances(batch.x, np.zeros((len(params.nu), d)), cholesky_factors(params.B)[1])
        return wishart.student_log_density(squares, params.nu, params.log_det, 1.0, d)

    @property
    def _prior(self) -> _Prior:
        return _Prior(nu=float(known("nu", self.nu)), B=known("B", self.B))


class _Prior(NamedTuple):
    """Settings, all known: ``B (D, D)``."""

    nu: float
    B: np.ndarray
