"""``plan``: time, memory, messages and disk of a run, before it starts.

A probe trains on a little of the data and meters its tasks -> unit costs -> a simulated lap on any number of workers ->
the plan.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import os
import pickle
import tempfile
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.allocation import UnscoredAllocation
from bnp_dask.analysis import listed, needs_of
from bnp_dask.core import Batch, Columns, RunningTotal, Summary
from bnp_dask.data import SMALL_BYTES, Reader, Source, batch_reader, columns_of, spans_of, taking_lags
from bnp_dask.data.sources.open import opened
from bnp_dask.errors import answering
from bnp_dask.execute import KEPT, Handle, SerialExecutor, one_blas_thread
from bnp_dask.inference import (
    FAN,
    Change,
    Filter,
    Gibbs,
    LocalStep,
    Memoized,
    Schedule,
    batches_of_task,
    in_flight,
    is_slight,
    reduced_for_us,
    sums_left,
)
from bnp_dask.initialize import Initialization
from bnp_dask.inputs import whole_number
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import LAP, Move
from bnp_dask.observation import numbers_per_cluster
from bnp_dask.training.callbacks import RunInfo
from bnp_dask.training.memory_plan import COPIES, KILLED_AT, MEMORY_BYTES, PROGRAM_BYTES, parse_memory
from bnp_dask.training.run_settings import check_parts, check_schedule, default_init
from bnp_dask.training.train import train

# -- unit costs ---------------------------------------------------------------------------------------------------
# A short training on a little of the data, whose tasks are metered.
PROBE_BYTES = 16 * 2**20
"""Bytes of data in memory that a probe trains on: some seconds of work for models of up to a hundred clusters.  With
half as many, proposals of 40 clusters had a fifth of the atoms that they have on all data."""

PROBE_BATCHES = 4
"""Batches that these are cut into."""

PROBE_LAPS = 8
"""Laps of the probe at most.  In the first the posterior stands still, and in the second births are tried for the first
time; the laps after these are metered, and their mean is a lap of the plan: what moves propose differs from lap to lap
(on 150,000 x 24 the fourth lap planned 32 proposals in 1.3 s, the third 7 in .4 s)."""

PROBE_SECONDS = 15.0
"""Seconds after which the probe ends with the next lap that it may end with."""

NOT_METERED = 2
"""Laps at the start of the probe that are not metered, if there are others."""

ATOMS_PER_CLUSTER = 20
"""Least atoms of a probe for each cluster: with fewer, visits are faster than on whole data, since clusters vanish."""

GATHERED, ASKED = "gathered", "asked"
"""Names of what a meter counts for gathered atoms: their bytes, and the number that was asked for."""

NO_VISITS = ("propose", "windows")
"""First words of the names of tasks of a lap that visit no batch: they plan proposals, before the visits begin."""


@dataclass(frozen=True)
class UnitCosts:
    """Costs of the parts of a run, as a probe measured them with ``n_clusters`` clusters.

    Parameters
    ----------
    n_clusters
        Clusters in the metered laps, on average.
    read, survey
        Seconds of a worker per atom: for reading, and for reading and surveying.
    start
        Seconds of the start of the probe's atoms, after the survey.
    visit
        Seconds of a worker per atom of a lap, with the trials of moves.
    tasks
        Tasks of a batch in a lap; above one for samplers, whose passes over the batches follow one another.
    fold
        Seconds of the coordinator for a global step and the objective.
    add
        Seconds for adding the changes of ``FAN`` batches.
    moves
        Seconds of the coordinator at both ends of a lap: proposals are planned and decided.  Of samplers, for each
        batch: their coordinator keeps labels and adds statistics batch by batch.
    proposals
        Seconds of the tasks of a lap that plan proposals: of all and of the longest of each round, a pair for each
        round.  Tasks of a round run side by side, and the next round waits for them.
    n_rounds
        Rounds of a lap.
    posterior_bytes, change_bytes, summary_bytes
        Sizes of the posterior as it is sent, of the change by a batch, and of a summary in memory.
    gathered_bytes, asked_bytes
        Bytes of the atoms that a lap of the probe gathers for proposals, and of the atoms that moves request.  Moves
        request a fixed number of atoms, which small data do not have.
    numbers
        Numbers in a summary.
    effort
        Products in a local step, per atom; infinite if it iterates.
    kept_bytes
        Bytes per atom that the run directory keeps of each batch; NaN without a store.
    file_bytes
        Bytes of the file of a batch of the probe; NaN without a store.
    run_bytes
        Bytes of the run directory without the statistics of batches: checkpoints, which contain gathered atoms, and the
        posterior; NaN without a store.
    keeps_states
        Whether the states of groups are kept, in proportion to the atoms.
    atom_bytes
        Bytes of an atom in memory.
    probe_seconds, compiling
        Seconds that the probe took, and the seconds among them for compiling or loading kernels.
    """

    n_clusters: float
    read: float
    survey: float
    start: float
    visit: float
    tasks: float
    fold: float
    add: float
    moves: float
    proposals: tuple[tuple[float, float], ...]
    n_rounds: float
    posterior_bytes: int
    change_bytes: int
    summary_bytes: int
    gathered_bytes: float
    asked_bytes: float
    numbers: int
    effort: float
    kept_bytes: float
    file_bytes: float
    run_bytes: float
    keeps_states: bool
    atom_bytes: float
    probe_seconds: float
    compiling: float

    def at(self, n_clusters: int) -> UnitCosts:
        """Costs with another number of clusters.

        Visits, sums and sizes grow in proportion: dense visits do, screened ones grow less.  Moves look at pairs of
        clusters: all of them for few clusters, near ones for many (:func:`bnp_dask.moves.pairs.near_pairs`).
        """
        by = n_clusters / self.n_clusters
        if by == 1.0:
            return self
        pairs = max(by, _pairs(n_clusters) / max(1.0, _pairs(self.n_clusters)))
        return replace(
            self,
            n_clusters=float(n_clusters),
            visit=by * self.visit,
            fold=by * self.fold,
            add=by * self.add,
            moves=pairs * self.moves,
            proposals=tuple((pairs * whole, pairs * longest) for whole, longest in self.proposals),
            posterior_bytes=round(by * self.posterior_bytes),
            change_bytes=round(by * self.change_bytes),
            summary_bytes=round(by * self.summary_bytes),
            numbers=round(by * self.numbers),
            effort=by * self.effort,
            kept_bytes=by * self.kept_bytes,
            file_bytes=by * self.file_bytes,
            run_bytes=by * self.run_bytes,
        )


def _pairs(n_clusters: float) -> float:
    """Pairs of clusters that moves score in a lap."""
    few = n_clusters <= LAP.all_pairs
    return n_clusters * (n_clusters - 1.0) / 2.0 if few else LAP.alike * n_clusters


@dataclass(eq=False)
class FewBatches:
    """A source of some batches in memory, cut from the first batches of another."""

    batches: Sequence[Batch]
    name: str
    columns: Columns | None = None

    @property
    def n_batches(self) -> int:
        return len(self.batches)

    @property
    def n_features(self) -> int:
        return self.batches[0].n_features

    @property
    def is_sparse(self) -> bool:
        return self.batches[0].is_sparse

    @property
    def n_atoms(self) -> int:
        return sum(batch.n_atoms for batch in self.batches)

    def reader(self, index: int) -> Reader:
        batch = self.batches[index]
        return lambda: batch

    def describe(self) -> dict[str, Any]:
        return {"kind": "probe", "name": self.name, "n_atoms": self.n_atoms}


@dataclass(frozen=True)
class Sample:
    """A little of the data: batches for a probe, and facts about the rest.

    Parameters
    ----------
    source
        The batches.
    n_atoms
        Atoms of all data: known, or estimated from the batches that were read.
    is_estimated
        Whether ``n_atoms`` is an estimate.
    atom_bytes
        Bytes of an atom in memory.
    read
        Seconds of reading, per atom.
    largest_bytes
        Bytes of a whole batch in memory.
    """

    source: FewBatches
    n_atoms: int
    is_estimated: bool
    atom_bytes: float
    read: float
    largest_bytes: int


def sample_of(source: Source, n_clusters: int | None) -> Sample:
    """Read whole batches, first to last but spread over the data, until there are enough for a probe.

    Parameters
    ----------
    source
        The data.
    n_clusters
        Clusters that the probe is to have; None for the default start.
    """
    enough = 0 if n_clusters is None else ATOMS_PER_CLUSTER * n_clusters
    order = np.unique(
        np.linspace(0, source.n_batches - 1, min(source.n_batches, 4 * PROBE_BATCHES)).round().astype(int)
    )
    whole: list[Batch] = []
    atoms = nbytes = 0
    started = time.perf_counter()
    for index in order:
        whole.append(batch_reader(source, int(index))())
        atoms, nbytes = sum(batch.n_atoms for batch in whole), sum(batch.nbytes for batch in whole)
        if len(whole) >= min(PROBE_BATCHES, len(order)) and (
            (nbytes >= PROBE_BYTES and atoms >= enough) or nbytes >= 4 * PROBE_BYTES
        ):
            break
    seconds = time.perf_counter() - started
    limit = max(PROBE_BYTES, min(4 * PROBE_BYTES, enough * nbytes // max(atoms, 1)))
    known = source.n_atoms
    return Sample(
        source=FewBatches(_cut(whole, limit // PROBE_BATCHES), source.name, columns_of(source)),
        n_atoms=round(atoms / len(whole) * source.n_batches) if known is None else known,
        is_estimated=known is None,
        atom_bytes=nbytes / max(atoms, 1),
        read=seconds / max(atoms, 1),
        largest_bytes=max(batch.nbytes for batch in whole),
    )


def _cut(whole: list[Batch], limit: int) -> list[Batch]:
    """``PROBE_BATCHES`` pieces of at most ``limit`` bytes, groups uncut, in the order of the batches."""
    pieces: list[Batch] = []
    for batch in whole:
        n_pieces = max(1, PROBE_BATCHES // len(whole))
        units = batch.n_atoms if batch.groups is None else batch.n_groups
        size = max(1, min(-(-units // n_pieces), int(limit / max(batch.nbytes, 1) * units)))
        for first in range(0, min(units, n_pieces * size), size):
            last = min(first + size, units)
            piece = batch.rows(first, last) if batch.groups is None else batch.take_groups(np.arange(first, last))
            pieces.append(replace(piece, name=f"piece {len(pieces)} of {batch.name}"))
    return [piece for piece in pieces if piece.n_atoms]


@dataclass
class Meter:
    """What happened in a lap: seconds, number, and bytes of results of tasks, by the first word of their names.

    Parameters
    ----------
    seconds, tasks, nbytes
        By the first word of the names of tasks; atoms that are gathered for proposals count apart.
    rounds
        Seconds of tasks that plan proposals, by rounds: a round begins when all results of the one before were taken.
    """

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    tasks: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    nbytes: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    rounds: list[list[float]] = field(default_factory=list)

    def note_asked(self, step: LocalStep) -> None:
        """Count the atoms that a local step is to return."""
        self.tasks[ASKED] += sum(step.gather.limits)

    def note_result(self, kind: str, value: Any) -> None:
        """Count the bytes of a message."""
        if isinstance(value, Change):
            gathered = _sent_bytes(value.atoms)
            self.nbytes[GATHERED] += gathered
            self.nbytes[kind] -= gathered
        self.nbytes[kind] += _sent_bytes(value)

    @property
    def visits(self) -> float:
        """Seconds of tasks that visit batches."""
        return sum(seconds for kind, seconds in self.seconds.items() if kind not in NO_VISITS)

    @property
    def n_visits(self) -> float:
        """Tasks that visit batches."""
        return sum(n for kind, n in self.tasks.items() if kind not in (*NO_VISITS, ASKED))

    @property
    def proposals(self) -> float:
        """Seconds of tasks that plan proposals."""
        return sum(map(sum, self.rounds))

    @property
    def arrived(self) -> float:
        """Bytes of all results but gathered atoms."""
        return sum(nbytes for kind, nbytes in self.nbytes.items() if kind != GATHERED)


def _sent_bytes(value: Any) -> float:
    """Bytes of a message, without a copy of its arrays."""
    arrays: list[pickle.PickleBuffer] = []
    rest = len(pickle.dumps(value, protocol=5, buffer_callback=arrays.append))
    return float(rest + sum(array.raw().nbytes for array in arrays))


class MeteredExecutor(SerialExecutor):
    """Runs tasks in this thread, and meters them."""

    def __init__(self) -> None:
        super().__init__()
        self.meter = Meter()
        self._in_round = 0  # tasks of the last round whose results were not taken yet

    def submit(self, name: str, function: Callable[..., Any], *args: Any) -> Handle:
        for step in args:
            if isinstance(step, LocalStep):
                self.meter.note_asked(step)
        kind, to = _kind(name), None
        if kind in NO_VISITS:
            if not self._in_round:
                self.meter.rounds.append([])
            self._in_round += 1
            to = self.meter.rounds[-1]
        return super().submit(name, self._timed, kind, to, function, *args)

    def result(self, handle: Handle) -> Any:
        kind = _kind(handle.name)
        found = super().result(handle)
        self._in_round -= kind in NO_VISITS
        self.meter.note_result(kind, found)
        return found

    def _timed(self, kind: str, to: list[float] | None, function: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        found = function(*args)
        seconds = time.perf_counter() - started
        self.meter.seconds[kind] += seconds
        self.meter.tasks[kind] += 1
        if to is not None:
            to.append(seconds)
        return found


def _kind(name: str) -> str:
    """First word of the name of a task."""
    return name.split("-")[0]


@dataclass(frozen=True)
class ProbedLap:
    """A lap of the probe, or all before the first one.

    Parameters
    ----------
    end
        Clock at its end, in seconds.
    seconds
        From the end of the one before.
    meter
        Its tasks.
    n_clusters
        Clusters at its end.
    """

    end: float
    seconds: float
    meter: Meter
    n_clusters: int


@dataclass
class LapClock:
    """Gives each lap of the probe a meter of its own, and ends the probe when it has taken long enough."""

    executor: MeteredExecutor
    laps: list[ProbedLap] = field(default_factory=list)

    def _note(self, n_clusters: int) -> None:
        now = time.perf_counter()
        took = now - self.laps[-1].end if self.laps else math.nan
        self.laps.append(ProbedLap(now, took, self.executor.meter, n_clusters))
        self.executor.meter = Meter()

    def on_start(self, info: RunInfo) -> None:
        self._note(0)

    def on_batch(self, done: int) -> bool | None:
        """No-op: laps are timed."""
        return None

    def on_lap(self, row: Mapping[str, Any], posterior: Posterior) -> bool | None:
        self._note(int(row["n_clusters"]))
        return len(self.laps) > 1 + NOT_METERED and self.laps[-1].end - self.laps[0].end > PROBE_SECONDS

    def on_end(self, reason: str) -> None:
        """No-op: the last lap was noted."""

    @property
    def metered(self) -> list[ProbedLap]:
        """The laps that a plan is made from."""
        return self.laps[1 + NOT_METERED :] or self.laps[-1:]


def probe(
    model: Model,
    sample: Sample,
    init: Initialization | None,
    schedule: Schedule,
    moves: Sequence[Move] | None,
    n_clusters: int | None,
    keeps: bool,
) -> UnitCosts:
    """Train on the sample for some laps and return what each part took.

    Parameters
    ----------
    model, init, schedule, moves
        As for :func:`bnp_dask.train`.
    sample
        Data of the probe.
    n_clusters
        Clusters to start with; None: as ``init`` says.
    keeps
        Whether the run has a run directory.
    """
    executor = MeteredExecutor()
    clock = LapClock(executor)
    source = sample.source
    if n_clusters is not None and init is None:
        fitting = max(1, min(n_clusters, source.n_atoms // ATOMS_PER_CLUSTER))
        init = default_init(model, source.is_sparse, source.n_atoms, fitting)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bnp-dask-plan-") as folder, warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")  # the probe is cut short on purpose, and the run itself will warn
        result = train(
            model,
            source,
            init=init,
            schedule=_shortened(schedule),
            moves=moves,
            client=executor,
            store=f"{folder}/run" if keeps else None,
            callbacks=[clock],
            collapsed=0 if source.is_sparse else None,
            checkpoint_minutes=60.0,
        )
        kept = _bytes_in(Path(folder) / "run" / "summaries") if keeps else float("nan")
        whole = _bytes_in(Path(folder) / "run") if keeps else float("nan")
    probe_seconds = time.perf_counter() - began
    laps, n_atoms = clock.metered, source.n_atoms
    rounds = [(sum(one) / len(laps), max(one) / len(laps)) for lap in laps for one in lap.meter.rounds if one]

    def mean(of: Callable[[ProbedLap], float]) -> float:
        return float(np.mean([of(lap) for lap in laps]))

    start = clock.laps[0]
    compiling = result.warm_seconds
    survey = start.meter.seconds["survey"]
    posterior, n_found = result.posterior, result.posterior.n_clusters
    fold, add, sizes = _global_costs(posterior, source)
    tasks = mean(lambda lap: lap.meter.n_visits) / source.n_batches
    at_ends = max(0.0, mean(_of_coordinator) - source.n_batches * fold)
    return UnitCosts(
        n_clusters=mean(lambda lap: lap.n_clusters),
        read=sample.read,
        survey=sample.read + survey / n_atoms,
        start=max(0.0, start.end - began - survey - compiling),
        visit=sample.read + mean(lambda lap: lap.meter.visits) / n_atoms,
        tasks=tasks,
        fold=fold,
        add=add,
        moves=at_ends / source.n_batches if _passes(tasks) > 1 else at_ends,
        proposals=tuple(rounds),
        n_rounds=len(rounds) / len(laps),
        posterior_bytes=sizes[0],
        change_bytes=round(mean(lambda lap: lap.meter.arrived) / source.n_batches),
        summary_bytes=sizes[1],
        gathered_bytes=mean(lambda lap: lap.meter.nbytes[GATHERED]),
        asked_bytes=mean(lambda lap: lap.meter.tasks[ASKED]) * sample.atom_bytes,
        numbers=n_found * numbers_per_cluster(posterior.model.observation),
        effort=posterior.model.structure.effort(posterior.model, 1.0, n_found),
        kept_bytes=kept / n_atoms,
        file_bytes=kept / source.n_batches,
        run_bytes=whole - kept,
        keeps_states=posterior.model.keeps_states,
        atom_bytes=sample.atom_bytes,
        probe_seconds=probe_seconds,
        compiling=compiling,
    )


def _of_coordinator(lap: ProbedLap) -> float:
    """Seconds of a lap in which no task ran."""
    return lap.seconds - lap.meter.visits - lap.meter.proposals


def _shortened(schedule: Any) -> Schedule:
    """The schedule with the laps of a probe; filters have one lap."""
    if isinstance(schedule, Filter):
        return schedule
    if isinstance(schedule, Gibbs):
        return replace(schedule, laps=PROBE_LAPS, burn_in=0, thin=1)
    shortened: Schedule = replace(schedule, laps=PROBE_LAPS)
    return shortened


def _global_costs(posterior: Posterior, source: FewBatches) -> tuple[float, float, tuple[int, int]]:
    """Seconds of a global step with the objective, and of adding changes; bytes of posterior and summary."""
    model, summary = posterior.model, posterior.summary
    assert summary is not None
    fold = _seconds(lambda: _settled(model, summary))
    change = RunningTotal(summary)
    add = _seconds(lambda: _sum_of(change, summary))
    sizes = (
        len(pickle.dumps(posterior.for_visits(source.batches[0].n_atoms), protocol=5)),
        summary.nbytes,
    )
    return fold, add, sizes


def _settled(model: Model, summary: Summary) -> Posterior:
    """Global step, and the objective if there is one."""
    found = model.global_step(summary)
    if not isinstance(model.allocation, UnscoredAllocation):
        model.elbo(found, summary)
    return found


def _sum_of(change: RunningTotal, summary: Summary) -> RunningTotal:
    out = change.copy()
    for _ in range(FAN - 1):
        out.join(change)
    return out


def _seconds(function: Callable[[], Any], repeats: int = 3) -> float:
    """Median seconds of some calls, after one that compiles."""
    function()
    out = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        out.append(time.perf_counter() - started)
    return float(np.median(out))


def _bytes_in(folder: Path) -> float:
    """Bytes of all files in a folder."""
    return float(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log of the probe."""
    log = logging.getLogger("bnp_dask")
    was = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = was


