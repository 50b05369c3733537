"""Birth moves: a cluster is replaced by several new ones (thesis 4.2; supplement of Hughes & Sudderth 2013, sec. 2).

Collect, create, adopt: atoms of the target are collected from a few batches, new clusters are created by a small run
on them, and during one lap all atoms of the target are shared out among the new clusters, beside the normal local
step.  The exact whole-data objective then decides.  Many targets are tried in one lap, each by a task of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bnp_dask.batch import Batch, concatenate
from bnp_dask.data.base import Reader
from bnp_dask.errors import SettingError
from bnp_dask.execute.ordered import in_order
from bnp_dask.initialize.context import child_rng, summarize_assigned
from bnp_dask.initialize.divergence import numbers_per_cluster
from bnp_dask.initialize.kmeans import cluster_atoms
from bnp_dask.kernels.resp import column_sums
from bnp_dask.model import NO_PAIRS, Model, Posterior, Trial, Visit
from bnp_dask.moves.base import PlanContext, Proposal, Split
from bnp_dask.moves.scores import all_pairs, data_gains
from bnp_dask.summary import Exchange, Summary

THRESHOLD = 0.1
"""Responsibility above which an atom is taken to belong to a target (eq. 23 of the supplement)."""


@dataclass(frozen=True)
class Birth:
    """Propose to split clusters.

    Parameters
    ----------
    per_lap
        Targets per lap.
    fresh
        New clusters tried for each target at most.
    sample
        Atoms collected for each target at most.
    share
        Share of the batches read to collect them, in one lap.
    min_atoms
        Clusters with fewer atoms are not split.
    change
        A cluster that could not be split is tried again when its count has changed by this share.
    refine
        Local and global steps of the small run on the collected atoms.
    where
        ``"data"``: collect atoms from several batches, adopt in all of them, decide once per lap.  ``"batch"``
        (thesis 4.2.3): each of some batches splits a target using its own atoms only and the decision falls when
        it is folded; other batches follow on their next visit.  Needs batches large enough to show a cluster.
    """

    per_lap: int = 8
    fresh: int = 8
    sample: int = 2500
    share: float = 0.15
    min_atoms: float = 20.0
    change: float = 0.1
    refine: int = 12
    where: Literal["data", "batch"] = "data"
    kind = "birth"

    def __post_init__(self) -> None:
        if min(self.per_lap, self.sample, self.refine) < 1 or self.fresh < 2 or not 0 < self.share <= 1:
            raise SettingError(f"{self}: needs per_lap, sample, refine >= 1, fresh >= 2 and 0 < share <= 1")
        if self.where not in ("data", "batch"):
            raise SettingError(f'where={self.where!r}: needs "data" or "batch"')

    @property
    def at_batch(self) -> bool:
        return self.where == "batch"

    def plan(self, context: PlanContext) -> None:
        targets = self._targets(context)
        if not targets:
            return
        if self.where == "batch":
            self._plan_splits(context, targets)
        else:
            self._plan_trials(context, targets)

    def _plan_splits(self, context: PlanContext, targets: list[int]) -> None:
        for i, b in enumerate(self._batches(context)):
            target = targets[i % len(targets)]
            key = (context.lap, 17, int(b))
            context.splits[int(b)] = Split(target, self.fresh, self.refine, self.sample, self.min_atoms, key)
        context.free -= {split.target for split in context.splits.values()}

    def _batches(self, context: PlanContext) -> np.ndarray:
        """Batches to look into in this lap, drawn at random."""
        n_batches = context.source.n_batches
        order = context.rng(1).permutation(n_batches)
        return order[: max(1, round(self.share * n_batches))]

    def _plan_trials(self, context: PlanContext, targets: list[int]) -> None:
        samples = self._collect(context, targets)
        settings = (self.fresh, self.refine)
        tasks = []
        for target in targets:
            if samples[target].n_atoms < self.min_atoms:
                continue
            key = (context.lap, 11, target)
            args = (context.model, samples[target], context.count(target), settings, context.seed, key)
            tasks.append((f"create-lap{context.lap}-cluster{target}", create, args))
        tried = [t for t in targets if samples[t].n_atoms >= self.min_atoms]
        results = in_order(context.executor, tasks, 2 * context.executor.n_workers)
        for target, found in zip(tried, results, strict=True):
            if found is None:
                context.give_up(self.kind, (target,), "no split of the collected atoms is better than none")
                continue
            self._propose(context, target, found)

    def _propose(self, context: PlanContext, target: int, found: Summary) -> None:
        ids = context.memory.new_ids(found.n_clusters)
        basis = Summary(np.array(ids, np.int64), found.fields, found.values)
        name = f"birth-lap{context.lap}-cluster{target}"
        context.trials.append(Trial(name, (target,), context.model.global_step(basis)))
        context.proposals.append(Proposal(self.kind, (target,), ids, Exchange(name, (target,))))
        context.free.discard(target)

    def _targets(self, context: PlanContext) -> list[int]:
        """Clusters to split: large enough, not known to fail; those that fit their atoms worst first (4.2.4)."""
        score = context.model.data_terms(context.posterior.observation, context.value)
        ids, counts = context.value.ids, context.value["N"]
        eligible = [
            (score[k] / counts[k], int(i))
            for k, i in enumerate(ids)
            if int(i) in context.free
            and counts[k] >= self.min_atoms
            and not context.memory.failed(self.kind, (int(i),), [counts[k]], self.change)
        ]
        return [i for _, i in sorted(eligible)[: self.per_lap]]

    def _collect(self, context: PlanContext, targets: list[int]) -> dict[int, Batch]:
        """Atoms of each target, from batches drawn at random."""
        chosen = self._batches(context)
        limit = -(-self.sample // len(chosen))
        posterior = context.executor.share(f"collect-posterior-lap{context.lap}", context.posterior.light())
        places = context.posterior.positions(np.array(targets))
        tasks = [
            (
                f"collect-lap{context.lap}-batch{b}",
                collect,
                (posterior, context.source.reader(int(b)), places, limit, context.seed, (context.lap, 13, int(b))),
            )
            for b in chosen
        ]
        found = list(in_order(context.executor, tasks, 2 * context.executor.n_workers))
        return {target: concatenate([batches[i] for batches in found]) for i, target in enumerate(targets)}


def collect(
    posterior: Posterior, reader: Reader, places: np.ndarray, limit: int, seed: int, key: tuple[int, ...]
) -> list[Batch]:
    """Task: for each target position up to ``limit`` atoms of one batch that mostly belong to it."""
    return targeted_atoms(posterior, reader(), places, limit, child_rng(seed, *key))


def targeted_atoms(
    posterior: Posterior, batch: Batch, places: np.ndarray, limit: int, rng: np.random.Generator
) -> list[Batch]:
    """For each target position up to ``limit`` atoms of a batch that mostly belong to it."""
    chosen: list[list[np.ndarray]] = [[np.zeros(0, np.int64)] for _ in places]
    start = 0
    for tile in posterior.model.allocation.tiles(batch, posterior.n_clusters):
        resp = posterior.model.assign(posterior, tile).resp
        weights = np.ones(tile.n_atoms) if tile.weights is None else tile.weights
        for i, place in enumerate(places):
            mass = column_sums(resp, np.array([place]))
            chosen[i].append(start + np.flatnonzero(mass > THRESHOLD * weights))
        start += tile.n_atoms
    out = []
    for parts in chosen:
        index = np.concatenate(parts)
        if len(index) > limit:
            index = np.sort(rng.choice(index, limit, replace=False))
        out.append(batch.take(index))
    return out


def visit_and_split(
    posterior: Posterior, batch: Batch, pairs: np.ndarray, trials: tuple[Trial, ...], split: Split, seed: int
) -> Visit:
    """Local step on a batch that also tries to split one cluster, using the atoms of this batch alone."""
    model = posterior.model
    rng = child_rng(seed, *split.key)
    atoms = targeted_atoms(posterior, batch, posterior.positions(np.array([split.target])), split.sample, rng)[0]
    fresh = None
    if atoms.n_atoms >= split.min_atoms:
        mass = atoms.total_weight
        fresh = create(model, atoms, mass, (split.fresh, split.refine), seed, (*split.key, 1))
    if fresh is None:
        return replace(model.visit(posterior, batch, pairs, trials), split=split.target)
    basis = replace(fresh, ids=-1 - np.arange(fresh.n_clusters))
    trial = Trial("split", (split.target,), model.global_step(basis))
    found = model.visit(posterior, batch, pairs, (*trials, trial))
    parts = {name: part for name, part in found.parts.items() if name != "split"}
    return Visit(found.summary, parts, split.target, found.parts["split"])


def create(
    model: Model, atoms: Batch, mass: float, settings: tuple[int, int], seed: int, key: tuple[int, ...]
) -> Summary | None:
    """Task: new clusters for a sample of one cluster's atoms, or None when they are better left together.

    Bregman k-means++, then full-batch steps on the sample, uniting newborn clusters while that raises the
    objective expected for all of the target.  The statistics returned are scaled to the target's ``mass``.
    """
    fresh, refine = settings
    rng = child_rng(seed, *key)
    labels, found = cluster_atoms(model, atoms, fresh, rng, None, 3)
    if found < 2:
        return None
    forecast = _Forecast(model, mass / atoms.total_weight)
    together = summarize_assigned(model, atoms, np.zeros(atoms.n_atoms, np.int64), 1)
    summary = summarize_assigned(model, atoms, labels, found)
    for step in range(refine):
        unite = step >= refine // 3
        posterior = model.global_step(summary)
        summary = model.local_step(posterior, atoms, all_pairs(summary.ids) if unite else NO_PAIRS)
        if unite:
            summary = forecast.unite(summary)
        summary = summary.take([int(i) for i, n in zip(summary.ids, summary["N"], strict=True) if n >= 1.0])
        if summary.n_clusters < 2:
            return None
        summary = summary.without_pairs()
    summary = model.local_step(model.global_step(summary), atoms)
    if forecast.value(summary) <= forecast.value(together):
        return None
    order = np.argsort(-summary["N"], kind="stable")
    return summary.take(summary.ids[order].tolist()).scale(mass / max(float(summary["N"].sum()), 1e-300))


@dataclass(frozen=True)
class _Forecast:
    """The objective that all atoms of a target would have, judged from a sample of them.

    A sample of few atoms does not warrant clusters that ten times as many do, so its statistics count ``factor``
    times.  They fit the sample better than the other atoms, though, by half a nat for each number that is estimated
    from it (as in Akaike's criterion), and that is taken off for each atom that was not seen.  Where this
    correction is larger than what is gained, the plain objective of the sample may still tell.
    """

    model: Model
    factor: float

    def value(self, summary: Summary) -> float:
        """The forecast, nats."""
        return self._objective(summary.without_pairs().scale(self.factor)) - self._optimism() * summary.n_clusters

    def unite(self, summary: Summary) -> Summary:
        """Merge pairs, best first, while neither the forecast nor the sample itself wants both; all are tracked."""
        while summary.n_pairs:
            best = int(np.argmax(self._gains(summary)))
            candidate = summary.merge(int(summary.pairs[best, 0]), int(summary.pairs[best, 1]))
            if self.value(candidate) <= self.value(summary) or (
                self._objective(candidate) <= self._objective(summary)
            ):
                return summary
            summary = candidate
        return summary

    def _gains(self, summary: Summary) -> np.ndarray:
        """What merging each tracked pair would give on the sample, but for the allocation term, ``(M,)`` nats."""
        posterior = self.model.global_step(summary)
        place = posterior.positions(summary.pairs)
        entropy = sum(
            summary.pair_values[name] - summary[name][place].sum(axis=1)
            for name, field in summary.fields.items()
            if field.merge == "tracked"
        )
        return data_gains(self.model, posterior, summary, summary.pairs) + entropy

    def _objective(self, summary: Summary) -> float:
        return sum(self.model.elbo(self.model.global_step(summary), summary).values())

    def _optimism(self) -> float:
        return 0.5 * max(self.factor - 1.0, 0.0) * numbers_per_cluster(self.model.observation)
