"""Responses that are classes: a softmax regression on the shares of topics in a document, by a quadratic bound.

The class of a document, where one is observed, is c with a probability in proportion to ``exp(f_c)``,

    f = o + eta zbar_d  (C,),   eta_ck ~ N(0, 1 / kappa),

with o the log of the prior share of each class.  Expected values of ``lse(f) = log sum_c exp(f_c)`` have no closed
form.  Boehning (1992, "Multinomial logistic regression algorithm") bounds its curvature by ``A = (I - 1 1^T / C) / 2``,
so that for any psi, with g = softmax(psi) and u = psi - o,

    lse(f) <= lse(psi) + g . (f - psi) + (f - psi)^T A (f - psi) / 2.

Every document has a psi_d of its own.  With e_y the class as a vector the document's term is at least

    t_d . (eta zbar) - (eta zbar)^T A (eta zbar) / 2 - level_d,
    t_d = e_y - g + A u,   level_d = lse(psi) - o_y - g . u + u^T A u / 2 >= 0,

linear and quadratic in the shares as :mod:`bnp_dask.allocation.response` needs it.  A is the same for all documents,
so that the statistics are additive and the global step is closed: with ``V = (sum_d S_d / 2 + kappa I)^-1`` the optimal
q(eta) is normal with means ``m = V sum_d z_d t_d^T (K, C)``, which sum to zero over classes, and a covariance that is V
for differences between classes and the prior's for a number added to all classes, which no probability depends on.

The bound is highest where psi_d is the expected f.  A visit of a document begins with this psi_d at the counts of the
last visit under the present coefficients, finds topics, and leaves the psi_d at its new counts in the statistics: no
step lowers the objective, and no psi_d is kept.  Trials of the visit use the same psi_d, so they are judged exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from scipy.special import logsumexp, softmax

from bnp_dask.allocation.response import KAPPA, LEVEL, OBSERVED, PRODUCTS, Facts, Lines
from bnp_dask.core.registry import register
from bnp_dask.core.summary import Summary
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs.settings import hold, positive_mass, positive_number, shown
from bnp_dask.kernels.numeric.arithmetic import matmul
from bnp_dask.structure.responding import SQUARES, responding
from bnp_dask.structure.steps import Tokens

CLASS = "class"
"""Axis of the classes."""


@register
@dataclass(frozen=True, eq=False)
class ClassCoefficients:
    """q(eta): means ``m (K, C)``, which sum to zero over classes, and covariance ``V (K, K)`` of differences between
    classes; ``known`` is the number of responses behind them."""

    m: np.ndarray
    V: np.ndarray
    known: float


@register
@dataclass(frozen=True)
class CategoricalResponse:
    """Classification of documents, whose class is observed for some, on their shares of topics.

    Parameters
    ----------
    classes
        Names of the classes, two or more: texts, or whole numbers from 0; None: the ones that occur in the responses.
    shares
        Prior probability of each class, ``(C,)`` > 0; None: its share of the observed responses, with one more of each.
    kappa
        Prior precision of the coefficients, > 0.
    """

    classes: tuple[str | int, ...] | None = None
    shares: tuple[float, ...] | None = None
    kappa: float = KAPPA

    takes_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        hold(self, "kappa", positive_mass("kappa", self.kappa, "precision"))
        if self.classes is not None:
            given = tuple(self.classes) if isinstance(self.classes, (tuple, list)) else ()
            sound = all(isinstance(c, str) or (isinstance(c, int) and c >= 0) for c in given)
            if len(given) < 2 or len(set(given)) < len(given) or not sound or len({type(c) for c in given}) > 1:
                raise SettingError(
                    f"classes={shown(self.classes)}: needs two or more names of classes, all different: texts, or "
                    "whole numbers from 0"
                )
            hold(self, "classes", given)
        if self.shares is not None:
            values = tuple(positive_number("shares", share, "probability of a class") for share in self.shares)
            if self.classes is None or len(values) != len(self.classes):
                raise SettingError(f"shares={shown(self.shares)}: needs classes=, and one number for each of them")
            hold(self, "shares", values)

    @property
    def response_sizes(self) -> Mapping[str, int]:
        """See :class:`~bnp_dask.allocation.response.Response`."""
        return {CLASS: 0 if self.classes is None else len(self.classes)}

    def with_prior(self, y: np.ndarray, classes: tuple[str | int, ...] | None = None) -> Self:
        """With ``classes`` and ``shares`` set from the observed responses ``y (n,)``, positions among ``classes``."""
        names = self.classes if classes is None else classes
        if names is None or len(names) < 2:
            raise DataError(f"responses: the classes are {shown(names)}; a classification needs two or more")
        counts = np.bincount(y.astype(np.int64), minlength=len(names)) + 1.0
        shares = tuple((counts / counts.sum()).tolist()) if self.shares is None else self.shares
        return replace(self, classes=names, shares=shares)

    @property
    def _offset(self) -> np.ndarray:
        """o, ``(C,)``."""
        if self.classes is None or self.shares is None:
            raise SettingError("CategoricalResponse has no classes: with_prior(y, classes) sets them from responses")
        shares = np.array(self.shares)
        return np.log(shares / shares.sum())

    # -- documents ------------------------------------------------------------------------------------------------
    def facts(self, params: ClassCoefficients | None, tokens: Tokens, shares: np.ndarray | None) -> Facts:
        """See :class:`~bnp_dask.allocation.response.Response`; ``shares`` are u, ``(G, C)``."""
        assert tokens.response is not None
        o, on = self._offset, responding(tokens)
        u = np.zeros((len(on), len(o))) if shares is None else shares
        label = np.where(on, tokens.response, 0.0).astype(np.int64)
        g, centred = softmax(o + u, axis=1), 0.5 * (u - u.mean(axis=1, keepdims=True))
        target = centred - g
        target[np.arange(len(on)), label] += 1.0
        level = logsumexp(o + u, axis=1) - o[label] - (g * u).sum(axis=1) + 0.5 * (u * centred).sum(axis=1)
        return Facts(np.where(on[:, None], target, 0.0), np.where(on, level, 0.0))

    def lines(self, params: ClassCoefficients) -> Lines:
        """See :class:`~bnp_dask.allocation.response.Response`."""
        return Lines(params.m, 1.0, 0.5, 0.5 * (params.m.shape[1] - 1) * params.V)

    # -- all data -------------------------------------------------------------------------------------------------
    def global_step(self, summary: Summary) -> ClassCoefficients:
        """Optimal q(eta)."""
        squares = 0.5 * (summary[SQUARES] + summary[SQUARES].T)
        precision = 0.5 * squares + self.kappa * np.eye(summary.n_clusters)
        root = np.linalg.inv(np.linalg.cholesky(precision))
        cov = matmul(root.T, root)
        m = matmul(cov, summary[PRODUCTS])
        return ClassCoefficients(m - m.mean(axis=1, keepdims=True), cov, float(summary[OBSERVED]))

    def term(self, params: ClassCoefficients, summary: Summary) -> float:
        """Term of the objective, nats, for any parameters and summary."""
        squares, m, cov = summary[SQUARES], params.m, params.V
        k, free = summary.n_clusters, m.shape[1] - 1
        fit = (m * summary[PRODUCTS]).sum() - float(summary[LEVEL])
        fit -= 0.25 * ((m * matmul(squares, m)).sum() + free * (cov * squares).sum())
        apart = 0.5 * self.kappa * (m * m).sum()
        apart += 0.5 * free * (self.kappa * np.trace(cov) - k * (1.0 + math.log(self.kappa)))
        apart -= 0.5 * free * np.linalg.slogdet(cov)[1]
        return float(fit - apart)

    # -- answers --------------------------------------------------------------------------------------------------
    def coefficients(self, params: ClassCoefficients) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each topic's coefficients, ``(K, C)``: by how much the log of the probability
        of a class rises in a document that is all about this topic, relative to the mean over classes."""
        deviation = np.sqrt(np.diag(params.V) * (1.0 - 1.0 / params.m.shape[1]))
        return params.m, np.tile(deviation[:, None], (1, params.m.shape[1]))

    def told(self, params: ClassCoefficients) -> list[str]:
        """The most probable class of a document that is all about one topic, with its probability, for each topic."""
        mean, _ = self.predict(params, np.eye(len(params.m)), np.full(len(params.m), np.inf))
        assert self.classes is not None
        return [f"{self.classes[c]} ({row[c]:.0%})" for row, c in zip(mean, mean.argmax(axis=1), strict=True)]

    def predict(self, params: ClassCoefficients, z: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Probability of each class and variance of its indicator, ``(G, C)``, of documents with expected shares
        ``z (G, K)`` of topics, of any ``length (G,)``.

        The expected softmax of a normal f with mean ``o + z m`` and variance ``v = z^T V z`` of differences between
        classes is approximated by the softmax of ``o + z m / sqrt(1 + pi v / 8)`` (MacKay 1992, "The evidence framework
        applied to classification networks").
        """
        v = (matmul(z, params.V) * z).sum(axis=1, keepdims=True)
        mean = softmax(self._offset + matmul(z, params.m) / np.sqrt(1.0 + math.pi / 8.0 * v), axis=1)
        return mean, mean * (1.0 - mean)
