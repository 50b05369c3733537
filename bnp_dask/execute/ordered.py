"""Many tasks through an executor: a bounded number in flight, results in the order of submission."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bnp_dask.execute.base import Executor

Task = tuple[str, Callable[..., Any], tuple[Any, ...]]
"""Name, function, arguments."""


def in_order(executor: Executor, tasks: Iterable[Task], window: int) -> Iterator[Any]:
    """Run tasks with at most ``window`` in flight; yield their results in the order of ``tasks``."""
    queue: deque[Any] = deque()
    for name, function, args in tasks:
        queue.append(executor.submit(name, function, *args))
        if len(queue) >= window:
            yield executor.result(queue.popleft())
    while queue:
        yield executor.result(queue.popleft())
