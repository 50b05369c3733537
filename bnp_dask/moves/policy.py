"""Numbers by which moves are planned and decided, each with the data that chose it.

Numbers of a lap and of decisions are common to all moves.  Numbers of one kind of move are a setting of the move:
``Birth(policy=BirthPolicy(dearer=4.0))``.  Numbers that differ between structures are in
:class:`bnp_dask.structure.base.MovePolicy`.  A number without evidence is a first guess that no run has contradicted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from bnp_dask.core import Summary, register
from bnp_dask.errors import SettingError
from bnp_dask.inputs import hold, number_from, shown, whole_number


# -- all moves ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class LapPolicy:
    """Numbers of a lap's plan, common to all moves.

    Parameters
    ----------
    same_count
        Share by which a count may change while failures in a row are still counted together.
    calm_count
        Share by which counts may change in a lap while clusters count as calm: half of ``same_count``, beyond which
        failures are reset.
    calm_gain
        Nats per unit of weight by which a lap may raise the objective while clusters count as calm.  When only counts
        were measured, overlapping clusters that slowly changed places used up their attempts too soon.
    unused
        Atoms below which a cluster counts as unused, whatever it gains: it is one of the empty clusters that the prior
        of a nonparametric model holds anyway.  Below a half no atom belongs to it rather than to the others.  With 0.1
        a run on three crossing lines (:mod:`benchmarks.truth`) kept a cluster of 0.12 atoms, which 0.1 nats held.  A
        cluster equal to the prior takes a share of atoms that falls with the number of features: of 450 and 3,000 atoms
        in three clusters, 1e-3 with one feature, 1e-7 with two, less than rounding with five.
    more
        Factor on the number of targets, and on the work on samples, of a lap once clusters are calm: by then further
        laps are run only for proposals that are still to be tried.
    gathered
        Most numbers in the atoms gathered for these additional targets, for each move: 32 MB.
    sampled
        Most numbers in a sample of one cluster's atoms: 32 MB.  Full covariances reach this from some 140 features on;
        no sample shows these in full anyway.
    gathered_in_all
        Most numbers in the atoms gathered in one lap, 1 GB; one target of each move and its neighbours do not count.
        Atoms that are not in memory are in files.
    in_flight
        Least number of tasks of one move that may be in flight: tasks that wait for a place come after the tasks of all
        other moves.
    empty_pairs
        Most pairs tracked in one lap for clusters that stand for no atom.
    scored_numbers, scored_pairs
        Numbers in the unions of pairs that are scored together (1 MB: they stay in a core's cache), and least number of
        pairs.  The scores do not depend on them.
    alike
        Topics considered as partners of a topic, nearest by their words; also clusters considered as partners of a
        cluster, if there are more than ``all_pairs``.
    all_pairs
        Clusters up to which all pairs are scored.
    landmarks
        Clusters by whose parameters others are compared to find near ones.
    near_rows
        Rows of the table of nearness that are held at a time.
    misfits
        Most clusters whose share of new batches is tried in one round of births.  In the stream of
        ``benchmarks.streaming.drifting`` up to three were born at one batch.
    prior_updates
        Updates of a learned prior in one lap, at most.
    prior_gain
        Nats per atom by which an update of a prior must raise the objective for another to follow in the same lap.
    shown
        Tokens by which splits of topics judge how many topics a corpus shows, however large it is: as many as births
        from whole documents look at.
    """

    same_count: float = 0.1
    calm_count: float = 0.05
    calm_gain: float = 1e-4
    unused: float = 0.5
    more: int = 8
    gathered: int = 2**22
    sampled: int = 2**22
    gathered_in_all: int = 2**27
    in_flight: int = 8
    empty_pairs: int = 50
    scored_numbers: int = 2**17
    scored_pairs: int = 32
    alike: int = 12
    all_pairs: int = 256
    landmarks: int = 64
    near_rows: int = 512
    misfits: int = 8
    prior_updates: int = 20
    prior_gain: float = 1e-7
    shown: int = 1_000_000


LAP = LapPolicy()
"""Numbers of every lap."""


@dataclass(frozen=True)
class StartPolicy:
    """Numbers of :class:`bnp_dask.UnitedKMeans`.

    Chosen on 100,000 points of 32 overlapping Gaussians in 16 dimensions (deviation of means .7, one seed of the data,
    three of the start), beside a state from the truth; checked as told in ``benchmarks/overlapping.py``.

    Parameters
    ----------
    least
        Least clusters of a default start before any are united: as many as other default starts have.
    most
        Most clusters of a default start before any are split or united.
    atoms_each
        Atoms for each cluster of a start, at least, also of other default starts.  Twenty rows of noise in 30 columns
        that start as twenty clusters of one row stay so: every row is where its cluster is, and uniting any two of them
        lowers the objective, though one cluster for all is 10 to 30 nats better.  Chosen on noise (20 to 50 rows, 4 to
        100 columns) among 1, 2, 3, 4 and 8; checked on groups of 2 to 20 rows in 2 to 60 columns, of which pairs are
        lost with 3 and more.
    atoms_per_number
        Atoms of a default sample for each number of all clusters.  With one, starts without splits ended at 33 and 40
        clusters, 3,700 and 4,800 nats below the truth after five laps without moves; with two at 36 and 39, 1,600 and
        2,600 below it.
    apart
        Turns of steps on half of the sample before clusters are split: halves of clusters that hold nothing yet are as
        good as other seeds.  With turns and unions until nothing united there (32 to 60 clusters), five laps ended 100
        to 1,430 nats below the truth after the splits; with two turns and no unions 100 to 600.
    splits
        Times that all clusters are split, as long as that pays.  In seven runs of the first split 30 to 35 clusters
        were left; the second won 40 to 2,300 nats and ended at 31 to 33, a third won 120 at most.
    rounds
        Most turns of steps and unions after a split.
    steps
        Local and global steps of a turn.
    settled
        Nats per atom of the sample that a step must gain for another to follow in its turn.
    """

    least: int = 25
    most: int = 64
    atoms_each: int = 2
    atoms_per_number: int = 2
    apart: int = 2
    splits: int = 2
    rounds: int = 10
    steps: int = 10
    settled: float = 5e-4


START = StartPolicy()
"""These numbers."""


@dataclass(frozen=True)
class CrossPolicy:
    """Numbers of :func:`bnp_dask.moves.start.crossed`.

    Parameters
    ----------
    starts
        States from k-means++ beside the state of the run.
    width
        Clusters that such a state begins with, for each cluster of the run.
    steps
        Most local and global steps between unions.
    rounds
        Most rounds of steps and unions.
    settled
        Nats per atom that a step must gain for another to follow.
    patience, calm_patience, most
        Crossings in a row that leave the best state as it is before there is no other, before and once clusters are
        calm; states in all.  From four random numbers each, for a run on wine that had ended 11 nats below the best
        state known, five starts and a patience of 20 won nothing in one case and 6 to 7 nats in three; nine and 60, in
        2.3 times the time, 6 to 11 nats in all.
    work, least
        Numbers of all states' steps (atoms times clusters times the numbers of a cluster), and states that are worth
        the work: where it allows fewer, nothing is crossed.  Without this limit a run on the breast table (569 x 30)
        took five times the processor time, and on digits (1,797 x 64) twice, for nothing.
    same
        Nats by which two states differ at least.
    """

    starts: int = 9
    width: float = 2.0
    steps: int = 30
    rounds: int = 10
    settled: float = 1e-4
    patience: int = 20
    calm_patience: int = 60
    most: int = 400
    work: float = 3e9
    least: int = 12
    same: float = 0.01


CROSS = CrossPolicy()
"""These numbers."""


@dataclass(frozen=True)
class DecisionPolicy:
    """Numbers by which proposals are accepted, tried again, or dropped, on the whole-data objective.

    Parameters
    ----------
    hopeless
        Nats per atom of a delete's target: a delete that lacks more is neither refined nor begun.
    clear
        Nats per atom of a delete's target: a delete that lacks more on the whole data fails clearly once clusters are
        calm.  In 60 deletes that were refined over several laps (three runs on mixtures of 32 overlapping Gaussians,
        calm or not) these laps gained 0.054 at most.
    rounding
        Share of the objective's terms below which a gain is rounding: 4,500 times the spacing of double precision.
    negligible
        Share of the objective's terms that removing a cluster of no atom may cost at most, if other gains pay for it;
        ``LapPolicy.unused`` nats if that is more.  Other clusters take its atoms at ``-sum_n log(1 - r_n)`` nats, about
        as many as it has atoms.
    patience
        Factor on the observed ratio of two gains in a row, when the gains to come are estimated.
    slowest
        Largest ratio of two gains in a row that is believed.
    rejected
        Most births rejected by all data that are kept for a shadow, the best ones: a guess.  A run on 60 overlapping
        clusters rejects two or three.
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


# -- kinds of moves -------------------------------------------------------------------------------------------------
@register
@dataclass(frozen=True)
class SmallRunPolicy:
    """Numbers of a birth's small run.

    Parameters
    ----------
    least_share
        Share of a target's atoms that a new cluster must have: a smaller one is an accident of the sample.
    most_topics
        Topics that anchor words may find in one target.
    seed_atoms, seed_numbers
        Atoms per new cluster among which k-means++ chooses: at least ``seed_atoms``, and at least one for every
        ``seed_numbers`` numbers of a cluster.
    seed_laps
        Passes of k-means over these atoms.
    settled
        Nats per atom: once a step raises the objective of a small run by less, its clusters are united.
    rounds
        Rounds of uniting and re-estimating the clusters of a small run.
    steps_without
        Local steps after a cluster was taken out of a small run, and local steps on topics found from words.
    far
        Nats per atom that a cluster stands for: a cluster whose removal costs more after one local step stays.  The
        second step recovers about half of the cost (8 runs each on clouds of 10, 25 and 50 dimensions).
    pieces
        Hidden Markov models: number of pieces of runs of steps that are compared with one another.
    piece_steps
        Least steps in a piece, if runs are long enough to be cut.
    starts_beside, first_steps
        Starts of a birth beside neighbours, and local steps of each start, on the target alone and then beside them.
    steps_beside, enough_beside
        Most local steps of the best start; it stops after a step smaller than this share of its gain or deficit.
    enough_in_groups
        The same for atoms in groups, whose steps are dearer; all data re-estimate such a birth in further laps.
    at_rest
        Share of its gain or deficit below which a step of a start beside neighbours is its last.  With 1e-2 starts
        ended that had still to find other cuts: one of five runs on 300 docstrings lost 52 nats.
    stays
        A neighbour whose count changes by less than this share of the target's is left out.
    recut_worth
        Nats that other cuts of several clusters must gain: newborn clusters forget the failures of those before.
        Chosen on wine, where gains of 1 to 4 nats lead on to others: with half a nat and half the starts one of five
        seeds stayed 18 nats below the best, with this 4.
    recut_enough
        Share of ``LapPolicy.calm_gain`` that a local step on other cuts must gain for another to follow.
    cores
        Most starts from rows of a cluster that lie closer together than its Gaussian expects
        (:mod:`bnp_dask.moves.cores`).
    core_rows
        Least rows of such a core; beside it there are as many others.
    core_share, core_growth, core_shift
        Least share of the rows in an interval; ratio of the sizes of intervals; and shift from one to the next, as a
        share of their size.
    core_gain
        Nats that an interval must promise for each number of a cluster.  These and the numbers of cores that follow are
        guesses, set while looking at geyser and nine drawn tables, and looked at on 45 real ones.
    core_turns
        Times that the direction is turned to that in which a core is thinnest.
    thinnest
        Deviations within which values of a cluster count as equal.
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
    enough_in_groups: float = 0.1
    at_rest: float = 1e-4
    stays: float = 0.01
    recut_worth: float = 0.1
    recut_enough: float = 0.1
    cores: int = 2
    core_rows: int = 8
    core_share: float = 0.01
    core_growth: float = 1.5
    core_shift: float = 0.125
    core_gain: float = 1.0
    core_turns: int = 3
    thinnest: float = 0.02

    def __post_init__(self) -> None:
        _hold_numbers(self)


@register
@dataclass(frozen=True)
class WindowPolicy:
    """Numbers of births from windows of sequences.

    Parameters
    ----------
    drawn
        Most windows that a task looks at, and no more than cover its batch about once.
    grown
        Windows of a batch that are refined: the best before refinement.
    around
        Steps before and after a window on which its states are refined.
    rounds
        Local steps of this refinement.
    cuts
        Most places tried for the border between two blocks.
    donors
        States that a window may be taken from.
    noticeable
        Share of the new states' steps that a state must give to be a donor.
    mostly
        Least share of these steps that comes from donors.
    one_in
        A lap searches one in ``one_in`` batches, and at least ``one_in`` batches.
    hopeless
        Nats: a window that lacks more than this after refinement is not proposed.
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
        Work of small runs in a lap, as a share of the lap's own work (atom-cluster pairs); ``LapPolicy.more`` times as
        much once clusters are calm.
    work_always
        Work of small runs allowed in any lap, atom-cluster pairs; also ``LapPolicy.more`` times as much when calm.
    dearer
        Cost ratio of an atom-cluster pair in a small run, where few clusters share the cost of reading an atom.
    words_need
        Least tokens from which the co-occurrence of words is used: 3,000 documents of ten words, 300 of a hundred.
    words_seen
        Tokens whose co-occurrence is used, for each unit of ``Birth(sample=)``, over all clusters.  A rare topic shows
        only in many documents, and looking at words costs little.  Of 30 topics, with 39 % to 1 in 800 of the tokens,
        the words of 5,000 documents of 40 tokens showed 13 (total variation below 0.7), the words of 20,000 documents
        26, and the words of 50,000 documents 29.
    sample_numbers
        Least atoms gathered for each number of a new cluster: fewer do not show its shape.
    alone
        Attempts to split a cluster by itself before attempts beside neighbours, which wait until clusters are calm.
    overlap
        Entropy of a cluster, nats per atom, from which its neighbours are looked at.  Gaussians of two to eight
        features have medians of 0.29 to 0.47 when 3 to 4 deviations apart, and of 0.02 when 5 to 6 apart.
    neighbours
        Clusters re-estimated with the newborn.  Of 46 targets 14 gained beside five, 17 beside eight, 19 beside twelve.
    neighbour_atoms
        Atoms of each neighbour, or the count of numbers of a cluster if that is larger.
    pooled, pairs
        Most neighbouring clusters whose atoms are pooled and cut anew once clusters are calm, 1 for none; and partners
        with which a cluster is cut anew as one of two.
    pooled_starts
        Starts of each number of clusters into which a pool is cut.
    tries_pooled
        Attempts to cut a pool anew while its clusters keep their counts.  Chosen on a drawn table like ``ecoli`` of
        :mod:`benchmarks.tables` (seed 1), which ended 5 nats below four other seeds: the second attempt cuts two
        clusters into the right three in three of five draws.  Wine, glass, iris, and drawn tables (thyroid, seeds, a
        dense grid) end as they did, with the same laps.
    crossed
        Most atoms of a mixture whose clusters are all found anew from crossed states
        (:func:`bnp_dask.moves.start.crossed`); 0 for no such proposal.
    crossed_every
        Laps from one such attempt to the next while clusters are not calm.
    pools_share, pools_always
        Work of cutting pools anew in a lap, as a share of the lap's own work (atom-cluster pairs), and work that is
        always allowed.
    sweeps
        Laps in which a split of a topic may be tried, re-estimated between them.  Parts of documents do not show how
        documents change, so that a good split may fall short at first.
    of_usual
        Share of the usual number of topics for so many tokens (see :class:`~bnp_dask.SampledTopics`), a million at
        most, above which topics of words are not split; 0 for no limit.
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
    pooled: int = 3
    pairs: int = 3
    pooled_starts: int = 4
    tries_pooled: int = 3
    crossed: float = 2500.0
    crossed_every: int = 8
    pools_share: float = 0.5
    pools_always: float = 7e6
    sweeps: int = 4
    of_usual: float = 0.0
    small_run: SmallRunPolicy = field(default_factory=SmallRunPolicy)
    window: WindowPolicy = field(default_factory=WindowPolicy)

    def __post_init__(self) -> None:
        hold_policy(self, "small_run", SmallRunPolicy)
        hold_policy(self, "window", WindowPolicy)
        _hold_numbers(self)


@register
@dataclass(frozen=True)
class DocumentBirthPolicy:
    """Numbers of births from whole documents, chosen on KOS; see :class:`~bnp_dask.DocumentBirth`.

    Parameters
    ----------
    averaged
        Share of the sampler's passes, the last ones, whose counts are averaged; as in the sampled start.
    few, very_few
        New topics are sampled if the usual number of topics for this many tokens exceeds the current number by this
        factor: ``few`` once clusters are calm, ``very_few`` at any time.
    fewer
        Once clusters are calm, topics are also sampled anew, fewer than usual by this factor, if there are noticeably
        more.  Of 5,000 reviews of films, with 178 as usual, the objective prefers 20 to 1, 60 and 178.
    half, eighth, least_more
        New topics of the candidates between: these shares of the current number, and at least so many.  The first is
        for somewhat fewer topics than usual; the second is left out where it leads beyond the usual number.  On KOS
        (3,087 documents) 18 topics beside 151 gained 3,000 nats (.1 %), but the run, with splits of topics as well,
        took 2.7 times the processor time of one without these moves, and documents kept apart were expected at -7.3805
        nats per token instead of -7.3771.
    brief
        Share of the sampler's passes for candidates other than of as many topics as usual: they begin from existing
        topics, or have few.  Chosen on KOS for its processor time.
    smoothed
        Share of a topic's tokens that get the words of the corpus when all topics are tried with smoothed words; 0 for
        no such trial.  Chosen on 24 bars of 12 x 12 (one corpus), whose default run ended 450 nats (.11 % of the
        objective) below a run from the truth: twelve laps from its topics, smoothed by .01, .03, .1 and .2, end 498,
        411, 279 and 278 nats above twelve laps from the same topics as they are.  On KOS (1,000 documents), eight times
        in a row, larger shares raise the objective further, .3 by .12 %, but documents kept apart are then expected at
        -7.289 nats per token instead of -7.282.
    sharpened
        Share by which the power exceeds one to which all shares of words are raised when all topics are tried with
        sharpened words; 0 for no such trial.  Chosen on 24 bars of 12 x 12 (seed 4), whose run from 100 topics ended
        147 nats (.04 %) below a run from the truth, with fewer topics in documents: twelve laps from its topics,
        sharpened by .1, .3 and .6, end 76, 41 and -2,153 nats above it, and 81, 157 and 95 nats above it with smoothed
        words thereafter.  At .2 that run and the default one end 4 and 9 nats below the run from the truth.
    number_bytes
        Bytes of the sampler's tables for each word of each topic.
    least_tokens
        Least tokens of the gathered documents that a new topic needs, like the clusters that births split.
    """

    averaged: float = 0.5
    few: float = 1.5
    very_few: float = 4.0
    fewer: float = 8.0
    half: float = 0.5
    eighth: float = 0.125
    least_more: int = 3
    brief: float = 0.25
    smoothed: float = 0.01
    sharpened: float = 0.2
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
        Error of the rough allocation term to allow for, nats per cluster.
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
        Least atoms of each cluster from which an absorbing set is chosen and re-estimated.
    worth
        Share of the target's atoms that a cluster must take over to be in the absorbing set.
    small
        Share of the atoms of its absorbing clusters below which a target does not change these clusters.
    work_share
        Work of the tasks of a lap, as a share of the lap's own work (atom-cluster pairs).
    work_always
        Work of the tasks allowed in any lap, atom-cluster pairs.
    least_steps
        Local steps on a sample that a task may always take, even if less work is allowed.
    wider
        Factor on the number of absorbing clusters of a target that is small beside the average: its atoms may come from
        everywhere, and burden no other cluster.
    leftover
        Share of all atoms below which a cluster that goes together with others leaves its prior mass to future clusters
        and not to its absorbing clusters (:attr:`bnp_dask.structure.base.Trial.freed`).  Chosen on 24 bars of 12 x 12,
        where most superfluous topics hold less than 1e-4 and true ones 3e-2.  Also tried on similar data and on KOS,
        which ends as it does without it.
    set_of_mean
        Share of the mean count below which a topic is tried in a set with others, like leftovers.  Chosen on 24 bars
        of 12 x 12 (seed 4): a run from 100 topics kept two of 122 tokens, just above ``leftover``, beside 24 of 5,000.
    set_hopeless
        Nats per atom that a set of leftovers may lack at first.  Chosen on 24 bars of unequal sizes, where two topics
        of 39 and 55 tokens went together for a gain of 134 nats; the first alone had lacked 7.6 an atom.
    enough
        Share of a delete's deficit: a local step on the sample that recovers less is the last.
    calm_doubt
        Doubt in place of ``DecisionPolicy.hopeless`` once clusters are calm, on top of an allowance for small samples.
        Of 61 deletes decided on all data (three runs on mixtures of 32 overlapping Gaussians, calm or not) the deficit
        was at most 0.18 nats per atom less than on the sample.  Before clusters are calm the difference can be 0.9
        (a toy's start from many clusters).
    """

    sample: int = 1500
    worth: float = 0.01
    small: float = 0.1
    work_share: float = 0.1
    work_always: float = 3e6
    least_steps: int = 5
    wider: int = 3
    leftover: float = 1e-3
    set_of_mean: float = 0.1
    set_hopeless: float = 20.0
    enough: float = 1e-3
    calm_doubt: float = 0.3

    def __post_init__(self) -> None:
        _hold_numbers(self)

    def leftovers(self, value: Summary) -> list[int]:
        """Ids of clusters that hold next to nothing by whole-data statistics, in order."""
        counts = value["N"]
        return [int(i) for i in value.ids[counts < self.leftover * counts.sum()]]


def hold_policy(owner: Any, name: str, cls: type) -> None:
    """Raise SettingError unless a field of a move is a policy of this class."""
    value = getattr(owner, name)
    if not isinstance(value, cls):
        raise SettingError(f"{name}={shown(value)}: needs a policy, such as {cls.__name__}()")


def _hold_numbers(policy: Any) -> None:
    """Check and convert the numbers of a policy; SettingError for a negative number, or one of the wrong kind."""
    for declared in fields(policy):
        value = getattr(policy, declared.name)
        if isinstance(declared.default, int):  # counts are positive: zero would mean no work
            hold(policy, declared.name, whole_number(declared.name, value, 1))
        elif isinstance(declared.default, float):
            hold(policy, declared.name, number_from(declared.name, value, 0.0))


# =====================================================================================================================
# Names of the streams of random numbers that moves draw from: one number each, part of the key.
#
# The numbers name streams and measure nothing.  Changing one gives other draws, and so other bits.
# =====================================================================================================================

PLANNING = 7
"""Draws of a lap's plan itself; the purpose follows in the key."""

SPLIT_BATCHES = 1
"""Planning: batches that may split a cluster."""

ABSORBED = 19
"""Planning: atoms of a delete's target and of its absorbing clusters."""

WINDOW_BATCHES = 23
"""Planning: batches whose sequences are looked into."""

BIRTH = 11
"""Small run of a birth, by target."""

BIRTH_BESIDE = 31
"""Births beside neighbours, by target."""

BESIDE_START = 1
"""Births beside neighbours: draws of the starts of one target; the number of the start follows in the key."""

CROSSED = 41
"""States that are crossed."""

SPLIT = 17
"""Split of a cluster at one batch, by batch."""

WINDOW = 29
"""Windows of one batch, by batch."""

DOCUMENT_TOPICS = 23
"""New topics of whole documents."""

SPLIT_BY_NEW = 37
"""Split of a cluster by atoms of new batches, by target and round."""