# -- the plan -----------------------------------------------------------------------------------------------------
BANDWIDTH = 1e9
"""Bytes a second between processes; messages of Dask on one machine measured .9 to 1.2e9."""

WRITTEN, CHECKED = 5e8, 1e9
"""Bytes a second of the posterior that the coordinator writes into a file with its checksum, and that a worker maps and
checks, its first read included."""

FILE = 0.001
"""Seconds for making a file, and for opening one."""

TASK = 0.001
"""Seconds of the coordinator for submitting a task, and of the scheduler for handling one (measured: .9 to 1.3 ms)."""

LATENCY = 0.005
"""Seconds between the end of a task and that its follower can begin."""

ROUND = 0.025
"""Seconds in which workers wait between two rounds of proposals: results travel, and the next tasks are sent (measured:
20 to 40 ms on two mixtures with one and two workers)."""

WORKER_BYTES = 320 * 10**6
"""Most bytes of a worker beside batches and summaries, compiled loops included (measured: 317 to 340 MB, peaks of two
mixtures in 4 and 16 dimensions with batches of 1 and 2 MB).  What a run refuses is less: ``PROGRAM_BYTES``."""

COORDINATOR_COPIES = 12
"""Summaries that the coordinator holds at a time: total, posterior, statistics at the last fold, and changes that
arrive (measured: 12 to 20 with proposals of moves)."""

