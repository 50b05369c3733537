"""The real files, as they lie there."""

from pathlib import Path

import numpy as np
import pytest

from bnp_dask.data import as_source, ingest, read_vocabulary
from bnp_dask.survey import combine, survey_batch
from tests.data.reading import read_all

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"


@pytest.mark.skipif(not (SHARED / "kos").exists(), reason="KOS is not here")
def test_kos(tmp_path):
    report = ingest(
        SHARED / "kos" / "docword.kos.txt.gz",
        tmp_path / "kos.zarr",
        batch_size=500,
        vocabulary=SHARED / "kos" / "vocab.kos.txt",
    )
    assert (report.n_atoms, report.n_features, report.n_batches) == (3430, 6906, 7)
    assert (report.n_entries, report.n_tokens) == (353160, 467714)
    stored = combine(survey_batch(b) for b in read_all(as_source(tmp_path / "kos.zarr")))
    direct = combine(
        survey_batch(b) for b in read_all(as_source(SHARED / "kos" / "docword.kos.txt.gz", batch_size=500))
    )
    assert stored.checksums == direct.checksums
    assert stored.mean.sum() * 3430 == pytest.approx(467714)
    assert len(read_vocabulary(tmp_path / "kos.zarr")) == 6906


@pytest.mark.skipif(not (SHARED / "mnist").exists(), reason="MNIST is not here")
def test_mnist(tmp_path):
    images = SHARED / "mnist" / "t10k-images-idx3-ubyte.gz"
    report = ingest(images, tmp_path / "mnist.zarr", batch_size=2500)
    assert (report.n_atoms, report.n_features, report.n_batches, report.dtype) == (10000, 784, 4, "uint8")
    x = np.concatenate([b.x for b in read_all(as_source(tmp_path / "mnist.zarr"))])
    assert x.max() == 255 and x.shape == (10000, 784)
    np.testing.assert_array_equal(x, np.concatenate([b.x for b in read_all(as_source(images))]))
    labels = as_source(SHARED / "mnist" / "t10k-labels-idx1-ubyte.gz")
    assert labels.n_features == 1 and labels.n_atoms == 10000
