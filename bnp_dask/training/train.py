"""``train``: from data and a model to a posterior; joins sources, executors, schedules and the run directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bnp_dask.allocation.response import GaussianResponse
from bnp_dask.analysis.base import check_run, listed, needs_of, words_of
from bnp_dask.core import Summary, Survey
from bnp_dask.core.frozen import frozen, thawed
from bnp_dask.data import (
    CountedSource,
    Source,
    Stored,
    classes_of,
    columns_of,
    labels_of,
    links_of,
    opened_as,
    responses_of,
    taking_lags,
    with_labels,
    with_links,
    with_responses,
)
from bnp_dask.data.sources.open import opened
from bnp_dask.errors import SettingError, warn
from bnp_dask.execute.base import Executor, one_blas_thread
from bnp_dask.execute.reach import open_executor
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.inference import (
    Memoized,
    SavedState,
    Schedule,
    Work,
)
from bnp_dask.inference.sampling.gibbs import Gibbs
from bnp_dask.initialize import Initialization
from bnp_dask.initialize.labelled import LabelledStart
from bnp_dask.inputs import flag, seed_of
from bnp_dask.kernels.gaussian.quadratic import n_packed
from bnp_dask.kernels.numeric.fixed_order import fixed_order
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import Move
from bnp_dask.moves.policy import LAP
from bnp_dask.observation import Labelled, RoundedObservation, unlabelled
from bnp_dask.observation.priors import rounding_variance
from bnp_dask.reports.describe import variances
from bnp_dask.store import Checkpoint, RunStore, run_folder
from bnp_dask.structure import RespondingAllocation, ResponseModel, noun_of, response_of
from bnp_dask.training.alternatives import Shadow, other_priors
from bnp_dask.training.callbacks import Callback, LogLaps, logger, telling
from bnp_dask.training.compiling.first_run import FirstRun
from bnp_dask.training.defaults import (
    SCHEDULES,
    check_sample,
    check_schedule,
    default_moves,
    filled_in,
    require_links,
    start_of,
)
from bnp_dask.training.memory_plan import MEMORY, MemoryPlan, parse_memory, rooms
from bnp_dask.training.one_run import ForScores, OneRun
from bnp_dask.training.results import TrainResult, save_result, with_names
from bnp_dask.training.run_settings import Begun, RunParts, check_parts, open_store, require_savable, with_names_of
from bnp_dask.training.survey_pass import survey_of_run

if TYPE_CHECKING:
    from distributed import Client

RESUME = "The committed state of the run directory is safe: start a cluster and call train(..., resume=True)."
ANEW = "Nothing was kept of this run: start a cluster and call train(...) again, with store= to be able to go on."


class ConvergenceWarning(UserWarning):
    """A run stopped at its limit of laps before it converged."""


def train(
    model: Model,
    data: Any,
    *,
    init: Initialization | None = None,
    schedule: Schedule | None = None,
    moves: Sequence[Move] | None = None,
    client: Client | Executor | str | None = None,
    store: str | os.PathLike[str] | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    rng: int | np.random.SeedSequence | np.random.Generator | np.random.RandomState | None = 0,
    n_init: int = 1,
    shadow: Shadow | None = None,
    collapsed: int | None = None,
    weights: Any = None,
    labels: Any = None,
    links: Any = None,
    responses: Any = None,
    batch_size: int | None = None,
    checkpoint_minutes: float = 5.0,
    on_bad_batch: Literal["raise", "skip"] = "raise",
    memory: int | str = MEMORY,
    job: str | None = None,
    reproducible: bool = False,
) -> TrainResult:
    """Learn the posterior of a model from data of any size.

    Parameters
    ----------
    model
        Allocation times observation model; prior settings that are None are set from the data.
    data
        Path or URL (Zarr, Parquet, .npy), NumPy array, ``scipy.sparse`` counts, dask Array or DataFrame, pandas
        DataFrame, or a Source.  The posterior keeps the names of columns (``posterior.columns``).
    init
        Starting point.  Default: ``SampledTopics()`` for topics of words, ``ContiguousBlocks(10)`` for states of
        sequences whose number is learned (and blocks for all autoregressive ones), else ``BregmanKMeans(25)``, of
        fewer for less than 50 rows, or ``UnitedKMeans()`` for mixtures of 40,000 rows and more whose number of clusters
        is learned; ``FromNothing()`` for schedules that open clusters themselves.
    schedule
        ``Memoized()`` (default), ``FullBatch()`` or ``Stochastic()``; ``Filter()``, ``ExpectationPropagation()`` or
        ``Gibbs(...)``, the only ones for ``NGGPMixture``; ``TruncationFreeSVI()``, which opens clusters too.
    moves
        Proposals that change the number of clusters, such as ``[Birth(), Merge(), Delete()]``; decided by the exact
        whole-data objective.  None: all of them for a model that learns its number of clusters (``DPMixture``,
        ``HDPTopics``, ``HDPHMM``; with posteriors, and a schedule that has an exact objective), with
        ``DocumentBirth()`` beside a cheaper ``Birth()`` for topics of words; none for others.
        ``()``: the number of clusters stays as initialised.
    client
        A ``distributed.Client``, the address of a scheduler, or an executor.  None is the current client; without one,
        and inside a Dask task (such as one of joblib's Dask backend), it is this thread.  No cluster is started here;
        the client of an address is closed at the end.
    store
        Run directory for checkpoints, or a URL of an object store that refuses to create an existing object, such as
        ``"s3://bucket/run"`` (``bnp-dask[s3]``); it ends with the posterior in ``posterior.zarr``.  None keeps nothing.
    resume
        Go on from the last checkpoint in ``store``, to the same bits as an uninterrupted run; starts anew if the
        directory holds none.  All other arguments must equal the first call's, but ``laps`` may grow, columns of a
        table may come in another order, and other ``moves`` act from the next lap on: the history has
        ``"changed_moves"`` in the first row of that lap.  If ``init``, ``schedule`` or ``moves`` are left out, the run
        keeps the ones with which it was begun (moves and laps: the last call's).  First every summary that the
        checkpoint lists is read and compared with its checksum, by the workers if they reach the directory, and
        together they must give the checkpoint's totals to 1e-12 of the terms summed.  If they do not, the run goes on
        from the previous checkpoint, with a warning.  The data are not read for this: each batch is compared with its
        checksum whenever it is read.
    callbacks
        Observers of the run, such as ``Progress()``.
    rng
        Seed, a whole number from 0 to 2**160 - 1; a SeedSequence; or a Generator or RandomState, from which one is
        drawn.  None: another seed each time, which the run directory keeps, so that ``resume=True`` goes on with it.
    n_init
        Starts, each with random numbers of its own; the first is the run that ``n_init=1`` makes.  All take ten laps
        side by side, in one order of batches.  The start with the highest objective then goes on alone, to the bits of
        its own run (``rng=result.starts[i]["seed"]``).  One task visits a batch for all of them, so that a lap reads
        each batch once; its computation takes the time of all, and a worker holds all of their posteriors.  They share
        ``memory``.  ``result.starts`` describes all.  Callbacks get each lap from the start that is ahead.  ``store``
        keeps only the start that goes on: a run that ends before begins anew, to the same bits.  A run of fewer laps
        keeps the best at its end, and goes on with it when it is resumed with more.
    shadow
        A second state that lives beside the state of the run for some laps and takes its place if its exact objective
        is higher, such as ``Shadow()``; None for none.  One task visits a batch for both, and each has half of
        ``memory``.  The history lists each under ``moves``, of kind ``"shadow"``, and ``result.alternatives`` does too.
    collapsed
        Topics of words: passes over the data after the last lap, which find their words again with each document's own
        counts left out (:func:`bnp_dask.collapsed_topics`).  Scores use these words, in ``posterior.predictive``: with
        the words of training, held-out documents score worse from lap to lap.  0 is none.  None: 4 with ``Memoized()``
        and ``FullBatch()``, which took 2 to 4 % of the time of runs on five corpora; none with other schedules, models,
        and in :func:`bnp_dask.update`.  There are none either if a callback stops the run, or if the data cannot be
        read once more, which is logged.
    weights
        How often each atom counts: array, or column name for tables.  Atoms of weight zero are ignored, to the bit if
        they are in one batch.  Weights are amounts of evidence: 300 that sum to one are together one atom's worth, and
        a warning says so.
    labels
        Labels that are known for some atoms: an array ``(n,)`` in the order of the data, of whole numbers (-1
        where unknown) or texts (None where unknown), or the path of a .npy file of numbers.  An atom with a label can
        only come from clusters of this label; all others may come from any.  A label may own several clusters, and a
        cluster belongs to one label or to none: :func:`bnp_dask.label_of`.  Mixtures, and states of sequences (a label
        for each step).  The objective and all moves respect it, see :class:`~bnp_dask.observation.labelled.Labelled`.
    links
        Groups of atoms that are known to share one cluster (must-links): an array ``(n,)`` in the order of the data,
        with the number or name of a group for each atom (-1 or None: in no group), or the path of a .npy file of
        numbers or texts.  Mixtures; rows of a group must lie in one batch.  A group draws its cluster once, and its
        rows are independent given the cluster; no move parts it, and weights of clusters are shares of groups and
        single rows: see :mod:`bnp_dask.structure.linked`.  With ``labels``, a label that is known of a row is known of
        its group.
    responses
        Numbers that are observed for some documents: an array ``(n,)`` in the order of the documents, NaN where none is
        known, or the path of a .npy file.  Topic models of counts, ``HDPTopics()`` and ``LDA()``: their topics and a
        regression of the response on the shares of topics are learned together, by one objective with the term
        ``response``; see :class:`bnp_dask.GaussianResponse` (``HDPTopics(response=GaussianResponse(...))`` for its
        prior) and :func:`bnp_dask.predict_response`.
    batch_size
        Atoms per batch; default: the chunks of the data, or batches of about 32 MB.
    checkpoint_minutes
        Longest time between checkpoints within a lap.
    on_bad_batch
        Treatment of a batch that cannot be read or that the likelihood cannot have produced: ``"raise"`` its error, or
        ``"skip"`` it.  A batch that the first pass over the data skips is in no total and in no prior set from the
        data.  A batch that goes bad later leaves every total at the visit that finds it bad, and stays out, also when
        the run is resumed: the history's row of that step has ``"lost"``, and from there on the objective covers only
        the other batches (priors stay as they were set).  The log, ``result.skipped``, the history and the report name
        these batches.  More than half of the data going bad under a run is an error.  Parquet tables are cut anew by
        every call, so a run on one is resumed only with all of its files readable; a batch that was left out stays out.
    memory
        Bytes, or text such as "1GB", of memory in this process for single batches: atoms gathered for births and
        deletes and, in a run without ``store``, the batches' last statistics.  The excess goes to the run directory, or
        to a temporary one; the result does not depend on it.  The model comes on top: about ten times the numbers of
        its statistics, and as many for each proposal of a lap.
    job
        Text of the job file of this run; kept in ``store`` as ``job.yaml``.
    reproducible
        Equal bits on every x86-64 processor with AVX2 and FMA, independent of the code that BLAS and NumPy choose for
        it, with the same versions of packages and of the C library: ``model`` with ``reproducible=True``, see
        :class:`~bnp_dask.model.Model`.

    Returns
    -------
    TrainResult
        Posterior, history, and whether the run converged.

    Raises
    ------
    DataError
        Data that cannot be read, or that the likelihood cannot have produced.
    SettingError
        Settings that contradict each other, or a batch or model that cannot fit the memory of a worker; the message
        names a size that would.
    StoreError
        A run directory that is in use, or an object store that does not answer; one that holds another run, or belongs
        to other data or settings; or a part that could not be saved, such as a likelihood whose class is not registered
        (:func:`bnp_dask.register`).
    ExecutionError
        The cluster was lost: its scheduler died, restarted, hangs or cannot be reached (told within Dask's connection
        timeout ``distributed.comm.timeouts.connect``, 30 s unless set otherwise), or a task lost worker after worker.
        ``resume=True`` goes on.
    """
    moves, callbacks = None if moves is None else listed("moves", moves), listed("callbacks", callbacks)
    check_parts(model, init, schedule, moves or (), callbacks)
    model = replace(thawed(model), reproducible=flag("reproducible", reproducible) or model.reproducible)
    check_run(store, resume, checkpoint_minutes, on_bad_batch, job, n_init)
    (room, second), begun = rooms(parse_memory(memory), shadow is not None), Begun.at(store, resume)
    init, schedule, moves = filled_in(begun, init, schedule, moves)
    check_schedule(model, schedule, n_init, shadow, moves)
    check_sample(init, schedule, n_init, shadow, labels, links)
    scores = ForScores.of(model, schedule, collapsed, store if resume else None)
    require_savable(model, init, schedule, moves or (), store is not None)
    before = None if begun is None else begun.columns()
    source = opened(data, needs_of(model), batch_size, weights, before, on_bad_batch)
    moves = default_moves(model, schedule, source.is_sparse) if moves is None else moves
    words, columns = words_of(source), columns_of(source) if before is None else before
    first = FirstRun.of(model, source, moves, schedule)
    if labels is not None:
        model, source = with_known_labels(model, source, labels, schedule, shadow)
    if links is not None or model.linked:
        require_links(model, schedule)
    if links is not None:
        model, source = replace(model, linked=True), with_links(source, links_of(links))
    if responses is not None:
        model, source = with_known_responses(model, source, responses, schedule)
    elif isinstance(source, Stored) and response_of(model.allocation) is not None:
        warn("the model has a response=, and no responses are given: it learns topics alone; use train(responses=y)")
    source, named = taking_lags(source, model.lags), model.with_columns(None if columns is None else columns.features)
    # sampling notes clusters of rows by their number in the data, and draws none for rows that count nothing
    counting = source if isinstance(schedule, Gibbs) else CountedSource(source, model.structure.counted)
    seed = seed_of(rng) if rng is not None or begun is None else begun.seed()
    place, skips = opened_as(data, source, batch_size, weights, labels, responses, links), on_bad_batch == "skip"
    parts = RunParts(model, init, schedule, tuple(moves), seed, source, columns, place, n_init, shadow)
    with one_blas_thread(), fixed_order(model.reproducible), open_executor(client, _what_is_kept(store)) as executor:
        plan = MemoryPlan(executor.memory_limit)
        plan.require_batches(source)
        with contextlib.closing(open_store(store, resume, parts, job, room - room // 4)) as memo:
            checkpoint = memo.load(fields=SavedState)
            reads = f"reading all of {source.name} once ({source.n_batches} batches): sums, ranges, checksums"
            with telling(reads, "reading", "read"):
                found = first.beside(survey_of_run, named, counting, executor, memo, checkpoint, skips)
            warn_of_light_weights(found.survey)
            plan.require_surveyed(found.source, found.survey)
            known = with_names_of(found.survey, columns_of(source) if model.lags else columns)
            ready = named.with_prior(known, may_learn=schedule.decides_moves)
            init = start_with_labels(model, start_of(init, schedule, ready, found.survey, moves))
            shelf = memo.shared if isinstance(memo, RunStore) else None
            readable = None if skips or (store is not None and place is None) else np.ones(source.n_batches, np.bool_)
            work = Work(
                model=ready,
                source=found.source,
                survey=frozen(found.survey),
                executor=executor,
                memo=memo,
                seed=seed,
                moves=tuple(moves),
                shelf=shelf,
                skips=skips,
                room=room // 4 if store is None else room,
                readable=readable,
            )
            run = OneRun(
                work=work,
                init=init,
                schedule=schedule,
                memo=memo,
                manifest=found.manifest,
                callbacks=[*callbacks, LogLaps()],
                checkpoint_seconds=checkpoint_minutes * 60,
                n_init=n_init,
                room=room + second,
                shadow=shadow,
                priors=other_priors(shadow, ready, known),
                scores=scores,
            )
            result = with_names(run.go(_of_these_data(checkpoint, found.manifest), _where(executor)), words, columns)
        _keep(result, store)
    return _warned_of_limit(first.done(result), schedule)


LIGHT, FEW_ROWS, MANY_ROWS = 0.02, 2.0, 10
"""Mean weight, or sum of weights, below which data of at least so many rows are reported to count next to nothing."""


def warn_of_light_weights(survey: Survey) -> None:
    """Log one line if weights leave next to no data, for instance because they were made to sum to one."""
    n, total = survey.n_atoms, survey.total_weight
    if n >= MANY_ROWS and total < max(LIGHT * n, FEW_ROWS):
        warn(
            f"the weights of {n} rows sum to {total:.3g}: a weight says how often a row counts, so these are as much "
            f"evidence as {total:.3g} row(s), and the prior determines most of the clusters. Weights that are relative "
            "want a mean of 1: pass weights / weights.mean()",
        )


def _warned_of_limit(result: TrainResult, schedule: Schedule) -> TrainResult:
    """The result, after a warning to its caller; all is saved before, since a warning may be turned into an error."""
    tell_of_grain(result.posterior)
    if result.reason.startswith("limit"):
        warn(
            f"stopped at the limit of {schedule.laps} laps before it converged; "
            "give the schedule more laps, or resume with more",
            ConvergenceWarning,
        )
    return result


def _keep(result: TrainResult, store: str | os.PathLike[str] | None) -> None:
    """Write the result into the run directory, if there is one."""
    if store is not None:
        save_result(result, run_folder(store))


def _what_is_kept(store: str | os.PathLike[str] | None) -> str:
    """Advice for when the cluster is lost."""
    return ANEW if store is None else RESUME


def _of_these_data(checkpoint: Checkpoint | None, manifest: dict[str, Any]) -> Checkpoint | None:
    """The checkpoint, unless it is a start that was made from other data."""
    if checkpoint is None or (not checkpoint.begun and checkpoint.state.get("manifest") != manifest):
        return None
    return checkpoint


def _where(executor: Executor) -> str:
    return "in this thread" if isinstance(executor, SerialExecutor) else f"on {executor.n_workers} workers"


# -- known labels --------------------------------------------------------------------------------------------------
def with_known_labels(
    model: Model, source: Source, labels: Any, schedule: Schedule, shadow: Any = None
) -> tuple[Model, Source]:
    """Model and data with the labels ``(n,)`` of the atoms.

    Raises
    ------
    SettingError
        A topic model, a schedule that seats atoms in another way, or clusters that another likelihood would compete
        with.
    DataError
        Labels that are no labels, or not one for each atom.
    """
    require_labels(model, schedule, shadow)
    known = labels_of(labels)
    return replace(model, observation=Labelled(model.observation, known.names)), with_labels(source, known)


def require_labels(model: Model, schedule: Schedule, shadow: Any = None) -> None:
    """SettingError unless a run with labels makes sense for these parts."""
    if model.structure.has_shares:
        raise SettingError(
            f"labels: {type(model.allocation).__name__} gives each document several topics, so that a label of a "
            "document forbids none; train a mixture, DPMixture(...), in which a document is one atom"
        )
    if not isinstance(schedule, SCHEDULES):
        raise SettingError(
            f"labels: {type(schedule).__name__}() seats atoms without the likelihood of their labels; use Memoized(), "
            "FullBatch() or Stochastic()"
        )
    if isinstance(schedule, Memoized) and schedule.delay < 1.0:
        raise SettingError(
            f"labels: Memoized(delay={schedule.delay:g}) re-estimates clusters before every batch was visited, and a "
            "label whose atoms are in later batches would own none; use delay=1.0"
        )
    if shadow is not None and shadow.prior is not None:
        raise SettingError("labels: Shadow(prior=...) compares likelihoods without labels; use Shadow() or no shadow")


def start_with_labels(model: Model, init: Initialization) -> Initialization:
    """The initialization, with a cluster for every label of the model, if it has labels."""
    return LabelledStart(init) if isinstance(model.observation, Labelled) else init


# -- observed responses --------------------------------------------------------------------------------------------
def with_known_responses(model: Model, source: Source, responses: Any, schedule: Schedule) -> tuple[Model, Source]:
    """Model and data with responses ``(n,)`` of the documents; the prior of their regression is set from them.

    Raises
    ------
    SettingError
        No topic model, or a schedule whose local steps do not look at responses.
    DataError
        Responses that are no numbers, or not one for each document.
    """
    allocation: Any = model.allocation
    if not isinstance(allocation, RespondingAllocation):
        raise SettingError(
            f"responses: {type(allocation).__name__} gives documents no shares of topics, on which a response could "
            "depend; use HDPTopics() or LDA()"
        )
    if not isinstance(schedule, SCHEDULES):
        raise SettingError(
            f"responses: {type(schedule).__name__}() does not look at responses of documents; use Memoized(), "
            "FullBatch() or Stochastic()"
        )
    response: ResponseModel = GaussianResponse() if allocation.response is None else allocation.response
    known, names = (
        classes_of(responses, response.classes) if response.takes_classes else (responses_of(responses), None)
    )
    ready: Any = replace(allocation, response=response.with_prior(known[~np.isnan(known)], names))  # type: ignore[type-var]
    return model.with_allocation(ready), with_responses(source, known)


# -- lines of the log about clusters -------------------------------------------------------------------------------
MANY = 0.5
"""Share of the clusters that must be so narrow before a line is logged."""

SAME = 1e-8
"""Share of the squared distance of clusters' means below which a variance is taken for the variance of one value:
a guess, tried on synthetic tables alone."""


def tell_of_grain(posterior: Posterior) -> None:
    """Log the line, if there is one."""
    line = grain_line(posterior) or copies_line(posterior)
    if line is not None:
        logger.warning("%s", line)


def grain_line(posterior: Posterior) -> str | None:
    """Share of the clusters no wider than rounding, and their columns, as a line; None if most are wider.

    A cluster is that narrow in a column if less than half of its variance there is its own, beside the rounding
    variance.
    """
    observation, summary = posterior.model.observation, posterior.summary
    params = posterior.observation
    if isinstance(observation, Labelled):
        observation, params = observation.part, params.part
    if not isinstance(observation, RoundedObservation) or summary is None:
        return None
    rounding, spread = rounding_variance(observation.grain), variances(observation, params)
    used = summary["N"] > LAP.unused
    if rounding is None or spread is None or not used.any():
        return None
    sunk = (spread[used] < 2.0 * rounding) & (rounding > 0)
    n_sunk, columns = int(sunk.any(axis=1).sum()), np.flatnonzero(sunk.any(axis=0))
    if n_sunk < MANY * used.sum():
        return None
    names = None if posterior.columns is None else posterior.columns.shown
    named = columns[:10].tolist() if names is None else [names[i] for i in columns[:10]]
    steps = ", ".join(f"{step:.4g}" for step in np.unique(np.asarray(observation.grain)[columns])[:3])
    return (
        f"{n_sunk} of {int(used.sum())} {noun_of(posterior.model).many} are no wider than the resolution of column(s) "
        f"{named}, whose values lie on a grid of {steps}: they tell recorded values apart. If that is "
        "not wanted, drop these columns, or give a larger grain"
    )


def copies_line(posterior: Posterior) -> str | None:
    """Number of clusters that hold copies of one row each, as a line; None if most hold different rows.

    Twelve clusters of 100 rows, each row 20 times, end as 1,089 clusters if the copies count
    (:mod:`bnp_dask.training.copies`): 20 equal values without any noise between them are evidence of a cluster, to any
    model of continuous values, and weights of rows count like copies.
    """
    summary = posterior.summary
    rounded = isinstance(unlabelled(posterior.model.observation), RoundedObservation)
    if summary is None or not rounded or "x" not in summary.fields:
        return None
    n, same = summary["N"], _holds_copies(summary)
    used = n > LAP.unused
    if same.sum() < 2 or same.sum() < MANY * used.sum():
        return None
    return (
        f"{int(same.sum())} of {int(used.sum())} {noun_of(posterior.model).many} hold copies of one row each, "
        f"{n[same].mean():.3g} on average: rows that are equal to the last digit count as evidence. If the copies say "
        'nothing, take every row once: bnp.ingest(..., deduplicate="once")'
    )


def _holds_copies(summary: Summary) -> np.ndarray:
    """Whether each cluster holds two atoms or more and all are equal in every column, ``(K,)``."""
    n, x, squares = summary["N"], summary["x"], summary["xx"]
    d = x.shape[1]
    if squares.shape[1] == n_packed(d):  # upper triangles, row by row: take the diagonal
        squares = squares[:, np.cumsum([0, *range(d, 1, -1)])]
    mean = x / np.maximum(n, 1.0)[:, None]
    # the median: the variance of the means would show only a row far away that is a cluster of its own
    apart = np.median((mean - np.median(mean, axis=0)) ** 2, axis=0)
    own = squares - x * mean
    found: np.ndarray = (n >= 2.0) & (own <= SAME * n[:, None] * apart).all(axis=1)
    return found