CHECKPOINTS = 2
"""Checkpoints that a run directory keeps, each with the atoms that were gathered (:mod:`bnp_dask.store.run`)."""

LEAST_SECONDS, MOST_SECONDS = 0.5, 5.0
"""Seconds of a task that a batch size is advised for: scheduling costs little beside it, and so does a lost worker."""

SHORT_SECONDS = 0.05
"""Seconds of a task below which its way through the scheduler, some milliseconds, is worth a larger batch."""

ROUNDS = 4
"""Batches for each worker, at least: with fewer, the last ones of a lap leave many workers idle."""

IN_FLIGHT = 4
"""Tasks in flight for each worker that a window is advised for."""

SIMULATED = 20_000
"""Batches of a simulated lap; one of more batches takes time in proportion."""


@dataclass(frozen=True)
class Plan:
    """Time, memory, messages and disk of a run that was not made; prints as a table.

    Made by :func:`bnp_dask.plan`; :meth:`to_json` gives all numbers.

    Parameters
    ----------
    data
        Name of the data.
    n_atoms, n_features
        Size of the data.
    n_batches, batch_atoms, batch_bytes
        Number of batches, and size of the largest one.
    n_clusters
        Number of clusters that all is computed for.
    workers
        Workers; 0 for a run in this process.
    window
        Batches in flight at a time.
    survey_seconds, start_seconds
        Seconds of the pass that surveys the data, and of the start.
    lap_seconds
        Seconds of a lap, with moves.
    workers_busy, coordinator_busy, scheduler_busy
        Share of a lap that each of them works, 0 to 1.
    tasks
        Tasks of a lap.
    message_bytes
        Bytes that the coordinator receives in a lap.
    posterior_bytes
        Bytes of the posterior, as workers receive it.
    worker_bytes, coordinator_bytes
        Memory of a worker, and of the process that calls ``train``.
    memory
        Memory of a worker, in bytes; None if :func:`bnp_dask.plan` was called without ``memory``.
    disk_bytes
        Bytes of the run directory; None without one.
    batch_size
        Atoms per batch that would suit the workers; None if the batches do.
    enough_workers
        Number of workers beyond which a lap hardly gets shorter: each would have less than some tasks of half a
        second.  None if there are fewer workers.
    good_window
        Window that would keep the workers busy; None if the window does.
    n_atoms_is_estimated
        Whether the number of atoms is an estimate from the batches that were read.
    costs
        Unit costs, as measured.
    """

    data: str
    n_atoms: int
    n_features: int
    n_batches: int
    batch_atoms: int
    batch_bytes: int
    n_clusters: int
    workers: int
    window: int
    survey_seconds: float
    start_seconds: float
    lap_seconds: float
    workers_busy: float
    coordinator_busy: float
    scheduler_busy: float
    tasks: int
    message_bytes: float
    posterior_bytes: int
    worker_bytes: float
    coordinator_bytes: float
    memory: int | None
    disk_bytes: float | None
    batch_size: int | None
    enough_workers: int | None
    good_window: int | None
    n_atoms_is_estimated: bool
    costs: UnitCosts

    def __repr__(self) -> str:
        return str(self)

    @property
    def fits(self) -> bool:
        """Whether a worker can hold its part."""
        return self.memory is None or self.worker_bytes <= KILLED_AT * self.memory

    @property
    def advice(self) -> tuple[str, ...]:
        """Sentences about settings that would do better; empty if none would."""
        out = []
        if not self.fits:
            out.append(
                f"A worker needs {_bytes(self.worker_bytes / KILLED_AT)}: give workers more memory, or cut smaller "
                "batches."
            )
        if self.batch_size is not None and self.enough_workers is None:
            why = "more batches for the workers" if self.batch_size < self.batch_atoms else "longer tasks"
            out.append(f"batch_size={self.batch_size} gives {why}.")
        if self.good_window is not None:
            out.append(
                f"window={self.good_window} keeps {self.workers} workers busy: with {self.window}, at most "
                f"{self.window} tasks are in flight."
            )
        if self.enough_workers is not None:
            out.append(f"A lap is little work: workers={self.enough_workers} would take about as long.")
        elif self.workers > 1 and self.window == 1:
            out.append("This schedule visits one batch after the other: one worker takes as long as many.")
        elif self.workers and self.workers_busy < 0.5 and not out:
            busiest = "coordinator" if self.coordinator_busy > self.scheduler_busy else "scheduler"
            out.append(f"Workers are {self.workers_busy:.0%} busy: the {busiest} limits the lap.")
        return tuple(out)

    def to_json(self) -> dict[str, Any]:
        """All numbers, with the advice, JSON-able; NaN is None."""
        found = {**asdict(self), "fits": self.fits, "advice": list(self.advice)}
        found["costs"] = {name: _number(value) for name, value in found["costs"].items()}
        return found

    def __str__(self) -> str:
        about = "about " if self.n_atoms_is_estimated else ""
        place = "in this process" if not self.workers else f"{self.workers} workers"
        has = "" if self.memory is None else f" of {_bytes(self.memory)}"
        memory = f"{_bytes(self.worker_bytes)} of memory{has and f', has{has[3:]}'}"
        messages = f"{_bytes(self.message_bytes)} a lap to this process; posterior {_bytes(self.posterior_bytes)}"
        busy = f"workers {self.workers_busy:.0%} busy, coordinator {self.coordinator_busy:.0%}"
        once = self.survey_seconds + self.start_seconds
        rows = {
            "data": f"{about}{self.n_atoms:,} x {self.n_features:,}: {self.data}",
            "batches": f"{self.n_batches:,} of up to {self.batch_atoms:,} ({_bytes(self.batch_bytes)} in memory)",
            "where": f"{place}, window {self.window}",
            "clusters": f"computed for {self.n_clusters}",
            "survey": f"{_time(self.survey_seconds)}, once",
            "start": f"{_time(self.start_seconds)}, once",
            "a lap": f"{_time(self.lap_seconds)}: {busy}",
            "20 laps": _time(once + 20 * self.lap_seconds),
            "tasks": f"{self.tasks:,} a lap",
            "messages": messages,
            "a worker": memory,
            "this process": f"{_bytes(self.coordinator_bytes)} of memory",
            "disk": "nothing is kept" if self.disk_bytes is None else f"{_bytes(self.disk_bytes)} in the run directory",
        }
        lines = [f"{name:<13} {text}" for name, text in rows.items()]
        return "\n".join([*lines, *(f"! {sentence}" for sentence in self.advice)])

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


