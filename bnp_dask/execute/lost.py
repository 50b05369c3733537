"""Clients whose scheduler is gone: closed in time, and without Dask's own lines about what has been told."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress

from distributed import Client
from distributed.client import ClosedClientError

from bnp_dask.execute.base import logger

GONE = (OSError, ClosedClientError, CancelledError, asyncio.CancelledError)
"""Errors of a connection that broke."""

LEFT = (*GONE, RuntimeError)
"""Errors of a client that was closed while it tried to connect again: its pool of connections is closed under it."""

CLOSE_SECONDS = 5.0
"""Longest time that closing a client may take: what it still has to send may find nobody who takes it."""

LOGGERS = ("distributed.client", "distributed.core", "distributed.batched", "tornado.application", "asyncio")
"""Loggers by which Dask tells, at length, that it cannot connect."""


@contextmanager
def closed_in_time(client: Client) -> Iterator[Client]:
    """Inside, a client; it is closed at the end, which neither takes long nor hides an error."""
    try:
        yield client
    finally:
        with suppress(*LEFT):
            client.close(timeout=CLOSE_SECONDS)


def told(client: Client) -> None:
    """From now on leave out what Dask logs of a client that has lost its scheduler, for as long as the client is there.

    It would go on for half a minute, or while the client is closed, and the error that was raised says it in one line.
    """
    about = _Told(client)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.addFilter(about)
        weakref.finalize(client, logger.removeFilter, about)


class _Told(logging.Filter):
    """Leaves out tracebacks of broken connections while a client has none."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = weakref.ref(client)

    def filter(self, record: logging.LogRecord) -> bool:
        client = self._client()
        if client is None or client.status == "running":
            return True
        error = record.exc_info[1] if record.exc_info else None
        return not (isinstance(error, LEFT) or record.getMessage().startswith("Failed to reconnect"))


def remember_no_messages(client: Client) -> None:
    """Let a client forget what it has sent.

    For those who develop Dask it keeps the last 1,000 messages below 1 MB, among them tasks with what they take.  Dask
    does not promise that a client looks like this inside; where it does not, that memory is not saved.
    """
    try:
        client.scheduler_comm.recent_message_log = deque(maxlen=0)
    except AttributeError as error:
        logger.debug("cannot see what this client remembers: %r", error)
