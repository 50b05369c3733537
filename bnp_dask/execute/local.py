"""Dask settings for workers, and a cluster of workers on this machine."""

from __future__ import annotations

import ast
import logging
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Any, Literal

import dask
from dask.system import CPU_COUNT
from dask.utils import format_bytes, parse_bytes
from distributed import Client, LocalCluster
from distributed.system import MEMORY_LIMIT

from bnp_dask.errors import ExecutionError, SettingError, answering
from bnp_dask.execute.base import logger
from bnp_dask.inputs import shown, whole_number

LEAN = {
    "distributed.worker.profile.cycle": "10s",
    "distributed.worker.profile.interval": "100ms",
    "distributed.admin.low-level-log-length": 10,
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.tick.interval": "200ms",
}
"""By default, a worker keeps a profile of its threads for every second of the last 1,000, for the dashboard's page of
profiles: some 50 kB each while data are read, so that it grows for a quarter of an hour.  With these settings it keeps
one for every 10 seconds, 10 of them.

``low-level-log-length`` also sets how many sent messages below 1 MB a scheduler remembers for each worker, with the
batches and parameters of their tasks: 1,000 by default.  They are most of the growth of a process that trains and also
runs the scheduler.

By default, every process of a cluster also samples its threads a hundred times a second, its event loop fifty times and
the machine twice, which takes 4 % of a core when idle; with these settings 0.7 %.
"""

FAITHFUL = {"distributed.deploy.lost-worker-timeout": "365 days"}
"""By default, a cluster that starts its own workers checks 15 seconds after a worker's death whether it is back, and
removes it for good if not: a worker that dies twice, 15 seconds apart, is never started again, and in the end no worker
is left.
"""

PROMPT = {"distributed.scheduler.work-stealing-interval": "50ms"}
"""By default, a scheduler checks once a second whether idle workers could take over tasks that wait for busy ones.
If batches take about a second, half a second passes at the end of a lap before an idle worker helps.
"""

SWIFT = {
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 2**27,
    "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 2**25,
}
"""By default, workers return all freed memory to the system, and glibc then maps every array above 128 kB anew, page by
page: a quarter to a third of the CPU time of batches of 1 MB.  With these settings a worker may keep 128 MB.
"""

ROOMY = 10**9
"""Worker memory in bytes above which 128 MB of kept memory do not matter."""

STARTS = 3
"""Number of attempts to start a cluster: a worker may be killed meanwhile, for example while memory is short."""

GUARD = 'if __name__ == "__main__":'
"""Guard of the code that a script runs itself, and that processes which import it skip."""

WHO = frozenset({"__name__", "current_process", "parent_process"})
"""Names in conditions that distinguish the main process from processes that import the script."""

LEAST = 22 * 10**7
"""Bytes that a worker takes before it reads anything (measured: 218 MB); Dask ends a worker above its limit."""

ANY_PORT = "127.0.0.1:0"
"""Address of a server on any free port."""

PER_CORE = 16
"""Largest number of processes for each core: beyond it, a typing error is more likely than intent."""

DASHBOARD = "127.0.0.1:8787"
"""Preferred address of the dashboard of a cluster that is started here; only this machine can see it."""


@answering
def worker_settings(memory_limit: str | float | None = "auto") -> dict[str, Any]:
    """Dask settings for workers that compute local steps, to be in force when they start and while they run.

    They must be set before a process starts its first cluster, as Dask keeps the settings of the first workers: call
    ``dask.config.set(worker_settings())`` before a cluster is made.  :func:`local_client` and ``bnp-dask train`` do
    so for workers that they start.

    Parameters
    ----------
    memory_limit
        Limit of each worker: bytes, text such as "4GB", "auto", or None or 0 for no limit.  Workers with less than 1 GB
        keep no freed memory.

    Returns
    -------
    dict
        Settings by their names in Dask's configuration.

    Raises
    ------
    SettingError
        ``memory_limit`` is not a size.
    """
    limit = _bytes_of(memory_limit)
    roomy = limit == "auto" or not limit or limit >= ROOMY
    return {**LEAN, **FAITHFUL, **PROMPT, **(SWIFT if roomy else {})}


