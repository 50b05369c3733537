"""Visit of a batch whose atoms are rows: tiles -> responsibilities -> a summary, with trials beside it.

A trial assigns the atoms of some clusters differently, beside the normal local step (thesis 4.2, 4.3).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from bnp_dask.core import Batch, Summary, add_in_place
from bnp_dask.kernels import Resp, SparseResp, cluster_sums, columns_of
from bnp_dask.observation import CompletingObservation, lacks_any
from bnp_dask.structure.answers import Columns, label_rows, mixture_density, resp_of_rows
from bnp_dask.structure.assignments import Collector
from bnp_dask.structure.base import NO_PLACES, Structure, Trial, Visit, at_most, most_probable
from bnp_dask.structure.linked import entropy_of, reassigned, uncut, units_in, whole_groups
from bnp_dask.structure.protocols import Beliefs, LocalStep, M, WholeModel, linear_sums

# -- trials -------------------------------------------------------------------------------------------------------
# Only atoms with a noticeable share in the clusters concerned are reassigned.  Shares of other atoms stay in place, or
# go to one receiver if their cluster vanishes.  This is a valid assignment, for which a trial's statistics are exact,
# and a lap with trials costs little more than one without.
NOTICEABLE = 1e-3
"""Responsibility of the clusters in focus below which an atom is not reassigned."""

ROWS = 8192
"""Atoms reassigned at a time."""


class Shares:
    """Responsibilities of the atoms of a tile for some clusters, looked up once for all trials.

    Parameters
    ----------
    resp
        Responsibilities of the tile.
    needed
        Positions of the clusters that will be looked up, ascending ``(J,)``.
    """

    def __init__(self, resp: Resp, needed: np.ndarray) -> None:
        self.needed = needed
        self.table = columns_of(resp, needed) if len(needed) else np.zeros((0, 0))

    def of(self, positions: np.ndarray) -> np.ndarray:
        """Shares of the clusters at some positions, ``(n, M)``."""
        return self.table[:, np.searchsorted(self.needed, positions)]


class TrialRun:
    """Trial on one batch: sees the tiles of the local step, then reassigns the atoms concerned.

    Parameters
    ----------
    model, posterior
        The model, and the posterior under which the batch is assigned.
    trial
        The trial.
    """

    def __init__(self, model: WholeModel, posterior: Beliefs, trial: Trial) -> None:
        self.model, self.posterior, self.trial = model, posterior, trial
        self.receivers = trial.beliefs.ids
        self.rest = int(self.receivers[0]) if trial.rest is None else trial.rest
        self.donors = posterior.positions(np.array(trial.donors))
        self.focus = posterior.positions(np.array(trial.focus or trial.donors))
        # vanishing donors form a union with the receiver of their rest; its entropy is not the sum of their entropies
        gone = [i for i in trial.donors if i not in self.receivers]
        self.union = gone + [self.rest] if self.rest in trial.donors else gone
        self.columns = posterior.positions(np.array(self.union, np.int64))
        self.needed = np.unique(np.concatenate([self.donors, self.focus, self.columns]))
        self.union_entropy = 0.0
        self.rows: list[np.ndarray] = []
        self.held: list[np.ndarray] = []
        self.all_of_them = False

    def see(self, start: int, tile: Batch, step: LocalStep, shares: Shares) -> None:
        """Note the atoms concerned in a tile, whose first row is ``start`` in the batch, and the donors' mass there."""
        if isinstance(step.resp, SparseResp):  # atoms with few clusters: every atom with any mass in a donor
            self.all_of_them = True
            mass = shares.of(self.donors).sum(axis=1)
            index = whole_groups(np.flatnonzero(mass), tile)
            self.held.append(mass[index, None])
        else:
            mass = shares.of(self.focus).sum(axis=1)
            noticed = mass > (NOTICEABLE if tile.weights is None else NOTICEABLE * tile.weights)
            index = whole_groups(np.flatnonzero(noticed), tile)
            self.held.append(shares.of(self.donors)[index])
            if len(self.union) > 1:
                self.union_entropy += _union_entropy(shares.of(self.columns), tile, index)
        self.rows.append(start + index)

    def finish(self, batch: Batch, total: Summary) -> Summary:
        """Statistics of the receivers; statistics of atoms rather than clusters are zero.

        ``total`` is the batch's own summary.
        """
        part = self.model.empty_summary(self.receivers)
        inside = self.model.empty_summary(np.array(self.trial.donors, np.int64))
        for atoms, held in self._pieces(batch):
            new, old = self._assign(atoms, held)
            part, inside = part + new, inside + old
        return part if self.all_of_them else part + self._left_alone(total, inside)

    def _pieces(self, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
        if not self.rows:
            return
        rows, held = np.concatenate(self.rows), np.concatenate(self.held)
        cuts = np.append(np.arange(0, len(rows), ROWS), len(rows))
        if batch.links is not None:
            cuts = cuts[uncut(batch.links[rows])[cuts]]
        for start, stop in itertools.pairwise(cuts):
            yield batch.take(rows[start:stop]), held[start:stop]

    def _assign(self, atoms: Batch, held: np.ndarray) -> tuple[Summary, Summary]:
        """Statistics of the receivers, and former ones of the donors, for atoms with donor mass ``held (n, J)``."""
        beliefs = self.trial.beliefs
        log_lik = self.model.observation.expected_log_lik(beliefs.observation, atoms)
        allocation = self.model.allocation
        step = reassigned(allocation, beliefs.allocation, log_lik, atoms, held.sum(axis=1))
        donors = np.array(self.trial.donors, np.int64)
        if self.all_of_them:
            new = self.model.summary_of(beliefs.ids, atoms, step, beliefs.observation)
            return clusters_only(new), self.model.empty_summary(donors)
        if isinstance(self.model.observation, CompletingObservation) and lacks_any(atoms):
            return self._assign_by_beliefs(atoms, held, step)
        # both at once: reading the atoms costs more than a few more clusters
        resp = np.concatenate([np.asarray(step.resp), held], axis=1)
        entropy = np.concatenate([step.values["H"], entropy_of(held, atoms)])
        both = LocalStep(resp, {**linear_sums(allocation, atoms, resp), "H": entropy})
        names = np.concatenate([beliefs.ids, beliefs.ids.max() + 1 + np.arange(len(donors))])
        whole = clusters_only(self.model.summary_of(names, atoms, both, None))
        old = whole.take(names[len(beliefs.ids) :])
        return whole.take(beliefs.ids), Summary(donors, old.fields, old.values)

    def _assign_by_beliefs(self, atoms: Batch, held: np.ndarray, step: LocalStep) -> tuple[Summary, Summary]:
        """As :meth:`_assign`, if statistics depend on the parameters of the clusters of the atoms."""
        beliefs, posterior = self.trial.beliefs, self.posterior
        new = clusters_only(self.model.summary_of(beliefs.ids, atoms, step, beliefs.observation))
        before = np.zeros((len(held), posterior.n_clusters))
        before[:, self.donors] = held
        entropy = np.zeros(posterior.n_clusters)
        entropy[self.donors] = entropy_of(held, atoms)
        values = {**linear_sums(self.model.allocation, atoms, before), "H": entropy}
        old = self.model.summary_of(posterior.ids, atoms, LocalStep(before, values), posterior.observation)
        return new, clusters_only(old).take(np.array(self.trial.donors, np.int64))

    def _left_alone(self, total: Summary, inside: Summary) -> Summary:
        """Statistics of the donors' mass in all other atoms, given to receivers: vanishing donors leave it to one."""
        part = self.model.empty_summary(self.receivers)
        own = total.positions(np.array(self.trial.donors, np.int64))
        goes = [self.rest if i in self.union else i for i in self.trial.donors]
        place = part.positions(np.array(goes, np.int64))
        for name, value in part.values.items():
            if part.fields[name].n_cluster_axes:
                np.add.at(value, place, total.values[name][own] - inside.values[name])
        if len(self.union) > 1:
            part.values["H"][part.position(self.rest)] = self.union_entropy
        return part


def _union_entropy(columns: np.ndarray, tile: Batch, index: np.ndarray) -> float:
    """Entropy of the union of some clusters over all atoms not at ``index``; ``columns (n, J)`` are weighted."""
    mass = columns.sum(axis=1, keepdims=True)
    mass[index] = 0.0
    return float(entropy_of(mass, tile)[0])


def clusters_only(part: Summary) -> Summary:
    """Summary without statistics of the atoms, which the batch's own summary has already."""
    values = {
        name: value if part.fields[name].n_cluster_axes else np.zeros_like(value) for name, value in part.values.items()
    }
    return Summary(part.ids, part.fields, values)


# -- the visit ----------------------------------------------------------------------------------------------------
MOSTLY = 0.1
"""Responsibility above which an atom is taken to belong to a cluster (Hughes & Sudderth 2013, supplement, eq. 23)."""


class Run(Protocol):
    """Trial on one batch: it sees each tile beside the local step."""

    trial: Trial
    needed: np.ndarray
    """Positions of the clusters whose responsibilities the trial looks up, ``(J,)``."""

    def see(self, start: int, tile: Batch, step: LocalStep, shares: Shares) -> None:
        """Process a tile whose first row is ``start`` in the batch; tiles come in order."""
        ...

    def finish(self, batch: Batch, total: Summary) -> Summary:
        """Statistics of the receivers, given the batch's own summary; statistics of the atoms are zero."""
        ...


def visit_rows(
    model: WholeModel,
    posterior: Beliefs,
    batch: Batch,
    steps: Iterable[tuple[Batch, LocalStep]],
    pairs: np.ndarray,
    runs: Sequence[Run],
    sought: Sequence[int],
    room: int = 0,
) -> Visit:
    """Sum the local steps of all tiles of a batch, show them to trials, and note the atoms of requested clusters.

    Parameters
    ----------
    model, posterior
        The model, and the posterior under which the batch is assigned.
    batch
        The atoms.
    steps
        Its tiles with their local steps; in row order if there are trials or requested clusters.
    pairs
        Ids whose union is tracked, ``(M, 2)``.
    runs
        Trials.
    sought
        Ids of the requested clusters, whose rows are noted.
    room
        Bytes below which responsibilities are kept, which needs tiles in row order; 0 to keep none.
    """
    total = model.empty_summary(posterior.ids, pairs)
    members: dict[int, list[np.ndarray]] = {int(i): [] for i in sought}
    is_watched = bool(members or runs)
    places_sought = posterior.positions(np.array(list(members), np.int64)) if is_watched else np.zeros(0, np.int64)
    needed = np.unique(np.concatenate([places_sought, *(run.needed for run in runs)])) if is_watched else places_sought
    start, collector = 0, Collector(len(posterior.ids), room)
    for tile, step in steps:
        collector.see(step.resp)
        own = model.summary_of(posterior.ids, tile, step, posterior.observation, pairs)
        if tile.n_atoms == batch.n_atoms:  # no copy: of thousands of clusters these are hundreds of megabytes
            pair_values = own.pair_values if own.n_pairs else total.pair_values
            total = replace(total, values={**total.values, **own.values}, pair_values=pair_values)
        else:
            add_in_place(total, own)
        if not is_watched:
            continue
        shares = Shares(step.resp, needed)
        for run in runs:
            run.see(start, tile, step, shares)
        least = MOSTLY * (1.0 if tile.weights is None else tile.weights)
        for rows, mass in zip(members.values(), shares.of(places_sought).T, strict=True):
            here = np.flatnonzero(mass > least)
            rows.append(np.stack([start + here, mass[here]]))
        start += tile.n_atoms
    found = {cluster: np.concatenate([np.zeros((2, 0)), *rows], axis=1) for cluster, rows in members.items()}
    parts = {run.trial.name: run.finish(batch, total) for run in runs}
    return Visit(total, parts, members=found, assignments=collector.assignments())


def summarize_rows(model: WholeModel, ids: np.ndarray, batch: Batch, resp: Resp) -> Summary:
    """Summary of atoms that are rows, with given responsibilities (times weights); their entropy counts as zero."""
    empty = model.empty_summary(ids)
    own = linear_sums(model.allocation, batch, resp)
    values = {
        **empty.values,
        "N": cluster_sums(resp),
        **units_in(model, batch, resp),
        **own,
        **model.observation.summarize(batch, resp),
    }
    return replace(empty, values=values)


class RowsStructure:
    """Answers of structures in which each row of a batch is an atom with responsibilities of its own."""

    def require_fitting(self, model: WholeModel) -> None:
        """Accept every likelihood."""

    def check(self, model: WholeModel, batch: Batch) -> None:
        model.observation.check(batch)

    def keeps_states(self, model: WholeModel) -> bool:
        return False

    def screens(self, model: WholeModel) -> bool:
        return False

    def takes_words(self, model: WholeModel) -> bool:
        return False

    def mass(self, batch: Batch) -> float:
        return batch.total_weight

    def weight(self, summary: Summary, is_sparse: bool) -> float:
        return float(summary["N"].sum())

    def summarize(self, model: WholeModel, ids: np.ndarray, batch: Batch, resp: Resp) -> Summary:
        return summarize_rows(model, ids, batch, resp)

    def n_shares(self, model: WholeModel, n_clusters: int) -> int:
        return n_clusters

    def predict(self: Structure, posterior: Beliefs, batch: Batch, soft: bool, top: int | None) -> Columns:
        return label_rows(self, posterior, batch, soft, top)

    def resp(self: Structure, posterior: Beliefs, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
        self.check(posterior.model, batch)
        return resp_of_rows(self, posterior, batch)


class UnorderedAtoms:
    """Answers of structures in which no atom, or no group of atoms, stands after another."""

    def labels(
        self: Structure, model: WholeModel, posterior: Beliefs, batch: Batch
    ) -> Iterator[tuple[Batch, np.ndarray]]:
        return most_probable(self.steps(model, posterior, batch, NO_PLACES))

    def sample(self, atoms: Batch, size: int, rng: np.random.Generator) -> Batch:
        return at_most(atoms, size, rng)

    def alone(self, atoms: Batch) -> Batch:
        return atoms

    def untied(self, model: M) -> M:
        return model

    def untied_summary(self, model: WholeModel, summary: Summary) -> Summary:
        return summary

    def tied_summary(self, model: WholeModel, summary: Summary, whole: Summary) -> Summary:
        return summary

    def log_density(self, model: WholeModel, posterior: Beliefs, batch: Batch) -> np.ndarray:
        return mixture_density(model, posterior, batch)
