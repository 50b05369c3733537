"""A vocabulary that grows: new words enter a run as if it had known them from its start."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.execute.threads import ThreadExecutor
from bnp_dask.store import RunStore
from tests.growing.parts import begin, bits_of, gap, grow
from tests.growing.test_update import COMMITTED, RECORDED, dying

V = 24
MODELS = {
    "topics": bnp.Model(bnp.HDPTopics(), bnp.Multinomial(0.1)),
    "lda": bnp.Model(bnp.LDA(), bnp.Multinomial(0.1)),
    "mixture": bnp.Model(bnp.DPMixture(2.0), bnp.Multinomial(0.1)),
    "common": bnp.Model(bnp.HDPTopics(), bnp.Multinomial()),
}
MIXTURES = ("mixture",)


def counts(number, width, n=40):
    """Documents of one day over the first ``width`` words."""
    rng = np.random.default_rng(3000 + number)
    topics = np.random.default_rng(5).dirichlet(np.full(V, 0.1), size=3)[:, :width]
    topics /= topics.sum(axis=1, keepdims=True)
    shares = np.eye(3)[rng.integers(3, size=n)]
    return np.array([rng.multinomial(50, share @ topics) for share in shares], np.float64)


def rows(number, width, batch_size=10):
    return bnp.as_source(sparse.csr_array(counts(number, width)), batch_size=batch_size)


WORDS = [f"word{i:02d}" for i in range(V)]


def store(folder, number, words):
    """An ingested store of one day over some words, in that order; its path."""
    place = folder / f"day{number}.zarr"
    index = [WORDS.index(word) for word in words]
    sparse.save_npz(folder / "counts.npz", sparse.csr_matrix(counts(number, max(index) + 1)[:, index]))
    (folder / "words.txt").write_text("\n".join(words))
    bnp.ingest(folder / "counts.npz", place, vocabulary=str(folder / "words.txt"), batch_size=10)
    return place


@pytest.mark.parametrize("kind", ["topics", "lda", "mixture"])
def test_growing_equals_knowing_all_words_from_the_start(tmp_path, kind):
    moves = ()
    for name, width in (("grown", 16), ("final", V)):
        x = counts(0, 16)
        first = bnp.as_source(sparse.csr_array(np.pad(x, ((0, 0), (0, width - 16)))), batch_size=10)
        begin(tmp_path / name, first, model=MODELS[kind], moves=moves, k=3)
        last = grow(tmp_path / name, rows(1, V), new_words="add", laps=0)
    a, b = bnp.load(tmp_path / "grown"), bnp.load(tmp_path / "final")
    print(kind, abs(a.summary["x"] - b.summary["x"]).max(), last.history[-1]["elbo"])
