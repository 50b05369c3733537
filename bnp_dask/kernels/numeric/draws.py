"""Random numbers whose logarithms are needed: finite where the numbers themselves underflow."""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.numeric.arithmetic import exp, log


def log_gammas(shape: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Logarithms of Gamma(shape, 1) variates, in the shape of ``shape``.

    Below one, ``G(a) = G(a + 1) u^(1 / a)`` (Marsaglia & Tsang 2000).
    """
    small = shape < 1.0
    out = log(rng.standard_gamma(np.where(small, shape + 1.0, shape)))
    out[small] += log(1.0 - rng.random(int(small.sum()))) / shape[small]
    return out


def log_shares(logs: np.ndarray) -> np.ndarray:
    """Logarithms of masses ``(K, V)`` minus the log of the row sum: a Dirichlet draw if the masses are Gamma draws."""
    top = logs.max(axis=1, keepdims=True)
    return logs - (top + log(exp(logs - top).sum(axis=1, keepdims=True)))
