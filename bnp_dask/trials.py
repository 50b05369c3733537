"""Trials of a mixture: the atoms of some clusters assigned otherwise, beside the normal local step (thesis 4.2, 4.3).

Only atoms that hold a noticeable share of the clusters concerned are assigned anew.  What the others hold stays where
it is, or goes to one receiver where its cluster vanishes.  That is one assignment among all that there are, so a
trial's statistics are exact for it, and a lap with trials costs little more than one without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bnp_dask.allocation.base import LocalStep
from bnp_dask.batch import Batch
from bnp_dask.kernels.resp import SparseResp, column_sums, pair_entropy, resp_entropy
from bnp_dask.summary import Summary

if TYPE_CHECKING:
    from bnp_dask.model import Model, Posterior, Trial

NOTICEABLE = 1e-3
"""Responsibility of the clusters in focus below which an atom is left alone."""


def try_out(model: Model, posterior: Posterior, trial: Trial, tile: Batch, step: LocalStep, own: Summary) -> Summary:
    """Statistics that a trial gives its receivers in one tile; those of the atoms, not of clusters, are zero.

    Parameters
    ----------
    model, posterior
        The model, and the beliefs that the tile was assigned with.
    trial
        What to try.
    tile, step, own
        Atoms, their assignment and their summary.
    """
    focus = posterior.positions(np.array(trial.focus or trial.donors))
    mass = column_sums(step.resp, focus)
    part = model.empty_summary(trial.beliefs.ids)
    if isinstance(step.resp, SparseResp):  # atoms with few clusters: as many are to be assigned as hold any
        donors = posterior.positions(np.array(trial.donors))
        mass = column_sums(step.resp, donors)
        index = np.flatnonzero(mass)
        return part + _assigned(model, trial, tile.take(index), mass[index]) if len(index) else part
    least = NOTICEABLE if tile.weights is None else NOTICEABLE * tile.weights
    index = np.flatnonzero(mass > least)
    part = part + _left_alone(model, posterior, trial, tile, step, own, index)
    if len(index) == 0:
        return part
    donors = posterior.positions(np.array(trial.donors))
    return part + _assigned(model, trial, tile.take(index), step.resp[np.ix_(index, donors)].sum(axis=1))


def _assigned(model: Model, trial: Trial, atoms: Batch, mass: np.ndarray) -> Summary:
    """Statistics of atoms whose ``mass (n,)`` is shared out among the receivers."""
    log_lik = model.observation.expected_log_lik(trial.beliefs.observation, atoms)
    step = model.allocation.reassign(trial.beliefs.allocation, log_lik, atoms, mass)
    return clusters_only(model, model.summary_of(trial.beliefs.ids, atoms, step))


def _left_alone(
    model: Model, posterior: Posterior, trial: Trial, tile: Batch, step: LocalStep, own: Summary, index: np.ndarray
) -> Summary:
    """What the donors hold of all atoms but those at ``index``, given to the receivers."""
    resp = np.asarray(step.resp)
    stay = own.take(trial.donors).without_pairs()
    donors = posterior.positions(np.array(trial.donors))
    if len(index):
        inside = np.ascontiguousarray(resp[np.ix_(index, donors)])
        atoms = tile.take(index)
        entropy = {"H": resp_entropy(inside, atoms.weights)}
        stay = stay - model.summary_of(stay.ids, atoms, LocalStep(inside, entropy))
    heir = int(trial.beliefs.ids[0]) if trial.rest is None else trial.rest
    for i in trial.donors:
        if i in trial.beliefs.ids:
            continue  # it goes on to live
        if heir in stay.ids:
            columns = resp[:, posterior.positions(np.array([i, heir]))]
            stay = _united(stay, columns, tile.weights, index, i, heir)
        else:
            names = [heir if j == i else int(j) for j in stay.ids]
            stay = Summary(np.array(names, np.int64), stay.fields, stay.values)
    missing = [int(i) for i in trial.beliefs.ids if i not in stay.ids]
    return clusters_only(model, stay.insert_empty(missing).take(trial.beliefs.ids))


def _united(
    stay: Summary, columns: np.ndarray, weights: np.ndarray | None, index: np.ndarray, gone: int, heir: int
) -> Summary:
    """Cluster ``heir`` takes over what ``gone`` holds of the atoms that are not at ``index``; ``columns (n, 2)``."""
    share = columns.copy()
    share[index] = 0.0
    if weights is not None:
        share /= np.where(weights > 0.0, weights, 1.0)[:, None]
    tracked = stay.with_pairs(np.array([[heir, gone]]))
    tracked.pair_values["H"][:] = pair_entropy(share, weights, np.array([[0, 1]]))
    return tracked.merge(heir, gone).without_pairs()


def clusters_only(model: Model, part: Summary) -> Summary:
    """Without what belongs to the atoms: the batch's own summary has that already."""
    for name, declared in model.fields.items():
        if declared.n_cluster_axes == 0:
            part.values[name][...] = 0.0
    return part
