"""How long a run of many batches takes to open, and what it takes in memory: ``python -m benchmarks.bench_open``.

The run has no data and no summaries, only what says which there are: a list of batches, a checkpoint that refers to a
summary of each, and a history of some laps.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bnp_dask.store import Listing, Manifest, RunStore
from bnp_dask.store.manifest import ROW

ROWS_OF_A_LAP = 4
"""Batches that are folded together: one row of the history for each such group."""


def make(path: Path, n_batches: int, laps: int) -> None:
    """A run of so many batches and laps."""
    store = RunStore.create(path, {"seed": 0})
    manifest = Manifest.open(store.manifests, {"data": "none"})
    rows = np.zeros(n_batches, ROW)
    rows["index"] = np.arange(n_batches)
    manifest.append(rows, {"mean": np.zeros(64)}, {})
    listing = Listing(np.column_stack([np.arange(n_batches), np.full(n_batches, laps), *np.ones((2, n_batches), int)]))
    row = {"step": 1, "lap": 1, "elbo": -1.25e8, "evidence": -1.2e8, "entropy": 1e6, "n_clusters": 50, "moves": []}
    arrays = {"visits": np.full(n_batches, laps), "seen": np.zeros(n_batches, np.int64), "total": np.zeros((50, 2145))}
    prepared = store.prepare({"lap": laps}, arrays, [row] * (laps * n_batches // ROWS_OF_A_LAP), listing)
    store._sync_summaries = lambda listing: None  # there are none
    store.write(prepared)
    store.close()


def look(path: str) -> None:
    """Open it, as a run that goes on does before it looks at its summaries, and print seconds and megabytes."""
    started = time.perf_counter()
    store = RunStore.open(path)
    found = store.load()
    assert found is not None
    manifest = Manifest.open(store.manifests, {"data": "none"})
    assert len(manifest.rows) == len(found.listing)
    seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{len(found.listing)} batches: opened in {seconds:.2f} s; the process took {used / 1024:.0f} MB at most")
    started = time.perf_counter()
    listing = Listing.of_latest(found.arrays["visits"], found.listing.receipts)
    listing.rows[:4, 1] += 1
    new = listing.new_since(found.listing)
    print(f"what a commit of {new.sum()} new summaries looks through: {time.perf_counter() - started:.3f} s")


def main() -> None:
    """Make a run and open it in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--laps", type=int, default=10)
    parser.add_argument("--look")
    args = parser.parse_args()
    if args.look:
        return look(args.look)
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "run", args.batches, args.laps)
        subprocess.run([sys.executable, "-m", "benchmarks.bench_open", "--look", f"{folder}/run"], check=True)


if __name__ == "__main__":
    main()
