"""Batches that ``ingest`` cuts: four or more for every expected worker, and no crumbs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.data.ingestion.writers import BatchSizes

KB = 2**10


@pytest.fixture(autouse=True)
def _small(monkeypatch, tmp_path):
    """A kilobyte stands for the megabyte below which nothing is cut."""
    monkeypatch.setattr("bnp_dask.data.ingestion.writers.LEAST_BYTES", KB)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "total, workers, size",
    [(500, 4, KB), (20 * KB, 4, 20 * KB // 16), (20 * KB, 16, KB), (16 * 32 * KB, 4, 32 * KB), (10**9, 4, 32 * KB)],
)
def test_size_of_a_batch(total, workers, size):
    assert BatchSizes(32 * KB, workers).of(total) == size


def test_a_wrong_guess_is_made_good_by_the_batches_that_follow():
    """The data have 100 KB, and twice that is thought until half of them are written."""
    sizes, written, sized = BatchSizes(32 * KB, 4), 0.0, []
    while written < 100 * KB:
        sized.append(sizes.next(written, (200 if written < 50 * KB else 100) * KB, len(sized)))
        written += sized[-1]
    assert len(sized) == 16 and sized[0] == 200 * KB / 16


@pytest.mark.first_case
@pytest.mark.parametrize("n_rows", [40, 1000, 3000, 20_000])  # 8 numbers each: 64 bytes
@pytest.mark.parametrize("workers", [1, 4, 30])
def test_rows(n_rows, workers):
    x = np.random.default_rng(0).normal(size=(n_rows, 8))
    np.save("x.npy", x)
    report = bnp.ingest("x.npy", "x.zarr", batch_bytes=64 * KB, workers=workers)
    source = bnp.as_source("x.zarr")
    np.testing.assert_array_equal(np.concatenate([source.reader(i)().x for i in range(source.n_batches)]), x)
    assert source.n_batches == report.n_batches >= min(4 * workers, 64 * n_rows // (2 * KB))
    assert source.n_batches <= max(1, 64 * n_rows // KB + 1, 4 * workers)
    sizes = [b - a for a, b in source.spans]
    assert 64 * max(sizes) <= 64 * KB and max(sizes) < 2 * np.mean(sizes)
    told = "at least 4" if report.n_batches >= 4 * workers else "fewer than 4"
    assert told in report.sizing and f"\n  {report.sizing}\n" in f"{report}\n"


@pytest.mark.first_case
@pytest.mark.parametrize("n_documents", [10, 400, 4000])  # 20 entries each: 240 bytes
@pytest.mark.parametrize("workers", [1, 4, 30])
def test_counts(n_documents, workers):
    rng = np.random.default_rng(1)
    x = sparse.csr_array(np.where(rng.random((n_documents, 100)) < 0.2, rng.integers(1, 5, (n_documents, 100)), 0))
    total = 12 * x.nnz
    sparse.save_npz("x.npz", x)
    report = bnp.ingest("x.npz", "x.zarr", batch_bytes=128 * KB, workers=workers)
    source = bnp.as_source("x.zarr")
    assert abs(sparse.vstack([source.reader(i)().x for i in range(source.n_batches)]) - x).nnz == 0
    assert source.n_batches == report.n_batches >= min(4 * workers, total // (2 * KB))
    assert max(b - a for a, b in source.spans) <= 2 * n_documents / report.n_batches + 1


def test_counts_that_are_read_in_pieces(monkeypatch):
    """The size of a file of counts is a guess: batches are about even nevertheless."""
    monkeypatch.setattr("bnp_dask.data.text.options.CANDIDATES", 10**6)
    lines = [f"d{i} " + " ".join(f"w{(i * j) % 97}" for j in range(1, 60)) for i in range(3000)]
    texts = [(str(i), line) for i, line in enumerate(lines)]
    report = bnp.ingest(texts, "x.zarr", text=bnp.Text(min_df=2, token_pattern=r"w\d+"), batch_bytes=256 * KB)
    source = bnp.as_source("x.zarr")
    entries = [source.reader(i)().x.nnz for i in range(source.n_batches)]
    assert report.n_batches >= 16 and sum(entries) == report.n_entries and max(entries) < 1.5 * np.mean(entries)


def test_groups_stay_whole_and_the_largest_is_no_reason_to_warn(recwarn):
    sizes = [400, *[20] * 60]
    frame = pd.DataFrame(np.random.default_rng(2).normal(size=(sum(sizes), 4)), columns=list("abcd"))
    frame["g"] = np.repeat(np.arange(61), sizes)
    frame.to_parquet("x.parquet")
    report = bnp.ingest("x.parquet", "x.zarr", group_column="g")
    assert report.n_batches == 4 and "groups are never cut" in report.sizing
    blocks = bnp.ingest("x.parquet", "y.zarr", group_column="g", cut=50)
    assert blocks.n_batches == 16 and not recwarn.list


def test_a_size_that_is_given_is_kept():
    np.save("x.npy", np.zeros((1000, 8)))
    report = bnp.ingest("x.npy", "x.zarr", batch_size=900, workers=7)
    assert report.n_batches == 2 and report.sizing == ""
    with pytest.raises(bnp.BnpDaskError, match="workers"):
        bnp.ingest("x.npy", "y.zarr", workers=0)
