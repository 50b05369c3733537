"""``train``: from data and a model to a posterior; joins sources, executors, schedules and the run directory."""

from __future__ import annotations

import contextlib
import time
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from distributed import Client

from bnp_dask.callbacks import Callback, LogLaps, RunInfo, logger
from bnp_dask.columns import Columns
from bnp_dask.data import as_source
from bnp_dask.data.base import Source, columns_of
from bnp_dask.data.skipping import WithoutBatches
from bnp_dask.errors import BnpDaskError, DataError, SettingError, StoreError
from bnp_dask.execute.base import Executor
from bnp_dask.execute.blas import one_blas_thread
from bnp_dask.execute.dask import open_executor
from bnp_dask.execute.heap import Heap
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.first_pass import (
    gone_since,
    known_of,
    survey_task,
    survey_to_arrays,
    survey_what_is_good,
    take_survey,
)
from bnp_dask.initialize import BregmanKMeans, InitContext, Initialization
from bnp_dask.matching import words_of
from bnp_dask.memory_plan import MEMORY, MemoryPlan, parse_memory
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import Move
from bnp_dask.results import History, TrainResult, save
from bnp_dask.rows import Row, Rows
from bnp_dask.schedules import (
    Memoized,
    Schedule,
    State,
    Step,
    Work,
    is_constant,
    state_from_saved,
    state_to_arrays,
    state_to_json,
)
from bnp_dask.schedules.gathered import EMBEDDED
from bnp_dask.schedules.losing import require_enough, usable, without
from bnp_dask.schedules.state import Loss
from bnp_dask.serialize import to_spec, with_added
from bnp_dask.store import Behind, MemoryStore, RunStore, SummaryFiles, is_within_reach
from bnp_dask.warm import warm

