"""Proposals, the plan of a lap, the laps in which a move acts, and the context in which it plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, auto
from typing import Any, Protocol, runtime_checkable

import numpy as np

from bnp_dask.core import Batch, Exchange, Merge, Summary, Survey, Unite
from bnp_dask.data import Source
from bnp_dask.errors import SettingError
from bnp_dask.execute import Executor, Task
from bnp_dask.initialize import documents_counted, topics_of_tokens
from bnp_dask.inputs import MOST, hold, is_a, shown, whole_number
from bnp_dask.model import NO_PAIRS, Model, Posterior
from bnp_dask.moves.memory import WHOLE, Basis, Memory
from bnp_dask.moves.pairs import PairGains
from bnp_dask.moves.policy import DECISION, LAP, PLANNING, SmallRunPolicy
from bnp_dask.structure import MovePolicy, Trial


# -- proposals ------------------------------------------------------------------------------------------------------
class Priority(IntEnum):
    """Place of a proposal among the decisions of a lap."""

    FIRST = auto()
    USUAL = auto()
    LAST = auto()


@dataclass(frozen=True)
class Proposal:
    """Change of clusters of a kind of one's own, tried in one lap.

    The moves of this package make :class:`MergeProposal`, :class:`DeleteProposal` and :class:`BirthProposal`.

    Parameters
    ----------
    kind
        Name of the kind, for the history and for the memory of failures.
    targets
        Ids of the clusters that would vanish or be split.
    others
        Ids that would take over.
    edit
        Edit that would be applied.  It is accepted if the objective rises, or stays equal to rounding.
    sweeps
        Laps in which it may be tried with re-estimated clusters before it counts as failed.
    weight
        Number of failures that a clear failure on the whole data counts as; from two on it is not refined then either.
    again
        Whether it is made in every lap; no lap is run for such proposals alone.
    """

    kind: str
    targets: tuple[int, ...]
    others: tuple[int, ...]
    edit: Merge | Unite | Exchange
    sweeps: int = 1
    weight: int = 1
    again: bool = False

    @property
    def remembered_as(self) -> str:
        """Name under which failures are remembered."""
        return self.kind

    @property
    def priority(self) -> Priority:
        """Proposals that name no cluster concern all of them and come first; proposals of every lap come last."""
        if self.again:
            return Priority.LAST
        return Priority.USUAL if self.targets else Priority.FIRST


@dataclass(frozen=True)
class MergeProposal:
    """Two clusters become one.

    Parameters
    ----------
    edit
        The pair; the cluster that stays comes first.
    again
        Whether it is made in every lap; no lap is run for such proposals alone.
    """

    edit: Merge | Unite
    again: bool = False
    kind = remembered_as = "merge"
    sweeps = weight = 1

    @property
    def targets(self) -> tuple[int, ...]:
        """Ids of the pair."""
        return self.edit.keep, self.edit.drop

    @property
    def others(self) -> tuple[int, ...]:
        """No ids: one of the pair takes over."""
        return ()

    @property
    def priority(self) -> Priority:
        """Pairs that are proposed in every lap come last."""
        return Priority.LAST if self.again else Priority.USUAL


@dataclass(frozen=True)
class DeleteProposal:
    """Some clusters vanish, and others take over their atoms.

    Parameters
    ----------
    targets
        Ids of the clusters that would vanish.
    others
        Ids of the absorbing set.
    edit
        Edit that would be applied.
    sweeps
        Laps in which it may be tried with re-estimated clusters before it counts as failed.
    weight
        Number of failures that a clear failure on the whole data counts as; from two on it is not refined then either.
    hopeless
        Nats per atom of the targets: a delete that lacks more is not refined.
    remembered_as
        Name under which failures are remembered: targets of a ``"delete"`` each for itself, others as one set.
    """

    targets: tuple[int, ...]
    others: tuple[int, ...]
    edit: Exchange
    sweeps: int = 1
    weight: int = 1
    hopeless: float = DECISION.hopeless
    remembered_as: str = "delete"
    kind = "delete"
    again = False

    @property
    def is_set(self) -> bool:
        """Whether the targets go together or not at all."""
        return self.remembered_as != self.kind

    @property
    def priority(self) -> Priority:
        """Sets that leave their atoms to all others come last: accepting one makes others impossible."""
        return Priority.LAST if self.is_set else Priority.USUAL


@dataclass(frozen=True)
class BirthProposal:
    """New clusters take over atoms of existing ones.

    Parameters
    ----------
    targets
        Id of the cluster that would be split, or ids of neighbours that would be cut anew together; empty if all
        clusters give atoms and stay.
    others
        Ids of the newborn clusters; for states of sequences also of the states that give steps and stay.
    edit
        Edit that would be applied.
    remembered_as
        Name under which failures are remembered; it tells where the atoms came from.
    sweeps
        Laps in which it may be tried with re-estimated clusters before it counts as failed.
    learns
        Whether it may be accepted together with a prior that is learned anew.
    """

    targets: tuple[int, ...]
    others: tuple[int, ...]
    edit: Exchange
    remembered_as: str = "birth"
    sweeps: int = 1
    learns: bool = False
    kind = "birth"
    weight = 1
    again = False

    @property
    def priority(self) -> Priority:
        """Births that take from all clusters come first: they can make some of the others impossible."""
        return Priority.USUAL if self.targets else Priority.FIRST


AnyProposal = Proposal | MergeProposal | DeleteProposal | BirthProposal


def named_by(proposal: AnyProposal) -> set[int]:
    """Ids of all clusters that a proposal would change, and of the clusters that would take over."""
    donors = proposal.edit.donors if isinstance(proposal.edit, Exchange) else ()
    return {*proposal.targets, *proposal.others, *donors}


@dataclass(frozen=True)
class Split:
    """Attempt to split a cluster using the atoms of one batch alone, or of some new batches.

    ``target`` is the id of the cluster; ``fresh``, ``refine``, ``sample`` and ``min_atoms`` are as in ``Birth``,
    ``policy`` as in its policy; ``key`` seeds the random numbers.
    """

    target: int
    fresh: int
    refine: int
    sample: int
    min_atoms: float
    key: tuple[int, ...]
    policy: SmallRunPolicy = field(default_factory=SmallRunPolicy)


@dataclass(frozen=True)
class Gather:
    """Atoms that a task returns: up to ``limits`` of each of the cluster ids ``targets``, drawn with ``key``."""

    targets: tuple[int, ...] = ()
    limits: tuple[int, ...] = ()
    key: tuple[int, ...] = ()

    @property
    def clusters(self) -> tuple[int, ...]:
        """Targets that are clusters."""
        return tuple(target for target in self.targets if target != WHOLE)

    def also(self, targets: Iterable[int], limit: int) -> Gather:
        """Request that also asks for up to ``limit`` atoms of each of ``targets``; larger existing limits stay."""
        limits = dict(zip(self.targets, self.limits, strict=True))
        for target in targets:
            limits[target] = max(limit, limits.get(target, 0))
        return replace(self, targets=tuple(limits), limits=tuple(limits.values()))


@dataclass(frozen=True, eq=False)
class Plan:
    """Proposals and requests of one lap.

    Parameters
    ----------
    pairs
        Pairs of ids to track, ``(M, 2)``.
    trials
        Trials to carry out in every batch.
    proposals
        Proposals to decide at the end of the lap.
    splits
        Attempts to split a cluster at one batch, by batch; decided when that batch is folded.
    given_up
        History rows of proposals that were dropped during planning.
    gather
        Clusters whose atoms are gathered from every batch, for births in the next lap.
    """

    pairs: np.ndarray = field(default_factory=lambda: NO_PAIRS)
    trials: tuple[Trial, ...] = ()
    proposals: tuple[AnyProposal, ...] = ()
    splits: Mapping[int, Split] = field(default_factory=dict)
    given_up: tuple[dict[str, Any], ...] = ()
    gather: Gather = Gather()

    def without(self, cluster: int) -> tuple[Plan, tuple[AnyProposal, ...]]:
        """Plan without the proposals that name a cluster, and these; its trials stay, and its pairs are not tracked."""
        gone = tuple(proposal for proposal in self.proposals if cluster in named_by(proposal))
        kept = tuple(proposal for proposal in self.proposals if cluster not in named_by(proposal))
        return replace(self, proposals=kept, pairs=self.pairs[~np.isin(self.pairs, cluster).any(axis=1)]), gone

    @property
    def n_proposed(self) -> int:
        """Number of proposals that this lap makes or prepares, with dropped ones; proposals made in every lap do not
        count."""
        made = sum(not proposal.again for proposal in self.proposals)
        return made + len(self.splits) + len(self.given_up) + len(self.gather.targets)


@dataclass
class Draft:
    """Plan of a lap while moves fill it.

    Parameters
    ----------
    free
        Ids that no proposal of this lap names yet.
    at_stake
        Ids that a birth whose tasks still run will name if it succeeds.
    pairs, trials, proposals, splits, given_up, gather
        As in :class:`Plan`.
    """

    free: set[int]
    at_stake: set[int] = field(default_factory=set)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    proposals: list[AnyProposal] = field(default_factory=list)
    splits: dict[int, Split] = field(default_factory=dict)
    given_up: list[dict[str, Any]] = field(default_factory=list)
    gather: Gather = Gather()

    def plan(self) -> Plan:
        """Plan of everything proposed so far."""
        return Plan(
            pairs=np.array(self.pairs, np.int64).reshape(-1, 2),
            trials=tuple(self.trials),
            proposals=tuple(self.proposals),
            splits=self.splits,
            given_up=tuple(self.given_up),
            gather=self.gather,
        )


@dataclass
class PlanContext:
    """Facts from which a move plans, and the draft of the plan, which moves fill.

    Parameters
    ----------
    model, posterior
        The model, and its current posterior.
    value
        The exact whole-data summary behind the posterior.
    source, survey, executor
        The data, their survey, and the executor of tasks.
    memory
        Lessons of earlier laps.
    lap, seed
        Number of the lap, and the seed of the run.
    pair_gains
        Returns the exact change of the data term if two clusters were united, computed once a lap, for near pairs:
        ``pair_gains()[k]`` is the row of the cluster at position k, ``(K,)`` nats, -inf for itself and far ones.
    draft
        The plan so far.  :meth:`propose` and :meth:`give_up` add to it.
    atoms
        Atoms gathered in the lap before, by cluster.
    calm
        Whether no cluster came, went or noticeably changed its count in that lap.
    pending
        Births found at single batches in the lap before; None if the schedule keeps none.
    batches
        Batches of the sample to which the run, and its survey, are limited at present, ascending; None: all.
    proposes
        Whether the lap visits every batch in the total, so that proposals can be tracked.
    """

    model: Model
    posterior: Posterior
    value: Summary
    source: Source
    survey: Survey
    executor: Executor
    memory: Memory
    lap: int
    seed: int
    pair_gains: Callable[[], PairGains]
    draft: Draft
    atoms: Mapping[int, Batch] = field(default_factory=dict)
    calm: bool = False
    pending: Mapping[int, tuple[Basis, ...]] | None = None
    batches: np.ndarray | None = None
    proposes: bool = True

    # -- the draft --------------------------------------------------------------------------------------------------
    @property
    def free(self) -> set[int]:
        """Ids that no proposal of this lap names yet."""
        return self.draft.free

    @free.setter
    def free(self, ids: set[int]) -> None:
        self.draft.free = ids

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of ids to track."""
        return self.draft.pairs

    @property
    def trials(self) -> list[Trial]:
        """Trials to carry out in every batch."""
        return self.draft.trials

    @property
    def proposals(self) -> list[AnyProposal]:
        """Proposals to decide at the end of the lap."""
        return self.draft.proposals

    def untouched(self) -> set[int]:
        """Ids that no proposal names, and that no running birth will name."""
        return self.draft.free - self.draft.at_stake

    def claimed(self) -> set[int]:
        """Ids that proposals would replace."""
        return {i for p in self.proposals if isinstance(p.edit, Exchange) for i in p.edit.donors}

    def ask(self, clusters: Iterable[int], atoms: int) -> None:
        """Request up to ``atoms`` atoms of each cluster from every batch, for proposals of the next lap."""
        self.draft.gather = self.draft.gather.also(clusters, atoms)

    def propose(self, proposal: AnyProposal, trial: Trial | None = None, takes: Collection[int] | None = None) -> None:
        """Add a proposal to the plan of this lap.

        Parameters
        ----------
        proposal
            The proposal; for a merge the lap tracks the pair.
        trial
            The trial that every batch carries out for it.
        takes
            Ids that are no longer free; all that the proposal would change, unless given.
        """
        self.proposals.append(proposal)
        if isinstance(proposal.edit, Merge):
            self.pairs.append((proposal.edit.keep, proposal.edit.drop))
        if trial is not None:
            self.trials.append(trial)
        if takes is None:
            takes = proposal.edit.donors if isinstance(proposal.edit, Exchange) else proposal.targets
        self.free -= set(takes)

    def give_up(
        self, kind: str, targets: tuple[int, ...], why: str, times: int = 1, remembered_as: str | None = None
    ) -> None:
        """Drop a proposal that was never tried on the whole data; this counts as ``times`` failures."""
        counts = self.counts(targets) or [self.tokens]
        self.memory.remember_failure(remembered_as or kind, targets, counts, times)
        self.draft.given_up.append(record(kind, targets, (), None, False, why))

    # -- the facts --------------------------------------------------------------------------------------------------
    @property
    def policy(self) -> MovePolicy:
        """How moves treat clusters of models of this structure."""
        return self.model.structure.policy

    def beliefs_of_all(self, part: Summary) -> Posterior:
        """Posterior from the statistics ``part`` of a trial on all clusters.

        A trial leaves sums that belong to no cluster, such as the number of documents, as they are in the whole data.
        Without them the weights of topics would follow from their tokens alone.
        """
        sums = {name: self.value[name] for name, field in part.fields.items() if not field.n_cluster_axes}
        return self.model.global_step(replace(part, values={**part.values, **sums}))

    @property
    def side_by_side(self) -> bool:
        """Whether a move begins to plan while tasks of earlier moves run, which keeps more workers busy.

        Not once clusters are calm, when births look at nearly all of them; deletes of topics need no tasks.
        """
        return self.policy.plans_side_by_side and not self.calm

    def count(self, cluster: int) -> float:
        """N of a cluster."""
        return float(self.value["N"][self.value.position(cluster)])

    @property
    def tokens(self) -> float:
        """N of all clusters."""
        return float(self.value["N"].sum())

    def counts(self, clusters: Iterable[int]) -> list[float]:
        """N of several clusters."""
        return [self.count(c) for c in clusters]

    @property
    def visited(self) -> np.ndarray:
        """Batches that laps visit at present, ascending."""
        return np.arange(self.source.n_batches) if self.batches is None else self.batches

    @property
    def numbers_per_atom(self) -> float:
        """Average count of numbers in an atom, at least one."""
        return max(1.0, self.survey.nbytes / np.dtype(np.float64).itemsize / max(1, self.survey.n_atoms))

    def at_most_sampled(self, atoms: int) -> int:
        """Number of atoms, lowered if one sample would grow too large."""
        return max(1, min(atoms, int(LAP.sampled / self.numbers_per_atom)))

    def room(self, atoms: int) -> int:
        """Number of clusters whose ``atoms`` may be gathered at a time, beyond the settings of a move."""
        return int(LAP.gathered / (max(1, atoms) * self.numbers_per_atom))

    def room_left(self, atoms: int) -> int:
        """Number of clusters whose ``atoms`` may still be gathered in this lap, over all moves."""
        asked = self.numbers_per_atom * sum(self.draft.gather.limits) * len(self.visited)
        return max(0, int((LAP.gathered_in_all - asked) / (max(1, atoms) * self.numbers_per_atom)))

    def rng(self, *key: int) -> np.random.Generator:
        """Random numbers keyed by seed, lap and ``key``."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.lap, PLANNING, *key)))


Planning = Generator[Iterable[Task], list[Any], None]
"""Planning of a move: yields tasks to run and is sent their results, in order, as often as it needs any.

