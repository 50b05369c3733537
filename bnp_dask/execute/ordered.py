"""Many tasks through an executor: a bounded number in flight, or all at once; results in the order of submission."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from bnp_dask.execute.base import Executor, GroupExecutor, Handle, Task


def in_order(
    executor: Executor, tasks: Iterable[Task], window: int, slight: bool = False, first: bool = False
) -> Iterator[Any]:
    """Run tasks with at most ``window`` in flight, and one at least; yield their results in the order of ``tasks``.

    A window of them is sent at once, before anybody asks for a result; with ``first`` it goes before whatever waits for
    a worker.  Where they are ``slight``, messages take longer than they do: half a window of them goes out and comes
    back in one.
    """
    waiting, window = iter(tasks), max(1, window)  # a window of twice no workers: they may come back
    queue = deque(submitted(executor, list(islice(waiting, window)), first))
    return _in_turn(executor, waiting, queue, max(1, window // 2) if slight else 1, slight)


def _in_turn(
    executor: Executor, waiting: Iterator[Task], queue: deque[Handle], size: int, slight: bool
) -> Iterator[Any]:
    """Results of ``queue``, ``size`` at a time, for which as many of those ``waiting`` are sent."""
    while queue:
        some = [queue.popleft() for _ in range(min(size, len(queue)))]
        yield from collected(executor, some, at_once=slight)
        queue.extend(submitted(executor, list(islice(waiting, len(some)))))


def submitted(executor: Executor, tasks: Sequence[Task], first: bool = False) -> list[Handle]:
    """Start tasks, none of which needs another, at once; ``first``: before others that wait, where anything does."""
    if isinstance(executor, GroupExecutor):
        return executor.submit_together(tasks, first)
    return [executor.submit(name, function, *args) for name, function, args in tasks]


def collected(executor: Executor, handles: Sequence[Handle], at_once: bool) -> Iterator[Any]:
    """Values of tasks in order: all ``at_once``, which takes fewer messages and more memory, or one after the other."""
    if at_once and isinstance(executor, GroupExecutor):
        yield from executor.results_together(handles)
    else:
        yield from map(executor.result, handles)
