"""Responses of documents: a regression of an observed value on the shares of topics in a document.

A document d with tokens z_d1, ..., z_dn has the shares ``zbar_d = (1/n) sum_i e(z_di)`` of topics (Blei & McAuliffe
2007, "Supervised topic models"), and its response, where one is observed, depends on ``eta . zbar_d``: a number
(:class:`GaussianResponse`), or a class (:class:`CategoricalResponse`).  The term of a document in the objective is
linear and quadratic in its shares,

    t_d . (scale M^T zbar_d) - zbar_d^T (curve M M^T + U) zbar_d / 2 - level_d,

with M ``(K, R)`` the means of coefficients, U from their covariance, and t_d ``(R,)`` from the response
(:class:`Lines`, :class:`Facts`).  It needs ``E[zbar zbar^T]``.  For tokens with independent responsibilities r_i and
mean z = (1/n) sum_i r_i this is ``z z^T + (1/n^2) sum_i (diag(r_i) - r_i r_i^T)``.  Its second part is a sum of
matrices of tokens.  By convexity of ``r r^T`` it is at most, as a matrix, the one of tokens that all have the
responsibilities z:

    E[zbar zbar^T] <= S_d = (1 - 1/n) z z^T + (1/n) diag(z).

S_d in place of ``E[zbar zbar^T]`` gives a lower bound of the objective, tight for tokens with equal responsibilities.
It is known for any coefficients and responsibilities from sums over documents:

    sum_d S_d (K, K),   sum_d t_d z_d (K, R),   sum_d level_d,   the number of responses.

Sums are unchanged by topics that come empty.  A union of two topics adds up their rows and columns, which is exact:
``z_a + z_b`` is its share.  The statistics of a batch thus hold K x K numbers: 80 kB for 100 topics, 8 MB for 1,000.

In a document the term depends on z alone, so all of its tokens share one factor of each topic, ``exp(slope)``; see
:func:`bnp_dask.kernels.topics.document_step.tilt`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from scipy.special import digamma, gammaln, logsumexp, softmax

from bnp_dask.core import CLUSTER, Field, GroupStates, Summary, register
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs import hold, number_from, positive_mass, positive_number, shown
from bnp_dask.kernels import Pull, matmul, share_sums
from bnp_dask.structure import SQUARES, Receivers, Tokens, responding

PRODUCTS, OBSERVED, LEVEL = "share_products", "responses", "response_level"
"""Fields: the sums of t_d z_d, of responses, and of level_d."""

COUNTS = frozenset({SQUARES, OBSERVED, LEVEL})
"""Fields that sum nonnegative terms."""

KAPPA = 0.1
"""Default of ``kappa``: coefficients of a topic have a prior standard deviation of about three."""


@dataclass(frozen=True, eq=False)
class Lines:
    """Coefficients as documents see them: ``m (K, R)``, ``scale``, ``curve``, and U, ``spread (K, K)``."""

    m: np.ndarray
    scale: float
    curve: float
    spread: np.ndarray


@dataclass(frozen=True, eq=False)
class Facts:
    """Facts about the responses of documents: t_d, ``target (G, R)``, and ``level (G,)``; both 0 where none is."""

    target: np.ndarray
    level: np.ndarray


@runtime_checkable
class Response(Protocol):
    """Model of responses, as an allocation uses it; its parameters are a frozen dataclass with ``known`` responses."""

    @property
    def response_sizes(self) -> Mapping[str, int]:
        """Length of the axis of ``PRODUCTS`` beside the topics; empty if there is none."""
        ...

    def facts(self, params: Any, tokens: Tokens, shares: np.ndarray | None) -> Facts:
        """Facts about responses; ``params`` may be None.

        ``shares (G, R)`` are the products of expected shares of topics with ``lines(params).m``, around which a bound
        is tight; None if nothing is known of coefficients.
        """
        ...

    def lines(self, params: Any) -> Lines:
        """Coefficients as documents see them."""
        ...

    def global_step(self, summary: Summary) -> Any:
        """Optimal parameters."""
        ...

    def term(self, params: Any, summary: Summary) -> float:
        """Term of the objective, nats, for any parameters and summary."""
        ...


# -- documents ------------------------------------------------------------------------------------------------------
def products_of(states: GroupStates, values: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Expected shares of topics times ``values (K, R)``, ``(G, R)``; topics at -1 are left out."""
    owner = np.repeat(np.arange(states.n_groups), np.diff(states.offsets))
    count = np.where(states.cluster >= 0, states.count.astype(np.float64), 0.0)
    size = np.maximum(length, 1e-300)
    columns = [np.bincount(owner, count * column[states.cluster], states.n_groups) / size for column in values.T]
    return np.stack(columns, axis=1)


