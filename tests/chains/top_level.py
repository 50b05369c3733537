"""Twin of the fit of the HDP-HMM's top level: its objective and slopes in NumPy, maximised by SciPy."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import zeta

from bnp_dask.allocation.hdp_hmm import STEPS, Concentrations
from bnp_dask.allocation.sticks import stick_weights
from bnp_dask.kernels import hmm as chain_top
from bnp_dask.kernels.numeric.arithmetic import exp, log, matmul
from bnp_dask.kernels.numeric.special import psi_gammaln


def beta_terms(own, a, b):
    """The part of the objective that is a sum over sticks, with slopes by log a and log b."""
    ones, zeros = own.pseudo_counts(len(a))
    omega = a + b
    psi, gammaln = psi_gammaln(np.stack([a, b, omega]))
    value = np.sum(gammaln[0] + gammaln[1] - gammaln[2])
    value += matmul(ones - a, psi[0] - psi[2]) + matmul(zeros - b, psi[1] - psi[2])
    shared = (ones + zeros - omega) * zeta(2.0, omega)
    return float(value), a * ((ones - a) * zeta(2.0, a) - shared), b * ((zeros - b) * zeta(2.0, b) - shared)


def value_and_slope(counts, point):
    """Objective at ``log a, log b (2K,)`` and its gradient."""
    own = counts.concentrations
    k = len(counts.start)
    a, b = exp(point[:k]), exp(point[k:])
    u = a / (a + b)
    prior0, prior = own.prior(u)
    theta = np.empty((k + 1, k + 1))
    theta[0], theta[1:] = prior0, prior
    theta[0, :k] += counts.start
    theta[1:, :k] += counts.trans
    np.maximum(theta, 1e-300, out=theta)
    psi, gammaln = psi_gammaln(theta)
    value, slope_a, slope_b = beta_terms(own, a, b)
    by_weight = own.alpha0 * psi[0] + own.alpha * psi[1:].sum(axis=0)
    by_weight[:k] += own.tilt
    value += float(gammaln.sum()) + own.tilt * float(prior0[:k].sum() / own.alpha0)
    by_logit = _by_logit(u, b / (a + b), by_weight)
    return value, np.concatenate([slope_a + by_logit, slope_b - by_logit])


@dataclass(frozen=True)
class ExpectedLogs:
    """The top level's objective for Dirichlet posteriors that are held fixed (6.45), (6.47).

    ``log_start (K + 1,)`` and ``log_trans (K, K + 1)`` are E[log pi_j].
    """

    concentrations: Concentrations
    log_start: np.ndarray
    log_trans: np.ndarray

    def value_and_slope(self, point):
        """Objective at ``log a, log b (2K,)`` and its gradient."""
        own = self.concentrations
        k = len(self.log_trans)
        a, b = exp(point[:k]), exp(point[k:])
        u = a / (a + b)
        value, slope_a, slope_b = beta_terms(own, a, b)
        by_weight = own.alpha0 * self.log_start + own.alpha * self.log_trans.sum(axis=0)
        by_weight[:k] += own.tilt
        pi, rest = stick_weights(u)
        value += float(matmul(by_weight, np.append(pi, rest)))
        by_logit = _by_logit(u, b / (a + b), by_weight)
        return value, np.concatenate([slope_a + by_logit, slope_b - by_logit])

    def best(self):
        """u and omega ``(K,)`` at the optimum."""
        return climbed(self.value_and_slope, self.concentrations, len(self.log_trans))


def _by_logit(u, rest, by_weight) -> np.ndarray:
    """Slope by the logit of u of a function with slope ``by_weight (K + 1,)`` by the weights; ``rest`` is 1 - u."""
    before = np.concatenate([[1.0], np.cumprod(rest)])
    terms = np.append(u * before[:-1], before[-1]) * by_weight
    after = np.cumsum(terms[::-1])[::-1][1:]
    return terms[:-1] * rest - after * u


def climbed(value_and_slope, concentrations, k):
    """Maximise over ``log a, log b`` from the weights that the prior has without data."""
    ones, zeros = concentrations.pseudo_counts(k)
    scale = 1.0 / (k + 1.0)

    def loss(point):
        value, slope = value_and_slope(point)
        return -scale * value, -scale * slope

    begin = log(np.concatenate([ones, zeros]))
    bounds = [(-chain_top.LARGEST_LOG, chain_top.LARGEST_LOG)] * (2 * k)
    options = {"maxiter": STEPS, "maxfun": 6000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 10}
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    a, b = exp(found.x[:k]), exp(found.x[k:])
    return a / (a + b), a + b
