"""The shipped suite over the guest executor."""

from pool import Pool

from bnp_dask.testing import ExecutorSuite


class TestPool(ExecutorSuite):
    def executor(self):
        return Pool(n_workers=2)


def test_tasks_are_counted_by_their_first_word():
    pool = Pool()
    pool.result(pool.submit("add-1", sum, [1, 2]))
    assert pool.ran["add"] == 1
    pool.close()
