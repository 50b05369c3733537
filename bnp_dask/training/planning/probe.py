"""Unit costs of a run: a short training on a little of the data, whose tasks are metered."""

from __future__ import annotations

import contextlib
import logging
import pickle
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.allocation.base import UnscoredAllocation
from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import Columns
from bnp_dask.core.summary import RunningTotal, Summary
from bnp_dask.data.base import Reader, Source, batch_reader, columns_of
from bnp_dask.execute.base import Handle
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.inference import Schedule
from bnp_dask.inference.reduction import FAN
from bnp_dask.inference.sampling.gibbs import Gibbs
from bnp_dask.inference.streaming import Filter
from bnp_dask.initialize import Initialization
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import Move
from bnp_dask.moves.policy import LAP
from bnp_dask.observation.base import numbers_per_cluster
from bnp_dask.training.callbacks import RunInfo
from bnp_dask.training.defaults import default_init
from bnp_dask.training.train import train

PROBE_BYTES = 8 * 2**20
"""Bytes of data in memory that a probe trains on: some seconds of work for models of up to a hundred clusters."""

PROBE_BATCHES = 4
"""Batches that these are cut into."""

PROBE_LAPS = 4
"""Laps of the probe; the last two are metered.  In the first the posterior stands still, and in the second births are
tried for the first time."""

METERED = 2
"""Laps at the end of the probe that are metered."""

