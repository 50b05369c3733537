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
from typing import Any

import numpy as np

from bnp_dask.allocation.dp_mixture import DPMixture
from bnp_dask.core import Batch, Field, Summary
from bnp_dask.errors import NumericalError
from bnp_dask.kernels import (
    Kept,
    Rows,
    Space,
    Transitions,
    aligned,
    inner,
    likelihoods,
    matmul,
    merge_losses,
    padded,
    pair_sums,
    piece_losses,
    sweep_back,
    sweep_forth,
)
from bnp_dask.kernels import hmm as kernel
from bnp_dask.structure import (
    ChainState,
    LocalStep,
    LogLikOf,
    sequence_offsets,
    sequence_weights,
    shifted,
    shifted_potentials,
)

TILE_NUMBERS = 2**19
"""Numbers in an (n, K) tile (4 MB); a longer sequence is a tile of its own."""

CHAIN_FIELDS: Mapping[str, Field] = MappingProxyType(
    {"M": Field(("cluster", "cluster")), "start": Field(("cluster",)), "H": Field((), "floor", "M")}
)


class ChainSteps:
    """Local steps and summary of allocations whose states follow one another.

    Their parameters have ``log_start (K,)`` and ``log_trans (K, K)``, E[log pi] of the states in use, nats.
    """

    @property
    def counts(self) -> frozenset[str]:
        return frozenset({"M", "start"})

    @property
    def fields(self) -> Mapping[str, Field]:
        return CHAIN_FIELDS

    def tiles(self, batch: Batch, n_clusters: int) -> Iterator[Batch]:
        return chain_tiles(batch, n_clusters)

    def local_step(self, params: Any, log_lik: np.ndarray, batch: Batch, pairs: np.ndarray) -> LocalStep:
        return chain_step(params.log_start, params.log_trans, log_lik, batch, pairs)

    def sweep(
        self, params: Any, log_lik: LogLikOf, batch: Batch, pairs: np.ndarray
    ) -> Iterator[tuple[Batch, LocalStep]]:
        return chain_sweep(params.log_start, params.log_trans, log_lik, batch, pairs)

    def path(self, params: Any, log_lik: np.ndarray, batch: Batch) -> np.ndarray:
        """Most likely states of each sequence together (Viterbi), positions ``(n,)``.

        ``log_lik (n, K)`` is overwritten.
        """
        log_lik, _ = shifted(log_lik, batch)
        potentials = shifted_potentials(params.log_start, params.log_trans)
        return kernel.viterbi(*potentials, log_lik, sequence_offsets(batch))

    def untied(self) -> DPMixture:
        """See :class:`~bnp_dask.structure.protocols.ChainedAllocation`."""
        return DPMixture()


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


# -- piece by piece -----------------------------------------------------------------------------------------------
# For visits that need sums and have no trials.  The forward sweep computes the log likelihoods of a piece; its
# statistics are computed while its responsibilities are still in cache.  For a whole sequence only the arrays of `Kept`
# are in memory; the step on whole sequences keeps more than twice as much, for trials.
PIECE_NUMBERS = 2**17
"""Numbers in an (m, K) piece (1 MB): a few such arrays fit a processor's cache, and calls are few."""

FEWEST = 32
"""Least rows of a piece."""


def chain_sweep(
    log_start: np.ndarray, log_trans: np.ndarray, log_lik: LogLikOf, batch: Batch, pairs: np.ndarray
) -> Iterator[tuple[Batch, LocalStep]]:
    """Local step on a batch of sequences, in pieces that add up to it; the last piece of a tile comes first.

    ``log_start (K,)`` and ``log_trans (K, K)`` are E[log pi], nats; the union of the positions ``pairs (M, 2)`` is
    tracked.  A tile whose scaled numbers leave the range of doubles comes as one piece, computed with logarithms.
    """
    tiles = list(chain_tiles(batch, len(log_start)))
    sweep = _Sweep(log_start, log_trans, log_lik, list(pairs), batch.n_features)
    room = Kept.room(max((tile.n_atoms for tile in tiles), default=0), len(log_start))
    for tile in tiles:
        offsets = sequence_offsets(tile)
        rows, kept = Rows.of(offsets, sequence_weights(tile, offsets)), room.part(0, tile.n_atoms)
        norm = sweep.forth(tile, rows, kept)
        if np.isnan(norm):
            yield tile, chain_step(log_start, log_trans, log_lik(tile), tile, pairs)
        else:
            yield from sweep.back(tile, rows, kept, norm)


