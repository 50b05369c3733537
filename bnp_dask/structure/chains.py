"""Trials on sequences: the states of some steps assigned differently, beside the normal local step (thesis 6.5).

A chain of receivers takes the place of all steps of a sequence in the donors; see
:mod:`bnp_dask.kernels.hmm`.  The statistics belong to a Markov chain of all states after the trial, so the
objective for the decision is exact.  Counts among receivers are in the fields of the summary, counts between receivers
and all other states in :class:`~bnp_dask.core.summary.Links`, and H is the entropy added by the trial.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bnp_dask.core import Batch, GroupStates, Links, Summary
from bnp_dask.inputs import as_a, require
from bnp_dask.kernels import Block, find_block, log, matmul, merge_losses, share_block
from bnp_dask.observation import Estimate, by_feature, each
from bnp_dask.structure.answers import chain_density, chances_of, draw_path
from bnp_dask.structure.base import OF_CHAINS, Trial, Visit, absorbed_rows
from bnp_dask.structure.protocols import Beliefs, ChainedAllocation, LocalStep, M, WholeModel
from bnp_dask.structure.sequences import sequence_offsets, sequence_weights, shifted
from bnp_dask.structure.visit import RowsStructure, Shares, visit_rows


@dataclass(frozen=True)
class Chains(RowsStructure):
    """Structure of hidden Markov models: atoms are steps of sequences, and each step's state depends on the one before.

    Its allocation has the methods of :class:`~bnp_dask.structure.protocols.ChainedAllocation`.
    """

    policy = OF_CHAINS
    hidden = "the transitions of its states"
    atom = "step"
    is_tied = True
    is_ordered = True
    has_shares = False
    keeps_few = False

    def require(self, allocation: Any) -> None:
        require("allocation", allocation, ChainedAllocation, "HDPHMM()")

    def check(self, model: WholeModel, batch: Batch) -> None:
        model.observation.check(batch)
        sequence_weights(batch, sequence_offsets(batch))

    def effort(self, model: WholeModel, n_atoms: float, n_clusters: int) -> float:
        return np.inf

    def visit(
        self,
        model: WholeModel,
        posterior: Beliefs,
        batch: Batch,
        pairs: np.ndarray,
        trials: Sequence[Trial],
        sought: Sequence[int],
        states: GroupStates | None,
        room: int,
    ) -> Visit:
        places = posterior.positions(pairs).reshape(-1, 2)
        steps = (self.steps if trials or sought else self.sweep)(model, posterior, batch, places)
        return visit_rows(model, posterior, batch, steps, pairs, chain_runs(model, posterior, trials), sought)

    def steps(
        self, model: WholeModel, posterior: Beliefs, batch: Batch, places: np.ndarray
    ) -> Iterator[tuple[Batch, LocalStep]]:
        for tile in model.allocation.tiles(batch, posterior.n_clusters):
            yield tile, self.assign(model, posterior, tile, places)

    def assign(self, model: WholeModel, posterior: Beliefs, tile: Batch, places: np.ndarray) -> LocalStep:
        log_lik = model.observation.expected_log_lik(posterior.observation, tile)
        return as_a(model.allocation, ChainedAllocation).local_step(posterior.allocation, log_lik, tile, places)

    def labels(self, model: WholeModel, posterior: Beliefs, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
        """States of the most probable path of each sequence (Viterbi)."""
        allocation = as_a(model.allocation, ChainedAllocation)
        for tile in model.allocation.tiles(batch, posterior.n_clusters):
            log_lik = model.observation.expected_log_lik(posterior.observation, tile)
            yield tile, allocation.path(posterior.allocation, log_lik, tile)

    def sweep(
        self, model: WholeModel, posterior: Beliefs, batch: Batch, places: np.ndarray
    ) -> Iterator[tuple[Batch, LocalStep]]:
        """Local step in small pieces, not in row order, for sums alone."""
        log_lik = partial(model.observation.expected_log_lik, posterior.observation)
        return as_a(model.allocation, ChainedAllocation).sweep(posterior.allocation, log_lik, batch, places)

    def collect(self, batch: Batch, found: Visit, cluster: int, limit: int, rng: np.random.Generator) -> Batch:
        """Runs of steps with at most ``limit`` steps in all, each a sequence of the returned batch."""
        members = found.members[cluster]
        return take_runs(batch, members[0], members[1], limit, rng)

    def sample(self, atoms: Batch, size: int, rng: np.random.Generator) -> Batch:
        return runs_at_most(atoms, size, rng)

    def alone(self, atoms: Batch) -> Batch:
        return replace(atoms, groups=None)

    def part(self, model: M, posterior: Beliefs, cluster: int | Sequence[int]) -> M:
        return model

    def untied(self, model: M) -> M:
        """Model without chains: a mixture of steps."""
        return model.with_allocation(as_a(model.allocation, ChainedAllocation).untied())

    def untied_summary(self, model: WholeModel, summary: Summary) -> Summary:
        """Counts and statistics of the likelihood; entropies count as zero."""
        empty = self.untied(model).empty_summary(summary.ids)
        return replace(empty, values={**empty.values, **_shared(model, summary)})

    def tied_summary(self, model: WholeModel, summary: Summary, whole: Summary) -> Summary:
        """Statistics with transitions from the whole data if a sample lacks them."""
        if all(name in summary for name in model.allocation.fields):
            return summary
        whole = whole.take(summary.ids)
        return replace(whole, values={**whole.values, **_shared(model, summary)})

    def with_ties(self, model: WholeModel, summary: Summary, atoms: Batch) -> Summary:
        return model.local_step(model.global_step(summary), atoms)

    def absorbed(
        self, model: WholeModel, posterior: Beliefs, value: Summary, own: Batch, others: np.ndarray
    ) -> np.ndarray:
        untied = self.untied(model)
        params = untied.allocation_step(self.untied_summary(model, value.take(others)))
        return absorbed_rows(untied, posterior, params, own, others)

    def log_density(self, model: WholeModel, posterior: Beliefs, batch: Batch) -> np.ndarray:
        return chain_density(model, posterior, batch)

    def counted(self, batch: Batch) -> Batch:
        if batch.weights is not None:
            sequence_weights(batch, sequence_offsets(batch))  # a sequence counts as a whole or not at all
        return batch.counting()

    def shares(self, posterior: Beliefs) -> np.ndarray:
        return chances_of(posterior).start

    def estimates(self, posterior: Beliefs) -> dict[str, Estimate]:
        found = chances_of(posterior)
        matrix = by_feature(found.matrix, posterior.ids.tolist(), "cluster")
        return {"start": each(found.start), "transition": matrix}

    def draw(self, posterior: Beliefs, n: int, length: int | None, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
        return draw_path(posterior, n, length, rng)


def _shared(model: WholeModel, summary: Summary) -> dict[str, np.ndarray]:
    """Statistics common to the model with chains and without."""
    return {name: summary[name] for name in ("N", *model.observation.fields)}


LONGEST = 64
"""Most steps of a run that are drawn together: longer runs are cut, so that a sample comes from many places."""

FAINT = 1e-12
"""Least share of the expected transitions of a receiver in the potentials of a trial."""


def chain_runs(model: WholeModel, posterior: Beliefs, trials: Sequence[Trial]) -> list[ChainRun]:
    """Runs of all trials of a visit; each tile must be shown to them in this order."""
    runs: list[ChainRun] = []
    for trial in trials:
        runs.append(ChainRun(model, posterior, trial, tuple(runs)))
    return runs


class ChainRun:
    """One trial on one batch: sees the tiles of the local step, each of whole sequences.

    Parameters
    ----------
    model, posterior
        The model, and the posterior under which the batch is assigned.
    trial
        The trial.
    before
        Trials of the same visit that see each tile before this one: counts between their receivers and the receivers
        of this trial are stored in both.
    """

    needed = np.zeros(0, np.int64)  # needs no responsibilities: the state of a tile has more

    def __init__(self, model: WholeModel, posterior: Beliefs, trial: Trial, before: tuple[ChainRun, ...] = ()) -> None:
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

    def see(self, start: int, tile: Batch, step: LocalStep, shares: Shares) -> None:
        """Share out the mass of the donors in a tile's steps."""
        assert step.chain is not None
        self._seen = None
        state, donors = step.chain, self.donors
        chains, offsets, weights = state.chains, state.offsets, state.weights
        block = find_block(chains, offsets, weights, donors, state.log_start, state.log_trans, state.log_lik)
        if len(block.steps) == 0:
            return
        concerned = tile if len(block.steps) == tile.n_atoms else tile.take(block.steps)
        params = self.trial.beliefs.observation
        log_lik = self.model.observation.expected_log_lik(params, concerned)
        given = share_block(offsets, weights, block, shifted(log_lik, concerned)[0], *self.potentials)
        rows = state.row_weights[:, None]
        mass = given.mass * rows
        lost = merge_losses(chains, offsets, weights, [donors])[0] if len(donors) > 1 else 0.0
        firsts = offsets[:-1][np.diff(offsets) > 0]
        values = {"M": given.pairs, "start": mass[firsts].sum(axis=0), "H": np.asarray(given.gain[0] - lost)}
        found = self.model.summary_of(self.trial.beliefs.ids, concerned, LocalStep(mass[block.steps], values), params)
        share = mass / np.where(block.mass > 0.0, block.mass, 1.0)[:, None]
        coming = given.first.sum(axis=1, keepdims=True)
        enter = given.first / np.where(coming > 0.0, coming, 1.0)
        links = self.part.links
        assert links is not None
        links.values["M"][0] += matmul(share[block.steps].T, block.leave[:, self.outside])
        links.values["M"][1] += matmul((enter * rows)[block.steps].T, block.enter[:, self.outside])
        self._seen = (block, share, enter)
        for other in self.before:
            self._note(other)
        for name, declared in self.model.fields.items():
            if declared.n_cluster_axes or declared.merge == "floor":  # other fields belong to the atoms
                self.part.values[name][...] += found.values[name]

    def _note(self, other: ChainRun) -> None:
        """Counts between the receivers of two trials in a tile that both have seen."""
        if self._seen is None or other._seen is None or self.part.links is None or other.part.links is None:
            return
        block, share, enter = self._seen
        theirs, their_share, their_enter = other._seen
        to_them, to_us = theirs.entered_from(self.donors)[1:, None], block.entered_from(other.donors)[1:, None]
        going = matmul((share[:-1] * to_them).T, their_enter[1:])
        coming = matmul((their_share[:-1] * to_us).T, enter[1:])
        mine, others = self.part.links.values[f"M@{other.trial.name}"], other.part.links.values[f"M@{self.trial.name}"]
        mine[0] += going
        mine[1] += coming.T
        others[0] += coming
        others[1] += going.T

    def finish(self, batch: Batch, total: Summary) -> Summary:
        """Statistics of the receivers in this batch; statistics of the atoms are zero."""
        return self.part


