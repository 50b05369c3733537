"""Mixture whose clusters are shared by strata, each of which has weights of its own around the global ones.

Stratum s has weights ``pi_s ~ Dirichlet(alpha m)`` over K clusters in use and one place for all others.  ``m`` are the
weights of its parent: global stick-breaking weights with ``q(u_k) = Beta(a_k, b_k)``, or the weights of the stratum
before with ``q(pi) = Dirichlet(theta)``.  The log constant of this prior,

    c(m) = log Gamma(alpha) - sum_k log Gamma(alpha m_k),

has no closed expectation under q.  With ``-log Gamma(x) = log x - log Gamma(1 + x)`` and

    log Gamma(1 + x) = x log x - x + r(x),     r concave, as psi'(1 + x) < 1 / x,

Jensen's inequality for r alone gives a lower bound of all moments that are known,

    E[c(m)] >= log Gamma(alpha) + sum_k log alpha + E[log m_k] - log Gamma(1 + alpha E[m_k])
                                  - alpha (E[m_k log m_k] - E[m_k] log E[m_k]).

It is exact where q is certain of m.  The bound of the thesis (5.2.3) leaves ``log Gamma(1 + alpha m_k)`` out; the loss
grows like alpha times the entropy of m, which strata with alpha above 1 cannot afford.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from scipy.special import betaln, gammaln, psi

from bnp_dask.allocation.mixture_step import mixture_local_step, mixture_reassign, mixture_tiles
from bnp_dask.allocation.sticks import climb
from bnp_dask.core import OPTIONAL, Batch, Field, Summary, Survey, register
from bnp_dask.errors import SettingError
from bnp_dask.inputs import flag, hold, positive_mass, whole_number, whole_or_none
from bnp_dask.kernels import Resp, cluster_sums, exp, inner, log, matmul
from bnp_dask.kernels import mixture as kernel
from bnp_dask.structure import STRATA, LocalStep, Strata

# -- the top level ------------------------------------------------------------------------------------------------
LEAST = 1e-300
"""Least expected weight and pseudo-count: keeps logarithms finite."""

LARGEST_LOG = 40.0
"""Bound of the logarithm of each parameter of q."""

ENOUGH = 1e-6
"""Slope of the objective, nats, at which its climb ends: the rest of the way is worth about the square of it."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of weights under q, over K + 1 places: ``log E[m]``, ``E[log m]`` and ``E[m log m] / E[m]``."""

    log_mean: np.ndarray
    mean_log: np.ndarray
    tilted: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Expected weights, ``(K + 1,)``."""
        return np.maximum(exp(self.log_mean), LEAST)


def moments_of_sticks(a: np.ndarray, b: np.ndarray) -> Moments:
    """Moments of the stick-breaking weights under ``q(u_k) = Beta(a_k, b_k)``, ``(K,)`` each."""
    total = a + b
    one, more = psi(total), psi(total + 1.0)
    return Moments(
        _along(log(a) - log(total), log(b) - log(total)),
        _along(psi(a) - one, psi(b) - one),
        _along(psi(a + 1.0) - more, psi(b + 1.0) - more),
    )


def moments_of_shares(theta: np.ndarray) -> Moments:
    """Moments of weights under ``q = Dirichlet(theta)``, ``(K + 1,)``."""
    total = theta.sum()
    return Moments(log(theta) - log(total), psi(theta) - psi(total), psi(theta + 1.0) - psi(total + 1.0))


def _along(first: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Sums along the sticks: that of breaking stick k after passing all before, and of passing all, ``(K + 1,)``."""
    return np.append(first, 0.0) + np.concatenate([[0.0], np.cumsum(rest)])


def constant_bound(parent: Moments, alpha: float) -> float:
    """Lower bound of the expected log constant of ``Dirichlet(alpha m)``, nats."""
    m = parent.mean
    gap = m * (parent.tilted - parent.log_mean)
    return float(gammaln(alpha) + np.sum(log(alpha) + parent.mean_log - gammaln(1.0 + alpha * m) - alpha * gap))


