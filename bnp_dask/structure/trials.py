"""Trials of a mixture: the atoms of some clusters assigned differently, beside the normal local step (thesis 4.2, 4.3).

Only atoms with a noticeable share in the clusters concerned are reassigned.  Shares of other atoms stay in place, or go
to one receiver if their cluster vanishes.  This is a valid assignment, for which a trial's statistics are exact, and a
lap with trials costs little more than one without.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.kernels.mixture.resp import Resp, SparseResp, columns_of
from bnp_dask.observation.missing.entries import CompletingObservation, lacks_any
from bnp_dask.structure.asking import Beliefs, WholeModel
from bnp_dask.structure.base import Trial
from bnp_dask.structure.linked import entropy_of, reassigned, uncut, whole_groups
from bnp_dask.structure.steps import LocalStep
from bnp_dask.structure.verbs import linear_sums

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
