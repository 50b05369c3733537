"""Runs with moves: the same bits after a pause anywhere, and whoever computes them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import sparse

from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.inference import FullBatch, Memoized, is_constant, state_from_saved, state_to_arrays, state_to_json
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.observation import DiagGaussian, Multinomial
from tests.moves.parts import blobs, prepare, start_random

MOVES = (Birth(per_lap=3, sample=200, refine=6), Merge(), Delete(per_lap=2, absorbers=3, sweeps=3))
AT_BATCH = (Birth(where="batch", share=1.0, refine=6, min_atoms=10), Merge(), Delete())


def run(schedule, moves, executor=None, model=None, batches=None, k=3):
    model = model or Model(DPMixture(2.0), DiagGaussian())
    work = prepare(model, batches or blobs(360, n_batches=5), moves=moves, executor=executor)
    return work, start_random(work, k)


def rows_of(schedule, work, state):
    return [step.row for step in schedule.run(work, state) if step.row is not None]


def assert_same(a, b):
    for name, value in a.total.value().values.items():
        assert np.array_equal(value, b.total.value()[name]), name


def pause(schedule, work, state, stop):
    """Rows up to a pause after ``stop`` steps, and the state as it comes back from a file."""
    rows = []
    for count, step in enumerate(schedule.run(work, state), 1):
        if step.row is not None:
            rows.append(step.row)
        if count == stop:
            state.in_flight = list(step.in_flight)
            numbers = json.loads(json.dumps(state_to_json(state)))
            return rows, state_from_saved(work.model, numbers, {k: v.copy() for k, v in state_to_arrays(state).items()})
    raise AssertionError("the run was over before the pause")


def test_what_checkpoints_do_not_copy_never_changes():
    seen = []
    work, state = run(None, MOVES)
    for _ in Memoized(7, window=3).run(work, state):
        constant = {name: array for name, array in state_to_arrays(state).items() if is_constant(name)}
        seen.extend((array, array.copy()) for array in constant.values())
        again = state_to_arrays(state)
        assert all(np.shares_memory(array, again[name]) for name, array in constant.items() if array.size)
    assert len(seen) > 20
    for array, before in seen:
        np.testing.assert_array_equal(array, before)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("schedule", "moves"),
    [(Memoized(7, window=3), MOVES), (Memoized(7, window=2), AT_BATCH), (FullBatch(7, window=2), MOVES)],
)
def test_pause_anywhere(schedule, moves):
    # one cluster on well separated data: a batch alone shows that it is worth splitting
    k = 1 if moves is AT_BATCH else 3
    batches = blobs(400, d=2, spread=20.0, n_batches=5)
    work, whole = run(schedule, moves, batches=batches, k=k)
    rows = rows_of(schedule, work, whole)
    assert any(m["accepted"] for row in rows for m in row["moves"])
    pending = False
    for stop in (1, 5, 6, 9, 14, 18):
        work, state = run(schedule, moves, batches=batches, k=k)
        first, again = pause(schedule, work, state, stop)
        pending |= bool(again.pending)
        assert first + rows_of(schedule, work, again) == rows, f"pause after step {stop}"
        assert_same(whole, again)
    assert pending == (moves is AT_BATCH)


@pytest.mark.long
def test_pause_with_sparse_counts_and_weights():
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(30, 0.1), size=4)
    counts = np.array([rng.multinomial(40, topics[k]) for k in rng.integers(4, size=200)], np.float64)
    batches = [Batch(sparse.csr_array(c), np.full(len(c), 2.0), f"blob batch {b}")
               for b, c in enumerate(np.array_split(counts, 5))]  # fmt: skip
    model = Model(DPMixture(1.0), Multinomial())
    schedule = Memoized(6, window=3)
    work, whole = run(schedule, MOVES, model=model, batches=batches, k=1)
    rows = rows_of(schedule, work, whole)
    for stop in (3, 7, 8, 12):
        work, state = run(schedule, MOVES, model=model, batches=batches, k=1)
        first, again = pause(schedule, work, state, stop)
        assert first + rows_of(schedule, work, again) == rows
        assert_same(whole, again)


@pytest.mark.first_case
@pytest.mark.parametrize("moves", [MOVES, AT_BATCH])
def test_threads_give_the_bits_of_serial(moves):
    schedule = Memoized(6, window=3)
    outcomes = []
    for executor in (SerialExecutor(), ThreadExecutor(1), ThreadExecutor(2)):
        work, state = run(schedule, moves, executor)
        outcomes.append((rows_of(schedule, work, state), state))
        executor.close()
    for rows, state in outcomes[1:]:
        assert rows == outcomes[0][0]
        assert_same(outcomes[0][1], state)


SIZES = [(MOVES, (2,), 3), (AT_BATCH, (2,), 1), pytest.param(MOVES, (1, 4), 3, marks=pytest.mark.long)]


@pytest.mark.first_case
@pytest.mark.parametrize(("moves", "workers", "k"), SIZES)
def test_dask_workers_give_the_bits_of_serial(dask_client, moves, workers, k):
    schedule = Memoized(5, window=3)
    work, serial = run(schedule, moves, k=k)
    rows = rows_of(schedule, work, serial)
    assert any(m["accepted"] and m["kind"] == "birth" for row in rows for m in row["moves"])
    for n_workers in workers:
        executor = DaskExecutor(dask_client(n_workers), f"moves{k}-{n_workers}")
        work, state = run(schedule, moves, executor, k=k)
        assert rows_of(schedule, work, state) == rows
        assert_same(serial, state)
        executor.close()
