"""Learned concentrations: settings of an allocation that raise the objective most, given sums over all data.

Every concentration a has the log hyperprior ``-a / mean``, exponential with a mean of its own (:data:`MEANS`), so that
the maximum of the objective and this term is finite with few clusters.  It is the term ``prior`` of the objective, up
to a constant: empirical Bayes with a weak hyperprior.  All that is needed are sums that summaries have anyway, so a
step takes no pass over the data:

* sticks, Beta(1, gamma):  ``K log gamma + gamma sum_k E[log(1 - u_k)]``, at its best where
  ``gamma = K / (1 - sum_k E[log(1 - u_k)])``;
* documents about a top level, with the surrogate bound (5.25): ``D K log alpha + alpha S``, ``S = sum_k E[pi_k] P_k +
  E[pi_rest] P_rest``, at its best where ``alpha = D K / (1 - S)``;
* documents with even weights:  ``D (log Gamma(alpha) - K log Gamma(alpha / K)) + alpha / K sum_k P_k``, whose slope
  falls (the M-step of variational EM in Nguyen's lecture notes, p. 74; Blei, Ng & Jordan 2003, A.4.2);
* transitions: Dirichlet posteriors follow their prior at once, ``theta = counts + prior``, so the terms are
  ``sum log Gamma(theta_jl) - log Gamma(theta_j.)`` and the constants of :mod:`~bnp_dask.allocation.hdp_hmm`.

``Model(..., learn_concentrations="always")`` takes such steps at the end of every lap, after its moves are decided; a
step that would not raise the objective is not taken.

Responsibilities follow in the next laps, and so do the posteriors of documents' weights: P of topics that a document
does not use is about ``-1 / (alpha pi_k)``, which holds alpha near its present value.  So alpha of documents moves by
:data:`FURTHER` times its step, as far as the objective is not lower than before (over-relaxed EM; Salakhutdinov &
Roweis 2003).
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Self

import numpy as np

from bnp_dask.kernels import exp, log

MEANS = MappingProxyType({"gamma": 1.0, "alpha": 1.0, "alpha0": 10.0, "kappa": 100.0})
"""Means of the exponential hyperpriors: about the usual values of these settings."""

LEAST, MOST = 0.01, 1e6
"""Range of learned concentrations."""

FURTHER = 1.8
"""Factor on the logarithm of a step of a document's alpha: below 2, at which a small step would gain nothing."""


class LearnedConcentrations:
    """Base of an allocation whose concentrations, fields named as in :data:`MEANS`, can be learned.

    With its own method ``learned`` it is a :class:`~bnp_dask.structure.prior.LearningAllocation`.
    """

    further = 1.0
    """Factor on the logarithm of all steps of a lap together."""

    @property
    def learnable(self) -> dict[str, float]:
        """Concentrations by name; a stickiness of zero stays zero."""
        own = vars(self)
        return {name: own[name] for name in MEANS if own.get(name, 0.0) > 0.0}

    def to_learn(self) -> Self:
        """Allocation with which learning begins: this one."""
        return self

    def log_hyperprior(self) -> float:
        """Log density of the concentrations, nats, up to a constant."""
        return -sum(value / MEANS[name] for name, value in self.learnable.items())


def of_sticks(log_not_u: float, n_clusters: int) -> float:
    """Best gamma of K sticks with this sum of ``E[log(1 - u_k)]``, nats."""
    return max(LEAST, n_clusters / (1.0 - log_not_u))


def best(slope: Callable[[float], float]) -> float:
    """Concentration in ``[LEAST, MOST]`` at which a slope is zero, or the end of the range towards which it rises.

    ``slope`` is the derivative of the objective by the concentration or its logarithm: only its sign counts.
    """
    from scipy.optimize import brentq

    low, high = float(log(LEAST)), float(log(MOST))
    if slope(LEAST) <= 0.0:
        return LEAST
    if slope(MOST) >= 0.0:
        return MOST
    return float(exp(brentq(lambda t: slope(float(np.exp(t))), low, high, xtol=1e-12)))
