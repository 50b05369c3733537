"""One BLAS thread per task.

The last bits of a matrix product depend on the number of threads that computed it.  On a machine where every core
already runs a task, more threads make it slower by an order of magnitude.  So every task runs on one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import scipy.linalg  # noqa: F401  loads the BLAS that scipy and numba use, so that the controller below sees it
from threadpoolctl import ThreadpoolController


class _BlasLimit:
    """Counts the users of the one-thread limit: the first sets the limit, the last lifts it.

    Most BLAS libraries have one pool for the process.  If nested or concurrent users each saved and restored its size,
    one would lift the limit while another still needs it.  OpenBLAS over OpenMP has a pool per thread: there every
    thread sets and lifts its own limit.
    """

    def __init__(self) -> None:
        # Searching all loaded libraries costs milliseconds: done once.
        self._all = ThreadpoolController().select(user_api="blas")
        self._per_thread = self._all.select(internal_api="openblas").select(threading_layer="openmp")
        self._lock = threading.Lock()
        self._count = 0
        self._first: Any = None
        self._local = _Local()

    def enter(self) -> None:
        self._local.depth += 1
        if self._local.depth > 1:
            return
        with self._lock:
            self._take_control()
            self._local.own = self._per_thread.limit(limits=1)
            limiter = self._all.limit(limits=1)
            if self._count == 0:
                self._first = limiter
            self._count += 1

    def leave(self) -> None:
        self._local.depth -= 1
        if self._local.depth > 0:
            return
        with self._lock:
            self._count -= 1
            if self._count == 0:
                self._take_control()
                self._first.restore_original_limits()
                self._first = None
                self._take_control()
            self._local.own.restore_original_limits()
            self._local.own = None

    def _take_control(self) -> None:
        # From 3.8 on, threadpoolctl silently ignores a limit on OpenBLAS while another thread that once set one is
        # alive.  Here the lock and the count keep order, so the limit of every thread must take effect.
        for library in self._all.lib_controllers:
            clear = getattr(library, "clear_controlling_thread", None)
            if clear is not None:
                clear(force=True)


class _Local(threading.local):
    """Nesting depth of this thread's blocks, and the limit of its own pool."""

    depth = 0
    own: Any = None


@cache
def _process_limit() -> _BlasLimit:
    return _BlasLimit()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit the BLAS of this process to one thread inside the block.

    Blocks may be nested and may run in several threads at once.  The number of threads before the first block is
    restored when the last block ends.
    """
    limit = _process_limit()
    limit.enter()
    try:
        yield
    finally:
        limit.leave()
