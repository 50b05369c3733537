"""The (sticky) HDP hidden Markov model: sequences of an unbounded number of states (thesis Ch. 6).

With K states in use, rows j = 0 (the start) and 1..K (transitions) have ``pi_j ~ Dirichlet(alpha_j pi^G + kappa
delta_j)`` over K + 1 places, the last for all unused states; ``pi^G`` are stick breaking weights with ``q(u_k) =
Beta(u_k omega_k, (1 - u_k) omega_k)``.  The cumulants of these priors are replaced by lower bounds (thesis 5.2.3 and
6.2.3), so that the top level's term of the objective is, with ``a = u omega`` and ``b = (1 - u) omega``,

    constant + sum_k log B(a_k, b_k) - log B(1, gamma) + (ones - a_k) E[log u_k] + (zeros_k - b_k) E[log 1 - u_k]
             + tilt sum_k pi_k(u)

    kappa = 0:  ones = K + 2,  zeros_k = (K + 1)(K + 1 - k) + gamma          (6.28)
    kappa > 0:  ones = K + 1,  zeros_k = K (K + 1 - k) + 1 + gamma           (6.33); the print lacks the 1, which is
                tilt = log(alpha + kappa) - log kappa                        the start row's place for unused states

The sticky bound (6.33) drops ``log Gamma(1 + alpha + kappa) - log Gamma(1 + kappa + alpha pi_j) - sum_l log Gamma(1 +
alpha pi_l)``, which is not negative: with alpha .5 and kappa 300 it is 3 nats for each state, and grows with kappa, so
that (6.33) cannot tell how large kappa should be.  Both ``-log Gamma(kappa + alpha pi)`` and ``-log Gamma(1 + alpha
pi)`` are concave in pi and lie above their chords over [0, 1], which gives the bound with the same pseudo-counts and

    tilt = log Gamma(kappa) + log Gamma(1 + alpha) - log Gamma(alpha + kappa).

It is never below (6.33), and is used where concentrations are learned.  Without kappa the chords give (6.28) itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np
from scipy.special import betaln, gammaln, psi

from bnp_dask.allocation import concentrations
from bnp_dask.allocation.chain_step import ChainSteps, stationary, transition_counts
from bnp_dask.allocation.sticks import stick_weights
from bnp_dask.core import OPTIONAL, Summary, register
from bnp_dask.inputs import hold, mass_or_zero, one_of, positive_mass
from bnp_dask.kernels import exp, inner, log, log_gammas, log_shares, matmul, psi_gammaln
from bnp_dask.kernels import hmm as chain_top
from bnp_dask.structure import Chains

# -- the top level ------------------------------------------------------------------------------------------------
STEPS = 3000
"""Most steps of an optimisation."""

TINY = 1e-300
"""Least pseudo-count."""

Bound = Literal["printed", "chords"]
"""Bound of the cumulants of sticky rows: (6.33), or the tighter one by chords."""


@dataclass(frozen=True)
class Concentrations:
    """``gamma`` of the top level, ``alpha`` of transitions, ``alpha0`` of the start, ``kappa`` of staying."""

    gamma: float
    alpha: float
    alpha0: float
    kappa: float
    bound: Bound = "printed"

    def pseudo_counts(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """``ones`` and ``zeros`` for K states, ``(K,)`` each."""
        after = np.arange(k, 0, -1.0)
        if self.kappa > 0.0:
            return np.full(k, k + 1.0), k * after + 1.0 + self.gamma
        return np.full(k, k + 2.0), (k + 1.0) * after + self.gamma

    @property
    def tilt(self) -> float:
        """Factor of the sum of the weights in the sticky bound (6.33), or in the one by chords."""
        if self.kappa == 0.0:
            return 0.0
        if self.bound == "chords":
            return float(log(self.alpha) + betaln(self.alpha, self.kappa))
        return float(log(self.alpha + self.kappa) - log(self.kappa))

    def constant(self, k: int) -> float:
        """Term of the objective that depends on K alone, nats."""
        value = k * log(self.alpha0) + k * k * log(self.alpha) - k * betaln(1.0, self.gamma)
        return float(value - k * self.tilt)

    def prior(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pseudo-counts of the start ``(K + 1,)`` and of transitions ``(K, K + 1)``."""
        pi, rest = stick_weights(u)
        shares = np.append(pi, rest)
        rows = np.tile(self.alpha * shares, (len(u), 1))
        rows[np.arange(len(u)), np.arange(len(u))] += self.kappa
        return self.alpha0 * shares, rows

    def top_term(self, u: np.ndarray, omega: np.ndarray) -> float:
        """Surrogate of the top level's term of the objective, nats."""
        a, b = u * omega, (1.0 - u) * omega
        ones, zeros = self.pseudo_counts(len(a))
        psi, gammaln = psi_gammaln(np.stack([a, b, a + b]))
        value = np.sum(gammaln[0] + gammaln[1] - gammaln[2])
        value += matmul(ones - a, psi[0] - psi[2]) + matmul(zeros - b, psi[1] - psi[2])
        return self.constant(len(u)) + float(value) + self.tilt * float(stick_weights(u)[0].sum())


