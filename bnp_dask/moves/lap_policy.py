"""Numbers by which a lap is planned and its proposals are decided, whatever moves it makes, each with its evidence.

Those of one kind of move are in :mod:`bnp_dask.moves.policy`.  A number without evidence is a first guess that no run
has spoken against.
"""

from __future__ import annotations

from dataclasses import dataclass


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
        ``benchmarks.streaming.drifting`` up to three were born at one batch.
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