def known_facts(response: Response, params: Any, tokens: Tokens, counts: GroupStates) -> Facts:
    """Facts about documents whose topics have the counts ``counts``, by position."""
    known = params is not None and params.known > 0.0
    shares = products_of(counts, response.lines(params).m, tokens.length) if known else None
    return response.facts(params, tokens, shares)


def document_pull(
    response: Response | None, params: Any, tokens: Tokens, states: GroupStates | None, weights: np.ndarray
) -> Pull | None:
    """Pull on documents in a local step; None without responses, or if nothing is known of coefficients.

    A bound that has to be tight somewhere is tight at the counts of the last visit, ``states``, or else at the expected
    ``weights (K,)`` of topics.  So a local step begins with the objective that the last visit had, or a higher one.
    """
    if response is None or params is None or tokens.response is None or params.known <= 0.0:
        return None
    lines = response.lines(params)
    shares = np.tile(matmul(weights / weights.sum(), lines.m), (len(tokens.times), 1))
    if states is not None:
        there = products_of(states, np.ones((len(weights), 1)), tokens.length)
        shares = np.where(there > 0.5, products_of(states, lines.m, tokens.length), shares)
    facts = response.facts(params, tokens, shares)
    return _pull_of(lines, facts.target, tokens)


def receivers_pull(
    response: Response | None, params: Any, tokens: Tokens, donors: np.ndarray, receivers: Receivers | None
) -> Pull | None:
    """Pull on some documents' tokens that are shared out among receivers, all else staying as it is.

    Parameters
    ----------
    response, params
        Model of responses, and the coefficients of all topics in force.
    tokens
        All tokens, not only the ones that are shared out.
    donors
        Positions of the topics whose tokens these are.
    receivers
        The receivers of a trial.

    Notes
    -----
    Coefficients of a new topic are taken to be the mean of its donors'.  Statistics do not depend on the pull.
    """
    if response is None or params is None or receivers is None or tokens.response is None or params.known <= 0.0:
        return None
    target = known_facts(response, params, tokens, receivers.counts).target
    if receivers.params is not None:
        given = receivers.params.response
        if given is None or given.known <= 0.0:
            return None
        return _pull_of(response.lines(given), target, tokens)
    own, places = response.lines(params), receivers.places
    old = places >= 0
    m = np.where(old[:, None], own.m[places], own.m[donors].mean(axis=0))
    spread = np.where(old, np.diag(own.spread)[places], np.diag(own.spread)[donors].mean())
    rest = own.m.copy()
    rest[donors] = 0.0
    fixed = products_of(receivers.counts, rest, tokens.length)
    n = np.maximum(tokens.length, 1.0)[:, None]
    target = target - (1.0 - 1.0 / n) * (own.curve / own.scale) * fixed
    return _pull_of(Lines(m, own.scale, own.curve, np.diag(spread)), target, tokens)


def _pull_of(lines: Lines, target: np.ndarray, tokens: Tokens) -> Pull:
    """Pull with its scratch."""
    k = len(lines.m)
    first = matmul(target, np.ascontiguousarray(lines.scale * lines.m.T))
    second = np.ascontiguousarray(lines.curve * matmul(lines.m, np.ascontiguousarray(lines.m.T)) + lines.spread)
    own = np.diag(second)
    steep = 0.25 * float(np.max(own[:, None] + own - 2.0 * second, initial=0.0))
    first = np.ascontiguousarray(first)
    return Pull(first, second, responding(tokens), tokens.length, steep, np.empty(k), np.empty(k), np.empty(k))


def response_sums(
    response: Response, params: Any, tokens: Tokens, counts: GroupStates, own: GroupStates, n_topics: int
) -> dict[str, np.ndarray]:
    """Statistics of ``n_topics`` whose counts are ``own``, by position, in documents in which the topics of ``params``
    have ``counts``."""
    n_columns = int(np.prod(list(response.response_sizes.values()), dtype=np.int64))
    squares, products = np.zeros((n_topics, n_topics)), np.zeros((n_topics, n_columns))
    observed = level = np.zeros(())
    if tokens.response is not None:
        facts = known_facts(response, params, tokens, counts)
        times = np.where(responding(tokens), tokens.times, 0.0)
        share_sums(
            own.offsets, own.cluster, own.count.astype(np.float64), tokens.length, times, facts.target, squares,
            products,
        )  # fmt: skip
        observed, level = np.asarray(times.sum()), np.asarray(matmul(times, facts.level))
    if not response.response_sizes:
        products = products[:, 0]
    return {SQUARES: squares, PRODUCTS: products, OBSERVED: observed, LEVEL: level}


