"""One call of ``train``, from its first or restored state to its result.

At its end it may find words of topics for scores.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from bnp_dask.analysis.topics.completion import MOST_PASSES, PASSES, bytes_of_passes, collapsed_summary, require_own
from bnp_dask.core.survey import without
from bnp_dask.data import CheckedSource
from bnp_dask.errors import DataError, ExecutionError
from bnp_dask.inference import Schedule, State, Step, Work, is_constant, restored, state_to_arrays, state_to_json
from bnp_dask.inference.bad_batches import remaining, require_enough, usable
from bnp_dask.inference.drive import in_flight
from bnp_dask.inference.gathered import EMBEDDED
from bnp_dask.inference.sampling.gibbs import SAMPLED, Gibbs, kept_draws
from bnp_dask.inference.shared_reads import SharedReads
from bnp_dask.inference.sound import require_sound
from bnp_dask.inference.state import Loss
from bnp_dask.inference.streaming.truncation_free import STREAMED
from bnp_dask.inference.variational.sampled import first_sample, on_sample
from bnp_dask.initialize import InitContext, Initialization, LearnedStart
from bnp_dask.inputs import is_a, whole_number
from bnp_dask.kernels.options import n_kept
from bnp_dask.model import Model, Posterior
from bnp_dask.moves.prior import better_prior
from bnp_dask.observation import Observation
from bnp_dask.store import BackgroundCommits, Checkpoint, Listing, MemoryStore, RunStore
from bnp_dask.structure import counts_words, noun_of
from bnp_dask.training.alternatives import (
    SETTLED,
    SHADOW,
    Settled,
    Shadow,
    Shadows,
    Track,
    ended,
    settle,
    settled_from_saved,
    starts_of,
    take_over,
)
from bnp_dask.training.callbacks import (
    FAILED,
    Callback,
    RunInfo,
    logger,
    tell_of_batches,
    tell_of_compiling,
    tell_of_idle,
    tell_of_lap,
    telling,
)
from bnp_dask.training.compiling.first_run import warm_task
from bnp_dask.training.history import Row, Rows
from bnp_dask.training.memory_plan import MemoryPlan, rooms
from bnp_dask.training.results import History, TrainResult, saved_posterior
from bnp_dask.training.run_settings import OtherMoves, other_moves, require_savable_parameters
from bnp_dask.training.survey_pass import gone_since, skipped


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
                    if is_a(self.init, LearnedStart) and model.reference is not None:
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
