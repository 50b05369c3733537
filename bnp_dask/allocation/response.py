"""Responses of documents: a regression of an observed number on the shares of topics in a document.

A document d with tokens z_d1, ..., z_dn has the shares ``zbar_d = (1/n) sum_i e(z_di)`` of topics (Blei & McAuliffe
2007, "Supervised topic models"), and its response, where one is observed, is

    y_d ~ N(mean + eta . zbar_d, s2),   eta_k ~ N(0, s2 / kappa),   1 / s2 ~ Gamma(shape, rate),

conjugate given the topics of the tokens.  A topic without tokens keeps its prior, so that the model has no bound on the
number of topics.  The objective gets the term

    E[log p(y | z, eta, s2)] - KL(q(eta, s2) || p(eta, s2)),   q(eta, s2) = N(eta; m, s2 V) Gamma(1 / s2; a, b).

It needs ``E[zbar zbar^T]``.  For tokens with independent responsibilities r_i and mean z = (1/n) sum_i r_i this is
``z z^T + (1/n^2) sum_i (diag(r_i) - r_i r_i^T)``.  Its second part is a sum of matrices of tokens.  By convexity of
``r r^T`` it is at most, as a matrix, the one of tokens that all have the responsibilities z:

    E[zbar zbar^T] <= S_d = (1 - 1/n) z z^T + (1/n) diag(z).

S_d in place of ``E[zbar zbar^T]`` gives a lower bound of the objective, tight for tokens with equal responsibilities.
This bound is the term of this module.  It is known for any parameters and responsibilities from sums over documents:

    sum_d S_d (K, K),   sum_d y_d z_d (K,),   sum_d y_d^2,   the number of responses.

Sums are unchanged by topics that come empty.  A union of two topics adds up their rows and columns, which is exact:
``z_a + z_b`` is its share.  The statistics of a batch thus hold K x K numbers: 80 kB for 100 topics, 8 MB for 1,000.

In a document the term depends on z alone, so all of its tokens share one factor of each topic, ``exp(slope)``; see
:func:`bnp_dask.kernels.topics.response.tilt`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.special import digamma, gammaln

from bnp_dask.core.group_states import GroupStates
from bnp_dask.core.registry import register
from bnp_dask.core.summary import Field, Summary
from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import hold, number_from, positive_number
from bnp_dask.kernels.numeric.arithmetic import matmul
from bnp_dask.kernels.topics.document_state import Pull
from bnp_dask.kernels.topics.response import share_products, share_sums
from bnp_dask.structure.steps import Receivers, Tokens

SQUARES, PRODUCTS, OBSERVED, POWER = "share_squares", "share_products", "responses", "response_squares"
"""Fields: the sums of S_d, of y_d z_d, of responses, and of y_d^2."""

KAPPA = 0.1
"""Default of ``kappa``: coefficients of a topic have a prior standard deviation of about three times the noise's."""


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

    @property
    def second(self) -> np.ndarray:
        """E[eta eta^T / s2], ``(K, K)``."""
        return self.precision * np.outer(self.m, self.m) + self.V


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
            hold(self, name, positive_number(name, getattr(self, name), what))
        if self.rate is not None:
            hold(self, "rate", positive_number("rate", self.rate, "rate in squared units of the response"))

    @property
    def fields(self) -> Mapping[str, Field]:
        """Fields of a summary."""
        one = Field()
        return {SQUARES: Field(("cluster", "cluster")), PRODUCTS: Field(("cluster",)), OBSERVED: one, POWER: one}

    @property
    def squares(self) -> str:
        """Name of the field with two cluster axes."""
        return SQUARES

    @property
    def counts(self) -> frozenset[str]:
        """Fields that sum nonnegative terms."""
        return frozenset({SQUARES, OBSERVED, POWER})

    def with_prior(self, y: np.ndarray) -> Self:
        """With ``mean`` and ``rate`` set from the observed responses ``y (n,)``."""
        mean = float(y.mean()) if self.mean is None else self.mean
        spread = float(np.mean((y - mean) ** 2))
        rate = (0.5 * spread if spread > 0.0 else 1.0) if self.rate is None else self.rate
        return replace(self, mean=mean, rate=rate)

    # -- documents ------------------------------------------------------------------------------------------------
    def pull(self, params: Coefficients, tokens: Tokens) -> Pull | None:
        """Pull of the responses on documents; None if no response is observed or nothing is known of coefficients."""
        if tokens.response is None or params.known <= 0.0:
            return None
        target, on = self._target(tokens)
        first = np.outer(target, params.precision * params.m)
        return pull_of(first, params.second, on, tokens.length)

    def pull_on_receivers(
        self,
        own: Coefficients,
        given: Coefficients | None,
        whole: Tokens,
        donors: np.ndarray,
        places: np.ndarray,
        states: GroupStates,
    ) -> Pull | None:
        """Pull on some documents' tokens that are shared out among receivers, all else staying as it is.

        Parameters
        ----------
        own
            Coefficients of all topics in force.
        given
            Coefficients of the receivers, if they take the tokens of all topics.
        whole
            All tokens, not only the ones that are shared out.
        donors
            Positions of the topics whose tokens these are.
        places
            Position of each receiver among all topics, -1 for a new one, ``(J,)``.
        states
            Counts of all topics, by position.

        Notes
        -----
        Coefficients of a new topic are taken to be the mean of its donors'.  Statistics do not depend on the pull.
        """
        if whole.response is None or own.known <= 0.0:
            return None
        target, on = self._target(whole)
        if given is not None:
            if given.known <= 0.0:
                return None
            return pull_of(np.outer(target, given.precision * given.m), given.second, on, whole.length)
        m = np.where(places >= 0, own.m[places], own.m[donors].mean())
        spread = np.where(places >= 0, np.diag(own.V)[places], np.diag(own.V)[donors].mean())
        rest = own.m.copy()
        rest[donors] = 0.0
        length = whole.length
        n = np.maximum(length, 1.0)
        owner = np.repeat(np.arange(states.n_groups), np.diff(states.offsets))
        fixed = np.bincount(owner, states.count * rest[states.cluster], states.n_groups) / np.maximum(length, 1e-300)
        first = np.outer(target - (1.0 - 1.0 / n) * fixed, own.precision * m)
        return pull_of(first, own.precision * np.outer(m, m) + np.diag(spread), on, length)

    def sums(self, tokens: Tokens, states: GroupStates, n_topics: int) -> dict[str, np.ndarray]:
        """Statistics of documents whose topics have the counts ``states``, by position."""
        values = {SQUARES: np.zeros((n_topics, n_topics)), PRODUCTS: np.zeros(n_topics)}
        values |= {OBSERVED: np.zeros(()), POWER: np.zeros(())}
        if tokens.response is None:
            return values
        target, on = self._target(tokens)
        times = np.where(on, tokens.times, 0.0)
        products = np.zeros((n_topics, 1))
        share_sums(
            states.offsets, states.cluster, states.count.astype(np.float64), tokens.length, times, target[:, None],
            values[SQUARES], products,
        )  # fmt: skip
        values[PRODUCTS] = products[:, 0]
        values[OBSERVED], values[POWER] = np.asarray(times.sum()), np.asarray(matmul(times, target * target))
        return values

    def links(self, tokens: Tokens, one: GroupStates, other: GroupStates, sizes: tuple[int, int]) -> np.ndarray:
        """Sums of S_d between two sets of topics, ``(J, R)``; counts of both are by position in their set, and those at
        -1 are left out."""
        out = np.zeros(sizes)
        if tokens.response is not None:
            _, on = self._target(tokens)
            a, b = _present(one), _present(other)
            share_products(
                a.offsets, a.cluster, a.count.astype(np.float64), b.offsets, b.cluster, b.count.astype(np.float64),
                tokens.length, np.where(on, tokens.times, 0.0), out,
            )  # fmt: skip
        return out

    def _target(self, tokens: Tokens) -> tuple[np.ndarray, np.ndarray]:
        """Responses less their mean, 0 where none is observed, ``(G,)``; and where one is that has tokens."""
        assert tokens.response is not None
        if self.mean is None:
            raise SettingError("GaussianResponse has no mean: with_prior(y) sets it from responses")
        on = ~np.isnan(tokens.response) & (tokens.length > 0.0)
        return np.where(on, tokens.response - self.mean, 0.0), on

    # -- all data -------------------------------------------------------------------------------------------------
    def global_step(self, summary: Summary) -> Coefficients:
        """Optimal q(eta, s2)."""
        k = summary.n_clusters
        squares = 0.5 * (summary[SQUARES] + summary[SQUARES].T)
        precision = squares + self.kappa * np.eye(k)
        root = np.linalg.inv(np.linalg.cholesky(precision))
        cov = matmul(root.T, root)
        m = matmul(cov, summary[PRODUCTS])
        left = float(summary[POWER]) - matmul(m, summary[PRODUCTS])
        a, b = self.shape + 0.5 * float(summary[OBSERVED]), self._rate + 0.5 * max(float(left), 0.0)
        return Coefficients(m, cov, a, b, float(summary[OBSERVED]))

    def term(self, params: Coefficients, summary: Summary) -> float:
        """Term of the objective, nats, for any parameters and summary."""
        n, k = float(summary[OBSERVED]), summary.n_clusters
        squares, m, cov, a, b = summary[SQUARES], params.m, params.V, params.a, params.b
        left = summary[POWER] - 2.0 * matmul(m, summary[PRODUCTS]) + matmul(m, matmul(squares, m))
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


