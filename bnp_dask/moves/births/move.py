"""Birth moves: a cluster is replaced by several new ones (thesis 4.2; supplement of Hughes & Sudderth 2013, sec. 2).

Collect, create, adopt: atoms of the target are gathered during one lap, and a small run on them creates new clusters.
During the next lap all atoms of the target are shared out among the new clusters.  Both happen beside the normal local
step.  The exact whole-data objective then decides.  Many targets are tried in one lap, each by a task of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.edits import Exchange
from bnp_dask.core.registry import register
from bnp_dask.core.summary import Summary
from bnp_dask.errors import SettingError
from bnp_dask.execute.base import Task
from bnp_dask.initialize.base import child_rng
from bnp_dask.inputs.settings import hold, number_from, one_of, positive_number, shown, whole_number
from bnp_dask.model import Model
from bnp_dask.moves.base import BirthProposal, Gather, PlanContext, Planning, Split, Turn
from bnp_dask.moves.births.hmm_windows import plan_windows
from bnp_dask.moves.births.neighbours import Found, look_beside, neighbours, overlap, receivers, work_beside
from bnp_dask.moves.births.pending import best_basis
from bnp_dask.moves.births.small_run import WORDS, create
from bnp_dask.moves.lap_policy import LAP
from bnp_dask.moves.memory import WHOLE
from bnp_dask.moves.policy import BirthPolicy, hold_policy
from bnp_dask.moves.random_keys import BIRTH, SPLIT, SPLIT_BATCHES
from bnp_dask.moves.when import acts, hold_laps
from bnp_dask.observation.base import numbers_per_cluster
from bnp_dask.structure.base import Trial, Visit, at_most


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
        Clusters with fewer atoms are not split.
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
        because the rest of the target stays where it is.  Such splits, and the splits of the first lap, are combined
        with the finds of other batches and adopted by all batches in the next lap.  Batches must be large enough to
        show a cluster: ``min_atoms`` of it in the batches that try.
    share
        For ``"batch"``: share of the batches that try in one lap.
    windows, window
        Models of sequences only: proposals per lap from stretches of consecutive steps, and the least and most steps of
        a stretch (thesis 6.5.2; see :mod:`bnp_dask.moves.births.hmm_windows`); 0 for none.
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
        return self.where == "data" and any(self._neighbours(context, target) for target in self._gathered(context))

    def turn(self, context: PlanContext) -> Turn:
        """Before most moves; attempts beside neighbours before deletes that are being refined."""
        return Turn.BESIDE_NEIGHBOURS if self.is_urgent(context) else Turn.BIRTHS

    def plan(self, context: PlanContext) -> Planning:
        windows = self.windows if context.policy.has_windows else 0
        odd = context.lap % 2 == 1
        if windows and odd and self.where == "data":
            plan_windows(context, windows, self.window, self.tries, self.change, self.policy.window)
        if self.where == "data":
            yield from self._plan_trials(context)
        elif context.policy.splits_at_batches or context.pending is not None:
            self._plan_pending(context)
            # a trial of a chain counts steps to and from every existing state, but splits add states within the lap
            apart = not context.policy.splits_beside_trials
            if not apart or (odd and not context.trials):
                self._plan_splits(context, self._targets(context), self._batches(context))
            if apart and context.splits:
                context.free.clear()
        if windows and not odd:  # a cluster taken by one kind of birth is not free for the other
            plan_windows(context, windows, self.window, self.tries, self.change, self.policy.window)

    def prepare(self, context: PlanContext) -> None:
        if self.where == "batch":
            if context.lap == 0 and context.pending is not None and acts(self, 0):
                self._plan_splits(context, self._targets(context), self._batches(context))
            return
        sample = self._sample(context)
        planned = {
            target
            for proposal in context.proposals
            for target in proposal.targets
            if proposal.remembered_as == self.kind
        }
        planned |= self._waiting(context)
        targets = self._targets(context, planned, self._most(context, self._documents(context, sample)))
        chosen = self._within_budget(context, targets)
        # twice an even share, because some batches lack some clusters
        documents = 2 * self._documents(context, sample)
        chosen = chosen[: max(1, context.room_left(documents))]
        limit = -(-documents // context.source.n_batches)
        context.gather = context.gather.also(chosen, limit)
        near = dict.fromkeys(i for target in chosen for i in self._neighbours(context, target))
        context.gather = context.gather.also(list(near)[: context.room_left(documents)], limit)

    def _within_budget(self, context: PlanContext, targets: Sequence[int]) -> list[int]:
        """First targets, as many as the allowed work of small runs in one lap covers, at least one."""
        share = self.policy.work_share * context.survey.n_atoms * context.value.n_clusters
        left = max(self.policy.work_always, share) * (LAP.more if context.calm else 1)
        sample = float(self._sample(context))
        chosen: list[int] = []
        for target in targets:
            failed = context.memory.failed(self.kind, (target,), [context.count(target)], self.change)
            left -= self.policy.dearer * min(sample, context.count(target)) * sum(self._widths(failed)) * self.refine
            near = self._neighbours(context, target)
            left -= work_beside(context, target, near, self._sample(context), self.policy)
            if chosen and left < 0:
                break
            chosen.append(target)
        return chosen

    def _gathered(self, context: PlanContext) -> list[int]:
        """Targets to try now: free clusters with gathered atoms."""
        most = context.value.n_clusters if context.calm else 0
        here = [
            i for i in self._targets(context, self._waiting(context), most) if i in context.free and i in context.atoms
        ]
        return self._within_budget(context, here) if context.calm else here

    def plan_at(self, context: PlanContext, batches: Sequence[int]) -> None:
        """Plan a split at each of some batches, of clusters in turn; the lap number sets the first cluster."""
        targets = self._targets(context)
        first = context.lap % max(1, len(targets))
        self._plan_splits(context, [*targets[first:], *targets[:first]], batches)

    def _plan_splits(self, context: PlanContext, targets: list[int], batches: Sequence[int] | np.ndarray) -> None:
        if not targets:
            return
        for i, b in enumerate(batches):
            target = targets[i % len(targets)]
            key = (context.lap, SPLIT, int(b))
            context.splits[int(b)] = Split(
                target, self.fresh, self.refine, self.sample, self.min_atoms, key, policy=self.policy.small_run
            )
        context.free -= {split.target for split in context.splits.values()}

    def _plan_pending(self, context: PlanContext) -> None:
        """Propose, for all data, newborn clusters that single batches found in the lap before."""
        for target, bases in (context.pending or {}).items():
            if target not in context.free or not bases:
                continue
            found = best_basis(context.model, bases, context.count(target), self.min_atoms, self.policy.small_run)
            if found is None:
                context.give_up(self.kind, (target,), "what single batches found there is not worth it for all data")
            else:
                self._propose(context, target, found)

    def _batches(self, context: PlanContext) -> np.ndarray:
        """Batches to look into in this lap, drawn at random."""
        n_batches = context.source.n_batches
        order = context.rng(SPLIT_BATCHES).permutation(n_batches)
        return order[: max(1, round(self.share * n_batches))]

    def _plan_trials(self, context: PlanContext) -> Planning:
        tried: list[int] = []
        for target in self._gathered(context):
            if context.atoms[target].n_atoms < self.min_atoms:
                context.give_up(self.kind, (target,), "too few atoms belong to it")
            else:
                tried.append(target)
        if not tried:
            return
        near = self._to_look_beside(context, tried)
        found = yield from look_beside(context, near, self._sample(context), self.policy)
        tried = [target for target in tried if target not in near or target in found]
        left = [target for target in tried if found.get(target) is None]
        found |= (yield from self._alone(context, left)) if left else {}
        proposed = 0
        for target in tried:
            newborn = found[target]
            if newborn is None:
                context.give_up(self.kind, (target,), "no split of the gathered atoms is better than none")
            elif proposed < self.per_lap and context.free.issuperset(receivers(newborn)):
                self._propose(context, target, newborn)
                proposed += 1

    def _alone(self, context: PlanContext, tried: list[int]) -> Generator[Iterable[Task], list[Summary | None], Found]:
        """Clusters found in targets by themselves."""
        failed = [context.memory.failed(self.kind, (t,), [context.count(t)], self.change) for t in tried]
        tasks = (self._task(context, target, often) for target, often in zip(tried, failed, strict=True))
        # if births have been succeeding, their targets are taken from the beginning, before other moves plan
        taken = set(tried) if context.memory.grows else set()
        context.free -= taken
        context.at_stake |= set(tried)
        found = yield tasks
        context.free |= taken
        context.at_stake -= set(tried)
        context.memory.grows = 2 * sum(one is not None for one in found) >= len(found)
        return dict(zip(tried, found, strict=True))

    def _task(self, context: PlanContext, target: int, failed: int) -> Task:
        """Task of a small run on the atoms of a target that failed ``failed`` times before."""
        key, few = (context.lap, BIRTH, target), self._sample(context)
        seen = self._documents(context, few) if failed == 0 else few
        rng = child_rng(context.seed, *key, 1)
        sample = context.model.structure.sample(context.atoms[target], seen, rng)
        widths = self._widths(failed, _has_words(context.model, sample, self.policy.words_need))
        args = (
            context.model.structure.part(context.model, context.posterior, target),
            sample,
            context.count(target),
            widths,
            self.refine,
            context.seed,
            key,
            few,
            self.policy.small_run,
        )
        return f"propose-lap{context.lap}-birth-of-cluster{target}", create, args

    def _neighbours(self, context: PlanContext, target: int) -> list[int]:
        """Clusters that are looked at with a target in its next attempt, nearest first."""
        return neighbours(context, target, self.policy) if context.calm and self._is_due(context, target) else []

    def _is_due(self, context: PlanContext, target: int) -> bool:
        """Whether the next attempt on a target looks at neighbours first."""
        failed = context.memory.failed(self.kind, (target,), [context.count(target)], self.change)
        looks = context.policy.births_beside and not self.at_batch
        return looks and failed >= self.policy.alone

    def _waiting(self, context: PlanContext) -> set[int]:
        """Clusters that wait to be looked at with their neighbours once clusters are calm."""
        if context.calm:
            return set()
        near = context.value.ids[overlap(context, self.policy)]
        return {target for target in near.tolist() if self._is_due(context, target)}

    def _to_look_beside(self, context: PlanContext, tried: list[int]) -> dict[int, list[int]]:
        """Targets whose neighbours are looked at now, with their neighbours that have gathered atoms."""
        near = {
            target: [i for i in self._neighbours(context, target) if i in context.atoms and context.atoms[i].n_atoms]
            for target in tried
        }
        return {target: others for target, others in near.items() if others}

    def _widths(self, failed: int, words: bool = False) -> tuple[int, ...]:
        """Numbers of new clusters to start a small run with: many at first, then fewer.

        With ``words`` the first attempt also estimates the number of topics from the words of the documents.

        Starting from few as well as from many matters: uniting cannot undo a split into overlapping parts (4.4.1).
        """
        widths = (self.fresh, max(2, self.fresh // 2), 2, max(2, self.fresh // 2))
        return (WORDS, widths[0]) if words and failed == 0 else (widths[failed % len(widths)],)

    def _sample(self, context: PlanContext) -> int:
        """Most atoms of a small run."""
        wanted = max(self.sample, int(self.policy.sample_numbers * numbers_per_cluster(context.model.observation)))
        if context.source.is_sparse:  # a document is more informative than one number
            wanted = context.policy.rows_per_sample * self.sample
        return context.at_most_sampled(wanted)

    def _documents(self, context: PlanContext, sample: int) -> int:
        """Most atoms gathered for each target: ``sample``, or all documents whose words are looked at."""
        if not (context.source.is_sparse and context.policy.asks_words):
            return sample
        length = max(float(np.sum(context.survey.mean)), 1.0)
        seen = int(self.policy.words_seen * self.sample / (length * context.value.n_clusters))
        return max(sample, context.at_most_sampled(seen))

    def _propose(self, context: PlanContext, target: int, found: Summary) -> None:
        beside = receivers(found)
        ids = context.memory.new_ids(found.n_clusters - len(beside))
        basis = Summary(np.array([*ids, *beside], np.int64), found.fields, found.values)
        name, donors = f"birth-lap{context.lap}-cluster{target}", (target, *beside)
        context.trials.append(Trial(name, donors, context.model.global_step(basis), rest=ids[0]))
        context.proposals.append(BirthProposal((target,), ids, Exchange(name, donors)))
        context.free -= set(donors)

    def _most(self, context: PlanContext, sample: int) -> int:
        """Most targets whose atoms are gathered in one lap, ``sample`` or twice as many of each."""
        return min(LAP.more * self.per_lap, context.room(2 * sample)) if context.calm else 0

    def _targets(self, context: PlanContext, planned: Collection[int] = (), most: int = 0) -> list[int]:
        """Clusters to split: large enough, not known to fail; clusters that never failed first, then the worst fit.

        ``per_lap`` of them, or ``most`` if that is more.

        Fit is the data term per atom (4.2.4).
        """
        score = context.model.data_terms(context.posterior.observation, context.value)
        eligible = []
        for k, (i, count) in enumerate(zip(context.value.ids.tolist(), context.value["N"], strict=True)):
            if count < self.min_atoms or i in planned or (self.where == "batch" and i not in context.free):
                continue
            failed = context.memory.failed(self.kind, (i,), [count], self.change)
            if failed < self.tries:
                eligible.append((failed, score[k] / count, i))
        return [i for _, _, i in sorted(eligible)[: max(self.per_lap, most)]]


def gather_atoms(model: Model, found: Visit, batch: Batch, gather: Gather, seed: int) -> Visit:
    """Visit of a batch with some atoms of each requested cluster, and requested whole documents."""
    rng = child_rng(seed, *gather.key)
    wanted = zip(gather.targets, gather.limits, strict=True)
    atoms = {
        target: at_most(batch, limit, rng) if target == WHOLE else model.gather(batch, found, target, limit, rng)
        for target, limit in wanted
    }
    return replace(found, members={}, shares={}, atoms=atoms)


def _has_words(model: Model, documents: Batch, need: int) -> bool:
    """Whether documents have enough words to tell how many topics there are."""
    return model.structure.policy.asks_words and documents.is_sparse and model.mass(documents) >= need
