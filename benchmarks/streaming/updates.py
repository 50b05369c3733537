"""Cost of updates of a pure stream, one after the other.

``python -m benchmarks.streaming.updates [N [ROWS [K]]]``: N updates of ROWS rows each, from K clusters that are
known.  Printed are CPU seconds of this process per update (medians of five around the tenth and the last, and their
ratio), bytes of the run directory after both, and how many readings of batches an update makes: each new batch is read
once, and no other is.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np

import bnp_dask as bnp
from benchmarks.timing import emit
from bnp_dask.data.sources.arrays import NpySource
from bnp_dask.execute import SerialExecutor

FEATURES = 8
AROUND = 2


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
    """Names of the sources of all batches that are opened to be read."""
    names: list[str] = []
    real = NpySource.reader

    def reader(self: NpySource, index: int) -> object:
        names.append(Path(self.name).name)
        return real(self, index)

    with mock.patch.object(NpySource, "reader", reader):
        yield names


def bytes_by_part(store: Path) -> dict[str, int]:
    """Bytes of the run directory, by the first part of the path."""
    out: dict[str, int] = {}
    for file in store.rglob("*"):
        if file.is_file():
            part = file.relative_to(store).parts[0]
            out[part] = out.get(part, 0) + file.stat().st_size
    return out


def main(n: int = 100, rows: int = 2000, k: int = 20, revisit: float = 0.0) -> None:
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    means = 4.0 * rng.normal(size=(k, FEATURES))

    def day() -> np.ndarray:
        return means[rng.integers(k, size=rows)] + rng.normal(size=(rows, FEATURES))

    seconds, sizes, n_clusters = [], [], []
    with tempfile.TemporaryDirectory() as folder, counted() as reads:
        store = Path(folder) / "run"
        np.save(Path(folder) / "first.npy", day())
        model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
        init = bnp.BregmanKMeans(k)
        bnp.train(model, Path(folder) / "first.npy", init=init, store=store, batch_size=rows // 2)
        for number in range(n):
            path = Path(folder) / f"{number:04d}.npy"
            np.save(path, day())
            reads.clear()
            start = time.process_time()
            found = bnp.update(store, path, revisit=revisit, batch_size=rows // 2, client=SerialExecutor())
            seconds.append(time.process_time() - start)
            sizes.append(bytes_by_part(store))
            n_clusters.append(found.posterior.n_clusters)
            if revisit == 0 and set(reads) != {path.name}:
                raise AssertionError(f"update {number} opened {sorted(set(reads))}")
            if number + 1 in (10, n):
                emit("readings of batches", len(reads), "readings", 1, update=number + 1)
    middle = [float(np.median(seconds[i - AROUND - 1 : i + AROUND])) for i in (10, n - AROUND)]
    for i, value in zip((10, n), middle, strict=True):
        emit("update", value, "s CPU", 2 * AROUND + 1, update=i, K=n_clusters[i - 1], bytes=sizes[i - 1])
    emit("last update over the tenth", middle[1] / middle[0], "ratio", 2 * AROUND + 1, N=n, K=k)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *map(float, sys.argv[4:]))
