"""The BLAS limit: nested, from several threads, restored."""

from __future__ import annotations

import threading

import pytest
from threadpoolctl import threadpool_limits

from bnp_dask.execute import one_blas_thread
from tests.execute.tasks import blas_threads


@pytest.fixture
def two_threads():
    with threadpool_limits(2, user_api="blas"):
        if blas_threads() < 2:
            pytest.skip("this BLAS was built for one thread")
        yield


def test_limits_and_restores(two_threads):
    assert blas_threads() == 2
    with one_blas_thread():
        assert blas_threads() == 1
    assert blas_threads() == 2


def test_nested_blocks_restore_once_at_the_end(two_threads):
    with one_blas_thread():
        with one_blas_thread():
            assert blas_threads() == 1
        assert blas_threads() == 1
    assert blas_threads() == 2


def test_restores_after_an_error(two_threads):
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        _ = 1 / 0
    assert blas_threads() == 2


def test_from_several_threads_at_once(two_threads):
    """Blocks overlap in every order; inside any of them there is one thread, after all of them there are two."""
    seen: list[int] = []
    barrier = threading.Barrier(4)

    def work(index: int) -> None:
        barrier.wait()
        for _ in range(50 + 10 * index):
            with one_blas_thread():
                seen.append(blas_threads())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {1}
    assert len(seen) == 4 * 50 + 60
    assert blas_threads() == 2