@answering
def plan(
    model: Model,
    data: Any,
    *,
    workers: int | None = None,
    memory: int | str | None = None,
    n_clusters: int | None = None,
    init: Initialization | None = None,
    schedule: Schedule | None = None,
    moves: Sequence[Move] | None = None,
    store: str | os.PathLike[str] | None = None,
    weights: Any = None,
    batch_size: int | None = None,
) -> Plan:
    """Estimate time, memory, messages and disk of a run, before it starts.

    A probe trains on a few megabytes of the data in this process and meters each part.  A lap on the workers is then
    simulated from these costs.  The machines of the workers are taken to be as fast as this one.  Laps on samples
    (:class:`bnp_dask.FromSample`) are not forecast: all laps are over all data.

    Parameters
    ----------
    model, data, init, schedule, moves, weights, batch_size
        As for :func:`bnp_dask.train`.
    workers
        Number of workers; None for a run in this process.
    memory
        Memory of a worker: bytes, or text such as ``"4GB"``; None if it is not limited.
    n_clusters
        Clusters to plan for; None: as many as the probe ends with.  More than the probe's atoms allow (one for each
        20) are extrapolated.
    store
        Run directory; nothing is written there, but its size is estimated.  None: nothing is kept.

    Returns
    -------
    Plan
        Prints as a table; ``to_json()`` has all numbers.

    Raises
    ------
    DataError
        Data that cannot be read, or that the likelihood cannot have produced.
    SettingError
        Settings that contradict each other.
    """
    moves = None if moves is None else listed("moves", moves)
    check_parts(model, init, schedule, moves or (), ())
    schedule = Memoized() if schedule is None else schedule
    check_schedule(model, schedule, moves=moves)
    workers = 0 if workers is None else whole_number("workers", workers, 1)
    if n_clusters is not None:
        n_clusters = whole_number("n_clusters", n_clusters, 1)
    limit = None if memory is None else parse_memory(memory)
    source = opened(data, needs_of(model), batch_size, weights)
    with one_blas_thread():
        sample = sample_of(taking_lags(source, model.lags), n_clusters)
        costs = probe(model, sample, init, schedule, moves, n_clusters, keeps=store is not None)
    n_clusters = max(1, round(costs.n_clusters)) if n_clusters is None else n_clusters
    costs = costs.at(n_clusters)
    spans = spans_of(source)
    most = max((last - first for first, last in spans), default=0) if spans else 0
    batch_atoms = most or round(sample.largest_bytes / sample.atom_bytes)
    return _planned(sample, costs, schedule, source.n_batches, batch_atoms, n_clusters, workers, limit)


