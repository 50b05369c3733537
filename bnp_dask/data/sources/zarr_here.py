"""Small pieces of Zarr arrays, read and decoded in the thread that asks.

zarr reads in a thread of its own and decodes in others.  Where these hide the waiting for a remote store, or share the
work of many chunks, that is a gain; a local chunk of 1 MB costs less than being handed from thread to thread, the more
so where another thread (a worker's event loop) wants the interpreter too.
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
    """Runs what others would hand to a thread where it is submitted; has no threads.

    An event loop takes nothing but pools of threads for this.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def _quiet(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Every error is raised; after a Ctrl-C asyncio would also report each part of the reading that was not ended."""


def can_read_here() -> bool:
    """Whether this thread may run an event loop: that of a notebook has one running already."""
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
