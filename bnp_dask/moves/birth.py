"""Birth moves: a cluster is replaced by several new ones (thesis 4.2; supplement of Hughes & Sudderth 2013, sec. 2).

Collect, create, adopt: atoms are collected from a source, a task makes new clusters of them
(:mod:`bnp_dask.moves.create`), and during the next lap all atoms of the target are shared out among the new clusters.
Collecting and adopting happen beside the normal local step.  The exact whole-data objective then decides.  The sources:

* a cluster, whose atoms were gathered during one lap; many are tried in one lap, each by a task of its own;
* a cluster and its neighbours.  If clusters overlap, a split seldom pays while the others stay unchanged.  Attempts
  beside neighbours wait until clusters are calm: until then other moves take the neighbours, and clusters that still
  change forget their failures.  Without waiting, a run of 12 overlapping Gaussians made 140 attempts in 64 laps and
  could try 2 of the 69 splits found (47 s of processor time, 13 without such attempts); now it makes some 25 in 18 s,
  and its objective ends as high;
* two or three neighbouring clusters as one pool, cut anew into as many clusters, one more or one fewer.  A state in
  which two clusters are wrong together is no better after a split or a union alone.  Of topics of dense atoms, whole
  groups are gathered for both: their parts in all of these topics are one pool;
* all clusters of a small table, found anew by crossing states that were learned apart
  (:func:`bnp_dask.moves.start.crossed`): every eighth lap, and once clusters are calm;
* a cluster in one batch (thesis 4.2.3), or in all new batches;
* single batches of the lap before.  The share of one batch is seldom worth a cluster while the rest of the target stays
  in place: with B batches the weights alone cost about log B nats per atom of that batch;
* stretches of sequences (:mod:`bnp_dask.moves.windows`) and whole documents (:mod:`bnp_dask.moves.documents`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from bnp_dask.core import Batch, Exchange, Summary, register
from bnp_dask.errors import SettingError
from bnp_dask.execute import Task
from bnp_dask.initialize import child_rng
from bnp_dask.inputs import hold, number_from, one_of, positive_number, shown, whole_number
from bnp_dask.model import Model
from bnp_dask.moves.base import BirthProposal, PlanContext, Planning, Split, Turn, acts, hold_laps, usual_number
from bnp_dask.moves.create import WORDS, Forecast, Sample, Surroundings, create, most_steps
from bnp_dask.moves.memory import WHOLE, Basis
from bnp_dask.moves.pairs import rough_allocation_gains
from bnp_dask.moves.policy import (
    BIRTH,
    BIRTH_BESIDE,
    CROSSED,
    LAP,
    SPLIT,
    SPLIT_BATCHES,
    SPLIT_BY_NEW,
    BirthPolicy,
    SmallRunPolicy,
    hold_policy,
)
from bnp_dask.moves.pools import best_value, compiled, counting
from bnp_dask.moves.prior import better_prior
from bnp_dask.moves.start import CrossLimits, crossed, unites
from bnp_dask.moves.windows import plan_windows
from bnp_dask.observation import numbers_per_cluster
from bnp_dask.structure import Trial, at_most

Found = dict[int, Summary | None]
"""Clusters found, by target; None if none were found."""

Pool = tuple[int, ...]
"""Ids of the clusters whose atoms are cut as if they were one cluster: one that is split, or some neighbours."""

ANEW = "anew"
"""Kind under which failures to find all clusters anew are remembered; histories call them births."""

RECUT = "recut"
"""Kind under which failures of several clusters cut anew are remembered; histories call them births."""


@dataclass(frozen=True)
class Target:
    """Cluster that may be split.

    Parameters
    ----------
    id, count
        Its id, and its N.
    failed
        Attempts that failed while it had about this count.
    fit
        Data term per atom (4.2.4), nats.
    near
        Clusters that are looked at with it in the next attempt, nearest first.
    waits
        Whether it waits to be looked at with its neighbours once clusters are calm.
    """

    id: int
    count: float
    failed: int
    fit: float
    near: tuple[int, ...] = ()
    waits: bool = False


@register
@dataclass(frozen=True)
class Birth:
    """Propose to split clusters.

    Parameters
    ----------
    per_lap
        Targets per lap.  Once clusters no longer come, go or noticeably change their counts, small runs look at up to
        eight times as many, as far as memory allows; at most ``per_lap`` of the splits found are tried in one lap.
    fresh
        Most new clusters that a small run starts with; words of documents may show more topics.
    sample
        Atoms gathered for each target; more if a cluster has more numbers than this many atoms show.  Of documents,
        twice as many; with few topics many more, of which only the words are looked at.
    min_atoms
        Clusters with fewer atoms are not split; each counts by its weight.
    change
        A cluster that could not be split is tried again when its count has changed by this share.
    tries
        Attempts on a cluster that does not change, each from a different start.
    refine
        Most local and global steps of the small run before its clusters are united.
    where
        ``"data"``: gather atoms from all batches during one lap, adopt in all of them during the next, decide at its
        end.  ``"batch"`` (thesis 4.2.3): each of some batches splits a target using its own atoms only, and the
        decision falls when the batch is folded; other batches follow on their next visit.  A split may not pay there
        because the rest of the target stays in place.  Such splits, and the splits of the first lap, are combined
        with the finds of other batches and adopted by all batches in the next lap.  Batches must be large enough to
        show a cluster: ``min_atoms`` of it in the batches that try.
    share
        For ``"batch"``: share of the batches that try in one lap.
    windows, window
        Models of sequences only: proposals per lap from stretches of consecutive steps, and the least and most steps of
        a stretch (thesis 6.5.2; see :mod:`bnp_dask.moves.windows`); 0 for none.
    laps, start
        When the move acts: in these laps alone, such as ``range(0, 20)`` (in a job file ``[0, 20]``), not before lap
        ``start``.  Laps are counted from 0, including laps of updates; nothing is decided in the first.  A run does not
        end as converged before all its moves have begun.
    policy
        Numbers that few will want to change: :class:`bnp_dask.moves.policy.BirthPolicy`.
    """

    per_lap: int = 8
    fresh: int = 8
    sample: int = 2500
    min_atoms: float = 20.0
    change: float = 0.1
    tries: int = 4
    refine: int = 20
    where: Literal["data", "batch"] = "data"
    share: float = 0.15
    windows: int = 8
    window: tuple[int, int] = (10, 100)
    laps: range | tuple[int, int] | None = field(default=None, metadata={"optional": True})
    start: int = 0
    policy: BirthPolicy = field(default_factory=BirthPolicy, repr=False)
    kind = "birth"

    def __post_init__(self) -> None:
        for name, least in (("per_lap", 1), ("sample", 1), ("refine", 1), ("tries", 1), ("fresh", 2), ("windows", 0)):
            hold(self, name, whole_number(name, getattr(self, name), least))
        hold(self, "min_atoms", number_from("min_atoms", self.min_atoms, 0.0))
        hold(self, "change", number_from("change", self.change, 0.0))
        hold(self, "share", positive_number("share", self.share))
        hold(self, "share", number_from("share", self.share, 0.0, 1.0, "a share of the batches"))
        one_of("where", self.where, ("data", "batch"))
        hold_policy(self, "policy", BirthPolicy)
        hold_laps(self)
        if not isinstance(self.window, (tuple, list)) or len(self.window) != 2:
            raise SettingError(f"window={shown(self.window)}: needs the least and the most steps, such as (10, 100)")
        least = whole_number("window[0]", self.window[0], 1)
        hold(self, "window", (least, whole_number("window[1]", self.window[1], least)))

    @property
    def at_batch(self) -> bool:
        return self.where == "batch"

    def is_urgent(self, context: PlanContext) -> bool:
        """Whether targets are to be looked at with neighbours: deletes would hold some of these for many laps."""
        if self.where != "data":
            return False
        if self._crosses(context) and WHOLE in context.atoms:
            return True
        gathered = any(target.near for target in self._gathered(context))
        return gathered or any(all(_has_atoms(context, i) for i in pool) for pool in self._pools(context))

    def turn(self, context: PlanContext) -> Turn:
        """Before most moves; attempts beside neighbours before deletes that are being refined."""
        return Turn.BESIDE_NEIGHBOURS if self.is_urgent(context) else Turn.BIRTHS

    def plan(self, context: PlanContext) -> Planning:
        self._refined(context)
        for source in self._sources(context):
            yield from source(context)

    def _refined(self, context: PlanContext) -> None:
        """Propose births again that fell short in the lap before, from their own statistics."""
        for target in sorted(context.memory.sweeps.keys() & context.free):
            sweep = context.memory.sweeps[target]
            pool, beside = (target, *sweep.together), sweep.receivers
            if sweep.remembered_as in (self.kind, RECUT) and context.free.issuperset((*pool, *beside)):
                ids = sweep.part.ids
                names = np.where(np.isin(ids, beside), ids, -1 - np.arange(len(ids)))
                self._propose(context, pool, replace(sweep.part, ids=names))

    def _sources(self, context: PlanContext) -> list[Callable[[PlanContext], Planning]]:
        """Sources of atoms in this lap, in order: a cluster that one of them takes is not free for the next."""
        windows = [self._of_windows] if self.windows and context.policy.has_windows else []
        odd = context.lap % 2 == 1
        if self.where == "data":
            clusters = [self._of_all, self._of_clusters, self._of_pools]
            return [*windows, *clusters] if odd else [*clusters, *windows]
        batches = [self._of_batches] if context.policy.splits_at_batches or context.pending is not None else []
        return [*batches, *([] if odd else windows)]

    def prepare(self, context: PlanContext) -> None:
        if self.where == "batch":
            if context.lap == 0 and context.pending is not None and acts(self, 0):
                self._plan_splits(context, self._targets(context), self._batches(context))
            return
        if self._crosses(context) and (context.calm or (context.lap + 1) % self.policy.crossed_every == 0):
            context.ask([WHOLE], max(context.survey.batch_atoms))
        sample, _ = self._sizes(context)
        planned = {
            target
            for proposal in context.proposals
            for target in proposal.targets
            if proposal.remembered_as == self.kind
        }
        # twice an even share, because some batches lack some clusters
        documents = 2 * self._documents(context, sample)
        most = min(LAP.more * self.per_lap, context.room(documents)) if context.calm else 0
        targets = [target for target in self._candidates(context) if target.id not in planned and not target.waits]
        chosen = self._within_budget(context, targets[: max(self.per_lap, most)])
        chosen = chosen[: max(1, context.room_left(documents))]
        limit = -(-documents // len(context.visited))
        context.ask([target.id for target in chosen], limit)
        if _in_groups(context):
            if any(target.near for target in chosen) or self._pools(context):
                self._ask_groups(context)
            return
        near = dict.fromkeys(i for target in chosen for i in target.near)
        context.ask(list(near)[: context.room_left(documents)], limit)
        pooled: dict[int, None] = {}
        room = min(context.room(documents), context.room_left(documents))
        for pool, others in self._pools(context).items():
            more = pooled | dict.fromkeys((*pool, *others))
            if len(more) > room:
                break
            pooled = more
        context.ask(pooled, limit)

    def _ask_groups(self, context: PlanContext) -> None:
        """Request whole groups: parts of a group that were drawn for several clusters do not add up to one part."""
        alone, _ = self._sizes(context)
        atoms, groups = context.value["N"].sum(), float(context.value["docs"])
        wanted = groups * min(1.0, context.at_most_sampled(alone * context.value.n_clusters) / max(atoms, 1.0))
        context.ask([WHOLE], -(-max(1, round(wanted)) // len(context.visited)))

    # -- which clusters are split -----------------------------------------------------------------------------------
    def _candidates(self, context: PlanContext) -> list[Target]:
        """Clusters large enough and not known to fail: first clusters that never failed, then the worst fit."""
        value, policy = context.value, self.policy
        if policy.of_usual > 0 and value.n_clusters > policy.of_usual * usual_number(context, LAP.shown):
            return []
        score = context.model.data_terms(context.posterior.observation, value)
        out: list[Target] = []
        for k, (i, count) in enumerate(zip(value.ids.tolist(), value["N"].tolist(), strict=True)):
            if count < self.min_atoms:
                continue
            failed = context.memory.failed(self.kind, (i,), [count], self.change)
            if failed >= self.tries:
                continue
            looks = _can_look_beside(context) and self.where == "data" and failed >= policy.alone
            overlaps = looks and bool(value["H"][k] >= policy.overlap * count)
            near = _nearest(context, k, policy) if overlaps and context.calm else ()
            waits = overlaps and not context.calm
            out.append(Target(i, count, failed, float(score[k] / count), near, waits))
        return sorted(out, key=lambda target: (target.failed, target.fit, target.id))

    def _targets(self, context: PlanContext) -> list[int]:
        """Free clusters to split at single batches."""
        return [target.id for target in self._candidates(context) if target.id in context.free][: self.per_lap]

    def _gathered(self, context: PlanContext) -> list[Target]:
        """Targets to try now: free clusters with gathered atoms."""
        targets = [target for target in self._candidates(context) if not target.waits]
        most = len(targets) if context.calm else self.per_lap
        here = [target for target in targets[:most] if target.id in context.free and target.id in context.atoms]
        return self._within_budget(context, here) if context.calm else here

    def _within_budget(self, context: PlanContext, targets: Sequence[Target]) -> list[Target]:
        """First targets, as many as the allowed work of small runs in one lap covers, at least one."""
        share = self.policy.work_share * context.survey.n_atoms * context.value.n_clusters
        left = max(self.policy.work_always, share) * (LAP.more if context.calm else 1)
        sample, beside = self._sizes(context)
        chosen: list[Target] = []
        for target in targets:
            own = min(float(sample), target.count)
            left -= self.policy.dearer * own * sum(self._widths(target.failed)) * self.refine
            if target.near:
                atoms = sum(min(beside, context.count(i)) for i in target.near) + own
                small = self.policy.small_run
                left -= most_steps(small, 1, small.starts_beside) * atoms * (2 + len(target.near))
            if chosen and left < 0:
                break
            chosen.append(target)
        return chosen

    # -- which clusters are cut anew ---------------------------------------------------------------------------------
    def _pools(self, context: PlanContext) -> dict[Pool, list[int]]:
        """Pools to cut anew once clusters are calm, with their neighbours, as many as the work allowed in a lap covers.

        Each cluster with each of its nearest ones, and with its nearest two, by the loss of uniting them.  First pools
        that never failed, then those whose union costs least.
        """
        value, policy = context.value, self.policy
        if not (context.calm and _can_look_beside(context) and policy.pooled > 1) or value.n_clusters < 2:
            return {}
        gains, ids, counts = context.pair_gains(), value.ids.tolist(), value["N"].tolist()
        rough = rough_allocation_gains(value["N"], gains.first, gains.second) + gains.gains
        by_pair = replace(gains, gains=rough)
        union = [by_pair[k] for k in range(value.n_clusters)]
        place, count = {i: k for k, i in enumerate(ids)}, dict(zip(ids, counts, strict=True))
        found: dict[Pool, tuple[int, float]] = {}
        for k in range(value.n_clusters):
            row = union[k]
            near = [int(j) for j in np.argsort(-row, kind="stable") if row[j] > -np.inf]
            pairs = [near[i : i + 1] for i in range(policy.pairs)]
            sets = [near[:n] for n in range(2, policy.pooled)]
            for others in [*pairs, *sets]:
                pool = tuple(sorted(ids[j] for j in (k, *others)))
                if len(others) == 0 or pool in found or sum(count[i] for i in pool) < self.min_atoms:
                    continue
                failed = context.memory.failed(RECUT, pool, [count[i] for i in pool], self.change)
                if failed < policy.tries_pooled:
                    found[pool] = failed, -float(row[others[-1]])
        left = max(policy.pools_share * context.survey.n_atoms * value.n_clusters, policy.pools_always)
        chosen: dict[Pool, list[int]] = {}
        _, most = self._sizes(context)
        for pool in sorted(found, key=lambda pool: (found[pool], pool)):
            best = np.max([union[place[i]] for i in pool], axis=0)
            order = [j for j in np.argsort(-best, kind="stable").tolist() if best[j] > -np.inf]
            around = [ids[j] for j in order if ids[j] not in pool][: policy.neighbours]
            atoms = sum(min(float(most), count[i]) for i in (*pool, *around))
            n_widths = len(_recut_widths(len(pool), found[pool][0]))
            steps = most_steps(policy.small_run, n_widths, policy.pooled_starts)
            left -= steps * atoms * (len(pool) + len(around))
            if chosen and left < 0:
                break
            chosen[pool] = around
        return chosen

    def _failed(self, context: PlanContext, pool: Pool) -> int:
        """Number of times that no other cut of a pool was better."""
        return context.memory.failed(RECUT, pool, context.counts(pool), self.change)

    # -- the atoms of clusters, alone and beside their neighbours ---------------------------------------------------
    def _of_clusters(self, context: PlanContext) -> Planning:
        """Splits of clusters whose atoms were gathered in the lap before."""
        tried: list[Target] = []
        for target in self._gathered(context):
            if context.atoms[target.id].n_atoms < self.min_atoms:
                context.give_up(self.kind, (target.id,), "too few atoms belong to it")
            else:
                tried.append(target)
        if not tried:
            return
        near: dict[Pool, list[int]] = {}
        for target in tried:
            others = [i for i in target.near if _has_atoms(context, i)]
            if others:
                near[target.id,] = others
        beside = yield from self._look_beside(context, near)
        found: Found = {target: summary for (target,), summary in beside.items()}
        tried = [target for target in tried if (target.id,) not in near or target.id in found]
        left = [target for target in tried if found.get(target.id) is None]
        found |= (yield from self._look_alone(context, left)) if left else {}
        proposed = 0
        for target in tried:
            newborn = found[target.id]
            if newborn is None:
                context.give_up(self.kind, (target.id,), "no split of the gathered atoms is better than none")
            elif proposed < self.per_lap and context.free.issuperset(receivers(newborn)):
                self._propose(context, (target.id,), newborn)
                proposed += 1

    def _crosses(self, context: PlanContext) -> bool:
        """Whether all clusters may be found anew: few atoms, steps that are compiled, and no failure before."""
        value, model = context.value, context.model
        if compiled(model) is None or not unites(model) or value.n_clusters < 2:
            return False
        pool = tuple(sorted(value.ids.tolist()))
        is_small = context.survey.n_atoms <= self.policy.crossed and not context.source.is_sparse
        is_small = is_small and _limits(context) is not None
        return is_small and not context.memory.failed(ANEW, pool, context.counts(pool), self.change)

    def _of_all(self, context: PlanContext) -> Planning:
        """All clusters of small data anew, from states that are crossed."""
        pool = tuple(sorted(context.value.ids.tolist()))
        if WHOLE not in context.atoms or not self._crosses(context) or not context.free.issuperset(pool):
            return
        key, value = (context.lap, CROSSED), context.value.without_pairs()
        limits = _limits(context)
        args = (context.model, context.atoms[WHOLE], value, context.seed, key, limits, self.policy.small_run)
        (found,) = yield [(f"propose-lap{context.lap}-all-clusters-anew", crossed, args)]
        if found is None:
            context.give_up(self.kind, pool, "no crossing of states is better", remembered_as=ANEW)
        else:
            self._propose(context, pool, found, ANEW)

    def _of_pools(self, context: PlanContext) -> Planning:
        """Neighbouring clusters cut anew together."""
        here = {i for i in context.free if _has_atoms(context, i)}
        near = {
            pool: [i for i in others if i in here]
            for pool, others in self._pools(context).items()
            if here.issuperset(pool)
        }
        found = yield from self._look_beside(context, near)
        left = self.per_lap - sum(p.kind == self.kind for p in context.proposals)
        for pool, newborn in found.items():
            if newborn is None:
                context.give_up(self.kind, pool, "no other cut of the gathered atoms is better", remembered_as=RECUT)
            elif left > 0 and context.free.issuperset((*pool, *receivers(newborn))):
                self._propose(context, pool, newborn)
                left -= 1

    def _look_alone(
        self, context: PlanContext, tried: list[Target]
    ) -> Generator[Iterable[Task], list[Summary | None], Found]:
        """Clusters found in targets by themselves."""
        ids = [target.id for target in tried]
        # if births have been succeeding, their targets are taken from the beginning, before other moves plan
        taken = set(ids) if context.memory.grows else set()
        context.free -= taken
        context.draft.at_stake |= set(ids)
        found = yield (self._task(context, target) for target in tried)
        context.free |= taken
        context.draft.at_stake -= set(ids)
        context.memory.grows = 2 * sum(one is not None for one in found) >= len(found)
        return dict(zip(ids, found, strict=True))

    def _look_beside(
        self, context: PlanContext, near: dict[Pool, list[int]]
    ) -> Generator[list[Task], list[Summary | None], dict[Pool, Summary | None]]:
        """Clusters found for pools together with their neighbours ``near``, all of which can be tried in one lap.

        Pools without common neighbours are looked at side by side, then the remaining ones.  A pool is skipped, and
        missing from the result, if it or a neighbour was already taken by another find.
        """
        found: dict[Pool, Summary | None] = {}
        waiting, taken = near, set[int]()
        while waiting:
            now: dict[Pool, list[int]] = {}
            for pool, others in waiting.items():
                if not {*pool, *others} & {i for p, ids in now.items() for i in (*p, *ids)}:
                    now[pool] = others
            results = yield [self._task_beside(context, pool, others) for pool, others in now.items()]
            found |= dict(zip(now, results, strict=True))
            for pool, summary in zip(now, results, strict=True):
                taken |= set() if summary is None else {*pool, *receivers(summary)}
            left = {pool: others for pool, others in waiting.items() if pool not in now}
            waiting = {pool: others for pool, others in left.items() if taken.isdisjoint((*pool, *others))}
        return found

    def _task(self, context: PlanContext, target: Target) -> Task:
        """Task of a small run on the gathered atoms of a target."""
        key, (few, _) = (context.lap, BIRTH, target.id), self._sizes(context)
        seen = self._documents(context, few) if target.failed == 0 else few
        rng = child_rng(context.seed, *key, 1)
        atoms = context.model.structure.sample(context.atoms[target.id], seen, rng)
        source = Sample(
            atoms=atoms,
            mass=target.count,
            widths=self._widths(target.failed, _has_words(context.model, atoms, self.policy.words_need)),
            refine=self.refine,
            few=few,
            others=self._others(context, target.id),
            cores=self._seeks_cores(target.failed),
        )
        model = context.model.structure.part(context.model, context.posterior, target.id)
        args = (model, source, context.seed, key, self.policy.small_run)
        return f"propose-lap{context.lap}-birth-of-cluster{target.id}", create, args

    def _task_beside(self, context: PlanContext, pool: Pool, near: list[int]) -> Task:
        """Task of a small run on the gathered atoms of a pool and of its neighbours."""
        alone, beside = self._sizes(context)
        atoms: list[Batch] = []
        for i in () if _in_groups(context) else (*pool, *near):
            few = at_most(context.atoms[i], alone if i in pool else beside, context.rng(BIRTH_BESIDE, *pool, i))
            atoms.append(counting(few, context.count(i)))
        value = context.value.without_pairs().take([*pool, *near])
        failed = 0 if len(pool) == 1 else self._failed(context, pool)
        starts = self.policy.small_run.starts_beside if len(pool) == 1 else self.policy.pooled_starts
        source = Surroundings(tuple(atoms), value, len(pool), _recut_widths(len(pool), failed), starts)
        if len(pool) == 1:
            before = context.memory.failed(self.kind, pool, context.counts(pool), self.change)
            source = replace(source, others=self._others(context, pool[0]), cores=self._seeks_cores(before))
        if _in_groups(context):
            source = replace(source, pool=(context.atoms[WHOLE],), posterior=context.posterior.light())
        args = (context.model, source, context.seed, (context.lap, BIRTH_BESIDE, *pool), self.policy.small_run)
        kind = "birth" if len(pool) == 1 else "recut"
        return f"propose-lap{context.lap}-{kind}-beside-cluster{'-'.join(map(str, pool))}", create, args

    def _seeks_cores(self, failed: int) -> bool:
        """Whether an attempt begins with cores too: the first and the last one, since no chance chooses them."""
        return failed in (0, self.tries - 1)

    def _others(self, context: PlanContext, target: int) -> Summary | None:
        """Statistics of all clusters but one, if births may be judged with a prior that is learned anew."""
        learns = context.model.reference is not None and context.model.small_run is not None
        value = context.value.without_pairs()
        return value.take(value.ids[value.ids != target].tolist()) if learns and not _in_groups(context) else None

    def _widths(self, failed: int, words: bool = False) -> tuple[int, ...]:
        """Numbers of new clusters to start a small run with: many at first, then fewer.

        With ``words`` the first attempt also estimates the number of topics from the words of the documents.

        Starting from few as well as from many matters: uniting cannot undo a split into overlapping parts (4.4.1).
        """
        widths = (self.fresh, max(2, self.fresh // 2), 2, max(2, self.fresh // 2))
        return (WORDS, widths[0]) if words and failed == 0 else (widths[failed % len(widths)],)

    def _sizes(self, context: PlanContext) -> tuple[int, int]:
        """Most atoms of a small run, and most atoms of each neighbour that are looked at."""
        numbers = numbers_per_cluster(context.model.observation)
        alone = max(self.sample, int(self.policy.sample_numbers * numbers))
        if context.source.is_sparse:  # a document is more informative than one number
            alone = context.policy.rows_per_sample * self.sample
        beside = max(self.policy.neighbour_atoms, numbers)
        return context.at_most_sampled(alone), context.at_most_sampled(beside)

    def _documents(self, context: PlanContext, sample: int) -> int:
        """Most atoms gathered for each target: ``sample``, or all documents whose words are looked at."""
        if not (context.source.is_sparse and context.policy.asks_words):
            return sample
        length = max(float(np.sum(context.survey.mean)), 1.0)
        seen = int(self.policy.words_seen * self.sample / (length * context.value.n_clusters))
        return max(sample, context.at_most_sampled(seen))

    def _propose(self, context: PlanContext, targets: Pool, found: Summary, kind: str | None = None) -> None:
        beside = receivers(found)
        ids = context.memory.new_ids(found.n_clusters - len(beside))
        basis = Summary(np.array([*ids, *beside], np.int64), found.fields, found.values)
        basis = context.model.structure.tied_summary(context.model, basis, context.value)
        name, donors = f"birth-lap{context.lap}-cluster{targets[0]}", (*targets, *beside)
        model = _model_for(context, donors, basis)
        trial = Trial(name, donors, model.global_step(basis), rest=ids[0])
        sweeps = self.policy.sweeps if context.policy.refines_births else 1
        kind = kind or (self.kind if len(targets) == 1 else RECUT)
        learns = model is not context.model
        context.propose(BirthProposal(targets, ids, Exchange(name, donors), kind, sweeps, learns), trial)

    # -- the atoms of windows ---------------------------------------------------------------------------------------
    def _of_windows(self, context: PlanContext) -> Planning:
        """States from stretches of sequences."""
        plan_windows(context, self.windows, self.window, self.tries, self.change, self.policy.window)
        yield from ()  # its tasks read batches, and other moves wait for them

    # -- the atoms of batches ---------------------------------------------------------------------------------------
    def _of_batches(self, context: PlanContext) -> Planning:
        """Finds of single batches for all data, and splits at single batches in this lap."""
        self._plan_pending(context)
        # a trial of a chain counts steps to and from every existing state, but splits add states within the lap
        apart = not context.policy.splits_beside_trials
        if not apart or (context.lap % 2 == 1 and not context.trials):
            self._plan_splits(context, self._targets(context), self._batches(context))
        if apart and context.draft.splits:
            context.free.clear()
        yield from ()  # needs no tasks

    def plan_at(self, context: PlanContext, batches: Sequence[int]) -> None:
        """Plan a split at each of some batches, of clusters in turn; the lap number sets the first cluster."""
        targets = self._targets(context)
        first = context.lap % max(1, len(targets))
        self._plan_splits(context, [*targets[first:], *targets[:first]], batches)

    def splits_by_new(
        self, context: PlanContext, shares: Summary, refused: Collection[int], number: int
    ) -> list[Split]:
        """Splits of clusters to try by their ``shares`` in new batches, the most promising first.

        Clusters in ``refused`` are left out.  ``number`` is the number of the round, from 0.
        """
        targets = [i for i in misfits(context.model, context.value, shares, self.min_atoms) if i not in refused]
        return [self._split(target, (context.lap, SPLIT_BY_NEW, target, number)) for target in targets[: LAP.misfits]]

    def _plan_splits(self, context: PlanContext, targets: list[int], batches: Sequence[int] | np.ndarray) -> None:
        if not targets:
            return
        for i, b in enumerate(batches):
            context.draft.splits[int(b)] = self._split(targets[i % len(targets)], (context.lap, SPLIT, int(b)))
        context.free -= {split.target for split in context.draft.splits.values()}

    def _split(self, target: int, key: tuple[int, ...]) -> Split:
        return Split(
            target=target,
            fresh=self.fresh,
            refine=self.refine,
            sample=self.sample,
            min_atoms=self.min_atoms,
            key=key,
            policy=self.policy.small_run,
        )

    def _plan_pending(self, context: PlanContext) -> None:
        """Propose, for all data, newborn clusters that single batches found in the lap before."""
        for target, bases in (context.pending or {}).items():
            if target not in context.free or not bases:
                continue
            found = best_basis(context.model, bases, context.count(target), self.min_atoms, self.policy.small_run)
            if found is None:
                context.give_up(self.kind, (target,), "what single batches found there is not worth it for all data")
            else:
                self._propose(context, (target,), found)

    def _batches(self, context: PlanContext) -> np.ndarray:
        """Batches to look into in this lap, drawn at random."""
        n_batches = len(context.visited)
        order = context.visited[context.rng(SPLIT_BATCHES).permutation(n_batches)]
        return order[: max(1, round(self.share * n_batches))]


def _limits(context: PlanContext) -> CrossLimits | None:
    """When crossings of all clusters end; None if they are too much work."""
    numbers = numbers_per_cluster(context.model.observation)
    return CrossLimits.of(context.survey.n_atoms, context.value.n_clusters, numbers, context.calm)


def _recut_widths(n_targets: int, failed: int) -> tuple[int, ...]:
    """Numbers of clusters into which a pool is cut: as many or fewer at first, then also more; a split into two.

    From the third attempt on more alone: the right cut into more clusters is missed most often.
    """
    if n_targets == 1:
        return (2,)
    if failed == 0:
        return (n_targets, n_targets - 1)[: n_targets - 1]
    return (n_targets, n_targets + 1) if failed == 1 else (n_targets + 1,)


def _model_for(context: PlanContext, donors: Pool, basis: Summary) -> Model:
    """The model with the prior to which newborn clusters lead, if only that makes them pay; else the model itself."""
    model, value = context.model, context.value.without_pairs()
    if model.reference is None or model.small_run is None:
        return model
    after, now = value.exchange(donors, basis), best_value(model, value)
    if best_value(model, after) > now:
        return model
    learned = better_prior(model, after)
    return learned if best_value(learned, after) > now else model


def _can_look_beside(context: PlanContext) -> bool:
    """Whether births may look at neighbours: words of documents are told apart by their documents alone."""
    return context.policy.births_beside and not (context.policy.asks_words and context.source.is_sparse)


def _in_groups(context: PlanContext) -> bool:
    """Whether births look at clusters and their neighbours in whole groups."""
    return _can_look_beside(context) and context.policy.asks_words


def _has_atoms(context: PlanContext, cluster: int) -> bool:
    """Whether atoms of a cluster were gathered, or whole groups if births look at these."""
    if _in_groups(context):
        return WHOLE in context.atoms
    return cluster in context.atoms and context.atoms[cluster].n_atoms > 0


def receivers(found: Summary) -> tuple[int, ...]:
    """Existing clusters among the clusters that a small run re-estimated; beside these, newborn have negative ids."""
    return tuple(found.ids[found.ids >= 0].tolist()) if (found.ids < 0).any() else ()


def _nearest(context: PlanContext, place: int, policy: BirthPolicy) -> tuple[int, ...]:
    """Clusters that share atoms with others, nearest first to the cluster at position ``place``."""
    overlaps = context.value["H"] >= policy.overlap * context.value.units
    gains = np.where(overlaps, context.pair_gains()[place], -np.inf)  # rows far from all have no neighbours
    near = np.argsort(-gains, kind="stable")[: policy.neighbours]
    return tuple(context.value.ids[near[gains[near] > -np.inf]].tolist())


def _has_words(model: Model, documents: Batch, need: int) -> bool:
    """Whether documents have enough words to tell how many topics there are."""
    return model.structure.policy.asks_words and documents.is_sparse and model.mass(documents) >= need


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


def best_basis(
    model: Model, bases: Sequence[Basis], count: float, least: float, policy: SmallRunPolicy
) -> Summary | None:
    """Newborn clusters with the largest expected rise of the objective over all ``count`` atoms of the target.

    Newborn clusters of fewer than ``least`` atoms are an accident of their batch, and left out.  None if the objective
    would fall.  If groups have weights, parts of groups do not show that; the basis with most atoms is then chosen.
    """
    best, most = None, 0.0
    forecasts = model.structure.policy.splits_at_batches
    for basis in bases:
        shown = basis.newborn.take(basis.newborn.ids[basis.newborn["N"] >= least])
        if shown.n_clusters < 2:
            continue
        gain = float(basis.held["N"].sum())
        if forecasts:
            gain = _value(model, shown, count, policy) - _value(model, basis.held, count, policy)
        if gain > most:
            best, most = shown.scale(count / float(shown["N"].sum())), gain
    return best


def _value(model: Model, summary: Summary, count: float, policy: SmallRunPolicy) -> float:
    """Objective that ``count`` such atoms would have, nats."""
    return Forecast(model, count / float(summary["N"].sum()), policy).value(summary)
