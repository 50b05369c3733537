"""The (sticky) HDP hidden Markov model: sequences of an unbounded number of states (thesis Ch. 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from scipy.special import gammaln, psi

from bnp_dask.allocation import concentrations
from bnp_dask.allocation.chain_step import (
    CHAIN_FIELDS,
    chain_step,
    chain_tiles,
    most_likely_states,
    stationary,
    transition_counts,
)
from bnp_dask.allocation.chain_sweep import chain_sweep
from bnp_dask.allocation.dp_mixture import DPMixture
from bnp_dask.allocation.hmm_top_level import Bound, Concentrations, TransitionCounts
from bnp_dask.allocation.sticks import stick_weights
from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import OPTIONAL
from bnp_dask.core.registry import register
from bnp_dask.core.summary import Field, Summary
from bnp_dask.inputs.settings import hold, mass_or_zero, one_of, positive_mass
from bnp_dask.kernels.numeric.arithmetic import inner, log, log_gammas, log_shares, matmul
from bnp_dask.structure.chains import Chains
from bnp_dask.structure.steps import LocalStep, LogLikOf


@register
@dataclass(frozen=True, eq=False)
class StateSticks:
    """q(u_k) = Beta(u_k omega_k, (1 - u_k) omega_k), and Dirichlet posteriors of transitions.

    Parameters
    ----------
    u, omega
        Top level, ``(K,)``.
    theta0, theta
        Dirichlet parameters of the start ``(K + 1,)`` and of each state's successors ``(K, K + 1)``; the last place
        stands for all unused states.
    log_start, log_trans
        E[log pi_0] ``(K,)`` and E[log pi_k] ``(K, K)`` of states in use, nats.
    """

    u: np.ndarray
    omega: np.ndarray
    theta0: np.ndarray
    theta: np.ndarray
    log_start: np.ndarray
    log_trans: np.ndarray

    @classmethod
    def of(cls, u: np.ndarray, omega: np.ndarray, theta0: np.ndarray, theta: np.ndarray) -> StateSticks:
        """Posterior from its parameters, with the logs computed."""
        log_start = psi(theta0[:-1]) - psi(theta0.sum())
        log_trans = psi(theta[:, :-1]) - psi(theta.sum(axis=1, keepdims=True))
        return cls(u, omega, theta0, theta, log_start, log_trans)


@register
@dataclass(frozen=True)
class HDPHMM:
    """Hidden Markov model that learns its number of states; each state has its own successors.

    Parameters
    ----------
    gamma
        Concentration of the top level, > 0: larger expects more states.
    alpha
        Concentration of each state's successors about the top level's weights, > 0: small values expect few
        successors per state.
    alpha0
        Concentration of the start, > 0.  Few starts are observed, so it is usually larger.
    kappa
        Extra pseudo-count of staying, >= 0 (the sticky model): number of prior self-transitions of each state.
    bound
        Bound on the prior of sticky transitions: ``"printed"`` is (6.33), ``"chords"`` a tighter one, which learned
        concentrations use; see :mod:`bnp_dask.allocation.hmm_top_level`.  Without ``kappa`` both are the same.

    Notes
    -----
    Data are rows in sequences (``Batch.groups``); an atom is one step.  A weight counts a whole sequence.  Sequences
    of one step have a start and no transition; empty sequences have neither.

    A sequence is assigned as a whole: a task holds two numbers per step and state of its longest sequence (16 bytes x T
    x K), and about five in a lap that tries births or deletes.  Cut longer sequences into blocks when the data are
    opened (``as_source(..., cut=10_000)``), or beforehand at places of your choice (long stretches of nothing): each
    block then has a start of its own, and the transition at the cut is not counted.

    The global step maximises the objective over u, omega and theta together, so omega does not follow the rule (6.44),
    which ends about 3e-4 of the objective lower.

    References
    ----------
    Thesis Ch. 6: objective (6.24), (6.26), (6.28), (6.33) with its correction; global step (6.40), (6.45), (6.47).
    """

    gamma: float = 10.0
    alpha: float = 0.5
    alpha0: float = 10.0
    kappa: float = 0.0
    bound: Bound = field(default="printed", metadata=OPTIONAL)
    structure = Chains()
    nonparametric = True

    def __post_init__(self) -> None:
        for name in ("gamma", "alpha", "alpha0"):
            hold(self, name, positive_mass(name, getattr(self, name), "concentration"))
        hold(self, "kappa", mass_or_zero("kappa", self.kappa, "pseudo-count of staying (0: not sticky)"))
        one_of("bound", self.bound, ("printed", "chords"))

    @property
    def concentrations(self) -> Concentrations:
        """Settings for the top level."""
        return Concentrations(self.gamma, self.alpha, self.alpha0, self.kappa, self.bound)

    @property
    def counts(self) -> frozenset[str]:
        return frozenset({"M", "start"})

    @property
    def fields(self) -> Mapping[str, Field]:
        return CHAIN_FIELDS

    def tiles(self, batch: Batch, n_clusters: int) -> Iterator[Batch]:
        return chain_tiles(batch, n_clusters)

    def local_step(self, params: StateSticks, log_lik: np.ndarray, batch: Batch, pairs: np.ndarray) -> LocalStep:
        return chain_step(params.log_start, params.log_trans, log_lik, batch, pairs)

    def sweep(
        self, params: StateSticks, log_lik: LogLikOf, batch: Batch, pairs: np.ndarray
    ) -> Iterator[tuple[Batch, LocalStep]]:
        return chain_sweep(params.log_start, params.log_trans, log_lik, batch, pairs)

    def path(self, params: StateSticks, log_lik: np.ndarray, batch: Batch) -> np.ndarray:
        """Most likely states of each sequence together, positions ``(n,)``; ``log_lik (n, K)`` is overwritten."""
        return most_likely_states(params.log_start, params.log_trans, log_lik, batch)

    def expected_chain(self, params: StateSticks) -> tuple[np.ndarray, np.ndarray]:
        """Expected start ``(K + 1,)`` and transitions ``(K + 1, K + 1)``; the last state stands for all unseen ones.

        Rows of states in use are means of their Dirichlet posteriors (6.40), ``theta_jl / sum_l theta_jl``; the last
        place is the probability of any unseen state.  An unseen state j has its prior,

            pi_j ~ Dirichlet(alpha pi^G + kappa delta_j),
            E[pi_jl] = (alpha E[pi^G_l] + kappa [j = l]) / (alpha + kappa),

        with the expected weights ``E[pi^G]`` of the top level.  Its probability of a state l in use is the same for
        every unseen j.  So is its probability of any unseen state: it stays, by kappa, or it moves to one of them by
        alpha times the rest of the sticks, ``rest = E[pi^G_{>K}]``, however the rest is divided,

            (alpha rest + kappa) / (alpha + kappa).

        All unseen states also have the same predictive density, the prior predictive.  If the states of a chain fall
        into classes, with equal emissions and equal probabilities of every class within each, it is a chain of these
        classes (Kemeny & Snell 1960, 6.3): one state in place of infinitely many gives every sequence the same density.
        Its rows sum to one, and the emissions of each state integrate to one, so the densities of all sequences of one
        length integrate to one.
        """
        unseen = self.alpha * np.append(*stick_weights(params.u))
        unseen[-1] += self.kappa
        rows = np.vstack([params.theta, unseen])
        return params.theta0 / params.theta0.sum(), rows / rows.sum(axis=1, keepdims=True)

    def untied(self) -> DPMixture:
        """See :class:`~bnp_dask.structure.verbs.ChainedAllocation`."""
        return DPMixture()

    def global_step(self, summary: Summary) -> StateSticks:
        start, trans = transition_counts(summary)
        u, omega = TransitionCounts(self.concentrations, start, trans).best()
        return self.given_sticks(u, omega, start, trans)

    def given_sticks(self, u: np.ndarray, omega: np.ndarray, start: np.ndarray, trans: np.ndarray) -> StateSticks:
        """Optimal transitions (6.40) for a top level and counts ``start (K,)``, ``trans (K, K)``."""
        theta0, theta = self.concentrations.prior(u)
        theta0[:-1] += start
        theta[:, :-1] += trans
        return StateSticks.of(u, omega, np.maximum(theta0, 1e-300), np.maximum(theta, 1e-300))

    def log_weights(self, params: StateSticks) -> np.ndarray:
        return log(self.weights(params))

    def weights(self, params: StateSticks) -> np.ndarray:
        """Share of steps that each state takes in the long run under the expected transitions, ``(K,)``.

        The share of unused states is the average probability of transitions into them.
        """
        expected = params.theta / params.theta.sum(axis=1, keepdims=True)
        share = stationary(expected[:, :-1])
        return share * (1.0 - float(matmul(share, expected[:, -1])))

    def elbo(self, params: StateSticks, summary: Summary) -> dict[str, float]:
        value = self.transition_term(params, summary) + self.top_term(params)
        return {"entropy": float(summary["H"]), "allocation": value}

    def transition_term(self, params: StateSticks, summary: Summary) -> float:
        """L_HDP-trans of (6.26), nats."""
        prior0, prior = self.concentrations.prior(params.u)
        prior0[:-1] += summary["start"]
        prior[:, :-1] += summary["M"]
        value = 0.0
        for theta, wanted in ((params.theta0[None], prior0[None]), (params.theta, prior)):
            total = theta.sum(axis=1)
            value += gammaln(theta).sum() - gammaln(total).sum()
            value += inner(wanted - theta, psi(theta) - psi(total)[:, None])
        return float(value)

    def top_term(self, params: StateSticks) -> float:
        """Surrogate of the top level's term (6.28), (6.33), nats."""
        return self.concentrations.top_term(params.u, params.omega)

    # -- learning of concentrations; see bnp_dask.structure.prior
    @property
    def learnable(self) -> dict[str, float]:
        found = {"gamma": self.gamma, "alpha": self.alpha, "alpha0": self.alpha0, "kappa": self.kappa}
        return {name: value for name, value in found.items() if value > 0.0}

    def to_learn(self) -> Self:
        return replace(self, bound="chords")

    def log_hyperprior(self) -> float:
        return concentrations.log_hyperprior(self.learnable)

    @property
    def further(self) -> float:
        return 1.0

    def learned(self, params: StateSticks, summary: Summary) -> Self:
        """States with the best concentrations for this top level: see :mod:`bnp_dask.allocation.concentrations`."""
        found = TransitionCounts(self.concentrations, *transition_counts(summary)).learned(params.u, params.omega)
        return replace(self, gamma=found.gamma, alpha=found.alpha, alpha0=found.alpha0, kappa=found.kappa)

    # -- Gibbs sampling --------------------------------------------------------------------------------------------
    def _masses(self, beta: np.ndarray) -> np.ndarray:
        """Pseudo-counts of the start, and of the transitions from each state, ``(K + 1, K)``."""
        return np.vstack([self.alpha0 * beta, self.alpha * beta + self.kappa * np.eye(len(beta))])

    def draw_rows(
        self, start: np.ndarray, trans: np.ndarray, beta: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """See :class:`~bnp_dask.allocation.base.SampledStates`: Dirichlet posteriors given the top level."""
        rows = log_shares(log_gammas(self._masses(beta) + np.vstack([start, trans]), rng))
        return rows[0], rows[1:]

    def draw_tables(
        self, start: np.ndarray, trans: np.ndarray, beta: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """See :class:`~bnp_dask.allocation.base.SampledStates`.

        The i-th transition of a kind opens a table with probability ``a / (a + i)``, i = 0, 1, ..., with a its
        pseudo-count.  A table of staying is due to kappa, and not to the top level, with probability ``kappa / (kappa +
        alpha beta_k)`` (the override variables of Fox, Sudderth, Jordan & Willsky 2011).
        """
        masses, counts = self._masses(beta), np.vstack([start, trans]).astype(np.int64)
        tables = np.zeros(counts.shape, np.int64)
        for j, k in np.argwhere(counts > 0):
            n, a = counts[j, k], masses[j, k]
            tables[j, k] = 1 + np.count_nonzero(rng.random(n - 1) * (a + np.arange(1, n)) < a)
        if self.kappa > 0.0:
            k = np.arange(len(beta))
            tables[1 + k, k] -= rng.binomial(tables[1 + k, k], self.kappa / (self.kappa + self.alpha * beta))
        return tables.sum(axis=0).astype(np.float64)

    def log_assignments(self, start: np.ndarray, trans: np.ndarray, beta: np.ndarray) -> float:
        """See :class:`~bnp_dask.allocation.base.SampledStates`: a Dirichlet-multinomial for each row."""
        masses, counts = self._masses(beta), np.vstack([start, trans])
        whole = masses.sum(axis=1)
        value = gammaln(whole).sum() - gammaln(whole + counts.sum(axis=1)).sum()
        return float(value + (gammaln(masses + counts) - gammaln(masses)).sum())
