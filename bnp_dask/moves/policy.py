"""Numbers of each kind of move, each with the data that chose it.

They are a setting of the move: ``Birth(policy=BirthPolicy(dearer=4.0))``.  A lap has the numbers of
:mod:`bnp_dask.moves.lap_policy` whatever moves it makes.  Differences from structure to structure are in
:class:`bnp_dask.structure.policy.MovePolicy`.  A number without evidence is a first guess that no run has spoken
against.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from bnp_dask.core.registry import register
from bnp_dask.core.summary import Summary
from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import hold, number_from, shown, whole_number


@register
@dataclass(frozen=True)
class SmallRunPolicy:
    """Numbers of a birth's small run.

    Parameters
    ----------
    least_share
        Share of a target's atoms that a new cluster must have: what holds less is an accident of the sample.
    most_topics
        Topics that anchor words may find in one target.
    seed_atoms, seed_numbers
        Atoms per new cluster among which k-means++ chooses, at least; and one for every ``seed_numbers`` numbers that a
        cluster has.
    seed_laps
        Passes of k-means over these.
    settled
        A small run unites clusters once a step raises its objective by less than so many nats per atom.
    rounds
        Times that clusters of a small run are united and re-estimated.
    steps_without
        Local steps after a cluster was taken out of a small run, and of topics that words told apart.
    far
        A cluster whose loss costs more than this after one local step stays: nats per atom that it stands for.  The
        second step recovers about a half of that (8 runs each on clouds of 10, 25 and 50 dimensions).
    pieces
        Hidden Markov models: pieces of runs of steps that are compared with one another.
    piece_steps
        Steps in a piece, at least, where runs are long enough to be cut.
    starts_beside, first_steps
        Starts of a birth beside neighbours, and local steps of each, on the target alone and then beside them.
    steps_beside, enough_beside
        Local steps of the best start at most, and the share of what it gains or lacks below which one is the last.
    stays
        A neighbour whose count changes by less than this share of the target's is left out.
    """

    least_share: float = 0.002
    most_topics: int = 100
    seed_atoms: int = 80
    seed_numbers: int = 7
    seed_laps: int = 3
    settled: float = 1e-4
    rounds: int = 6
    steps_without: int = 2
    far: float = 0.25
    pieces: int = 24
    piece_steps: int = 8
    starts_beside: int = 2
    first_steps: int = 4
    steps_beside: int = 40
    enough_beside: float = 1e-2
    stays: float = 0.01

    def __post_init__(self) -> None:
        _hold_numbers(self)


@register
@dataclass(frozen=True)
class WindowPolicy:
    """Numbers of births from windows of sequences.

    Parameters
    ----------
    drawn
        Windows that a task looks at, at most; and no more than cover its batch about once.
    grown
        Windows of a batch that settle, the best at first sight.
    around
        Steps before and after a window on which its states settle.
    rounds
        Local steps in which they do.
    cuts
        Places tried for the border between two blocks, at most.
    donors
        States that a window may be taken from.
    noticeable
        Share of the new states' steps above which the state that gave them is a donor.
    mostly
        Share of these steps that come from donors, at least.
    one_in
        One in so many batches is looked into in one lap, and at least so many.
    hopeless
        A window that lacks more nats than this after it has settled is not proposed.
    """

    drawn: int = 12
    grown: int = 4
    around: int = 400
    rounds: int = 5
    cuts: int = 8
    donors: int = 4
    noticeable: float = 0.05
    mostly: float = 0.8
    one_in: int = 4
    hopeless: float = 30.0

    def __post_init__(self) -> None:
        _hold_numbers(self)


@register
@dataclass(frozen=True)
class BirthPolicy:
    """Numbers of births.

    Parameters
    ----------
    work_share
        Work of small runs in a lap, as a share of the lap's own (atom-cluster pairs); ``LapPolicy.more`` times that
        once clusters are calm.
    work_always
        Work of small runs in any lap, atom-cluster pairs; as above.
    dearer
        How much more an atom-cluster pair costs in a small run, where few clusters share the cost of looking at an
        atom.
    words_need
        Tokens below which the co-occurrence of words says too little: 3,000 documents of ten words, 300 of a hundred.
    words_seen
        Tokens whose co-occurrence is looked at, for each of ``Birth(sample=)`` and over all clusters.  A topic that few
        documents have shows in many documents only, and to look at words costs little.  Of 30 topics, of 39 % to 1 in
        800 of the tokens, the words of 5,000 documents of 40 tokens showed 13 (total variation below 0.7), those of
        20,000 showed 26, and those of 50,000 showed 29.
    sample_numbers
        Atoms gathered for each number that a new cluster has, at least: fewer do not show its shape.
    alone
        Attempts to split a cluster by itself before those beside neighbours, which wait until clusters are calm.
    overlap
        Nats of entropy per atom of a cluster, for its neighbours to be looked at.  Gaussians of two to eight features
        have medians of 0.29 to 0.47, 3 to 4 deviations apart, and of 0.02, 5 to 6 apart.
    neighbours
        Clusters re-estimated with the newborn.  Of 46 targets 14 gained beside five, 17 beside eight, 19 beside twelve.
    neighbour_atoms
        Atoms of each, or as many as a cluster has numbers.
    small_run
        Numbers of the small runs.
    window
        Numbers of windows of sequences.
    """

    work_share: float = 0.15
    work_always: float = 7e6
    dearer: float = 8.0
    words_need: int = 30_000
    words_seen: int = 800
    sample_numbers: float = 2.5
    alone: int = 1
    overlap: float = 0.05
    neighbours: int = 8
    neighbour_atoms: int = 1500
    small_run: SmallRunPolicy = field(default_factory=SmallRunPolicy)
    window: WindowPolicy = field(default_factory=WindowPolicy)

    def __post_init__(self) -> None:
        hold_policy(self, "small_run", SmallRunPolicy)
        hold_policy(self, "window", WindowPolicy)
        _hold_numbers(self)


@register
@dataclass(frozen=True)
class DocumentBirthPolicy:
    """Numbers of births from whole documents; chosen on KOS, see :class:`~bnp_dask.DocumentBirth`.

    Parameters
    ----------
    averaged
        Share of the sampler's passes, the last ones, whose counts are averaged; as the start that is sampled has it.
    few, very_few
        Topics are sampled anew where as many as so many tokens usually show are this many times those that there are:
        when clusters are calm, or at once.
    number_bytes
        Bytes of the sampler's tables for each word of each topic.
    least_tokens
        Tokens of the documents gathered that a new topic needs at least, as clusters that births split.
    """

    averaged: float = 0.5
    few: float = 1.5
    very_few: float = 4.0
    number_bytes: int = 20
    least_tokens: float = 20.0

    def __post_init__(self) -> None:
        _hold_numbers(self)
        number_from("averaged", self.averaged, 0.0, 1.0, "a share of the passes")


@register
@dataclass(frozen=True)
class MergePolicy:
    """Numbers of merges.

    Parameters
    ----------
    doubt
        Nats per cluster by which the rough allocation term may be wrong.
    """

    doubt: float = 10.0

    def __post_init__(self) -> None:
        _hold_numbers(self)


@register
@dataclass(frozen=True)
class DeletePolicy:
    """Numbers of deletes.

    Parameters
    ----------
    sample
        Atoms of each cluster on which an absorbing set is chosen and re-estimated, at least.
    worth
        Share of the target's atoms that a cluster must take over to be in the absorbing set.
    small
        A target with less than this share of the atoms of those who absorb it does not change what they are.
    work_share
        Work of the tasks of a lap, as a share of the lap's own (atom-cluster pairs).
    work_always
        Atom-cluster pairs that they may work on in any lap.
    least_steps
        Local steps on a sample that a task may take however little work is left.
    wider
        How many times as many clusters may absorb a target that is small beside the average: its atoms may come from
        everywhere, and are no trouble to anybody.
    leftover
        Share of all atoms below which a cluster that goes together with others leaves its prior mass to clusters to
        come and not to those who absorb it (:attr:`bnp_dask.structure.base.Trial.freed`).  Chosen on 24 bars of
        12 x 12, where most topics left over hold less than 1e-4 and true ones 3e-2, and tried on others of the kind
        and on KOS, which ends as it did without.
    enough
        A local step on the sample that makes up less than this share of what a delete lacks is the last.
    calm_doubt
        Doubt in place of ``DecisionPolicy.hopeless`` once clusters are calm, beside what the sample is too few for.  Of
        61 deletes decided on all data (three runs on mixtures of 32 overlapping Gaussians, calm or not) what was
        lacking was at most 0.18 nats per atom less than the sample said.  Before clusters are calm it can be 0.9: a
        toy's start from many.
    """

    sample: int = 1500
    worth: float = 0.01
    small: float = 0.1
    work_share: float = 0.1
    work_always: float = 3e6
    least_steps: int = 5
    wider: int = 3
    leftover: float = 1e-3
    enough: float = 1e-3
    calm_doubt: float = 0.3

    def __post_init__(self) -> None:
        _hold_numbers(self)

    def leftovers(self, value: Summary) -> list[int]:
        """Ids of clusters that hold next to nothing, in order, of whole-data statistics."""
        counts = value["N"]
        return [int(i) for i in value.ids[counts < self.leftover * counts.sum()]]


def hold_policy(owner: Any, name: str, cls: type) -> None:
    """SettingError unless a field of a move is a policy of this class."""
    value = getattr(owner, name)
    if not isinstance(value, cls):
        raise SettingError(f"{name}={shown(value)}: needs a policy, such as {cls.__name__}()")


def _hold_numbers(policy: Any) -> None:
    """Take over the numbers of a policy; SettingError for one that is negative, or no number of its kind."""
    for declared in fields(policy):
        value = getattr(policy, declared.name)
        if isinstance(declared.default, int):  # counts of things are positive: no work is done with none
            hold(policy, declared.name, whole_number(declared.name, value, 1))
        elif isinstance(declared.default, float):
            hold(policy, declared.name, number_from(declared.name, value, 0.0))
