"""Independent counts that vary more than Poisson counts: negative binomials with a Beta prior per feature."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from scipy import sparse
from scipy.special import betaln, gammaln, ndtr, psi

from bnp_dask.core import OPTIONAL, Batch, Summary, Survey, bulk_of, register
from bnp_dask.errors import SettingError
from bnp_dask.inputs import shown
from bnp_dask.kernels import Resp, exp, log, log_gammas, matmul, rising_sums, row_log_factorials
from bnp_dask.observation.base import LOG_BASE
from bnp_dask.observation.checks import as_csr, atom_mass, cluster_fastest, product, sums
from bnp_dask.observation.interface import Estimates, Names, by_feature, compared_by_settings, largest
from bnp_dask.observation.missing import (
    GONE,
    Missing,
    counts_of,
    filled,
    holes,
    without_gone,
    zeroed,
)
from bnp_dask.observation.poisson import FeatureCounts
from bnp_dask.observation.priors import MOST_COUNT, known, mean_counts, positive, vector

# -- how whole numbers vary ---------------------------------------------------------------------------------------
# Mixtures of a few Poissons, negative binomials or Gaussians are fitted to one column.  Clusters are unknown when a
# likelihood is chosen, and a column of counts varies more than Poisson counts as soon as its clusters differ. So each
# likelihood is given a few components, and the Bayesian information criterion (Schwarz, 1978) compares them: counts of
# few rates need no negative binomial, and counts that vary within clusters would need many Poissons. One pass over a
# histogram suffices, made of the first rows of a table or the points of a survey.
SIZES = 0.25 * 2.0 ** np.arange(10)
"""Sizes of negative binomials that are compared, 0.25 to 128: steps of two change the variance of counts of a mean of
that size by a third.  Above the last the variance of counts up to 20 is within 16 % of a Poisson's."""

MOST_COMPONENTS = 4
"""Most components of a mixture that is fitted to a column."""

STEPS = 60
"""Steps of expectation and maximisation."""

STRONG = 10.0
"""Difference of criteria from which evidence against the simpler likelihood is very strong (Kass & Raftery, 1995)."""

_LEAST_MEAN = 1e-3
_LEAST_VARIANCE = 1.0 / 12.0

_LogLik = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Dispersion:
    """Bayesian information criteria of a column, nats times two, lower is better; and the best size.

    Parameters
    ----------
    poisson, negative_binomial, gaussian
        Criterion of the best mixture of up to :data:`MOST_COMPONENTS` of each.
    size
        Size of the best mixture of negative binomials, one of :data:`SIZES`.
    """

    poisson: float
    negative_binomial: float
    gaussian: float
    size: float


def dispersion_of(values: np.ndarray, weights: np.ndarray) -> Dispersion:
    """Compare likelihoods for whole numbers ``values (V,)`` >= 0 that occur ``weights (V,)`` times."""
    n = max(float(weights.sum()), 2.0)
    poisson = gaussian = math.inf
    sized = np.full(len(SIZES), math.inf)
    for m in range(1, min(MOST_COMPONENTS, len(values)) + 1):
        counts = _count_mixtures(values, weights, m)
        poisson = min(poisson, (2 * m - 1) * math.log(n) - 2.0 * float(counts[-1]))
        sized = np.minimum(sized, 2 * m * math.log(n) - 2.0 * counts[:-1])
        gaussian = min(gaussian, (3 * m - 1) * math.log(n) - 2.0 * _gaussian_mixture(values, weights, m))
    best = int(sized.argmin())
    return Dispersion(poisson, float(sized[best]), gaussian, float(SIZES[best]))


def _count_mixtures(values: np.ndarray, weights: np.ndarray, m: int) -> np.ndarray:
    """Log likelihood of mixtures of ``m`` negative binomials of each size, and at last of ``m`` Poissons, ``(R + 1,)``.

    Given the size, the likelihood of either is greatest at the weighted mean.
    """
    r = SIZES[:, None, None]
    x = values[:, None]
    sized = gammaln(x + r) - gammaln(r) - gammaln(x + 1.0)
    base = np.concatenate([sized, -gammaln(x + 1.0)[None]])
    mean = np.broadcast_to(_starts(values, weights, m), (len(SIZES) + 1, 1, m))
    shares = np.full(mean.shape, 1.0 / m)
    total = np.zeros(len(mean))
    for _ in range(STEPS):
        rate, last = mean[:-1], mean[-1:]
        level = np.concatenate([x * log(rate / (r + rate)) - r * np.log1p(rate / r), x * log(last) - last])
        total, resp = _shared(level + base + log(shares), weights)
        shares = np.maximum(resp.sum(axis=1, keepdims=True), 1e-300)
        mean = np.maximum((resp * x).sum(axis=1, keepdims=True) / shares, _LEAST_MEAN)
        shares = shares / weights.sum()
    return total


