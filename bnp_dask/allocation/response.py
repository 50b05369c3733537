"""Responses of documents: a regression of an observed value on the shares of topics in a document.

A document d with tokens z_d1, ..., z_dn has the shares ``zbar_d = (1/n) sum_i e(z_di)`` of topics (Blei & McAuliffe
2007, "Supervised topic models"), and its response, where one is observed, depends on ``eta . zbar_d``: a number
(:mod:`bnp_dask.allocation.gaussian_response`), or a class (:mod:`bnp_dask.allocation.categorical_response`).  The term
of a document in the objective is linear and quadratic in its shares,

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
:func:`bnp_dask.kernels.topics.response.tilt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from bnp_dask.core.summary import CLUSTER, Field, GroupStates, Summary
from bnp_dask.kernels.numeric.arithmetic import matmul
from bnp_dask.kernels.topics.document_step import Pull
from bnp_dask.kernels.topics.response import share_sums
from bnp_dask.structure.responding import SQUARES, responding
from bnp_dask.structure.steps import Receivers, Tokens

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
