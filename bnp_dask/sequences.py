"""Trials on sequences: the states of some steps assigned otherwise, beside the normal local step (thesis 6.5).

Wherever a sequence is in one of the donors, a chain of receivers takes its place; see
:mod:`bnp_dask.kernels.chain_trials`.  The statistics are those of a Markov chain of all states there would be, so the
objective decided on is exact: receivers' counts among each other stand where those of clusters stand, their counts to
and from all other states in :class:`~bnp_dask.summary.Links`, and H is what the trial adds to the entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bnp_dask.allocation.base import LocalStep
from bnp_dask.allocation.chains import shifted
from bnp_dask.allocation.dp_mixture import DPMixture
from bnp_dask.batch import Batch
from bnp_dask.kernels.chain_trials import Block, find_block, share_block
from bnp_dask.kernels.chains import merge_losses
from bnp_dask.summary import Links, Summary

if TYPE_CHECKING:
    from bnp_dask.model import Model, Posterior, Trial


def loose(model: Model, gamma: float = 1.0) -> Model:
    """The model without its chains: a DP mixture of steps, for small runs on steps that were sampled one by one."""
    return replace(model, allocation=DPMixture(gamma))


def chained(model: Model, summary: Summary) -> Summary:
    """Statistics of a small run of :func:`loose` as the model itself has them; how states follow is left open."""
    empty = model.empty_summary(summary.ids)
    shared = {name: summary[name] for name in ("N", *model.observation.fields)}
    return replace(empty, values={**empty.values, **shared})


def unchained(model: Model, summary: Summary) -> Summary:
    """Statistics of chains as :func:`loose` has them; entropies count as zero."""
    empty = loose(model).empty_summary(summary.ids)
    shared = {name: summary[name] for name in ("N", *model.observation.fields)}
    return replace(empty, values={**empty.values, **shared})


FAINT = 1e-12
"""Share of the expected transitions that a receiver has at least in what guides a trial."""


def chain_runs(model: Model, posterior: Posterior, trials: Sequence[Trial]) -> list[ChainRun]:
    """All trials of a visit; each tile must be shown to them in this order."""
    runs: list[ChainRun] = []
    for trial in trials:
        runs.append(ChainRun(model, posterior, trial, tuple(runs)))
    return runs


class ChainRun:
    """One trial on one batch: sees the tiles of the local step, each of whole sequences.

    Parameters
    ----------
    model, posterior
        The model, and the beliefs that the batch is assigned with.
    trial
        What to try.
    before
        Trials of the same visit that see each tile before this one: what their receivers count to and from this
        one's is noted in both.
    """

    def __init__(self, model: Model, posterior: Posterior, trial: Trial, before: tuple[ChainRun, ...] = ()) -> None:
        self.model, self.trial, self.before = model, trial, before
        self._seen: tuple[Block, np.ndarray, np.ndarray] | None = None
        self.donors = posterior.positions(np.array(trial.donors))
        rest = posterior.ids[~np.isin(posterior.ids, trial.donors)]
        self.outside = posterior.positions(rest)
        self.potentials = potentials(posterior, trial, self.donors)
        values = {"M": np.zeros((2, trial.beliefs.n_clusters, len(rest)))}
        links = Links(rest, np.array(trial.donors, np.int64), values)
        self.part = replace(model.empty_summary(trial.beliefs.ids), links=links)
        for other in before:
            shape = (2, trial.beliefs.n_clusters, other.trial.beliefs.n_clusters)
            values[f"M@{other.trial.name}"] = np.zeros(shape)
            assert other.part.links is not None
            theirs = {**other.part.links.values, f"M@{trial.name}": np.zeros((2, shape[2], shape[1]))}
            other.part = replace(other.part, links=replace(other.part.links, values=theirs))

    def see(self, start: int, tile: Batch, step: LocalStep) -> None:
        """Share out what the donors hold of a tile's steps."""
        assert step.chain is not None
        self._seen = None
        state, donors = step.chain, self.donors
        chains, offsets, weights = state.chains, state.offsets, state.weights
        block = find_block(chains, offsets, weights, donors, state.log_start, state.log_trans, state.log_lik)
        if not block.mass.any():
            return
        log_lik = self.model.observation.expected_log_lik(self.trial.beliefs.observation, tile)
        shares = share_block(offsets, weights, block, shifted(log_lik, tile)[0], *self.potentials)
        rows = state.row_weights[:, None]
        mass = shares.mass * rows
        lost = merge_losses(chains, offsets, weights, [donors])[0] if len(donors) > 1 else 0.0
        firsts = offsets[:-1][np.diff(offsets) > 0]
        values = {"M": shares.pairs, "start": mass[firsts].sum(axis=0), "H": np.asarray(shares.gain[0] - lost)}
        found = self.model.summary_of(self.trial.beliefs.ids, tile, LocalStep(mass, values))
        share = mass / np.where(block.mass > 0.0, block.mass, 1.0)[:, None]
        coming = shares.first.sum(axis=1, keepdims=True)
        enter = shares.first / np.where(coming > 0.0, coming, 1.0)
        links = self.part.links
        assert links is not None
        links.values["M"][0] += share.T @ block.leave[:, self.outside]
        links.values["M"][1] += (enter * rows).T @ block.enter[:, self.outside]
        self._seen = (block, share, enter)
        for other in self.before:
            self._note(other)
        for name, declared in self.model.fields.items():
            if declared.n_cluster_axes or declared.merge == "floor":  # all else belongs to the atoms
                self.part.values[name][...] += found.values[name]

    def _note(self, other: ChainRun) -> None:
        """Counts between the receivers of two trials in a tile that both have seen."""
        if self._seen is None or other._seen is None or self.part.links is None or other.part.links is None:
            return
        block, share, enter = self._seen
        theirs, their_share, their_enter = other._seen
        to_them = theirs.enter[1:, self.donors].sum(axis=1, keepdims=True)
        to_us = block.enter[1:, other.donors].sum(axis=1, keepdims=True)
        going = (share[:-1] * to_them).T @ their_enter[1:]
        coming = (their_share[:-1] * to_us).T @ enter[1:]
        mine, others = self.part.links.values[f"M@{other.trial.name}"], other.part.links.values[f"M@{self.trial.name}"]
        mine[0] += going
        mine[1] += coming.T
        others[0] += coming
        others[1] += going.T

    def finish(self, batch: Batch, total: Summary) -> Summary:
        """Statistics that the trial gives its receivers in this batch; those of the atoms are zero."""
        return self.part


