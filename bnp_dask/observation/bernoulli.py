"""Independent bits with a Beta prior per feature (thesis 2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

import numpy as np
from scipy.special import betaln, psi

from bnp_dask.core import OPTIONAL, Batch, Field, Summary, Survey, register
from bnp_dask.kernels import Resp, exp, log, log_gammas, matmul
from bnp_dask.observation.checks import check_bits, cluster_fastest, product, sums
from bnp_dask.observation.interface import (
    Density,
    Estimates,
    Names,
    bits_form,
    by_feature,
    compared_by_settings,
    largest,
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
from bnp_dask.observation.priors import known, positive, vector, width

DEFAULT_LAM = 0.5
"""Default prior pseudo-count of ones and of zeros (Jeffreys' prior)."""


@register
@dataclass(frozen=True, eq=False)
class BetaBits:
    """q(phi) = Beta(lam1, lam0) and the coefficients in use.

    ``lam1, lam0, log_odds (K, D)``; log likelihood is ``log_odds . x + log_zero``, where ``log_zero (K,)`` is the
    log probability of a row of zeros; ``levels (K, D)`` are its parts by feature, None where missing entries are
    refused.
    """

    lam1: np.ndarray
    lam0: np.ndarray
    log_odds: np.ndarray
    log_zero: np.ndarray
    levels: np.ndarray | None = field(default=None, metadata=OPTIONAL)


@register
@compared_by_settings
@dataclass(frozen=True, eq=False)
class Bernoulli(Marginalising):
    """Rows of zeros and ones: x_d ~ Bernoulli(phi_d), phi_d ~ Beta(lam1_d, lam0_d).

    Parameters
    ----------
    lam1, lam0
        Prior pseudo-counts of ones and of zeros, > 0, a number or ``(D,)``.  Default 0.5 each.
    missing
        ``"marginalise"``: NaN in dense rows is a missing entry, and is integrated over.  Default: refused.

    Notes
    -----
    Data are exact zeros and ones, dense or sparse (CSR; never made dense).

    References
    ----------
    Thesis 2.2.  Statistic ``x``: sum of r x, ``(K, D)``.
    """

    lam1: np.ndarray | float | None = None
    lam0: np.ndarray | float | None = None
    missing: Missing = field(default=None, metadata=OPTIONAL)

    @property
    def counts(self) -> frozenset[str]:
        return frozenset({"x", GONE})

    @property
    def fields(self) -> Mapping[str, Field]:
        return MappingProxyType({"x": Field(("cluster", "feature")), **(GONE_FIELD if self.marginalises else {})})

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"feature": known("lam1", self.lam1).size}

    def with_prior(self, survey: Survey) -> Self:
        d = survey.n_features
        lam1 = vector("lam1", positive("lam1", DEFAULT_LAM if self.lam1 is None else self.lam1), d)
        lam0 = vector("lam0", positive("lam0", DEFAULT_LAM if self.lam0 is None else self.lam0), d)
        return replace(self, lam1=lam1, lam0=lam0)

    def check(self, batch: Batch) -> None:
        check_bits(self, batch, width("lam1", self.lam1), self.marginalises)

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        gaps = holes(batch, self.missing)
        found = {"x": sums(zeroed(batch, gaps), resp)}
        return self._with_gone(found, resp, gaps, batch.n_features)

    def global_step(self, summary: Summary) -> BetaBits:
        prior1, prior0 = self._prior
        lam1 = prior1 + summary["x"]
        # rounding of the two sums may leave a tiny negative number of zeros
        lam0 = prior0 + np.maximum(counts_of(summary, self.missing) - summary["x"], 0.0)
        total = psi(lam1 + lam0)
        return self._with_coefficients(lam1, lam0, psi(lam1) - total, psi(lam0) - total)

    def at_mode(self, params: BetaBits) -> BetaBits:
        lam1, lam0 = params.lam1, params.lam0
        total = log(lam1 + lam0)
        return self._with_coefficients(lam1, lam0, log(lam1) - total, log(lam0) - total)

    def at_draw(self, params: BetaBits, rng: np.random.Generator) -> BetaBits:
        ones, zeros = log_gammas(params.lam1, rng), log_gammas(params.lam0, rng)
        total = np.logaddexp(ones, zeros)
        return self._with_coefficients(exp(ones - total), exp(zeros - total), ones - total, zeros - total)

    def expected_log_lik(self, params: BetaBits, batch: Batch) -> np.ndarray:
        gaps = holes(batch, self.missing)
        out = product(zeroed(batch, gaps), params.log_odds)
        out += params.log_zero
        return without_gone(out, gaps, params.levels)

    def score(self, params: BetaBits, summary: Summary) -> np.ndarray:
        total = np.einsum("kd,kd->k", params.log_odds, summary["x"]) + params.log_zero * summary["N"]
        return total if params.levels is None else total - np.einsum("kd,kd->k", params.levels, summary[GONE])

    def kl(self, params: BetaBits) -> np.ndarray:
        prior1, prior0 = self._prior
        lam1, lam0 = params.lam1, params.lam0
        total = psi(lam1 + lam0)
        ones = (lam1 - prior1) * (psi(lam1) - total)
        zeros = (lam0 - prior0) * (psi(lam0) - total)
        return np.sum(betaln(prior1, prior0) - betaln(lam1, lam0) + ones + zeros, axis=1)

    def log_prior(self, params: BetaBits) -> np.ndarray:
        prior1, prior0 = self._prior
        total = log(params.lam1 + params.lam0)
        return matmul(log(params.lam1) - total, prior1) + matmul(log(params.lam0) - total, prior0)

    def log_predictive(self, params: BetaBits, batch: Batch) -> np.ndarray:
        """Bernoulli with the posterior mean of phi."""
        return self.expected_log_lik(self.at_mode(params), batch)

    def sequential_predictive(self, params: BetaBits, batch: Batch) -> Density:
        return bits_form(batch.x, params.lam1, params.lam0)

    def draw(self, params: BetaBits, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        chance = _expected(params)[place]
        return (rng.random(chance.shape) < chance).astype(np.float64)

    def impute(self, params: BetaBits, batch: Batch, resp: np.ndarray) -> np.ndarray:
        return filled(batch, holes(batch, self.missing), matmul(resp, _expected(params)))

    def estimates(self, params: BetaBits, names: Names) -> Estimates:
        shown = {"probability": _expected(params), "lam1": params.lam1, "lam0": params.lam0}
        return {name: by_feature(value, names) for name, value in shown.items()}

    def describe(self, params: BetaBits, k: int, names: Names) -> str:
        return "ones: " + largest(_expected(params)[k], names, "column")

    @property
    def _prior(self) -> tuple[np.ndarray, np.ndarray]:
        return known("lam1", self.lam1), known("lam0", self.lam0)

    def _with_coefficients(
        self, lam1: np.ndarray, lam0: np.ndarray, log_one: np.ndarray, log_zero: np.ndarray
    ) -> BetaBits:
        levels = log_zero if self.marginalises else None
        return BetaBits(lam1, lam0, cluster_fastest(log_one - log_zero), log_zero.sum(axis=1), levels)


def _expected(params: BetaBits) -> np.ndarray:
    """E[phi], ``(K, D)``."""
    return params.lam1 / (params.lam1 + params.lam0)
