"""Runs that take turns, a lap each: what a machine gains and loses in speed between minutes, all have of alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from bnp_dask.model import Posterior

PATIENCE = 1800.0
"""Seconds after which whoever waits for its turn gives up."""


@dataclass
class Turn:
    """Callback: hands over to ``after`` at the end of each lap, and waits to be handed over to.

    ``seconds`` are the wall seconds of the laps, without the waiting; ``rest`` those before the first and after the
    last.
    """

    after: Turn | None = None
    seconds: list[float] = field(default_factory=list)
    rest: float = 0.0
    ready: threading.Event = field(default_factory=threading.Event)
    mine: threading.Event = field(default_factory=threading.Event)
    _began: float = 0.0

    @property
    def whole(self) -> float:
        """Seconds of the run."""
        return self.rest + sum(self.seconds)

    def on_start(self, info: Any) -> None:
        self.rest = time.perf_counter() - self._began
        self.ready.set()
        self._wait()

    def on_batch(self, done: int) -> None:
        pass

    def on_lap(self, row: Mapping[str, Any], posterior: Posterior) -> None:
        self.seconds.append(time.perf_counter() - self._began)
        self._hand_over()
        self._wait()

    def on_end(self, reason: str) -> None:
        self.rest += time.perf_counter() - self._began
        self._hand_over()

    def _hand_over(self) -> None:
        self.mine.clear()
        assert self.after is not None
        self.after.mine.set()

    def _wait(self) -> None:
        if not self.mine.wait(PATIENCE):
            raise TimeoutError("another run did not hand over")
        self._began = time.perf_counter()


def in_turns(runs: Sequence[Callable[[Turn], Any]]) -> list[Turn]:
    """Call each with a callback for its run, all of as many laps; the callbacks, with what they measured."""
    turns = [Turn() for _ in runs]
    for turn, after in zip(turns, [*turns[1:], turns[0]], strict=True):
        turn.after = after
    with ThreadPoolExecutor(len(runs)) as pool:
        futures = []
        for run, turn in zip(runs, turns, strict=True):
            turn._began = time.perf_counter()
            futures.append(pool.submit(run, turn))
            while not turn.ready.wait(0.1) and not futures[-1].done():
                pass
        turns[0].mine.set()
        for future in futures:
            future.result()
    return turns
