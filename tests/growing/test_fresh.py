"""The score of data before they are folded: of all atoms of small batches, of a sample of large ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.analysis.score import score_samples
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import checksum, survey_batch
from bnp_dask.data import as_source
from bnp_dask.errors import DataError
from bnp_dask.execute.serial import SerialExecutor, ThreadExecutor
from bnp_dask.training.growing import growing_run as looking
from bnp_dask.training.growing.growing_run import ATOMS, GROUPS, Room, look, look_at, scored_part
from bnp_dask.training.growing.update import _fresh_of
from tests.growing.parts import begin, bits_of, counts_of, day, grow


def test_small_batches_are_scored_whole(tmp_path):
    first = begin(tmp_path / "run", day(0)).posterior
    found = grow(tmp_path / "run", day(1))
    assert found.fresh == pytest.approx(bnp.score(first, day(1)), rel=1e-12)


def test_a_sample_of_a_large_batch_is_near_the_score_of_all_of_it(tmp_path):
    rows = day(1, n=20 * ATOMS)
    first = begin(tmp_path / "run", day(0)).posterior
    found = grow(tmp_path / "run", rows, batch_size=10 * ATOMS)
    each = score_samples(first, rows)
    assert found.fresh != pytest.approx(each.mean(), abs=1e-9)
    assert abs(found.fresh - each.mean()) < 4.0 * each.std() / np.sqrt(2 * ATOMS)


def test_samples_are_the_same_for_everyone(tmp_path):
    rows = day(1, n=8 * ATOMS)
    for name in ("serial", "threads"):
        begin(tmp_path / name, day(0))
    one = grow(tmp_path / "serial", rows, batch_size=2 * ATOMS)
    other = grow(tmp_path / "threads", rows, batch_size=2 * ATOMS, client=ThreadExecutor(2))
    assert one.fresh == other.fresh
    assert bits_of(tmp_path / "serial") == bits_of(tmp_path / "threads")


def test_batches_of_different_sizes_count_as_their_atoms(tmp_path):
    rows = np.concatenate([day(1, n=4 * ATOMS, k=1), day(2, n=ATOMS, k=4)])
    first = begin(tmp_path / "run", day(0)).posterior
    found = grow(tmp_path / "run", rows, batch_size=4 * ATOMS)
    assert found.fresh == pytest.approx(bnp.score(first, rows), abs=0.15)


def test_sequences_and_documents_stay_whole():
    groups = np.arange(0, 3 * (GROUPS + 50) + 1, 3)
    batch = Batch(day(0, n=int(groups[-1])), None, "sequences", groups)
    some, times = scored_part(batch, 7)
    assert (some.n_groups, some.n_atoms) == (GROUPS, 3 * GROUPS)
    assert times == pytest.approx((GROUPS + 50) / GROUPS)
    starts = {tuple(row) for row in batch.x[groups[:-1]]}
    assert all(tuple(row) in starts for row in some.x[some.groups[:-1]])
    documents = Batch(sparse.csr_array(sparse.vstack([counts_of(n) for n in range(8)]), dtype=np.float64))
    some, times = scored_part(documents, 7)
    assert some.n_atoms == GROUPS and times == pytest.approx(320 / GROUPS)
    again, _ = scored_part(documents, 7)
    assert (some.x != again.x).nnz == 0


def test_a_share_of_very_large_batches_is_scored(monkeypatch):
    monkeypatch.setattr(looking, "SHARE", 0.5)
    some, times = scored_part(Batch(day(0, n=8 * ATOMS)), 7)
    assert some.n_atoms == 4 * ATOMS and times == 2.0


@pytest.mark.parametrize("weighted", [False, True])
def test_a_look_notes_sizes_as_a_survey_does(tmp_path, weighted):
    first = begin(tmp_path / "run", day(0)).posterior
    x = day(1, n=300)
    batch = Batch(x, np.random.default_rng(0).gamma(2.0, size=300) if weighted else None)
    found, whole = look(first, lambda: batch).survey, survey_batch(batch)
    for name in ("n_atoms", "nbytes", "n_groups", "batch_atoms", "batch_bytes", "checksums", "batch_weights"):
        assert getattr(found, name) == getattr(whole, name), name
    assert found.checksums == (checksum(batch),)
    x[17, 1] = np.nan
    with pytest.raises(DataError, match="row 17"):
        look(first, lambda: replace(batch, x=x))


@pytest.mark.parametrize("n_groups", [0, 1, 2])
def test_a_run_in_groups_takes_groups_and_no_other_run_does(tmp_path, n_groups):
    posterior, x = begin(tmp_path / "run", day(0), laps=1).posterior, day(1, n=60)
    first = survey_batch(Batch(x, groups=np.linspace(0, 60, n_groups + 1).astype(int) if n_groups else None))
    plain, grouped = as_source(x, batch_size=60), as_source(x, batch_size=60, groups=np.array([0, 20, 60]))
    fits, other = (grouped, plain) if n_groups else (plain, grouped)
    found = look_at(posterior, fits, first, SerialExecutor(), Room(0))
    assert (found.rows["atoms"].tolist(), found.rows["groups"].tolist()) == ([60], [2 if n_groups else 0])
    with pytest.raises(DataError, match="in groups, not both"):
        look_at(posterior, other, first, SerialExecutor(), Room(0))


def test_a_row_has_the_score_of_its_own_batches():
    scores = np.array([[-2.0, 1.0], [-6.0, 2.0], [-20.0, 4.0]])
    row = {"action": "new", "batch": 5, "n_batches": 1}
    assert _fresh_of(row, scores, 5) == {"fresh": -2.0}
    assert _fresh_of({**row, "batch": 7, "n_batches": 2}, scores, 5) == {"fresh": -26.0 / 6.0}
    assert _fresh_of({**row, "action": "folded"}, scores, 5) == {}
