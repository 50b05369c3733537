"""Tests that every move, every source of data and every executor has to pass."""

from __future__ import annotations

import contextlib
import json
import operator
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from bnp_dask.core import REGISTRY, Batch, from_spec, to_spec
from bnp_dask.data import Source, spans_of
from bnp_dask.errors import ExecutionError
from bnp_dask.execute.base import Executor, in_order
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.inference import Memoized
from bnp_dask.initialize import RandomExamples
from bnp_dask.inputs import require
from bnp_dask.model import Model
from bnp_dask.moves import Merge, Move
from bnp_dask.training.results import TrainResult
from bnp_dask.training.train import ConvergenceWarning, train


class MoveSuite:
    """Tests of one move.  Subclass as ``TestSomething``, give :meth:`move`, :meth:`model` and :meth:`data`.

    Runs of a few laps check properties that a move must keep: the objective never falls, the gains of accepted moves in
    the history account for it, and the bits depend neither on the executor nor on a stop.
    """

    n_clusters = 5
    laps = 8

    def move(self) -> Move:
        """The move."""
        raise NotImplementedError

    def model(self) -> Model:
        """A model whose clusters the move changes."""
        raise NotImplementedError

    def data(self) -> np.ndarray:
        """Some hundred rows, on which at least one proposal of the move is accepted."""
        raise NotImplementedError

    def run(self, **more: Any) -> TrainResult:
        """A run with the move, and with merges beside it."""
        data = self.data()
        schedule = Memoized(laps=more.pop("laps", self.laps), tolerance=0.0, count_tolerance=0.0, window=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return train(
                self.model(), data, init=RandomExamples(self.n_clusters), moves=[self.move(), Merge()],
                schedule=schedule, batch_size=-(-len(data) // 4), **more,
            )  # fmt: skip

    def test_it_has_all_verbs_and_files_keep_it(self) -> None:
        move = self.move()
        require("moves", move, Move, "a move with the verbs of bnp_dask.moves.Move")
        assert pickle.loads(pickle.dumps(move)) == move
        assert from_spec(to_spec(move, REGISTRY)[0], {}) == move

    def test_something_is_accepted(self) -> None:
        assert any(row["accepted"] for row in self.run().history.moves() if row["kind"] != Merge.kind)

    def test_the_objective_never_falls_and_is_accounted_for(self) -> None:
        rows = [row for row in self.run().history if row["exact"]]
        for before, row in zip(rows, rows[1:], strict=False):
            gains = sum(move["gain"] or 0.0 for move in row["moves"] if move["accepted"])
            expected = before["elbo"] + row["gain"] + gains
            rounding = 1e-9 * abs(before["elbo"])
            assert abs(row["elbo"] - expected) <= rounding
            assert row["elbo"] >= before["elbo"] - rounding

    def test_bits_do_not_depend_on_the_executor(self) -> None:
        executor = ThreadExecutor(2)
        try:
            assert _bits(self.run(client=executor)) == _bits(self.run())
        finally:
            executor.close()

    def test_a_run_that_was_stopped_ends_in_the_same_bits(self, tmp_path: Path) -> None:
        self.run(store=tmp_path / "run", laps=self.laps // 2)
        assert _bits(self.run(store=tmp_path / "run", resume=True)) == _bits(self.run())


def _bits(result: TrainResult) -> tuple[Any, ...]:
    summary = result.posterior.summary
    assert summary is not None
    return [row["elbo"] for row in result.history], summary.ids.tolist(), summary["N"].tobytes()


class SourceSuite:
    """Tests of one source.  Subclass as ``TestSomething``, give :meth:`source`."""

    def source(self) -> Source:
        """A source of two batches or more; another object for the same data at each call."""
        raise NotImplementedError

    def batches(self, source: Source) -> list[Batch]:
        """All batches, read as workers read them: by readers that were pickled."""
        return [pickle.loads(pickle.dumps(source.reader(b)))() for b in range(source.n_batches)]

    def test_it_has_all_verbs(self) -> None:
        require("data", self.source(), Source, "a source with the verbs of bnp_dask.data.base.Source")

    def test_batches_are_the_same_whenever_they_are_read(self) -> None:
        source = self.source()
        for once, again in zip(self.batches(source), self.batches(self.source()), strict=True):
            for first, second in ((once.x, again.x), (once.weights, again.weights), (once.groups, again.groups)):
                assert _bits_of_array(first) == _bits_of_array(second), f"{once.name} differs when it is read again"

    def test_sizes_are_those_of_the_batches(self) -> None:
        source = self.source()
        batches = self.batches(source)
        lengths = [batch.n_atoms for batch in batches]
        assert len(batches) >= 2, "give a source of two batches or more"
        assert {batch.x.shape[1] for batch in batches} == {source.n_features}
        assert {batch.is_sparse for batch in batches} == {source.is_sparse}
        assert source.n_atoms in (None, sum(lengths))
        spans = spans_of(source)
        assert spans is None or [stop - start for start, stop in spans] == lengths

    def test_batches_have_names_of_their_own(self) -> None:
        names = [batch.name for batch in self.batches(self.source())]
        assert len(set(names)) == len(names), "a message about a batch names it"

    def test_what_tells_the_data_from_others_is_plain_and_stays(self) -> None:
        said = self.source().describe()
        assert json.loads(json.dumps(said)) == said
        assert self.source().describe() == said


def _bits_of_array(value: Any) -> object:
    if value is None:
        return None
    array = value.toarray() if sparse.issparse(value) else np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes()


class ExecutorSuite:
    """Tests of one executor.  Subclass as ``TestSomething``, give :meth:`executor`."""

    def executor(self) -> Executor:
        """A new executor, which the tests close."""
        raise NotImplementedError

    def test_it_has_all_verbs(self) -> None:
        with contextlib.closing(self.executor()) as executor:
            require("client", executor, Executor, "an executor with the verbs of bnp_dask.execute.base.Executor")
            assert executor.n_workers >= 0

    def test_tasks_take_values_of_others_and_shared_ones(self) -> None:
        with contextlib.closing(self.executor()) as executor:
            three = executor.submit("add-1", operator.add, 1, 2)
            six = executor.submit("add-2", operator.add, three, executor.share("also", 3))
            assert (executor.result(six), executor.result(three)) == (6, 3)

    def test_handles_are_used_once(self) -> None:
        with contextlib.closing(self.executor()) as executor:
            handle = executor.submit("add-1", operator.add, 1, 2)
            executor.result(handle)
            with pytest.raises(ExecutionError, match="void"):
                executor.result(handle)

    def test_the_error_of_a_task_is_that_of_its_result_and_others_go_on(self) -> None:
        with contextlib.closing(self.executor()) as executor:
            bad, good = (executor.submit(f"divide-{i}", operator.truediv, 1, i) for i in (0, 1))
            with pytest.raises(ZeroDivisionError):
                executor.result(bad)
            assert executor.result(good) == 1.0

    def test_arrays_come_back_bit_by_bit(self) -> None:
        array = np.random.default_rng(0).normal(size=(200, 3))
        with contextlib.closing(self.executor()) as executor:
            back = executor.result(executor.submit("copy-1", np.copy, executor.share("array", array)))
        assert (back.dtype, back.tobytes()) == (array.dtype, array.tobytes())

    def test_results_of_many_tasks_come_in_the_order_of_submission(self) -> None:
        with contextlib.closing(self.executor()) as executor:
            tasks = [(f"square-{i}", operator.mul, (i, i)) for i in range(50)]
            assert list(in_order(executor, tasks, 8)) == [i * i for i in range(50)]
