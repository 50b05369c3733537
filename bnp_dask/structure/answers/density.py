"""Predictive densities of atoms, documents and sequences: posterior -> log densities that integrate to one.

Unseen clusters have a share of the prior mass and predict as the prior does, in mixtures, topics and sequences alike.
No mass is lost: the densities of all possible observations sum to one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.finite import require_finite_rows
from bnp_dask.inputs.protocols import as_a
from bnp_dask.kernels.hmm import forward_backward as kernel
from bnp_dask.kernels.mixture.softmax import log_sums
from bnp_dask.kernels.numeric.arithmetic import log, log_sum_exp
from bnp_dask.kernels.numeric.fixed_order import is_fixed
from bnp_dask.structure.asking import Beliefs, WholeModel
from bnp_dask.structure.sequences import sequence_offsets, shifted, shifted_potentials
from bnp_dask.structure.verbs import ChainedAllocation

UNSEEN_MASS = 1e-12
"""Prior mass below which unseen clusters are ignored: it is rounding of weights that sum to one."""


def unseen_cluster(model: WholeModel) -> Any:
    """Likelihood parameters of one cluster without atoms."""
    return model.observation.global_step(model.empty_summary(np.zeros(1, np.int64)))


def log_predictives(model: WholeModel, posterior: Beliefs, unseen: Any | None, batch: Batch) -> np.ndarray:
    """Log predictive densities of atoms in each cluster, ``(n, K)`` nats; ``(n, K + 1)`` with an unseen one last."""
    terms = model.observation.log_predictive(posterior.observation, batch)
    if unseen is None:
        return terms
    return np.concatenate([terms, model.observation.log_predictive(unseen, batch)], axis=1)


def mixture_density(model: WholeModel, posterior: Beliefs, batch: Batch) -> np.ndarray:
    """Log of the mixture of the clusters' predictive densities at each atom, ``(n,)`` nats."""
    weights = posterior.weights
    rest = 1.0 - float(np.sum(weights))
    unseen = unseen_cluster(model) if rest > UNSEEN_MASS else None
    with np.errstate(divide="ignore"):
        log_weights = log(weights if unseen is None else np.append(weights, rest))
    out = np.empty(batch.n_atoms)
    start = 0
    for tile in model.allocation.tiles(batch, posterior.n_clusters + 1):
        terms = log_predictives(model, posterior, unseen, tile)
        part = out[start : start + tile.n_atoms]
        if is_fixed():
            part[...] = log_sum_exp(terms + log_weights)
        else:
            log_sums(np.ascontiguousarray(terms), log_weights, part)
        start += tile.n_atoms
    require_finite_rows(out, batch, "log density")
    return out


# -- sequences -------------------------------------------------------------------------------------------------
def chain_density(model: WholeModel, posterior: Beliefs, batch: Batch) -> np.ndarray:
    """Log density of each sequence under expected transitions, spread evenly over its steps, ``(n,)`` nats.

    It sums over all paths, including paths through unseen states, which are one state of the expected chain.
    """
    allocation = as_a(model.allocation, ChainedAllocation)
    start, trans = allocation.expected_chain(posterior.allocation)
    unseen = unseen_cluster(model) if len(start) > posterior.n_clusters else None
    rows = [np.zeros(0)]
    for tile in model.allocation.tiles(batch, len(start)):
        value = _sequences(start, trans, log_predictives(model, posterior, unseen, tile), tile)
        lengths = np.diff(sequence_offsets(tile))
        rows.append(np.repeat(value / np.maximum(lengths, 1), lengths))
    return np.concatenate(rows)


def _sequences(start: np.ndarray, trans: np.ndarray, log_lik: np.ndarray, batch: Batch) -> np.ndarray:
    """Log density of each sequence, ``(G,)`` nats; ``log_lik (n, W)`` is overwritten."""
    offsets = sequence_offsets(batch)
    lengths = np.diff(offsets)
    with np.errstate(divide="ignore"):
        log_start, log_trans = log(start), log(trans)
    log_lik, top = shifted(log_lik, batch)
    weights = np.ones(len(lengths))
    chains = kernel.forward_backward(*shifted_potentials(log_start, log_trans), log_lik, offsets, weights)
    # the shift of the potentials counts once for the start and once for each step after it
    norm = chains.log_norm + log_start.max() + (lengths - 1) * log_trans.max()
    # each sequence by itself: an outlying sequence must not cause rounding in the others' densities
    some = lengths > 0
    norm[some] += np.add.reduceat(top, offsets[:-1][some])
    return np.where(some, norm, 0.0)


def path_densities(model: WholeModel, posterior: Beliefs, batch: Batch, path: np.ndarray) -> np.ndarray:
    """Log joint density of each sequence and its path ``(n,)`` of states in use, ``(G,)`` nats.

    Sequences without steps have none.  Its exponential is one term of the sum over all paths, whose logarithm is
    :func:`chain_density`.
    """
    allocation = as_a(model.allocation, ChainedAllocation)
    start, trans = allocation.expected_chain(posterior.allocation)
    out = []
    done = 0
    for tile in model.allocation.tiles(batch, posterior.n_clusters):
        log_lik = model.observation.log_predictive(posterior.observation, tile)
        own = path[done : done + tile.n_atoms]
        done += tile.n_atoms
        offsets = sequence_offsets(tile)
        first = offsets[:-1][np.diff(offsets) > 0]
        moves = np.append(1.0, trans[own[:-1], own[1:]])
        moves[first] = start[own[first]]
        with np.errstate(divide="ignore"):
            terms = log_lik[np.arange(tile.n_atoms), own] + log(moves)
        out.append(np.add.reduceat(terms, first))
    return np.concatenate([np.zeros(0), *out])
