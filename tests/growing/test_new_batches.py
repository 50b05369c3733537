"""Births that new batches seek together: none of them shows enough atoms by itself."""

from __future__ import annotations

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.moves.birth import misfits
from tests.growing.parts import begin, bits_of, gap, grow

FEATURES = 8
FAR = np.random.default_rng(6).normal(scale=20.0, size=(4, FEATURES))
MODEL = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())


def write(folder, number, clusters, n):
    """Rows of a day, ``n`` of each of some clusters, in no order; the path."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(8000 + number)
    rows = np.repeat(FAR[clusters], n, axis=0) + rng.normal(size=(n * len(clusters), FEATURES))
    np.save(folder / f"{number}.npy", rng.permutation(rows))
    return folder / f"{number}.npy"


def two_days(folder, store, clusters, n=50, batch_size=10, client=None, **more):
    """A run of one cluster, and the update by a day in batches that have fewer atoms than a birth looks at."""
    begin(store, write(folder, 0, [0], 200), model=MODEL, batch_size=100, laps=5, k=1)
    return grow(store, write(folder, 1, clusters, n), batch_size=batch_size, client=client, **more)


@pytest.mark.first_case
@pytest.mark.parametrize("revisit", [0, 1])
@pytest.mark.parametrize(
    ("clusters", "counts"), [([1], [200, 50]), ([0, 1], [250, 50]), ([1, 2, 3], [200, 50, 50, 50])]
)
def test_clusters_are_born_of_which_no_batch_has_enough_atoms(tmp_path, revisit, clusters, counts):
    found = two_days(tmp_path / "in", tmp_path / "run", clusters, revisit=revisit)
    first = bnp.load(tmp_path / "run@0")
    assert first.n_clusters == 1
    np.testing.assert_allclose(found.posterior.summary["N"], counts, atol=0.5)
    assert found.posterior.ids[0] == first.ids[0]
    assert gap(tmp_path / "run") < 1e-12


def test_new_atoms_that_are_as_the_old_ones_are_visited_once(tmp_path):
    found = two_days(tmp_path / "in", tmp_path / "run", [0], revisit=0)
    assert found.posterior.n_clusters == 1
    assert not [move for row in found.history for move in row["moves"] if move["kind"] == "birth"]


def test_small_batches_are_folded_together_as_far_as_a_small_run_looks(tmp_path):
    found = two_days(tmp_path / "in", tmp_path / "run", [0, 1], n=60, revisit=0)
    assert [row["n_batches"] for row in found.history if row["action"] == "new"] == [12]
    moves = (bnp.Birth(sample=50),)
    begin(tmp_path / "few", tmp_path / "in" / "0.npy", model=MODEL, batch_size=100, laps=5, k=1, moves=moves)
    found = grow(tmp_path / "few", tmp_path / "in" / "1.npy", batch_size=10, revisit=0)
    assert [row["n_batches"] for row in found.history if row["action"] == "new"] == [4, 4, 4]
    assert found.posterior.n_clusters == 2


def test_threads_give_the_same_bits(tmp_path):
    for name, client in (("serial", None), ("threads", ThreadExecutor(2))):
        two_days(tmp_path / "in", tmp_path / name, [0, 1, 2], client=client, half_life="100 batches")
        found = grow(tmp_path / name, write(tmp_path / "in", 2, [0, 3], 50), batch_size=10, client=client)
        assert found.posterior.n_clusters == 4
    assert bits_of(tmp_path / "serial") == bits_of(tmp_path / "threads")


def test_misfits_are_told_by_shares_that_are_unlike_the_rest():
    rng = np.random.default_rng(0)
    parts = [np.repeat(k, 60) for k in range(4)]
    rows = FAR[np.concatenate(parts)] + rng.normal(size=(240, FEATURES))
    model = MODEL.with_prior(bnp.core.survey.survey_batch(Batch(rows)))
    own = model.summarize(np.arange(4), Batch(rows), np.eye(4)[np.concatenate(parts)])
    new = rows[::2] + np.array([0.0, 3.0, 30.0, 30.0])[np.concatenate(parts)[::2], None]
    shares = model.summarize(np.arange(4), Batch(new), np.eye(4)[np.concatenate(parts)[::2]])
    found = misfits(model, own + shares, shares, 20.0)
    assert sorted(found[:2]) == [2, 3] and found[2:] == [1]
    assert misfits(model, own + shares, shares, 31.0) == []
    assert misfits(model, shares, shares, 20.0) == []
