"""Gaussian with known variance per feature and a Normal prior on its mean (thesis 2.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, Self

import numpy as np

from bnp_dask.core import OPTIONAL, Batch, Field, Summary, Survey, bulk_of, register
from bnp_dask.kernels import Resp, cluster_sums, diagonal_squares, log, matmul
from bnp_dask.observation.base import LOG_BASE
from bnp_dask.observation.checks import atom_mass
from bnp_dask.observation.dependence import few_columns, tell_of_columns
from bnp_dask.observation.interface import (
    Density,
    Estimates,
    Names,
    by_feature,
    by_feature_or_each,
    compared_by_settings,
    known_variance_form,
    mean_and_deviation,
)
from bnp_dask.observation.missing import (
    GONE,
    GONE_FIELD,
    Marginalising,
    Missing,
    by_column,
    counts_of,
    filled,
    holes,
    one_or_each,
    without_gone,
)
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
    scales,
    single,
    vector,
    width,
)


@register
@dataclass(frozen=True, eq=False)
class NormalMean:
    """q(mu) = N(m, variance / kappa) and the coefficients in use.

    ``m (K, D)``, ``kappa (K,)``; log likelihood is ``linear . y + const`` for centred atoms y, up to log h(x):
    ``linear (K, D)``, ``const (K,)``.  If atoms lack entries, ``kappa`` is ``(K, D)``, and ``levels (K, D)`` are the
    parts of ``const`` by feature; None if missing entries are refused.
    """

    m: np.ndarray
    kappa: np.ndarray
    linear: np.ndarray
    const: np.ndarray
    levels: np.ndarray | None = field(default=None, metadata=OPTIONAL)


@register
@compared_by_settings
@dataclass(frozen=True, eq=False)
class FixedVarianceGaussian(Marginalising):
    """Gaussian features of known variance: x_d ~ N(mu_d, variance_d), mu_d ~ N(m_d, variance_d / kappa).

    With ``FiniteMixture(top=1)`` and ``estimate="map"`` this is k-means.

    Parameters
    ----------
    variance
        Variance within clusters, ``(D,)`` or a number, squared data units.  Default: a tenth of the variance of the
        data's bulk (see :func:`bnp_dask.core.survey.bulk_of`).
    m
        Prior mean, ``(D,)`` or a number.  Default: mean of the data's bulk.
    kappa
        Pseudo-count of the prior mean, > 0.  Default 0.1: cluster means are expected to spread as the data do.
    center
        Point about which statistics are taken, ``(D,)``, so that large offsets cost no precision.  Default: mean
        of the data's bulk.
    missing
        ``"marginalise"``: NaN is a missing entry, and is integrated over.  Default: refused.

    References
    ----------
    Thesis 2.2; statistic ``x`` is the sum of r y with y = x - center.  Terms in y**2 alone are the base
    measure h(x), the same for all clusters.
    """

    variance: np.ndarray | float | None = None
    m: np.ndarray | float | None = None
    kappa: float | None = None
    center: np.ndarray | float | None = None
    missing: Missing = field(default=None, metadata=OPTIONAL)

    @property
    def fields(self) -> Mapping[str, Field]:
        own = {"x": Field(("cluster", "feature")), LOG_BASE: Field()}
        return MappingProxyType({**own, **(GONE_FIELD if self.marginalises else {})})

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"feature": known("center", self.center).size}

    def with_prior(self, survey: Survey) -> Self:
        d = survey.n_features
        require_spread(survey)
        bulk = bulk_of(survey)
        mean = default_location(bulk)
        given = None if self.variance is None else vector("variance", scales("variance", self.variance), d)
        variance = default_variance(bulk) if given is None else given
        m = mean if self.m is None else vector("m", location("m", self.m), d)
        center = mean if self.center is None else vector("center", location("center", self.center), d)
        kappa = single("kappa", PRIOR_SCALE if self.kappa is None else self.kappa)
        tell_of_columns(self, survey, bulk)
        require_scale("variance", variance, survey, center)
        require_near(center, variance, survey)
        return replace(self, variance=variance, m=m, kappa=kappa, center=center)

    def correlated(self, n_features: int, names: Sequence[str] | None) -> np.ndarray:
        return few_columns(n_features)

    def check(self, batch: Batch) -> None:
        check_dense(self, batch, width("center", self.center), self.center, self.variance, self.missing)

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        gaps, center = holes(batch, self.missing), self._prior.center
        y = filled(batch, gaps, center) - center
        found = {"x": cluster_sums(resp, y), LOG_BASE: np.asarray(matmul(atom_mass(resp), self._log_base(y, gaps)))}
        return self._with_gone(found, resp, gaps, batch.n_features)

    def global_step(self, summary: Summary) -> NormalMean:
        prior = self._prior
        kappa = prior.kappa + counts_of(summary, self.missing)
        y = (prior.kappa * (prior.m - prior.center) + summary["x"]) / kappa
        return self._with_coefficients(y, one_or_each(kappa), 1.0)

    def at_mode(self, params: NormalMean) -> NormalMean:
        return self._with_coefficients(_centred(self._prior, params), params.kappa, 0.0)

    def at_draw(self, params: NormalMean, rng: np.random.Generator) -> NormalMean:
        width = np.sqrt(self._prior.variance / by_column(params.kappa))
        y = _centred(self._prior, params) + width * rng.standard_normal(params.m.shape)
        return self._with_coefficients(y, params.kappa, 0.0)

    def _with_coefficients(self, y: np.ndarray, kappa: np.ndarray, spread: float) -> NormalMean:
        """Coefficients for centred means ``y (K, D)``; ``spread`` is the factor of the variance of the mean."""
        prior = self._prior
        linear = y / prior.variance
        wide = spread * prior.center.size / kappa if kappa.ndim == 1 else spread * np.sum(1.0 / kappa, axis=1)
        const = -0.5 * (np.einsum("kd,kd->k", linear, y) + wide)
        levels = -0.5 * (linear * y + spread / by_column(kappa)) if self.marginalises else None
        return NormalMean(y + prior.center, kappa, linear, const, levels)

    def expected_log_lik(self, params: NormalMean, batch: Batch) -> np.ndarray:
        gaps, center = holes(batch, self.missing), self._prior.center
        out = matmul(filled(batch, gaps, center) - center, params.linear.T)
        out += params.const
        return without_gone(out, gaps, params.levels)

    def score(self, params: NormalMean, summary: Summary) -> np.ndarray:
        total = np.einsum("kd,kd->k", params.linear, summary["x"]) + params.const * summary["N"]
        return total if params.levels is None else total - np.einsum("kd,kd->k", params.levels, summary[GONE])

    def kl(self, params: NormalMean) -> np.ndarray:
        ratio = self._prior.kappa / params.kappa
        mean = ratio - 1.0 - log(ratio)
        return 0.5 * (self._prior.center.size * mean if mean.ndim == 1 else mean.sum(axis=1)) - self.log_prior(params)

    def log_prior(self, params: NormalMean) -> np.ndarray:
        prior = self._prior
        shift = _centred(prior, params) - (prior.m - prior.center)
        return -0.5 * prior.kappa * np.sum(shift**2 / prior.variance, axis=1)

    def log_predictive(self, params: NormalMean, batch: Batch) -> np.ndarray:
        """Gaussian with (1 + 1 / kappa_k) times the variance of the likelihood."""
        prior = self._prior
        wider, gaps = 1.0 + 1.0 / by_column(params.kappa), holes(batch, self.missing)
        levels = -0.5 * (LOG_2PI + log(prior.variance) + log(wider))
        squares = diagonal_squares(batch.x - prior.center, _centred(prior, params), prior.variance * wider)
        out = np.sum(levels, axis=1) - 0.5 * squares
        return without_gone(out, gaps, levels)

    def sequential_predictive(self, params: NormalMean, batch: Batch) -> Density:
        prior, y = self._prior, batch.x - self._prior.center
        return known_variance_form(y, _centred(prior, params), prior.variance, params.kappa)

    def draw(self, params: NormalMean, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        wider = np.broadcast_to(1.0 + 1.0 / by_column(params.kappa), params.m.shape)[place]
        return params.m[place] + np.sqrt(self._prior.variance * wider) * rng.standard_normal(wider.shape)

    def impute(self, params: NormalMean, batch: Batch, resp: np.ndarray) -> np.ndarray:
        return filled(batch, holes(batch, self.missing), matmul(resp, params.m))

    def estimates(self, params: NormalMean, names: Names) -> Estimates:
        variance = np.broadcast_to(self._prior.variance, params.m.shape)
        mean = by_feature(params.m, names)
        return {"mean": mean, "variance": by_feature(variance, names), "kappa": by_feature_or_each(params.kappa, names)}

    def describe(self, params: NormalMean, k: int, names: Names) -> str:
        return mean_and_deviation(params.m[k], self._prior.variance, names)

    def _log_base(self, y: np.ndarray, gaps: np.ndarray | None) -> np.ndarray:
        """log h, ``(n,)``: the density of centred atoms under mean zero; ``y`` is zero at missing entries."""
        levels = LOG_2PI + log(self._prior.variance)
        found = -0.5 * (matmul(y**2, 1.0 / self._prior.variance) + np.sum(levels))
        return found if gaps is None else found + 0.5 * matmul(gaps.astype(np.float64), levels)

    @property
    def _prior(self) -> _Prior:
        return _Prior(
            variance=known("variance", self.variance),
            m=known("m", self.m),
            kappa=float(known("kappa", self.kappa)),
            center=known("center", self.center),
        )


class _Prior(NamedTuple):
    """Settings, all known: ``variance, m, center (D,)``."""

    variance: np.ndarray
    m: np.ndarray
    kappa: float
    center: np.ndarray


def _centred(prior: _Prior, params: NormalMean) -> np.ndarray:
    """Posterior means about the center, ``(K, D)``, without the rounding of ``m`` by a large offset."""
    return params.linear * prior.variance
