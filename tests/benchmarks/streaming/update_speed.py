"""Speed of an update on new data beside a lap of ``train`` over as many: CPU seconds of this process per atom.

``python -m tests.benchmarks.streaming.update_speed [N [K [D [SPREAD]]]]``: a run from the true clusters of N points in
D dimensions, without moves, and updates of a pure stream by N other points each.  An update reads its data twice: to
look at them (checksums, checks, ``fresh`` of a sample) and to visit them.  Opening the run and committing a version
take some .2 s whatever the data, so that N counts.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

import bnp_dask as bnp
from bnp_dask.execute import SerialExecutor
from tests.benchmarks.assignments import Clock
from tests.benchmarks.mixtures import Size, pieces, posterior_at_truth
from tests.benchmarks.timing import emit, keep_memory

BATCHES = 8
LAPS = 4
UPDATES = 3
PROFILED = 25
"""Lines of a profile that are printed where the environment has PROFILE."""


def main(n: int = 200_000, k: int = 50, d: int = 16, spread: float = 0.5) -> None:
    warnings.simplefilter("ignore")
    keep_memory()
    size = Size(n * (UPDATES + 1), d, k, spread)
    start, clock = posterior_at_truth(size), Clock()
    facts = {"N": n, "K": k, "D": d, "spread": spread}
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.npy" for number in range(UPDATES + 1)]
        for path, (rows, _) in zip(paths, pieces(size, n), strict=True):
            np.save(path, rows)
        store, executor = Path(folder) / "run", SerialExecutor()
        bnp.train(
            start.model,
            paths[0],
            init=bnp.FromPosterior(start),
            schedule=bnp.Memoized(laps=LAPS + 1, tolerance=0.0, count_tolerance=0.0),
            moves=(),
            client=executor,
            store=store,
            batch_size=n // BATCHES,
            callbacks=[clock],
        )
        lap, seconds = float(np.median(clock.seconds[1:])), []
        profile = cProfile.Profile()
        for path in paths[1:]:
            began = time.process_time()
            if "PROFILE" in os.environ:
                profile.enable()
            bnp.update(store, path, revisit=0, client=executor, batch_size=n // BATCHES)
            profile.disable()
            seconds.append(time.process_time() - began)
    emit("lap of train", lap, "s CPU", LAPS, **facts)
    emit("update", float(np.median(seconds)), "s CPU", UPDATES, **facts)
    emit("speed of an update over a lap", lap / float(np.median(seconds)), "ratio", UPDATES, **facts)
    if "PROFILE" in os.environ:
        pstats.Stats(profile).sort_stats("tottime").print_stats(PROFILED)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *map(float, sys.argv[4:]))
