"""Prior weights of clusters inside a minibatch: sticks of known clusters, an urn of the clusters it opened itself.

Known clusters have sticks Beta(1 + N_k, gamma + N_>k) by falling size (Wang & Blei 2012, section 2.3), to whose counts
the atoms of the minibatch are added.  The remaining weight is a Dirichlet process of concentration gamma over new
clusters, whose weights are integrated out too.
"""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.options import copy_into, njit


@njit(nogil=True, cache=True)
def prior_weights(order, counts, own, n_clusters, gamma, out):
    """Expected weights of clusters given the atoms of a minibatch, without the atoms that are being moved.

    Parameters
    ----------
    order
        Known clusters by falling size, ``(K,)``.
    counts
        Atoms of known clusters, ``(K,)``.
    own
        Atoms of the minibatch in each cluster, ``(C,)``: known clusters, then new ones.
    n_clusters
        Positions in use, K + J.
    gamma
        Concentration.
    out
        Filled for positions 0 to K + J - 1, and at K + J with the weight of a new cluster, ``(C,)``.
    """
    known = len(order)
    newborn, later = 0.0, 0.0
    for k in range(known, n_clusters):
        newborn += own[k]
    later = newborn
    for k in range(known):
        later += counts[k] + own[k]
    rest = 1.0
    for j in range(known):
        k = order[j]
        held = counts[k] + own[k]
        later = max(later - held, newborn)
        whole = 1.0 + held + gamma + later
        out[k] = rest * (1.0 + held) / whole
        rest *= (gamma + later) / whole
    rest /= gamma + newborn
    for k in range(known, n_clusters):
        out[k] = rest * own[k]
    out[n_clusters] = rest * gamma


@njit(nogil=True, cache=True)
def choose_cluster(log_pred, weight, n_clusters, uniform, part):
    """Position drawn in proportion to ``weight * exp(log_pred)``, ``(C,)`` both, up to K + J; log of their sum.

    ``part (C,)`` is overwritten.
    """
    top = -math.inf
    for k in range(n_clusters + 1):
        if weight[k] > 0.0 and log_pred[k] > top:
            top = log_pred[k]
    total, last = 0.0, n_clusters
    for k in range(n_clusters + 1):
        if weight[k] > 0.0:
            total += weight[k] * math.exp(log_pred[k] - top)
            last = k
        part[k] = total
    at = uniform * total
    for k in range(last):
        if part[k] > at:
            return k, top + math.log(total)
    return last, top + math.log(total)


@njit(nogil=True, cache=True)
def free_position(members, kept, known, n_clusters):
    """Position of a new cluster: one that was given up and is in no sample, or the next."""
    for k in range(known, n_clusters):
        if members[k] == 0 and not kept[k]:
            return k
    return n_clusters


@njit(nogil=True, cache=True)
def longer(array, more):
    """A vector with ``more`` zeros appended."""
    out = np.zeros(len(array) + more, array.dtype)
    copy_into(out, array)
    return out


@njit(nogil=True, cache=True)
def wider(array, more):
    """A matrix with ``more`` columns of zeros appended."""
    out = np.zeros((array.shape[0], array.shape[1] + more))
    out[:, : array.shape[1]] = array
    return out
