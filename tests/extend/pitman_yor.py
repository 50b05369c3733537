"""An allocation: the Pitman-Yor process, whose cluster sizes fall as a power of their rank."""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import betaln, psi

import bnp_dask as bnp
from bnp_dask.allocation.mixture_step import MixtureSteps


@bnp.register
@dataclass(frozen=True, eq=False)
class Sticks:
    """q(u_k) = Beta(a_k, b_k) and the expected or plugged-in log stick lengths; all ``(K,)``."""

    a: np.ndarray
    b: np.ndarray
    log_u: np.ndarray
    log_not_u: np.ndarray


@bnp.register
@dataclass(frozen=True)
class PitmanYor(MixtureSteps):
    """u_k ~ Beta(1 - discount, gamma + k discount), k = 1, 2, ...; ``discount=0`` is the Dirichlet process.

    Parameters
    ----------
    gamma
        Concentration, > 0.
    discount
        In [0, 1): the larger, the more small clusters are expected.
    top
        Clusters kept per atom, or None for all.
    """

    gamma: float = 1.0
    discount: float = 0.25
    top: int | None = None
    nonparametric = True

    def __post_init__(self):
        if not (self.gamma > 0 and 0 <= self.discount < 1):
            raise ValueError(f"gamma={self.gamma}, discount={self.discount}: need gamma > 0, discount in [0, 1)")

    def global_step(self, summary):
        a, b = self._counts(summary)
        return Sticks(a, b, psi(a) - psi(a + b), psi(b) - psi(a + b))

    def at_mode(self, params):
        a, b = params.a, params.b
        return replace(params, log_u=np.log(a / (a + b)), log_not_u=np.log(b / (a + b)))

    def log_weights(self, params):
        return params.log_u + np.concatenate([[0.0], np.cumsum(params.log_not_u)[:-1]])

    def weights(self, params):
        u = params.a / (params.a + params.b)
        return u * np.concatenate([[1.0], np.cumprod(1.0 - u)[:-1]])

    def elbo(self, params, summary):
        a, b = self._counts(summary)
        prior_a, prior_b = self._prior(summary.n_clusters)
        constant = np.sum(betaln(params.a, params.b) - betaln(prior_a, prior_b))
        slack = (a - params.a) @ params.log_u + (b - params.b) @ params.log_not_u
        return {"entropy": float(summary["H"].sum()), "allocation": float(constant + slack)}

    def log_joint(self, params, summary):
        a, b = self._counts(summary)
        value = a @ params.log_u + b @ params.log_not_u
        return {"entropy": float(summary["H"].sum()), "allocation": float(value)}

    def _prior(self, k):
        return np.full(k, 1.0 - self.discount), self.gamma + self.discount * np.arange(1, k + 1)

    def _counts(self, summary):
        """Parameters of the optimal q(u), ``(K,)`` each: the prior's and the counts at and after each stick."""
        n = summary["N"]
        prior_a, prior_b = self._prior(len(n))
        return prior_a + n, prior_b + np.concatenate([np.cumsum(n[::-1])[::-1][1:], [0.0]])
