"""Tests that every executor has to pass."""

from __future__ import annotations

import contextlib
import operator

import numpy as np
import pytest

from bnp_dask.errors import ExecutionError
from bnp_dask.execute.base import Executor, in_order
from bnp_dask.inputs.protocols import require


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