def shares_term(theta: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Terms of weights with ``q = Dirichlet(theta)``, rows ``(S, K + 1)``, whose prior and data ask for ``wanted``,
    without the constant of the prior, ``(S,)`` nats."""
    total = theta.sum(axis=1, keepdims=True)
    value = (wanted - theta) * (psi(theta) - psi(total)) + gammaln(theta)
    return np.asarray(value.sum(axis=1) - gammaln(total[:, 0]))


def sticks_term(a: np.ndarray, b: np.ndarray, gamma: float) -> float:
    """Minus the divergence of the sticks' posteriors from their prior Beta(1, gamma), nats."""
    total = psi(a + b)
    value = betaln(a, b) - betaln(1.0, gamma) + (1.0 - a) * (psi(a) - total) + (gamma - b) * (psi(b) - total)
    return float(value.sum())


@dataclass(frozen=True, eq=False)
class StrataCounts:
    """Statistics to which the top level is fitted: ``counts (S, K)`` of strata with atoms, in their order.

    ``is_chain``: the parent of each stratum is the one before; else all have the global weights as their parent.
    """

    counts: np.ndarray
    gamma: float
    alpha: float
    is_chain: bool

    def best(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``a (K,)``, ``b (K,)`` and ``theta (S, K + 1)`` at the optimum: a function of the counts alone."""
        k = self.counts.shape[1]
        found = climb(self.value_and_slope, self._begin(), 1.0, LARGEST_LOG, ENOUGH)
        a, b = exp(found[:k]), exp(found[k : 2 * k])
        return a, b, self.shares(a, b, exp(found[2 * k :]).reshape(-1, k + 1))

    def shares(self, a: np.ndarray, b: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """``theta (S, K + 1)``, with the best one of each stratum that is no parent."""
        parent = moments_of_sticks(a, b) if not len(theta) else moments_of_shares(theta[-1])
        more = self.counts[len(theta) :]
        wanted = np.pad(more, ((0, 0), (0, 1))) + self.alpha * parent.mean
        return np.maximum(np.concatenate([theta, wanted]), LEAST)

    def _begin(self) -> np.ndarray:
        """Sticks of as many draws of each cluster as a stratum is expected to make, a logarithm of its counts."""
        drawn = np.minimum(self.counts, self.alpha * np.log1p(self.counts / self.alpha)).sum(axis=0)
        after = np.append(np.cumsum(drawn[::-1])[::-1][1:], 0.0)
        a, b = 1.0 + drawn, self.gamma + after
        parts = [a, b]
        if self.is_chain:
            mean = exp(moments_of_sticks(a, b).log_mean)
            parts.append((np.pad(self.counts[:-1], ((0, 0), (0, 1))) + self.alpha * mean).ravel())
        return log(np.maximum(np.concatenate(parts), 1e-12))

    def value_and_slope(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Top level's term of the objective at the logs of a, b and theta of all parents, and its gradient.

        A stratum that is no parent has its best theta.
        """
        slope = np.empty(len(point))
        counts = np.ascontiguousarray(self.counts)
        return float(kernel.value_and_slope(point, counts, self.gamma, self.alpha, slope)), slope


# -- the model ----------------------------------------------------------------------------------------------------
SOME = 1e-9
"""Mass of a stratum from which it counts as one with atoms: more than the rounding of sums that cancel."""


@register
@dataclass(frozen=True, eq=False)
class StrataParams:
    """Beliefs about the weights.

    Parameters
    ----------
    a, b
        ``q(u_k) = Beta(a_k, b_k)`` of the global sticks, ``(K,)``.
    theta
        ``q(pi_s) = Dirichlet(theta_s)`` of each stratum, ``(S, K + 1)``, with all unseen clusters last.  A stratum
        without atoms has the mean of its parent, times ``alpha``.
    log_pi
        Expected log weights of the clusters in each stratum, ``(K, S)``; of a stratum without atoms the log of their
        expected weights.
    mass
        Atoms of each stratum, ``(S,)``.
    """

    a: np.ndarray
    b: np.ndarray
    theta: np.ndarray
    log_pi: np.ndarray
    mass: np.ndarray


@register
@dataclass(frozen=True)
class StrataMixture:
    """Mixture with an unbounded number of clusters, shared by strata that differ in how large the clusters are.

    The weights of each stratum are ``pi_s ~ Dirichlet(alpha beta)``, around global stick-breaking weights ``beta``: a
    hierarchical Dirichlet process over strata, whose rows may lie anywhere in the data.  If the strata are ordered,
    such as years, the weights of each are around the weights of the stratum before, ``pi_t ~ Dirichlet(alpha
    pi_(t-1))``.

    Parameters
    ----------
    gamma
        Concentration of the global weights, > 0: larger expects more clusters.
    alpha
        Concentration of a stratum's weights about its parent's, > 0: the parent counts as so many atoms of the stratum.
        Small values let strata differ.
    ordered
        Whether the strata are a chain, in the order of their levels.
    top
        Clusters kept per atom, or None for all.
    column, n_strata
        Position of the column of strata, and their number; set from the data.

    Notes
    -----
    The column of strata is the ``Given()`` part of a :class:`~bnp_dask.observation.product.Product`.  The objective
    counts only strata with atoms.  A stratum without atoms (a category that is declared and does not occur) is
    predicted by its parent: the global weights, or, if ordered, the weights of the last stratum before it that has
    atoms.  Rows of it that come later (:func:`bnp_dask.update`) give it weights of its own.  A level that was not
    declared is refused, as for other columns of levels.

    The objective is a lower bound of the evidence for any ``alpha``, see
    :mod:`bnp_dask.allocation.strata`.  The global step maximises it over all sticks and weights together.

    References
    ----------
    Teh, Jordan, Beal & Blei, "Hierarchical Dirichlet processes", 2006; ordered: Ren, Dunson & Carin, "The dynamic
    hierarchical Dirichlet process", 2008, and Ahmed & Xing, "Dynamic non-parametric mixture models", 2008.  Their
    chains of strata have other transitions; here each stratum's weights are Dirichlet around those before, as in thesis
    8.4.
    """

    gamma: float = 1.0
    alpha: float = 10.0
    ordered: bool = False
    top: int | None = None
    column: int | None = field(default=None, metadata=OPTIONAL)
    n_strata: int | None = field(default=None, metadata=OPTIONAL)
    structure = Strata()
    nonparametric = True

    def __post_init__(self) -> None:
        hold(self, "gamma", positive_mass("gamma", self.gamma, "concentration"))
        hold(self, "alpha", positive_mass("alpha", self.alpha, "concentration"))
        flag("ordered", self.ordered)
        hold(self, "top", whole_or_none("top", self.top, "a whole number of clusters per atom"))
        if self.column is not None:
            hold(self, "column", whole_number("column", self.column, what="None, or the position of a column"))
        hold(self, "n_strata", whole_or_none("n_strata", self.n_strata, "a number of strata"))

    def with_prior(self, survey: Survey, observation: Any) -> Self:
        """See :class:`~bnp_dask.allocation.base.PreparedAllocation`."""
        names, place = self.structure.given(observation)
        return replace(self, column=place, n_strata=len(names))

    def _required(self) -> tuple[int, int]:
        if self.column is None or self.n_strata is None:
            raise SettingError(f"{type(self).__name__} does not know its strata yet; call with_prior(survey) first")
        return self.column, self.n_strata

    def strata_of(self, batch: Batch) -> np.ndarray:
        """Position of each atom's stratum, ``(n,)``."""
        return np.asarray(batch.x[:, self._required()[0]]).astype(np.int64)

    @property
    def counts(self) -> frozenset[str]:
        return frozenset({STRATA})

    @property
    def fields(self) -> Mapping[str, Field]:
        return MappingProxyType({"H": Field(("cluster",), merge="tracked"), STRATA: Field(("cluster", "stratum"))})

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"stratum": self.n_strata or 0}

    def sums(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        """See :class:`~bnp_dask.structure.protocols.SummingAllocation`."""
        one_hot = (self.strata_of(batch)[:, None] == np.arange(self._required()[1])).astype(np.float64)
        return {STRATA: cluster_sums(resp, one_hot)}

    def tiles(self, batch: Batch, n_clusters: int) -> Iterator[Batch]:
        return mixture_tiles(batch, n_clusters)

    def local_step(self, params: StrataParams, log_lik: np.ndarray, batch: Batch, pairs: np.ndarray) -> LocalStep:
        log_lik += params.log_pi.T[self.strata_of(batch)]
        step = mixture_local_step(np.zeros(log_lik.shape[1]), log_lik, batch, pairs, self.top)
        return replace(step, values={**step.values, **self.sums(batch, step.resp)})

    def reassign(self, params: StrataParams, log_lik: np.ndarray, batch: Batch, mass: np.ndarray) -> LocalStep:
        log_lik += params.log_pi.T[self.strata_of(batch)]
        step = mixture_reassign(np.zeros(log_lik.shape[1]), log_lik, batch, mass, self.top)
        return replace(step, values={**step.values, **self.sums(batch, step.resp)})

    def global_step(self, summary: Summary) -> StrataParams:
        counts = summary[STRATA]
        mass = counts.sum(axis=0)
        here = np.flatnonzero(mass > SOME)
        found = StrataCounts(np.maximum(counts[:, here].T, 0.0), self.gamma, self.alpha, self.ordered).best()
        a, b, own = found
        node = moments_of_sticks(a, b)
        theta, log_pi = np.empty((len(mass), len(a) + 1)), np.empty(counts.shape)
        place = {int(s): i for i, s in enumerate(here)}
        for s in range(len(mass)):
            if s in place:
                theta[s] = own[place[s]]
                log_pi[:, s] = psi(theta[s, :-1]) - psi(theta[s].sum())
                node = moments_of_shares(theta[s]) if self.ordered else node
            else:
                theta[s] = np.maximum(self.alpha * node.mean, LEAST)
                log_pi[:, s] = np.maximum(node.log_mean[:-1], np.log(LEAST))
        return StrataParams(a, b, theta, log_pi, mass)

    def shares(self, params: StrataParams) -> np.ndarray:
        """Expected weights of each stratum, ``(S, K + 1)``; the last is of all unseen clusters."""
        return np.asarray(params.theta / params.theta.sum(axis=1, keepdims=True))

    def weights(self, params: StrataParams) -> np.ndarray:
        total = params.mass.sum()
        if not total > SOME:
            return moments_of_sticks(params.a, params.b).mean[:-1]
        return np.asarray(matmul(np.maximum(params.mass, 0.0) / total, self.shares(params)))[:-1]

    def log_weights(self, params: StrataParams) -> np.ndarray:
        return np.asarray(log(np.maximum(self.weights(params), LEAST)))

    def elbo(self, params: StrataParams, summary: Summary) -> dict[str, float]:
        counts = summary[STRATA]
        value = sticks_term(params.a, params.b, self.gamma) + inner(counts, params.log_pi)
        node: Moments = moments_of_sticks(params.a, params.b)
        for s in np.flatnonzero(params.mass > SOME):
            theta = params.theta[s]
            value += constant_bound(node, self.alpha)
            value += float(shares_term(theta[None], self.alpha * node.mean[None])[0])
            node = moments_of_shares(theta) if self.ordered else node
        return {"entropy": float(summary["H"].sum()), "allocation": float(value)}