def potentials(
    posterior: Posterior, trial: Trial, donors: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Logs that guide the receivers: of the start, from each state, to each state, among them.

    A receiver that is a cluster already has its own.  A new one shares the donors' in proportion to its weight, and
    among new ones those of the trial's beliefs hold.
    """
    own, theirs = posterior.allocation, trial.beliefs.allocation
    ids = trial.beliefs.ids
    known = np.flatnonzero(np.isin(ids, posterior.ids))
    place = posterior.positions(ids[known])
    share = np.log(np.maximum(trial.beliefs.weights / trial.beliefs.weights.sum(), FAINT))
    of_donors = _log_mean(own.log_trans[:, donors], 1, donors)
    log_start = _log_sum(own.log_start[donors]) + share
    log_in = of_donors[:, None] + share
    log_out = np.tile(_log_mean(own.log_trans[donors], 0, donors), (len(ids), 1))
    log_inner = np.array(theirs.log_trans)
    log_start[known] = own.log_start[place]
    log_in[:, known] = own.log_trans[:, place]
    log_out[known] = own.log_trans[place]
    log_inner[np.ix_(known, known)] = own.log_trans[np.ix_(place, place)]
    return log_start, log_in, log_out, log_inner


def _log_sum(values: np.ndarray) -> float:
    return float(np.logaddexp.reduce(values))


def _log_mean(values: np.ndarray, axis: int, donors: np.ndarray) -> np.ndarray:
    """Log of the sum over the donors (into the block), or of their mean (out of it)."""
    total = np.logaddexp.reduce(values, axis=axis)
    return total if axis == 1 else total - np.log(len(donors))
