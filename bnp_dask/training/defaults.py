"""Settings of a run that the user left out: its start, and its moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bnp_dask.allocation.base import UnscoredAllocation
from bnp_dask.core import Survey
from bnp_dask.errors import SettingError
from bnp_dask.inference import FullBatch, Memoized, Schedule, Stochastic
from bnp_dask.inference.sampling import Gibbs
from bnp_dask.inference.streaming import ExpectationPropagation, Filter, TruncationFreeSVI
from bnp_dask.initialize import (
    AnchorWords,
    BregmanKMeans,
    ContiguousBlocks,
    FromNothing,
    FromSample,
    Initialization,
    KMeansParallel,
    RandomExamples,
    Responsibilities,
    SampledTopics,
)
from bnp_dask.initialize.kmeans import SAMPLE
from bnp_dask.inputs import shown
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, DocumentBirth, Merge, Move
from bnp_dask.moves.policy import START, BirthPolicy
from bnp_dask.moves.start import UnitedKMeans, shows_enough, unites
from bnp_dask.observation import AutoRegressiveGaussian, Labelled, Multinomial
from bnp_dask.structure import require_linkable
from bnp_dask.training.alternatives import Shadow, require_priors
from bnp_dask.training.run_settings import Begun

N_CLUSTERS = 25
"""Clusters to start with if no number is given; moves remove and add clusters as the data require."""

N_STATES = 10
"""States of sequences to start with, when their number is learned."""


FAR_LARGER = 4.0
"""Times that the data must hold the atoms of a sample for a start that learns on the sample: on fewer, laps over all
data do the same."""

OPENING = (Filter, ExpectationPropagation, TruncationFreeSVI)
"""Schedules that open clusters themselves, and start from none."""


CHANGING = (*OPENING, Gibbs)
"""Schedules that change the number of clusters themselves."""


SPLITS_OF_TOPICS = Birth(fresh=4, tries=2, refine=10, policy=BirthPolicy(of_usual=0.5))
"""Births of topics from single topics, beside births from whole documents.

Rare topics that share one topic are found by no sampler of all documents, whose new topics go to the frequent words.
With these settings they found a bar worth 719 nats on unequal bars (seed 2). With about as many topics as
usual no split was accepted on KOS; on it and on 4,000 documents of Reuters runs with splits took 1.6 and 1.9
times the processor time: there are splits only up to half the usual number of topics. Chosen on these; the
bars are a fourth of the usual number.
"""


def default_moves(model: Model, schedule: Schedule, is_sparse: bool) -> tuple[Move, ...]:
    """All moves for a model that learns its number of clusters, none for one of a fixed number.

    Topics of words are born from whole documents, and from single topics by :data:`SPLITS_OF_TOPICS`.
    None either if no move can be decided: point estimates have an objective only up to constants of the prior, which do
    not cancel between different numbers of clusters, and some schedules have no exact objective.
    """
    learns = model.allocation.nonparametric and model.estimate == "posterior" and schedule.decides_moves
    if not learns:
        return ()
    whole = is_sparse and model.structure.takes_words(model)
    births = (DocumentBirth(), SPLITS_OF_TOPICS) if whole else (Birth(),)
    return (*births, Merge(), Delete())


def moves_on_arrival(moves: Sequence[Move]) -> tuple[Move, ...]:
    """Moves of a run when more data come.

    Births from whole documents ask how many topics the corpus may show in all: a corpus that grows may show more, so
    they are tried as soon as there are somewhat fewer (``policy.few``), and not only while clusters are calm, which
    they are not while data come.  Volumes of NIPS, 90 papers first, laps=2: 145 topics after eight volumes instead of
    47, and papers to come are expected at -7.99 nats per token instead of -8.12.  New topics of a part of the corpus
    are found by births of single topics, whose number has no limit then.
    """
    moves = [Birth() if move == SPLITS_OF_TOPICS else move for move in moves]
    grown = tuple(_as_corpus_grows(move) if isinstance(move, DocumentBirth) else move for move in moves)
    kinds = {type(move) for move in moves}
    return (Birth(), *grown) if DocumentBirth in kinds and Birth not in kinds else grown


def _as_corpus_grows(move: DocumentBirth) -> DocumentBirth:
    policy = replace(move.policy, very_few=min(move.policy.few, move.policy.very_few))
    return move if move.kept else replace(move, every=1, policy=policy)


def start_of(
    init: Initialization | None,
    schedule: Schedule,
    model: Model,
    survey: Survey,
    moves: Sequence[Move] = (),
) -> Initialization:
    """Start of a run of a schedule, or of its sample, as given or by default: schedules of streams open their clusters
    themselves.  The priors of ``model`` are set."""
    if isinstance(init, FromSample):
        first = init.sizes(len(survey.batch_atoms))[0]
        # which batches the seed will choose is not known here
        least = max(1, sum(sorted(survey.batch_atoms)[:first]))
        return replace(init, init=start_of(init.init, schedule, model, replace(survey, n_atoms=least), moves))
    if init is not None:
        return init
    if isinstance(schedule, OPENING):
        return FromNothing()
    # a run that cannot merge would keep what the sample could not unite
    merges = any(isinstance(move, Merge) for move in moves) and not isinstance(model.observation, Labelled)
    is_large = survey.n_atoms >= FAR_LARGER * SAMPLE and not survey.is_sparse
    if merges and is_large and unites(model) and shows_enough(model):
        return UnitedKMeans()
    return default_init(model, survey.is_sparse, survey.n_atoms)


def check_schedule(
    model: Model, schedule: Schedule, n_init: int = 1, shadow: Any = None, moves: Sequence[Move] | None = None
) -> None:
    """SettingError if the schedule cannot train the model, or not from several starts, or not beside shadows."""
    if shadow is not None:
        _check_shadow(shadow, model, schedule, default_moves(model, schedule, False) if moves is None else moves)
    if isinstance(schedule, Gibbs) and n_init > 1:
        raise SettingError(f"n_init={n_init}: no start of a sampler is the best one; use Gibbs(chains={n_init})")
    if isinstance(schedule, (Filter, ExpectationPropagation)) and n_init > 1:
        raise SettingError(
            f"n_init={n_init}: {type(schedule).__name__}() draws nothing at random, so that all starts are one; "
            "leave n_init out"
        )
    if isinstance(schedule, CHANGING):
        schedule.check(model)
    elif isinstance(model.allocation, UnscoredAllocation):
        raise SettingError(f"{type(schedule).__name__}(): {model.allocation.no_objective}")


SCHEDULES = (Memoized, FullBatch, Stochastic)
"""Schedules whose local steps look at each atom's log likelihoods, to which labels add a term and which links pool."""


