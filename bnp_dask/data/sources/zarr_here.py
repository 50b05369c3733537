"""Small pieces of Zarr arrays, read and decoded in the thread that asks.

zarr reads in a thread of its own and decodes in others.  This pays if the threads hide the latency of a remote store,
or share the work of many chunks.  A local chunk of 1 MB costs less than the hand-over between threads, the more so if
another thread (a worker's event loop) also needs the interpreter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import zarr


class _Here(ThreadPoolExecutor):
    """Thread pool without threads: runs each function in the thread that submits it.

    It is a subclass of a thread pool, because an event loop accepts nothing else.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def _quiet(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Suppress reports of asyncio: errors are raised anyway, and a Ctrl-C would report each unfinished part."""


def can_read_here() -> bool:
    """Whether this thread may run an event loop: the thread of a notebook already runs one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def read_here(array: zarr.AsyncArray[Any], start: int, stop: int) -> np.ndarray:
    """Rows ``start`` to ``stop`` of an array in a local store, in its own dtype."""
    with closing(asyncio.new_event_loop()) as loop:
        loop.set_default_executor(_Here(1))
        loop.set_exception_handler(_quiet)
        return np.asarray(loop.run_until_complete(array.getitem(slice(start, stop))))
