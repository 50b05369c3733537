"""``train``: from data and a model to a posterior; joins sources, executors, schedules and the run directory."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from distributed import Client

from bnp_dask.analysis.arguments import check_run, listed
from bnp_dask.analysis.matching import words_of
from bnp_dask.core.rows import Row, Rows
from bnp_dask.data.base import columns_of
from bnp_dask.data.identity import opened_as
from bnp_dask.data.skipping import CheckedSource
from bnp_dask.data.sources.missing import opened
from bnp_dask.errors import DataError
from bnp_dask.execute.base import Executor
from bnp_dask.execute.blas import one_blas_thread
from bnp_dask.execute.dask import open_executor
from bnp_dask.execute.heap import Heap
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.initialize import InitContext, Initialization
from bnp_dask.inputs.settings import flag, seed_of
from bnp_dask.kernels.numeric.fixed_order import fixed_order
from bnp_dask.model import Model
from bnp_dask.moves import Move
from bnp_dask.observation.base import read_as
from bnp_dask.sampling.gibbs import SAMPLED, Gibbs, kept_draws
from bnp_dask.schedules import (
    Schedule,
    State,
    Step,
    Work,
    is_constant,
    restored,
    state_to_arrays,
    state_to_json,
)
from bnp_dask.schedules.engine.bad_batches import require_enough, usable, without
from bnp_dask.schedules.engine.gathered import EMBEDDED
from bnp_dask.schedules.engine.state import Loss
from bnp_dask.store import Behind, Checkpoint, Listing, MemoryStore, RunStore
from bnp_dask.streaming.truncation_free import STREAMED
from bnp_dask.structure.warmup import warm_task
from bnp_dask.training.callbacks import FAILED, Callback, LogLaps, RunInfo, logger, tell_of_idle
from bnp_dask.training.defaults import check_schedule, filled_in, start_of
from bnp_dask.training.doors import check_parts, require_savable, require_savable_parameters
from bnp_dask.training.grain_line import tell_of_grain
from bnp_dask.training.memory_plan import MEMORY, MemoryPlan, parse_memory
from bnp_dask.training.results import History, TrainResult, save_result, with_names
from bnp_dask.training.run_settings import (
    Begun,
    RunParts,
    compare_data,
    facts_for_priors,
    learns_by_default,
    open_store,
)
from bnp_dask.training.survey_pass import gone_since, skipped, survey_of_run, survey_task, take_survey

RESUME = "What was committed to the run directory is safe: start a cluster and call train(..., resume=True)."
ANEW = "Nothing was kept of this run: start a cluster and call train(...) again, with store= to be able to go on."

STOPPED = "stopped by a callback"
"""Reason of a run that a callback ended."""


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
    store: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    rng: int | np.random.SeedSequence | np.random.Generator | np.random.RandomState | None = 0,
    n_init: int = 1,
    weights: Any = None,
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
        Where to start.  Default: ``SampledTopics()`` for topics of words, ``ContiguousBlocks(10)`` for states of
        sequences whose number is learned (and blocks for all autoregressive ones), else ``BregmanKMeans(25)``;
        ``FromNothing()`` for schedules that open clusters themselves.
    schedule
        ``Memoized()`` (default), ``FullBatch()`` or ``Stochastic()``; ``Filter()``, ``ExpectationPropagation()`` or
        ``Gibbs(...)``, the only ones for ``NGGPMixture``; ``TruncationFreeSVI()``, which opens clusters too.
    moves
        Proposals that change the number of clusters, such as ``[Birth(), Merge(), Delete()]``; decided by the exact
        whole-data objective.  None: all of them for a model that learns its number of clusters (``DPMixture``,
        ``HDPTopics``, ``HDPHMM``; with posteriors, and a schedule that has an exact objective), none for others.
        ``()``: the number of clusters stays as initialised.
    client
        A ``distributed.Client``, the address of a scheduler, or an executor; None is the current client, or this thread
        when there is none.  Nothing is started here; the client of an address is closed at the end.
    store
        Run directory for checkpoints; it ends with the posterior in ``posterior.zarr``.  None keeps nothing.
    resume
        Go on from the last checkpoint in ``store``, to the same bits as an uninterrupted run; starts anew where
        the directory holds none.  All other arguments must be those of the first call, but ``laps`` may grow, and
        columns of a table may lie in another order; where ``init``, ``schedule`` or ``moves`` are left out, they are as
        the run was begun with.
        First every summary that the checkpoint lists is read and compared with its checksum, by the workers where
        they reach the directory, and together they must give the checkpoint's totals to 1e-12 of the terms summed;
        where they do not, the run goes on from the checkpoint before, with a warning.  The data are not read for
        that: each batch is compared with its checksum when it is first visited.
    callbacks
        What watches the run, such as ``Progress()``.
    rng
        Seed, a whole number >= 0; a SeedSequence; or a Generator or RandomState, from which one is drawn.  None:
        another seed each time, which the run directory keeps, so that ``resume=True`` goes on with it.
    n_init
        Starts.  Each is a whole run with random numbers of its own, one after the other, so that it takes as many times
        as long (the first pass over the data is made once); the first of them is the run that ``n_init=1`` makes.  The
        one whose objective is highest is the result; ``result.starts`` tells of the others.  Not with ``store``.
    weights
        One weight per atom: array, or column name for tables.
    batch_size
        Atoms per batch; default: as the data are chunked, or batches of about 32 MB.
    checkpoint_minutes
        Longest time between checkpoints within a lap.
    on_bad_batch
        What to do with a batch that cannot be read or that the likelihood cannot have produced: ``"raise"`` its
        error, or ``"skip"`` it.  A batch that the first pass over the data skips is in no total and in no prior set
        from the data.  One that goes bad later leaves every total at the visit that finds it so, and stays out, also
        when the run is resumed: the history's row of that step has ``"lost"``, and from there on the objective is that
        of the other batches (priors stay as they were set).  The log, ``result.skipped``, the history and the report
        say which.  More than half of the data going bad under a run is an error.  Parquet tables are cut anew by every
        call, so a run on one is resumed only with all of its files readable; a batch that was left out stays so.
    memory
        Of this process for what it holds of single batches: atoms gathered for births and deletes and, in a run
        without ``store``, the batches' last statistics.  What is beyond it lies in the run directory, or in a temporary
        one.  Bytes, or text such as "1GB"; the result does not depend on it.  The model comes on top: about ten times
        the numbers of its statistics, and as many for each proposal of a lap.
    job
        Text of the job file that this is the run of; kept in ``store`` as ``job.yaml``.
    reproducible
        Equal bits on every x86-64 processor with AVX2 and FMA, whatever code BLAS and NumPy choose for it, with the
        same versions of packages and of the C library: ``model`` with ``reproducible=True``, see
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
        Settings that make no sense together, or a batch or model that cannot fit the memory of a worker; says which
        size would.
    StoreError
        A run directory that is in use, holds another run, or belongs to other data or settings; or a part that
        could not be saved, such as a likelihood whose class is not registered (:func:`bnp_dask.register`).
    ExecutionError
        The cluster was lost: its scheduler died, restarted, hangs or cannot be reached (told within Dask's connection
        timeout ``distributed.comm.timeouts.connect``, 30 s unless set otherwise), or a task lost worker after worker.
        ``resume=True`` goes on.
    """
    moves, callbacks = None if moves is None else listed("moves", moves), listed("callbacks", callbacks)
    check_parts(model, init, schedule, moves or (), callbacks)
    model = replace(model, reproducible=flag("reproducible", reproducible) or model.reproducible)
    check_run(store, resume, checkpoint_minutes, on_bad_batch, job, n_init)
    room, begun = parse_memory(memory), Begun.at(store, resume)
    model, init, schedule, moves = filled_in(model, begun, init, schedule, moves)
    check_schedule(model, schedule, n_init)
    require_savable(model, init, schedule, moves, store is not None)
    before = None if begun is None else begun.columns()
    source = opened(data, model.marginalises, batch_size, weights, before, on_bad_batch, *read_as(model.observation))
    words, columns = words_of(source), columns_of(source) if before is None else before
    named = model.with_columns(None if columns is None else columns.features)
    seed = seed_of(rng) if rng is not None or begun is None else begun.seed()
    place, skips = opened_as(data, source, batch_size, weights), on_bad_batch == "skip"
    parts = RunParts(model, init, schedule, tuple(moves), seed, source, columns, place)
    gone = ANEW if store is None else RESUME
    with one_blas_thread(), fixed_order(model.reproducible), open_executor(client, gone) as executor:
        plan = MemoryPlan(executor.memory_limit)
        plan.require_batches(source)
        with contextlib.closing(open_store(store, resume, parts, job, room - room // 4)) as memo:
            checkpoint = memo.load()
            found = survey_of_run(named, source, executor, memo, checkpoint, skips)
            compare_data(memo, found)
            plan.require_surveyed(found.source, found.survey)
            init = start_of(schedule, model, found.survey) if init is None else init
            facts = facts_for_priors(memo, found.survey, columns)
            ready = named.with_prior(facts, learns_by_default(memo, schedule))
            shelf = memo.shared if isinstance(memo, RunStore) else None
            room = room // 4 if store is None else room
            work = Work(
                ready, found.source, found.survey, executor, memo, seed, tuple(moves), shelf, skips, found.unread, room
            )
            run = _Run(work, init, schedule, memo, found.manifest, [*callbacks, LogLaps()], checkpoint_minutes * 60)
            result = _best_of(run, n_init, _of_these_data(checkpoint, found.manifest), _where(executor))
        result = with_names(result, words, columns)
        if store is not None:
            save_result(result, Path(store))
    _warn_of_limit(result, schedule)
    return result


def _warn_of_limit(result: TrainResult, schedule: Schedule) -> None:
    """Tell the caller of :func:`train`; after everything is saved, since a warning may be turned into an error."""
    tell_of_grain(result.posterior)
    if result.reason.startswith("limit"):
        warnings.warn(
            f"stopped at the limit of {schedule.laps} laps before it converged; "
            "give the schedule more laps, or resume with more",
            ConvergenceWarning,
            stacklevel=3,
        )


def _of_these_data(checkpoint: Checkpoint | None, manifest: dict[str, Any]) -> Checkpoint | None:
    """The checkpoint, unless it is a start that was made of other data."""
    if checkpoint is None or (not checkpoint.begun and checkpoint.state.get("manifest") != manifest):
        return None
    return checkpoint


@dataclass
class _Run:
    """One call of :func:`train`, from its first or restored state to its result."""

    work: Work
    init: Initialization
    schedule: Schedule
    memo: RunStore | MemoryStore
    manifest: dict[str, Any]
    callbacks: list[Callback]
    checkpoint_seconds: float

    def go(self, checkpoint: Checkpoint | None, where: str) -> TrainResult:
        started = time.perf_counter()
        state, rows = self._first_state(checkpoint)
        require_savable_parameters(state.posterior)
        assert state.posterior.summary is not None
        MemoryPlan(self.work.executor.memory_limit).require_model(
            state.posterior.n_clusters, state.posterior.summary.nbytes, max(self.work.survey.batch_bytes)
        )
        warm_seconds = self._warm_up(state)
        started += warm_seconds
        before = rows[-1]["seconds"] if rows else 0.0
        info = RunInfo(
            self.work.source.n_batches, self.work.survey.n_atoms, self.schedule.laps, state.lap, state.position, where
        )
        for callback in self.callbacks:
            callback.on_start(info)
        reason = FAILED
        try:
            with contextlib.closing(Behind()) as commits:
                ended = self._loop(state, rows, before - started, commits)
            reason = ended
        finally:
            for callback in self.callbacks:
                callback.on_end(reason)
        seconds = before + time.perf_counter() - started
        left_out = tuple(why for _, why in self._left_out(state))
        draws = kept_draws(self.work, state, self.schedule) if isinstance(self.schedule, Gibbs) else None
        found = state.posterior, History(rows), reason == "converged", reason, seconds, left_out, warm_seconds
        return TrainResult(*found, draws=draws)

    def _warm_up(self, state: State) -> float:
        """Compile on every worker what laps need, before the first of them; seconds until the last is ready.

        As many tasks as workers at once: each is busy with one.  A worker that comes later compiles when it must.
        """
        executor, light = self.work.executor, state.posterior.light()
        tell_of_idle(self.work.source.name, self.work.source.n_batches, executor.n_workers)
        reader = usable(self.work, state).reader(0)
        started = time.perf_counter()
        tasks = [executor.submit(f"warm-up-{i}", warm_task, light, reader) for i in range(max(1, executor.n_workers))]
        for task in tasks:
            executor.result(task)
        return time.perf_counter() - started

    def _loop(self, state: State, rows: Rows, clock: float, commits: Behind) -> str:
        saved_rows, saved_at = len(rows), time.perf_counter()
        stopped, heap = False, Heap()
        for step in self.schedule.run(self.work, state):
            if step.row is not None:
                n_skipped = len(self._left_out(state))
                skips = {"skipped": n_skipped} if n_skipped else {}
                rows.append({**step.row, **skips, "seconds": clock + time.perf_counter()})
            stopped = self._tell(step, rows)
            if step.lap_end or stopped or time.perf_counter() - saved_at > self.checkpoint_seconds:
                self._checkpoint(step, rows[saved_rows:], commits)
                saved_rows, saved_at = len(rows), time.perf_counter()
            if step.lap_end:
                heap.tidy()
            if stopped:
                break
        if stopped:
            return STOPPED
        return state.finished if state.finished not in (None, "laps") else f"limit of {self.schedule.laps} laps"

    def _left_out(self, state: State) -> list[tuple[int, str]]:
        """Batches that are left out, since before the run or under it, and why."""
        under = ((b, f"{loss.why} (from lap {loss.lap} on)") for b, loss in state.lost.items())
        return sorted([*skipped(self.work.source), *under])

    def _tell(self, step: Step, rows: Rows) -> bool:
        done = self.work.source.n_batches if step.lap_end else step.state.position
        stop = False
        for callback in self.callbacks:  # every one is told, also after one that stops the run
            stop = callback.on_batch(done) is True or stop
        for callback in self.callbacks if step.lap_end else ():
            stop = callback.on_lap(rows[-1], step.state.posterior) is True or stop
        return stop

    def _checkpoint(self, step: Step, new_rows: list[Row], commits: Behind) -> None:
        state = step.state
        if isinstance(self.memo, MemoryStore):
            self.memo.forget({(int(b), int(v)) for b, v in enumerate(state.visits)})
            return
        state.in_flight = step.pipeline.outstanding()
        if state.gathered.held > EMBEDDED:
            state.gathered.write(self.memo.part_files())
        numbers, arrays, listing = self._saved(state)
        commits.commit(self.memo, numbers, arrays, new_rows, listing, state.parts(), is_constant)
        state.in_flight = []

    def _saved(self, state: State) -> tuple[dict[str, Any], dict[str, np.ndarray], Listing]:
        """What a checkpoint holds: plain data, arrays, and the summaries that it refers to."""
        numbers = {**state_to_json(state), "manifest": self.manifest}
        return numbers, state_to_arrays(state), Listing.of_latest(state.visits, state.receipts)

    def _first_state(self, checkpoint: Checkpoint | None) -> tuple[State, Rows]:
        """Where to begin, and the history up to there.

        A start is committed before anything else is done, so that no initialisation is made twice.
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
        for loss in state.lost.values():
            logger.warning("skipped since lap %d: %s", loss.lap, loss.why)
        if state.finished in ("laps", SAMPLED, STREAMED) and state.lap < self.schedule.laps:
            state = replace(state, finished=None)
        return state, Rows(checkpoint.history)

    def _start(self) -> State:
        """The state before the first step, from the initialisation.

        Where that fails because batches have gone bad since the survey, it is begun anew without them.
        """
        work, lost = self.work, dict[int, Loss]()
        while True:
            survey = without(work.survey, list(lost)) if lost else work.survey
            try:
                rng, drafts = work.rng(0, "init"), self.memo.drafts if isinstance(self.memo, RunStore) else None
                source = CheckedSource(work.source, work.survey.checksums, work.unread)
                context = InitContext(work.model, source, survey, work.executor, rng, drafts)
                state = State.start(work.model, self.init.start(context), work.source.n_batches)
            except Exception:
                gone = gone_since(work.source, survey, work.executor) if work.skips else {}
                if not gone:
                    raise
                lost |= {b: Loss(why, 1, 1) for b, why in gone.items()}
                for why in gone.values():
                    logger.warning("skipped from the start: %s", why)
                require_enough(work, lost)
                continue
            state.lost = lost
            return state


def _best_of(run: _Run, n_init: int, checkpoint: Checkpoint | None, where: str) -> TrainResult:
    """The best of some starts by the exact objective, the first of equals; no more after one that a callback stops.

    One alone may go on from a checkpoint.
    """
    if n_init == 1:
        return run.go(checkpoint, where)
    best: TrainResult | None = None
    starts: list[Mapping[str, Any]] = []
    for number in range(n_init):
        work = replace(run.work, seed=_seed_of(run.work.seed, number), memo=MemoryStore())
        found = replace(run, work=work, memo=work.memo).go(None, where)
        last = found.history[-1]
        facts = {name: last[name] for name in ("elbo", "n_clusters", "lap")}
        starts.append({"seed": work.seed, **facts, "reason": found.reason})
        logger.info("start %d of %d: objective %.10g nats, K=%d", number + 1, n_init, last["elbo"], last["n_clusters"])
        if best is None or last["elbo"] > best.history[-1]["elbo"]:
            best = found
        if found.reason == STOPPED:
            break
    assert best is not None
    return replace(best, starts=tuple(starts))


def _seed_of(seed: int, number: int) -> int:
    """Seed of a start, by its number; the first has that of the run."""
    return seed if number == 0 else int(np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(1)[0])


def _where(executor: Executor) -> str:
    return "in this thread" if isinstance(executor, SerialExecutor) else f"on {executor.n_workers} workers"


__all__ = ["ConvergenceWarning", "DataError", "open_executor", "survey_task", "take_survey", "train"]
