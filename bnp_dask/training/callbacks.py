"""Callbacks watch a run: progress bars, logs, early stops.  They see rows of the history, and may stop the run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from bnp_dask.core import frozen
from bnp_dask.errors import answering
from bnp_dask.model import Posterior
from bnp_dask.structure import count_of, in_use, noun_of

logger = logging.getLogger("bnp_dask")

FAILED = "failed"
"""Reason of a run that ends with an error."""

STOPPED = "stopped by a callback"
"""Reason of a run that a callback ended without words of its own."""

PATIENCE = 2.0
"""Seconds of silence before the log says that kernels are compiled: loading compiled ones takes less."""


EVERY = 10.0
"""Seconds between two lines about compiling, or another part of a run that has no laps."""

MINUTE = 60.0
"""Seconds of a lap before a line tells how many of its batches are done."""


@dataclass(frozen=True)
class RunInfo:
    """Facts that are known when a run starts.

    ``n_batches`` per lap, ``n_atoms`` in all, ``laps`` at most, ``first_lap`` and ``first_batch`` completed before
    (a resumed run), ``where`` it runs.
    """

    n_batches: int
    n_atoms: int
    laps: int
    first_lap: int
    first_batch: int
    where: str


class Callback(Protocol):
    """Hooks that ``train`` calls, all in the process that called it."""

    def on_start(self, info: RunInfo) -> None:
        """Called before the first step."""
        ...

    def on_batch(self, done: int) -> bool | str | None:
        """Called after each batch was folded; ``done`` of this lap so far.

        True stops the run, after a checkpoint; so does a text, which is then the reason of the result.
        """
        ...

    def on_lap(self, row: Mapping[str, Any], posterior: Posterior) -> bool | str | None:
        """Called after each lap, with its last history row; True or a text stops the run, as in :meth:`on_batch`.

        Both are read-only and never change: a callback may keep them.
        """
        ...

    def on_end(self, reason: str) -> None:
        """Called after the last step, also if the run failed."""
        ...


def tell_of_batches(callbacks: Sequence[Callback], done: int) -> str:
    """Report the batches done in this lap; return why a callback stops the run, or an empty text.

    Every callback is called, also after one that stops the run.
    """
    return _why([callback.on_batch(done) for callback in callbacks])


def tell_of_lap(callbacks: Sequence[Callback], row: Mapping[str, Any], posterior: Posterior) -> str:
    """Report a lap; return why a callback stops the run, or an empty text.  Every callback is called.

    They get the posterior read-only: the run goes on from it.
    """
    shown = frozen(posterior)
    return _why([callback.on_lap(row, shown) for callback in callbacks])


def _why(answers: Sequence[bool | str | None]) -> str:
    """Reason of the first callback that stops the run."""
    for answer in answers:
        if answer is True:
            return STOPPED
        if isinstance(answer, str) and answer:
            return answer
    return ""


def lap_line(row: Mapping[str, Any], posterior: Posterior) -> str:
    """One lap in one line."""
    noun = noun_of(posterior.model)
    return (
        f"lap {row['lap']}: objective {row['elbo']:.6g} ({row['elbo'] / max(row['atoms'], 1.0):.5g} per "
        f"{noun.atoms.removesuffix('s')}), {count_of(posterior)}, {row['seconds']:.1f} s"
    )


@answering
@dataclass
class Progress:
    """A progress bar over the batches of each lap, with the objective and the number of clusters beside it.

    Pass it to a run: ``bnp.train(model, data, callbacks=[bnp.Progress()])``.
    """

    _bar: Any = field(default=None, repr=False)
    _info: RunInfo | None = field(default=None, repr=False)
    _after: dict[str, str] = field(default_factory=dict, repr=False)

    def on_start(self, info: RunInfo) -> None:
        from tqdm.auto import tqdm

        self._info = info
        self._bar = tqdm(total=info.n_batches, initial=info.first_batch, unit="batch", leave=True)
        self._bar.set_description(f"lap {info.first_lap + 1}/{info.laps}")

    def on_batch(self, done: int) -> bool | None:
        self._bar.update(done - self._bar.n)
        return None

    def on_lap(self, row: Mapping[str, Any], posterior: Posterior) -> bool | None:
        assert self._info is not None
        counted = {noun_of(posterior.model).many: int(in_use(posterior).sum())}
        self._bar.set_postfix({**counted, "objective": f"{row['elbo']:.6g}"}, refresh=False)
        if row["lap"] < self._info.laps:
            self._bar.reset()
            self._bar.set_description(f"lap {row['lap'] + 1}/{self._info.laps}")
        return None

    def on_end(self, reason: str) -> None:
        if self._bar is not None:
            self._bar.set_description(reason)
            self._bar.close()


@dataclass
class LogLaps:
    """One INFO line per lap on the logger ``bnp_dask``, and one every minute of a lap; ``train`` always adds it."""

    _info: RunInfo | None = field(default=None, repr=False)
    _lap: int = field(default=1, repr=False)
    _told: float = field(default=0.0, repr=False)

    def on_start(self, info: RunInfo) -> None:
        logger.info("%d atoms in %d batches, %s", info.n_atoms, info.n_batches, info.where)
        self._info, self._lap, self._told = info, info.first_lap + 1, time.perf_counter()

    def on_batch(self, done: int) -> bool | None:
        now = time.perf_counter()
        if self._info is not None and now - self._told > MINUTE and done < self._info.n_batches:
            logger.info("lap %d: %d of %d batches", self._lap, done, self._info.n_batches)
            self._told = now
        return None

    def on_lap(self, row: Mapping[str, Any], posterior: Posterior) -> bool | None:
        logger.info("%s", lap_line(row, posterior))
        self._lap, self._told = int(row["lap"]) + 1, time.perf_counter()
        return None

    def on_end(self, reason: str) -> None:
        if reason != FAILED:  # the error tells
            logger.info("stopped: %s", reason)


def tell_of_idle(name: str, n_batches: int, window: int, n_workers: int) -> None:
    """Log a line if there are fewer batches, or fewer of them in flight, than workers."""
    if min(n_batches, window) >= n_workers:
        return
    if n_batches < n_workers:
        batches, advice = "1 batch" if n_batches == 1 else f"{n_batches} batches", "; make smaller ones (batch_size=)"
    else:
        batches, advice = f"at most {window} of {n_batches} batches in flight, the schedule's window,", ""
    logger.warning("%s: %s for %d workers, some of which have nothing to do%s", name, batches, n_workers, advice)


COMPILING = (
    "compiling kernels (machine code of the inner loops) for this kind of model and data: a minute or so on two "
    "processors; they are kept, and the next run only loads them"
)


@contextmanager
def telling(
    what: str,
    short: str,
    done: str,
    patience: float = PATIENCE,
    every: float = EVERY,
    so_far: Callable[[], str] | None = None,
    loud: bool = False,
) -> Iterator[None]:
    """Log the task of a block if it takes a while, the time passed so far, and the total at its end.

    Parameters
    ----------
    what, short, done
        The first line, the first word of later lines, and the first word of the last.
    patience, every
        Seconds before the first line, and between two.
    so_far
        Returns how far it is, with a comma and a blank behind it; None if it is unknown.
    loud
        Log the first line as a warning if logging is not configured, as in a notebook.
    """
    started, ended, told = time.perf_counter(), threading.Event(), threading.Event()

    def far() -> str:
        return f"{'' if so_far is None else so_far()}{time.perf_counter() - started:.0f} s"

    def tell() -> None:
        if ended.wait(patience):
            return
        told.set()
        # Python shows warnings of programs that set up no log, and nothing below: the first wait is not to be silent
        unheard = loud and logger.level == logging.NOTSET and not logger.isEnabledFor(logging.INFO)
        logger.log(logging.WARNING if unheard else logging.INFO, "%s", what)
        while not ended.wait(every):
            logger.info("%s: %s so far", short, far())

    thread = threading.Thread(target=tell, name="bnp-dask-telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if told.is_set():
            logger.info("%s: %s", done, far())


def tell_of_compiling(
    patience: float = PATIENCE, every: float = EVERY, count: Callable[[float], int] | None = None
) -> AbstractContextManager[None]:
    """Log a line if the block takes longer than loading kernels does.

    ``count(since)`` returns the number of kernels that were kept since a time of ``time.time()``: it looks at all that
    are kept, so it is asked only if there is something to tell.
    """
    begun = time.time()
    so_far = None if count is None else lambda: f"{count(begun)} kernels, "
    return telling(COMPILING, "compiling", "compiled", patience, every, so_far, loud=True)
