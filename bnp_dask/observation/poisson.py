"""Independent Poisson counts with a Gamma prior per feature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

import numpy as np
from scipy.special import gammaln, psi

from bnp_dask.core import OPTIONAL, Batch, Field, Summary, Survey, register
from bnp_dask.errors import SettingError
from bnp_dask.inputs import LEAST_RATE, MOST_RATE, shown
from bnp_dask.kernels import Resp, exp, log, log1p, log_gammas, matmul, rising_sums, row_log_factorials
from bnp_dask.observation.base import LOG_BASE
from bnp_dask.observation.checks import as_csr, atom_mass, check_counts, cluster_fastest, product, sums
from bnp_dask.observation.interface import (
    Density,
    Estimates,
    Names,
    by_feature,
    compared_by_settings,
    largest,
    rates_form,
)
from bnp_dask.observation.missing import (
    GONE,
    GONE_FIELD,
    Marginalising,
    Missing,
    counts_of,
    filled,
    holes,
    without_gone,
    zeroed,
)
from bnp_dask.observation.priors import known, mean_counts, positive, scales, vector, width


@register
@dataclass(frozen=True, eq=False)
class GammaRates:
    """q(rate) = Gamma(a, rate b) and the coefficients in use.

    ``a, b, log_rate (K, D)``; log likelihood is ``log_rate . x - total``, with ``total (K,)`` the sum of rates.
    """

    a: np.ndarray
    b: np.ndarray
    log_rate: np.ndarray
    total: np.ndarray


class FeatureCounts(Marginalising):
    """Base of likelihoods of counts per feature, with a prior setting ``a``."""

    a: np.ndarray | float | None

    @property
    def counts(self) -> frozenset[str]:
        return frozenset({"x", GONE})

    @property
    def fields(self) -> Mapping[str, Field]:
        own = {"x": Field(("cluster", "feature")), LOG_BASE: Field()}
        return MappingProxyType({**own, **(GONE_FIELD if self.marginalises else {})})

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"feature": known("a", self.a).size}

    def check(self, batch: Batch) -> None:
        check_counts(self, zeroed(batch, holes(batch, self.missing)), width("a", self.a))


@register
@compared_by_settings
@dataclass(frozen=True, eq=False)
class Poisson(FeatureCounts):
    """Counts per feature: x_d ~ Poisson(rate_d), rate_d ~ Gamma(a_d, rate b_d), so E[rate] = a / b.

    Parameters
    ----------
    a
        Shape, > 0, a number or ``(D,)``.  Default 1: rates of clusters vary by as much as their mean.
    b
        Rate of the Gamma, > 0, one over counts, a number or ``(D,)``.  Default: a divided by the mean of the data's
        bulk (:func:`bnp_dask.core.survey.bulk_of`), so that clusters are expected to have that mean rate.  A column of
        zeros has no mean; it is taken to have one count in the whole data set, with a warning.
    missing
        ``"marginalise"``: NaN in dense rows is a missing entry, and is integrated over.  Default: refused.

    Notes
    -----
    Data are whole numbers >= 0, dense or sparse (CSR; never made dense).  Unlike for ``Multinomial`` an all-zero
    row is an observation like any other.

    References
    ----------
    Gelman et al., "Bayesian Data Analysis", 3rd ed., 2.6.  Statistic ``x``: sum of r x, ``(K, D)``.
    """

    a: np.ndarray | float | None = None
    b: np.ndarray | float | None = None
    missing: Missing = field(default=None, metadata=OPTIONAL)

    def with_prior(self, survey: Survey) -> Self:
        d = survey.n_features
        a = vector("a", positive("a", 1.0 if self.a is None else self.a), d)
        b = a / mean_counts(survey) if self.b is None else vector("b", scales("b", self.b), d)
        if not ((b >= LEAST_RATE) & (b <= MOST_RATE)).all():
            raise SettingError(f"b={shown(b)}: needs numbers from {LEAST_RATE:g} to {MOST_RATE:g}, one over counts")
        return replace(self, a=a, b=b)

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        gaps = holes(batch, self.missing)
        counts = zeroed(batch, gaps)
        log_base = -row_log_factorials(as_csr(counts))
        found = {"x": sums(counts, resp), LOG_BASE: np.asarray(matmul(atom_mass(resp), log_base))}
        return self._with_gone(found, resp, gaps, batch.n_features)

    def global_step(self, summary: Summary) -> GammaRates:
        prior_a, prior_b = self._prior
        a = prior_a + summary["x"]
        b = prior_b + counts_of(summary, self.missing)
        return GammaRates(a, b, cluster_fastest(psi(a) - log(b)), np.sum(a / b, axis=1))

    def at_mode(self, params: GammaRates) -> GammaRates:
        return replace(params, log_rate=cluster_fastest(log(params.a) - log(params.b)))

    def at_draw(self, params: GammaRates, rng: np.random.Generator) -> GammaRates:
        log_rate = log_gammas(params.a, rng) - log(params.b)
        rate = exp(log_rate)
        return GammaRates(rate, np.ones_like(params.b), cluster_fastest(log_rate), rate.sum(axis=1))

    def expected_log_lik(self, params: GammaRates, batch: Batch) -> np.ndarray:
        gaps = holes(batch, self.missing)
        out = product(zeroed(batch, gaps), params.log_rate)
        out -= params.total
        return without_gone(out, gaps, -params.a / params.b)

    def score(self, params: GammaRates, summary: Summary) -> np.ndarray:
        total = np.einsum("kd,kd->k", params.log_rate, summary["x"]) - params.total * summary["N"]
        return total + np.einsum("kd,kd->k", params.a / params.b, summary[GONE]) if self.marginalises else total

    def kl(self, params: GammaRates) -> np.ndarray:
        prior_a, prior_b = self._prior
        a, b = params.a, params.b
        shape = (a - prior_a) * psi(a) - gammaln(a) + gammaln(prior_a)
        scale = prior_a * (log(b) - log(prior_b)) + a * (prior_b - b) / b
        return np.sum(shape + scale, axis=1)

    def log_prior(self, params: GammaRates) -> np.ndarray:
        prior_a, prior_b = self._prior
        return matmul(params.log_rate, prior_a) - matmul(params.a / params.b, prior_b)

    def log_predictive(self, params: GammaRates, batch: Batch) -> np.ndarray:
        """Product over features of negative binomials."""
        gaps = holes(batch, self.missing)
        held = zeroed(batch, gaps)
        counts = as_csr(held)
        levels = -params.a * log1p(1.0 / params.b)
        log_base = -row_log_factorials(counts)
        found = rising_sums(counts, params.a) - product(held, log1p(params.b)) + levels.sum(axis=1) + log_base[:, None]
        return without_gone(found, gaps, levels)

    def sequential_predictive(self, params: GammaRates, batch: Batch) -> Density:
        return rates_form(batch.x, params.a, params.b)

    def draw(self, params: GammaRates, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.poisson(rng.gamma(params.a[place], 1.0 / params.b[place])).astype(np.float64)

    def impute(self, params: GammaRates, batch: Batch, resp: np.ndarray) -> np.ndarray:
        return filled(batch, holes(batch, self.missing), matmul(resp, params.a / params.b))

    def estimates(self, params: GammaRates, names: Names) -> Estimates:
        shown = {"rate": params.a / params.b, "a": params.a, "b": params.b}
        return {name: by_feature(value, names) for name, value in shown.items()}

    def describe(self, params: GammaRates, k: int, names: Names) -> str:
        return "rates: " + largest(params.a[k] / params.b[k], names, "column")

    @property
    def _prior(self) -> tuple[np.ndarray, np.ndarray]:
        return known("a", self.a), known("b", self.b)
