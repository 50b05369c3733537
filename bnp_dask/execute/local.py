"""How workers are set, and a cluster of them on this machine."""

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

from bnp_dask.errors import ExecutionError, SettingError
from bnp_dask.execute.base import logger
from bnp_dask.inputs.settings import shown, whole_number

LEAN = {
    "distributed.worker.profile.cycle": "10s",
    "distributed.worker.profile.interval": "100ms",
    "distributed.admin.low-level-log-length": 10,
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.tick.interval": "200ms",
}
"""A worker keeps a tree of what its threads were doing for every second of the last 1,000, for the dashboard's page of
profiles: some 50 kB each while data are read, so that it grows for a quarter of an hour.  With these it keeps one for
every 10 seconds, 10 of them.

The same setting says how many messages below 1 MB a scheduler remembers of those that it has sent to each worker, with
the batches and parameters that tasks take: 1,000 as it comes, which is most of what grows in a process that trains and
holds the scheduler too.

As they come, every process of a cluster also looks a hundred times a second at its threads, fifty times at its event
loop and twice at the machine, which takes 4 % of a core where nothing else is done; with these 0.7 %.
"""

FAITHFUL = {"distributed.deploy.lost-worker-timeout": "365 days"}
"""As it comes, a cluster that starts its own workers looks 15 seconds after a worker's death whether the worker is
back, and strikes it off for good if not: one that dies twice, 15 seconds apart, is never started again, and in the end
nobody is left.
"""

PROMPT = {"distributed.scheduler.work-stealing-interval": "50ms"}
"""As it comes, a scheduler looks once a second whether idle workers could take over tasks that wait for busy ones.
Where batches take about a second, half of one goes by at the end of a lap before somebody helps.
"""

SWIFT = {
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 2**27,
    "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 2**25,
}
"""As they come, workers give back to the system whatever is freed, and glibc then maps every array above 128 kB anew,
page by page: a quarter to a third of the CPU time of batches of 1 MB.  With these a worker may keep 128 MB for itself.
"""

ROOMY = 10**9
"""Bytes of a worker's memory from which on those 128 MB do not matter."""

STARTS = 3
"""Times that a cluster is tried to start: a worker may be killed meanwhile, as where memory is short for a moment."""

GUARD = 'if __name__ == "__main__":'
"""Line below which a script keeps what it alone does, and not a process that imports it."""

WHO = frozenset({"__name__", "current_process", "parent_process"})
"""Names in conditions that tell who runs a script."""

LEAST = 22 * 10**7
"""Bytes that a worker takes before it reads anything (measured: 218 MB); Dask ends one that takes more than it may."""

ANY_PORT = "127.0.0.1:0"
"""Address of a server that nobody looks for."""

PER_CORE = 16
"""Processes that may be started here for each core: beyond it, a slip of the finger is likelier than a purpose."""

DASHBOARD = "127.0.0.1:8787"
"""Where the dashboard of a cluster that is started here is tried first; only this machine can see it."""


def worker_settings(memory_limit: str | float | None = "auto") -> dict[str, Any]:
    """Settings of Dask for workers that compute local steps, to be in force when they start and while they run.

    They must be set before a process starts its first cluster: Dask keeps what it told the first workers.
    ``dask.config.set(worker_settings())`` before a cluster is made; :func:`local_client` and ``bnp-dask train`` do it
    for workers that they start.

    Parameters
    ----------
    memory_limit
        Of each worker: bytes, text such as "4GB", "auto", or None or 0 for none.  Workers with less than 1 GB keep no
        freed memory for themselves.

    Raises
    ------
    SettingError
        ``memory_limit`` is no size.
    """
    limit = _bytes_of(memory_limit)
    roomy = limit == "auto" or not limit or limit >= ROOMY
    return {**LEAN, **FAITHFUL, **PROMPT, **(SWIFT if roomy else {})}


def _bytes_of(memory_limit: str | float | None) -> int | Literal["auto"]:
    """A limit in bytes, 0 for none; SettingError when it is no size."""
    if isinstance(memory_limit, str) and memory_limit == "auto":
        return "auto"
    try:
        # Dask takes a unit alone for one of it
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
    """A limit that workers can live with, 0 for none; SettingError when it is none."""
    limit = _bytes_of(memory_limit)
    if limit != "auto" and 0 < limit < LEAST:
        raise SettingError(
            f"memory_limit={shown(memory_limit)}: a worker takes {format_bytes(LEAST)} before it reads anything; needs "
            "more, such as '1GB', or 0 for no limit"
        )
    return limit


@contextmanager
def local_client(
    workers: int, memory_limit: str | float | None = "auto", dashboard: str | None = DASHBOARD
) -> Iterator[Client]:
    """A client of processes that are started on this machine, and stopped at the end.

    The scheduler runs in this process, as with ``Client(LocalCluster())``.  Here the client also speaks to it directly
    instead of through a socket, which takes a sixth off the CPU time that the two need beside workers.  It is nobody's
    default: hand it on as ``client=``.

    Parameters
    ----------
    workers
        Processes, of one thread each; at most 16 for each core of this machine.
    memory_limit
        Of each: bytes (220 MB at least), text such as "4GB", "auto" for an even share of the machine's, or None or 0
        for none.  What the machine does not have is no limit.
    dashboard
        Address of Dask's dashboard; another port is taken where that is in use.  None for no dashboard.

    Raises
    ------
    SettingError
        ``workers`` is not a whole number, at least 1, or far more than this machine has cores; ``memory_limit`` is no
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

    Nobody reads the log of its processes, which goes to this one's standard error: errors of tasks are told where their
    results are asked for, and nowhere else.
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
    """SettingError where a process that is started here would run this script once more, and start others in turn.

    A new process imports the script, for functions of it that it is to run; only what stands below the guard is left
    out.  ``caller`` is what would start processes, for the message.
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
            f"call, and what needs it, below {GUARD}"
        )


def _unguarded_line() -> int | None:
    """Line of the script that is being run, if its statement stands below no question who runs it; else None."""
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
    """The address of a dashboard, with another port where that is in use: Dask would take one too, and warn.

    Without a dashboard the scheduler serves its state all the same, at port 8787 if it is not told another.
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
    """A client in the process of a cluster's scheduler, to which it speaks without a socket."""
    client = Client(cluster.sync(_listen_here, cluster), loop=cluster.loop, set_as_default=False)
    client.cluster = cluster  # as of Client(cluster): its links, and what waits for workers or asks for more
    return client


async def _listen_here(cluster: LocalCluster) -> str:
    """Let the scheduler, which goes on listening to workers, listen to this process too; its address there."""
    await cluster.scheduler.listen("inproc://")
    address: str = cluster.scheduler.listeners[-1].contact_address
    return address


@contextmanager
def _environment_given_back() -> Iterator[None]:
    """Variables that Dask sets in this process, for workers to inherit, are as before at the end.

    What is set in a process wins over settings, so that they would otherwise hold for all its later clusters.
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
    """Processes that are started inside, also later by threads that are, do not hear Ctrl-C.

    A terminal sends it to all processes of a program.  Workers must live until this one has saved what they found.
    """
    if os.name != "posix":
        yield
        return
    # multiprocessing starts this one together with the first process, and hears all signals again afterwards
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
