"""Streams in which clusters are born, drift, die and return: found at once, and under their old ids."""

from __future__ import annotations

import numpy as np
import pytest

import bnp_dask as bnp
from benchmarks.streaming.drifting import BIRTH, BORN, RETURN, RETURNS, SETTINGS, stream
from tests.growing.parts import begin, gap, grow
from tests.growing.test_new_clusters import FAR


def blend(number, shares):
    """Rows of one day, so many of each true cluster."""
    rng = np.random.default_rng(6000 + number)
    labels = rng.permutation(np.repeat(list(shares), list(shares.values())))
    return FAR[labels] / 10.0 + rng.normal(size=(len(labels), 3))


def counts(posterior):
    return posterior.summary["N"].tolist()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_with_a_half_life_a_stream_is_known_as_by_the_truth(seed):
    fading, forever = (stream(seed, 0.6, SETTINGS[name]) for name in ("half-life of 3 batches", "without"))
    assert 1 <= fading.found_after(BORN, BIRTH) <= 2
    assert 1 <= fading.found_after(RETURNS, RETURN) <= 2
    assert fading.old_id()
    assert fading.gap.max() < 0.02
    assert fading.gap.mean() < 0.25 * forever.gap.mean()


def test_a_batch_with_two_new_clusters_gives_birth_to_both(tmp_path):
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    begin(tmp_path / "run", blend(0, {0: 200, 1: 200}), model=model, batch_size=400, laps=10)
    found = grow(tmp_path / "run", blend(1, {0: 100, 1: 100, 2: 100, 3: 100}), batch_size=400, revisit=0)
    assert counts(found.posterior) == pytest.approx([300, 300, 100, 100], abs=8)
    assert gap(tmp_path / "run") < 1e-12


@pytest.mark.parametrize("revisit", [0, 1])
def test_a_newborn_cluster_has_its_atoms_of_all_older_ones(tmp_path, revisit):
    model = bnp.Model(bnp.DPMixture(), bnp.FixedVarianceGaussian(1.0))
    rng = np.random.default_rng(0)
    between = 0.7 * rng.normal(size=(100, 3))  # half of it is nearer to either of the two
    sides = np.array([[5.0, 0.0, 0.0], [-5.0, 0.0, 0.0]])
    first = np.repeat(sides, 200, axis=0) + rng.normal(size=(400, 3))
    begin(tmp_path / "run", first, model=model, batch_size=400, laps=10)
    found = grow(tmp_path / "run", between, batch_size=100, revisit=revisit)
    assert counts(found.posterior) == pytest.approx([200, 200, 100], abs=8)
    assert found.revisited == 0
    assert gap(tmp_path / "run") < 1e-12


def test_a_newborn_cluster_is_not_laid_away_before_it_has_its_atoms(tmp_path):
    begin(tmp_path / "run", blend(0, {0: 200, 1: 200}), batch_size=400, laps=10)
    facts = {"half_life": "3 batches", "dormant": 40.0, "batch_size": 422, "revisit": 0}
    both = {0: 200, 1: 200}
    kinds, sizes = [], []
    for number in range(1, 9):
        found = grow(tmp_path / "run", blend(number, both | ({2: 22} if number < 5 else {})), **facts)
        kinds.append([change.kind for change in found.changes if change.kind in ("born", "dormant", "returned")])
        sizes.append(min(counts(found.posterior)))
    assert kinds[:6] == [["born"], [], [], [], [], []]
    assert sizes[0] < sizes[1] < 40 < sizes[3]
    assert kinds[6:].count(["dormant"]) == 1


def test_a_newborn_cluster_that_gets_no_atoms_is_laid_away_after_a_half_life(tmp_path):
    begin(tmp_path / "run", blend(0, {0: 200, 1: 200}), batch_size=400, laps=10)
    facts = {"half_life": "3 batches", "dormant": 40.0, "batch_size": 422, "revisit": 0}
    kinds = []
    for number in range(1, 6):
        found = grow(tmp_path / "run", blend(number, {0: 200, 1: 200} | ({2: 22} if number < 2 else {})), **facts)
        kinds.append([change.kind for change in found.changes if change.kind in ("born", "dormant", "returned")])
    assert kinds == [["born"], [], [], ["dormant"], []]
