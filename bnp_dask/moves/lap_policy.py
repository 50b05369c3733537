"""Numbers by which a lap is planned and its proposals are decided, common to all moves, each with its evidence.

Numbers of one kind of move are in :mod:`bnp_dask.moves.policy`.  A number without evidence is a first guess that no run
has contradicted.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    nobody
        Atoms below which a cluster stands for none, whatever it gains: it is one of the unused clusters that the prior
        of a nonparametric model holds anyway.  A cluster equal to the prior takes a share of atoms that falls with the
        number of features: of 450 and 3,000 atoms in three clusters, 1e-3 with one feature, 1e-7 with two, less than
        rounding with five.
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
        Topics considered as partners of a topic, nearest by their words.
    misfits
        Most clusters whose share of new batches is tried in one round of births.  In the stream of
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
        Nats per atom of a delete's target: a delete that lacks more is neither refined nor begun.
    clear
        Nats per atom of a delete's target: a delete that lacks more on the whole data fails clearly once clusters are
        calm.  In 60 deletes that were refined over several laps (three runs on mixtures of 32 overlapping Gaussians,
        calm or not) these laps gained 0.054 at most.
    rounding
        Share of the objective's terms below which a gain is rounding: 4,500 times the spacing of double precision.
    negligible
        Share of the objective's terms that removing a cluster of no atom may cost at most, if other gains pay for it.
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
