"""Seating one atom: responsibilities from predictive densities and an urn, shared by all filters."""

from __future__ import annotations

import math

from bnp_dask.kernels.mixture.softmax import TINY
from bnp_dask.kernels.options import njit


@njit(nogil=True, cache=True)
def seat_atom(log_pred, counts, n_clusters, seat, new, sigma, epsilon, resp):
    """Responsibilities of one atom (Tank et al. 2015, Alg. 1).

    Parameters
    ----------
    log_pred
        Log predictive density under each cluster, and at position K under the prior, nats.
    counts
        Expected atoms of each cluster.
    n_clusters
        K.
    seat, new, sigma
        Predictive rule.
    epsilon
        Probability above which a new cluster is opened.
    resp
        Filled for the first K, or K + 1 positions; below 2**-53 it is exactly zero.

    Returns
    -------
    log_density, opened
        Log predictive density of the atom, nats, and whether position K is a cluster from now on.  The rule is
        normalized: expected counts below the discount take nothing away.
    """
    top = log_pred[n_clusters] if new > 0.0 else -math.inf
    for k in range(n_clusters):
        if counts[k] > sigma and log_pred[k] > top:
            top = log_pred[k]
    total, mass = 0.0, new
    for k in range(n_clusters):
        held = max(seat * (counts[k] - sigma), 0.0)
        resp[k] = held * math.exp(log_pred[k] - top) if held > 0.0 else 0.0
        total += resp[k]
        mass += held
    fresh = new * math.exp(log_pred[n_clusters] - top)
    whole = total + fresh
    opened = fresh > epsilon * whole or total == 0.0
    if opened:
        resp[n_clusters] = fresh
        total = whole
    kept = 0.0
    for k in range(n_clusters + opened):
        resp[k] = resp[k] / total
        if resp[k] < TINY:
            resp[k] = 0.0
        kept += resp[k]
    for k in range(n_clusters + opened):
        resp[k] /= kept
    return top + math.log(whole / mass), opened


@njit(nogil=True, cache=True)
def standing(counts, absent, n_clusters):
    """Atoms, expected non-empty clusters, and an approximate mode of log U, before the first atom is seated."""
    mass, expected = 0.0, 0.0
    for k in range(n_clusters):
        mass += counts[k]
        expected += 1.0 - math.exp(min(absent[k], 0.0))
    return mass, expected, math.log(mass + 1.0)


@njit(nogil=True, cache=True)
def note_seated(absent, k, weight, r):
    """Record that an atom belongs to cluster ``k`` with probability ``r``; return the rise of the expected clusters."""
    before = math.exp(min(absent[k], 0.0))
    absent[k] += weight * log_not(r)
    return before - math.exp(min(absent[k], 0.0))


@njit(nogil=True, cache=True)
def log_not(r):
    """``log(1 - r)``, at least -50: see :data:`bnp_dask.kernels.streaming.urn.ABSENT`."""
    return max(math.log1p(-min(r, 1.0 - 1e-15)), -50.0)


VACANT = 1e-9
"""Atoms in a cluster below which only rounding errors are left of it."""


@njit(nogil=True, cache=True)
def note_left(counts, absent, k, weight, r):
    """Record that an atom that belonged to cluster ``k`` with probability ``r`` left it.

    Returns
    -------
    mass, fall, vacant
        Fall of the sum of the counts, fall of the expected clusters, and whether the cluster is now empty.
    """
    mass, before = counts[k], math.exp(min(absent[k], 0.0))
    counts[k] -= weight * r
    absent[k] = min(absent[k] - weight * log_not(r), 0.0)
    vacant = counts[k] < VACANT
    if vacant:
        counts[k], absent[k] = 0.0, 0.0
    return mass - counts[k], math.exp(absent[k]) - before, vacant


@njit(nogil=True, cache=True)
def give_up(counts, absent, n_clusters, least):
    """Close clusters with less than ``least``; return the falls of the sum of counts and of the expected clusters."""
    mass, fall = 0.0, 0.0
    for k in range(n_clusters):
        if 0.0 < counts[k] < least:
            mass += counts[k]
            fall += 1.0 - math.exp(min(absent[k], 0.0))
            counts[k], absent[k] = 0.0, 0.0
    return mass, fall
