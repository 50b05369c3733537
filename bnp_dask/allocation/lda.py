"""Latent Dirichlet allocation: a fixed number of topics, and each document has its own weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from scipy.special import gammaln, psi

from bnp_dask.allocation import concentrations
from bnp_dask.allocation.document_step import DocumentStep, document_step, group_tiles, share_out
from bnp_dask.allocation.dp_mixture import DPMixture
from bnp_dask.allocation.response import (
    COUNTS,
    Response,
    coefficients_of,
    receivers_pull,
    response_fields,
    response_terms,
)
from bnp_dask.core import OPTIONAL, Batch, Field, GroupStates, Summary, register
from bnp_dask.errors import SettingError, not_how_many
from bnp_dask.inputs import LEAST_MASS, hold, positive_mass, shown
from bnp_dask.kernels import log, matmul
from bnp_dask.structure import NO_DONORS, Groups, GroupStep, Receivers, Tokens


@register
@dataclass(frozen=True, eq=False)
class TopicShares:
    """Prior weights of topics in documents, ``(K,)``, all equal; they sum to one."""

    pi: np.ndarray
    response: Any = field(default=None, metadata=OPTIONAL)


class DocumentWeights(concentrations.LearnedConcentrations):
    """Base of topic models: documents with weights ``pi_d ~ Dirichlet(prior mass)``, and perhaps with responses."""

    alpha: float
    step: DocumentStep
    response: Response | None
    structure = Groups()
    further = concentrations.FURTHER

    def __post_init__(self) -> None:
        if not isinstance(self.step, DocumentStep):
            raise SettingError(f"step={shown(self.step)}: needs a DocumentStep")
        if not isinstance(self.response, Response | None):
            raise SettingError(
                f"response={shown(self.response)}: needs GaussianResponse(), CategoricalResponse(), or None"
            )

    @abstractmethod
    def prior_mass(self, params: Any) -> tuple[np.ndarray, float]:
        """See :class:`~bnp_dask.structure.protocols.GroupedAllocation`."""

    def untied(self) -> DPMixture:
        """See :class:`~bnp_dask.structure.protocols.GroupedAllocation`."""
        return DPMixture()

    @property
    def keeps_states(self) -> bool:
        return self.step.keeps_states

    @property
    def counts(self) -> frozenset[str]:
        return frozenset({"docs", *(() if self.response is None else COUNTS)})

    @property
    def sizes(self) -> Mapping[str, int]:
        """See :class:`~bnp_dask.allocation.base.SizedAllocation`."""
        return {} if self.response is None else self.response.response_sizes

    def tiles(self, batch: Batch, n_clusters: int) -> Iterator[Batch]:
        return group_tiles(batch, n_clusters)

    def local_step(
        self,
        params: Any,
        tokens: Tokens,
        log_lik: np.ndarray,
        pairs: np.ndarray,
        sets: np.ndarray,
        states: GroupStates | None,
    ) -> GroupStep:
        """See :class:`~bnp_dask.structure.protocols.GroupedAllocation`."""
        prior, rest = self.prior_mass(params)
        return document_step(
            self.step, prior, rest, tokens, log_lik, pairs, sets, states, self.response, params.response
        )

    def _share_out(
        self,
        params: Any,
        given: float,
        theta: np.ndarray,
        donors: np.ndarray,
        beliefs: np.ndarray,
        tokens: Tokens,
        log_lik: np.ndarray,
        mass: np.ndarray,
        states: GroupStates | None,
        receivers: Receivers | None,
    ) -> GroupStep:
        """Share out the mass of ``donors``, whose prior mass is ``given``; ``theta (G,)`` is that of all topics."""
        return share_out(
            self.step,
            given,
            beliefs,
            theta,
            tokens,
            log_lik,
            mass,
            states,
            takes_all=len(donors) == len(params.pi),
            response=self.response,
            params=params.response,
            pull=receivers_pull(self.response, params.response, tokens, donors, receivers),
            whole=None if receivers is None else receivers.counts,
        )

    def within(self, share: float) -> Self:
        """See :class:`~bnp_dask.structure.protocols.GroupedAllocation`."""
        alpha = max(LEAST_MASS, self.alpha * share)
        return replace(self, alpha=alpha)  # type: ignore[type-var]

    def log_weights(self, params: Any) -> np.ndarray:
        return log(params.pi)

    def weights(self, params: Any) -> np.ndarray:
        weights: np.ndarray = params.pi
        return weights


@not_how_many
@register
@dataclass(frozen=True)
class LDA(DocumentWeights):
    """Topic model with a fixed number of topics: pi_d ~ Dirichlet(alpha / K, ..., alpha / K).

    The start sets the number K: 20 topics for ``train(..., init=SampledTopics(20))``.

    Parameters
    ----------
    alpha
        Total prior mass of a document's weights, > 0; each of K topics has alpha / K.  Small values: few topics
        per document.
    step
        Settings of the search for topics of a document's tokens.
    response
        Model of the responses of documents, ``GaussianResponse()`` or ``CategoricalResponse()``, for data with
        ``responses=``; None without.

    Notes
    -----
    With sparse counts a row is a document and a word token is an atom, so ``N`` counts tokens and the objective has
    no base measure.  A dense array of counts becomes sparse by ``scipy.sparse.csr_array(counts)``.  Other dense rows
    are atoms, and ``as_source(rows, groups=...)`` says which rows are one group.  A group without atoms adds its prior
    to the objective and nothing to any topic.

    References
    ----------
    Thesis Ch. 5 with pi^G held at 1/K: the objective needs no surrogate bound, because c_Dir(alpha / K) is a number.
    """

    alpha: float = 1.0
    step: DocumentStep = field(default_factory=DocumentStep)
    response: Response | None = field(default=None, metadata=OPTIONAL)
    nonparametric = False

    def __post_init__(self) -> None:
        hold(self, "alpha", positive_mass("alpha", self.alpha, "prior mass"))
        super().__post_init__()

    @property
    def fields(self) -> Mapping[str, Field]:
        tracked = Field(("cluster",), merge="tracked")
        own = {"H": tracked, "P": tracked, "Q": tracked, "Q_0": Field(), "docs": Field()}
        return MappingProxyType({**own, **response_fields(self.response)})

    def reassign(
        self, params: TopicShares, donors: np.ndarray, beliefs: np.ndarray, tokens: Tokens,
        log_lik: np.ndarray, mass: np.ndarray, states: GroupStates | None = None, freed: np.ndarray = NO_DONORS,
        receivers: Receivers | None = None,
    ) -> GroupStep:  # fmt: skip
        """See :class:`~bnp_dask.structure.protocols.GroupedAllocation`; no topic is unseen, so none is freed."""
        theta = tokens.length + self.alpha
        given = self.alpha * float(params.pi[donors].sum())
        return self._share_out(params, given, theta, donors, beliefs, tokens, log_lik, mass, states, receivers)

    def prior_mass(self, params: TopicShares) -> tuple[np.ndarray, float]:
        """See :class:`~bnp_dask.structure.protocols.GroupedAllocation`."""
        return self.alpha * params.pi, 0.0

    def global_step(self, summary: Summary) -> TopicShares:
        pi = np.full(summary.n_clusters, 1.0 / summary.n_clusters)
        return TopicShares(pi, coefficients_of(self.response, summary))

    def elbo(self, params: TopicShares, summary: Summary) -> dict[str, float]:
        k = summary.n_clusters
        prior = self.alpha * params.pi
        value = summary["docs"] * (gammaln(self.alpha) - k * gammaln(self.alpha / k))
        value += summary["Q_0"] + summary["Q"].sum() + matmul(prior, summary["P"])
        own = {"entropy": float(summary["H"].sum()), "allocation": float(value)}
        return {**own, **response_terms(self.response, params.response, summary)}

    # -- learning of concentrations; see bnp_dask.structure.prior
    def learned(self, params: TopicShares, summary: Summary) -> Self:
        """LDA with the best alpha for the present weights of documents, and beyond: see
        :mod:`bnp_dask.allocation.concentrations`."""
        k, docs, held = summary.n_clusters, float(summary["docs"]), float(summary["P"].sum())
        level = held / k - 1.0 / concentrations.MEANS["alpha"]
        return replace(self, alpha=concentrations.best(lambda a: docs * float(psi(a) - psi(a / k)) + level))