class _Sweep:
    """Both sweeps over a tile, with the scratch of a piece."""

    def __init__(
        self, log_start: np.ndarray, log_trans: np.ndarray, log_lik: LogLikOf, sets: list[np.ndarray], n_features: int
    ) -> None:
        self.log_start, self.log_trans = shifted_potentials(log_start, log_trans)
        self.moves = Transitions.of(self.log_start, self.log_trans)
        self.log_lik, self.sets = log_lik, sets
        width = len(log_start)
        self.trans = np.ascontiguousarray(self.moves.trans[:, :width])
        self.size = max(FEWEST, PIECE_NUMBERS // max(width, n_features))
        self.space = Space.of(width)
        self.resp = np.empty((self.size, width))
        self.grow = aligned(self.size + 1, padded(width))

    def forth(self, tile: Batch, rows: Rows, kept: Kept) -> float:
        """Filter a tile; returns its log normaliser times weights, or NaN if scaling fails."""
        norm, before = 0.0, self.moves.start
        for first in range(0, tile.n_atoms, self.size):
            last = min(first + self.size, tile.n_atoms)
            kept.log_lik[first:last], _ = shifted(self.log_lik(tile.rows(first, last)), tile, first)
            lik, filtered = self._likelihoods(kept.log_lik[first:last]), kept.filtered[first:last]
            norm += sweep_forth(rows.part(first, last), self.moves, lik, before, filtered, self.space)
            before = filtered[-1]
        return norm

    def back(self, tile: Batch, rows: Rows, kept: Kept, norm: float) -> Iterator[tuple[Batch, LocalStep]]:
        """Local step of each piece of a tile whose log normaliser is ``norm``, last piece first."""
        after = np.zeros(self.resp.shape[1])
        for first in reversed(range(0, tile.n_atoms, self.size)):
            last = min(first + self.size, tile.n_atoms)
            part, piece, resp = rows.part(first, last), kept.part(first, last), self.resp[: last - first]
            grow = self.grow[: len(resp) + 1]
            grow[-1] = grow[0]
            lik = self._likelihoods(piece.log_lik)
            found = sweep_back(part, self.moves, lik, piece.filtered, grow, resp, self.space)
            if found < 0:
                raise NumericalError(
                    f"{tile.name}, rows {first} to {last - 1}: the sweep back over sequences failed where that forth "
                    "did not, which should be impossible; please report it with the data and the settings"
                )
            row = resp[0].copy()
            step = self._step(part, piece, resp, after, found, tile.weights is not None)
            if first == 0:
                step.values["H"][...] += norm
            yield tile.rows(first, last), step
            after = row

    def _likelihoods(self, log_lik: np.ndarray) -> np.ndarray:
        """Likelihoods of a piece, in the memory that the backward sweep overwrites with ``grow``."""
        lik = self.grow[: len(log_lik)]
        likelihoods(log_lik, self.space, lik)
        return lik

    def _step(
        self, rows: Rows, kept: Kept, resp: np.ndarray, after: np.ndarray, found: int, weighted: bool
    ) -> LocalStep:
        """Statistics of a piece, whose ``resp`` is multiplied by its weights; H without the log normaliser."""
        trans, grow = self.trans, self.grow[: len(resp) + 1]
        losses = piece_losses(rows, trans, kept.filtered, grow, resp, after, self.sets)
        if weighted:
            resp *= rows.weights[:, None]
        pairs = pair_sums(trans, kept.filtered, grow, found)
        start = resp[rows.begins].sum(axis=0)
        # the entropy of exp(linear terms) / Z is log Z minus the expected linear terms
        linear = inner(resp, kept.log_lik) + inner(pairs, self.log_trans) + matmul(start, self.log_start)
        return LocalStep(resp, {"M": pairs, "start": start, "H": np.asarray(-linear)}, {"H": losses})
