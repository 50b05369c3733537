"""Tests that every move has to pass."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.core.encoding import from_spec, to_spec
from bnp_dask.core.registry import REGISTRY
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.inference import Memoized
from bnp_dask.initialize import RandomExamples
from bnp_dask.inputs.protocols import require
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
