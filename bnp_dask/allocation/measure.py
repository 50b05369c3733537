"""Weights of Dirichlet processes and normalized generalized gamma processes at a draw, as few as atoms can join.

Given the atoms' clusters, the weights J of clusters are independent Gamma variates, and those of clusters that no atom
has are the points of a Poisson process (:mod:`bnp_dask.kernels.streaming.jumps`), with parameters from the prior.  Two
auxiliary variables of each atom leave it finitely many clusters to choose from, without an error by truncation:

- its slice u_n, uniform up to the height ``min(max(J, small), limit)`` of its cluster: clusters whose height is below
  it are closed to the atom (Walker 2007; Griffin & Walker 2011);
- its window, on a circle on which each cluster has a mark.  It ends at w_n, uniform over the ``J / small`` from the
  mark of its cluster on, if J is below ``small``, and over the circle else.  Clusters below ``small`` are open if their
  mark is at most ``J / small`` before w_n.

Given both, an atom chooses among open clusters in proportion to ``max(J / limit, 1) p(x_n | phi_k)``.  Without windows
atoms alone in clusters of hardly any weight, which discounts bring about, would have to look at all others of as
little: more than can be drawn.  With them only atoms whose slice is below ``small`` look at clusters that small, of
which each sees a few.  ``limit`` opens large clusters to all atoms, which mixes faster (after Kalli, Griffin & Walker
2011).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from bnp_dask.allocation.base import DrawnWeights, SmallSlices
from bnp_dask.kernels.numeric.arithmetic import exp
from bnp_dask.kernels.numeric.draws import log_gammas
from bnp_dask.kernels.streaming import nggp
from bnp_dask.kernels.streaming.jumps import draw_auxiliary, unused_jumps, unused_small_jumps

SMALL = 0.01
"""Weight, in atoms, below which clusters are shown by windows.  With K clusters 1 / (K + 1 / OPEN_SHARE) is about best;
draws are exact for any."""

OPEN_SHARE = 0.01
"""Share of all atoms in a cluster from which on it is open to every atom.  A first guess; draws are exact for any."""

SURE, LEAST_SHARE = 31, 0.1
"""From so many atoms on, a cluster's weight is more than this share of their number: the probability that it is not is
below e-42, by Chernoff's bound."""


def limit_of(n_atoms: float) -> float:
    """Weight, in atoms, from which on a cluster is open to every atom."""
    return max(1.0, OPEN_SHARE * n_atoms)


def bound(counts: np.ndarray, limit: float) -> np.ndarray:
    """Uniform numbers below which slices can be small, in clusters of at least ``counts`` atoms, ``(K,)``."""
    least = np.where(counts > SURE, LEAST_SHARE * (counts - 1.0), SMALL)
    return SMALL / np.minimum(least, limit)


def heights(size: np.ndarray, limit: float) -> np.ndarray:
    """Longest slices of atoms in clusters of these weights, ``(K,)``."""
    return np.minimum(np.maximum(size, SMALL), limit)


def window_ends(size: np.ndarray, mark: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Ends of the windows of atoms whose clusters have these weights and marks, given uniform numbers, ``(m,)``."""
    return (mark + np.minimum(size / SMALL, 1.0) * offset) % 1.0


def measure_weights(
    a: float,
    sigma: float,
    tau: float,
    counts: np.ndarray,
    small: SmallSlices | None,
    limit: float,
    rng: np.random.Generator,
) -> DrawnWeights:
    """Weights of a normalized generalized gamma process; see :class:`~bnp_dask.allocation.base.SampledAllocation`."""
    log_size, mark = log_gammas(counts - sigma, rng), rng.random(len(counts))
    if small is None:
        return DrawnWeights(log_size, mark, limit)
    rate = 1.0
    if sigma > 0.0:
        rate = draw_auxiliary(float(counts.sum()), float(len(counts)), a, sigma, tau, rng) + tau
    mass = float(a * math.exp(sigma * math.log(rate) - gammaln(1.0 - sigma)))
    size = exp(log_size)
    height = heights(size, limit)
    own = small.place[small.uniform * height[small.place] < SMALL]
    offset = small.offset[small.uniform * height[small.place] < SMALL]
    large = unused_jumps(mass, sigma, SMALL, rng)
    few, marks = unused_small_jumps(mass, sigma, SMALL, window_ends(size[own], mark[own], offset), rng)
    with np.errstate(divide="ignore"):
        new = np.log(np.concatenate([large, few]))
    return DrawnWeights(np.concatenate([log_size, new]), np.concatenate([mark, rng.random(len(large)), marks]), limit)


def log_partition(a: float, sigma: float, tau: float, counts: np.ndarray) -> float:
    """Log probability of a partition into blocks of ``counts (K,)`` atoms, all positive, nats."""
    n = np.asarray(counts, np.float64)
    mass = nggp.log_mass(float(n.sum()), float(len(n)), a, sigma, tau)
    return float(mass + np.sum(gammaln(n - sigma) - gammaln(1.0 - sigma)))
