"""Executors of this process: tasks run here, one at a time, when their result is asked for, or in threads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bnp_dask.errors import ExecutionError, SettingError
from bnp_dask.execute.base import DEFAULT_RETRIES, Call, Handle, check_retries, errors_of_tasks, make_call


class SerialExecutor:
    """Runs a task when its result is asked for, so that one task at a time holds memory.

    Parameters
    ----------
    retries
        Number of retries of a task after a transient failure.
    """

    n_workers = 1
    memory_limit = None

    def __init__(self, retries: int = DEFAULT_RETRIES) -> None:
        check_retries(retries)
        self._retries = retries
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._closed = False

    def share(self, name: str, value: Any) -> Handle:
        """Keep a value for tasks; nothing is copied."""
        return self._handle(name, _Node.of_value(value))

    def submit(self, name: str, function: Callable[..., Any], *args: Any) -> Handle:
        """Record a task; :meth:`result` runs it."""
        call, needed = make_call(self, name, function, args)
        return self._handle(name, _Node(call, needed))

    def result(self, handle: Handle) -> Any:
        """Run the task after the tasks whose values it needs; return its value or raise its error."""
        node = handle.content(self)
        handle.void()
        # A stack instead of recursion: a chain of tasks may be longer than Python's stack is deep.
        stack: list[_Node] = [node]
        while stack:
            waiting = [n for n in stack[-1].needed if not n.done]
            if waiting:
                stack.extend(waiting)
            else:
                stack.pop().run(self._retries)
        with errors_of_tasks(handle.name):
            return node.value()

    def close(self) -> None:
        """Forget all tasks."""
        self._closed = True
        for handle in list(self._handles):
            handle.void()

    def _handle(self, name: str, node: _Node) -> Handle:
        if self._closed:
            raise ExecutionError(f"cannot take {name!r}: this executor was closed; make a new one")
        handle = Handle(name, self, node)
        self._handles.add(handle)
        return handle


class _Node:
    """A task, its needs, and its outcome once it ran."""

    def __init__(self, call: Call | None, needed: list[_Node]) -> None:
        self.call = call
        self.needed = needed
        self.done = False
        self._value: Any = None
        self._error: Exception | None = None

    @classmethod
    def of_value(cls, value: Any) -> _Node:
        node = cls(None, [])
        node.done, node._value = True, value
        return node

    def run(self, retries: int) -> None:
        if self.done or self.call is None:
            return
        try:
            self._value = self.call.run_with_retries([n.value() for n in self.needed], retries)
        except Exception as error:
            self._error = error
        self.done = True
        # The arguments of the task are not needed again; its handle may live on.
        self.call, self.needed = None, []

    def value(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


# -- threads -------------------------------------------------------------------------------------------------------
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
