"""Cost of keeping assignments of batches in place of statistics: bytes of the store, and seconds of a lap.

``python -m benchmarks.assignments [N [K]] [--rows R] [--laps L] [--turns T] [--alone]``: two runs from the true
clusters of separated points in 16 dimensions take turns, one on a store that can be opened again and one on the same
store as a source that cannot, whose statistics are kept (not with ``--alone``).  CPU seconds of this process, of laps
after the first; the ratio is the median over turns of that of the medians of their laps.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import bnp_dask as bnp
from benchmarks.mixtures import Size, posterior_at_truth, write
from benchmarks.timing import emit, keep_memory
from bnp_dask.execute import SerialExecutor

ROWS = 2**16
"""Atoms of a batch: 8 MB, and 12 MB of statistics at K=10,000."""


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


def laps(data: Any, start: bnp.Posterior, store: Path, n_laps: int) -> tuple[list[float], int, int, bnp.TrainResult]:
    """CPU seconds of laps after the first, bytes of the store and of what it keeps of batches, and the result."""
    clock = Clock()
    result = bnp.train(
        start.model,
        data,
        init=bnp.FromPosterior(start),
        schedule=bnp.Memoized(laps=n_laps, tolerance=0.0),
        moves=(),
        client=SerialExecutor(),
        store=store,
        callbacks=[clock],
    )
    return clock.seconds[1:], _bytes_in(store), _bytes_in(store / "summaries"), result


def main(n: int, k: int, rows: int, n_laps: int, turns: int, is_alone: bool) -> None:
    """Print what both ways take; of assignments only where these are measured alone."""
    warnings.simplefilter("ignore")
    keep_memory()
    size = Size(n, 16, k, 4.0)
    facts = {"N": n, "K": k, "rows": rows}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.zarr"
        write(path, size, rows)
        start = posterior_at_truth(size, 20 * k)
        ways = {"assignments": path, **({} if is_alone else {"statistics": bnp.as_source(path)})}
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(turns):
            found = {}
            for name, data in ways.items():
                store = Path(folder) / f"{name}{turn}"
                own, nbytes, of_batches, found[name] = laps(data, start, store, n_laps)
                shutil.rmtree(store)
                seconds[name].append(float(np.median(own)))
                emit(f"store over data, {name}", nbytes / (128 * n), "ratio", 1, **facts)
                emit(f"kept of batches over data, {name}", of_batches / (128 * n), "ratio", 1, **facts)
            one, *others = (result.posterior.summary for result in found.values())
            assert all(one[name].tobytes() == two[name].tobytes() for two in others for name in one.values)
    for name, values in seconds.items():
        emit(f"lap, {name}", float(np.median(values)), "s CPU", len(values), **facts)
    if not is_alone:
        ratios = np.divide(*seconds.values())
        told = {**facts, "turns": ratios.round(3).tolist()}
        emit("lap with assignments over one with statistics", float(np.median(ratios)), "ratio", turns, **told)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n", type=int, nargs="?", default=2**20)
    parser.add_argument("k", type=int, nargs="?", default=10_000)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--alone", action="store_true")
    args = parser.parse_args()
    main(args.n, args.k, args.rows, args.laps, args.turns, args.alone)
