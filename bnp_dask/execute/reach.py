"""Opens the executor for a caller's ``client`` argument, and checks that a scheduler answers before a client is made.

Dask is imported only when it is needed: a run in one process loads none of it.

A client that cannot connect keeps trying in threads of its own, and takes another half a minute to give up when it is
closed: hence the check.
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
from bnp_dask.inputs import SHOWN, require, shortened, shown

if TYPE_CHECKING:
    from distributed import Client, Security
    from distributed.comm import Comm

LISTEN_SECONDS = 5.0
"""Time for repeated attempts to connect: a scheduler may be about to start."""

ANSWER_SECONDS = 10.0
"""Time for a listening server to identify itself: it may be busy."""

PAUSE_SECONDS = 0.1
"""Pause between two tries."""


@contextmanager
def open_executor(client: Client | Executor | str | None, advice: str = AGAIN) -> Iterator[Executor]:
    """Executor for ``client``: a client, a cluster, the address of a scheduler, an executor, or None for Dask's current
    client (a SerialExecutor without one, or inside a Dask task).  A task that names a client gives up its place on its
    worker while the executor is open.

    Objects made here are closed at the end: an executor, and the client of an address or cluster.  ``advice`` is for
    the error of a lost cluster.
    """
    with ExitStack() as stack:
        found: Any = client
        if isinstance(found, str) or "distributed" in sys.modules:  # without the import there is no client
            found = _of_dask(found, advice, stack)
        elif found is None:
            found = SerialExecutor()
        if isinstance(found, int) and not isinstance(found, bool):
            raise SettingError(
                f"client={found!r}: needs one such as a distributed.Client; bnp_dask.local_client({max(found, 1)}) "
                "starts processes of this machine"
            )
        require("client", found, Executor, 'a distributed.Client, "tcp://10.0.0.1:8786", an executor, or None')
        with plain_interrupts():  # also in compiled code that this process calls itself
            yield found


def _of_dask(client: Any, advice: str, stack: ExitStack) -> Any:
    """Executor on a cluster, which the stack closes; other values than clients and addresses are returned unchanged."""
    from distributed import Client
    from distributed.deploy import Cluster

    from bnp_dask.execute.dask import DaskExecutor, closed_in_time, current_client, giving_way

    found = current_client() if client is None else client
    if isinstance(found, str):
        found = stack.enter_context(closed_in_time(client_of(found)))
    elif isinstance(found, Cluster):
        found = stack.enter_context(closed_in_time(Client(found, set_as_default=False)))
    if isinstance(found, Client):
        stack.enter_context(giving_way())
        found = DaskExecutor(found, uuid.uuid4().hex[:6], advice=advice)
        stack.callback(found.close)
    return found


def require_scheduler(
    address: str, security: Security | None = None, listen: float = LISTEN_SECONDS, answer: float = ANSWER_SECONDS
) -> None:
    """Check that a scheduler answers at an address.

    Raises
    ------
    SettingError
        ``address`` is not an address, or the address of something else.
    ExecutionError
        No answer; the message gives the attempts, their duration and their outcome.
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
    except Exception as error:  # no address, an unknown name, something else that listens there
        kind = SettingError if isinstance(error, ValueError) else ExecutionError
        raise kind(
            f"cannot reach a scheduler at {place}: {_reason(error, listen, answer)}. Start one with "
            "'dask scheduler', and give the address that it tells, such as tcp://host:8786"
            f"{'' if ':' in address else '; processes of this machine are bnp_dask.local_client(2), this one is None'}"
        ) from error
    server = found.get("type") if isinstance(found, dict) else None
    if server != "Scheduler":
        raise SettingError(f"{place} is the address of a {server or 'stranger'}; needs the address of a Dask scheduler")


def client_of(address: str) -> Client:
    """Client of the scheduler at an address, not set as Dask's default.

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
    """Return once a server listens; raise the last refusal if none does in time."""
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
    """Answer of a Dask server to the question for its identity."""
    from distributed.comm import connect

    comm: Comm = await connect(address, **security.get_connection_args("client"))
    try:
        await comm.write({"op": "identity", "reply": True})
        return await comm.read()
    finally:
        comm.abort()


def _reason(error: BaseException, listen: float, answer: float) -> str:
    """Reason why a connection failed, from the text of its first cause."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    if isinstance(first, asyncio.CancelledError | MemoryError):  # other greetings, read as Dask's, give absurd sizes
        return f"the server there does not answer as one (waited up to {answer:g} s)"
    words = getattr(first, "strerror", None) or str(first) or type(first).__name__
    return f"{words} (tried for {listen:g} s)" if first is error and isinstance(error, OSError) else words
