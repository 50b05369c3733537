"""A lap over sequences of 41 bits, as many as in the thesis' genome run (6.6.4): one JSON line per lap.

``python -m benchmarks.chains.bench_genome [million steps] [states] [folder]``; 15.4, 50 and a temporary folder
unless given.  Writes a Zarr store of bytes (41 per step, packed by about a half), then runs laps from the true states
on two processes of one thread each.  Wall seconds are those of this machine as loaded as it is; CPU seconds of the
workers tell what an idle one would need.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

import bnp_dask as bnp
from benchmarks.timing import workers
from bnp_dask.core.location import Location
from bnp_dask.core.survey import survey_batch
from bnp_dask.data.groups import Cut
from bnp_dask.data.ingestion.writers import RowsWriter
from bnp_dask.model import Posterior

WIDTH = 41
BATCH = 200_000
LAPS = 3


def lengths(total: int) -> np.ndarray:
    """Steps of sequences of 10,000 to 200,000 that have ``total`` in all."""
    rng = np.random.default_rng(1)
    out: list[int] = []
    while sum(out) < total:
        out.append(int(min(np.exp(rng.uniform(np.log(1e4), np.log(2e5))), total - sum(out))))
    return np.array(out, np.int64)


def write(path: Path, total: int, k: int) -> tuple[Posterior, int]:
    """Store of the sequences, and a posterior after one batch of them under the true states."""
    rng = np.random.default_rng(0)
    bits = rng.beta(0.3, 1.0, (k, WIDTH))
    offsets = np.concatenate([[0], np.cumsum(lengths(total))]).astype(np.int64)
    cut = Cut.of(offsets, total, WIDTH, BATCH, "steps")
    writer = RowsWriter(Location.of(path), WIDTH, np.dtype(np.uint8), BATCH, cut)
    posterior = None
    for start in range(0, total, BATCH):
        n = min(BATCH, total - start)
        states = np.repeat(rng.integers(k, size=n // 20 + 1), 20)[:n]
        x = (rng.random((n, WIDTH), np.float32) < bits[states]).astype(np.uint8)
        writer.add(x)
        if posterior is None:
            batch = bnp.Batch(x.astype(np.float64), groups=np.array([0, n]))
            model = bnp.Model(bnp.HDPHMM(kappa=0.0), bnp.Bernoulli(0.1, 0.3)).with_prior(survey_batch(batch))
            posterior = model.global_step(model.summarize(np.arange(k), batch, np.eye(k)[states]))
            posterior = model.global_step(model.local_step(posterior, batch))
    writer.close({}, "steps")
    assert posterior is not None
    return posterior, len(offsets) - 1


def cpu(client: Client) -> float:
    """CPU seconds that the workers have taken so far."""
    return float(sum(client.run(time.process_time).values()))


def laps(posterior: Posterior, path: Path, client: Client) -> list[dict[str, Any]]:
    """Wall and CPU seconds of each lap; the first includes looking through the data once before."""
    before = cpu(client)
    schedule = bnp.Memoized(laps=LAPS, tolerance=0, count_tolerance=0)
    result = bnp.train(
        posterior.model, path, init=bnp.FromPosterior(posterior), schedule=schedule, client=client, rng=0
    )
    ends = {row["lap"]: row["seconds"] for row in result.history}
    seconds = [b - a for a, b in zip([0.0, *ends.values()], ends.values(), strict=False)]
    total_cpu = cpu(client) - before
    return [
        {"lap": lap, "seconds": round(s, 2), "cpu_seconds_all_laps_and_survey": round(total_cpu, 1)}
        for lap, s in zip(ends, seconds, strict=True)
    ]


def main() -> None:
    """Writes, runs, prints."""
    total = int(float(sys.argv[1] if len(sys.argv) > 1 else 15.4) * 1e6)
    k = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    with tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[3] if len(sys.argv) > 3 else folder) / "genome.zarr"
        posterior, n_sequences = write(path, total, k)
        with workers(2) as client:
            for row in laps(posterior, path, client):
                facts = {"steps": total, "K": k, "sequences": n_sequences, "load": round(os.getloadavg()[0], 1)}
                print(json.dumps({**facts, **row}), flush=True)


if __name__ == "__main__":
    main()
