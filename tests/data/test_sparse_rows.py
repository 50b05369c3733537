"""Sparse matrices whose arrays do not fit one another are refused by name; no process ends, whoever reads them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import zarr
from scipy import sparse

from bnp_dask.data import as_source
from bnp_dask.data.base import sparse_spans
from bnp_dask.data.ingestion.ingest import ingest
from bnp_dask.errors import BnpDaskError, DataError
from bnp_dask.inputs.arrays import as_counts
from tests.faults.parts import ROOT

BROKEN = {
    "a pointer beyond the entries": ("indptr", 3, 99_999),
    "a negative pointer": ("indptr", 3, -5),
    "a pointer that falls": ("indptr", 4, 0),
    "a first pointer that is not 0": ("indptr", 0, 1),
    "a last pointer beyond the entries": ("indptr", -1, 10**6),
    "a column beyond the last": ("indices", 5, 10**6),
    "a negative column": ("indices", 5, -1),
}


def counts(n=40, v=12):
    return sparse.csr_array(np.random.default_rng(0).poisson(0.7, (n, v)).astype(float) + np.eye(n, v))


def broken(name, kind="csr"):
    """A matrix with one number changed, as SciPy itself lets through."""
    part, place, value = BROKEN[name]
    x = counts().asformat(kind)
    array = getattr(x, part).copy()
    array[place] = value
    setattr(x, part, array)
    return x


def cut_short(part, kind="csr"):
    x = counts().asformat(kind)
    setattr(x, part, getattr(x, part)[:-3])
    return x


EVERYWHERE = """
    import sys, warnings
    import numpy as np
    from scipy import sparse
    import bnp_dask as bnp
    from tests.data.test_sparse_rows import BROKEN, broken, counts, cut_short

    warnings.simplefilter("ignore")
    good = counts()
    init = dict(init=bnp.RandomExamples(2), schedule=bnp.Memoized(laps=1))
    posterior = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Multinomial()), good, **init).posterior
    mixture = bnp.DirichletProcessMixture("multinomial", n_clusters=2, max_laps=1).fit(good)
    topics = bnp.TopicModel(2, max_laps=1).fit(good)

    class Held:
        name, n_batches, n_features, is_sparse, n_atoms = "own source", 1, 12, True, 40
        def __init__(self, x): self.x = x
        def describe(self): return {}
        def reader(self, index): return lambda: bnp.Batch(self.x)

    def written(x):
        parts = dict(data=x.data, indices=x.indices, indptr=x.indptr, shape=x.shape, format=np.bytes_(x.format))
        np.savez("x.npz", **parts)
        return "x.npz"

    def dask_array(x):
        import dask.array as da
        return da.from_delayed(__import__("dask").delayed(lambda: x)(), x.shape, meta=good[:0])

    bad = {f"{kind}, {name}": broken(name, kind) for kind in ("csr", "csc") for name in BROKEN}
    bad |= {f"{kind}, {part} cut short": cut_short(part, kind) for kind in ("csr", "csc")
            for part in ("indptr", "indices", "data")}
    model = lambda kind: bnp.Model(kind, bnp.Multinomial())
    uses = {
        "train": lambda x: bnp.train(model(bnp.DPMixture()), x, **init),
        "topics": lambda x: bnp.train(model(bnp.HDPTopics()), x, **init),
        "dask": lambda x: bnp.train(model(bnp.HDPTopics()), dask_array(x), **init),
        "own source": lambda x: bnp.train(model(bnp.DPMixture()), Held(x), **init),
        "npz": lambda x: bnp.train(model(bnp.DPMixture()), written(x), **init),
        "ingest": lambda x: bnp.ingest(written(x), "x.zarr"),
        "predict": lambda x: bnp.predict(posterior, x),
        "score": lambda x: bnp.score(posterior, x),
        "lazy": lambda x: bnp.predict(posterior, dask_array(x)).compute(scheduler="sync"),
        "mixture": lambda x: mixture.fit(x),
        "mixture predict": lambda x: mixture.predict(x),
        "topic model": lambda x: topics.fit(x),
        "topic model transform": lambda x: topics.transform(x),
    }
    for what, x in bad.items():
        for use, call in uses.items():
            if use == "own source" and x.format != "csr":
                continue
            print(f"{use} | {what} | ", end="", flush=True)
            try:
                call(x)
                print("accepted")
            except bnp.BnpDaskError as error:
                print("refused", " ".join(str(error).split())[:200], flush=True)
            except Exception as error:
                print("raw", type(error).__name__, error)
    print("the end")
