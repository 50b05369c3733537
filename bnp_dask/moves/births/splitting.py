"""Visits of a batch that also try to split a cluster, from the atoms of that batch alone (thesis 4.2.3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.group_states import GroupStates
from bnp_dask.core.summary import Summary
from bnp_dask.initialize.base import child_rng
from bnp_dask.model import Posterior
from bnp_dask.moves.base import Split
from bnp_dask.moves.births.small_run import create
from bnp_dask.structure.base import Trial, Visit


def visit_and_split(
    posterior: Posterior,
    batch: Batch,
    pairs: np.ndarray,
    trials: tuple[Trial, ...],
    split: Split,
    seed: int,
    states: GroupStates | None = None,
) -> Visit:
    """Local step on a batch that also tries to split one cluster, using the atoms of this batch alone."""
    model = posterior.model
    found = model.visit(posterior, batch, pairs, trials, (split.target,), states)
    newborn = _newborn(posterior, batch, found, split, seed)
    return replace(found, members={}, shares={}, split=split.target, newborn=newborn)


def _newborn(posterior: Posterior, batch: Batch, found: Visit, split: Split, seed: int) -> Summary | None:
    """Statistics of new clusters that take over a batch's share of a target; None if it is better left together."""
    model = posterior.model
    fresh = _fresh(posterior, batch, found, split, seed)
    if fresh is None:
        return None
    basis = replace(fresh, ids=-1 - np.arange(fresh.n_clusters))
    if not model.structure.policy.splits_at_batches:
        return basis
    trial = Trial("split", (split.target,), model.global_step(basis))
    return model.visit(posterior, batch, trials=(trial,)).parts["split"]


def _fresh(posterior: Posterior, batch: Batch, found: Visit, split: Split, seed: int) -> Summary | None:
    """New clusters of the batch's atoms of a target, or None if they are better left together."""
    model = posterior.model
    rng = child_rng(seed, *split.key)
    atoms = model.gather(batch, found, split.target, batch.n_atoms, rng)
    mass = model.mass(atoms)
    atoms = model.structure.sample(atoms, split.sample, rng)
    if atoms.n_atoms < split.min_atoms:
        return None
    part = model.structure.part(model, posterior, split.target)
    return create(part, atoms, mass, (split.fresh, 2), split.refine, seed, (*split.key, 1), policy=split.policy)
