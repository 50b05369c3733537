"""The real files, as they lie there."""

import gzip
import re
import time
from pathlib import Path

import numpy as np
import pytest

from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.data import Text, as_source, load_documents, load_vocabulary, read_vocabulary
from bnp_dask.data.ingestion.ingest import ingest
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


RAW = {
    "newsgroups20/20news-bydate-test.tar.xz": (Text(encoding="latin-1", glob="*", min_df=5, max_df=0.5), 7532),
    "nips12/nipstxt.tar.xz": (Text(glob="*.txt", min_df=10, max_df=0.5), 1740),
}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RAW)
def test_raw_text(tmp_path, name):
    if not (SHARED / name).exists():
        pytest.skip(f"{name} is not here")
    text, n_documents = RAW[name]
    started = time.perf_counter()
    report = ingest(SHARED / name, tmp_path / "x.zarr", batch_bytes=2**20, text=text)
    seconds = time.perf_counter() - started
    print(f"{report}\n{n_documents / seconds:,.0f} documents/s")
    source, vocabulary = as_source(tmp_path / "x.zarr"), load_vocabulary(tmp_path / "x.zarr")
    assert report.text.n_documents == report.n_atoms == n_documents == load_documents(source).num_rows
    assert source.n_features == len(vocabulary) > 5000
    total = sum(b.x.sum(axis=0) for b in read_all(source))
    np.testing.assert_array_equal(total, vocabulary.total)
    if "nips" in name:
        assert report.text.n_bad_characters > 0 and any("could not be decoded" in n for n in report.notes)


@pytest.mark.skipif(not (SHARED / "reuters21578").exists(), reason="Reuters is not here")
def test_reuters_through_a_function(tmp_path):
    """A format of its own becomes documents by a function of a few lines."""
    article = re.compile(r'<REUTERS.*?NEWID="(\d+)">(.*?)</REUTERS>', re.DOTALL)

    def articles():
        for path in sorted((SHARED / "reuters21578").glob("*.sgm.gz"))[:3]:
            for number, body in article.findall(gzip.decompress(path.read_bytes()).decode("latin-1")):
                found = re.search(r"<BODY>(.*?)</BODY>", body, re.DOTALL)
                date = re.search(r"<DATE>(.*?)</DATE>", body)
                yield number, found[1] if found else "", {"date": date[1].strip() if date else None}

    report = ingest(articles, tmp_path / "x.zarr", text=Text(min_df=5, token_pattern="[a-z]{3,}"))
    assert (
        report.text.n_documents == 3000 and report.n_atoms + report.text.n_empty == 3000 and report.text.n_empty > 100
    )
    documents = load_documents(tmp_path / "x.zarr")
    assert documents.num_rows == report.n_atoms and documents["date"][0].as_py().startswith("26-FEB-1987")
