"""Whether a scheduler answers, found out before a client is made.

A client that cannot connect goes on trying in threads of its own, and takes another half a minute to give up when it is
closed.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

from distributed import Client, Security
from distributed.comm import Comm, connect, parse_address, parse_host_port

from bnp_dask.errors import ExecutionError, SettingError
from bnp_dask.inputs.lines import SHOWN, shortened
from bnp_dask.inputs.settings import shown

LISTEN_SECONDS = 5.0
"""How long it is tried again and again to connect: a scheduler may be about to start."""

ANSWER_SECONDS = 10.0
"""How long one that listens may take to say who it is: it may be busy."""

PAUSE_SECONDS = 0.1
"""Between two tries."""


def require_scheduler(
    address: str, security: Security | None = None, listen: float = LISTEN_SECONDS, answer: float = ANSWER_SECONDS
) -> None:
    """Ask who is at an address.

    Raises
    ------
    SettingError
        This is no address, or that of something else.
    ExecutionError
        Nobody answers; says what was tried, for how long, and what came of it.
    """
    place = shortened(address, SHOWN) or "''"
    try:
        scheme, host = parse_address(address)
        if scheme in ("tcp", "tls"):
            name, port = parse_host_port(host)
            _wait_for_port(name, port, listen)
        found = asyncio.run(asyncio.wait_for(_identity(address, security or Security()), answer))
    except Exception as error:  # no address, a name that nobody knows, something else that listens there
        kind = SettingError if isinstance(error, ValueError) else ExecutionError
        raise kind(
            f"cannot reach a scheduler at {place}: {_reason(error, listen, answer)}. Start one with "
            "'dask scheduler', and give the address that it tells, such as tcp://host:8786"
        ) from error
    server = found.get("type") if isinstance(found, dict) else None
    if server != "Scheduler":
        raise SettingError(f"{place} is the address of a {server or 'stranger'}; needs that of a Dask scheduler")


def client_of(address: str) -> Client:
    """A client of the scheduler at an address, nobody's default.

    Raises
    ------
    SettingError, ExecutionError
        As :func:`require_scheduler` says.
    """
    try:
        require_scheduler(address)
    except (SettingError, ExecutionError) as error:
        raise type(error)(f"client={shown(address)}: {error}") from None
    return Client(address, set_as_default=False)


def _wait_for_port(host: str, port: int, seconds: float) -> None:
    """Return when somebody listens; the last refusal is raised when nobody does in time."""
    if not 0 < port < 2**16:
        raise ValueError(f"there is no port {port}")
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=max(deadline - time.monotonic(), PAUSE_SECONDS)).close()
            return
        except OSError:
            if time.monotonic() + PAUSE_SECONDS > deadline:
                raise
        time.sleep(PAUSE_SECONDS)


async def _identity(address: str, security: Security) -> Any:
    """Answer of one of Dask's servers to who it is."""
    comm: Comm = await connect(address, **security.get_connection_args("client"))
    try:
        await comm.write({"op": "identity", "reply": True})
        return await comm.read()
    finally:
        comm.abort()


def _reason(error: BaseException, listen: float, answer: float) -> str:
    """Why a connection failed, in the words of its first cause."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    if isinstance(first, asyncio.CancelledError | MemoryError):  # others' greetings, read as Dask's, tell absurd sizes
        return f"what listens there does not answer as one (waited up to {answer:g} s)"
    words = getattr(first, "strerror", None) or str(first) or type(first).__name__
    return f"{words} (tried for {listen:g} s)" if first is error and isinstance(error, OSError) else words