def _planned(
    sample: Sample,
    costs: UnitCosts,
    schedule: Schedule,
    n_batches: int,
    batch_atoms: int,
    n_clusters: int,
    workers: int,
    memory: int | None,
) -> Plan:
    """The plan from unit costs."""
    window = in_flight(schedule.window, n_batches)
    at_once = max(1, workers)
    batch_bytes = round(batch_atoms * sample.atom_bytes)
    per_batch = sample.n_atoms / n_batches
    gathered = max(
        costs.gathered_bytes, min(costs.asked_bytes, costs.gathered_bytes * sample.n_atoms / sample.source.n_atoms)
    )
    more = gathered / costs.gathered_bytes if costs.gathered_bytes else 1.0
    unit = simulated_costs(costs, per_batch, remote=workers > 0, n_workers=at_once, more=more)
    n_simulated = min(n_batches, max(SIMULATED, ROUNDS * at_once))
    passes = _passes(costs.tasks)
    if passes > 1:
        unit = replace(unit, lap=n_simulated / passes * unit.lap)
    small = not math.isnan(costs.kept_bytes) and batch_bytes <= SMALL_BYTES
    alone = not small or costs.tasks > 1.0
    effort = math.inf if alone else costs.effort * per_batch
    simulation = Simulation(unit, at_once, n_simulated, window, laps=passes, effort=effort)
    lap = simulation.run()
    scale = n_batches / n_simulated
    group = max(1, min(window // 2, n_batches))
    together = simulation.together
    tasks = math.ceil(group / together)
    groups = math.ceil(n_batches / group)
    messages, adds = tasks * groups, 0
    if not is_slight(tasks, costs.numbers):
        messages = min(tasks, sums_left(tasks, at_once, costs.numbers)) * groups
        adds = tasks // (FAN - 1) * groups if tasks > FAN else 0
    run = costs.run_bytes + CHECKPOINTS * (gathered - costs.gathered_bytes)
    kept = run + n_batches * _kept_of_batch(costs, per_batch)
    size = _good_batch(costs, sample, workers, memory, batch_atoms)
    work = costs.visit * sample.n_atoms
    enough = max(1, math.ceil(work / (ROUNDS * LEAST_SECONDS)))
    n_out = IN_FLIGHT * workers
    wanted = min(n_out, 2 * n_batches)
    return Plan(
        data=sample.source.name,
        n_atoms=sample.n_atoms,
        n_features=sample.source.n_features,
        n_batches=n_batches,
        batch_atoms=batch_atoms,
        batch_bytes=batch_bytes,
        n_clusters=n_clusters,
        workers=workers,
        window=window,
        survey_seconds=costs.survey * sample.n_atoms / min(at_once, n_batches),
        start_seconds=costs.start,
        lap_seconds=lap.seconds * scale,
        workers_busy=lap.workers,
        coordinator_busy=lap.coordinator,
        scheduler_busy=lap.scheduler,
        tasks=tasks * groups + adds,
        message_bytes=float(messages * costs.change_bytes + gathered),
        posterior_bytes=costs.posterior_bytes,
        worker_bytes=WORKER_BYTES + 2.0 * batch_bytes + COPIES * costs.summary_bytes,
        coordinator_bytes=PROGRAM_BYTES + MEMORY_BYTES + float(COORDINATOR_COPIES * costs.summary_bytes),
        memory=memory,
        disk_bytes=None if math.isnan(kept) else kept,
        batch_size=size,
        enough_workers=enough if workers > 2 * enough else None,
        good_window=wanted if schedule.decides_moves and window < min(workers, n_batches) else None,
        n_atoms_is_estimated=sample.is_estimated,
        costs=costs,
    )


def simulated_costs(costs: UnitCosts, batch_atoms: float, remote: bool, n_workers: int, more: float) -> Costs:
    """Costs of a simulated lap of batches of so many atoms; ``remote``: workers are other processes.

    Proposals are planned by tasks before the visits begin, on ``more`` times the atoms that the probe gathered.
    """
    travel = 1.0 / BANDWIDTH if remote else 0.0
    task = TASK if remote else 0.0
    proposals = sum(max(longest, whole / n_workers) for whole, longest in costs.proposals)
    waits = costs.n_rounds * ROUND if remote else 0.0
    return Costs(
        visit=costs.visit * batch_atoms / _passes(costs.tasks),
        spread=0.1 if remote else 0.0,
        add=costs.add + FAN * travel * costs.change_bytes,
        submit=task,
        schedule=task,
        share=FILE + costs.posterior_bytes / WRITTEN if remote else 0.0,
        opening=FILE + costs.posterior_bytes / CHECKED if remote else 0.0,
        fold=costs.fold + travel * costs.change_bytes,
        message=travel * costs.change_bytes + costs.add / (FAN - 1),
        latency=LATENCY if remote else 0.0,
        lap=costs.moves + more * proposals + waits,
        numbers=costs.numbers,
    )


def _passes(tasks: float) -> int:
    """Passes over all batches in a lap of so many tasks a batch: samplers sweep, and then split and unite."""
    return max(1, round(tasks))


def _kept_of_batch(costs: UnitCosts, batch_atoms: float) -> float:
    """Bytes that the run directory keeps of a batch: states of its groups, else assignments or a summary."""
    grown = costs.kept_bytes * batch_atoms
    return grown if costs.keeps_states else min(grown, max(costs.summary_bytes, costs.file_bytes))


def _good_batch(costs: UnitCosts, sample: Sample, workers: int, memory: int | None, batch_atoms: int) -> int | None:
    """Atoms per batch that suit the workers; None if the present batches do."""
    if not workers:
        return None
    most = MOST_SECONDS / costs.visit
    if memory is not None:
        room = KILLED_AT * memory - WORKER_BYTES - COPIES * costs.summary_bytes
        most = min(most, room / 2 / sample.atom_bytes) if room > 0 else most  # else no size of batches fits
    shared = sample.n_atoms / (ROUNDS * workers)
    wanted = max(1.0, min(most, max(shared, LEAST_SECONDS / costs.visit)))
    short = SHORT_SECONDS / costs.visit
    if batch_atoms > 1.5 * max(wanted, short) or (batch_atoms < short and wanted > 2 * batch_atoms):
        return _rounded(wanted)
    return None


def _rounded(atoms: float) -> int:
    """Atoms with two leading digits, rounded down."""
    unit = 10 ** max(0, int(math.log10(max(atoms, 1.0))) - 1)
    return max(1, int(atoms // unit) * unit)


def _number(value: float) -> float | None:
    return None if isinstance(value, float) and math.isnan(value) else value


def _bytes(nbytes: float) -> str:
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if nbytes >= 0.9995 * one:  # three digits: 999.5 kB are 1 MB
            return f"{nbytes / one:.3g} {unit}"
    return f"{nbytes / 1e3:.3g} kB"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.2g} s"
    if seconds < 5400:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


VISIT, ADD = 0, 1


@dataclass(frozen=True)
class Costs:
    """Seconds; the defaults are for K = 200, D = 64 (``measure.py``).

    Parameters
    ----------
    visit, spread
        Of one batch on a worker, and the standard deviation of its logarithm.
    add
        Of adding the changes of some tasks, their transfer included.
    submit
        Of the coordinator for one task.
    schedule
        Of the scheduler for one task, from submission to release.
    share
        Of the coordinator for leaving one posterior in a file.
    opening
        Of a worker for opening that file, with its first task that needs this posterior.
    fold
        Of the coordinator for one group: its change received and added, the global step, the objective.
    message
        Of the coordinator for each change of a group after the first: received and added.
    latency
        Between the end of a task and that what waits for it can go on.
    lap
        Of the coordinator at the end of a lap: proposals, checkpoint.
    numbers
        In the statistics, which tell who adds them.
    """

    visit: float = 1.0
    spread: float = 0.1
    add: float = 0.1
    submit: float = 0.001
    schedule: float = 0.001
    share: float = 0.03
    opening: float = 0.01
    fold: float = 0.1
    message: float = 0.008
    latency: float = 0.005
    lap: float = 0.5
    numbers: int = 200 * 2146


@dataclass
class Outcome:
    """Seconds of a run, and the share of them that each part was busy."""

    seconds: float
    workers: float
    coordinator: float
    scheduler: float

    @property
    def ceiling(self) -> str:
        """The part that the others wait for."""
        busy = {"workers": self.workers, "coordinator": self.coordinator, "scheduler": self.scheduler}
        top = max(busy, key=lambda name: busy[name])
        return top if busy[top] > 0.9 else "waiting"


class Simulation:
    """One run; ``run()`` gives its outcome.  ``effort``: products in the local step of a batch."""

    def __init__(
        self,
        costs: Costs,
        n_workers: int,
        n_batches: int,
        window: int,
        laps: int = 1,
        seed: int = 0,
        effort: float = math.inf,
    ) -> None:
        self.costs, self.n_batches, self.window, self.laps = costs, n_batches, window, laps
        self.size = max(1, window // 2)
        self.together = batches_of_task(min(self.size, n_batches), effort, n_workers, costs.numbers)
        self.rng = np.random.default_rng(seed)
        self.idle, self.n_workers = set(range(n_workers)), n_workers
        self.now = self.scheduler_free = 0.0
        self.busy = {"workers": 0.0, "coordinator": 0.0, "scheduler": 0.0}
        self.ready: list[int] = []  # tasks: a number is an order of submission, and so a priority
        self.bound: list[list[int]] = [[] for _ in range(n_workers)]  # those that wait for one worker
        self.place: dict[int, int] = {}
        self.needs: dict[int, tuple[int, ...]] = {}
        self.events: list[tuple[float, int, str, int]] = []
        self.count = 0
        self.seconds: dict[int, float] = {}
        self.followers: dict[int, int] = {}
        self.missing: dict[int, int] = {}
        self.kind: dict[int, int] = {}
        self.done: set[int] = set()
        self.basis: dict[int, int] = {}  # the posterior of a visit, and those that each worker has open
        self.opened = [deque[int](maxlen=KEPT) for _ in range(n_workers)]
        self.n_groups = 0

    def run(self) -> Outcome:
        """Simulate all laps."""
        for _ in range(self.laps):
            position = submitted = 0
            queue: deque[tuple[list[int], int]] = deque()
            while position < self.n_batches:
                while submitted < self.n_batches:
                    size = min(self.size, self.n_batches - submitted)
                    if queue and submitted + size - position > self.window:
                        break
                    queue.append((self._submit_group(size), size))
                    submitted += size
                wanted, size = queue.popleft()
                for task in wanted:
                    self._wait_for(task)
                self._coordinate(self.costs.fold + (len(wanted) - 1) * self.costs.message)
                position += size
            self._coordinate(self.costs.lap)
        shares = {name: value / self.now for name, value in self.busy.items()}
        return Outcome(self.now, shares["workers"] / self.n_workers, shares["coordinator"], shares["scheduler"])

    def _submit_group(self, size: int) -> list[int]:
        """Submit the tasks of a group; those whose results are wanted."""
        self._coordinate(self.costs.share)
        self.n_groups += 1
        places = range(0, size, self.together)
        visits = [self._submit(VISIT, (), min(self.together, size - place)) for place in places]
        if is_slight(len(visits), self.costs.numbers):
            return visits
        most = sums_left(len(visits), self.n_workers, self.costs.numbers)
        return reduced_for_us(visits, lambda groups: [self._submit(ADD, some) for some in groups], most)

    def _submit(self, kind: int, needs: Sequence[int], n_batches: int = 1) -> int:
        self._coordinate(self.costs.submit)
        task = self.count
        self.count += 1
        spread = self.costs.spread
        visit = n_batches * self.costs.visit * float(np.exp(spread * self.rng.normal() - spread**2 / 2))
        self.seconds[task] = visit if kind == VISIT else self.costs.add
        self.kind[task], self.needs[task], self.basis[task] = kind, tuple(needs), self.n_groups
        waiting = [n for n in needs if n not in self.done]
        self.missing[task] = len(waiting)
        for n in waiting:
            self.followers[n] = task
        if not waiting:
            self._schedule(task, self.now)
        return task

    def _schedule(self, task: int, since: float) -> None:
        """The scheduler handles a task when it is free, and then a worker may take it."""
        start = max(since, self.scheduler_free)
        self.scheduler_free = start + self.costs.schedule
        self.busy["scheduler"] += self.costs.schedule
        heapq.heappush(self.events, (self.scheduler_free + self.costs.latency, task, "ready", task))

    def _coordinate(self, seconds: float) -> None:
        self.busy["coordinator"] += seconds
        self._advance(self.now + seconds)

    def _wait_for(self, task: int) -> None:
        while task not in self.done:
            self._advance(self.events[0][0])
        self._advance(self.now + self.costs.latency)

    def _advance(self, until: float) -> None:
        """Let everything happen that happens until a time."""
        while self.events and self.events[0][0] <= until:
            time, _, what, task = heapq.heappop(self.events)
            self.now = max(self.now, time)
            if what == "ready":
                self._queue(task)
            else:
                self.idle.add(self.place[task])
                self.done.add(task)
                follower = self.followers.pop(task, None)
                if follower is not None:
                    self.missing[follower] -= 1
                    if not self.missing[follower]:
                        self._schedule(follower, time)
            self._start(time)
        self.now = max(self.now, until)

    def _queue(self, task: int) -> None:
        """A visit may go to any worker, what adds to one that holds something of it: the one with the least to do."""
        if self.kind[task] == VISIT:
            heapq.heappush(self.ready, task)
            return
        holders = {self.place[n] for n in self.needs[task]}
        best = min(holders, key=lambda w: (w not in self.idle, len(self.bound[w]), w))
        heapq.heappush(self.bound[best], task)

    def _start(self, time: float) -> None:
        """Give every idle worker the task that was submitted first, of the tasks that it may do."""
        for worker in sorted(self.idle):
            queues = [q for q in (self.ready, self.bound[worker]) if q]
            if not queues:
                continue
            task = heapq.heappop(min(queues, key=lambda q: q[0]))
            self.idle.remove(worker)
            self.place[task] = worker
            seconds = self.seconds[task] + self._opening(task, worker)
            self.busy["workers"] += seconds
            heapq.heappush(self.events, (time + seconds, task, "done", task))

    def _opening(self, task: int, worker: int) -> float:
        """Seconds in which a worker opens the posterior of a visit; 0 if it has it open."""
        if self.kind[task] != VISIT or self.basis[task] in self.opened[worker]:
            return 0.0
        self.opened[worker].append(self.basis[task])
        return self.costs.opening
