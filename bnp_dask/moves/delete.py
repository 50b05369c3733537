"""Delete moves: the atoms of one cluster are shared out among its neighbours (thesis 4.3)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bnp_dask.core import Batch, Exchange, Summary, concatenate, register, unless_refused
from bnp_dask.execute import Task
from bnp_dask.inputs import hold, number_from, whole_number
from bnp_dask.kernels import matmul
from bnp_dask.model import Model
from bnp_dask.moves.base import DeleteProposal, PlanContext, Planning, Turn, hold_laps
from bnp_dask.moves.memory import WHOLE
from bnp_dask.moves.policy import ABSORBED, DECISION, LAP, DeletePolicy, hold_policy
from bnp_dask.moves.pools import a_step, best_value, climb, counting
from bnp_dask.observation import Labelled, numbers_per_cluster
from bnp_dask.structure import Trial, at_most

SET = "delete set"
"""Name under which failures of sets of leftovers are remembered."""

Begun = tuple[list[Batch], Summary]
"""Samples of a target and of its absorbing clusters, and the statistics of all of them."""

Absorbing = tuple[Summary, float]
"""Statistics of an absorbing set with a target's atoms, and the approximate gain, nats."""


@register
@dataclass(frozen=True)
class Delete:
    """Propose to remove a cluster.

    Parameters
    ----------
    per_lap
        Targets per lap; their absorbing sets are disjoint.  Clusters that are small beside the average come on top:
        they are first tried together, as one proposal.  Once clusters no longer come, go or noticeably change their
        counts, samples of up to eight times as many targets are looked at, as far as memory allows.
    absorbers
        Number of clusters that take over a target's atoms: the clusters that would receive most of these atoms without
        the target, judged from a sample gathered in the lap before.
    sweeps
        Laps in which a delete is refined before it is given up: each re-estimates the absorbing clusters from the
        assignments of the lap before (4.4.1 shows that one is not enough).  Stops early when a sweep gains little.
    refine
        Most restricted local steps on a sample before the first lap.
    change
        A rejected target is tried again when its count has changed by this share.
    tries
        Attempts on a cluster that does not change; each looks at other atoms.  The first is the last if clusters are
        calm and it leaves no doubt.
    laps, start
        When the move acts: in these laps alone, such as ``range(0, 20)`` (in a job file ``[0, 20]``), not before lap
        ``start``.  Laps are counted from 0, including laps of updates; nothing is decided in the first.  A run does not
        end as converged before all its moves have begun.
    policy
        Numbers that few will want to change: :class:`bnp_dask.moves.policy.DeletePolicy`.
    """

    per_lap: int = 5
    absorbers: int = 5
    sweeps: int = 8
    refine: int = 200
    change: float = 0.1
    tries: int = 3
    laps: range | tuple[int, int] | None = field(default=None, metadata={"optional": True})
    start: int = 0
    policy: DeletePolicy = field(default_factory=DeletePolicy, repr=False)
    kind = "delete"

    def __post_init__(self) -> None:
        for name in ("per_lap", "absorbers", "sweeps", "refine", "tries"):
            hold(self, name, whole_number(name, getattr(self, name), 1))
        hold(self, "change", number_from("change", self.change, 0.0))
        hold_policy(self, "policy", DeletePolicy)
        hold_laps(self)

    @property
    def at_batch(self) -> bool:
        return False

    def prepare(self, context: PlanContext) -> None:
        if context.value.n_clusters < 2:
            return
        wanted: list[int] = []
        targets = [i for i in self._targets(context) if i not in context.memory.sweeps]
        small = self._small(context)
        policy, atoms = context.policy, 2 * self._sample(context)
        in_all = max(1 + self.absorbers, context.room_left(atoms))
        wanted += [i for i in targets if i in small][: min(policy.together, in_all)]
        room = min(context.room(atoms) if context.calm else 0, in_all)
        for i, target in enumerate(targets[: LAP.more * self.per_lap]):
            more = len(set(wanted)) + 1 + self.absorbers
            if (i >= self.per_lap and more > room) or (i > 0 and more > in_all):
                break
            wanted.append(target)
            if policy.refines_on_samples:
                near = np.argsort(-context.pair_gains()[context.value.position(target)], kind="stable")
                wanted += context.value.ids[near[: min(self.absorbers, len(near) - 1)]].tolist()
        context.ask(wanted, -(-atoms // len(context.visited)))

    def plan(self, context: PlanContext) -> Planning:
        left = self.per_lap
        for target in sorted(context.memory.sweeps.keys() - {WHOLE}):
            sweep = context.memory.sweeps[target]
            if sweep.remembered_as == SET:
                self._propose_set(context, (target, *sweep.together), sweep.part)
            elif sweep.remembered_as == self.kind and left and context.free.issuperset((target, *sweep.receivers)):
                self._propose(context, (target,), sweep.part)
                left -= 1
        leftovers = self._set_of_leftovers(context)
        if leftovers:
            others = [int(i) for i in context.value.ids if int(i) not in leftovers]
            self._propose_set(context, leftovers, context.value.take(others))
        begun: dict[int, Begun] = {}
        group = _Group()
        small = self._small(context)
        absorbing: dict[int, set[int]] = {}
        waiting = []
        for target in self._targets(context):
            if target not in context.atoms or target not in context.free:
                continue
            failed = self._failed(context, target)
            if target in small and (not failed or context.policy.retries_together):
                self._join(context, target, small, group, failed)
                continue
            waiting.append(target)
            if len(begun) < left:
                self._begin(context, target, begun, absorbing)
        if group.targets:
            basis = context.value.take(self._in_order(context, group.absorbing))
            # prior mass that two trials of a lap leave to future clusters does not add up
            frees = not any(isinstance(p, DeleteProposal) and p.is_set for p in context.proposals)
            freed = self._leftovers(context, group.targets) if frees else ()
            self._propose(context, tuple(group.targets), basis, freed)
        while begun:
            found = yield from self._on_samples(context, begun)
            left -= self._judge(context, begun, found)
            waiting = [target for target in waiting if target not in begun]
            begun = {}
            for target in waiting if context.calm else ():  # targets given up no longer block others
                if target in context.free and len(begun) < left:
                    self._begin(context, target, begun, absorbing)

    def _on_samples(
        self, context: PlanContext, begun: dict[int, Begun]
    ) -> Generator[list[Task], list[Any], list[Absorbing]]:
        """Absorbing sets after a try on samples, and their gains there."""
        if not context.policy.refines_on_samples:
            return [(summary.take(summary.ids[1:]), 0.0) for _, summary in begun.values()]
        found: list[Absorbing] = yield self._tasks(context, begun)
        return found

    def _judge(self, context: PlanContext, begun: dict[int, Begun], found: list[Absorbing]) -> int:
        """Propose the targets that samples favour or leave open, by the results ``found`` of tasks; returns how many.

        Once clusters are calm, samples are trusted more: a target given up is not looked at again until its count has
        changed, and its absorbing set becomes free for others.
        """
        proposed, claimed = 0, context.claimed()
        for (target, (pool, summary)), (absorbing, gain) in zip(begun.items(), found, strict=True):
            split = claimed & {int(i) for i in summary.ids}
            if split:  # by a birth whose tasks were running when this delete began
                context.free |= {int(i) for i in summary.ids} - split
                continue
            doubt = _doubt(context.model, pool[0].n_atoms, self.policy) if context.calm else DECISION.hopeless
            if gain < -doubt * (1.0 + context.count(target)):
                why = "on a sample its atoms are far better off with it"
                context.give_up(self.kind, (target,), why, self.tries if context.calm else 1)
                context.free |= {int(i) for i in summary.ids} if context.calm else set()
            else:
                self._propose(context, (target,), absorbing)
                proposed += 1
        return proposed

    def _small(self, context: PlanContext) -> set[int]:
        """Clusters with few atoms beside the average: many of them may go together."""
        counts = context.value["N"]
        limit = context.policy.of_mean * counts.mean()
        if context.policy.of_typical is not None:
            limit = min(context.policy.of_typical * matmul(counts, counts) / counts.sum(), limit)
        return set(context.value.ids[counts < limit].tolist())

    def _leftovers(self, context: PlanContext, targets: list[int]) -> tuple[int, ...]:
        """Targets that hold next to nothing: their prior mass in groups is better left to future clusters."""
        leftovers = set(self.policy.leftovers(context.value))
        return tuple(target for target in targets if target in leftovers)

    def _set_of_leftovers(self, context: PlanContext) -> tuple[int, ...]:
        """Leftovers and topics far below the mean, to go together while all others are re-estimated; empty for none.

        Such a topic costs more, for each of its tokens, than its tokens gain: it changes the weights of all documents.
        One local step shows little of that, and fewer receivers than all show less.  All are tried first,
        and after each failure the smaller half.  Only once clusters are calm, and one set at a time: a lap with a set
        takes up to twice as long.
        """
        policy, value = context.policy, context.value
        is_refined = any(sweep.remembered_as == SET for sweep in context.memory.sweeps.values())
        if policy.refines_on_samples or not context.calm or is_refined:
            return ()
        light = value.ids[value["N"] < self.policy.set_of_mean * value["N"].mean()].tolist()
        found = sorted({*self.policy.leftovers(value), *light}, key=lambda i: (context.count(i), i))
        while found and len(found) < value.n_clusters:
            targets = tuple(found)
            if not context.memory.failed(SET, targets, context.counts(targets), self.change):
                return targets if context.free.issuperset(targets) else ()
            found = found[: len(found) // 2]
        return ()

    def _propose_set(self, context: PlanContext, targets: tuple[int, ...], basis: Summary) -> None:
        """Propose that a set of clusters vanishes and all others are re-estimated, from the statistics ``basis``.

        Other proposals of the lap may name these others; the set is decided last, and is void if they changed.
        """
        receivers = tuple(int(i) for i in basis.ids)
        name = f"delete-lap{context.lap}-set-of-cluster{targets[0]}"
        donors = (*targets, *receivers)
        edit = Exchange(name, donors, shifts=True)
        proposal = DeleteProposal(
            targets, receivers, edit, self.sweeps, hopeless=self.policy.set_hopeless, remembered_as=SET
        )
        trial = Trial(name, donors, context.beliefs_of_all(basis), freed=targets)
        context.propose(proposal, trial, takes=targets)

    def _failed(self, context: PlanContext, target: int) -> int:
        """How often deleting the target was rejected, alone or with others."""
        return context.memory.failed(self.kind, (target,), [context.count(target)], self.change)

    def is_urgent(self, context: PlanContext) -> bool:
        """Whether there is a crowd of small clusters: merges would take their absorbing clusters."""
        crowd = context.policy.crowd
        if crowd is None:
            return False
        new = [i for i in self._small(context) & context.free if i in context.atoms and not self._failed(context, i)]
        return len(new) > crowd * context.value.n_clusters

    def turn(self, context: PlanContext) -> Turn:
        """Deletes that are being refined go early."""
        if context.memory.sweeps.keys() - {WHOLE}:
            return Turn.REFINED
        return Turn.URGENT if self.is_urgent(context) else Turn.USUAL

    def _join(self, context: PlanContext, target: int, small: set[int], group: _Group, failed: int) -> None:
        """Let a small target vanish together with others that failed as often, if its absorbing clusters are free."""
        most = max(1, min(context.policy.together, len(small)) >> 2 * failed)
        if len(group.targets) >= most or (group.targets and group.failed != failed):
            return
        others = np.array([i for i in context.value.ids.tolist() if i not in small], np.int64)
        if context.policy.spares_absorbers:
            able = others[np.isin(others, [*context.free, *group.absorbing])]
            if 2 * len(able) < len(others):
                return
            others = able
        absorbing = self._absorbing_set(context, target, others, self.policy.wider * self.absorbers)
        if {target, *absorbing} <= context.untouched() | group.absorbing:
            group.failed = failed
            group.targets.append(target)
            group.absorbing |= absorbing
            context.free -= {target, *absorbing}

    def _sample(self, context: PlanContext) -> int:
        """Number of atoms of each cluster that are looked at."""
        return context.at_most_sampled(max(self.policy.sample, numbers_per_cluster(context.model.observation)))

    def _in_order(self, context: PlanContext, ids: set[int]) -> list[int]:
        return [int(i) for i in context.value.ids if int(i) in ids]

    def _absorbing_set(self, context: PlanContext, target: int, others: np.ndarray, most: int) -> set[int]:
        """Clusters among ``others`` that would take over the target's atoms without it, at most ``most``."""
        value = context.value
        seen = self._sample(context) if context.policy.seen is None else context.policy.seen
        own = at_most(_alone(context, target), seen, context.rng(ABSORBED, target))
        near = context.pair_gains()[value.position(target)]
        known = others[near[value.positions(others)] > -np.inf]
        if isinstance(context.model.observation, Labelled):
            known = others  # clusters of other labels may take over the atoms without one
        others = known if len(known) else others  # among many topics, only topics with words like the target's
        if own.n_atoms == 0:
            return {max(others.tolist(), key=lambda i: near[value.position(i)])}
        mass = context.model.structure.absorbed(context.model, context.posterior, value, own, others)
        order = np.argsort(-mass, kind="stable")[: max(1, int((mass > self.policy.worth * mass.sum()).sum()))]
        return set(others[order[:most]].tolist())

    def _targets(self, context: PlanContext) -> list[int]:
        """Clusters not known to fail: first clusters that never failed, then by size, smallest first."""
        counts = dict(zip(context.value.ids.tolist(), context.value["N"], strict=True))
        if len(counts) < 2:
            return []
        failed = {i: context.memory.failed(self.kind, (i,), [n], self.change) for i, n in counts.items()}
        eligible = [i for i in counts if failed[i] < self.tries]
        return sorted(eligible, key=lambda i: (failed[i], counts[i]))

    def _tasks(self, context: PlanContext, begun: dict[int, Begun]) -> list[Task]:
        share = self.policy.work_share * context.survey.n_atoms * context.value.n_clusters
        work = max(self.policy.work_always, share) / max(1, len(begun))
        tasks: list[Task] = []
        for target, (pool, summary) in begun.items():
            sweeps = int(work / max(1, sum(b.n_atoms for b in pool) * summary.n_clusters))
            alone = context.model.structure.untied_summary(context.model, summary)
            steps = max(self.policy.least_steps, min(self.refine, sweeps))
            args = (context.model.structure.untied(context.model), pool, alone, steps, self.policy)
            tasks.append((f"propose-lap{context.lap}-delete-of-cluster{target}", refine, args))
        return tasks

    def _begin(
        self, context: PlanContext, target: int, begun: dict[int, Begun], absorbing: dict[int, set[int]]
    ) -> None:
        """Choose the absorbing set, and collect the samples from which a task re-estimates it.

        A target waits if another proposal touches its absorbing set.  ``absorbing`` holds the sets of this lap, by
        target.
        """
        value, size = context.value, self._sample(context)
        if target not in absorbing:
            absorbing[target] = self._absorbing_set(context, target, value.ids[value.ids != target], self.absorbers)
        chosen = absorbing[target]
        if not context.free.issuperset(chosen):
            return
        own = at_most(_alone(context, target), size, context.rng(ABSORBED, target))
        receivers = self._in_order(context, chosen)
        atoms = [counting(own, context.count(target))]
        for i in receivers:
            if i in context.atoms and context.atoms[i].n_atoms:
                atoms.append(
                    counting(at_most(_alone(context, i), size, context.rng(ABSORBED, target, i)), context.count(i))
                )
        begun[target] = atoms, value.take([target, *receivers])
        context.free -= {target, *receivers}

    def _propose(
        self, context: PlanContext, targets: tuple[int, ...], basis: Summary, freed: tuple[int, ...] = ()
    ) -> None:
        receivers = tuple(int(i) for i in basis.ids)
        donors = (*targets, *receivers)
        name = f"delete-lap{context.lap}-cluster{targets[0]}"
        # small targets do not change the other clusters, so only their own atoms are looked at; their small shares of
        # other atoms go to the nearest receiver
        small = sum(context.counts(targets)) < self.policy.small * sum(context.counts(receivers))
        near = context.pair_gains()[context.value.position(targets[0])]
        rest = max(receivers, key=lambda i: near[context.value.position(i)])
        tied = context.model.structure.tied_summary(context.model, basis, context.value)
        beliefs = context.model.global_step(tied)
        trial = Trial(name, donors, beliefs, targets if small else donors, rest, freed)
        sweeps = self.sweeps if len(targets) == 1 else 1
        # clusters not re-estimated on a sample may still change much in later laps
        weight = self.tries if context.calm and context.policy.refines_on_samples else 1
        edit = Exchange(name, donors, bool(freed))
        context.propose(DeleteProposal(targets, receivers, edit, sweeps=sweeps, weight=weight), trial)


def _alone(context: PlanContext, cluster: int) -> Batch:
    """Gathered atoms of a cluster; steps of sequences as single atoms."""
    return context.model.structure.alone(context.atoms[cluster])


@dataclass
class _Group:
    """Small clusters that are to vanish together, and their absorbing clusters."""

    targets: list[int] = field(default_factory=list)
    absorbing: set[int] = field(default_factory=set)
    failed: int = 0


def refine(model: Model, pool: list[Batch], summary: Summary, sweeps: int, policy: DeletePolicy) -> Absorbing:
    """Task: re-estimate the absorbing clusters without the target, from samples, and estimate the gain.

    First their own atoms stay, and only the target's atoms are shared out among them; a small target needs no more.
    Then all their atoms are assigned anew (4.4.1 shows that one step is not enough).

    Parameters
    ----------
    model
        The model.
    pool
        Atoms of the target, then of each absorbing cluster, weighted to stand for all atoms of their cluster.
    summary
        Statistics of these clusters; the target comes first.
    sweeps
        Most local steps of each kind.
    policy
        Numbers of the move.

    Returns
    -------
    absorbing, gain
        Statistics of the absorbing clusters, and the approximate gain of the delete, nats.
    """
    model = model.in_double  # absorbing clusters overlap: screening would be an extra cost
    own = summary.take(summary.ids[1:])
    if pool[0].n_atoms == 0:
        return own, 0.0
    return unless_refused(_refined, model, pool, summary, own, sweeps, policy, otherwise=(own, -np.inf))


def _refined(
    model: Model, pool: list[Batch], summary: Summary, own: Summary, sweeps: int, policy: DeletePolicy
) -> Absorbing:
    absorbing, gain = climb(model, own, own, pool[0], best_value(model, summary), sweeps, policy.enough)
    if summary["N"][0] < policy.small * own["N"].sum() or len(pool) < summary.n_clusters:
        return absorbing, gain
    everything = concatenate(pool)
    together = summary.take([*own.ids, *summary.ids[:1]])
    before = best_value(model, a_step(model, together, everything))
    return climb(model, own.zeros(), absorbing, everything, before, sweeps, policy.enough)


def _doubt(model: Model, n_atoms: int, policy: DeletePolicy) -> float:
    """Nats per atom of a target by which a sample of ``n_atoms`` of its atoms may make a delete look worse than it is.

    An additional cluster fits the sample better by half a nat for each of its numbers (Akaike's criterion).
    """
    return min(DECISION.hopeless, policy.calm_doubt + 0.5 * numbers_per_cluster(model.observation) / max(1, n_atoms))
