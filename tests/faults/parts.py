"""What the tests of this folder share: a small run, data that misbehave on command, and waiting with a bound."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.inference import FullBatch, Memoized, Stochastic
from bnp_dask.initialize import BregmanKMeans
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.observation import DiagGaussian
from bnp_dask.training.results import TrainResult
from bnp_dask.training.train import train
from tests.execute.tasks import count_call

ROOT = Path(__file__).resolve().parents[2]
BOUND = 60.0
"""Seconds after which waiting for anything has failed."""

N_BATCHES = 8
MOVES = (Birth(sample=200, refine=4), Merge(), Delete())

SCHEDULES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "memoized with moves": (Memoized(laps=4, window=3, tolerance=0.0, count_tolerance=0.0), MOVES),
    "memoized with births at batches": (
        Memoized(laps=4, window=3, tolerance=0.0, count_tolerance=0.0),
        (Birth(where="batch", share=0.5), Merge(), Delete()),
    ),
    "full batch with moves": (FullBatch(laps=4, window=3, tolerance=0.0, count_tolerance=0.0), MOVES),
    "stochastic": (Stochastic(laps=3, window=3, tolerance=0.0, count_tolerance=0.0), ()),
}


def until(condition: Callable[[], Any], what: str, bound: float = BOUND) -> Any:
    """Poll until ``condition()`` is true, and give it; fails after ``bound`` seconds."""
    deadline = time.monotonic() + bound
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {bound} s for {what}"
        time.sleep(0.01)


def atoms(n: int = 1200, d: int = 3, k: int = 5, seed: int = 0) -> np.ndarray:
    """Rows of round clusters, ``(n, d)``."""
    rng = np.random.default_rng(seed)
    means = rng.normal(scale=6, size=(k, d))
    return means[rng.integers(k, size=n)] + rng.normal(size=(n, d))


class NamedError(OSError):
    """An error of the tests' own, which may pass."""


@dataclass(frozen=True)
class FaultyReader:
    """Reads one batch, and on some of its calls does what its source says."""

    batch: Batch
    index: int
    source: Faulty

    def __call__(self) -> Batch:
        own = self.source
        if own.folder is None:
            return self.batch
        call = count_call(own.folder, self.index)
        if (self.index, call) in own.fails:
            raise NamedError(f"batch {self.index} call {call}")
        if (self.index, call) in own.hangs:
            mark = Path(own.folder) / f"hangs-{self.index}-{call}"
            mark.with_suffix(".part").write_text(str(os.getpid()))
            mark.with_suffix(".part").rename(mark)
            until(lambda: (Path(own.folder or "") / "go").exists(), "the end")
        self._note("start")
        if own.slow is not None and self.index == own.slow[0]:
            self._lag(*own.slow[1:])
        if own.seconds:
            time.sleep(own.seconds)
        self._note("end")
        return self.batch

    def _lag(self, seconds: float, others: float = np.inf) -> None:
        before, deadline = self._ended(), time.monotonic() + seconds
        while time.monotonic() < deadline and self._ended() < before + others:
            time.sleep(min(seconds, 0.05))

    def _ended(self) -> int:
        return self._trace.read_text().count("end") if self.source.traced else 0

    @property
    def _trace(self) -> Path:
        return Path(self.source.folder or "") / "trace"

    def _note(self, what: str) -> None:
        if self.source.traced:
            with open(self._trace, "a") as file:
                file.write(f"{what} {self.index}\n")


@dataclass(frozen=True)
class Faulty:
    """Batches in memory; ``(batch, call)`` in ``fails`` raises, in ``hangs`` waits for its process to be killed.

    ``slow`` is a batch and the seconds that each of its readings takes, or where ``traced`` a third number: of readings
    of others that end meanwhile, after which it ends too.  ``seconds`` is what any reading takes.
    """

    x: np.ndarray
    folder: str | None = None
    fails: frozenset[tuple[int, int]] = frozenset()
    hangs: frozenset[tuple[int, int]] = frozenset()
    slow: tuple[int, float] | tuple[int, float, int] | None = None
    seconds: float = 0.0
    traced: bool = False
    n_batches: int = N_BATCHES
    name: str = "/data/atoms.zarr"
    is_sparse: bool = False

    @property
    def n_atoms(self) -> int:
        return len(self.x)

    @property
    def n_features(self) -> int:
        return self.x.shape[1]

    def reader(self, index: int) -> FaultyReader:
        rows = np.array_split(self.x, self.n_batches)[index]
        light = Faulty(
            self.x[:0], self.folder, self.fails, self.hangs, self.slow, self.seconds, self.traced, self.n_batches
        )
        return FaultyReader(Batch(rows, None, f"{self.name} batch {index}"), index, light)

    def describe(self) -> dict[str, Any]:
        return {"kind": "test", "n_atoms": self.n_atoms}


def go(client: Any = None, name: str = "memoized with moves", data: Any = None, **more: Any) -> TrainResult:
    """One small run, quietly."""
    schedule, moves = SCHEDULES[name]
    settings = {"init": BregmanKMeans(2), "schedule": schedule, "moves": moves, **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(
            Model(DPMixture(3.0), DiagGaussian()), Faulty(atoms()) if data is None else data, client=client, **settings
        )


class After:
    """Callback that does something once, after so many batches; ``when`` it did."""

    def __init__(self, batches: int, what: Callable[[], Any]) -> None:
        self.left, self.what, self.when = batches, what, 0.0

    def on_start(self, info: Any) -> None:
        pass

    def on_batch(self, done: int) -> None:
        self.left -= 1
        if self.left == 0:
            self.what()
            self.when = time.monotonic()

    def on_lap(self, row: Any, posterior: Any) -> None:
        pass

    def on_end(self, reason: str) -> None:
        pass


def bits(result: TrainResult) -> tuple[Any, ...]:
    """Everything that must not depend on who computed it."""
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]
    assert result.posterior.summary is not None
    return rows, {k: v.tobytes() for k, v in result.posterior.summary.to_arrays().items()}


@cache
def quiet(name: str) -> tuple[Any, ...]:
    """The bits of the undisturbed run in this thread."""
    return bits(go(SerialExecutor(), name))


def worker_pids(client: Any) -> list[int]:
    """Process ids of the workers that are connected."""
    return list(client.run(os.getpid, on_error="ignore").values())


@dataclass
class Killer:
    """Kills, from a thread of its own, what ``victims()`` names; counts how many."""

    victims: Callable[[], list[int]]
    seconds: float = 0.01
    killed: list[int] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def at_work(self) -> Iterator[Killer]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join(BOUND)

    def _run(self) -> None:
        while not self._stop.wait(self.seconds):
            for pid in self.victims():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.killed.append(pid)


def hanging(folder: Path) -> Callable[[], list[int]]:
    """Processes that wait to be killed, each named once."""
    seen: set[str] = set()

    def find() -> list[int]:
        new = [mark for mark in folder.glob("hangs-*") if mark.suffix != ".part" and mark.name not in seen]
        seen.update(mark.name for mark in new)
        return [int(mark.read_text()) for mark in new]

    return find
