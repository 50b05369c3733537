"""Seating one atom: responsibilities from predictive densities and an urn, shared by all filters."""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.mixture.softmax import TINY
from bnp_dask.kernels.options import njit
from bnp_dask.kernels.streaming.measures import table_rule
from bnp_dask.kernels.streaming.nggp import seat_rule

Packed = tuple[float, float, float, int, tuple[np.ndarray, np.ndarray, np.ndarray, float, float, float]]
"""``a, sigma, tau, rule, table`` of an urn."""


@njit(nogil=True, cache=True)
def weigh(urn, counts, absent, n_clusters, mass, expected, start, out):
    """Predictive probabilities of clusters.

    Parameters
    ----------
    urn
        ``a, sigma, tau, rule, table``; the table is empty for rules in closed form.
    counts, absent
        Expected atoms of each cluster, and log probability that it has none, ``(C,)``.
    n_clusters
        K.
    mass, expected
        Expected atoms and expected clusters.
    start
        Approximate mode of log U.
    out
        Filled for the first K.

    Returns
    -------
    new, mode
        Probability of a new cluster, and the mode of log U.
    """
    a, sigma, tau, rule, table = urn
    if len(table[0]):
        return table_rule(mass, counts, absent, n_clusters, sigma, table, start, out)
    seat, new, mode = seat_rule(mass, expected, a, sigma, tau, rule, start)
    for k in range(n_clusters):
        out[k] = max(seat * (counts[k] - sigma), 0.0)
    return new, mode


@njit(nogil=True, cache=True)
def seat_atom(log_pred, held, n_clusters, new, epsilon, resp):
    """Responsibilities of one atom (Tank et al. 2015, Alg. 1).

    Parameters
    ----------
    log_pred
        Log predictive density under each cluster, and at position K under the prior, nats.
    held
        Predictive probability of each cluster: expected counts below the discount take nothing away.
    n_clusters
        K.
    new
        Predictive probability of a new cluster; together they are normalized here.
    epsilon
        Probability above which a new cluster is opened.
    resp
        Filled for the first K, or K + 1 positions; below 2**-53 it is exactly zero.

    Returns
    -------
    log_density, opened
        Log predictive density of the atom, nats, and whether position K is a cluster from now on.
    """
    top = log_pred[n_clusters] if new > 0.0 else -math.inf
    for k in range(n_clusters):
        if held[k] > 0.0 and log_pred[k] > top:
            top = log_pred[k]
    total, mass = 0.0, new
    for k in range(n_clusters):
        resp[k] = held[k] * math.exp(log_pred[k] - top) if held[k] > 0.0 else 0.0
        total += resp[k]
        mass += held[k]
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
