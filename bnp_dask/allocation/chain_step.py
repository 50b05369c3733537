"""Sequences of hidden Markov models: their tiles, the local step around its kernel, and trials.

A sequence is a group of dense rows in order (``Batch.groups``).  q(z) of a sequence is a Markov chain with pair
posteriors ``s_t[k, l]`` (thesis 6.14).  Its summary is additive over sequences:

    M_kl = sum_t s_t[k, l],   start_k = r_1k,
    H = - sum_k r_1k log r_1k - sum_t sum_kl s_t[k, l] log (s_t[k, l] / r_tk)

H is one number: the thesis keeps K x K terms of it (6.24) to bound the joint effect of several merges.  Here each
tracked pair stores the exact loss of H by its merge.  Two merges together take at most log 2 per transition between
them more than each alone (:func:`bnp_dask.core.summary.interplay`), a tighter bound than the floor of zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Field, Summary
from bnp_dask.kernels.hmm import forward_backward as kernel
from bnp_dask.kernels.hmm.merge_entropy import merge_losses
from bnp_dask.kernels.numeric.arithmetic import inner, matmul
from bnp_dask.structure.sequences import sequence_offsets, sequence_weights, shifted, shifted_potentials
from bnp_dask.structure.steps import ChainState, LocalStep

TILE_NUMBERS = 2**19
"""Numbers in an (n, K) tile (4 MB); a longer sequence is a tile of its own."""

CHAIN_FIELDS: Mapping[str, Field] = MappingProxyType(
    {"M": Field(("cluster", "cluster")), "start": Field(("cluster",)), "H": Field((), "floor", "M")}
)


def chain_tiles(batch: Batch, n_clusters: int) -> Iterator[Batch]:
    """Whole sequences in order; empty ones are left out."""
    offsets = sequence_offsets(batch)
    size = max(256, TILE_NUMBERS // max(n_clusters, batch.n_features))
    start = 0
    while start < len(offsets) - 1 and offsets[start] < offsets[-1]:
        stop = int(np.searchsorted(offsets, offsets[start] + size, side="right")) - 1
        stop = min(max(stop, start + 1), len(offsets) - 1)
        if offsets[stop] > offsets[start]:
            yield batch.take_groups(np.arange(start, stop))
        start = stop


def chain_step(
    log_start: np.ndarray, log_trans: np.ndarray, log_lik: np.ndarray, batch: Batch, pairs: np.ndarray
) -> LocalStep:
    """Optimal q(z) of the sequences of a batch by forward-backward (thesis 6.3.3).

    Parameters
    ----------
    log_start, log_trans
        E[log pi_0] ``(K,)`` and E[log pi_k] ``(K, K)`` of states in use, nats.
    log_lik
        ``(n, K)`` nats; overwritten.
    batch
        Batch that gives the sequences and weights.
    pairs
        Positions of states whose union is tracked, ``(M, 2)``.
    """
    offsets = sequence_offsets(batch)
    weights = sequence_weights(batch, offsets)
    log_lik, _ = shifted(log_lik, batch)
    log_start, log_trans = shifted_potentials(log_start, log_trans)
    chains = kernel.forward_backward(log_start, log_trans, log_lik, offsets, weights)
    state = ChainState(chains, offsets, weights, log_start, log_trans, log_lik)
    resp = chains.resp if batch.weights is None else chains.resp * batch.weights[:, None]
    pair_sums = chains.pair_sums()
    start = resp[offsets[:-1][np.diff(offsets) > 0]].sum(axis=0)
    # the entropy of exp(linear terms) / Z is log Z minus the expected linear terms
    linear = np.einsum("nk,nk->", resp, log_lik) + inner(pair_sums, log_trans) + matmul(start, log_start)
    values = {"M": pair_sums, "start": start, "H": np.asarray(matmul(weights, chains.log_norm) - linear)}
    losses = merge_losses(chains, offsets, weights, list(pairs))
    return LocalStep(resp, values, {"H": losses}, state)


def transition_counts(summary: Summary) -> tuple[np.ndarray, np.ndarray]:
    """Counts of starts ``(K,)`` and transitions ``(K, K)``, none below zero.

    A summary of an initialisation has states but no sequences: steps are then taken as independent, so the first local
    step starts from the likelihoods.
    """
    counts = np.maximum(summary["N"], 0.0)
    start, trans = np.maximum(summary["start"], 0.0), np.maximum(summary["M"], 0.0)
    if start.sum() > 0.0 or not counts.sum() > 0.0:
        return start, trans
    share = counts / counts.sum()
    return share, np.outer(counts, share)


def stationary(transitions: np.ndarray) -> np.ndarray:
    """Long-run share of each state, ``(K,)``, by elimination without subtractions (Grassmann, Taksar and Heyman).

    ``transitions (K, K)`` are positive; rows need not sum to one.
    """
    p = np.array(transitions, np.float64)
    k = len(p)
    for n in range(k - 1, 0, -1):
        out = p[n, :n].sum()
        p[:n, n] /= out
        p[:n, :n] += np.outer(p[:n, n], p[n, :n])
    share = np.zeros(k)
    share[:1] = 1.0
    for n in range(1, k):
        share[n] = matmul(share[:n], p[:n, n])
    return share / share.sum()


def most_likely_states(log_start: np.ndarray, log_trans: np.ndarray, log_lik: np.ndarray, batch: Batch) -> np.ndarray:
    """Most likely path of each sequence (Viterbi), positions ``(n,)``; ``log_lik (n, K)`` is overwritten."""
    log_lik, _ = shifted(log_lik, batch)
    return kernel.viterbi(*shifted_potentials(log_start, log_trans), log_lik, sequence_offsets(batch))
