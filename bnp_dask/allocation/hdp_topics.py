"""HDP topic model: an unbounded number of topics, with the surrogate bound of thesis 5.2.3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

import numpy as np

from bnp_dask.allocation.document_step import DocumentStep, document_step, group_tiles, rest_shift, share_out
from bnp_dask.allocation.sticks import TopLevel, stick_weights, surrogate, u_from_counts
from bnp_dask.core.batch import Batch
from bnp_dask.core.group_states import GroupStates
from bnp_dask.core.registry import register
from bnp_dask.core.summary import Field, Summary
from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import LEAST_MASS, hold, positive_mass, shown
from bnp_dask.kernels.numeric.arithmetic import log, matmul
from bnp_dask.structure.groups import Groups
from bnp_dask.structure.steps import NO_DONORS, GroupStep, Tokens


@register
@dataclass(frozen=True, eq=False)
class TopicSticks:
    """q(u_k) = Beta(u_k omega_k, (1 - u_k) omega_k); E[pi_k], all ``(K,)``, and the rest for unused topics."""

    u: np.ndarray
    omega: np.ndarray
    pi: np.ndarray
    rest: float

    @classmethod
    def of(cls, u: np.ndarray, omega: np.ndarray) -> TopicSticks:
        """Posterior from u and omega, with the weights computed."""
        pi, rest = stick_weights(np.asarray(u, np.float64))
        return cls(np.asarray(u, np.float64), np.asarray(omega, np.float64), pi, rest)


@register
@dataclass(frozen=True)
class HDPTopics:
    """Topic model that learns its number of topics: pi_d ~ Dirichlet(alpha pi), pi from a Dirichlet process.

    Parameters
    ----------
    gamma
        Concentration of the top level, > 0: larger expects more topics.
    alpha
        Concentration of each document's weights, > 0: small values expect few topics per document.
    step
        Settings of the search for topics of a document's tokens.

    Notes
    -----
    With sparse counts a row is a document and a word token is an atom, so ``N`` counts tokens and the objective has
    no base measure.  With dense atoms, ``Batch.groups`` says which rows are one group.  A group without atoms adds
    its prior to the objective and nothing to any topic.

    The order of clusters is stick order.  A summary without groups (of an initialisation) gives the sticks of a DP
    mixture with these counts.

    References
    ----------
    Thesis 5.2-5.4: objective (5.25), (5.27), (5.48); global step (5.37), (5.39).
    """

    gamma: float = 10.0
    alpha: float = 0.5
    step: DocumentStep = field(default_factory=DocumentStep)
    structure = Groups()
    nonparametric = True

    def __post_init__(self) -> None:
        for name in ("gamma", "alpha"):
            hold(self, name, positive_mass(name, getattr(self, name), "concentration"))
        if not isinstance(self.step, DocumentStep):
            raise SettingError(f"step={shown(self.step)}: needs a DocumentStep")

    @property
    def keeps_states(self) -> bool:
        return self.step.keeps_states

    @property
    def counts(self) -> frozenset[str]:
        return frozenset({"docs"})

    @property
    def fields(self) -> Mapping[str, Field]:
        tracked, plain = Field(("cluster",), merge="tracked"), Field()
        sums = dict.fromkeys(("Q_0", "P_rest", "Q_rest", "docs"), plain)
        return MappingProxyType({"H": tracked, "P": tracked, "Q": tracked, **sums})

    def tiles(self, batch: Batch, n_clusters: int) -> Iterator[Batch]:
        return group_tiles(batch, n_clusters)

    def local_step(
        self, params: TopicSticks, tokens: Tokens, log_lik: np.ndarray, pairs: np.ndarray,
        sets: np.ndarray, states: GroupStates | None,
    ) -> GroupStep:  # fmt: skip
        """See :class:`~bnp_dask.structure.verbs.GroupedAllocation`."""
        prior, rest = self.alpha * params.pi, self.alpha * params.rest
        return document_step(self.step, prior, rest, tokens, log_lik, pairs, sets, states)

    def reassign(
        self, params: TopicSticks, donors: np.ndarray, beliefs: np.ndarray, tokens: Tokens,
        log_lik: np.ndarray, mass: np.ndarray, states: GroupStates | None = None, freed: np.ndarray = NO_DONORS,
    ) -> GroupStep:  # fmt: skip
        """See :class:`~bnp_dask.structure.verbs.GroupedAllocation`."""
        theta = tokens.length + self.alpha * (params.pi.sum() + params.rest)
        freed = freed if params.rest > 0.0 else NO_DONORS
        given = self.alpha * float(params.pi[np.setdiff1d(donors, freed)].sum())
        everything = len(donors) == len(params.pi)
        step = share_out(self.step, given, beliefs, theta, tokens, log_lik, mass, states, everything)
        if len(freed):
            rest = self.alpha * params.rest
            more = rest + self.alpha * float(params.pi[freed].sum())
            step.values.update(rest_shift(tokens.times, theta, rest, more))
        return step

    def within(self, share: float) -> Self:
        """See :class:`~bnp_dask.structure.verbs.GroupedAllocation`."""
        return replace(self, alpha=max(LEAST_MASS, self.alpha * share))

    def prior_mass(self, params: TopicSticks) -> tuple[np.ndarray, float]:
        """See :class:`~bnp_dask.structure.verbs.GroupedAllocation`."""
        return self.alpha * params.pi, self.alpha * params.rest

    def global_step(self, summary: Summary) -> TopicSticks:
        top = self.top_level(summary)
        counts = np.maximum(summary["N"], 0.0)
        u = top.best_u() if top.groups > 0 and summary.n_clusters else u_from_counts(counts, self.gamma)
        return TopicSticks.of(u, top.omega())

    def from_counts(self, counts: np.ndarray) -> TopicSticks:
        """See :class:`~bnp_dask.allocation.base.StickAllocation`; ``counts`` are tables."""
        u = u_from_counts(counts, self.gamma)
        return TopicSticks.of(u, (1.0 + counts) / u)

    def top_level(self, summary: Summary) -> TopLevel:
        """Statistics for the global step."""
        return TopLevel(self.gamma, self.alpha, float(summary["docs"]), summary["P"], float(summary["P_rest"]))

    def log_weights(self, params: TopicSticks) -> np.ndarray:
        return log(params.pi)

    def weights(self, params: TopicSticks) -> np.ndarray:
        return params.pi

    def elbo(self, params: TopicSticks, summary: Summary) -> dict[str, float]:
        value = self.document_term(params, summary) + self.top_term(params, summary)
        return {"entropy": float(summary["H"].sum()), "allocation": float(value)}

    def document_term(self, params: TopicSticks, summary: Summary) -> float:
        """L_HDP-doc of (5.27) at these weights, nats."""
        value = self.alpha * (matmul(params.pi, summary["P"]) + params.rest * summary["P_rest"])
        return float(value + summary["Q_0"] + summary["Q_rest"] + summary["Q"].sum())

    def top_term(self, params: TopicSticks, summary: Summary) -> float:
        """Surrogate of L_HDP-top (5.25), nats."""
        return surrogate(params.u, params.omega, self.gamma, self.alpha, float(summary["docs"]))
