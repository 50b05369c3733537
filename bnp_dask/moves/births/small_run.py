"""Small runs of births: new clusters from a sample of one cluster's atoms, judged for all of its atoms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.finite import unless_refused
from bnp_dask.core.summary import Summary
from bnp_dask.initialize.anchors import AnchorWords
from bnp_dask.initialize.base import child_rng, summarize_assigned
from bnp_dask.initialize.kmeans import cluster_atoms
from bnp_dask.model import Model
from bnp_dask.moves.births.forecast import Forecast
from bnp_dask.moves.births.hmm_runs import run_labels
from bnp_dask.moves.pairs import all_pairs
from bnp_dask.moves.policy import SmallRunPolicy
from bnp_dask.observation.base import numbers_per_cluster
from bnp_dask.structure.base import at_most

WORDS = 0
"""Stands in for a width: the number of topics found by anchor words."""

RUNS = 1
"""Stands in for a width: the number of states found from runs of consecutive steps (hidden Markov models)."""


def create(
    model: Model,
    atoms: Batch,
    mass: float,
    widths: Sequence[int],
    refine: int,
    seed: int,
    key: tuple[int, ...],
    few: int | None = None,
    policy: SmallRunPolicy | None = None,
) -> Summary | None:
    """Task: new clusters for a sample of one cluster's atoms, or None if they are better left together.

    For each number of clusters in ``widths``: Bregman k-means++, then full-batch steps on the sample, then uniting
    newborn clusters while that raises the objective expected for all of the target.  The best result must beat one
    cluster.  Anchor words are found in all ``atoms``; all other steps use ``few`` of them.  The statistics returned are
    scaled to the target's ``mass``.
    """
    every = atoms
    if WORDS in widths and few is not None:
        atoms = at_most(atoms, few, child_rng(seed, *key, 2))
    model = replace(model, precision="double")  # parts of one cluster overlap: screening would be an extra cost
    forecast = Forecast(model, mass / model.mass(atoms), policy or SmallRunPolicy())
    together = summarize_assigned(model, atoms, np.zeros(atoms.n_atoms, np.int64), 1)
    together = model.structure.with_ties(model, together, atoms)
    best, most = None, forecast.value(together)
    if WORDS in widths:
        rng = child_rng(seed, *key, WORDS)
        summary = unless_refused(_from_words, forecast, every, atoms, rng, otherwise=None)
        if summary is not None and forecast.value(summary) > most:
            best, most = summary, forecast.value(summary)
    runs = (RUNS,) if model.structure.policy.has_windows else ()
    for width in dict.fromkeys((*runs, *(w for w in widths if w not in (RUNS, WORDS)))):
        rng = child_rng(seed, *key, width)
        summary = unless_refused(_small_run, forecast, atoms, width, refine, rng, otherwise=None)
        if summary is not None and forecast.value(summary) > most:
            best, most = summary, forecast.value(summary)
    if best is None:
        return None
    order = np.argsort(-best["N"], kind="stable")
    return best.take(best.ids[order].tolist()).scale(mass / max(float(best["N"].sum()), 1e-300))


def _small_run(forecast: Forecast, atoms: Batch, width: int, refine: int, rng: np.random.Generator) -> Summary | None:
    """Statistics of at most ``width`` clusters of the atoms, or None if they become one."""
    model, policy = forecast.model, forecast.policy
    if width == RUNS:
        labels, found = run_labels(model.structure.untied(model), atoms, rng, policy)
        return None if found < 2 else _settled(forecast, atoms, summarize_assigned(model, atoms, labels, found), refine)
    each = policy.seed_atoms if atoms.is_sparse else seed_atoms(model, policy)
    few = at_most(model.structure.alone(atoms), each * width, rng)
    labels, found = cluster_atoms(model, few, width, rng, 1, policy.seed_laps)
    if found < 2:
        return None
    return _settled(forecast, atoms, summarize_assigned(model, few, labels, found), refine)


def seed_atoms(model: Model, policy: SmallRunPolicy) -> int:
    """Number of dense atoms for each new cluster among which k-means++ chooses.

    It needs a likelihood of every single atom, which for full covariances costs more than all other steps.
    """
    return max(policy.seed_atoms, numbers_per_cluster(model.observation) // policy.seed_numbers)


def _settled(forecast: Forecast, atoms: Batch, summary: Summary, refine: int) -> Summary | None:
    """Statistics after local steps on the atoms, of fewer clusters if that is better; None if one is left."""
    model, policy = forecast.model, forecast.policy
    last = -np.inf
    for _ in range(refine):  # apart first: uniting clusters that are still alike would undo the split
        posterior = model.global_step(summary)
        summary = model.local_step(posterior, atoms)
        value = sum(model.elbo(posterior, summary).values())
        summary = without_empty(summary, policy.least_share)
        if value - last < policy.settled * atoms.total_weight:
            break
        last = value
    for _ in range(policy.rounds):
        before = summary.n_clusters
        summary = forecast.unite(model.local_step(model.global_step(summary), atoms, all_pairs(summary.ids)))
        summary = without_empty(summary.without_pairs(), policy.least_share)
        if summary.n_clusters in (1, before):
            break
    summary = forecast.thin_out(model.local_step(model.global_step(summary), atoms), atoms)
    return summary if summary.n_clusters > 1 else None


def _from_words(forecast: Forecast, every: Batch, atoms: Batch, rng: np.random.Generator) -> Summary | None:
    """Statistics on ``atoms`` of the topics found by anchor words of ``every`` document, or None if there is one."""
    model, policy = forecast.model, forecast.policy
    summary = AnchorWords(policy.most_topics).of_batch(model, every, int(rng.integers(2**31)))
    least = (
        policy.least_share * atoms.n_atoms / every.n_atoms
    )  # anchors come from the larger sample, and so do accidents
    for _ in range(policy.steps_without):
        if summary.n_clusters < 2:
            return None
        summary = without_empty(model.local_step(model.global_step(summary), atoms), least)
    return summary if summary.n_clusters > 1 else None


def without_empty(summary: Summary, share: float) -> Summary:
    """Summary without clusters of less than one atom, or less than ``share`` of all atoms; the largest always stays."""
    least = min(max(1.0, share * float(summary["N"].sum())), float(summary["N"].max()))
    return summary.take([int(i) for i, n in zip(summary.ids, summary["N"], strict=True) if n >= least])