def _bytes_of(memory_limit: str | float | None) -> int | Literal["auto"]:
    """A limit in bytes, 0 for no limit; SettingError if it is not a size."""
    if isinstance(memory_limit, str) and memory_limit == "auto":
        return "auto"
    try:
        # Dask reads a unit alone as one of that unit
        has_number = not isinstance(memory_limit, str) or any(c.isdigit() for c in memory_limit)
        limit = -1 if not has_number else 0 if memory_limit is None else int(parse_bytes(memory_limit))
    except (AttributeError, OverflowError, TypeError, ValueError):
        limit = -1
    if limit < 0 or isinstance(memory_limit, bool):
        raise SettingError(
            f"memory_limit={shown(memory_limit)}: needs a size, such as '4GB' or '1.5GiB', 'auto' for a share of what "
            "this machine has, or 0 for no limit"
        )
    return limit


def _limit_of_each(memory_limit: str | float | None) -> int | Literal["auto"]:
    """A limit with which workers can run, 0 for no limit; SettingError if it is not a size or too small."""
    limit = _bytes_of(memory_limit)
    if limit != "auto" and 0 < limit < LEAST:
        raise SettingError(
            f"memory_limit={shown(memory_limit)}: a worker takes {format_bytes(LEAST)} before it reads anything; needs "
            "more, such as '1GB', or 0 for no limit"
        )
    return limit


@contextmanager
@answering
def local_client(
    workers: int, memory_limit: str | float | None = "auto", dashboard: str | None = DASHBOARD
) -> Iterator[Client]:
    """Client of a cluster of processes on this machine, which are stopped at the end of a ``with`` block.

    ``with bnp.local_client(2) as client: bnp.train(model, data, client=client)``; in a script below
    ``if __name__ == "__main__":``, because each process imports the script.

    The scheduler runs in this process, as with ``Client(LocalCluster())``.  Here the client also talks to it directly
    instead of through a socket, which saves a sixth of the CPU time of the two.  It is not set as Dask's default
    client: pass it as ``client=``.

    Parameters
    ----------
    workers
        Processes, of one thread each; at most 16 for each core of this machine.
    memory_limit
        Limit of each worker: bytes (220 MB at least), text such as "4GB", "auto" for an even share of the machine's
        memory, or None or 0 for no limit.  A limit above the machine's memory is reduced to it.
    dashboard
        Address of Dask's dashboard; another port is taken if that one is in use.  None for no dashboard.

    Raises
    ------
    SettingError
        ``workers`` is not a whole number of at least 1, or far above the number of cores; ``memory_limit`` is not a
        size, or less than a worker needs; or a script calls this without ``if __name__ == "__main__":``.
    ExecutionError
        The processes cannot be started.
    """
    whole_number("workers", workers, 1, what="a whole number of processes")
    if workers > PER_CORE * CPU_COUNT:
        raise SettingError(
            f"workers={workers}: this machine has {CPU_COUNT} cores; needs at most {PER_CORE * CPU_COUNT} processes"
        )
    limit = _limit_of_each(memory_limit)
    with ExitStack() as stack:
        stack.enter_context(_environment_given_back())
        stack.enter_context(dask.config.set(worker_settings(limit)))
        cluster = stack.enter_context(_processes(workers, limit, dashboard))
        yield stack.enter_context(beside(cluster))


def _processes(workers: int, limit: int | Literal["auto"], dashboard: str | None) -> LocalCluster:
    """Start a cluster.

    The log of its processes, which would go to this one's standard error, is silenced: errors of tasks are raised only
    as their results are requested.
    """
    require_main_guard("local_client()")
    with _deaf_to_interrupts():
        for left in range(STARTS - 1, -1, -1):
            try:
                return LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    host="127.0.0.1",
                    memory_limit=min(limit, MEMORY_LIMIT) if limit != "auto" else limit,
                    dashboard_address=dashboard,
                    scheduler_kwargs={"dashboard_address": _free_address(dashboard)},
                    silence_logs=logging.CRITICAL,
                )
            except (OSError, RuntimeError) as error:
                reason = error if error.__cause__ is None else error.__cause__
                failure = f"cannot start {workers} workers on this machine: {error} ({reason})"
                if left == 0:
                    raise ExecutionError(f"{failure}. {STARTS} tries; a script needs {GUARD}") from error
                logger.warning("%s; trying again", failure)
    raise AssertionError("the last try returns or raises")