def _gaussian_mixture(values: np.ndarray, weights: np.ndarray, m: int) -> float:
    """Log likelihood of a mixture of ``m`` Gaussians whose values were rounded to whole numbers."""
    x = values[:, None]
    mean = _starts(values, weights, m)[None]
    overall = float(weights @ values / weights.sum())
    variance = np.full((1, m), max(float(weights @ (values - overall) ** 2 / weights.sum()) / m**2, _LEAST_VARIANCE))
    shares = np.full((1, m), 1.0 / m)
    total = np.zeros(1)
    for _ in range(STEPS):
        deviation = np.sqrt(variance)
        # on the side where both are small, the difference of two tails keeps its digits
        away = np.abs(x - mean)
        cell = ndtr((0.5 - away) / deviation) - ndtr((-0.5 - away) / deviation)
        total, resp = _shared(log(np.maximum(cell, 1e-300) * shares)[None], weights)
        held = np.maximum(resp[0].sum(axis=0, keepdims=True), 1e-300)
        mean = (resp[0] * x).sum(axis=0, keepdims=True) / held
        variance = np.maximum((resp[0] * (x - mean) ** 2).sum(axis=0, keepdims=True) / held, _LEAST_VARIANCE)
        shares = np.maximum(held / weights.sum(), 1e-300)
    return float(total[0])


def _starts(values: np.ndarray, weights: np.ndarray, m: int) -> np.ndarray:
    """Means to begin with: values at equally spaced shares of the rows, ``(m,)``, apart from one another."""
    ranks = np.cumsum(weights) / weights.sum()
    at = np.searchsorted(ranks, (np.arange(m) + 0.5) / m)
    return np.maximum(values[np.minimum(at, len(values) - 1)], _LEAST_MEAN) * (1.0 + 0.01 * np.arange(m))


