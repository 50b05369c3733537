"""Weights of Dirichlet processes and normalized generalized gamma processes at a draw, as few as a slice needs.

Given the atoms' clusters, weights of clusters are independent Gamma variates, and those of clusters that no atom has
are the points of a Poisson process (:mod:`bnp_dask.kernels.streaming.jumps`).  Given its slice u_n, an atom can only
join clusters whose weight is at least u_n (Walker 2007; Griffin & Walker 2011), so that only weights above the least
slice are drawn: no truncation, and no error by it.

Slices are uniform up to ``min(J, limit)`` in place of ``J``.  Atoms then choose among larger clusters as if there were
no slices, ``p(z_n = k) ~ max(J_k / limit, 1) p(x_n | phi_k)`` among those that are open (after the slice-efficient
sampler of Kalli, Griffin & Walker 2011), which costs few more weights: their number grows like the log of the limit.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from bnp_dask.allocation.base import DrawnWeights
from bnp_dask.errors import NumericalError
from bnp_dask.kernels.numeric.arithmetic import log
from bnp_dask.kernels.numeric.draws import log_gammas
from bnp_dask.kernels.streaming import nggp
from bnp_dask.kernels.streaming.jumps import draw_auxiliary, expected_jumps, unused_jumps

OPEN_SHARE = 0.01
"""Share of all atoms in a cluster from which on it is open to every atom.  A first guess: results are exact for any."""

MOST = 20_000
"""Clusters without atoms in one sweep, at most: their parameters are drawn and looked at."""


def measure_weights(
    a: float, sigma: float, tau: float, counts: np.ndarray, least: np.ndarray | None, rng: np.random.Generator
) -> DrawnWeights:
    """Weights of a normalized generalized gamma process; see :class:`~bnp_dask.allocation.base.SampledAllocation`.

    Raises
    ------
    NumericalError
        More than :data:`MOST` weights without atoms exceed the least slice: with a large discount single atoms sit in
        clusters of so little weight that very many others have as much.
    """
    n = float(counts.sum())
    log_size = log_gammas(counts - sigma, rng)
    if least is None:
        return DrawnWeights(log_size)
    rate = 1.0
    if sigma > 0.0:
        rate = draw_auxiliary(n, float(len(counts)), a, sigma, tau, rng) + tau
    mass = float(a * math.exp(sigma * math.log(rate) - gammaln(1.0 - sigma)))
    limit = max(1.0, OPEN_SHARE * n)
    log_slice = float(np.min(np.minimum(log_size, math.log(limit)) + log(least)))
    expected = expected_jumps(mass, sigma, log_slice)
    if expected > MOST:
        raise NumericalError(
            f"a sweep would have to draw about {expected:.1e} clusters without atoms, more than {MOST:,}: with a "
            f"discount of sigma={sigma:g} the {len(counts)} clusters hold single atoms of next to no weight. Use a "
            "smaller sigma, or ExpectationPropagation()"
        )
    new = unused_jumps(mass, sigma, math.exp(max(log_slice, -700.0)), rng)
    return DrawnWeights(np.concatenate([log_size, log(new)]), limit)


def log_partition(a: float, sigma: float, tau: float, counts: np.ndarray) -> float:
    """Log probability of a partition into blocks of ``counts (K,)`` atoms, all positive, nats."""
    n = np.asarray(counts, np.float64)
    mass = nggp.log_mass(float(n.sum()), float(len(n)), a, sigma, tau)
    return float(mass + np.sum(gammaln(n - sigma) - gammaln(1.0 - sigma)))