Large tasks are made when they are sent, and only some are in flight at a time.

The names of all its tasks begin with ``propose``.  Dask lets an idle worker steal tasks that wait at a busy one if that
pays, judged by how long tasks with the same first word have taken so far.
"""


class Move(Protocol):
    """Kind of change of the clusters, and how it is proposed."""

    kind: str

    @property
    def at_batch(self) -> bool:
        """Whether the move changes clusters within a lap, which needs the memoized schedule."""
        ...

    def is_urgent(self, context: PlanContext) -> bool:
        """Whether the move plans before the moves that alternate in going first."""
        ...

    def plan(self, context: PlanContext) -> Planning:
        """Add pairs, trials and proposals to the context, and take the clusters they name out of ``free``.

        Other moves may begin while its tasks run, and may use all clusters that it has neither taken nor put
        ``at_stake``.
        """
        ...

    def prepare(self, context: PlanContext) -> None:
        """Request atoms, gathered in this lap for proposals of the next."""
        ...


class Turn(IntEnum):
    """Places of moves that plan in turn, the earliest first; moves of the same place alternate in going first."""

    ALL_CLUSTERS = auto()
    """A candidate that takes from all clusters leaves none to others."""
    BESIDE_NEIGHBOURS = auto()
    """Births that look at neighbours: deletes that are being refined would hold these."""
    REFINED = auto()
    """Deletes that are being refined."""
    BIRTHS = auto()
    """Other births, whose atoms are gathered already."""
    URGENT = auto()
    """Moves that are urgent, such as deletes that a crowd of small topics needs."""
    USUAL = auto()
    """All other moves."""


@runtime_checkable
class InTurn(Protocol):
    """Move with a place of its own among the moves of a lap.  Others are urgent or not (:meth:`Move.is_urgent`)."""

    def turn(self, context: PlanContext) -> Turn:
        """Place among the moves that plan in this lap."""
        ...


def record(
    kind: str, targets: tuple[int, ...], others: tuple[int, ...], gain: float | None, accepted: bool, why: str
) -> dict[str, Any]:
    """History row of a proposal; ``gain`` in nats, None if it was never evaluated on the whole data."""
    return {
        "kind": kind,
        "targets": list(targets),
        "others": list(others),
        "gain": gain,
        "accepted": accepted,
        "why": why,
    }


def row_of(proposal: AnyProposal, gain: float | None, accepted: bool, why: str) -> dict[str, Any]:
    """History row of a proposal; as :func:`record`."""
    return record(proposal.kind, proposal.targets, proposal.others, gain, accepted, why)


Parts = Mapping[str, Summary]
"""Whole-data statistics of trials, by name."""


# -- laps in which moves act: from a lap on, or only in some laps -----------------------------------------------------


@runtime_checkable
class Scheduled(Protocol):
    """Move that may not act in every lap.  Moves without these settings act in every lap.

    Laps are counted from 0: lap ``n`` comes after ``n`` others.
    """

    @property
    def laps(self) -> range | tuple[int, int] | None:
        """First lap in which the move acts, and first lap in which it no longer does; None for no such limits."""
        ...

    @property
    def start(self) -> int:
        """First lap in which the move may act."""
        ...


def hold_laps(move: Any) -> None:
    """Check and convert the laps in which a move acts; SettingError if they are invalid."""
    hold(move, "start", whole_number("start", move.start))
    if move.laps is None:
        return
    first, stop = _limits(move.laps)
    first, stop = whole_number("laps[0]", first), whole_number("laps[1]", stop)
    if stop <= max(first, move.start):
        raise SettingError(f"laps={shown(move.laps)}, start={move.start}: no lap is left; leave the move out instead")
    hold(move, "laps", (first, stop))


def acts(move: Move, lap: int) -> bool:
    """Whether a move acts in a lap."""
    first, stop = _when(move)
    return first <= lap < stop


def is_to_come(move: Move, lap: int) -> bool:
    """Whether the first lap in which a move acts is later than this one."""
    return lap < _when(move)[0]


def _when(move: Move) -> tuple[int, int]:
    if not is_a(move, Scheduled):
        return 0, MOST
    first, stop = (0, MOST) if move.laps is None else _limits(move.laps)
    return max(first, move.start), stop


def _limits(laps: Any) -> tuple[int, int]:
    if isinstance(laps, range) and laps.step == 1:
        return laps.start, laps.stop
    if isinstance(laps, (tuple, list)) and len(laps) == 2:
        return laps[0], laps[1]
    raise SettingError(f"laps={shown(laps)}: needs a range of laps in a row, such as range(0, 20)")


# -- number of topics that a corpus usually shows, by which births of topics decide how many to seek ------------------


def usual_number(context: PlanContext, seen: float = math.inf) -> int:
    """Number of topics that the corpus may show, by a rule of thumb from its tokens and documents.

    At most as many as ``seen`` tokens show, for births that look at so many however large the corpus is.
    """
    return topics_of_tokens(min(context.tokens, seen), documents_counted(context.survey))
