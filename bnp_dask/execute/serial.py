"""Runs tasks here, one at a time, when their result is asked for."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from bnp_dask.errors import ExecutionError
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
