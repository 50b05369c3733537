"""Runs tasks in threads of this process."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bnp_dask.errors import ExecutionError, SettingError
from bnp_dask.execute.base import DEFAULT_RETRIES, Call, Handle, check_retries, errors_of_tasks, make_call


class ThreadExecutor:
    """Runs tasks in a pool of threads; numba kernels and BLAS release the interpreter's lock, so they run in parallel.

    Parameters
    ----------
    n_workers
        Number of threads.
    retries
        Number of retries of a task after a transient failure.
    """

    memory_limit = None

    def __init__(self, n_workers: int, retries: int = DEFAULT_RETRIES) -> None:
        if not isinstance(n_workers, int) or isinstance(n_workers, bool) or n_workers < 1:
            raise SettingError(f"n_workers={n_workers!r}: needs a whole number, 1 or more")
        check_retries(retries)
        self.n_workers = n_workers
        self._retries = retries
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._pool = ThreadPoolExecutor(n_workers, thread_name_prefix="bnp-dask")
        self._closed = False

    def share(self, name: str, value: Any) -> Handle:
        """Keep a value for tasks; nothing is copied."""
        future: Future[Any] = Future()
        future.set_result(value)
        return self._handle(name, future)

    def submit(self, name: str, function: Callable[..., Any], *args: Any) -> Handle:
        """Queue a task."""
        self._require_open(name)
        call, needed = make_call(self, name, function, args)
        return self._handle(name, self._pool.submit(_run, call, needed, self._retries))

    def result(self, handle: Handle) -> Any:
        """Wait for a task and return its value or raise its error."""
        future = handle.content(self)
        handle.void()
        with errors_of_tasks(handle.name):
            return future.result()

    def close(self) -> None:
        """Drop queued tasks and wait for running ones."""
        self._closed = True
        for handle in list(self._handles):
            handle.void()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _require_open(self, name: str) -> None:
        if self._closed:
            raise ExecutionError(f"cannot take {name!r}: this executor was closed; make a new one")

    def _handle(self, name: str, future: Future[Any]) -> Handle:
        self._require_open(name)
        handle = Handle(name, self, future)
        self._handles.add(handle)
        return handle


def _run(call: Call, needed: Sequence[Future[Any]], retries: int) -> Any:
    # The pool starts tasks in the order of submission, so all tasks that this one needs have started:
    # waiting for them here cannot deadlock.
    return call.run_with_retries([f.result() for f in needed], retries)
