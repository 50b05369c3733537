"""The executor behind whatever a caller names, and whether a scheduler answers, found out before a client is made.

Dask is imported where it is needed: a run in one process loads none of it.

A client that cannot connect goes on trying in threads of its own, and takes another half a minute to give up when it is
closed.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from bnp_dask.errors import ExecutionError, SettingError
from bnp_dask.execute.base import AGAIN, Executor, plain_interrupts
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.inputs.lines import SHOWN, shortened
from bnp_dask.inputs.protocols import require
from bnp_dask.inputs.settings import shown

if TYPE_CHECKING:
    from distributed import Client, Security
    from distributed.comm import Comm

LISTEN_SECONDS = 5.0
"""How long it is tried again and again to connect: a scheduler may be about to start."""

ANSWER_SECONDS = 10.0
"""How long one that listens may take to say who it is: it may be busy."""

PAUSE_SECONDS = 0.1
"""Between two tries."""


@contextmanager
def open_executor(client: Client | Executor | str | None, advice: str = AGAIN) -> Iterator[Executor]:
    """The executor behind ``client``: a client, the address of a scheduler, an executor, or None for Dask's current
    client, and this thread where there is none or inside of a Dask task.  A task that names a client gives up its place
    on its worker while the executor is open.

    What was made here is closed at the end: an executor, and the client of an address.  ``advice`` is for the error of
    a lost cluster.
    """
    with ExitStack() as stack:
        found: Any = client
        if isinstance(found, str) or "distributed" in sys.modules:  # there is no client where nobody imported it
            found = _of_dask(found, advice, stack)
        elif found is None:
            found = SerialExecutor()
        require("client", found, Executor, 'a distributed.Client, "tcp://10.0.0.1:8786", an executor, or None')
        with plain_interrupts():  # also those of compiled code that this process calls itself
            yield found


def _of_dask(client: Any, advice: str, stack: ExitStack) -> Any:
    """The executor on a cluster, which the stack closes; anything but clients and addresses as it is."""
    from distributed import Client

    from bnp_dask.execute.dask import DaskExecutor, current_client, giving_way
    from bnp_dask.execute.lost import closed_in_time

    found = current_client() if client is None else client
    if isinstance(found, str):
        found = stack.enter_context(closed_in_time(client_of(found)))
    if isinstance(found, Client):
        stack.enter_context(giving_way())
        found = DaskExecutor(found, uuid.uuid4().hex[:6], advice=advice)
        stack.callback(found.close)
    return found


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
    from distributed import Security
    from distributed.comm import parse_address, parse_host_port

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
    from distributed import Client

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
    from distributed.comm import connect

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