def require_main_guard(caller: str) -> None:
    """Raise SettingError if a new process would run this script once more, and start others in turn.

    A new process imports the script for the functions that it is to run, and skips only code below the guard.
    ``caller`` names the function that would start processes, for the message.
    """
    if dask.config.get("distributed.worker.multiprocessing-method") == "fork":
        return
    is_inside = getattr(multiprocessing.current_process(), "_inheriting", False)
    line = _unguarded_line()
    if is_inside or line is not None:
        where = "" if line is None else f", line {line}"
        raise SettingError(
            f"{caller} starts processes, each of which imports this script first"
            f" ({getattr(sys.modules['__main__'], '__file__', '-')}{where}) and would start others in turn; put the "
            f"call, and all code that needs it, below {GUARD}"
        )


def _unguarded_line() -> int | None:
    """Line of the script that is being run, if its statement is not below a guard; else None."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None or getattr(main, "__spec__", None) is not None:  # a prompt, a notebook, python -m
        return None
    frame = sys._getframe()
    while frame is not None and (frame.f_globals is not vars(main) or frame.f_code.co_name != "<module>"):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or not os.path.exists(path) or not os.path.samefile(frame.f_code.co_filename, path):
        return None
    with open(path, "rb") as file:
        tree = ast.parse(file.read())
    line = frame.f_lineno
    guards = [node for node in tree.body if isinstance(node, ast.If) and _words(node.test) & WHO]
    return None if any(node.lineno <= line <= (node.end_lineno or 0) for node in guards) else line


def _words(expression: ast.expr) -> set[str]:
    """Names and attributes in an expression."""
    found = list(ast.walk(expression))
    names = {node.id for node in found if isinstance(node, ast.Name)}
    return names | {node.attr for node in found if isinstance(node, ast.Attribute)}


def _free_address(wanted: str | None) -> str:
    """Address of a dashboard, with another port if that one is in use: Dask would also choose another, and warn.

    Without a dashboard the scheduler still serves its state, at port 8787 unless another is given.
    """
    if wanted is None:
        return ANY_PORT
    host, colon, port = wanted.rpartition(":")
    if not colon or not port.isdecimal():
        return wanted
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, os.name == "posix")
        try:
            probe.bind((host, int(port)))
        except (OSError, OverflowError):
            return f"{host}:0"
    return wanted


def beside(cluster: LocalCluster) -> Client:
    """Client in the process of a cluster's scheduler, to which it talks without a socket.

    It fetches results from workers: by a scheduler of the same process, Dask cuts results above 64 MiB into pieces and
    does not join them again ("pickle data was truncated").
    """
    address = cluster.sync(_listen_here, cluster)
    client = Client(address, loop=cluster.loop, set_as_default=False, direct_to_workers=True)
    client.cluster = cluster  # as in Client(cluster): for its links, and for waiting for workers or adding some
    return client


async def _listen_here(cluster: LocalCluster) -> str:
    """Make the scheduler also listen to this process, besides its workers; return its address there."""
    await cluster.scheduler.listen("inproc://")
    address: str = cluster.scheduler.listeners[-1].contact_address
    return address


@contextmanager
def _environment_given_back() -> Iterator[None]:
    """Restore at the end the environment variables that Dask sets in this process for workers to inherit.

    Environment variables take precedence over settings, so they would otherwise apply to all later clusters.
    """
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Make processes that are started inside, also later by threads started inside, ignore Ctrl-C.

    A terminal sends it to all processes of a program.  Workers must live until this process has saved their results.
    """
    if os.name != "posix":
        yield
        return
    # multiprocessing starts the tracker together with the first process, and unblocks signals afterwards
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
