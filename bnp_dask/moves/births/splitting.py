"""Visits of a batch that also try to split clusters, from the atoms of that batch alone (thesis 4.2.3)."""

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
from bnp_dask.moves.policy import LAP
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
    """Local step on a batch that also tries to split one cluster, using the atoms of this batch alone.

    Of a batch that is new to its run, shares of clusters that fit badly come first, the worst before the others.
    """
    model = posterior.model
    found = model.visit(posterior, batch, pairs, trials, (split.target,), states)
    misfits = _misfits(posterior, found.summary, split)
    if set(misfits) - {split.target}:
        found = model.visit(posterior, batch, pairs, trials, tuple({split.target, *misfits}), states)
    attempts: list[tuple[int, Summary]] = []
    for target in dict.fromkeys((*misfits, split.target)):
        newborn = _newborn(posterior, batch, found, target, split, seed)
        if newborn is None and target in misfits:
            whole = found.summary.without_pairs().take([target])
            newborn = replace(whole, ids=np.array([-1], np.int64))
        if newborn is not None:
            attempts.append((target, newborn))
    found = replace(found, members={}, shares={}, split=split.target)
    if not attempts:
        return found
    (target, newborn), *further = attempts
    return replace(found, split=target, newborn=newborn, further=tuple(further))


def _newborn(posterior: Posterior, batch: Batch, found: Visit, target: int, split: Split, seed: int) -> Summary | None:
    """Statistics of new clusters that take over a batch's share of a target; None when it is better left together."""
    model = posterior.model
    fresh = _fresh(posterior, batch, found, target, split, seed)
    if fresh is None:
        return None
    basis = replace(fresh, ids=-1 - np.arange(fresh.n_clusters))
    if not model.structure.policy.splits_at_batches:
        return basis
    trial = Trial("split", (target,), model.global_step(basis))
    return model.visit(posterior, batch, trials=(trial,)).parts["split"]


def _fresh(posterior: Posterior, batch: Batch, found: Visit, target: int, split: Split, seed: int) -> Summary | None:
    """New clusters of the batch's atoms of a target, or None when they are better left together."""
    model = posterior.model
    rng = child_rng(seed, *split.key)
    atoms = model.gather(batch, found, target, batch.n_atoms, rng)
    mass = model.mass(atoms)
    atoms = model.structure.sample(atoms, split.sample, rng)
    if atoms.n_atoms < split.min_atoms:
        return None
    part = model.structure.part(model, posterior, target)
    return create(part, atoms, mass, (split.fresh, 2), split.refine, seed, (*split.key, 1), policy=split.policy)


def _misfits(posterior: Posterior, summary: Summary, split: Split) -> list[int]:
    """Clusters whose share of a batch fits one of its own better than that cluster, the worst first.

    Its own would have the prior as the only other evidence, so a share that looks like the rest of its cluster loses.
    """
    is_large = np.isin(summary.ids, split.instead) & (summary["N"] >= split.min_atoms)
    if not is_large.any():
        return []
    model, shares = posterior.model, summary.without_pairs()
    held = model.observation.score(posterior.observation, shares)[is_large]
    ids = shares.ids[is_large]
    forecast = model.best_data_terms(shares.take(ids)) - held
    order = np.argsort(-forecast, kind="stable")[: LAP.misfits]
    return [int(ids[i]) for i in order if forecast[i] > 0]
