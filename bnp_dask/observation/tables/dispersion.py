"""How whole numbers vary: mixtures of a few Poissons, negative binomials or Gaussians, fitted to one column.

Clusters are unknown when a likelihood is chosen, and a column of counts varies more than Poisson counts as soon as its
clusters differ.  So each likelihood is given a few components, and the Bayesian information criterion (Schwarz, 1978)
compares them: counts of few rates need no negative binomial, and counts that vary within clusters would need many
Poissons.  One pass over a histogram suffices, made of the first rows of a table or the points of a survey.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, ndtr

from bnp_dask.kernels.numeric.arithmetic import exp, log

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
