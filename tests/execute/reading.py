"""Loads that wait, and tasks that call them; in a module of their own, so that workers import them."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from bnp_dask.execute import prefetch as ahead
from bnp_dask.execute.prefetch import Load

BOUND = 60.0
WAIT = 0.03
"""Seconds that a read waits: long enough to count as waiting."""


def note(folder: str, *words: object) -> None:
    """One line for all processes, with this process and thread; lines appear in the order of events."""
    line = " ".join(map(str, [*words, os.getpid(), threading.current_thread().name])) + "\n"
    file = os.open(Path(folder) / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def events(folder: str | Path) -> list[list[str]]:
    """What was noted: kind, number, process, thread."""
    path = Path(folder) / "events"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def until(condition, what: str):
    """Poll until it is true, in bounded time."""
    deadline = time.monotonic() + BOUND
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {BOUND} s for {what}"
        time.sleep(0.01)
    return found


@dataclass(frozen=True, eq=False)
class Slow(Load[np.ndarray]):
    """Gives an array after a while; ``fails`` is where: "never", "ahead" or "always"."""

    folder: str
    number: int
    fails: str = "never"
    gives: int = 1000

    def fetch(self) -> np.ndarray:
        note(self.folder, "read", self.number)
        time.sleep(WAIT)
        is_ahead = threading.current_thread().name == ahead.THREAD_NAME
        if self.fails == "always" or (self.fails == "ahead" and is_ahead):
            raise OSError(f"{self.number} is out of reach")
        return np.full(self.gives, self.number)


def only_reads_count() -> None:
    """Let this process be judged by its reads alone, which wait.

    A process has other threads, such as the event loops of clusters: what they compute during one read must not decide
    whether a test sees anything read ahead.
    """
    ahead.time = SimpleNamespace(perf_counter=time.perf_counter, sleep=time.sleep, process_time=float)


def add_up(load: Slow) -> int:
    """A task that only reads."""
    return int(load().sum())


def until_next_is_read(load: Slow, n_loads: int) -> int:
    """A task whose computing ends when this process has begun another read, or when nothing is left to read."""
    found = int(load().sum())

    def go_on() -> bool:
        reads = [line for line in events(load.folder) if line[0] == "read"]
        own = [line[1] for line in reads if line[2] == str(os.getpid())]
        return own.index(str(load.number)) + 1 < len(own) or len({line[1] for line in reads}) == n_loads

    until(go_on, "another read in this process")
    note(load.folder, "computed", load.number)
    return found


def until_told(load: Slow) -> int:
    """A task that computes until there is a file ``go``."""
    found = int(load().sum())
    note(load.folder, "computing", load.number)
    until((Path(load.folder) / "go").exists, "the end")
    return found


def fail_then_add_up(folder: str, load: Slow) -> int:
    """A task that fails before it reads."""
    raise ValueError("does not come to reading")