ATOMS_PER_CLUSTER = 20
"""Least atoms of a probe for each cluster: with fewer, visits are faster than on whole data, since clusters vanish."""

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
    fold
        Seconds of the coordinator for a global step and the objective.
    add
        Seconds for adding the changes of ``FAN`` batches.
    moves
        Seconds of the coordinator at both ends of a lap: proposals are planned and decided.
    posterior_bytes, change_bytes, summary_bytes
        Sizes of the posterior as it is sent, of the change by a batch, and of a summary in memory.
    numbers
        Numbers in a summary.
    kept_bytes
        Bytes per atom that the run directory keeps of each batch; NaN without a store.
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
    fold: float
    add: float
    moves: float
    posterior_bytes: int
    change_bytes: int
    summary_bytes: int
    numbers: int
    kept_bytes: float
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
        return replace(
            self,
            n_clusters=float(n_clusters),
            visit=by * self.visit,
            fold=by * self.fold,
            add=by * self.add,
            moves=max(by, _pairs(n_clusters) / max(1.0, _pairs(self.n_clusters))) * self.moves,
            posterior_bytes=round(by * self.posterior_bytes),
            change_bytes=round(by * self.change_bytes),
            summary_bytes=round(by * self.summary_bytes),
            numbers=round(by * self.numbers),
            kept_bytes=by * self.kept_bytes,
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
    started = time.perf_counter()
    for index in order:
        whole.append(batch_reader(source, int(index))())
        atoms = sum(batch.n_atoms for batch in whole)
        if len(whole) >= min(PROBE_BATCHES, len(order)) and (
            atoms >= enough or sum(batch.nbytes for batch in whole) >= 4 * PROBE_BYTES
        ):
            break
    seconds = time.perf_counter() - started
    atoms = sum(batch.n_atoms for batch in whole)
    nbytes = sum(batch.nbytes for batch in whole)
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
    """Seconds of tasks by the first word of their names."""

    seconds: dict[str, float] = field(default_factory=dict)

    def note(self, name: str, seconds: float) -> None:
        kind = name.split("-")[0]
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds


class MeteredExecutor:
    """Runs tasks in this thread, as :class:`~bnp_dask.execute.serial.SerialExecutor`, and notes their seconds."""

    n_workers = 1
    memory_limit = None

    def __init__(self) -> None:
        self._inner = SerialExecutor()
        self.meter = Meter()

    def share(self, name: str, value: Any) -> Handle:
        return self._inner.share(name, value)

    def submit(self, name: str, function: Callable[..., Any], *args: Any) -> Handle:
        return self._inner.submit(name, self._timed, name, function, *args)

    def result(self, handle: Handle) -> Any:
        return self._inner.result(handle)

    def close(self) -> None:
        self._inner.close()

    def _timed(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        found = function(*args)
        self.meter.note(name, time.perf_counter() - started)
        return found


@dataclass
class LapClock:
    """Notes the wall clock, the meter and the number of clusters at the start of the run and after each lap."""

    meter: Meter
    marks: list[tuple[float, dict[str, float], int]] = field(default_factory=list)

    def _mark(self, n_clusters: int) -> None:
        self.marks.append((time.perf_counter(), dict(self.meter.seconds), n_clusters))

    def on_start(self, info: RunInfo) -> None:
        self._mark(0)

    def on_batch(self, done: int) -> bool | None:
        """No-op: laps are timed."""
        return None

    def on_lap(self, row: Mapping[str, Any], posterior: Posterior) -> bool | None:
        self._mark(int(row["n_clusters"]))
        return None

    def on_end(self, reason: str) -> None:
        """No-op: the last lap was noted."""


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
        Clusters to start with; None for those of ``init``.
    keeps
        Whether the run has a run directory.
    """
    executor = MeteredExecutor()
    clock = LapClock(executor.meter)
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
    probe_seconds = time.perf_counter() - began
    laps = list(zip(clock.marks, clock.marks[1:]))[-METERED:]
    n_atoms = source.n_atoms
    visits, rest, clusters = [], [], []
    for (start, before, _), (end, after, n) in laps:
        visited = sum(s - before.get(kind, 0.0) for kind, s in after.items() if kind not in NO_VISITS)
        visits.append(visited)
        rest.append(end - start - visited)
        clusters.append(n)
    first = clock.marks[0]
    compiling = result.warm_seconds
    survey = first[1].get("survey", 0.0)
    fold, add, sizes = _global_costs(result.posterior, source)
    return UnitCosts(
        n_clusters=float(np.mean(clusters)),
        read=sample.read,
        survey=sample.read + survey / n_atoms,
        start=max(0.0, first[0] - began - survey - compiling),
        visit=sample.read + float(np.median(visits)) / n_atoms,
        fold=fold,
        add=add,
        moves=max(0.0, float(np.median(rest)) - source.n_batches * fold),
        posterior_bytes=sizes[0],
        change_bytes=sizes[1],
        summary_bytes=sizes[2],
        numbers=result.posterior.n_clusters * numbers_per_cluster(result.posterior.model.observation),
        kept_bytes=kept / n_atoms,
        keeps_states=result.posterior.model.keeps_states,
        atom_bytes=sample.atom_bytes,
        probe_seconds=probe_seconds,
        compiling=compiling,
    )


def _shortened(schedule: Any) -> Schedule:
    """The schedule with the laps of a probe; filters have one lap."""
    if isinstance(schedule, Filter):
        return schedule
    if isinstance(schedule, Gibbs):
        return replace(schedule, laps=PROBE_LAPS, burn_in=0, thin=1)
    shortened: Schedule = replace(schedule, laps=PROBE_LAPS)
    return shortened


def _global_costs(posterior: Posterior, source: FewBatches) -> tuple[float, float, tuple[int, int, int]]:
    """Seconds of a global step with the objective, and of adding changes; bytes of posterior, change and summary."""
    model, summary = posterior.model, posterior.summary
    assert summary is not None
    fold = _seconds(lambda: _settled(model, summary))
    change = RunningTotal(summary)
    add = _seconds(lambda: _sum_of(change, summary))
    # of a batch: words that it lacks are left out of its change
    sent = model.visit(posterior, source.batches[0]).summary
    sizes = (
        len(pickle.dumps(posterior.for_visits(source.batches[0].n_atoms), protocol=5)),
        2 * len(pickle.dumps(sent, protocol=5)),
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
