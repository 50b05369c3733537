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

    A window of them is sent at once, before the first result is requested; with ``first`` it goes before tasks that
    wait for a worker.  ``slight`` tasks take less time than messages: half a window of them is sent and returned in one
    message.
    """
    waiting, window = iter(tasks), max(1, window)  # the window may be twice zero workers: they may come back
    queue = deque(submitted(executor, list(islice(waiting, window)), first))
    return _in_turn(executor, waiting, queue, max(1, window // 2) if slight else 1, slight)


def _in_turn(
    executor: Executor, waiting: Iterator[Task], queue: deque[Handle], size: int, slight: bool
) -> Iterator[Any]:
    """Results of ``queue``, ``size`` at a time; as many ``waiting`` tasks are then sent."""
    while queue:
        some = [queue.popleft() for _ in range(min(size, len(queue)))]
        yield from collected(executor, some, at_once=slight)
        queue.extend(submitted(executor, list(islice(waiting, len(some)))))


def submitted(executor: Executor, tasks: Sequence[Task], first: bool = False) -> list[Handle]:
    """Start tasks together, none of which needs another; with ``first`` before other waiting tasks, if supported."""
    if isinstance(executor, GroupExecutor):
        return executor.submit_together(tasks, first)
    return [executor.submit(name, function, *args) for name, function, args in tasks]


def collected(executor: Executor, handles: Sequence[Handle], at_once: bool) -> Iterator[Any]:
    """Values of tasks in order: all ``at_once``, with fewer messages and more memory, or one after the other."""
    if at_once and isinstance(executor, GroupExecutor):
        yield from executor.results_together(handles)
    else:
        yield from map(executor.result, handles)
