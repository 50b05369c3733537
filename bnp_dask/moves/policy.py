"""Numbers by which moves are planned, tried and decided, each with the data that chose it.

A lap has the same ones whatever moves it makes (:data:`LAP`, :data:`DECISION`).  Those of one kind of move are a
setting of it: ``Birth(policy=BirthPolicy(dearer=4.0))``.  Differences from structure to structure are in
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


@dataclass(frozen=True)
class LapPolicy:
    """Numbers of a lap's plan, whichever moves it makes.

    Parameters
    ----------
    same_count
        Share by which a count may change while failures in a row are still counted together.
    calm_count
        Share by which counts may change in a lap while clusters count as calm: half of ``same_count``, which resets
        failures.
    calm_gain
        Nats per unit of weight by which a lap may raise the objective while clusters count as calm.  With counts alone
        as the measure, overlapping clusters that were slowly changing places used up their attempts too soon.
    nobody
        Atoms below which a cluster stands for none, whatever it gains: it is one of those without use that the prior
        of a nonparametric model holds anyway.  A cluster that is as the prior is takes a share of atoms that falls with
        the number of features: of 450 and 3,000 atoms in three clusters 1e-3 with one feature, 1e-7 with two, less than
        rounding with five.
    more
        How many times as many targets, and how much more work on samples, a lap may take once clusters are calm: by
        then laps of their own are run for nothing but what is still to be tried.
    gathered
        Numbers that the atoms gathered for those more targets may have, of each move: 32 MB.
    sampled
        Numbers that a sample of one cluster's atoms has at most: 32 MB.  Reached by full covariances from some 140
        features on, which no sample shows in full anyway.
    gathered_in_all
        Numbers that the atoms gathered in one lap have at most, 1 GB, but for one target of each move and those near
        it.  Those that are not in memory lie in files.
    in_flight
        Tasks of one move that may be in flight at least: those that wait for a place come after those of all other
        moves.
    empty_pairs
        Pairs of clusters that stand for no atom which one lap tracks at most.
    scored_numbers, scored_pairs
        Numbers that the unions of pairs scored together have (1 MB: they stay in a core's cache), and pairs at least.
        The scores do not depend on it.
    alike
        Topics that are looked at as partners of one: those whose words are most like its own.
    misfits
        Clusters, at most, whose share of new batches is tried in one round of births.  In the stream of
        ``tests.benchmarks.streaming.drifting`` up to three were born at one batch.
    """

    same_count: float = 0.1
    calm_count: float = 0.05
    calm_gain: float = 1e-4
    nobody: float = 0.1
    more: int = 8
    gathered: int = 2**22
    sampled: int = 2**22
    gathered_in_all: int = 2**27
    in_flight: int = 8
    empty_pairs: int = 50
    scored_numbers: int = 2**17
    scored_pairs: int = 32
    alike: int = 12
    misfits: int = 8


LAP = LapPolicy()
"""Numbers of every lap."""


@dataclass(frozen=True)
class DecisionPolicy:
    """Numbers by which proposals are accepted, tried again, or dropped, on the whole-data objective.

    Parameters
    ----------
    hopeless
        A delete that lacks more nats than this per atom of its target is not refined, nor begun.
    clear
        A delete that lacks more nats than this per atom of its target, on the whole data, fails clearly once clusters
        are calm.  In 60 deletes that were refined over several laps (three runs on mixtures of 32 overlapping
        Gaussians, calm or not) those laps brought 0.054 at most.
    rounding
        Share of the objective's terms below which a gain is rounding: 4,500 times the spacing of double precision.
    negligible
        Share of the objective's terms that doing without a cluster of no atom may cost, at most, where other gains pay
        for it.
    patience
        Factor on the observed ratio of two gains in a row, when the gains to come are estimated.
    slowest
        Largest ratio of two gains in a row that is believed.
    rejected
        Births that all data rejected, at most, which are kept for a shadow, the best ones: a guess.  A run on 60
        overlapping clusters rejects two or three.
    """

    hopeless: float = 1.0
    clear: float = 0.2
    rounding: float = 1e-12
    negligible: float = 1e-6
    patience: float = 1.5
    slowest: float = 0.95
    rejected: int = 16


DECISION = DecisionPolicy()
"""Numbers of every decision."""


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
