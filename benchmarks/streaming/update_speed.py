"""Speed of an update on new data beside a lap of ``train`` over as many: CPU seconds of this process per atom.

``python -m benchmarks.streaming.update_speed [N [K [D [SPREAD]]]]``: a run from the true clusters of N points in
D dimensions, without moves, and updates of a pure stream by N other points each.  An update looks at its data
(checksums, checks, ``fresh`` of a sample) before it visits them; of more than 128 MB the rest is read twice.  A run and
its updates take turns; the first lap, and the first update of each run, which writes version 0 too, do not count.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import bnp_dask as bnp
from benchmarks.assignments import Clock
from benchmarks.mixtures import Size, pieces, posterior_at_truth
from benchmarks.timing import emit, keep_memory
from bnp_dask.execute import SerialExecutor

BATCHES = 8
LAPS = 3
UPDATES = 3
TURNS = 4
PROFILED = 25
"""Lines of a profile that are printed where the environment has PROFILE."""


def turn(
    start: bnp.Posterior, paths: Sequence[Path], store: Path, n: int, profile: cProfile.Profile | None
) -> tuple[list[float], list[float]]:
    """CPU seconds of laps of a run after its first, and of its updates after its first."""
    clock, executor, updates = Clock(), SerialExecutor(), []
    bnp.train(
        start.model,
        paths[0],
        init=bnp.FromPosterior(start),
        schedule=bnp.Memoized(laps=LAPS, tolerance=0.0, count_tolerance=0.0),
        moves=(),
        client=executor,
        store=store,
        batch_size=n // BATCHES,
        callbacks=[clock],
    )
    for path in paths[1:]:
        began = time.process_time()
        if profile is not None:
            profile.enable()
        bnp.update(store, path, revisit=0, client=executor, batch_size=n // BATCHES)
        if profile is not None:
            profile.disable()
        updates.append(time.process_time() - began)
    return clock.seconds[1:], updates[1:]


def main(n: int = 200_000, k: int = 50, d: int = 16, spread: float = 0.5) -> None:
    warnings.simplefilter("ignore")
    keep_memory()
    size = Size(n * (UPDATES + 2), d, k, spread)
    start = posterior_at_truth(size)
    facts = {"N": n, "K": k, "D": d, "spread": spread}
    profile = cProfile.Profile(time.process_time) if "PROFILE" in os.environ else None
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.npy" for number in range(UPDATES + 2)]
        for path, (rows, _) in zip(paths, pieces(size, n), strict=True):
            np.save(path, rows)
        turns = [turn(start, paths, Path(folder) / f"run{number}", n, profile) for number in range(TURNS)]
    laps, updates = (np.array(seconds) for seconds in zip(*turns, strict=True))
    ratios = np.median(laps, axis=1) / np.median(updates, axis=1)
    emit("lap of train", float(np.median(laps)), "s CPU", laps.size, **facts)
    emit("update", float(np.median(updates)), "s CPU", updates.size, **facts)
    emit(
        "speed of an update over a lap",
        float(np.median(ratios)),
        "ratio",
        TURNS,
        **facts,
        turns=ratios.round(2).tolist(),
    )
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(PROFILED)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *map(float, sys.argv[4:]))