DATA_SETTINGS = ("data", "skipped", "checksums", "n_atoms", "n_batches")
"""Settings of a run that say what its data are."""

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
    moves: Sequence[Move] = (),
    client: Client | Executor | None = None,
    store: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    rng: int | np.random.Generator = 0,
    weights: Any = None,
    batch_size: int | None = None,
    checkpoint_minutes: float = 5.0,
    on_bad_batch: Literal["raise", "skip"] = "raise",
    memory: int | str = MEMORY,
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
        Where to start; default ``BregmanKMeans(25)``.
    schedule
        ``Memoized()`` (default), ``FullBatch()`` or ``Stochastic()``.
    moves
        Proposals that change the number of clusters, such as ``[Birth(), Merge(), Delete()]``; decided by the exact
        whole-data objective.  None: the number of clusters stays as initialised.
    client
        A ``distributed.Client`` or an executor; None is the current client, or this thread when there is none.
        Nothing is started here.
    store
        Run directory for checkpoints; it ends with the posterior in ``posterior.zarr``.  None keeps nothing.
    resume
        Go on from the last checkpoint in ``store``, to the same bits as an uninterrupted run; starts anew where
        the directory holds none.  All other arguments must be those of the first call, but ``laps`` may grow, and
        columns of a table may lie in another order.
    callbacks
        What watches the run, such as ``Progress()``.
    rng
        Seed, or a Generator from which one is drawn.
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
        A run directory that is in use, holds another run, or belongs to other data or settings.
    ExecutionError
        The cluster was lost: its scheduler died, restarted, hangs or cannot be reached (told within Dask's connection
        timeout ``distributed.comm.timeouts.connect``, 30 s unless set otherwise), or a task lost worker after worker.
        ``resume=True`` goes on.
    """
    schedule = Memoized() if schedule is None else schedule
    init = BregmanKMeans(25) if init is None else init
    _check_arguments(model, init, schedule, moves, store, resume, checkpoint_minutes, on_bad_batch)
    room = parse_memory(memory)
    before = _columns_before(store) if resume else None
    source = as_source(data, batch_size=batch_size, weights=weights, columns=before, on_bad_batch=on_bad_batch)
    words, columns = words_of(source), columns_of(source) if before is None else before
    names = None if columns is None else columns.features
    named = model.with_columns(names)
    seed = int(rng.integers(2**63)) if isinstance(rng, np.random.Generator) else int(rng)
    with one_blas_thread(), open_executor(client, ANEW if store is None else RESUME) as executor:
        plan = MemoryPlan(executor.memory_limit)
        plan.require_batches(source)
        if on_bad_batch == "skip":
            known = known_of(store) if resume and store is not None and RunStore.exists(store) else None
            survey, source = survey_what_is_good(named, source, executor, known)
        else:
            survey = take_survey(named, source, executor)
        plan.require_surveyed(source, survey)
        ready = named.with_prior(replace(survey, names=None if columns is None else columns.shown))
        settings = _settings(model, init, schedule, moves, seed, source, survey, columns)
        parts = {"model": model, "init": init, "schedule": schedule, "moves": list(moves)}
        with contextlib.closing(_open_store(store, resume, settings, parts, room - room // 4)) as memo:
            shelf, skips = _shelf(memo, executor), on_bad_batch == "skip"
            room = room // 4 if store is None else room
            work = Work(ready, source, survey, executor, memo, seed, tuple(moves), shelf, skips, room)
            run = _Run(work, init, schedule, memo, [*callbacks, LogLaps()], checkpoint_minutes * 60)
            result = run.go(_where(executor))
        result = replace(result, posterior=replace(result.posterior, words=words, columns=columns))
        if store is not None:
            save(result.posterior, Path(store) / "posterior.zarr")
    if result.reason.startswith("limit"):
        # after everything is saved: a warning may be turned into an error
        warnings.warn(
            f"stopped at the limit of {schedule.laps} laps before it converged; "
            "give the schedule more laps, or resume with more",
            ConvergenceWarning,
            stacklevel=2,
        )
    return result


def warm_task(posterior: Posterior, reader: Any) -> float:
    """The task: call every kernel once on a little of a batch."""
    return warm(posterior, reader())


@dataclass
class _Run:
    """One call of :func:`train`, from its first or restored state to its result."""

    work: Work
    init: Initialization
    schedule: Schedule
    memo: RunStore | MemoryStore
    callbacks: list[Callback]
    checkpoint_seconds: float

    def go(self, where: str) -> TrainResult:
        started = time.perf_counter()
        state, rows = self._first_state()
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
        reason = "failed"
        try:
            with contextlib.closing(Behind()) as commits:
                ended = self._loop(state, rows, before - started, commits)
            reason = ended
        finally:
            for callback in self.callbacks:
                callback.on_end(reason)
        seconds = before + time.perf_counter() - started
        left_out = tuple(why for _, why in self._left_out(state))
        converged = reason == "converged"
        return TrainResult(state.posterior, History(rows), converged, reason, seconds, left_out, warm_seconds)

    def _warm_up(self, state: State) -> float:
        """Compile on every worker what laps need, before the first of them; seconds until the last is ready.

        As many tasks as workers at once: each is busy with one.  A worker that comes later compiles when it must.
        """
        executor, light = self.work.executor, state.posterior.light()
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
        return "converged" if state.finished == "converged" else f"limit of {self.schedule.laps} laps"

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
        if isinstance(self.memo, MemoryStore):
            self.memo.forget({(int(b), int(v)) for b, v in enumerate(step.state.visits)})
            return
        step.state.in_flight = step.pipeline.outstanding()
        gathered = step.state.gathered
        if gathered.held > EMBEDDED:
            gathered.write(self.memo.part_files())
        visited = [(b, int(v)) for b, v in enumerate(step.state.visits) if v >= 0]
        arrays = {**state_to_arrays(step.state), **survey_to_arrays(self.work.survey)}
        numbers = state_to_json(step.state)
        commits.commit(self.memo, numbers, arrays, new_rows, visited, gathered.parts(), is_constant)
        step.state.in_flight = []

    def _first_state(self) -> tuple[State, Rows]:
        checkpoint = self.memo.load() if isinstance(self.memo, RunStore) else None
        if checkpoint is None:
            return self._start(), Rows()
        try:
            state = state_from_saved(self.work.model, checkpoint.state, checkpoint.arrays)
        except BnpDaskError:
            raise
        except Exception as error:  # what was not written by this package
            raise StoreError(
                f"checkpoint {checkpoint.number} has the right checksums but is not the state of a run "
                f"({type(error).__name__}: {error}); remove it to resume from the one before"
            ) from error
        for loss in state.lost.values():
            logger.warning("skipped since lap %d: %s", loss.lap, loss.why)
        if state.finished == "laps" and state.lap < self.schedule.laps:
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
                context = InitContext(work.model, work.source, survey, work.executor, work.rng(0, "init"))
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


def skipped(source: Source) -> tuple[tuple[int, str], ...]:
    """Batches of a run's source that are left out, and why."""
    return source.bad if isinstance(source, WithoutBatches) else ()