def pull_of(first: np.ndarray, second: np.ndarray, on: np.ndarray, size: np.ndarray) -> Pull:
    """Pull with its scratch; ``first (G, K)``, ``second (K, K)``, ``on (G,)``, tokens ``size (G,)``."""
    k = len(second)
    own = np.diag(second)
    steep = 0.25 * float(np.max(own[:, None] + own - 2.0 * second, initial=0.0))
    second = np.ascontiguousarray(second, np.float64)
    return Pull(np.ascontiguousarray(first), second, on, size, steep, np.empty(k), np.empty(k), np.empty(k))


def _present(states: GroupStates) -> GroupStates:
    """Counts of topics in the set alone."""
    stay = states.cluster >= 0
    kept = np.concatenate([[0], np.cumsum(stay)])
    return GroupStates(kept[states.offsets].astype(np.int64), states.cluster[stay], states.count[stay])


# -- in an allocation, which may have none -------------------------------------------------------------------------
def response_fields(response: GaussianResponse | None) -> Mapping[str, Field]:
    """Fields of a summary."""
    return {} if response is None else response.fields


def coefficients_of(response: GaussianResponse | None, summary: Summary) -> Coefficients | None:
    """Optimal coefficients; none without responses, or from statistics without groups (of an initialisation)."""
    return None if response is None or SQUARES not in summary else response.global_step(summary)


def response_terms(
    response: GaussianResponse | None, params: Coefficients | None, summary: Summary
) -> dict[str, float]:
    """The term ``response`` of the objective, nats."""
    return {} if response is None or params is None else {"response": response.term(params, summary)}


def receivers_pull(
    response: GaussianResponse | None,
    params: Coefficients | None,
    tokens: Tokens,
    donors: np.ndarray,
    receivers: Receivers | None,
) -> Pull | None:
    """Pull on the receivers of a trial; see :meth:`GaussianResponse.pull_on_receivers`."""
    if response is None or params is None or receivers is None:
        return None
    if receivers.params is not None and receivers.params.response is None:
        return None
    given = None if receivers.params is None else receivers.params.response
    return response.pull_on_receivers(params, given, tokens, donors, receivers.places, receivers.counts)