def potentials(
    posterior: Beliefs, trial: Trial, donors: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Log potentials of the receivers: of the start, from each state, to each state, among them.

    An existing cluster keeps its own.  A new cluster shares the potentials of the donors in proportion to its weight;
    potentials among new clusters come from the trial's posterior.
    """
    own, theirs = posterior.allocation, trial.beliefs.allocation
    ids = trial.beliefs.ids
    known = np.flatnonzero(np.isin(ids, posterior.ids))
    place = posterior.positions(ids[known])
    share = log(np.maximum(trial.beliefs.weights / trial.beliefs.weights.sum(), FAINT))
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
    return total if axis == 1 else total - log(len(donors))


# -- parts of sequences that belong to a state -----------------------------------------------------------------
def take_runs(batch: Batch, rows: np.ndarray, mass: np.ndarray, limit: int, rng: np.random.Generator) -> Batch:
    """Runs of consecutive rows among ``rows (m,)``, ascending, drawn until they have ``limit`` rows.

    Each run is a sequence of the returned batch, weighted by its mean ``mass (m,)``, the share that belongs to it.
    """
    index, offsets = _runs(rows, batch.group_offsets)
    chosen = _draw_runs(offsets, limit, rng)
    return _as_sequences(batch, index, mass, chosen)


def runs_at_most(runs: Batch, size: int, rng: np.random.Generator) -> Batch:
    """Random subset of the sequences, with ``size`` rows; the last one drawn is cut."""
    offsets = runs.group_offsets
    if runs.n_atoms <= size:
        return runs
    weights = np.ones(runs.n_atoms) if runs.weights is None else runs.weights
    return _as_sequences(runs, np.arange(runs.n_atoms), weights, _draw_runs(offsets, size, rng))


def _runs(rows: np.ndarray, sequences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows as integers, and offsets of runs among them, ``(R + 1,)``; long runs are cut."""
    index = np.asarray(rows, np.int64)
    if len(index) == 0:
        return index, np.zeros(1, np.int64)
    begins = np.concatenate([[True], (np.diff(index) != 1) | np.isin(index[1:], sequences)])
    first = np.flatnonzero(begins)
    since = np.arange(len(index)) - np.repeat(first, np.diff(np.append(first, len(index))))
    return index, np.append(np.flatnonzero(since % LONGEST == 0), len(index)).astype(np.int64)


def _draw_runs(offsets: np.ndarray, limit: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """First and one past the last place of some runs with ``limit`` rows in all, in their order; the run drawn last is
    cut."""
    chosen, left = [], limit
    for r in rng.permutation(len(offsets) - 1).tolist():
        first, last = int(offsets[r]), int(offsets[r + 1])
        if last - first > left:
            first += int(rng.integers(last - first - left + 1))
            last = first + left
        if last > first:
            chosen.append((first, last))
            left -= last - first
        if left <= 0:
            break
    return sorted(chosen)


def _as_sequences(batch: Batch, index: np.ndarray, mass: np.ndarray, chosen: list[tuple[int, int]]) -> Batch:
    places = np.concatenate([np.zeros(0, np.int64), *[np.arange(a, b) for a, b in chosen]])
    lengths = np.array([b - a for a, b in chosen], np.int64)
    mean = np.array([mass[a:b].mean() for a, b in chosen])
    groups = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return replace(batch.take(index[places]), weights=np.repeat(mean, lengths), groups=groups)
