"""Proposals, the plan of a lap, what is remembered of failures, and what a move is given."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.edits import Exchange, Merge, Unite
from bnp_dask.core.frozen import thawed
from bnp_dask.core.summary import Summary
from bnp_dask.core.survey import Survey
from bnp_dask.data.base import Source
from bnp_dask.execute.base import Executor, Task
from bnp_dask.model import NO_PAIRS, Model, Posterior
from bnp_dask.moves.lap_policy import LAP
from bnp_dask.moves.policy import SmallRunPolicy
from bnp_dask.moves.random_keys import PLANNING
from bnp_dask.moves.scores import gain_matrix
from bnp_dask.structure.base import Trial
from bnp_dask.structure.policy import MovePolicy

WHOLE = -1
"""Stands among clusters for whole documents: those that are gathered, and the candidate that was found in them."""

DOCUMENTS = "documents"
"""Kind of proposals that take from all clusters at once; their targets are empty."""


@dataclass(frozen=True)
class Proposal:
    """A change of clusters that one lap tries out.

    Parameters
    ----------
    kind
        ``"birth"``, ``"merge"`` or ``"delete"``.
    targets
        Ids of the clusters that would vanish or be split; for a merge the pair, the one that stays first; empty where
        all clusters give and stay.
    others
        Ids that would take over: newborn clusters, or the absorbing set.
    edit
        What would be done.
    sweeps
        In how many laps it may be tried with re-estimated clusters before it counts as failed.
    weight
        As how many failures it counts if it fails clearly on the whole data; from two on it is not refined then either.
    again
        Whether it is made in every lap, so that no lap is run for it alone.
    """

    kind: str
    targets: tuple[int, ...]
    others: tuple[int, ...]
    edit: Merge | Unite | Exchange
    sweeps: int = 1
    weight: int = 1
    again: bool = False


def named_by(proposal: Proposal) -> set[int]:
    """Ids of all clusters that a proposal would change, or that would take over from them."""
    donors = proposal.edit.donors if isinstance(proposal.edit, Exchange) else ()
    return {*proposal.targets, *proposal.others, *donors}


@dataclass(frozen=True)
class Split:
    """An attempt to split a cluster using the atoms of one batch alone, or of some new ones.

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
    """Which atoms a task brings along: of the cluster ids ``targets`` up to ``limits`` each, drawn with ``key``."""

    targets: tuple[int, ...] = ()
    limits: tuple[int, ...] = ()
    key: tuple[int, ...] = ()

    @property
    def clusters(self) -> tuple[int, ...]:
        """Those of the targets that are clusters."""
        return tuple(target for target in self.targets if target != WHOLE)

    def also(self, targets: Iterable[int], limit: int) -> Gather:
        """Request for up to ``limit`` atoms of each of ``targets`` too, or the larger limit that it has already."""
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
        To carry out in every batch.
    proposals
        To decide at the end of the lap.
    splits
        Attempts to split a cluster at one batch, by batch; decided when that batch is folded.
    given_up
        History rows of proposals that were dropped while they were made.
    gather
        Clusters whose atoms are gathered from every batch, for births in the next lap.
    """

    pairs: np.ndarray = field(default_factory=lambda: NO_PAIRS)
    trials: tuple[Trial, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    splits: Mapping[int, Split] = field(default_factory=dict)
    given_up: tuple[dict[str, Any], ...] = ()
    gather: Gather = Gather()

    @property
    def n_proposed(self) -> int:
        """How many proposals this lap makes or prepares, with those dropped while they were made, and without those of
        every lap."""
        made = sum(not proposal.again for proposal in self.proposals)
        return made + len(self.splits) + len(self.given_up) + len(self.gather.targets)


@dataclass
class Memory:
    """Lessons of earlier laps about proposals; they survive a checkpoint.

    ``failures`` maps (kind, targets) to the counts N of the targets when they failed and, last, how often in a row they
    failed with about these counts; ``sweeps`` holds the statistics of rejected deletes that are still improving, and
    under :data:`WHOLE` those of a candidate that takes from all clusters, with how often they were tried; ``next_id``
    is the next cluster id that was never used; ``grows`` says that at least half the small runs of births, when they
    were last tried, found that their target is several clusters.  ``dormant`` holds the statistics of clusters that
    faded and may return, by id, in the order in which they left.  ``young`` says of clusters that were born at new
    batches, by id, what those weigh by now of what they weighed: such a cluster has not had its atoms yet.
    ``rejected`` are births that the whole data rejected, by the clusters that would have given; None where nobody asks
    for them.
    """

    next_id: int
    failures: dict[tuple[str, tuple[int, ...]], tuple[float, ...]] = field(default_factory=dict)
    sweeps: dict[int, Sweep] = field(default_factory=dict)
    grows: bool = False
    dormant: dict[int, Summary] = field(default_factory=dict)
    young: dict[int, float] = field(default_factory=dict)
    rejected: dict[tuple[int, ...], Rejected] | None = None

    def new_ids(self, count: int) -> tuple[int, ...]:
        """Ids that no cluster ever had."""
        first = self.next_id
        self.next_id += count
        return tuple(range(first, first + count))

    def failed(self, kind: str, targets: tuple[int, ...], counts: Iterable[float], change: float) -> int:
        """How often this was rejected when the targets had about these counts (within a share ``change``)."""
        before = self.failures.get((kind, targets))
        if before is None:
            return 0
        same = all(abs(now - then) <= change * max(then, 1.0) for now, then in zip(counts, before[:-1], strict=True))
        return int(before[-1]) if same else 0

    def remember_failure(self, kind: str, targets: tuple[int, ...], counts: Iterable[float], times: int = 1) -> None:
        """Note a rejection; one that leaves no doubt counts ``times``."""
        now = tuple(float(c) for c in counts)
        self.failures[kind, targets] = (*now, float(times) + self.failed(kind, targets, now, LAP.same_count))

    def forget_dead(self, alive: np.ndarray) -> None:
        """Drop what concerns clusters that are gone."""
        living = {WHOLE, *(int(i) for i in alive)}
        self.failures = {key: counts for key, counts in self.failures.items() if living.issuperset(key[1])}
        self.sweeps = {t: s for t, s in self.sweeps.items() if living.issuperset((t, *s.receivers))}
        self.young = {i: weight for i, weight in self.young.items() if i in living}
        if self.rejected is not None:
            self.rejected = {donors: one for donors, one in self.rejected.items() if living.issuperset(donors)}


@dataclass(frozen=True, eq=False)
class Sweep:
    """A change that was not accepted yet: who absorbs a delete's target, the statistics of those who receive, gain, by
    how much that rose over the last, times tried."""

    receivers: tuple[int, ...]
    part: Summary
    gain: float
    step: float
    tried: int


@dataclass(frozen=True, eq=False)
class Rejected:
    """A birth that was rejected: statistics that the newborn clusters would have had, and the gain in nats."""

    part: Summary
    gain: float


@dataclass(frozen=True, eq=False)
class Basis:
    """Newborn clusters that one batch found in a cluster, or some that found the same, and what it ``held`` there."""

    newborn: Summary
    held: Summary


Pending = dict[int, tuple[Basis, ...]]
"""Newborn clusters that batches found in one lap and that all data are to try in the next, by the cluster that they
would split; none of one that was split meanwhile."""


@dataclass
class PlanContext:
    """Facts that a move may use to plan.

    ``value`` is the exact whole-data summary behind ``posterior``; ``free`` are the ids that no proposal of this
    lap names yet, and ``at_stake`` those that a birth whose tasks still run will name if it succeeds; ``atoms`` were
    gathered in the lap before, by cluster; ``calm`` says that no cluster came, went or noticeably changed its count in
    that lap.  ``pending`` is what single batches found in the lap before; None where a schedule does not keep that.
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
    free: set[int]
    at_stake: set[int] = field(default_factory=set)
    atoms: Mapping[int, Batch] = field(default_factory=dict)
    calm: bool = False
    pending: Mapping[int, tuple[Basis, ...]] | None = None
    gather: Gather = Gather()
    trials: list[Trial] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    splits: dict[int, Split] = field(default_factory=dict)
    given_up: list[dict[str, Any]] = field(default_factory=list)
    _gains: np.ndarray | None = None

    @property
    def policy(self) -> MovePolicy:
        """How moves treat clusters of models of this structure."""
        return self.model.structure.policy

    @property
    def side_by_side(self) -> bool:
        """Whether a move begins to plan while tasks of those before it run, so that workers have more to do at once.

        Once clusters are calm births look at nearly all of them; deletes of topics need no tasks.
        """
        return self.policy.plans_side_by_side and not self.calm

    def pair_gains(self) -> np.ndarray:
        """Exact change of the data term if two clusters were united, ``(K, K)`` nats; computed once a lap.

        -inf for topics whose words are not alike.
        """
        if self._gains is None:
            self._gains = gain_matrix(self.model, thawed(self.posterior), thawed(self.value))
        return self._gains

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

    def untouched(self) -> set[int]:
        """Ids that no proposal names yet, nor will."""
        return self.free - self.at_stake

    def claimed(self) -> set[int]:
        """Ids that proposals would replace."""
        return {i for p in self.proposals if isinstance(p.edit, Exchange) for i in p.edit.donors}

    @property
    def numbers_per_atom(self) -> float:
        """Numbers that an atom has on average, at least one."""
        return max(1.0, self.survey.nbytes / np.dtype(np.float64).itemsize / max(1, self.survey.n_atoms))

    def at_most_sampled(self, atoms: int) -> int:
        """So many atoms, or fewer where these would be too much for one sample."""
        return max(1, min(atoms, int(LAP.sampled / self.numbers_per_atom)))

    def room(self, atoms: int) -> int:
        """Clusters of which so many atoms each may be gathered at a time, beyond what a move's settings ask for."""
        return int(LAP.gathered / (max(1, atoms) * self.numbers_per_atom))

    def room_left(self, atoms: int) -> int:
        """Clusters of which so many atoms each may still be gathered in this lap, whoever asks."""
        asked = self.numbers_per_atom * sum(self.gather.limits) * self.source.n_batches
        return max(0, int((LAP.gathered_in_all - asked) / (max(1, atoms) * self.numbers_per_atom)))

    def rng(self, *key: int) -> np.random.Generator:
        """Random numbers keyed by seed, lap and ``key``."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.lap, PLANNING, *key)))

    def give_up(self, kind: str, targets: tuple[int, ...], why: str, times: int = 1) -> None:
        """Drop a proposal that was never tried on the whole data, and remember that as so many failures."""
        self.memory.remember_failure(kind, targets, self.counts(targets) or [self.tokens], times)
        self.given_up.append(record(kind, targets, (), None, False, why))

    def plan(self) -> Plan:
        """Everything that was proposed."""
        pairs = np.array(self.pairs, np.int64).reshape(-1, 2)
        return Plan(pairs, tuple(self.trials), tuple(self.proposals), self.splits, tuple(self.given_up), self.gather)


Planning = Generator[Iterable[Task], list[Any], None]
"""A move that plans: asks for tasks to be run, and is sent their results, in order, as often as it needs any.

