"""Topics of a corpus that grows: more documents show more of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from tests.growing.parts import begin, gap, grow

WORDS, TOPICS = 120, 24
MODEL = bnp.Model(bnp.HDPTopics(), bnp.Multinomial(lam=0.1))


def texts(folder, number, topics, n=60):
    """Documents of two of some topics each, as a store that can be visited again."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(9000 + number)
    own = np.kron(np.eye(TOPICS), np.full((1, WORDS // TOPICS), TOPICS / WORDS))
    shares = [rng.dirichlet(np.ones(2)) @ own[rng.choice(topics, 2, replace=False)] for _ in range(n)]
    rows = np.array([rng.multinomial(80, share) for share in shares])
    sparse.save_npz(folder / f"{number}.npz", sparse.csr_array(rows))
    bnp.ingest(folder / f"{number}.npz", folder / f"{number}.zarr", batch_size=30)
    return folder / f"{number}.zarr"


@pytest.mark.long
def test_laps_after_an_update_find_topics_that_only_the_whole_corpus_shows(tmp_path):
    begin(tmp_path / "run", texts(tmp_path / "in", 0, range(4)), model=MODEL, laps=8, k=4)
    n_first = bnp.load(tmp_path / "run").n_clusters
    found = grow(tmp_path / "run", texts(tmp_path / "in", 1, range(TOPICS), n=120), laps=4)
    kinds = {move["kind"] for row in found.history for move in row["moves"] if move["accepted"]}
    assert "birth" in kinds and found.posterior.n_clusters >= n_first + 10
    assert gap(tmp_path / "run") < 1e-12
    rows = list(found.history)
    for before, row in zip(rows, rows[1:], strict=False):
        if row["action"] in ("folded", "recomputed", "kept"):
            assert row["elbo"] >= before["elbo"] - 1e-9 * abs(row["elbo"])
