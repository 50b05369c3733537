"""An executor: a pool of Python's own, and a count of what it ran."""

from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import bnp_dask as bnp
from bnp_dask.execute.base import DEFAULT_RETRIES, Handle, make_call


@bnp.register
@dataclass(eq=False)
class Pool:
    """Runs tasks in threads.

    Parameters
    ----------
    n_workers
        Threads.
    """

    n_workers: int = 2
    memory_limit = None
    ran: Counter = field(default_factory=Counter, init=False)

    def __post_init__(self):
        self._pool = ThreadPoolExecutor(self.n_workers)

    def share(self, name, value):
        """A value for many tasks."""
        ready = Future()
        ready.set_result(value)
        return Handle(name, self, ready)

    def submit(self, name, function, *args):
        """Start a task; handles among its arguments stand for their values."""
        self.ran[name.split("-")[0]] += 1
        call, needed = make_call(self, name, function, args)
        return Handle(name, self, self._pool.submit(_run, call, needed))

    def result(self, handle):
        """Wait for a task; its handle is void afterwards."""
        future = handle.content(self)
        handle.void()
        return future.result()

    def close(self):
        """Drop what waits, and end the threads."""
        self._pool.shutdown(cancel_futures=True)


def _run(call, needed):
    # tasks begin in the order they were submitted in, so what this one needs is running already, or done
    return call.run_with_retries([future.result() for future in needed], DEFAULT_RETRIES)
