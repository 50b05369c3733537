"""Clients whose scheduler is gone: closed in time, and without Dask's own log of an error already raised."""

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
"""Errors of a client that was closed while it tried to reconnect: its connection pool is closed during the attempt."""

CLOSE_SECONDS = 5.0
"""Longest time that closing a client may take: its last messages may have no receiver."""

LOGGERS = ("distributed.client", "distributed.core", "distributed.batched", "tornado.application", "asyncio")
"""Loggers in which Dask reports, at length, that it cannot connect."""


@contextmanager
def closed_in_time(client: Client) -> Iterator[Client]:
    """Yield a client and close it at the end, which neither takes long nor hides an error."""
    try:
        yield client
    finally:
        with suppress(*LEFT):
            client.close(timeout=CLOSE_SECONDS)


def told(client: Client) -> None:
    """Suppress Dask's log about a client that has lost its scheduler, for as long as the client exists.

    Dask would log for half a minute, or while the client is closed; the raised error says the same in one line.
    """
    about = _Told(client)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.addFilter(about)
        weakref.finalize(client, logger.removeFilter, about)


class _Told(logging.Filter):
    """Suppresses tracebacks of broken connections while a client has no connection."""

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
    """Stop a client from keeping sent messages.

    For Dask's developers it keeps the last 1,000 messages below 1 MB, among them tasks with their arguments.  The
    attribute is internal to Dask; if it is missing, that memory is not saved.
    """
    try:
        client.scheduler_comm.recent_message_log = deque(maxlen=0)
    except AttributeError as error:
        logger.debug("cannot see the tasks that this client remembers: %r", error)
