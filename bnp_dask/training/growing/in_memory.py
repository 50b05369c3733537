"""Runs in memory that take in data: the statistics of all data, and nothing of single batches."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.core import RunningTotal, Survey, survey_batch
from bnp_dask.core.frozen import thawed
from bnp_dask.data import Source, taking_lags
from bnp_dask.execute.base import Executor, one_blas_thread
from bnp_dask.execute.reach import open_executor
from bnp_dask.inference import Memoized, State, state_to_arrays, state_to_json
from bnp_dask.inference.variational.arrivals import Round
from bnp_dask.kernels.numeric.fixed_order import fixed_order
from bnp_dask.model import Posterior
from bnp_dask.moves import Move
from bnp_dask.moves.memory import Memory
from bnp_dask.store import Checkpoint, GrowthLog, MemoryStore, RunStore, no_receipts
from bnp_dask.store.checkpoint import NOTHING_LISTED, StoredRows
from bnp_dask.store.place import Extent
from bnp_dask.training.growing.found import all_new
from bnp_dask.training.growing.growing_run import GrowingRun
from bnp_dask.training.growing.grown import Absent
from bnp_dask.training.growing.ingest_update import KEPT, UpdateResult, take_in
from bnp_dask.training.growing.update import AGAIN, rules_of, taken_in
from bnp_dask.training.memory_plan import MEMORY
from bnp_dask.training.results import TrainResult

if TYPE_CHECKING:
    from distributed import Client

NO_ROWS = StoredRows(Path(), Extent())
"""Rows of a history that are not read again."""


def begun_in_memory(begin: Callable[[str], TrainResult]) -> tuple[TrainResult, GrowingRun]:
    """Train with a function that takes a run directory; return the result and the run, in memory, at that state."""
    with tempfile.TemporaryDirectory(prefix="bnp-dask-", ignore_cleanup_errors=True) as folder:
        result = begin(folder)
        with contextlib.closing(RunStore.open(folder)) as opened:
            run = GrowingRun.open(opened)
    log = GrowthLog.empty(None)
    return result, replace(run, store=MemoryStore(), log=log, checkpoint=replace(run.checkpoint, rows=NO_ROWS))


def run_of(
    posterior: Posterior, last: Mapping[str, Any], like: Source, schedule: Any, seed: int, moves: Sequence[Move]
) -> GrowingRun:
    """A run in memory that goes on from a posterior; ``last`` is the last row of its history.

    The data behind it are no batches of this run: its statistics stay as they are, to the precision of the posterior.
    ``like`` are data of the same kind as the data to come.
    """
    posterior = thawed(posterior)
    assert posterior.summary is not None
    summary = posterior.summary.without_pairs()
    total = RunningTotal(summary)
    value = total.value()
    known = replace(posterior, summary=value)
    state = State(
        known,
        total,
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
        no_receipts(0),
        Memory(next_id=int(summary.ids.max(initial=-1)) + 1),
        lap=int(last["lap"]),
        step=int(last["step"]),
        terms=posterior.model.elbo(known, value),
    )
    rows = taking_lags(like, posterior.model.lags).reader(0)()
    first = _nothing_of(survey_batch(rows, posterior.model.marginalises))
    source = Absent("data", 0, first.n_features, first.is_sparse, "it was given as data in memory")
    numbers, arrays = state_to_json(state), state_to_arrays(state)
    checkpoint = Checkpoint(numbers, arrays, NO_ROWS, 1, NOTHING_LISTED)
    turn, log = Round.begin(0, state.step), GrowthLog.empty(None)
    usual = Memoized(window=schedule.window)
    return GrowingRun(
        *(MemoryStore(), checkpoint, posterior, first, source, usual, log, turn, 0, 0, {}),
        *(float(last["seconds"]), seed, tuple(moves), np.zeros(0)),
        besides=posterior.model.weight_in(value, first.is_sparse),
    )


def _nothing_of(survey: Survey) -> Survey:
    """A survey of no batch, with the kind and the features of another."""
    sizes: dict[str, Any] = {"n_atoms": 0, "total_weight": 0.0, "nbytes": 0}
    batches: dict[str, Any] = {"batch_atoms": (), "batch_bytes": (), "checksums": (), "batch_weights": ()}
    return replace(survey, **sizes, **batches)


def grown_in_memory(
    run: GrowingRun, source: Source, client: Client | Executor | str | None
) -> tuple[UpdateResult, GrowingRun]:
    """Let a run in memory take in data; return the run after that.  The previous one is unchanged."""
    run = replace(run)
    rules = rules_of(0.0, 0, MEMORY, 1)
    with one_blas_thread(), fixed_order(run.base.model.reproducible), open_executor(client, AGAIN) as executor:
        return take_in(run, all_new(run, source, executor), rules, executor), run


def grown_on_disk(store: str, source: Source, client: Client | Executor | str | None) -> UpdateResult:
    """Let a run directory take in data once more, even if it has the same already."""
    return taken_in(store, rules_of(1.0, 0, MEMORY, KEPT), client, lambda run, executor: all_new(run, source, executor))