"""


@pytest.mark.long
def test_broken_pointers_end_no_process_whoever_follows_them(tmp_path):
    """Before these were checked, indptr[3] = 99999 ended ingest with signal 11 and train with a double free."""
    command = [sys.executable, "-c", textwrap.dedent(EVERYWHERE)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"after {lines[-1:]}: {done.stderr[-1000:]}"
    assert lines[-1] == "the end"
    assert len(lines) > 200
    wrong = [line for line in lines[:-1] if " | refused " not in line]
    assert not wrong, wrong[:10]
    told = ("sparse matrix", "but they are 0 to", "x.npz: no .npz file of numbers, or a damaged one")
    assert all(any(text in line for text in told) for line in lines[:-1])


def coo(rows, columns, values=None):
    x = sparse.coo_array((np.ones(3), ([0, 1, 2], [0, 1, 2])), shape=(3, 4))
    x.coords = (np.array(rows), np.array(columns))
    x.data = np.ones(len(rows)) if values is None else np.array(values)
    return x


def lil(row):
    x = sparse.lil_array((3, 4))
    x[1, 2] = 5.0
    x.rows[1] = row
    return x


def bsr():
    x = sparse.bsr_array(np.kron(np.eye(2), np.ones((2, 2))), blocksize=(2, 2))
    x.indices = np.array([0, 7])
    return x


def dia():
    x = sparse.dia_array((np.ones((2, 4)), [0, 1]), shape=(4, 4))
    x.offsets = np.array([0, 1, 2])
    return x


OTHERS = {
    "coo row": (lambda: coo([0, 1, 9], [0, 1, 2]), "row 9, but they are 0 to 2"),
    "coo column": (lambda: coo([0, 1, 2], [0, -1, 2]), "column .word. -1"),
    "coo lengths": (lambda: coo([0, 1, 2], [0, 1, 2], [1.0]), "1 values and 3 places"),
    "lil column": (lambda: lil([9]), "row 1 has columns beyond the 4"),
    "lil lengths": (lambda: lil([1, 2]), "row 1 has 2 columns and 1 values"),
    "bsr block": (bsr, "block 7, but they are 0 to 1"),
    "dia": (dia, "3 offsets of diagonals"),
    "complex": (lambda: sparse.csr_array(1j * np.eye(3)), "complex numbers"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_layouts_are_checked_as_well(name):
    make, message = OTHERS[name]
    with pytest.raises(DataError, match=message):
        as_source(make())


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok", "dia", "bsr"])
@pytest.mark.parametrize("dtype", ["i1", "u2", "i8", "f4", "f8", "?"])
def test_every_layout_gives_the_same_rows(kind, dtype):
    x = np.random.default_rng(1).poisson(0.5, (8, 6)).astype(dtype)
    found = as_counts(sparse.coo_array(x).asformat(kind), "x")
    assert found.dtype == np.float64 and found.has_canonical_format
    np.testing.assert_array_equal(found.toarray(), x)


def test_duplicates_of_small_integers_do_not_overflow():
    twice = (np.array([100, 100], np.int8), ([0, 0], [1, 1]))
    for x in (sparse.coo_array(twice, (1, 3)), sparse.csr_array((twice[0], twice[1][1], [0, 2]), (1, 3))):
        np.testing.assert_array_equal(as_counts(x, "x").toarray(), [[0, 200, 0]])


def test_sorted_duplicates_are_summed():
    x = sparse.csr_array((np.array([1.0, 2.0, 4.0]), np.array([1, 1, 3]), np.array([0, 3])), shape=(1, 5))
    assert x.has_sorted_indices
    batch = as_source(x).reader(0)()
    assert batch.x.nnz == 2
    np.testing.assert_array_equal(batch.x.toarray(), [[0, 3, 0, 4, 0]])
    assert x.nnz == 3


def test_what_a_matrix_says_of_its_own_order_is_not_believed():
    x = sparse.csr_array((np.array([1.0, 2.0, 4.0]), np.array([3, 1, 3]), np.array([0, 3])), shape=(1, 5))
    x.has_sorted_indices = x.has_canonical_format = True
    np.testing.assert_array_equal(as_source(x).reader(0)().x.indices, [1, 3])


def test_entries_beyond_the_last_pointer_are_left_out():
    x = sparse.csr_array(np.eye(3))
    x.data, x.indices = np.append(x.data, np.nan), np.append(x.indices, 7)
    np.testing.assert_array_equal(as_counts(x, "x").toarray(), np.eye(3))


def test_batches_of_nearly_empty_documents_are_bounded():
    """Documents without words take memory too: rows count like entries."""
    budget = 12 * 30
    empty = sparse_spans(sparse.csr_array((100, 50)).indptr, 50, None, budget)
    assert max(b - a for a, b in empty) == 30
    one_word = sparse_spans(sparse.csr_array(np.eye(100, 50)).indptr, 50, None, budget)
    assert max(b - a for a, b in one_word) <= 30
    assert [a for a, _ in empty[1:]] == [b for _, b in empty[:-1]]


# -- counts in stores and tables -----------------------------------------------------------------------------
@pytest.fixture
def store(tmp_path):
    path = tmp_path / "x.zarr"
    sparse.save_npz(tmp_path / "x.npz", sparse.csr_matrix(counts()))
    ingest(tmp_path / "x.npz", path, batch_size=10)
    return path


@pytest.mark.parametrize(
    ("array", "place", "value"),
    [("length", 3, -4), ("length", 3, 10**12), ("length", 9, 2**62), ("batch_entry", 2, -1), ("batch_entry", 1, 2**40),
     ("batch_doc", 1, 99), ("word", 0, 12), ("word", 0, -1)],
)  # fmt: skip
def test_tables_of_a_store_that_do_not_fit_are_refused(store, array, place, value):
    zarr.open_group(store, mode="r+")[array][place] = value
    with pytest.raises(DataError, match="x.zarr"):
        source = as_source(store)
        [source.reader(b)() for b in range(source.n_batches)]


def test_wide_words_do_not_wrap_around(tmp_path):
    import pandas as pd

    table = pd.DataFrame({"doc": [0, 0, 1], "word": [0, 2**32 + 1, 1], "count": [1, 2, 3]})
    table.to_parquet(tmp_path / "x.parquet", index=False)
    with pytest.raises(DataError, match="4,294,967,298 columns .words."):
        as_source(tmp_path / "x.parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    noted = pa.Table.from_pandas(table).replace_schema_metadata({"n_words": "5"})
    pq.write_table(noted, tmp_path / "x.parquet")
    with pytest.raises(DataError, match=f"word {2**32 + 1}, but words are 0 to 4"):
        as_source(tmp_path / "x.parquet").reader(0)()


def test_documents_numbered_with_gaps_do_not_take_for_ever(tmp_path):
    import pandas as pd

    table = pd.DataFrame({"doc": [0, 10**15], "word": [0, 1], "count": [1, 2]})
    table.to_parquet(tmp_path / "x.parquet", index=False)
    with pytest.raises(DataError, match="number the documents 0, 1, 2"):
        as_source(tmp_path / "x.parquet", batch_size=2)
    assert as_source(tmp_path / "x.parquet").n_batches == 1


def test_a_vocabulary_that_no_memory_holds_is_refused():
    with pytest.raises(BnpDaskError, match="columns .words."):
        as_source(sparse.csr_array((np.ones(2), ([0, 1], [0, 2**40])), shape=(2, 2**41)))
