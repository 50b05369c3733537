"""A reader holds its batch and little else, whatever the size of the file."""

import subprocess
import sys

import numpy as np
import pytest
import zarr

from bnp_dask.data.ingestion.ingest import ingest

MB = 2**20

READ = """
import sys, tracemalloc
from bnp_dask.data import as_source
source = as_source(sys.argv[1], batch_size=int(sys.argv[2]) or None)
source.reader(0)()
tracemalloc.start()
batch = source.reader(source.n_batches // 2)()
print(batch.nbytes, tracemalloc.get_traced_memory()[1])
"""


def peak(path, batch_size=0):
    """Bytes of a batch, and peak bytes while reading it, in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-c", READ, str(path), str(batch_size)], capture_output=True, text=True, check=True
    )
    return tuple(map(int, run.stdout.split()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("memory")
    x = np.random.default_rng(0).normal(size=(200_000, 32)).astype("f8")
    np.save(path / "x.npy", x)
    np.save(path / "f.npy", np.asfortranarray(x[:100_000]))
    ingest(path / "x.npy", path / "own.zarr", batch_size=100_000)
    zarr.create_array(str(path / "foreign.zarr"), data=x, chunks=(50_000, 32))
    return path


@pytest.mark.parametrize(
    "name, size, most",
    [
        ("x.npy", 100_000, 1.3),
        pytest.param("f.npy", 50_000, 1.3, marks=pytest.mark.long),
        pytest.param("own.zarr", 0, 1.8, marks=pytest.mark.long),
    ],
)
def test_files(folder, name, size, most):
    batch, high = peak(folder / name, size)
    assert batch > 12 * MB
    assert high < most * batch


@pytest.mark.long
def test_zarr_of_other_origin_takes_its_chunk_besides(folder):
    batch, high = peak(folder / "foreign.zarr", 100_000)
    chunk = 50_000 * 32 * 8
    assert high < batch + 3.3 * chunk


@pytest.mark.long
def test_parquet(folder):
    import pandas as pd

    rng = np.random.default_rng(1)
    pd.DataFrame(rng.normal(size=(200_000, 32)), columns=[f"f{i}" for i in range(32)]).to_parquet(
        folder / "x.parquet", row_group_size=200_000
    )
    # Arrow's own memory is not traced: bounded by its piece; measured here is what the reader itself makes
    batch, high = peak(folder / "x.parquet", 100_000)
    assert high < 1.5 * batch


def test_ingest_holds_a_batch_not_the_file(folder, tmp_path):
    import tracemalloc

    tracemalloc.start()
    ingest(folder / "x.npy", tmp_path / "y.zarr", batch_bytes=2 * MB)
    high = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # the file has 51 MB
    assert high < 20 * MB
