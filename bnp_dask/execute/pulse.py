"""Waits for a Dask scheduler only while it answers: one that hangs or was cut off breaks no connection.

The kernel of a machine goes on accepting data for a stopped process, and lost packets are sent again for a long time.
So while this process waits, it asks the scheduler to echo a message, and gives up once a question has been unanswered
for too long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import dask
from dask.utils import parse_timedelta
from distributed import Client

T = TypeVar("T")

ASK_SECONDS = 1.0
"""Time without news from the scheduler after which it is asked."""

STEP_SECONDS = 0.5
"""Silence is counted in steps; a longer step counts as two at most.

A process that was stopped, whose machine slept, or whose event loop unpacked a large result has not listened
meanwhile; when it goes on, it reads pending answers first.
"""

SHARE = 0.75
"""Tolerated silence as a share of Dask's timeout for connecting: steps before and after, such as closing the client,
take time as well."""


class SilenceError(OSError):
    """A scheduler left a question unanswered."""


def patience() -> float:
    """Seconds of tolerated silence, by Dask's setting ``distributed.comm.timeouts.connect``.

    A scheduler that is only busy answers between two operations.  One whose single operation takes longer is lost to
    its workers as well, which cannot connect to it within that setting.
    """
    return SHARE * float(parse_timedelta(dask.config.get("distributed.comm.timeouts.connect")))


class Pulse:
    """Tells whether the scheduler of a client answers, while a caller waits.

    Parameters
    ----------
    client
        Client of the scheduler that is asked.
    limit
        Seconds of tolerated silence.
    """

    def __init__(self, client: Client, limit: float) -> None:
        self._client, self._limit = client, limit
        self._question: asyncio.Future[bool] | None = None
        self._silence = self._looked = 0.0

    async def wait_for(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await ``function(*args)``, on the client's event loop, for as long as the scheduler answers.

        Silence counts on from one call to the next.

        Raises
        ------
        SilenceError
            The scheduler was silent for too long; the call is cancelled.
        """
        work = asyncio.ensure_future(function(*args))
        self._looked = time.monotonic()
        try:
            while not work.done():
                tasks: set[asyncio.Future[Any]] = {work} if self._question is None else {work, self._question}
                await asyncio.wait(tasks, timeout=STEP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if not work.done() and self._heard_nothing() > self._limit:
                    address = getattr(self._client.scheduler, "address", "a closed connection")
                    raise SilenceError(f"the scheduler at {address} has not answered for {self._limit:.0f} s")
            return work.result()
        finally:
            if not work.done():
                work.cancel()

    def _heard_nothing(self) -> float:
        """Return the seconds in which this process listened and heard nothing; ask again if that is due."""
        now = time.monotonic()
        self._silence += min(now - self._looked, 2.0 * STEP_SECONDS)
        self._looked = now
        if self._question is None and self._silence >= ASK_SECONDS:
            self._question = asyncio.ensure_future(_answers(self._client))
        elif self._question is not None and self._question.done():
            if not self._question.cancelled() and self._question.result():
                self._silence = 0.0
            self._question = None
        return self._silence

    def stop(self) -> None:
        """Stop asking; to be called on the client's event loop."""
        if self._question is not None:
            self._question.cancel()
            self._question = None


async def _answers(client: Client) -> bool:
    """Whether a scheduler answers; it may take its time."""
    try:
        await client.scheduler.echo(data=0)
    except (OSError, AttributeError):  # a closed client has no scheduler
        return False
    return True


async def within(seconds: float, work: Awaitable[T]) -> tuple[bool, T | None]:
    """Whether ``work`` ended within some seconds, and its result."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        return (True, task.result()) if task.done() else (False, None)
    finally:
        if not task.done():
            task.cancel()