@dataclass(frozen=True)
class TransitionCounts:
    """Statistics to which the top level is fitted.

    ``start (K,)`` and ``trans (K, K)`` are expected counts.  :meth:`best` is the joint optimum of u, omega and the
    Dirichlet posteriors.  The posteriors have a closed form (6.40); with it inserted, the objective is

        sum_jl log Gamma(theta_jl(u)) + top term,     theta_jl = M_jl + alpha_j pi_l + kappa delta_jl,

    to whose optimum alternating updates of theta and u converge slowly.
    """

    concentrations: Concentrations
    start: np.ndarray
    trans: np.ndarray

    def learned(self, u: np.ndarray, omega: np.ndarray) -> Concentrations:
        """Concentrations at the best of the objective for this top level, one after the other, hyperpriors included.

        The Dirichlet posteriors follow: ``theta_jl = M_jl + alpha_j pi_l + kappa delta_jl``.
        """
        own, k = self.concentrations, len(self.start)
        weights, rest = stick_weights(u)
        shares, means = np.append(weights, rest), concentrations.MEANS
        start, trans = np.append(self.start, 0.0), np.hstack([self.trans, np.zeros((k, 1))])
        stay = np.hstack([np.eye(k), np.zeros((k, 1))])
        gamma = concentrations.of_sticks(float((psi((1.0 - u) * omega) - psi(omega)).sum()), k)

        def of_start(alpha0: float) -> float:
            theta = np.maximum(start + alpha0 * shares, TINY)
            return float(matmul(shares, psi(theta)) - psi(theta.sum())) + k / alpha0 - 1.0 / means["alpha0"]

        def of_alpha(alpha: float) -> float:
            theta = np.maximum(trans + alpha * shares + own.kappa * stay, TINY)
            slope = matmul(psi(theta), shares).sum() - psi(theta.sum(axis=1)).sum() + k * k / alpha
            if own.kappa > 0.0:
                tilt = float(psi(1.0 + alpha) - psi(alpha + own.kappa))
                slope -= tilt * (k - weights.sum())
            return float(slope) - 1.0 / means["alpha"]

        alpha = concentrations.best(of_alpha)

        def of_kappa(kappa: float) -> float:
            theta = np.maximum(trans + alpha * shares + kappa * stay, TINY)
            slope = float(psi(theta.diagonal()).sum() - psi(theta.sum(axis=1)).sum())
            tilt = float(psi(kappa) - psi(alpha + kappa))
            return slope - tilt * (k - float(weights.sum())) - 1.0 / means["kappa"]

        kappa = concentrations.best(of_kappa) if own.kappa > 0.0 else 0.0
        return Concentrations(gamma, alpha, concentrations.best(of_start), kappa, own.bound)

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        """u and omega ``(K,)`` at the optimum: a function of the counts alone, so a resumed run has the same bits."""
        own, k = self.concentrations, len(self.start)
        counts = np.zeros((k + 1, k + 1))
        counts[0, :k] = self.start
        counts[1:, :k] = self.trans + own.kappa * np.eye(k)
        alphas = np.append(own.alpha0, np.full(k, own.alpha))
        ones, zeros = own.pseudo_counts(k)
        point = log(np.concatenate([ones, zeros]))
        chain_top.climb(point, counts, alphas, ones, zeros, own.tilt, STEPS)
        a, b = exp(point[:k]), exp(point[k:])
        return a / (a + b), a + b


# -- the model ----------------------------------------------------------------------------------------------------
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
class HDPHMM(ChainSteps, concentrations.LearnedConcentrations):
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
        concentrations use; see :mod:`bnp_dask.allocation.hdp_hmm`.  Without ``kappa`` both are the same.

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
    def to_learn(self) -> Self:
        return replace(self, bound="chords")

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
