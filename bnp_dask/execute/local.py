"""How workers are set, and a cluster of them on this machine."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Any

import dask
from dask.utils import parse_bytes
from distributed import Client, LocalCluster

from bnp_dask.errors import SettingError

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
    """
    roomy = memory_limit in ("auto", None, 0) or parse_bytes(memory_limit) >= ROOMY
    return {**LEAN, **FAITHFUL, **PROMPT, **(SWIFT if roomy else {})}


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
        Processes, of one thread each.
    memory_limit
        Of each: bytes, text such as "4GB", "auto" for an even share of the machine's, or None or 0 for none.
    dashboard
        Address of Dask's dashboard; another port is taken where that is in use.  None for no dashboard.

    Raises
    ------
    SettingError
        ``workers`` is not a whole number, at least 1.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise SettingError(f"workers={workers!r}: needs a whole number of processes, at least 1")
    with ExitStack() as stack:
        stack.enter_context(_environment_given_back())
        stack.enter_context(dask.config.set(worker_settings(memory_limit)))
        with warnings.catch_warnings(), _deaf_to_interrupts():
            warnings.filterwarnings("ignore", message="Port .* is already in use")
            cluster = stack.enter_context(
                LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    host="127.0.0.1",
                    memory_limit=memory_limit,
                    dashboard_address=dashboard,
                    silence_logs=logging.ERROR,
                )
            )
        yield stack.enter_context(beside(cluster))


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
