"""Gaussian with full covariance and a Normal-Wishart prior (thesis 2.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Protocol, Self

import numpy as np

from bnp_dask.core import OPTIONAL, Batch, Field, Summary, Survey, bulk_of, register
from bnp_dask.errors import NumericalError, SettingError, warn
from bnp_dask.inputs import LEAST_MASS
from bnp_dask.kernels import (
    Forms,
    Resp,
    add_completed,
    add_conditional_means,
    add_marginal,
    cholesky_factors,
    cluster_distances,
    cluster_sums,
    log,
    matmul,
    moment_sums,
    n_packed,
    pack,
    packed_outer,
    patterns_of,
    quadratic_log_lik,
    rounds,
    whitened_squares,
)
from bnp_dask.kernels.gaussian import learned
from bnp_dask.kernels.gaussian.quadratic import precision_of
from bnp_dask.observation import wishart
from bnp_dask.observation.base import LearnsPrior, ScaleShape
from bnp_dask.observation.dependence import dependence_of, unrecorded_covariance, without_null
from bnp_dask.observation.interface import (
    Axis,
    Density,
    Estimate,
    Estimates,
    Names,
    by_feature,
    compared_by_settings,
    each,
    gaussian_form,
    mean_and_deviation,
    student_draws,
)
from bnp_dask.observation.missing import ENTROPY, GONE, Marginalising, Missing, filled, holes, rows_of
from bnp_dask.observation.priors import (
    LOG_2PI,
    PRIOR_SCALE,
    check_dense,
    default_location,
    default_variance,
    known,
    location,
    require_near,
    require_scale,
    require_spread,
    resolution,
    rounding_variance,
    single,
    vector,
    width,
)
from bnp_dask.observation.wishart import (
    NormalWishart,
    NormalWishartPrior,
    at_level,
    coefficients,
    constant_term,
    posterior_scale,
)


# -- atoms that lack entries --------------------------------------------------------------------------------------
# For an atom that lacks the entries M and has the others O, q(z, x_M) takes the place of q(z) in the objective
#
#     L = E[log p(x_O, x_M, z, pi, mu, Lam)] - E[log q(z, x_M)] - E[log q(pi, mu, Lam)].
#
# With q(mu_k, Lam_k) held fixed and ``P = E[Lam_k] = nu_k B_k^-1``, E[log N(x | mu_k, Lam_k)] is quadratic in x, so L
# is largest at
#
#     q(x_M | z = k) = N(a_nk, P_MM^-1),      a_nk = m_M - P_MM^-1 P_MO (x_O - m_O),
#     log r_nk = E[log pi_k] + level_k - nu_k (x - m)_O' B_OO^-1 (x - m)_O / 2
#                + (|M| log(2 pi) - log|P_MM|) / 2 + const:
#
# the expected log likelihood, integrated over x_M.  With q(z, x_M) held fixed, statistics are expectations under it:
# a_nk stands for x_M, and ``r_nk P_MM^-1`` is added to the block M of the second moments.  The term -E[log q(x_M | z)]
# of L is the entropy ``sum_n r_nk H[N(a_nk, P_MM^-1)]``, which the score of cluster k includes (the field
# ``H_missing``).  Both steps raise L, so it never falls.  Atoms without any entry are in no statistic (the field
# ``gone`` counts them): they are integrated over before, and their log likelihood is zero.
#
# Clusters that are merged keep both conditional distributions until their atoms are visited again: the entropy of a
# mixture of the two is no smaller than the weighted sum of their entropies, which the statistics hold.  At a point
# estimate P is the precision of the estimate, and this is EM.
#
# References
# ----------
# Ghahramani & Jordan (1994), "Supervised learning from incomplete data via an EM approach", with beliefs about the
# parameters in place of point estimates; thesis eqs. 3.22-3.25 for L.
class Beliefs(Protocol):
    """Parameters of a Normal-Wishart, see :class:`bnp_dask.observation.wishart.NormalWishart`."""

    @property
    def nu(self) -> np.ndarray: ...
    @property
    def B(self) -> np.ndarray: ...
    @property
    def m(self) -> np.ndarray: ...
    @property
    def kappa(self) -> np.ndarray: ...
    @property
    def shift(self) -> np.ndarray: ...
    @property
    def theta(self) -> np.ndarray: ...


def _precision(params: Beliefs) -> np.ndarray:
    """P, ``(K, D, D)``; the scale matrices B may have stayed behind."""
    return precision_of(params.theta[:, params.shift.shape[1] + 1 :])


def integrate(params: Beliefs, y: np.ndarray, gaps: np.ndarray, log_lik: np.ndarray) -> None:
    """Turn log likelihoods ``(n, K)`` of atoms ``y (n, D)``, zero at ``gaps (n, D)``, in place into integrals."""
    _require(add_marginal(y, *patterns_of(gaps), _precision(params), params.shift, log_lik))
    log_lik[gaps.all(axis=1)] = 0.0


def add_expectations(
    params: Beliefs,
    y: np.ndarray,
    gaps: np.ndarray,
    resp: Resp,
    first: np.ndarray,
    second: np.ndarray,
    entropy: np.ndarray,
) -> None:
    """Add the contribution of q(x_M | z) to moments of ``y (n, D)``, zero at ``gaps``, and its entropy; in place.

    ``first (K, D)``, ``second (K, D (D + 1) / 2)`` packed, ``entropy (K,)`` nats.
    """
    found = patterns_of(gaps)
    own = rows_of(resp, found.rows)
    _require(add_completed(y, *found, _precision(params), params.shift, own, first, second, entropy))


def conditional_means(
    params: Beliefs, center: np.ndarray, batch: Batch, gaps: np.ndarray, resp: np.ndarray
) -> np.ndarray:
    """Atoms with ``sum_k r_nk a_nk`` in place of missing entries, ``(n, D)``."""
    out = np.where(gaps, center, batch.x)
    found, y = patterns_of(gaps), out - center
    own = np.ascontiguousarray(resp[found.rows])
    _require(add_conditional_means(y, *found, _precision(params), params.shift, own, out))
    void = np.flatnonzero(gaps.all(axis=1))
    out[void] = matmul(resp[void], params.m)
    return out


def marginal_predictive(params: Beliefs, center: np.ndarray, batch: Batch, gaps: np.ndarray) -> np.ndarray:
    """Log predictive density of the entries present, ``(n, K)`` nats; 0 for atoms that lack none, or all.

    Some features of a Student t are one with nu minus the number of left-out features as degrees of freedom, and B_OO.
    """
    out, found = np.zeros((batch.n_atoms, len(params.nu))), patterns_of(gaps)
    for mask, start, stop in zip(found.masks, found.starts[:-1], found.starts[1:], strict=True):
        own, rows = np.flatnonzero(~mask), found.rows[start:stop]
        y = batch.x[np.ix_(rows, own)] - center[own]
        lower, roots, _ = cholesky_factors(params.B[np.ix_(np.arange(len(params.nu)), own, own)])
        for k in range(len(params.nu)):
            squares = whitened_squares(y, params.shift[k, own], roots[k])
            nu, stretch = params.nu[k] - mask.sum(), 1.0 + 1.0 / params.kappa[k]
            log_det = 2.0 * float(log(lower[k].diagonal()).sum())
            out[rows, k] = wishart.student_log_density(squares, nu, log_det, stretch, len(own))
    return out


def _require(sound: bool) -> None:
    """Raise NumericalError if a kernel reports a block of a precision without a factor."""
    if not sound:
        raise NumericalError(
            "the precision of a cluster given some entries is not positive definite in double precision: its columns "
            "are all but collinear. Pass a larger Gaussian(B=...), or drop columns that others determine"
        )


# -- the likelihood -----------------------------------------------------------------------------------------------
FIELDS: Mapping[str, Field] = MappingProxyType({"x": Field(("cluster", "feature")), "xx": Field(("cluster", "packed"))})
"""Statistics of complete rows; made once, since steps of small runs ask for them thousands of times."""

FIELDS_WITH_MISSING: Mapping[str, Field] = MappingProxyType(
    {**FIELDS, ENTROPY: Field(("cluster",)), GONE: Field(("cluster",))}
)
"""Statistics of rows with missing entries."""

ROUNDS = 3
"""Passes over atoms with missing entries when their clusters have no posterior yet."""


WIDE = 300
"""Columns from which fewer rows than columns are told: groups of twenty
rows in 256 are found."""


@register
@compared_by_settings
@dataclass(frozen=True, eq=False)
class Gaussian(Marginalising, LearnsPrior):
    """Gaussian of full covariance: Lam ~ Wishart(nu, B^-1), mu | Lam ~ Normal(m, (kappa Lam)^-1).

    Parameters
    ----------
    nu
        Degrees of freedom, > D - 1.  Default D + 2, and more if there are fewer than ten atoms for each feature
        (:func:`bnp_dask.observation.wishart.degrees_of_freedom`).
    B
        Scale matrix: a number, its diagonal ``(D,)``, or ``(D, D)`` symmetric positive definite; squared data
        units.  Default: diagonal, E[covariance] = B / (nu - D - 1) is a tenth of the variance of
        the data's bulk (see :func:`bnp_dask.core.survey.bulk_of`); less along directions in which the data hardly vary
        (:mod:`bnp_dask.observation.dependence`).
    m
        Prior mean, ``(D,)`` or a number.  Default: mean of the data's bulk.
    kappa
        Pseudo-count of the prior mean, > 0.  Default 0.1: cluster means are expected to spread as the data do.
    center
        Point about which statistics are taken, ``(D,)``, so that large offsets cost no precision.  Default: mean
        of the data's bulk.
    missing
        ``"marginalise"``: NaN is a missing entry, and is integrated over.  Default: refused.
    grain
        Resolution of each column, ``(D,)`` or a number, data units: the true value lies within half of it of the
        recorded one.  0 for continuous columns.  Default: found from the data, see
        :func:`bnp_dask.core.survey.grain_of`; 0 with ``missing``.  Its variance of rounding is part of every cluster's
        variance (:mod:`bnp_dask.observation.priors`).
    null
        Combinations of columns that are the same in all rows, and the prior's covariance along them,
        ``(2, k, D)``.  Default: found from the data, see :mod:`bnp_dask.observation.dependence`;
        ``np.zeros((2, 0, D))`` for none.
    doubt
        How well B is known where it is learned as random, ``(D + 2,)``, see
        :class:`bnp_dask.kernels.gaussian.learned.Doubt`.  Default: B is known.

    Notes
    -----
    Missing entries are part of the variational distribution, see :mod:`bnp_dask.observation.gaussian`.

    References
    ----------
    Thesis 2.2; statistics ``x`` and ``xx`` are sums of r y and r y y' (packed) with y = x - center.
    """

    nu: float | None = None
    B: np.ndarray | float | None = None
    m: np.ndarray | float | None = None
    kappa: float | None = None
    center: np.ndarray | float | None = None
    missing: Missing = field(default=None, metadata=OPTIONAL)
    grain: np.ndarray | float | None = field(default=None, metadata=OPTIONAL)
    null: np.ndarray | None = field(default=None, metadata=OPTIONAL)
    doubt: np.ndarray | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.missing and self.grain is not None and np.any(self.grain):
            raise SettingError(
                f"Gaussian(missing={self.missing!r}, grain=...): clusters with correlations do not count rounding "
                "where entries are missing; use DiagGaussian, or leave grain out"
            )

    @property
    def fields(self) -> Mapping[str, Field]:
        return FIELDS_WITH_MISSING if self.marginalises else FIELDS

    @property
    def sizes(self) -> Mapping[str, int]:
        d = known("center", self.center).size
        return {"feature": d, "packed": n_packed(d)}

    def with_prior(self, survey: Survey) -> Self:
        d = survey.n_features
        require_spread(survey)
        nu = wishart.degrees_of_freedom(self.nu, d, survey.n_atoms)
        kappa = single("kappa", PRIOR_SCALE if self.kappa is None else self.kappa)
        bulk = bulk_of(survey)
        grain = None if self.marginalises else resolution(self.grain, survey)
        found = dependence_of(survey, bulk, rounding_variance(grain))
        if self.B is None:
            scale = found.scale_along(wishart.default_scale(default_variance(bulk), nu))
        else:
            scale = wishart.scale_matrix(self.B, d)
        null = found.null_setting(wishart.expected_scale(nu, scale)) if self.null is None else self.null
        mean = default_location(bulk)
        m = mean if self.m is None else vector("m", location("m", self.m), d)
        center = mean if self.center is None else vector("center", location("center", self.center), d)
        require_scale("B", scale.diagonal(), survey, center)
        require_near(center, scale.diagonal(), survey)
        found.tell()
        if d >= WIDE and survey.n_atoms < d:
            warn(
                f"{survey.n_atoms:,} rows of {d:,} columns: they show little of full covariances, {d * (d + 1) // 2:,} "
                "numbers a cluster, and each lap takes long; DiagGaussian() learns variances alone; or take the "
                "first principal components"
            )
        return replace(self, nu=nu, B=scale, m=m, kappa=kappa, center=center, grain=grain, null=null)

    def correlated(self, n_features: int, names: Sequence[str] | None) -> np.ndarray:
        return np.arange(n_features)

    def check(self, batch: Batch) -> None:
        check_dense(self, batch, width("center", self.center), self.center, self.B, self.missing)

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        gaps = holes(batch, self.missing)
        if gaps is None:
            return self._sums(batch, resp, None, None)
        n_clusters = resp.shape[1] if isinstance(resp, np.ndarray) else resp.n_clusters
        ids, fields = np.arange(n_clusters), {"N": Field(("cluster",)), **self.fields}
        # without a posterior, start from the prior, then use the posteriors that follow
        sizes = {"cluster": n_clusters, **self.sizes}
        values = {name: np.zeros([sizes[dim] for dim in field.dims]) for name, field in fields.items()}
        for _ in range(ROUNDS):
            params = self.global_step(Summary(ids, fields, values))
            values = {"N": cluster_sums(resp), **self._sums(batch, resp, gaps, params)}
        return {name: values[name] for name in self.fields}

    def complete(self, params: NormalWishart, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        return self._sums(batch, resp, holes(batch, self.missing), params)

    def _sums(
        self, batch: Batch, resp: Resp, gaps: np.ndarray | None, params: NormalWishart | None
    ) -> dict[str, np.ndarray]:
        """Expected statistics of a batch with ``gaps (n, D)``, or none."""
        center = self._prior.center
        x = filled(batch, gaps, center)
        first, second = moment_sums(x, center, resp)
        entropy = np.zeros(len(first))
        if gaps is not None and params is not None:
            add_expectations(params, x - center, gaps, resp, first, second, entropy)
        held = {"x": first, "xx": second}
        if not self.marginalises:
            return held
        void = np.zeros(len(first)) if gaps is None else rows_of(resp, np.flatnonzero(gaps.all(axis=1))).sum(axis=0)
        return {**held, ENTROPY: entropy, GONE: void}

    def _count(self, summary: Summary) -> np.ndarray:
        """Atoms of each cluster that have any entry, ``(K,)``."""
        n: np.ndarray = summary["N"]
        return np.maximum(n - summary[GONE], 0.0) if self.marginalises and summary[GONE].any() else n

    def global_step(self, summary: Summary) -> NormalWishart:
        prior, n = self._prior, self._count(summary)
        d = prior.center.size
        nu, kappa = prior.nu + n, prior.kappa + n
        shift = (prior.kappa * (prior.m - prior.center) + summary["x"]) / kappa[:, None]
        scale = posterior_scale(prior, self._unrecorded, n, summary["x"], summary["xx"], kappa)
        scale, root, log_det = wishart.factor(scale, summary.ids, type(self).__name__)
        precision = matmul(root.transpose(0, 2, 1), root)
        precision *= nu[:, None, None]
        spread = np.sqrt(np.diagonal(scale, axis1=1, axis2=2) / nu[:, None] + shift**2)
        theta = coefficients(precision, shift)
        level = 0.5 * (wishart.expected_log_det(nu, log_det, d) - d * LOG_2PI - d / kappa)
        level = level + self._unrecorded_loss(theta, d)
        theta[:, d] = constant_term(level, theta[:, :d], shift)
        return NormalWishart(
            nu=nu,
            B=scale,
            m=shift + prior.center,
            kappa=kappa,
            shift=shift,
            log_det=log_det,
            level=level,
            theta=theta,
            whiten=wishart.needs_whitening(precision, spread),
        )

    @cached_property
    def _charge(self) -> float:
        """Nats that each cluster pays because B is not known."""
        return 0.0 if self.doubt is None else learned.charge(self._prior.nu, learned.doubt_of(self.doubt))

    @property
    def _unrecorded(self) -> np.ndarray | None:
        return self._unrecorded_held[0]

    @cached_property
    def _unrecorded_held(self) -> tuple[np.ndarray | None]:
        # in a tuple, because arrays among the attributes are settings of the prior
        return (unrecorded_covariance(self.grain, self.null),)

    def _unrecorded_loss(self, theta: np.ndarray, d: int) -> np.ndarray | float:
        """Loss of an atom's log likelihood by its unrecorded covariance, ``(K,)`` nats."""
        covariance = self._unrecorded
        return 0.0 if covariance is None else matmul(theta[:, d + 1 :], pack(covariance))

    def evidence(self, summary: Summary) -> np.ndarray:
        prior, n = self._prior, self._count(summary)
        nu, kappa = prior.nu + n, prior.kappa + n
        scale = posterior_scale(prior, self._unrecorded, n, summary["x"], summary["xx"], kappa)
        log_det = wishart.log_dets(scale, summary.ids, type(self).__name__)
        mean_part = 0.5 * prior.center.size * log(prior.kappa / kappa)
        evidence = wishart.log_evidence(n, nu, log_det, prior.nu, prior.B) + mean_part - self._charge
        return evidence + summary[ENTROPY] if self.marginalises else evidence

    def small_run(self, gamma: float) -> rounds.SmallRun | None:
        prior = self._prior
        if self.marginalises or len(prior.B) > rounds.MOST_FEATURES:
            return None
        settings = rounds.Settings(
            nu=prior.nu,
            kappa=prior.kappa,
            mean=prior.m - prior.center,
            scale=np.array(prior.B),
            unrecorded=np.zeros_like(prior.B) if self._unrecorded is None else np.array(self._unrecorded),
            normalizer=wishart.prior_normalizer(prior.nu, prior.B) + self._charge,
            gamma=float(gamma),
        )
        return rounds.SmallRun(settings, prior.center)

    def at_mode(self, params: NormalWishart) -> NormalWishart:
        d = params.shift.shape[1]
        level = 0.5 * (d * log(params.nu) - params.log_det - d * LOG_2PI)
        return at_level(params, level + self._unrecorded_loss(params.theta, d))

    def at_draw(self, params: NormalWishart, rng: np.random.Generator) -> NormalWishart:
        d = params.shift.shape[1]
        drawn = wishart.draw_precisions(params.B, params.nu, rng)
        shift = params.shift + drawn.normals(rng) / np.sqrt(params.kappa)[:, None]
        spread = np.sqrt(np.diagonal(drawn.covariance, axis1=1, axis2=2) + shift**2)
        theta = coefficients(drawn.precision, shift)
        found = replace(
            params,
            nu=np.ones_like(params.nu),
            B=drawn.covariance,
            m=shift + self._prior.center,
            shift=shift,
            log_det=drawn.log_det,
            theta=theta,
            whiten=wishart.needs_whitening(drawn.precision, spread),
        )
        level = -0.5 * (drawn.log_det + d * LOG_2PI)
        return at_level(found, level + self._unrecorded_loss(found.theta, d))

    def expected_log_lik(self, params: NormalWishart, batch: Batch) -> np.ndarray:
        gaps, center = holes(batch, self.missing), self._prior.center
        x = filled(batch, gaps, center)
        if params.whiten.all():
            out = np.empty((batch.n_atoms, len(params.nu)))
        else:
            out = quadratic_log_lik(x, center, params.theta)
        if params.whiten.any():
            y = x - center
            for k in np.flatnonzero(params.whiten):
                squares = whitened_squares(y, params.shift[k], wishart.root(params.B[k]))
                out[:, k] = params.level[k] - 0.5 * params.nu[k] * squares
        if gaps is not None:
            integrate(params, x - center, gaps, out)
        return out

    def lean(self, params: NormalWishart, screened: bool) -> NormalWishart:
        return wishart.without_scale(params, screened)

    def forms(self, params: NormalWishart) -> Forms:
        return Forms(self._prior.center, params.shift, params.B, params.nu, params.level)

    def score(self, params: NormalWishart, summary: Summary) -> np.ndarray:
        d = params.shift.shape[1]
        total = (
            params.theta[:, d] * self._count(summary)
            + np.einsum("kd,kd->k", params.theta[:, :d], summary["x"])
            + np.einsum("kp,kp->k", params.theta[:, d + 1 :], summary["xx"])
        )
        return total + summary[ENTROPY] if self.marginalises else total

    def kl(self, params: NormalWishart) -> np.ndarray:
        prior, d = self._prior, params.shift.shape[1]
        quadratic = params.theta[:, d + 1 :]
        wishart_part = wishart.wishart_kl(params.nu, params.log_det, prior.nu, prior.B, quadratic)
        ratio = prior.kappa / params.kappa
        normal = 0.5 * d * (ratio - 1.0 - log(ratio)) + self._pull(params)
        return wishart_part + normal + self._charge

    def log_prior(self, params: NormalWishart) -> np.ndarray:
        """``nu/2 log|Lam| - tr(B Lam)/2 - kappa/2 (mu - m)' Lam (mu - m)``: the density whose mode is the point
        estimate of :meth:`at_mode`, that is, with respect to ``|Lam|^(-D/2) dLam dmu``."""
        prior, d = self._prior, params.shift.shape[1]
        log_det = d * log(params.nu) - params.log_det
        return 0.5 * prior.nu * log_det + matmul(params.theta[:, d + 1 :], pack(prior.B)) - self._pull(params)

    def draw(self, params: NormalWishart, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        away = student_draws(params.B, params.nu, 1.0 + 1.0 / params.kappa, place, rng)
        return params.m[place] + without_null(away, self.null)

    def single_atoms(self, batch: Batch) -> wishart.SingleAtoms:
        """Atoms without missing entries as clusters of one atom each."""
        prior = self._prior
        scale = prior.B if self._unrecorded is None else prior.B + self._unrecorded
        return wishart.single_atoms(batch.x - prior.center, prior.m - prior.center, prior.nu, scale, prior.kappa)

    def _pull(self, params: NormalWishart) -> np.ndarray:
        """``kappa / 2 (m_k - m)' E[Lam_k] (m_k - m)`` with the prior's kappa and m, ``(K,)``."""
        prior = self._prior
        away = params.shift - (prior.m - prior.center)
        quadratic = params.theta[:, params.shift.shape[1] + 1 :]
        return -prior.kappa * np.einsum("kp,kp->k", quadratic, packed_outer(away, away))

    @property
    def learns_by_default(self) -> bool:
        return all(setting is None for setting in (self.nu, self.B, self.m, self.kappa))

    def _learned(self, params: NormalWishart, used: np.ndarray, start: Self, shape: ScaleShape, calm: bool) -> Self:
        prior, d = self._prior, params.shift.shape[1]
        first = wishart.expected_scale(start._prior.nu, start._prior.B)
        theta, kappa = params.theta[used], params.kappa[used]
        found = wishart.precisions(theta[:, d + 1 :], params.nu[used], params.log_det[used], d)
        # with few atoms the prior mean would follow single clusters, and others of that place would cost nothing
        n_atoms = float((params.nu[used] - prior.nu).sum())
        few = wishart.has_few_atoms(n_atoms, d)
        shift = prior.m - prior.center if few else learned.mean_settings(found, theta[:, :d].sum(axis=0))
        away = params.shift[used] - shift
        pull = -2.0 * np.einsum("kp,kp->", theta[:, d + 1 :], packed_outer(away, away))
        doubt = None
        may_be_random = shape == "random" or (shape == "held" and self.doubt is not None)
        if may_be_random and not first[~np.eye(d, dtype=np.bool_)].any():
            now = None if self.doubt is None else learned.doubt_of(self.doubt)
            nu, scale, doubt = learned.random_settings(found, prior.nu, now, first, calm)
        else:
            nu, scale = learned.wishart_settings(found, prior.nu, first, shape == "full", calm)
        count = max(LEAST_MASS, learned.pseudo_count(found.n_clusters, d, float(pull + (d / kappa).sum())))
        packed = None if doubt is None else doubt.packed()
        return replace(self, nu=nu, B=scale, m=shift + prior.center, kappa=count, doubt=packed)

    def extrapolated(self, first: Self, second: Self, n_atoms: float) -> Self | None:
        priors = [each._prior for each in (first, second, self)]
        if not wishart.has_few_atoms(n_atoms, len(priors[-1].B)):
            return None
        found = learned.extrapolated([learned.Settings(each.nu, each.B, each.kappa) for each in priors])
        return None if found is None else replace(self, nu=found.nu, B=found.scale, kappa=max(LEAST_MASS, found.kappa))

    def log_hyperprior(self, start: Self) -> float:
        prior, first = self._prior, wishart.expected_scale(start._prior.nu, start._prior.B)
        if self.doubt is None:
            return learned.log_wishart_hyperprior(prior.nu, prior.B, first) - prior.kappa
        doubt = learned.doubt_of(self.doubt)
        own = learned.log_wishart_hyperprior(prior.nu, prior.nu * np.diag(doubt.spread), first) - prior.kappa
        return own - learned.divergence(prior.nu, prior.B, doubt)

    def estimates(self, params: NormalWishart, names: Names) -> Estimates:
        square = (Axis("feature", names), Axis("feature", names))
        covariance = Estimate(square, lambda: wishart.expected_covariance(params.B, params.nu))
        mean = by_feature(params.m, names)
        return {"mean": mean, "covariance": covariance, "nu": each(params.nu), "kappa": each(params.kappa)}

    def describe(self, params: NormalWishart, k: int, names: Names) -> str:
        variance = wishart.expected_variance(params.B[k : k + 1], params.nu[k : k + 1])[0]
        return mean_and_deviation(params.m[k], variance, names)

    def log_predictive(self, params: NormalWishart, batch: Batch) -> np.ndarray:
        """Student t with nu - D + 1 degrees of freedom, of the entries present."""
        gaps = holes(batch, self.missing)
        if gaps is not None:
            whole = np.flatnonzero(~gaps.any(axis=1))
            out = marginal_predictive(params, self._prior.center, batch, gaps)
            out[whole] = self.log_predictive(params, batch.take(whole)) if len(whole) else 0.0
            return out
        y, roots = batch.x - self._prior.center, cholesky_factors(params.B)[1]
        squares = cluster_distances(y, params.shift, roots)
        return wishart.student_log_density(squares, params.nu, params.log_det, 1.0 + 1.0 / params.kappa, y.shape[1])

    def sequential_predictive(self, params: NormalWishart, batch: Batch) -> Density:
        y = batch.x - self._prior.center
        return gaussian_form(y, params.shift, params.B, params.nu, params.kappa, self._unrecorded)

    def impute(self, params: NormalWishart, batch: Batch, resp: np.ndarray) -> np.ndarray:
        gaps = holes(batch, self.missing)
        return np.array(batch.x) if gaps is None else conditional_means(params, self._prior.center, batch, gaps, resp)

    @cached_property
    def _prior(self) -> NormalWishartPrior:
        nu, kappa = float(known("nu", self.nu)), float(known("kappa", self.kappa))
        return NormalWishartPrior(nu, known("B", self.B), known("m", self.m), kappa, known("center", self.center))
