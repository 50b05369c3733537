"""The first run of its kind on a machine: its kernels are compiled in a process beside the survey of its data."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

from bnp_dask.data.base import Source, columns_of
from bnp_dask.inference import Schedule
from bnp_dask.kernels.options import n_kept
from bnp_dask.model import Model
from bnp_dask.moves import Move
from bnp_dask.training.callbacks import logger, tell_of_compiling
from bnp_dask.training.compiling.few_atoms import FewAtoms, packed
from bnp_dask.training.compiling.marks import is_marked, kind_of, place_of, set_mark

P = ParamSpec("P")
T = TypeVar("T")

SURVEY_SECONDS = 3.0
"""Seconds after which a survey is long: a process that compiles beside it needs one or two to begin.

The toy of sequences of ``benchmarks/cold.py``, whose survey is shorter, chose it alone: with the process its
first run took 48 seconds of processor time in place of 42, and it would have waited for as long as compiling takes.
"""

CHILD = "BNP_DASK_COMPILES"
"""Variable of the environment of a process that compiles for another: it starts none itself."""

CHILD_SECONDS = 300.0
"""Longest time that a run waits for it after the survey."""

LINE = "kernels are compiled beside the survey of the data: first run of this kind here; they are kept for the next"


@dataclass
class FirstRun:
    """A survey, and beside it a process that compiles the kernels for later steps; none if that was done before.

    The process makes a short run of the same model on a few atoms.  Its failures do not affect the run.

    Parameters
    ----------
    mark
        File that marks that all was compiled before.
    content
        Returns the short run in bytes.
    """

    mark: Path | None
    content: Callable[[], bytes]
    _child: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _timer: threading.Timer | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @staticmethod
    def of(model: Model, source: Source, moves: Sequence[Move], schedule: Schedule) -> FirstRun:
        """First run of a source, as the user gave it."""
        kinds = [source.is_sparse, type(source).__name__, [type(move).__name__ for move in moves]]
        mark = place_of(kind_of(model, *kinds, type(schedule).__name__))

        def content() -> bytes:
            return packed(model, FewAtoms.of(source.reader(0)(), columns_of(source)), moves, schedule)

        return FirstRun(mark, content)

    def __enter__(self) -> FirstRun:
        if self.mark is not None and not is_marked(self.mark) and _may_start():
            self._timer = threading.Timer(SURVEY_SECONDS, self._start)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:  # also until one that is just being started has started
            child, self._timer = self._child, None
        if child is None:
            return
        try:
            if error is None:
                with tell_of_compiling(count=n_kept), suppress(subprocess.TimeoutExpired):
                    child.wait(CHILD_SECONDS)
        finally:
            child.kill()
            child.wait()
            self._child = None

    def beside(self, survey: Callable[P, T], *args: P.args, **settings: P.kwargs) -> T:
        """The result of a survey, once the process beside it has ended too."""
        with self:
            return survey(*args, **settings)

    def done(self, result: T) -> T:
        """The result of a run of this kind, after noting that its kernels exist."""
        set_mark(self.mark)
        return result

    def _start(self) -> None:
        with self._lock:
            if self._timer is None:
                return
            try:
                self._child = _started(self.content())
            except Exception as error:  # classes of a notebook, systems without processes
                logger.debug("no process to compile kernels: %r", error)
            else:
                logger.log(logging.INFO, LINE)


def _may_start() -> bool:
    """Whether there is a second processor, and an interpreter to start."""
    if CHILD in os.environ:
        return False
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return count > 1 and bool(sys.executable) and not getattr(sys, "frozen", False)


def _started(content: bytes) -> subprocess.Popen[bytes]:
    """A process that makes a short run, once it has received all of it."""
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), CHILD: "1"}
    command = [sys.executable, "-m", "bnp_dask.training.compiling.child"]
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=settings)
    assert child.stdin is not None
    try:
        child.stdin.write(content)
        child.stdin.close()
    except BaseException:
        child.kill()
        child.wait()
        raise
    return child
