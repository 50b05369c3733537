"""Responses that are numbers: a conjugate regression on the shares of topics in a document.

The response of a document, where one is observed, is

    y_d ~ N(mean + eta . zbar_d, s2),   eta_k ~ N(0, s2 / kappa),   1 / s2 ~ Gamma(shape, rate),

conjugate given the topics of the tokens.  A topic without tokens keeps its prior, so that the model has no bound on the
number of topics.  The objective gets the term

    E[log p(y | z, eta, s2)] - KL(q(eta, s2) || p(eta, s2)),   q(eta, s2) = N(eta; m, s2 V) Gamma(1 / s2; a, b),

with the bound of ``E[zbar zbar^T]`` in :mod:`bnp_dask.allocation.response`; ``t_d = y_d - mean``, and its square is the
document's level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from scipy.special import digamma, gammaln

from bnp_dask.allocation.response import KAPPA, LEVEL, OBSERVED, PRODUCTS, Facts, Lines
from bnp_dask.core.registry import register
from bnp_dask.core.summary import Summary
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs.settings import hold, number_from, positive_mass, positive_number, shown
from bnp_dask.kernels.numeric.arithmetic import matmul
from bnp_dask.structure.responding import SQUARES, responding
from bnp_dask.structure.steps import Tokens


@register
@dataclass(frozen=True, eq=False)
class Coefficients:
    """q(eta, s2) = N(eta; m, s2 V) Gamma(1 / s2; a, b), with eta relative to the mean of the response.

    ``m (K,)``, ``V (K, K)``, ``a``, ``b``; ``known`` is the number of responses behind them.
    """

    m: np.ndarray
    V: np.ndarray
    a: float
    b: float
    known: float

    @property
    def precision(self) -> float:
        """E[1 / s2]."""
        return self.a / self.b


@register
@dataclass(frozen=True)
class GaussianResponse:
    """Regression of a number that is observed for some documents on their shares of topics.

    Parameters
    ----------
    mean
        Prior mean of a topic's coefficient, in units of the response; None: the mean of the observed responses.
    kappa
        Prior precision of the coefficients, relative to the noise's precision, > 0.
    shape, rate
        Gamma prior of the noise's precision, > 0; ``rate`` in squared units of the response.  None: half the variance
        of the observed responses.
    """

    mean: float | None = None
    kappa: float = KAPPA
    shape: float = 1.0
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.mean is not None:
            hold(self, "mean", number_from("mean", self.mean, -math.inf, what="a number in units of the response"))
        for name, what in (("kappa", "precision"), ("shape", "shape")):
            hold(self, name, positive_mass(name, getattr(self, name), what))
        if self.rate is not None:
            hold(self, "rate", positive_number("rate", self.rate, "rate in squared units of the response"))

    takes_classes: ClassVar[bool] = False

    @property
    def classes(self) -> None:
        """A number has no classes."""

    @property
    def response_sizes(self) -> Mapping[str, int]:
        """See :class:`~bnp_dask.allocation.response.Response`."""
        return {}

    def with_prior(self, y: np.ndarray, classes: tuple[str | int, ...] | None = None) -> Self:
        """With ``mean`` and ``rate`` set from the observed responses ``y (n,)``, numbers without ``classes``.

        Raises
        ------
        DataError
            Their squares are beyond double precision.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(y.mean()) if self.mean is None else self.mean
            spread = float(np.mean((y - mean) ** 2))
        if not math.isfinite(spread):
            raise DataError(
                f"responses: with mean={shown(mean)} and numbers up to {float(np.abs(y).max()):.3g} the squares of "
                "their deviations are beyond double precision; divide them by a power of ten"
            )
        rate = (0.5 * spread if spread > 0.0 else 1.0) if self.rate is None else self.rate
        return replace(self, mean=mean, rate=rate)

    # -- documents ------------------------------------------------------------------------------------------------
    def facts(self, params: Coefficients | None, tokens: Tokens, shares: np.ndarray | None) -> Facts:
        """See :class:`~bnp_dask.allocation.response.Response`; they depend on neither coefficients nor shares."""
        assert tokens.response is not None
        if self.mean is None:
            raise SettingError("GaussianResponse has no mean: with_prior(y) sets it from responses")
        target = np.where(responding(tokens), tokens.response - self.mean, 0.0)
        return Facts(target[:, None], target * target)

    def lines(self, params: Coefficients) -> Lines:
        """See :class:`~bnp_dask.allocation.response.Response`."""
        return Lines(params.m[:, None], params.precision, params.precision, params.V)

    # -- all data -------------------------------------------------------------------------------------------------
    def global_step(self, summary: Summary) -> Coefficients:
        """Optimal q(eta, s2)."""
        k = summary.n_clusters
        squares = 0.5 * (summary[SQUARES] + summary[SQUARES].T)
        precision = squares + self.kappa * np.eye(k)
        root = np.linalg.inv(np.linalg.cholesky(precision))
        cov = matmul(root.T, root)
        m = matmul(cov, summary[PRODUCTS])
        left = float(summary[LEVEL]) - matmul(m, summary[PRODUCTS])
        a, b = self.shape + 0.5 * float(summary[OBSERVED]), self._rate + 0.5 * max(float(left), 0.0)
        return Coefficients(m, cov, a, b, float(summary[OBSERVED]))

    def term(self, params: Coefficients, summary: Summary) -> float:
        """Term of the objective, nats, for any parameters and summary."""
        n, k = float(summary[OBSERVED]), summary.n_clusters
        squares, m, cov, a, b = summary[SQUARES], params.m, params.V, params.a, params.b
        left = summary[LEVEL] - 2.0 * matmul(m, summary[PRODUCTS]) + matmul(m, matmul(squares, m))
        fit = 0.5 * n * (digamma(a) - math.log(b) - math.log(2.0 * math.pi))
        fit -= 0.5 * (params.precision * left + (cov * squares).sum())
        apart = 0.5 * (
            self.kappa * (np.trace(cov) + params.precision * matmul(m, m)) - k * (1.0 + math.log(self.kappa))
        )
        apart -= 0.5 * np.linalg.slogdet(cov)[1]
        apart += (a - self.shape) * digamma(a) - gammaln(a) + gammaln(self.shape)
        apart += self.shape * (math.log(b) - math.log(self._rate)) + a * (self._rate - b) / b
        return float(fit - apart)

    @property
    def _rate(self) -> float:
        return 1.0 if self.rate is None else self.rate

    # -- answers --------------------------------------------------------------------------------------------------
    def coefficients(self, params: Coefficients) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each topic's coefficient, ``(K,)``, in units of the response: the expected
        response of a document that is all about this topic."""
        noise = params.b / (params.a - 1.0) if params.a > 1.0 else math.inf
        return params.m + (0.0 if self.mean is None else self.mean), np.sqrt(noise * np.diag(params.V))

    def told(self, params: Coefficients) -> list[str]:
        """The response of a document that is all about one topic, with its standard deviation, for each topic."""
        mean, deviation = self.coefficients(params)
        return [f"{m:.3g} ± {s:.2g}" for m, s in zip(mean.tolist(), deviation.tolist(), strict=True)]

    def predict(self, params: Coefficients, z: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the responses of documents with expected shares ``z (G, K)`` and ``length (G,)`` tokens.

        The variance has the noise, the uncertainty of the coefficients, and that of the shares: ``E[zbar zbar^T]`` is
        taken to be S_d.  Infinitely many tokens give the exact predictive mean and variance of the conjugate regression
        at shares z, a t distribution with 2 a degrees of freedom.
        """
        mean = matmul(z, params.m)
        n = np.maximum(length, 1.0)
        noise = params.b / (params.a - 1.0) if params.a > 1.0 else math.inf
        spread = (1.0 - 1.0 / n) * (matmul(z, params.V) * z).sum(axis=1) + matmul(z, np.diag(params.V)) / n
        among = np.maximum(matmul(z, params.m**2) - mean * mean, 0.0) / n
        return mean + (0.0 if self.mean is None else self.mean), noise * (1.0 + spread) + among
