"""Text formats: parsed, streamed into stores, and refused with the line that is wrong."""

import bz2
import gzip

import numpy as np
import pytest
from scipy import sparse

from bnp_dask.data import as_source, read_vocabulary
from bnp_dask.data.ingestion.ingest import ingest
from bnp_dask.errors import DataError, SettingError
from tests.data.reading import rows, weights
from tests.pairwise import in_pairs

RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(0.3, (90, 12))
COUNTS[[0, 17, 18, 89]] = 0
COUNTS[5, 11] = 3


def docword(counts=COUNTS):
    coo = sparse.coo_array(sparse.csr_array(counts))
    lines = [f"{d + 1} {w + 1} {c}" for d, w, c in zip(*coo.coords, coo.data, strict=True)]
    return "\n".join([*map(str, counts.shape), str(len(lines)), *lines]) + "\n"


def pairs(row, first):
    return "".join(f" {w + first}:{row[w]}" for w in np.flatnonzero(row))


def ldac(counts=COUNTS):
    return "".join(f"{(row > 0).sum()}{pairs(row, 0)}\n" for row in counts)


def svmlight(counts=COUNTS, first=1):
    return "".join(f"{i % 2}{pairs(row, first)} # atom {i}\n" for i, row in enumerate(counts))


FILES = {
    "docword.x.txt": docword(),
    "bag.txt": docword(),
    "x.ldac": ldac(),
    "corpus.dat": ldac(),
    "x.svmlight": svmlight(),
    "train": svmlight(),
}


@pytest.mark.parametrize(*in_pairs(name=FILES, packed=["", ".gz", ".bz2"], block=[64, 2**23]))
def test_round_trip(tmp_path, monkeypatch, name, packed, block):
    monkeypatch.setattr("bnp_dask.data.text.files.BLOCK_BYTES", block)
    pack = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[packed]
    path = tmp_path / (name + packed)
    path.write_bytes(pack(FILES[name].encode()))
    np.testing.assert_array_equal(rows(as_source(path)), COUNTS)
    report = ingest(path, tmp_path / "out.zarr", batch_size=20)
    source = as_source(tmp_path / "out.zarr")
    assert source.is_sparse and source.n_batches == report.n_batches == 5
    np.testing.assert_array_equal(rows(source), COUNTS)
    np.testing.assert_array_equal(rows(as_source(tmp_path / "out.zarr", batch_size=7)), COUNTS)
    assert (report.n_atoms, report.n_features, report.n_empty) == (90, 12, (COUNTS.sum(axis=1) == 0).sum())
    assert report.n_entries == (COUNTS > 0).sum() and report.n_tokens == COUNTS.sum()


def test_batches_are_cut_by_bytes_and_at_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("bnp_dask.data.text.files.BLOCK_BYTES", 256)
    monkeypatch.setattr("bnp_dask.data.ingestion.writers.ENTRY_CHUNK", 16)
    (tmp_path / "x.ldac").write_text(ldac())
    report = ingest(tmp_path / "x.ldac", tmp_path / "x.zarr", batch_bytes=12 * 40)
    source = as_source(tmp_path / "x.zarr")
    np.testing.assert_array_equal(rows(source), COUNTS)
    assert all(e % 16 == 0 for e in source.batch_entry) and report.n_batches > 5
    lengths = np.maximum((COUNTS > 0).sum(axis=1), 1)
    cost = [lengths[a:b].sum() for a, b in source.spans]
    assert max(cost) <= 40 and min(cost[:-1]) > 40 - 12
    (tmp_path / "x.zarr" / "word" / "c" / "3").unlink()
    with pytest.raises(DataError, match="word: chunk c/3 .* is missing"):
        rows(source)


def test_a_document_larger_than_a_batch(tmp_path):
    counts = np.ones((3, 500), int)
    (tmp_path / "x.ldac").write_text(ldac(counts))
    report = ingest(tmp_path / "x.ldac", tmp_path / "x.zarr", batch_bytes=120)
    assert report.n_batches == 3
    np.testing.assert_array_equal(rows(as_source(tmp_path / "x.zarr")), counts)


