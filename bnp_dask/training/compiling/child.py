"""``python -m bnp_dask.training.compiling.child``: the short run that compiles the kernels of another run."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bnp_dask.execute import SerialExecutor
from bnp_dask.inference import Schedule
from bnp_dask.model import Model
from bnp_dask.moves import Move
from bnp_dask.training.compiling.first_run import FewAtoms, unpacked
from bnp_dask.training.train import train

LAPS = 4
"""Laps of the short run: births are tried in the first, deletes in the second, and moved batches are visited again."""


PARENT_SECONDS = 1.0
"""Seconds between looks for the parent process."""


def short_run(model: Model, data: FewAtoms, moves: Sequence[Move], schedule: Schedule) -> None:
    """Train a model for some laps on a few atoms, in this thread."""
    limit = getattr(schedule, "laps", None)
    make: Any = replace
    short = schedule if limit is None else make(schedule, laps=min(LAPS, limit))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(model, data, schedule=short, moves=moves, client=SerialExecutor())


def end_with(parent: int) -> None:
    """End this process soon after its parent was killed: nobody waits for what it compiles."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    end_with(os.getppid())
    short_run(*unpacked(sys.stdin.buffer.read()))
