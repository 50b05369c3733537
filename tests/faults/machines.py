"""Clusters of real processes, each of which may be killed, stopped, or cut off in a network namespace of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from distributed import Client

from bnp_dask.execute.dask import closed_in_time
from tests.faults.parts import BOUND, ROOT, until

SCHEDULER = """
import asyncio, sys
import dask
from distributed import Scheduler
async def main():
    dask.config.set({"distributed.scheduler.worker-ttl": "60s"})
    async with Scheduler(host=sys.argv[2], port=0, dashboard=False, scheduler_file=sys.argv[1]) as scheduler:
        await scheduler.finished()
asyncio.run(main())
"""

NANNY = """
import asyncio, sys
import dask
from distributed import Nanny
from distributed.utils import get_mp_context
from tests.warm import METHOD, MODULES
from bnp_dask.execute.local import worker_settings
address, host, folder = sys.argv[1:]
async def main():
    dask.config.set(worker_settings(None) | METHOD)
    get_mp_context().set_forkserver_preload(MODULES)
    async with Nanny(address, host=host, nthreads=1, memory_limit=0, local_directory=folder, name=folder) as nanny:
        await nanny.finished()
if __name__ == "__main__":
    asyncio.run(main())
"""

TOGETHER = """
import asyncio, sys
from distributed import Scheduler, Worker
async def main():
    host, more = sys.argv[3], {"nthreads": 1, "memory_limit": 0, "host": sys.argv[3]}
    async with Scheduler(host=host, port=int(sys.argv[2]), dashboard=False, scheduler_file=sys.argv[1]) as scheduler:
        async with Worker(scheduler.address, **more), Worker(scheduler.address, **more):
            await scheduler.finished()
asyncio.run(main())
"""

PREFIX = "bnp"
"""How the names of network namespaces begin that are made here."""


class OneProcess:
    """A scheduler with two workers in one process, which can be killed and started again at the same address."""

    def __init__(self, folder: Path, network: Network | None = None, name: str = "cluster") -> None:
        self.file = folder / "scheduler.json"
        self.network, self.name = network, name
        self.process: subprocess.Popen | None = None
        self.port = 0

    @contextmanager
    def running(self) -> Iterator[OneProcess]:
        """Started, and killed at the end."""
        self.start()
        try:
            yield self
        finally:
            self.kill()

    def start(self) -> None:
        """At the address of the one before, if there was one."""
        self.file.unlink(missing_ok=True)
        host = "127.0.0.1" if self.network is None else self.network.host(self.name)
        command = ["-c", TOGETHER, str(self.file), str(self.port), host]
        self.process = start(command, self.network, self.name, stderr=subprocess.DEVNULL)
        until(lambda: self.file.exists() and self.file.read_text().strip().endswith("}"), "the scheduler")

    @property
    def address(self) -> str:
        """Of the scheduler."""
        return str(json.loads(self.file.read_text())["address"])

    @contextmanager
    def connect(self) -> Iterator[Client]:
        """A client, once the workers are there; it may be left when the scheduler is gone."""
        with closed_in_time(Client(scheduler_file=str(self.file), set_as_default=False, timeout=10)) as client:
            self.port = int(client.scheduler.address.rsplit(":", 1)[1])
            client.wait_for_workers(2, timeout=BOUND)
            yield client

    def signal(self, what: signal.Signals) -> None:
        """Send a signal to all of it."""
        assert self.process is not None
        self.process.send_signal(what)

    def kill(self) -> None:
        """All of it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(BOUND)


