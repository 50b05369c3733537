"""Mixture whose clusters are shared by strata, each of which has weights of its own around the global ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from scipy.special import psi

from bnp_dask.allocation.mixture_step import mixture_local_step, mixture_reassign, mixture_tiles
from bnp_dask.allocation.strata_top_level import (
    LEAST,
    Moments,
    StrataCounts,
    constant_bound,
    moments_of_shares,
    moments_of_sticks,
    shares_term,
    sticks_term,
)
from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import OPTIONAL
from bnp_dask.core.registry import register
from bnp_dask.core.summary import Field, Summary
from bnp_dask.core.survey import Survey
from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import flag, hold, positive_mass, whole_number, whole_or_none
from bnp_dask.kernels.mixture.resp import Resp, cluster_sums
from bnp_dask.kernels.numeric.arithmetic import inner, log, matmul
from bnp_dask.structure.steps import LocalStep
from bnp_dask.structure.strata import STRATA, Strata

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
    such as years, the weights of each are around those of the stratum before, ``pi_t ~ Dirichlet(alpha pi_(t-1))``.

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
    The column of strata is the ``Given()`` part of a :class:`~bnp_dask.observation.product.Product`.  Strata with
    atoms are the ones that the objective counts.  A stratum without atoms (a category that is declared and does not
    occur) is predicted by its parent: the global weights, or those of the last stratum before it that has some.  Rows
    of it that come later (:func:`bnp_dask.update`) give it weights of its own.  A level that was not declared is
    refused, as for other columns of levels.

    The objective is a lower bound of the evidence for any ``alpha``, see
    :mod:`bnp_dask.allocation.strata_top_level`.  The global step maximises it over all sticks and weights together.

    References
    ----------
    Teh, Jordan, Beal & Blei, "Hierarchical Dirichlet processes", 2006; ordered: Ren, Dunson & Carin, "The dynamic
    hierarchical Dirichlet process", 2008, and Ahmed & Xing, "Dynamic non-parametric mixture models", 2008, in whose
    place stand Dirichlet weights around the ones before.  Thesis 8.4.
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
        """See :class:`~bnp_dask.structure.verbs.SummingAllocation`."""
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