Tasks that hold much are made when they are sent, and only some are out at a time.

The names of all its tasks begin with ``propose``.  Dask lets an idle worker take over what waits at a busy one if that
pays, by how long tasks of each first word have taken so far.
"""


class Move(Protocol):
    """A way to propose changes of clusters."""

    kind: str

    @property
    def at_batch(self) -> bool:
        """Whether it changes clusters within a lap, which needs the memoized schedule."""
        ...

    def is_urgent(self, context: PlanContext) -> bool:
        """Whether it plans before others that take turns in being first."""
        ...

    def plan(self, context: PlanContext) -> Planning:
        """Add pairs, trials and proposals to the context, and take the clusters they name out of ``free``.

        While its tasks run other moves may begin: what it has not taken, nor put ``at_stake``, is theirs.
        """
        ...

    def prepare(self, context: PlanContext) -> None:
        """Ask for atoms to be gathered in this lap, for proposals of the next."""
        ...


def record(
    kind: str, targets: tuple[int, ...], others: tuple[int, ...], gain: float | None, accepted: bool, why: str
) -> dict[str, Any]:
    """A proposal as the history keeps it; ``gain`` in nats, None where it was never evaluated on the whole data."""
    return {
        "kind": kind,
        "targets": list(targets),
        "others": list(others),
        "gain": gain,
        "accepted": accepted,
        "why": why,
    }


Parts = Mapping[str, Summary]
"""Whole-data statistics of trials, by name."""
