"""Words that the vocabulary does not have are refused, wherever counts come in."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import zarr
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.data import as_source
from bnp_dask.data.ingestion.ingest import ingest
from bnp_dask.errors import DataError
from bnp_dask.execute.serial import SerialExecutor

N_WORDS = 12


def counts() -> sparse.csr_array:
    x = sparse.random_array((30, N_WORDS), density=0.4, format="csr", rng=np.random.default_rng(0))
    x.data = np.ceil(3.0 * x.data)
    return sparse.csr_array(x[np.flatnonzero(np.diff(x.indptr) > 0)])


def broken(word: int) -> sparse.csr_array:
    x = counts()
    indices = x.indices.copy()
    indices[7] = word
    x.indices = indices
    return x


def train(data):
    model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schedule = bnp.Memoized(laps=2)
        return bnp.train(model, data, init=bnp.RandomExamples(2), schedule=schedule, moves=(), client=SerialExecutor())


@pytest.fixture(scope="module")
def posterior():
    return train(counts()).posterior


@pytest.mark.parametrize("word", [-1, N_WORDS, 10**6])
def test_sparse_rows_are_refused_at_open_and_at_training(word):
    told = f"word\\) {word}, but they are 0 to {N_WORDS - 1}"
    for use in (as_source, train):
        with pytest.raises(DataError, match=told):
            use(broken(word))
    with pytest.raises(DataError, match=f"my batch: .*{told}"):  # of a source of the user's own
        bnp.Multinomial().check(Batch(broken(word), None, "my batch"))


@pytest.mark.parametrize("word", [-1, N_WORDS])
@pytest.mark.parametrize("use", [bnp.predict, bnp.score])
def test_sparse_rows_are_refused_at_prediction_and_scoring(posterior, use, word):
    with pytest.raises(DataError, match=f"{word}, but they are 0 to {N_WORDS - 1}"):
        use(posterior, broken(word))


def test_columns_of_another_layout_are_checked_too():
    x = sparse.csc_array(counts())
    indices = x.indices.copy()
    indices[3] = 99
    x.indices = indices
    with pytest.raises(DataError, match="row 99, but they are 0 to"):
        as_source(x)


def test_a_store_whose_words_do_not_fit_is_refused(tmp_path, posterior):
    file = tmp_path / "docword.x.txt"
    x = sparse.coo_array(counts())
    lines = [f"{d + 1} {w + 1} {int(c)}" for d, w, c in zip(*x.coords, x.data, strict=True)]
    file.write_text("\n".join([str(x.shape[0]), str(N_WORDS), str(x.nnz), *lines]) + "\n")
    ingest(file, tmp_path / "x.zarr")
    assert train(tmp_path / "x.zarr").posterior.n_clusters == 2
    group = zarr.open_group(tmp_path / "x.zarr", mode="r+")
    group["word"][4] = N_WORDS
    for use in (train, lambda data: bnp.predict(posterior, data)):
        with pytest.raises(DataError, match=f"word {N_WORDS}"):
            use(tmp_path / "x.zarr")


def test_a_file_whose_words_do_not_fit_is_refused(tmp_path):
    file = tmp_path / "docword.x.txt"
    file.write_text("2\n3\n3\n1 1 2\n1 4 1\n2 2 1\n")
    with pytest.raises(DataError, match="word 4 is outside 1 to 3"):
        ingest(file, tmp_path / "x.zarr")


def test_a_vocabulary_of_another_size_is_refused_at_prediction(posterior):
    x = counts()
    wider = sparse.csr_array(sparse.hstack([x, x[:, :1]], format="csr"))
    with pytest.raises(DataError, match=f"{N_WORDS + 1} columns, but Multinomial was set up for {N_WORDS}"):
        bnp.predict(posterior, wider)