@cache
def why_no_networks() -> str:
    """Why machines cannot have networks of their own here; empty where they can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "needs root and iproute2 to make network namespaces"
    try:
        with Network.of(["one", "two"]):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"cannot make network namespaces here: {error}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass
class Network:
    """Machines that reach one another over a router only, which can lose all that one of them sends or is sent.

    A machine that is cut off is not told: nothing is refused, and nothing arrives.
    """

    names: tuple[str, ...]
    own: str
    _cut: set[str] = field(default_factory=set)

    @staticmethod
    @contextmanager
    def of(names: Sequence[str]) -> Iterator[Network]:
        """Make the namespaces, and remove them at the end."""
        made = Network(tuple(names), f"{PREFIX}{os.getpid()}")
        with ExitStack() as stack:
            for space in (made._router, *map(made.space, names)):
                _ip("netns", "add", space)
                stack.callback(_ip, "netns", "del", space)
            for number, name in enumerate(names):
                made._connect(number, name)
            forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
            subprocess.run(["ip", "netns", "exec", made._router, "sh", "-c", forward], check=True, capture_output=True)
            yield made

    @property
    def _router(self) -> str:
        return f"{self.own}-router"

    def space(self, name: str) -> str:
        """Namespace of a machine."""
        return f"{self.own}-{name}"

    def host(self, name: str) -> str:
        """Address of a machine."""
        return f"10.77.{self.names.index(name)}.2"

    def _connect(self, number: int, name: str) -> None:
        space, link, gate = self.space(name), f"v{number}", f"10.77.{number}.1"
        _ip("link", "add", link, "netns", self._router, "type", "veth", "peer", "name", "eth0", "netns", space)
        for where, device, address in ((self._router, link, gate), (space, "eth0", self.host(name))):
            _ip("-n", where, "addr", "add", f"{address}/30", "dev", device)
            _ip("-n", where, "link", "set", device, "up")
        _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", space, "route", "add", "default", "via", gate)

    def cut(self, name: str) -> None:
        """Lose all that is sent to or by a machine."""
        if name not in self._cut:
            self._cut.add(name)
            _ip("-n", self._router, "route", "add", "blackhole", f"{self.host(name)}/32")
            _ip("-n", self._router, "rule", "add", "from", self.host(name), "blackhole")

    def mend(self, name: str) -> None:
        """Undo a cut."""
        if name in self._cut:
            self._cut.remove(name)
            _ip("-n", self._router, "route", "del", "blackhole", f"{self.host(name)}/32")
            _ip("-n", self._router, "rule", "del", "from", self.host(name), "blackhole")


def remove_left_networks() -> None:
    """Remove namespaces of processes that were killed."""
    if why_no_networks():
        return
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout.splitlines()
    for space in (line.split()[0] for line in listed if line.startswith(PREFIX)):
        owner = space.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            _ip("netns", "del", space)


def start(
    command: Sequence[str],
    network: Network | None = None,
    name: str = "",
    where: Path = ROOT,
    before: str = "",
    **more: Any,
) -> subprocess.Popen:
    """A process of Python, on a machine of a network; its process id is that of the interpreter.

    ``before`` is what a shell does first in mounts of its own, such as hiding a folder.
    """
    line = [sys.executable, *command]
    if before:
        line = ["unshare", "--mount", "sh", "-c", f'{before} && exec "$@"', "sh", *line]
    inside = [] if network is None else ["ip", "netns", "exec", network.space(name)]
    return subprocess.Popen([*inside, *line], cwd=where, **more)


@dataclass
class Machines:
    """A scheduler and workers with nannies, each a process of its own; ``network`` where each has its own machine."""

    folder: Path
    n_workers: int = 2
    network: Network | None = None
    scheduler: subprocess.Popen | None = None
    nannies: dict[str, subprocess.Popen] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """Where the scheduler says its address."""
        return self.folder / "scheduler.json"

    @property
    def address(self) -> str:
        """Address of the scheduler."""
        return str(json.loads(self.file.read_text())["address"])

    def host(self, name: str) -> str:
        """Address of a machine."""
        return "127.0.0.1" if self.network is None else self.network.host(name)

    def start_scheduler(self) -> None:
        """A new scheduler, which knows nobody yet."""
        self.file.unlink(missing_ok=True)
        command = ["-c", SCHEDULER, str(self.file), self.host("scheduler")]
        with (self.folder / "scheduler.log").open("a") as log:
            self.scheduler = start(command, self.network, "scheduler", stderr=log, stdout=log)
        until(lambda: self.file.exists() and self.file.read_text().strip().endswith("}"), "the scheduler")

    def start_worker(self, name: str, hidden: Path | None = None, read_only: Path | None = None) -> None:
        """A worker and its nanny, that come when they are ready; for them a folder is empty, or cannot be written."""
        command = ["-c", NANNY, self.address, self.host(name), str(self.folder / name)]
        before = ""
        if hidden is not None:
            before = f"mount -t tmpfs none {hidden}"
        if read_only is not None:
            before = f"mount --bind {read_only} {read_only} && mount -o remount,bind,ro {read_only}"
        with (self.folder / f"{name}.log").open("a") as log:
            more = {"stderr": log, "stdout": log, "start_new_session": True}
            self.nannies[name] = start(command, self.network, name, before=before, **more)

    def start(self) -> Machines:
        """All of them."""
        self.start_scheduler()
        for number in range(self.n_workers):
            self.start_worker(f"worker{number}")
        return self

    def heal(self) -> None:
        """A scheduler and workers that are well, whatever happened to those before."""
        self.close()
        self.nannies.clear()
        self.start()

    def close(self) -> None:
        """Kill all processes, also those that are stopped."""
        if self.scheduler is not None:
            self.scheduler.kill()
            self.scheduler.wait(BOUND)
        for nanny in self.nannies.values():
            with suppress(ProcessLookupError):
                os.killpg(nanny.pid, signal.SIGKILL)
            nanny.wait(BOUND)
