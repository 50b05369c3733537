"""HDP topic model: an unbounded number of topics, with the surrogate bound of thesis 5.2.3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from scipy.special import gammaln, psi

from bnp_dask.allocation import concentrations
from bnp_dask.allocation.document_step import DocumentStep, rest_shift
from bnp_dask.allocation.lda import DocumentWeights
from bnp_dask.allocation.response import Response, coefficients_of, response_fields, response_terms
from bnp_dask.allocation.sticks import TopLevel, stick_weights, surrogate, u_from_counts
from bnp_dask.core import OPTIONAL, Field, GroupStates, Summary, register
from bnp_dask.inputs import LEAST_MASS, hold, positive_mass
from bnp_dask.kernels import matmul, psi_gammaln
from bnp_dask.structure import NO_DONORS, GroupStep, Receivers, Tokens


@register
@dataclass(frozen=True, eq=False)
class TopicSticks:
    """q(u_k) = Beta(u_k omega_k, (1 - u_k) omega_k); E[pi_k], all ``(K,)``, and the rest for unused topics."""

    u: np.ndarray
    omega: np.ndarray
    pi: np.ndarray
    rest: float
    response: Any = field(default=None, metadata=OPTIONAL)

    @classmethod
    def of(cls, u: np.ndarray, omega: np.ndarray, response: Any = None) -> TopicSticks:
        """Posterior from u and omega, with the weights computed."""
        pi, rest = stick_weights(np.asarray(u, np.float64))
        return cls(np.asarray(u, np.float64), np.asarray(omega, np.float64), pi, rest, response)


@register
@dataclass(frozen=True)
class HDPTopics(DocumentWeights):
    """Topic model that learns its number of topics: pi_d ~ Dirichlet(alpha pi), pi from a Dirichlet process.

    Parameters
    ----------
    gamma
        Concentration of the top level, > 0: larger expects more topics.
    alpha
        Concentration of each document's weights, > 0: small values expect few topics per document.
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

    The order of clusters is stick order.  A summary without groups (of an initialisation) gives the sticks of a DP
    mixture with these counts.

    References
    ----------
    Thesis 5.2-5.4: objective (5.25), (5.27), (5.48); global step (5.37), (5.39).
    """

    gamma: float = 10.0
    alpha: float = 0.5
    step: DocumentStep = field(default_factory=DocumentStep)
    response: Response | None = field(default=None, metadata=OPTIONAL)
    nonparametric = True

    def __post_init__(self) -> None:
        for name in ("gamma", "alpha"):
            hold(self, name, positive_mass(name, getattr(self, name), "concentration"))
        super().__post_init__()

    @property
    def fields(self) -> Mapping[str, Field]:
        tracked, plain = Field(("cluster",), merge="tracked"), Field()
        sums = dict.fromkeys(("Q_0", "P_rest", "Q_rest", "docs"), plain)
        return MappingProxyType({"H": tracked, "P": tracked, "Q": tracked, **sums, **response_fields(self.response)})

    def reassign(
        self, params: TopicSticks, donors: np.ndarray, beliefs: np.ndarray, tokens: Tokens,
        log_lik: np.ndarray, mass: np.ndarray, states: GroupStates | None = None, freed: np.ndarray = NO_DONORS,
        receivers: Receivers | None = None,
    ) -> GroupStep:  # fmt: skip
        """See :class:`~bnp_dask.structure.protocols.GroupedAllocation`."""
        theta = tokens.length + self.alpha * (params.pi.sum() + params.rest)
        freed = freed if params.rest > 0.0 else NO_DONORS
        given = self.alpha * float(params.pi[np.setdiff1d(donors, freed)].sum())
        step = self._share_out(params, given, theta, donors, beliefs, tokens, log_lik, mass, states, receivers)
        if len(freed):
            rest = self.alpha * params.rest
            more = rest + self.alpha * float(params.pi[freed].sum())
            step.values.update(rest_shift(tokens.times, theta, rest, more))
        return step

    def prior_mass(self, params: TopicSticks) -> tuple[np.ndarray, float]:
        """See :class:`~bnp_dask.structure.protocols.GroupedAllocation`."""
        return self.alpha * params.pi, self.alpha * params.rest

    def global_step(self, summary: Summary) -> TopicSticks:
        top = self.top_level(summary)
        counts = np.maximum(summary["N"], 0.0)
        u = top.best_u() if top.groups > 0 and summary.n_clusters else u_from_counts(counts, self.gamma)
        return TopicSticks.of(u, top.omega(), coefficients_of(self.response, summary))

    def from_counts(self, counts: np.ndarray) -> TopicSticks:
        """See :class:`~bnp_dask.allocation.base.StickAllocation`; ``counts`` are tables."""
        u = u_from_counts(counts, self.gamma)
        return TopicSticks.of(u, (1.0 + counts) / u)

    def top_level(self, summary: Summary) -> TopLevel:
        """Statistics for the global step."""
        return TopLevel(self.gamma, self.alpha, float(summary["docs"]), summary["P"], float(summary["P_rest"]))

    def elbo(self, params: TopicSticks, summary: Summary) -> dict[str, float]:
        value = self.document_term(params, summary) + self.top_term(params, summary)
        own = {"entropy": float(summary["H"].sum()), "allocation": float(value)}
        return {**own, **response_terms(self.response, params.response, summary)}

    def document_term(self, params: TopicSticks, summary: Summary) -> float:
        """L_HDP-doc of (5.27) at these weights, nats."""
        value = self.alpha * (matmul(params.pi, summary["P"]) + params.rest * summary["P_rest"])
        return float(value + summary["Q_0"] + summary["Q_rest"] + summary["Q"].sum())

    def top_term(self, params: TopicSticks, summary: Summary) -> float:
        """Surrogate of L_HDP-top (5.25), nats."""
        return surrogate(params.u, params.omega, self.gamma, self.alpha, float(summary["docs"]))

    # -- learning of concentrations; see bnp_dask.structure.prior
    def learned(self, params: TopicSticks, summary: Summary) -> Self:
        """Topics with the best gamma and alpha for the present top level and weights of documents: see
        :mod:`bnp_dask.allocation.concentrations`."""
        k = summary.n_clusters
        held = float(matmul(params.pi, summary["P"]) + params.rest * summary["P_rest"])
        alpha = float(summary["docs"]) * k / (1.0 / concentrations.MEANS["alpha"] - held)
        log_not_u = psi((1.0 - params.u) * params.omega) - psi(params.omega)
        gamma = concentrations.of_sticks(float(log_not_u.sum()), k)
        return replace(self, gamma=gamma, alpha=min(max(alpha, concentrations.LEAST), concentrations.MOST))

    # -- Gibbs sampling --------------------------------------------------------------------------------------------
    def certain_values(
        self, held: np.ndarray, topic: np.ndarray, lengths: np.ndarray, beta: np.ndarray
    ) -> dict[str, np.ndarray]:
        """See :class:`~bnp_dask.allocation.base.SampledTopics`.

        With theta_dk = N_dk + alpha beta_k, the fields hold sums over the documents that have a topic,

            P_k = sum_d psi(theta_dk) - psi(alpha beta_k),   Q_k = sum_d log Gamma(theta_dk) - log Gamma(alpha beta_k),

        and ``P_rest = -sum_d psi(theta_d.)``, ``Q_0 = -sum_d log Gamma(theta_d.)``.
        """
        prior = self.alpha * beta
        psi, log_gamma = psi_gammaln(held + prior[topic])
        psi_prior, log_gamma_prior = psi_gammaln(prior)
        psi_whole, log_gamma_whole = psi_gammaln(lengths + self.alpha)
        k = len(beta)
        return {
            "P": np.bincount(topic, psi - psi_prior[topic], k),
            "Q": np.bincount(topic, log_gamma - log_gamma_prior[topic], k),
            "P_rest": np.asarray(-psi_whole.sum()),
            "Q_0": np.asarray(-log_gamma_whole.sum()),
            "docs": np.asarray(float(len(lengths))),
        }

    def completed(self, summary: Summary, beta: np.ndarray) -> Summary:
        """See :class:`~bnp_dask.allocation.base.SampledTopics`.

        With the posterior Dirichlet(theta_d) of a document's weights given its topics, theta_dk - N_dk = alpha beta_k:

            P_k = sum_d psi(theta_dk) - psi(theta_d.),   Q_k = sum_d log Gamma(theta_dk) - alpha beta_k P_k.
        """
        prior, rest = self.alpha * beta, self.alpha * max(1.0 - float(beta.sum()), LEAST_MASS)
        docs, whole = summary["docs"], summary["P_rest"]
        psi, log_gamma = psi_gammaln(np.append(prior, rest))
        p = np.append(summary["P"], 0.0) + docs * psi + whole
        q = np.append(summary["Q"], 0.0) + docs * log_gamma - np.append(prior, rest) * p
        own = {"P": p[:-1], "Q": q[:-1], "P_rest": np.asarray(p[-1]), "Q_rest": np.asarray(q[-1])}
        return replace(summary, values={**summary.values, **own})

    def log_assignments(self, summary: Summary) -> float:
        """See :class:`~bnp_dask.allocation.base.SampledTopics`.

        ``sum_d log Gamma(alpha) - log Gamma(theta_d.) + sum_k log Gamma(theta_dk) - log Gamma(alpha beta_k)``.
        """
        return float(summary["docs"] * gammaln(self.alpha) + summary["Q_0"] + summary["Q"].sum())