def require_links(model: Model, schedule: Schedule) -> None:
    """SettingError unless the local step of these parts assigns groups of linked atoms as one."""
    require_linkable(model)
    if not isinstance(schedule, SCHEDULES):
        raise SettingError(
            f"links: {type(schedule).__name__}() seats atoms one by one, and would part groups; use Memoized(), "
            "FullBatch() or Stochastic()"
        )


FROM_DATA = (
    AnchorWords, BregmanKMeans, ContiguousBlocks, KMeansParallel, RandomExamples, Responsibilities, SampledTopics,
    UnitedKMeans,
)  # fmt: skip
"""Starts whose clusters hold atoms of the data."""


def check_sample(
    init: Initialization | None, schedule: Schedule, n_init: int, shadow: Any, labels: Any, links: Any
) -> None:
    """SettingError if the run is to begin on a sample and its other settings do not allow it, or if a filter would."""
    if isinstance(schedule, Filter) and isinstance(init, FROM_DATA):
        raise SettingError(
            f"Filter(): {type(init).__name__} makes clusters of atoms that the filter then counts once more; leave "
            "init out, or go on from a posterior of other atoms with FromPosterior(posterior)"
        )
    if not isinstance(init, FromSample):
        return
    if not isinstance(schedule, Memoized):
        raise SettingError(f"FromSample: {type(schedule).__name__}() keeps no statistics of batches; use Memoized()")
    given = {
        "n_init": n_init > 1,
        "shadow": shadow is not None,
        "labels": labels is not None,
        "links": links is not None,
    }
    for name, is_given in given.items():
        if is_given:
            raise SettingError(
                f"{name}: a run from a sample has one state, without known labels or links; leave {name} out"
            )


def _check_shadow(shadow: Any, model: Model, schedule: Schedule, moves: Sequence[Move]) -> None:
    if not isinstance(shadow, Shadow):
        raise SettingError(f"shadow={shown(shadow)}: needs Shadow(), or None for none")
    if not schedule.decides_moves:
        raise SettingError(
            f"shadow: {type(schedule).__name__}() has no exact objective to compare states with; use Memoized() or "
            "FullBatch()"
        )
    require_priors(model, shadow.prior or ())
    is_plain = shadow.init is None and shadow.prior is None
    if is_plain and not any(move.kind in (Birth.kind, DocumentBirth.kind) for move in moves):
        raise SettingError(
            "shadow: begins with births that the data rejected, and moves has none; give Shadow(init=...) or "
            "Shadow(prior=...), or moves"
        )


def default_init(model: Model, is_sparse: bool, n_atoms: int, n_clusters: int | None = None) -> Initialization:
    """Default start on ``n_atoms`` atoms or documents; with ``n_clusters`` if that is given.

    Topics of words start from a sampled state, whose size is set by the data; states of sequences from blocks of
    consecutive steps if their number is learned or a step is about how things change; all others from k-means.
    """
    if is_sparse and model.structure.takes_words(model) and isinstance(model.observation, Multinomial):
        return SampledTopics(n_clusters)
    changes = model.allocation.nonparametric or isinstance(model.observation, AutoRegressiveGaussian)
    if model.structure.policy.has_windows and changes:
        usual = N_STATES if model.allocation.nonparametric else N_CLUSTERS
        return ContiguousBlocks(min(usual, n_atoms) if n_clusters is None else n_clusters)
    usual = min(N_CLUSTERS, max(1, n_atoms // START.atoms_each if model.allocation.nonparametric else n_atoms))
    return BregmanKMeans(usual if n_clusters is None else n_clusters)


def filled_in(
    begun: Begun | None,
    init: Initialization | None,
    schedule: Schedule | None,
    moves: Sequence[Move] | None,
) -> tuple[Initialization | None, Schedule, Sequence[Move] | None]:
    """Settings that the user left out, from the resumed run or at their defaults.

    ``init`` and ``moves`` stay None if they depend on the data.
    """
    if begun is not None:
        init = begun.init(init)
        moves = begun.moves() if moves is None else moves
        schedule = begun.schedule(schedule)
    return init, Memoized() if schedule is None else schedule, moves
