"""``train``: from data and a model to a posterior; joins sources, executors, schedules and the run directory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bnp_dask.allocation import GaussianResponse
from bnp_dask.analysis import (
    MOST_PASSES,
    PASSES,
    bytes_of_passes,
    check_run,
    collapsed_summary,
    listed,
    needs_of,
    require_own,
    words_of,
)
from bnp_dask.core import Summary, Survey, frozen, thawed
from bnp_dask.core.survey import without
from bnp_dask.data import (
    CheckedSource,
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
from bnp_dask.errors import DataError, ExecutionError, SettingError, answering, warn
from bnp_dask.execute import Executor, SerialExecutor, one_blas_thread, open_executor
from bnp_dask.inference import (
    EMBEDDED,
    SAMPLED,
    STREAMED,
    Gibbs,
    Loss,
    Memoized,
    SavedState,
    Schedule,
    SharedReads,
    State,
    Step,
    Work,
    first_sample,
    in_flight,
    is_constant,
    kept_draws,
    on_sample,
    remaining,
    require_enough,
    require_sound,
    restored,
    state_to_arrays,
    state_to_json,
    usable,
)
from bnp_dask.initialize import InitContext, Initialization, LabelledStart, LearnedStart
from bnp_dask.inputs import flag, is_a, seed_of, whole_number
from bnp_dask.kernels import fixed_order, n_kept, n_packed
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import LAP, Move, better_prior
from bnp_dask.observation import Labelled, Observation, RoundedObservation, rounding_variance, unlabelled
from bnp_dask.reports.describe import variances
from bnp_dask.store import BackgroundCommits, Checkpoint, Listing, MemoryStore, RunStore, run_folder
from bnp_dask.structure import RespondingAllocation, ResponseModel, counts_words, noun_of, response_of
from bnp_dask.training.alternatives import (
    SETTLED,
    SHADOW,
    Settled,
    Shadow,
    Shadows,
    Track,
    ended,
    other_priors,
    settle,
    settled_from_saved,
    starts_of,
    take_over,
)
from bnp_dask.training.callbacks import (
    FAILED,
    Callback,
    LogLaps,
    RunInfo,
    logger,
    tell_of_batches,
    tell_of_compiling,
    tell_of_idle,
    tell_of_lap,
    telling,
)
from bnp_dask.training.compiling.first_run import FirstRun, warm_task
from bnp_dask.training.history import Row, Rows
from bnp_dask.training.memory_plan import MEMORY, MemoryPlan, parse_memory, rooms
from bnp_dask.training.results import History, TrainResult, save_result, saved_posterior, with_names
from bnp_dask.training.run_settings import (
    SCHEDULES,
    Begun,
    OtherMoves,
    RunParts,
    check_parts,
    check_sample,
    check_schedule,
    default_moves,
    filled_in,
    open_store,
    other_moves,
    require_links,
    require_savable,
    require_savable_parameters,
    start_of,
    with_names_of,
)
from bnp_dask.training.survey_pass import gone_since, skipped, survey_of_run

if TYPE_CHECKING:
    from distributed import Client


# -- One call of ``train``, from its first or restored state to its result ----------------------------------------
# At its end it may find words of topics for scores.


@dataclass(frozen=True)
class ForScores:
    """Words for scores of new data, as a run finds them at its end.

    Parameters
    ----------
    passes
        Passes of :func:`~bnp_dask.collapsed_topics`; 0 for none.
    saved
        The posterior of the run directory, in which the words may have been found before; None for none.
    """

    passes: int = 0
    saved: Posterior | None = None

    @staticmethod
    def of(model: Model, schedule: Schedule, collapsed: int | None, store: str | os.PathLike[str] | None) -> ForScores:
        """Words for a call: as many passes as its caller names, or as suit it; ``store`` is a run that it resumes.

        Topics of words that were trained to the maximum of an exact objective score worse from lap to lap, see
        :func:`~bnp_dask.collapsed_topics`.  Single passes over a stream do not last long enough for that, and their
        data may be gone.

        Raises
        ------
        SettingError
            A number out of range, or passes for a model without topics of words.
        """
        if collapsed is not None:
            passes = int(whole_number("collapsed", collapsed, 0, MOST_PASSES))
            if passes > 0:
                require_own(model, "collapsed")
            return ForScores(passes)
        if not (counts_words(model) and schedule.decides_moves):
            return ForScores()
        return ForScores(PASSES, saved_posterior(store))

    def found(self, work: Work, state: State) -> Posterior:
        """The posterior of a run that has ended, with the words that scores need.

        They come from the run directory if nothing has changed since.  Missing words do not fail the run: if its data
        cannot be read once more, or its workers have no room or are gone, there are none.
        """
        posterior = state.posterior
        if self.passes == 0:
            return posterior
        if self.saved is not None and _are_same(self.saved, posterior):
            return replace(posterior, predictive=self.saved.predictive)
        return replace(posterior, predictive=self._sought(work, state))

    def _sought(self, work: Work, state: State) -> Any | None:
        """Parameters of the words; None if the passes cannot be made."""
        room = MemoryPlan(work.executor.memory_limit).room - max(work.survey.batch_bytes)
        if bytes_of_passes(state.posterior, self.passes) > room:
            logger.warning("scores ask the words of training: a worker has no room for collapsed=%d", self.passes)
            return None
        source = remaining(work, state)  # a batch that is missing from later passes alone would falsify them
        try:
            summary = collapsed_summary(state.posterior, source, work.executor, self.passes)
        except (DataError, ExecutionError) as error:
            logger.warning("scores ask the words of training: collapsed=%d did not end: %s", self.passes, error)
            return None
        return state.model.observation.global_step(summary)


def _are_same(one: Posterior, other: Posterior) -> bool:
    """Whether two posteriors of a run are of the same moment, and the first has words for scores."""
    if one.predictive is None or not np.array_equal(one.ids, other.ids):
        return False
    return np.array_equal(one.observation.lam, other.observation.lam)


@dataclass
class OneRun:
    """One call of :func:`~bnp_dask.training.train.train`, from its first or restored state to its result.

    Parameters
    ----------
    work, init, schedule, memo, manifest, callbacks
        Parts of the run.
    checkpoint_seconds
        Longest time between checkpoints within a lap.
    n_init
        Starts, of which one goes on after a few laps.
    room
        Bytes of single batches that all states together may hold in memory.
    shadow
        Setting of the shadows beside it; None if there are none.
    priors
        Likelihoods with the priors that shadows begin with, ready; none if they begin with the run's prior.
    scores
        Words for scores, found at its end.
    settled
        Outcome of the starts; None before that, and for a single start.
    change
        Moves from its next lap on; None if they are unchanged.
    shadows
        Shadows that are taken on with it; None if there are none.
    """

    work: Work
    init: Initialization
    schedule: Schedule
    memo: RunStore | MemoryStore
    manifest: dict[str, Any]
    callbacks: list[Callback]
    checkpoint_seconds: float
    n_init: int = 1
    room: int = 0
    shadow: Shadow | None = None
    priors: tuple[Observation, ...] = ()
    scores: ForScores = field(default_factory=ForScores)
    settled: Settled | None = None
    change: OtherMoves | None = None
    shadows: Shadows | None = None

    def go(self, checkpoint: Checkpoint | None, where: str) -> TrainResult:
        """Train to the end, from a checkpoint if there is one; ``where`` it runs, for callbacks."""
        if checkpoint is not None and SETTLED in checkpoint.state:
            return self.alone(settled_from_saved(checkpoint.state[SETTLED]))._go(checkpoint, where)
        return self._go(checkpoint, where)

    def alone(self, settled: Settled) -> OneRun:
        """The run of the start that goes on."""
        return replace(self, work=replace(self.work, seed=settled.seed), settled=settled)

    def with_shadows(self, checkpoint: Checkpoint | None, state: State) -> OneRun:
        """The run with its shadows from a checkpoint, if it may have any."""
        if self.shadow is None:
            return self
        shadows = Shadows.of_run(self.shadow, self.work, self.schedule, rooms(self.room, True)[1], self.priors)
        if checkpoint is not None:
            shadows.restore(checkpoint, state)
        return replace(self, work=shadows.work, shadows=shadows)

    def with_parts(self, work: Work, memo: MemoryStore) -> OneRun:
        """The run as one of its starts, with a seed and a memory of its own."""
        return replace(self, work=work, memo=memo, n_init=1, shadow=None)

    def _go(self, checkpoint: Checkpoint | None, where: str) -> TrainResult:
        started = time.perf_counter()
        settles = self.n_init > 1 and checkpoint is None
        runs, shared = starts_of(self) if settles else ([self], SharedReads(self.work.executor))
        tracks = [Track(*run._first_state(checkpoint)) for run in runs]
        state, rows = tracks[0].state, tracks[0].rows
        for track in tracks:
            self._require_fitting(track.state, max(len(tracks), 1 if self.shadow is None else 2))
        warm_seconds = self._warm_up(state)
        started += warm_seconds
        before = rows[-1]["seconds"] if rows else 0.0
        clock = before - started
        info = RunInfo(
            n_batches=self.work.source.n_batches,
            n_atoms=self.work.survey.n_atoms,
            laps=self.schedule.laps + state.laps_before,
            first_lap=state.lap,
            first_batch=state.position,
            where=where,
        )
        for callback in self.callbacks:
            callback.on_start(info)
        run, reason = self, FAILED
        try:
            with contextlib.closing(BackgroundCommits()) as commits:
                if settles:
                    best, settled, stopped = settle(runs, tracks, shared, self.callbacks, clock)
                    state, rows = tracks[best].state, tracks[best].rows
                    run = self.alone(settled).with_shadows(None, state)
                    if not stopped:
                        stopped = run._loop_on(runs[best], state, rows, clock, commits)
                else:
                    run = self.with_shadows(checkpoint, state)
                    stopped = run._loop(state, rows, clock, commits, len(rows))
            if run.schedule.decides_moves and state.lap > 0 and not state.position:
                require_sound(state, self.work.survey, f"the result of {self.work.source.name}")
            posterior = state.posterior
            if not stopped:  # a stopped run does not wait for passes over the data
                with telling("counting words for scores, each document without its own", "counting", "counted words"):
                    posterior = self.scores.found(self.work, state)
            reason = stopped or ended(state, run.schedule)
        finally:
            for callback in self.callbacks:
                callback.on_end(reason)
        seconds = before + time.perf_counter() - started
        draws = kept_draws(run.work, state, run.schedule) if isinstance(run.schedule, Gibbs) else None
        starts = [] if run.settled is None else run.settled.starts
        shadows = [] if run.shadows is None else run.shadows.rows
        return TrainResult(
            posterior=posterior,
            history=History(rows),
            converged=not stopped and reason == "converged",
            reason=reason,
            seconds=seconds,
            skipped=tuple(why for _, why in run._left_out(state)),
            warm_seconds=warm_seconds,
            alternatives=(*starts, *shadows),
            draws=draws,
        )

    def _loop_on(self, settled: OneRun, state: State, rows: Rows, clock: float, commits: BackgroundCommits) -> str:
        """Go on with the start that has settled; move all its data here first."""
        take_over(settled.memo, self.memo, state, self.work.room)
        settled.memo.close()
        self._checkpoint(Step(state, None, lap_end=True), list(rows), commits)
        return self._loop(state, rows, clock, commits, len(rows))

    def _require_fitting(self, state: State, n_states: int) -> None:
        """Raise for a state that cannot be saved, or held by a worker beside others of its size."""
        require_savable_parameters(state.posterior)
        assert state.posterior.summary is not None
        MemoryPlan(self.work.executor.memory_limit).require_model(
            state.posterior.n_clusters,
            state.posterior.summary.nbytes,
            max(self.work.survey.batch_bytes),
            n_states,
            noun_of(self.work.model),
        )

    def _warm_up(self, state: State) -> float:
        """Compile the kernels of laps on every worker before the first lap; return the seconds until the last is ready.

        As many tasks as workers at once: each is busy with one.  A worker that comes later compiles on demand.
        """
        executor, light = self.work.executor, state.posterior.light()
        n_batches = self.work.source.n_batches
        tell_of_idle(self.work.source.name, n_batches, in_flight(self.schedule.window, n_batches), executor.n_workers)
        reader = usable(self.work, state).reader(0)
        started = time.perf_counter()
        with tell_of_compiling(count=n_kept):
            names = [f"warm-up-{i}" for i in range(max(1, executor.n_workers))]
            for task in [executor.submit(name, warm_task, light, reader) for name in names]:
                executor.result(task)
        return time.perf_counter() - started

    def _loop(self, state: State, rows: Rows, clock: float, commits: BackgroundCommits, n_saved: int) -> str:
        """Take steps to the end; return why a callback stopped them, or an empty text."""
        saved_at, stopped, trimmer = time.perf_counter(), "", MemoryTrimmer()
        for step, stopped in self.steps(state, rows, clock):
            if step.lap_end or stopped or time.perf_counter() - saved_at > self.checkpoint_seconds:
                self._checkpoint(step, rows[n_saved:], commits)
                n_saved, saved_at = len(rows), time.perf_counter()
            if step.lap_end:
                trimmer.trim()
        return stopped

    def lap_steps(self, track: Track, clock: float) -> Generator[Step]:
        """Steps of one lap, without checkpoints and without calls of callbacks."""
        trimmer = MemoryTrimmer()
        for step in self.noted(track.state, track.rows, clock):
            if step.lap_end:
                self._forget(step.state)
                trimmer.trim()
            yield step
            if step.lap_end:
                return

    def steps(self, state: State, rows: Rows, clock: float) -> Iterator[tuple[Step, str]]:
        """Steps of the schedule, noted in ``rows`` and told to callbacks; with the last one why one stops the run."""
        for step in self.noted(state, rows, clock):
            done = self.work.source.n_batches if step.lap_end else step.state.position
            stopped = tell_of_batches(self.callbacks, done)
            if step.lap_end:
                told = tell_of_lap(self.callbacks, rows[-1], step.state.posterior)
                stopped = stopped or told
            yield step, stopped
            if stopped:
                return

    def noted(self, state: State, rows: Rows, clock: float) -> Iterator[Step]:
        """Steps of the schedule, noted in ``rows``."""
        run, change = self.schedule.run, self.change
        steps = run(self.work, state) if change is None else change.steps(self.schedule, self.work, state)
        for step in steps if self.shadows is None else self.shadows.steps(steps, state):
            if step.row is not None:
                n_skipped = len(self._left_out(state))
                skips = {"skipped": n_skipped} if n_skipped else {}
                rows.append({**step.row, **skips, "seconds": clock + time.perf_counter()})
            yield step

    def _left_out(self, state: State) -> list[tuple[int, str]]:
        """Batches left out, before the run or during it, and why."""
        under = ((b, f"{loss.why} (from lap {loss.lap} on)") for b, loss in state.lost.items())
        return sorted([*skipped(self.work.source), *under])

    def _checkpoint(self, step: Step, new_rows: list[Row], commits: BackgroundCommits) -> None:
        state = step.state
        self._forget(state)
        if isinstance(self.memo, MemoryStore):
            return
        state.in_flight = list(step.in_flight)
        if state.gathered.held > EMBEDDED:
            state.gathered.write(self.memo.part_files())
        numbers, arrays, listing = self._saved(state)
        commits.commit(self.memo, numbers, arrays, new_rows, listing, state.parts(), is_constant)
        state.in_flight = []

    def _forget(self, state: State) -> None:
        """Keep only the latest visit of every batch."""
        if isinstance(self.memo, MemoryStore):
            self.memo.forget({(int(b), int(v)) for b, v in enumerate(state.visits)})

    def _saved(self, state: State) -> tuple[dict[str, Any], dict[str, np.ndarray], Listing]:
        """Content of a checkpoint: plain data, arrays, and the summaries that it refers to."""
        settled = {} if self.settled is None else {SETTLED: asdict(self.settled)}
        shadows = {} if self.shadows is None else {SHADOW: self.shadows.to_json()}
        numbers = {**state_to_json(state), "manifest": self.manifest, **settled, **shadows}
        arrays = state_to_arrays(state) | ({} if self.shadows is None else self.shadows.to_arrays(state))
        return numbers, arrays, Listing.of_latest(state.visits, state.receipts)

    def _first_state(self, checkpoint: Checkpoint | None) -> tuple[State, Rows]:
        """First state, and the history up to it.

        A start is committed before any further step, so that no initialisation is made twice.
        """
        if checkpoint is None:
            state = self._start()
            if isinstance(self.memo, RunStore):
                numbers, arrays, listing = self._saved(state)
                self.memo.write(self.memo.prepare(numbers, arrays, [], listing, begun=False))
                self.memo.forget_drafts()
            return state, Rows()
        assert isinstance(self.memo, RunStore)
        state, checkpoint = restored(self.work, self.memo, checkpoint)
        self.change = other_moves(self.memo, checkpoint.history, self.work.moves)
        for loss in state.lost.values():
            logger.warning("skipped since lap %d: %s", loss.lap, loss.why)
        if state.finished in ("laps", SAMPLED, STREAMED) and state.lap < self.schedule.laps + state.laps_before:
            state = replace(state, finished=None)
        return state, Rows(checkpoint.history)

    def _start(self) -> State:
        """The state before the first step, from the initialisation.

        If that fails because batches have gone bad since the survey, it is begun anew without them.
        """
        work, lost = self.work, dict[int, Loss]()
        sample = first_sample(self.init, work)
        shown = on_sample(work, sample).survey
        while True:
            survey = without(shown, list(lost)) if lost else shown
            try:
                rng, drafts = work.rng(0, "init"), self.memo.drafts if isinstance(self.memo, RunStore) else None
                source = CheckedSource(work.source, work.survey.checksums)
                context = InitContext(work.model, source, survey, work.executor, rng, drafts)
                with telling(f"looking for a start by {type(self.init).__name__}", "looking", "found a start"):
                    initial, model = self.init.start(context), work.model
                    learned = is_a(self.init, LearnedStart) and self.init.learns_prior
                    if learned and model.reference is not None:
                        model = better_prior(model, initial)  # the clusters were learned with such a prior
                    state = State.start(model, initial, work.source.n_batches)
            except Exception:
                gone = gone_since(work.source, survey, work.executor) if work.skips else {}
                if not gone:
                    raise
                lost |= {b: Loss(why, 1, 1) for b, why in gone.items()}
                for why in gone.values():
                    logger.warning("skipped from the start: %s", why)
                require_enough(work, lost)
                continue
            state.lost, state.sample = lost, sample
            return state


# -- memory that was freed -----------------------------------------------------------------------------------------
SECONDS = 5.0
"""Least time between two calls of ``malloc_trim``; one takes some milliseconds."""


class MemoryTrimmer:
    """Returns memory that a process has freed to the system.

    Short-lived arrays of a lap, such as samples for small runs, fragment the heap differently each time: after twenty
    laps the holes were twice the memory in use.
    """

    def __init__(self) -> None:
        self._trimmed = time.monotonic()

    def trim(self) -> None:
        """Return empty pages to the system, at most every ``SECONDS``; only glibc can."""
        if time.monotonic() - self._trimmed < SECONDS:
            return
        with contextlib.suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)
        self._trimmed = time.monotonic()


# -- ``train``: from data and a model to a posterior; joins sources, executors, schedules and the run directory ---


RESUME = "The committed state of the run directory is safe: start a cluster and call train(..., resume=True)."
ANEW = "Nothing was kept of this run: start a cluster and call train(...) again, with store= to be able to go on."


class ConvergenceWarning(UserWarning):
    """A run stopped at its limit of laps before it converged."""


@answering
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
        Path or URL (Zarr, Parquet, .npy), NumPy array, list of sequences, texts, ``scipy.sparse`` counts, dask Array or
        DataFrame, pandas or Arrow table, or a source: whatever :func:`bnp_dask.as_source` takes, and so is read with
        other settings.  The posterior keeps the names of columns (``posterior.columns``).
    init
        Starting point.  Default, by the model: topics of words, ``SampledTopics()``; states of sequences,
        ``ContiguousBlocks(10)`` if their number is learned (for autoregressive ones blocks in any case); clusters,
        ``BregmanKMeans(25)``, or half as many as there are rows if these are fewer than 50; mixtures of 40,000 rows
        and more whose number of clusters is learned, ``UnitedKMeans()``; schedules that open clusters themselves,
        ``FromNothing()``.
    schedule
        ``Memoized()`` (default), ``FullBatch()`` or ``Stochastic()``; ``Filter()``, ``ExpectationPropagation()`` or
        ``Gibbs(...)``, the only ones for ``NGGPMixture`` and ``NRMMixture``; ``TruncationFreeSVI()``, which opens
        clusters too.
    moves
        Proposals that change the number of clusters, such as ``[Birth(), Merge(), Delete()]``; decided by the exact
        whole-data objective.  None: all of them for a model that learns its number of clusters (``DPMixture``,
        ``PitmanYorMixture``, ``StrataMixture``, ``HDPTopics``, ``HDPHMM``; with posteriors, and a schedule that has an
        exact objective), with ``DocumentBirth()`` beside a cheaper ``Birth()`` for topics of words; none for others.
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
        Numbers, or classes with :class:`bnp_dask.CategoricalResponse`, that are observed for some documents: an array
        ``(n,)`` in the order of the documents, NaN or None where none is known, or the path of a .npy file.  Topic
        models of counts, ``HDPTopics()`` and ``LDA()``: their topics and a regression of the response on the shares of
        topics are learned together, by one objective with the term ``response``; see
        :class:`bnp_dask.GaussianResponse` (``HDPTopics(response=GaussianResponse(...))`` for its prior) and
        :func:`bnp_dask.predict_response`.
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
    NumericalError
        A statistic, parameter or term of the objective that is not finite in double precision; names it.

    Examples
    --------
    >>> import numpy as np, bnp_dask as bnp
    >>> x = np.repeat([[0.0], [9.0]], 20, axis=0) + np.random.default_rng(0).normal(size=(40, 1))
    >>> model = bnp.Model(bnp.DPMixture(gamma=1.0), bnp.Gaussian())
    >>> result = bnp.train(model, x, store="runs/two", rng=0)
    >>> result.converged, result.posterior
    (True, Posterior(DPMixture of Gaussian, 2 clusters, 40 atoms))

    ``bnp.inspect(result)`` shows the clusters, ``bnp.predict(result.posterior, x)`` labels rows, ``bnp.score`` judges
    the posterior by other data, ``bnp.report(result, "page.html")`` writes a page.
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
    model: Model, source: Source, labels: Any, schedule: Schedule, shadow: Any
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


def require_labels(model: Model, schedule: Schedule, shadow: Any) -> None:
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
    (:mod:`bnp_dask.training.survey_pass`): 20 equal values without any noise between them are evidence of a cluster, to
    any model of continuous values, and weights of rows count like copies.
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