def test_vocabulary(tmp_path):
    (tmp_path / "docword.x.txt").write_text(docword())
    words = [f"wörd{i}" for i in range(14)]
    (tmp_path / "v.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    ingest(tmp_path / "docword.x.txt", tmp_path / "x.zarr", vocabulary=tmp_path / "v.txt")
    assert as_source(tmp_path / "x.zarr").n_features == 14
    assert read_vocabulary(tmp_path / "x.zarr") == words
    (tmp_path / "v.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match="has 2 words, but .* has 12"):
        ingest(tmp_path / "docword.x.txt", tmp_path / "y.zarr", vocabulary=tmp_path / "v.txt")
    with pytest.raises(DataError, match="holds counts"):
        ingest(tmp_path / "docword.x.txt", tmp_path / "y.zarr", project=2)


def test_svmlight_variants(tmp_path):
    path = tmp_path / "x.svm"
    path.write_text("# head\n+1 qid:3 1:0.5 3:1e-2 # note\n\n-1\n2.5 2:-4\n")
    np.testing.assert_array_equal(rows(as_source(path)), [[0.5, 0, 0.01], [0, 0, 0], [0, -4, 0]])
    path.write_text(svmlight(first=0))
    with pytest.raises(DataError, match=r'line \d+: index 0, but indices start at 1.*format="svmlight0"'):
        as_source(path)
    np.testing.assert_array_equal(rows(as_source(path, format="svmlight0")), COUNTS)


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("docword.x.txt", "2\n3\n2\n1 1 1\n2 x 1\n", "line 5: b'2 x 1'"),
        ("docword.x.txt", "2\n3\n2\n1 1 1\n2 1\n", "line 5: b'2 1'"),
        ("docword.x.txt", "2\n3\n2\n1 1 1\n2 4 1\n", "line 5: word 4 is outside 1 to 3"),
        ("docword.x.txt", "2\n3\n2\n1 1 1\n3 1 1\n", "line 5: document 3 is outside 1 to 2"),
        ("docword.x.txt", f"2\n3\n2\n1 1 {2**32 - 1}\n2 1 {2**32}\n", "line 5: count 4294967296 is outside 0 to"),
        ("docword.x.txt", "2\n3\n2\n1 1 -1\n2 1 1\n", "line 4: count -1"),
        ("docword.x.txt", "2\n3\n2\n2 1 1\n1 1 1\n", "line 5: documents are not in order"),
        ("docword.x.txt", "2\n3\n3\n1 1 1\n2 1 1\n", "2 entries, but its third line announces 3"),
        ("docword.x.txt", "hello\n", "not a UCI docword"),
        ("docword.x.txt", "0\n3\n3\n", "no documents"),
        ("x.ldac", "1 2:3\n2 1:1\n", "line 2: 1 pairs, but it announces 2"),
        ("x.ldac", "1 2:3\n1 1:x\n", "line 2: b'1 1:x'"),
        ("x.ldac", "1 2:-3\n", "line 1: a negative"),
        ("x.svm", "1 2:3\n1 a:1\n", "line 2: b'1 a:1'"),
        ("x.svm", "1 1.5:3\n", "line 1: an index is not a whole number"),
        ("x.csv", "a,b\n1,2\n3\n", "x.csv: .*Expected 2 columns"),
        ("x.csv", "a,b\nx,y\n", "no numeric columns"),
    ],
)
def test_wrong_lines_are_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        as_source(tmp_path / name)


def test_packed_file_cut_short(tmp_path):
    data = gzip.compress(docword().encode())
    (tmp_path / "docword.x.txt.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="docword.x.txt.gz: cut short or damaged"):
        ingest(tmp_path / "docword.x.txt.gz", tmp_path / "x.zarr")
    assert not (tmp_path / "x.zarr").exists()


def test_large_text_wants_ingest(tmp_path, monkeypatch):
    monkeypatch.setattr("bnp_dask.data.sources.arrays.READ_WHOLE", 100)
    (tmp_path / "x.ldac").write_text(ldac())
    with pytest.raises(DataError, match="bnp-dask ingest .*x.ldac OUT.zarr"):
        as_source(tmp_path / "x.ldac")


def test_csv(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,name,b,w\n1,x,2,1\n3,y,4.5,0\n")
    with pytest.warns(UserWarning, match="'name'"):
        source = as_source(path, weights="w")
    np.testing.assert_array_equal(rows(source), [[1, 2], [3, 4.5]])
    np.testing.assert_array_equal(weights(source), [1, 0])
    np.testing.assert_array_equal(rows(as_source(path, columns=["b"])), [[2], [4.5]])
    path.write_text("1.5,2\n3,4\n")
    np.testing.assert_array_equal(rows(as_source(path)), [[1.5, 2], [3, 4]])
    (tmp_path / "x.tsv.gz").write_bytes(gzip.compress(b"a\tb\n1\t2\n"))
    np.testing.assert_array_equal(rows(as_source(tmp_path / "x.tsv.gz")), [[1, 2]])
    report = ingest(path, tmp_path / "x.zarr")
    assert report.n_atoms == 2 and report.dtype == "float64"


def idx(x, code):
    head = bytes([0, 0, code, x.ndim]) + np.array(x.shape, ">u4").tobytes()
    return head + x.tobytes()


@pytest.mark.parametrize("code, dtype", [(8, "u1"), (9, "i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")])
def test_idx(tmp_path, code, dtype):
    x = RNG.integers(0, 100, (20, 3, 4)).astype(dtype)
    path = tmp_path / "x-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx(x, code)))
    np.testing.assert_array_equal(rows(as_source(path)), x.reshape(20, 12))
    report = ingest(path, tmp_path / "x.zarr", batch_size=8)
    assert report.dtype == np.dtype(dtype).newbyteorder("=").name and report.n_batches == 3
    np.testing.assert_array_equal(rows(as_source(tmp_path / "x.zarr")), x.reshape(20, 12))
    path.write_bytes(gzip.compress(idx(x, code)[:-1]))
    with pytest.raises(DataError, match="cut short, 1 bytes"):
        as_source(path)


@pytest.mark.parametrize("given", [True, 2, 1e30, object, np.ones(2), ["csv"], np.ma.masked])
def test_a_format_that_is_no_text_is_refused(tmp_path, given):
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    with pytest.raises(SettingError, match=r"format=.* is unknown; formats are "):
        ingest(tmp_path / "x.npy", tmp_path / "x.zarr", format=given)


def test_settings_of_ingest(tmp_path):
    (tmp_path / "x.ldac").write_text(ldac())
    with pytest.raises(SettingError, match="batch_size"):
        ingest(tmp_path / "x.ldac", tmp_path / "y.zarr", batch_size=0)
    with pytest.raises(SettingError, match="batch_bytes"):
        ingest(tmp_path / "x.ldac", tmp_path / "y.zarr", batch_bytes=0)
    with pytest.raises(DataError, match="no such file"):
        ingest(tmp_path / "z.ldac", tmp_path / "y.zarr")
    with pytest.raises(DataError, match="same"):
        ingest(tmp_path / "x.ldac", tmp_path / "x.ldac", overwrite=True)