# -- in an allocation, which may have none --------------------------------------------------------------------------
def response_fields(response: Response | None) -> Mapping[str, Field]:
    """Fields of a summary."""
    if response is None:
        return {}
    products = Field((CLUSTER, *response.response_sizes))
    return {SQUARES: Field((CLUSTER, CLUSTER)), PRODUCTS: products, OBSERVED: Field(), LEVEL: Field()}


def coefficients_of(response: Response | None, summary: Summary) -> Any:
    """Optimal coefficients; none without responses, or from statistics without groups (of an initialisation)."""
    return None if response is None or SQUARES not in summary else response.global_step(summary)


def response_terms(response: Response | None, params: Any, summary: Summary) -> dict[str, float]:
    """The term ``response`` of the objective, nats."""
    return {} if response is None or params is None else {"response": response.term(params, summary)}


# -- numbers ------------------------------------------------------------------------------------------------------
# The response of a document, where one is observed, is
#
#     y_d ~ N(mean + eta . zbar_d, s2),   eta_k ~ N(0, s2 / kappa),   1 / s2 ~ Gamma(shape, rate),
#
# conjugate given the topics of the tokens.  A topic without tokens keeps its prior, so that the model has no bound on
# the number of topics.  The objective gets the term
#
#     E[log p(y | z, eta, s2)] - KL(q(eta, s2) || p(eta, s2)),   q(eta, s2) = N(eta; m, s2 V) Gamma(1 / s2; a, b),
#
# with the bound of ``E[zbar zbar^T]`` above; ``t_d = y_d - mean``, and its square is the
# document's level.
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

    Notes
    -----
    ``y_d ~ Normal(eta . zbar_d, variance)``, with zbar_d the shares of topics among the tokens of the document.  Here
    coefficients and variance have conjugate priors and posteriors, where the paper estimates numbers, and
    ``E[zbar zbar^T]`` is bounded (:mod:`bnp_dask.allocation.response`).

    References
    ----------
    Blei & McAuliffe, "Supervised topic models", 2007.
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


# -- classes ------------------------------------------------------------------------------------------------------
# The class of a document, where one is observed, is c with a probability in proportion to ``exp(f_c)``,
#
#     f = o + eta zbar_d  (C,),   eta_ck ~ N(0, 1 / kappa),
#
# with o the log of the prior share of each class.  Expected values of ``lse(f) = log sum_c exp(f_c)`` have no closed
# form.  Boehning (1992, "Multinomial logistic regression algorithm") bounds its curvature by ``A = (I - 1 1^T / C) /
# 2``, so that for any psi, with g = softmax(psi) and u = psi - o,
#
#     lse(f) <= lse(psi) + g . (f - psi) + (f - psi)^T A (f - psi) / 2.
#
# Every document has a psi_d of its own.  With e_y the class as a vector the document's term is at least
#
#     t_d . (eta zbar) - (eta zbar)^T A (eta zbar) / 2 - level_d,
#     t_d = e_y - g + A u,   level_d = lse(psi) - o_y - g . u + u^T A u / 2 >= 0,
#
# linear and quadratic in the shares as needed above.  A is the same for all documents,
# so that the statistics are additive and the global step is closed: with ``V = (sum_d S_d / 2 + kappa I)^-1`` the
# optimal q(eta) is normal with means ``m = V sum_d z_d t_d^T (K, C)``, which sum to zero over classes, and a covariance
# that is V for differences between classes and the prior's for a number added to all classes, which no probability
# depends on.
#
# The bound is highest where psi_d is the expected f.  A visit of a document begins with this psi_d at the counts of the
# last visit under the present coefficients, finds topics, and leaves the psi_d at its new counts in the statistics: no
# step lowers the objective, and no psi_d is kept.  Trials of the visit use the same psi_d, so they are judged exactly.
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

    Notes
    -----
    The probability of class c is proportional to ``shares[c] exp(eta_c . zbar_d)``, with zbar_d the shares of topics
    among the tokens of the document.  Its normaliser is bounded by a quadratic function of the coefficients.

    References
    ----------
    Blei & McAuliffe, "Supervised topic models", 2007, whose generalized linear models include this one; the bound:
    Boehning, "Multinomial logistic regression algorithm", 1992.
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
