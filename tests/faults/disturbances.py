"""What is done to a run on a cluster of real processes while it goes on, and how it is undone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.faults.machines import Machines

KILL_SECONDS = 2.0
"""Time between two kills of a worker."""


@dataclass
class Scene:
    """A run that may be disturbed.

    Parameters
    ----------
    machines
        Its cluster.
    folder
        Where the run directory lies, a small disk of its own where disks can be made.
    coordinator
        The process that trains.
    rng
        Decides what and when.
    pause
        Seconds for which processes are stopped.
    over
        Set when the run has ended: what goes on for as long as the run does ends then.
    notes
        What was done, for the log.
    undo
        What to do before the run is resumed.
    """

    machines: Machines
    folder: Path
    coordinator: subprocess.Popen
    rng: random.Random
    pause: float
    over: threading.Event = field(default_factory=threading.Event)
    notes: list[str] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)

    def workers(self) -> list[psutil.Process]:
        """Processes that run tasks: those that the servers which nannies start have forked."""
        found = []
        for nanny in self.machines.nannies.values():
            with suppress(psutil.Error):
                for child in psutil.Process(nanny.pid).children():
                    if any("forkserver" in word for word in child.cmdline()):
                        found += child.children()
        return found

    def wait(self, seconds: float) -> bool:
        """Whether the run still goes on after some time."""
        return not self.over.wait(seconds)

    def stop(self, pid: int, what: str, for_ever: bool = False) -> None:
        """Stop a process for the pause, or for ever."""
        self.notes.append(f"{what} stopped" + (" for ever" if for_ever else f" {self.pause:g} s"))
        self.undo.append(lambda: send(pid, signal.SIGCONT))
        send(pid, signal.SIGSTOP)
        if not for_ever:
            self.wait(self.pause)
            send(pid, signal.SIGCONT)

    def cut(self, name: str) -> None:
        """Cut a machine off for a while, up to twice as long as a pause."""
        network = self.machines.network
        assert network is not None
        seconds = self.rng.uniform(0.1, 2.0) * self.pause
        self.notes.append(f"{name} cut off {seconds:.0f} s")
        self.undo.append(lambda: network.mend(name))
        network.cut(name)
        self.wait(seconds)
        network.mend(name)


def send(pid: int, what: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, what)


# -- one function for each: called in a thread of its own, some time after the run has begun ------------------------
def kill_workers(scene: Scene) -> None:
    """One of them every two seconds."""
    killed = 0
    while scene.wait(KILL_SECONDS):
        workers = scene.workers()
        if workers:
            send(scene.rng.choice(workers).pid, signal.SIGKILL)
            killed += 1
    scene.notes.append(f"{killed} workers killed")


def kill_all_workers(scene: Scene) -> None:
    """At once."""
    scene.notes.append("all workers killed")
    for worker in scene.workers():
        send(worker.pid, signal.SIGKILL)


def stop_worker(scene: Scene) -> None:
    if workers := scene.workers():
        scene.stop(scene.rng.choice(workers).pid, "a worker")


def hang_worker(scene: Scene) -> None:
    """Dask gives it up after ``worker-ttl``, and its nanny starts another."""
    if workers := scene.workers():
        scene.stop(scene.rng.choice(workers).pid, "a worker", for_ever=True)


def stop_nanny(scene: Scene) -> None:
    scene.stop(scene.rng.choice(list(scene.machines.nannies.values())).pid, "a nanny")


def stop_scheduler(scene: Scene) -> None:
    assert scene.machines.scheduler is not None
    scene.stop(scene.machines.scheduler.pid, "the scheduler")


def hang_scheduler(scene: Scene) -> None:
    assert scene.machines.scheduler is not None
    scene.stop(scene.machines.scheduler.pid, "the scheduler", for_ever=True)


def kill_scheduler(scene: Scene) -> None:
    assert scene.machines.scheduler is not None
    scene.notes.append("the scheduler killed")
    scene.machines.scheduler.kill()


def stop_coordinator(scene: Scene) -> None:
    scene.stop(scene.coordinator.pid, "the coordinator")


def kill_coordinator(scene: Scene) -> None:
    what = scene.rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    scene.notes.append(f"the coordinator gets {what.name}")
    send(scene.coordinator.pid, what)


def cut_worker(scene: Scene) -> None:
    scene.cut(scene.rng.choice(list(scene.machines.nannies)))


def cut_scheduler(scene: Scene) -> None:
    scene.cut("scheduler")


def cut_coordinator(scene: Scene) -> None:
    scene.cut("coordinator")


def fill_disk(scene: Scene) -> None:
    """The disk of the run directory has a little room left, or none."""
    ballast, left = scene.folder / "ballast", scene.rng.choice([0, 10_000, 100_000])
    scene.undo.append(lambda: ballast.unlink(missing_ok=True))
    free = shutil.disk_usage(scene.folder).free
    with suppress(OSError):
        ballast.write_bytes(bytes(max(0, free - left)))
    scene.notes.append(f"the disk full but for {left} bytes")


def late_worker_without_mount(scene: Scene) -> None:
    """A worker joins that sees an empty folder where the run directory is."""
    scene.notes.append("a worker joined without the mount")
    scene.machines.start_worker("late", hidden=scene.folder)


def late_worker_read_only(scene: Scene) -> None:
    """A worker joins that may not write into the run directory."""
    scene.notes.append("a worker joined with a mount that it may not write to")
    scene.machines.start_worker("late", read_only=scene.folder)


NEEDS_NETWORK = {f.__name__: f for f in (cut_worker, cut_scheduler, cut_coordinator)}
NEEDS_MOUNT = {f.__name__: f for f in (fill_disk, late_worker_without_mount, late_worker_read_only)}
ANYWHERE = {
    f.__name__: f
    for f in (
        kill_workers, kill_all_workers, stop_worker, hang_worker, stop_nanny, stop_scheduler, hang_scheduler,
        kill_scheduler, stop_coordinator, kill_coordinator,
    )
}  # fmt: skip
WAYS: dict[str, Callable[[Scene], None]] = {**ANYWHERE, **NEEDS_NETWORK, **NEEDS_MOUNT}


@contextmanager
def disturbed(scene: Scene, ways: list[tuple[float, str]]) -> Iterator[None]:
    """Inside, each of some disturbances begins so many seconds from now; all are undone at the end."""

    def act(delay: float, name: str) -> None:
        if scene.wait(delay):
            scene.notes.append(f"{time.monotonic() - began:.1f} s:")
            WAYS[name](scene)

    began = time.monotonic()
    threads = [threading.Thread(target=act, args=way, daemon=True) for way in ways]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        scene.over.set()
        for thread in threads:
            thread.join(60)
        for undo in scene.undo:
            undo()