def _shared(joint: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log likelihood ``(R,)`` and weighted responsibilities ``(R, V, m)`` from log joint densities ``(R, V, m)``."""
    top = joint.max(axis=2, keepdims=True)
    dens = exp(joint - top)
    norm = dens.sum(axis=2, keepdims=True)
    return (log(norm) + top)[:, :, 0] @ weights, dens / norm * weights[:, None]


# -- the likelihood -----------------------------------------------------------------------------------------------
@register
@dataclass(frozen=True, eq=False)
class BetaOdds:
    """q(p) = Beta(a, b) and the coefficients in use.

    ``a, b, log_p, levels, rate (K, D)``; log likelihood is ``log_p . x + total``, with ``total (K,)`` the sum of
    ``levels = size log(1 - p)``; ``rate`` is the expected count.
    """

    a: np.ndarray
    b: np.ndarray
    log_p: np.ndarray
    levels: np.ndarray
    total: np.ndarray
    rate: np.ndarray


@register
@compared_by_settings
@dataclass(frozen=True, eq=False)
class NegativeBinomial(FeatureCounts):
    """Counts per feature: x_d ~ NB(size_d, p_d) with mean m = size p / (1 - p) and variance m + m^2 / size, and
    p_d ~ Beta(a_d, b_d).

    Parameters
    ----------
    size
        Size, > 0, a number or ``(D,)``: the smaller, the more the counts of a cluster vary; with a size far above the
        counts they are Poisson counts.  Default: of the sizes 0.25, 0.5, 1, ..., 128 the one with which up to four
        clusters best explain the column, by the Bayesian information criterion on the survey's points
        (:mod:`bnp_dask.observation.negative_binomial`); for wide sparse counts, whose survey has no points, the size
        that explains the variance by one cluster.
    a
        Pseudo-counts of ``p``, > 0, a number or ``(D,)``.  Default 1.
    b
        Pseudo-counts of ``1 - p``, > 1, so that counts have a mean, a number or ``(D,)``.  Default: ``1 + a size / m``
        with m the mean of the data's bulk, so that clusters are expected to have that mean.
    missing
        ``"marginalise"``: NaN in dense rows is a missing entry, and is integrated over.  Default: refused.

    Notes
    -----
    Data are whole numbers >= 0, dense or sparse (CSR; never made dense).  The prior is conjugate because the size is
    known.  Statistic ``x``: sum of r x, ``(K, D)``.
    """

    size: np.ndarray | float | None = None
    a: np.ndarray | float | None = None
    b: np.ndarray | float | None = None
    missing: Missing = field(default=None, metadata=OPTIONAL)

    def with_prior(self, survey: Survey) -> Self:
        d = survey.n_features
        size = _sizes_of(survey) if self.size is None else vector("size", positive("size", self.size), d)
        a = vector("a", positive("a", 1.0 if self.a is None else self.a), d)
        b = 1.0 + a * size / mean_counts(survey) if self.b is None else vector("b", positive("b", self.b), d)
        if not (b > 1.0).all():
            raise SettingError(f"b={shown(self.b)}: counts have a mean only for b above 1; needs numbers above 1")
        return replace(self, size=size, a=a, b=b)

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        gaps = holes(batch, self.missing)
        counts = zeroed(batch, gaps)
        found = {"x": sums(counts, resp), LOG_BASE: np.asarray(matmul(atom_mass(resp), self._log_base(counts)))}
        return self._with_gone(found, resp, gaps, batch.n_features)

    def global_step(self, summary: Summary) -> BetaOdds:
        size, prior_a, prior_b = self._prior
        a = prior_a + summary["x"]
        b = prior_b + size * counts_of(summary, self.missing)
        whole = psi(a + b)
        return self._with_coefficients(a, b, psi(a) - whole, psi(b) - whole, size * a / (b - 1.0))

    def at_mode(self, params: BetaOdds) -> BetaOdds:
        # the mode of the natural parameter log p lies at p = a / (a + b)
        whole = log(params.a + params.b)
        return self._with_coefficients(params.a, params.b, log(params.a) - whole, log(params.b) - whole, params.rate)

    def at_draw(self, params: BetaOdds, rng: np.random.Generator) -> BetaOdds:
        ones, others = log_gammas(params.a, rng), log_gammas(params.b, rng)
        whole = np.logaddexp(ones, others)
        log_p, log_rest = ones - whole, others - whole
        rate = self._prior[0] * exp(ones - others)
        return self._with_coefficients(exp(log_p), exp(log_rest), log_p, log_rest, rate)

    def expected_log_lik(self, params: BetaOdds, batch: Batch) -> np.ndarray:
        gaps = holes(batch, self.missing)
        out = product(zeroed(batch, gaps), params.log_p)
        out += params.total
        return without_gone(out, gaps, params.levels)

    def score(self, params: BetaOdds, summary: Summary) -> np.ndarray:
        total = np.einsum("kd,kd->k", params.log_p, summary["x"]) + params.total * summary["N"]
        return total - np.einsum("kd,kd->k", params.levels, summary[GONE]) if self.marginalises else total

    def kl(self, params: BetaOdds) -> np.ndarray:
        _, prior_a, prior_b = self._prior
        a, b = params.a, params.b
        whole = psi(a + b)
        slack = (a - prior_a) * (psi(a) - whole) + (b - prior_b) * (psi(b) - whole)
        return np.sum(betaln(prior_a, prior_b) - betaln(a, b) + slack, axis=1)

    def log_prior(self, params: BetaOdds) -> np.ndarray:
        _, prior_a, prior_b = self._prior
        whole = log(params.a + params.b)
        return matmul(log(params.a) - whole, prior_a) + matmul(log(params.b) - whole, prior_b)

    def log_predictive(self, params: BetaOdds, batch: Batch) -> np.ndarray:
        """Product over features of beta negative binomials."""
        size = self._prior[0]
        gaps = holes(batch, self.missing)
        held = zeroed(batch, gaps)
        counts = as_csr(held)
        levels = betaln(params.a, params.b + size) - betaln(params.a, params.b)
        found = rising_sums(counts, params.a) - rising_sums(counts, params.a + params.b + size)
        found += levels.sum(axis=1) + self._log_base(held)[:, None]
        return without_gone(found, gaps, levels)

    def draw(self, params: BetaOdds, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        odds = exp(log_gammas(params.a[place], rng) - log_gammas(params.b[place], rng))
        rate = rng.standard_gamma(np.broadcast_to(self._prior[0], odds.shape)) * odds
        return rng.poisson(np.minimum(rate, MOST_COUNT)).astype(np.float64)

    def impute(self, params: BetaOdds, batch: Batch, resp: np.ndarray) -> np.ndarray:
        return filled(batch, holes(batch, self.missing), matmul(resp, params.rate))

    def estimates(self, params: BetaOdds, names: Names) -> Estimates:
        shown = {"rate": params.rate, "a": params.a, "b": params.b}
        return {name: by_feature(value, names) for name, value in shown.items()}

    def describe(self, params: BetaOdds, k: int, names: Names) -> str:
        return "rates: " + largest(params.rate[k], names, "column")

    @property
    def _prior(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return known("size", self.size), known("a", self.a), known("b", self.b)

    def _with_coefficients(
        self, a: np.ndarray, b: np.ndarray, log_p: np.ndarray, log_rest: np.ndarray, rate: np.ndarray
    ) -> BetaOdds:
        levels = self._prior[0] * log_rest
        return BetaOdds(a, b, cluster_fastest(log_p), levels, levels.sum(axis=1), rate)

    def _log_base(self, batch: Batch) -> np.ndarray:
        """Sum over features of log Gamma(x + size) - log Gamma(size) - log x!, ``(n,)``."""
        counts: sparse.csr_array = as_csr(batch)
        return rising_sums(counts, self._prior[0][None])[:, 0] - row_log_factorials(counts)


def _sizes_of(survey: Survey) -> np.ndarray:
    """Size of each column from the survey, ``(D,)``."""
    points = survey.quantiles
    if points.values.size == 0:
        bulk = bulk_of(survey)
        excess = np.maximum(bulk.variance - bulk.mean, 1e-300)
        return np.clip(bulk.mean**2 / excess, SIZES[0], SIZES[-1])
    found = []
    for values, weights in zip(points.values, points.weights, strict=True):
        # negative numbers are refused by check(), by row and column
        held = (weights > 0) & (values >= 0)
        found.append(dispersion_of(values[held], weights[held]).size if held.any() else float(SIZES[-1]))
    return np.array(found)
