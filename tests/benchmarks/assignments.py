"""Cost of keeping assignments of batches in place of statistics: bytes of the store, and seconds of a lap.

``python -m tests.benchmarks.assignments [N [K]]``: two runs from the true clusters of separated points in 16 dimensions
take turns, one on a store that can be opened again and one on the same store as a source that cannot, whose statistics
are kept.  CPU seconds of this process, of laps after the first.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import bnp_dask as bnp
from bnp_dask.execute import SerialExecutor
from tests.benchmarks.mixtures import Size, posterior_at_truth, write
from tests.benchmarks.timing import emit

ROWS = 2**16
"""Atoms of a batch: 8 MB, and 12 MB of statistics at K=10,000."""

LAPS = 3
TURNS = 2


@dataclass
class Clock:
    """Callback: CPU seconds of each lap."""

    seconds: list[float] = field(default_factory=list)
    began: float = 0.0

    def on_start(self, info: Any) -> None:
        self.began = time.process_time()

    def on_batch(self, done: int) -> None: ...

    def on_lap(self, row: Any, posterior: bnp.Posterior) -> None:
        self.seconds.append(time.process_time() - self.began)
        self.began = time.process_time()

    def on_end(self, reason: str) -> None: ...


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def laps(data: Any, start: bnp.Posterior, store: Path) -> tuple[list[float], int, int, bnp.TrainResult]:
    """CPU seconds of laps after the first, bytes of the store and of what it keeps of batches, and the result."""
    clock = Clock()
    result = bnp.train(
        start.model,
        data,
        init=bnp.FromPosterior(start),
        schedule=bnp.Memoized(laps=LAPS, tolerance=0.0),
        moves=(),
        client=SerialExecutor(),
        store=store,
        callbacks=[clock],
    )
    return clock.seconds[1:], _bytes_in(store), _bytes_in(store / "summaries"), result


def main(n: int = 2**20, k: int = 10_000) -> None:
    warnings.simplefilter("ignore")
    size = Size(n, 16, k, 4.0)
    seconds: dict[str, list[float]] = {"assignments": [], "statistics": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.zarr"
        write(path, size, ROWS)
        start = posterior_at_truth(size, 20 * k)
        for turn in range(TURNS):
            found = {}
            for name, data in (("assignments", path), ("statistics", bnp.as_source(path))):
                own, nbytes, of_batches, found[name] = laps(data, start, Path(folder) / f"{name}{turn}")
                seconds[name] += own
                emit(f"store over data, {name}", nbytes / (128 * n), "ratio", 1, N=n, K=k)
                emit(f"kept of batches over data, {name}", of_batches / (128 * n), "ratio", 1, N=n, K=k)
            one, other = (found[name].posterior.summary for name in seconds)
            assert all(one[name].tobytes() == other[name].tobytes() for name in one.values)
        for name, values in seconds.items():
            emit(f"lap, {name}", float(np.median(values)), "s CPU", len(values), N=n, K=k)
        ratio = float(np.median(seconds["assignments"]) / np.median(seconds["statistics"]))
        emit("lap with assignments over one with statistics", ratio, "ratio", LAPS, N=n, K=k)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
