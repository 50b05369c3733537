"""Train a topic model with moves for many laps on workers; print what this process holds after each lap, bytes.

``python -m tests.memory.long DOCUMENTS LAPS WORKERS FOLDER``.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import bnp_dask as bnp
from benchmarks.topics import million
from bnp_dask.execute.local import local_client
from bnp_dask.training import train
from tests.memory import measure


class Tell:
    """Prints lap, clusters, memory now, and the most since the lap before."""

    def on_start(self, info: Any) -> None:
        """Nothing to do."""

    def on_batch(self, done: int) -> None:
        """Nothing to do."""

    def on_lap(self, row: Any, posterior: Any) -> None:
        """Now, before what a lap needed for a moment is given back, and the most since the lap before."""
        print(row["lap"], row["n_clusters"], measure.resident(), measure.highest(), flush=True)
        measure.CLEAR.write_text("5")

    def on_end(self, reason: str) -> None:
        """Nothing to do."""


def main(n_docs: int, laps: int, workers: int, folder: Path) -> None:
    """Write the documents, and train from one topic."""
    warnings.simplefilter("ignore")
    train.SECONDS = 0.0  # laps of a second are as those of minutes
    million.BATCH = min(million.BATCH, n_docs // 4)
    million.write(folder / "corpus.zarr", n_docs)
    with local_client(workers, "1GB", None) as client:
        bnp.train(
            bnp.Model(bnp.HDPTopics(million.GAMMA, million.ALPHA), bnp.Multinomial()),
            str(folder / "corpus.zarr"),
            init=bnp.RandomExamples(1),
            schedule=bnp.Memoized(laps=laps, window=4, tolerance=0.0, count_tolerance=0.0),
            moves=[bnp.Birth(), bnp.Merge(), bnp.Delete()],
            client=client,
            store=folder / "run",
            callbacks=[Tell()],
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), Path(sys.argv[4]))