def _check_arguments(model, init, schedule, moves, store, resume, checkpoint_minutes, on_bad_batch) -> None:
    if not isinstance(model, Model):
        raise SettingError(
            f"model is a {type(model).__name__}; needs a Model, such as Model(DPMixture(gamma=1.0), Gaussian())"
        )
    parts = [("init", init, "start"), ("schedule", schedule, "run"), *(("moves", move, "plan") for move in moves)]
    for name, value, method in parts:
        if isinstance(value, type) or not callable(getattr(value, method, None)):
            raise SettingError(f"{name}={value!r}: needs an instance with a method {method}()")
    if resume and store is None:
        raise SettingError("resume=True needs store=, the run directory to resume from")
    if on_bad_batch not in ("raise", "skip"):
        raise SettingError(f'on_bad_batch={on_bad_batch!r}: needs "raise" or "skip"')
    if not checkpoint_minutes > 0:
        raise SettingError(f"checkpoint_minutes={checkpoint_minutes!r}: needs a positive number of minutes")


def _columns_before(store: str | Path | None) -> Columns | None:
    """Columns of the data that a run was begun with; None for a new one, and where they had no names."""
    if store is None or not RunStore.exists(store):
        return None
    facts = RunStore.view(store).settings.get("columns")
    return None if facts is None else Columns.from_json(facts)


def _settings(model, init, schedule, moves, seed, source, survey, columns) -> dict[str, Any]:
    """What a run is: compared when it is resumed.  The limit of laps may change."""
    model_spec, model_arrays = to_spec(model)
    init_spec, init_arrays = to_spec(init)
    schedule_spec, _ = to_spec(schedule)
    return {
        "model": [model_spec, _digest(model_arrays)],
        "init": [init_spec, _digest(init_arrays)],
        "schedule": schedule_spec,
        "moves": [to_spec(move)[0] for move in moves],
        "seed": seed,
        "data": source.describe(),
        "skipped": [b for b, _ in skipped(source)],
        "checksums": zlib.crc32(np.array(survey.checksums, np.int64).tobytes()),
        "n_atoms": survey.n_atoms,
        "n_batches": survey.n_batches,
        "columns": None if columns is None else columns.to_json(),
    }


def _digest(arrays: dict[str, np.ndarray]) -> dict[str, int]:
    return {name: zlib.crc32(np.ascontiguousarray(a).tobytes()) for name, a in sorted(arrays.items())}


def _with_added(settings: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """Descriptions of the parts of a run that an earlier version began, with settings that they have got since."""
    (model, digest), (init, other) = settings["model"], settings["init"]
    return {
        "model": [with_added(model, parts["model"]), digest],
        "init": [with_added(init, parts["init"]), other],
        **{name: with_added(settings[name], parts[name]) for name in ("schedule", "moves")},
    }


def _open_store(
    path: str | Path | None, resume: bool, settings: dict[str, Any], parts: dict[str, Any], room: int
) -> RunStore | MemoryStore:
    if path is None:
        return MemoryStore(room)
    if not (resume and RunStore.exists(path)):
        return RunStore.create(path, settings)
    found = RunStore.open(path)
    try:
        _compare_settings({**found.settings, **_with_added(found.settings, parts)}, settings, path)
    except StoreError:
        found.close()
        raise
    return found


def _shelf(memo: RunStore | MemoryStore, executor: Executor) -> SummaryFiles | None:
    """The files of a run directory, if the workers reach it as this process does."""
    if not isinstance(memo, RunStore):
        return None
    reach = executor.result(
        executor.submit("look-for-run-directory", is_within_reach, memo.path.absolute(), memo.token)
    )
    return memo.summaries if reach else None


def _compare_settings(old: dict[str, Any], new: dict[str, Any], path: str | Path) -> None:
    def comparable(settings: dict[str, Any]) -> dict[str, Any]:
        schedule = settings["schedule"]
        rest = {name: value for name, value in schedule["fields"].items() if name != "laps"}
        return {**settings, "schedule": {**schedule, "fields": rest}}

    # sources of later versions may say more about the same data
    facts = {name: new["data"].get(name) for name in old["data"]}
    a, b = comparable(old), comparable({**new, "data": facts})
    for name in a:
        if a[name] != b.get(name):
            what = "the data changed" if name in DATA_SETTINGS else "settings differ"
            raise StoreError(
                f"cannot resume {path}: {what} ({name}: the run has {a[name]!r}, this call {b.get(name)!r}). "
                "Resume with what the run was started with, or start a new run in another directory"
            )


def _where(executor: Executor) -> str:
    if isinstance(executor, SerialExecutor):
        return "in this thread"
    return f"on {executor.n_workers} workers"


__all__ = ["ConvergenceWarning", "DataError", "open_executor", "survey_task", "take_survey", "train"]
