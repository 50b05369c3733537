"""Urns: the probability that the next atom joins a cluster or opens a new one, given how many atoms clusters have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnp_dask.kernels.mixture.resp import RaggedResp, Resp
from bnp_dask.kernels.numeric.arithmetic import exp, log, log1p
from bnp_dask.kernels.streaming import nggp

ABSENT = "absent"
"""Name of the summary field that holds the sum over atoms of log(1 - r_nk): the log probability that cluster k is empty
(Tank et al. 2015, eq. S18, whose products underflow)."""

LEAST_LOG = -50.0
"""Log probability with which an atom is taken not to belong to a cluster that is certain to hold it."""


@dataclass(frozen=True)
class Urn:
    """Predictive rule of a normalized generalized gamma process: ``n_k - sigma`` to ``a (U + tau)^sigma``.

    Parameters
    ----------
    a, sigma, tau
        As in :class:`~bnp_dask.allocation.nggp.NGGPMixture`; of a Dirichlet process ``sigma`` is 0.
    rule
        One of the rules of :mod:`bnp_dask.kernels.streaming.nggp`.
    """

    a: float
    sigma: float = 0.0
    tau: float = 1.0
    rule: int = nggp.EXACT

    def rule_after(self, n: float, n_clusters: float) -> tuple[float, float]:
        """``seat`` and ``new`` after ``n`` atoms in ``n_clusters`` clusters: a cluster of n_k atoms has probability
        ``seat (n_k - sigma)``, a new one ``new``."""
        return nggp.rule_of(n, n_clusters, self.a, self.sigma, self.tau, self.rule)

    def log_price(self, n: float, n_clusters: float) -> float:
        """Log of the factor of one more cluster in the probability of a partition, ``a E[(U + tau)^sigma]``, nats."""
        if self.sigma == 0.0 or n <= 0.0:
            return float(log(self.a))
        more = nggp.log_mass(n, n_clusters + 1.0, self.a, self.sigma, self.tau)
        return float(more - nggp.log_mass(n, n_clusters, self.a, self.sigma, self.tau))


def log_absent(resp: Resp, weights: np.ndarray | None) -> np.ndarray:
    """Values of the field :data:`ABSENT`, ``(K,)`` nats; ``resp (n, K)`` includes the atoms' ``weights (n,)``."""
    if isinstance(resp, RaggedResp):  # an atom adds nothing to clusters that it is not in
        times = None if weights is None else np.repeat(weights, np.diff(resp.offsets))
        share = resp.value
        if times is not None:
            share = np.divide(share, times, out=np.zeros_like(share), where=times > 0)
        logs = np.maximum(log1p(-np.minimum(share, 1.0 - 1e-15)), LEAST_LOG)
        return np.bincount(resp.index, logs if times is None else times * logs, resp.n_clusters)
    dense = resp if isinstance(resp, np.ndarray) else resp.to_dense()
    if weights is None:
        return np.maximum(log1p(-np.minimum(dense, 1.0 - 1e-15)), LEAST_LOG).sum(axis=0)
    share = np.divide(dense, weights[:, None], out=np.zeros_like(dense), where=weights[:, None] > 0)
    logs = np.maximum(log1p(-np.minimum(share, 1.0 - 1e-15)), LEAST_LOG)
    return weights @ logs


def expected_clusters(absent: np.ndarray) -> float:
    """Expected number of clusters that hold an atom, from values of the field :data:`ABSENT`, ``(K,)`` nats."""
    return float(np.sum(1.0 - exp(np.minimum(absent, 0.0))))
