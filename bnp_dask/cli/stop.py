"""Stops a run on the command line at a signal without losing its results."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bnp_dask.model import Posterior
    from bnp_dask.training.callbacks import RunInfo

TIMERS = os.name == "posix"
"""Whether the system has timed signals; without them only a second signal ends a run at once."""

STDERR = 2
"""File descriptor for messages of a signal handler."""

GRACE_SECONDS = 60.0
"""Longest time that a run takes, once asked to stop, for the batches in flight and its checkpoint."""


class Terminated(KeyboardInterrupt):
    """SIGTERM as an exception, so that all open resources are closed."""


def named(stop: type[KeyboardInterrupt]) -> str:
    """The word for a signal."""
    return "terminated" if issubclass(stop, Terminated) else "interrupted"


@dataclass
class StopWhenAsked:
    """Callback and signal handler: Ctrl-C or SIGTERM ends a run after the current batch, with a checkpoint.

    A second signal ends it at once; the first does so while there is nothing to save, or after ``grace`` seconds.
    """

    grace: float = GRACE_SECONDS
    asked: type[KeyboardInterrupt] | None = None
    begun: bool = False
    _running: bool = False
    _n_batches: int = 0
    _lap: int = 0
    _done: int = 0

    @property
    def saved(self) -> str:
        """Laps and batches that the last checkpoint has."""
        laps = f"lap {self._lap}" if self._lap else ""
        part = f"{self._done} of {self._n_batches} batches of lap {self._lap + 1}" if self._done else ""
        return " and ".join(filter(None, (laps, part))) or "the start"

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals inside the block, if they can be caught (the main thread)."""
        try:
            before = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:
            yield
            return
        if TIMERS:
            before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._too_late)
        try:
            yield
        finally:
            if TIMERS:
                signal.setitimer(signal.ITIMER_REAL, 0)
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        stop = Terminated if signum == signal.SIGTERM else KeyboardInterrupt
        if self.asked is not None or not self._running:
            raise stop
        self.asked = stop
        if TIMERS:
            signal.setitimer(signal.ITIMER_REAL, self.grace)
        how = "" if stop is Terminated else "; Ctrl-C again stops at once"
        # print() is not reentrant, and the program may be inside one
        with contextlib.suppress(OSError):
            os.write(STDERR, f"\nbnp-dask: stopping after the batches in flight{how}\n".encode())

    def _too_late(self, signum: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            raise self.asked

    def on_start(self, info: RunInfo) -> None:
        """From here on there is something to save."""
        self._running = self.begun = True
        self._n_batches, self._lap, self._done = info.n_batches, info.first_lap, info.first_batch

    def on_batch(self, done: int) -> bool | str | None:
        """Stop when asked."""
        self._done = done
        return None if self.asked is None else f"{named(self.asked)} by a signal"

    def on_lap(self, row: Mapping[str, Any], posterior: Posterior) -> bool | str | None:
        """Note the lap."""
        self._lap, self._done = row["lap"], 0
        return None

    def on_end(self, reason: str) -> None:
        """Everything is saved."""
        self._running = False
