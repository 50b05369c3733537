"""Births from the atoms of clusters in new batches: choice of the clusters, and small runs on these atoms."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.initialize.base import child_rng, summarize_assigned
from bnp_dask.model import Model
from bnp_dask.moves.base import PlanContext, Split
from bnp_dask.moves.births.move import Birth
from bnp_dask.moves.births.small_run import create
from bnp_dask.moves.lap_policy import LAP
from bnp_dask.moves.random_keys import SPLIT_BY_NEW


def splits_by(
    birth: Birth, context: PlanContext, shares: Summary, refused: Collection[int], number: int
) -> list[Split]:
    """Splits of clusters to try by their ``shares`` in new batches, the most promising first.

    Clusters in ``refused`` are left out.  ``number`` is the number of the round, from 0.
    """
    targets = [i for i in misfits(context.model, context.value, shares, birth.min_atoms) if i not in refused]
    settings = (birth.fresh, birth.refine, birth.sample, birth.min_atoms)
    return [
        Split(target, *settings, (context.lap, SPLIT_BY_NEW, target, number), policy=birth.policy.small_run)
        for target in targets[: LAP.misfits]
    ]


def misfits(model: Model, value: Summary, shares: Summary, least: float) -> list[int]:
    """Clusters that are better split in two, their ``shares`` in new batches and the rest; the worst fit first.

    The difference between the data terms of both parts and the data term of the whole is the log of a Bayes factor.
    Parameters cannot show the misfit: they were estimated with these atoms.  Either part has at least ``least`` atoms.
    """
    value = value.take(shares.ids.tolist())
    ids = shares.ids[np.minimum(shares["N"], value["N"] - shares["N"]) >= least].tolist()
    if not ids:
        return []
    whole, own = value.take(ids), shares.take(ids)
    gains = model.best_data_terms(own) + model.best_data_terms(whole - own) - model.best_data_terms(whole)
    order = np.argsort(-gains, kind="stable")
    return [int(ids[i]) for i in order if gains[i] > 0]


def newborn_of(model: Model, atoms: Batch, mass: float, split: Split, seed: int) -> Summary | None:
    """Task: new clusters of a target's atoms in new batches, or one cluster of all of them; None if they are too few.

    The statistics are scaled to the ``mass`` of these atoms.
    """
    sample = model.structure.sample(atoms, split.sample, child_rng(seed, *split.key))
    if sample.n_atoms < split.min_atoms:
        return None
    found = create(model, sample, mass, (split.fresh, 2), split.refine, seed, (*split.key, 1), policy=split.policy)
    if found is None:
        found = summarize_assigned(model, sample, np.zeros(sample.n_atoms, np.int64), 1)
        found = found.scale(mass / float(found["N"].sum()))
    return replace(found, ids=-1 - np.arange(found.n_clusters))
