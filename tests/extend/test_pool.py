"""The guest executor."""

import operator

import pytest
from pool import Pool

from bnp_dask.errors import ExecutionError


def test_tasks_take_values_of_others_and_handles_are_used_once():
    pool = Pool(n_workers=2)
    three = pool.submit("add-1", operator.add, 1, 2)
    six = pool.submit("add-2", operator.add, three, pool.share("also", 3))
    assert (pool.result(six), pool.result(three), pool.ran["add"]) == (6, 3, 2)
    with pytest.raises(ExecutionError, match="void"):
        pool.result(six)
    with pytest.raises(ZeroDivisionError):
        pool.result(pool.submit("divide", operator.truediv, 1, 0))
    pool.close()
