"""Births that do not pay at the batch that found them are tried on all data, and fail there only."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from bnp_dask.allocation import DPMixture, HDPTopics
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.inference import Memoized
from bnp_dask.model import Model
from bnp_dask.moves import Birth
from bnp_dask.moves.birth import best_basis
from bnp_dask.moves.memory import Basis, close, note
from bnp_dask.moves.policy import SmallRunPolicy
from bnp_dask.observation import DiagGaussian, Gaussian, Multinomial
from bnp_dask.structure.base import Visit
from tests.moves.parts import prepare, start_random

ALONE = "the objective would fall with this batch alone"


def triangle(apart, seed=0, weights=False, n_batches=10, per_batch=200):
    """Three clusters so many deviations apart, in batches that show all of them."""
    rng = np.random.default_rng(seed)
    means = apart * np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
    out = []
    for b in range(n_batches):
        x = means[rng.integers(3, size=per_batch)] + rng.normal(size=(per_batch, 2))
        out.append(Batch(x, rng.uniform(0.3, 2.0, per_batch) if weights else None, f"blob batch {b}"))
    return out


def go(observation, batches, seed=0, laps=50, **settings):
    """A run from one cluster with births at batches alone: the state it ends with, and its rows."""
    work = prepare(Model(DPMixture(1.0), observation), batches, seed, (Birth(where="batch", **settings),))
    state, rows = start_random(work, 1), []
    for step in Memoized(laps).run(work, state):
        rows.append(step.row)
    exact = [row["elbo"] for row in rows if row["exact"]]
    assert (np.diff(exact) >= -1e-8).all()
    return state, rows


def births(rows, accepted=True):
    return [m for row in rows for m in row["moves"] if m["kind"] == "birth" and m["accepted"] == accepted]


APART = [(DiagGaussian(), 11.0), (Gaussian(), 5.0)]
LATER = [pytest.param(*pair, marks=pytest.mark.long) for pair in [(DiagGaussian(), 5.0), (Gaussian(), 11.0)]]


@pytest.mark.first_case
@pytest.mark.parametrize(("observation", "apart"), [*APART, *LATER])
def test_clusters_that_one_batch_cannot_pay_for(observation, apart):
    for seed in range(3):
        state, rows = go(observation, triangle(apart, seed, weights=seed == 2), seed)
        assert state.posterior.n_clusters == 3
        assert state.finished == "converged"
        assert births(rows)[0]["targets"] == [0] and len(births(rows)[0]["others"]) == 3


@pytest.mark.long
@pytest.mark.parametrize("observation", [DiagGaussian(), Gaussian()], ids=["diag", "full"])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("apart", [5.0, 8.0, 11.0, 14.0, 17.0])
def test_three_clusters_in_all_seeds(observation, weights, apart):
    found = [go(observation, triangle(apart, seed, weights), seed)[0].posterior.n_clusters for seed in range(10)]
    assert sum(k == 3 for k in found) >= 9, found


def test_of_weighted_parts_those_that_most_atoms_show_are_chosen():
    """Objectives of parts of documents say nothing of the whole."""
    batch = Batch(sparse.csr_array(np.random.default_rng(0).integers(1, 4, (60, 6)).astype(float)))
    model = Model(HDPTopics(), Multinomial(lam=0.1)).with_prior(survey_batch(batch))

    def basis(rows, share):
        newborn, held = model.empty_summary(np.array([-1, -2])), model.empty_summary(np.array([0]))
        newborn.values["N"][...] = rows * share, rows * (1.0 - share)
        held.values["N"][...] = rows
        return Basis(newborn, held)

    few, most, lopsided = basis(20, 0.5), basis(40, 0.5), basis(60, 0.95)
    assert not model.structure.policy.splits_at_batches
    found = best_basis(model, (few, most, lopsided), 600.0, 5.0, SmallRunPolicy())
    assert found["N"] == pytest.approx([300.0, 300.0])
    assert best_basis(model, (most, few), 600.0, 5.0, SmallRunPolicy())["N"] == pytest.approx(found["N"])
    assert best_basis(model, (lopsided,), 600.0, 5.0, SmallRunPolicy()) is None


def test_the_first_lap_collects_and_the_second_tries_on_all_data():
    batches = triangle(11.0)
    work = prepare(Model(DPMixture(1.0), DiagGaussian()), batches, moves=(Birth(where="batch", share=1.0),))
    state, rows = start_random(work, 1), []
    for step in Memoized(2).run(work, state):
        rows.append(step.row)
        if step.lap_end and state.lap == 1:
            ((target, bases),) = state.pending.items()
            assert target == 0
            # nearly all batches show three clusters, and are matched to each other
            most = max(bases, key=lambda basis: basis.held["N"].sum())
            assert most.newborn["N"] == pytest.approx([most.held["N"].sum() / 3] * 3, rel=0.1)
            assert sum(basis.held["N"].sum() for basis in bases) == pytest.approx(2000.0)
            assert most.held["N"].sum() >= 1400.0
            assert not state.memory.failures
    assert not any(row["moves"] for row in rows if row["lap"] == 1)
    assert [m["targets"] for m in births(rows)] == [[0]]
    assert births(rows)[0]["gain"] > 3000.0
    assert state.posterior.n_clusters == 3


def test_only_trials_on_all_data_fail(monkeypatch):
    work = prepare(Model(DPMixture(1.0), DiagGaussian()), triangle(8.0), moves=(Birth(where="batch", start=1),))
    state, laps = start_random(work, 1), {}
    for step in Memoized(3).run(work, state):
        laps.setdefault(step.row["lap"], []).extend(step.row["moves"])
        if step.lap_end and state.lap == 2:
            assert list(state.pending) == [0]
            assert not state.memory.failures
            monkeypatch.setattr("bnp_dask.moves.birth._value", lambda *args: 0.0)
    assert not laps[1]
    assert [m["why"] for m in laps[2]] == [ALONE] * 2
    assert all(m["gain"] < 0 for m in laps[2])
    # nothing speaks for it any more: only now it is remembered, and splits at batches go on
    (given_up, *_) = [m for m in laps[3] if m["gain"] is None]
    assert "not worth it for all data" in given_up["why"]
    assert state.memory.failures[("birth", (0,))][-1] == 1.0


def test_a_birth_that_pays_at_its_batch_ends_what_others_found_there():
    _, rows = go(DiagGaussian(), triangle(40.0), laps=3, share=1.0, start=1)
    first = [m for row in rows if row["lap"] == 2 for m in row["moves"] if m["kind"] == "birth"]
    assert any(m["accepted"] and m["targets"] == [0] for m in first)
    assert not any(m["accepted"] and m["targets"] == [0] for row in rows if row["lap"] == 3 for m in row["moves"])


def visit_of(model, batch, labels, target=0):
    """A visit in which a batch's atoms, all of one cluster, fell into those of these labels."""
    hard = np.eye(labels.max() + 1)[labels]
    newborn = model.summarize(-1 - np.arange(hard.shape[1]), batch, hard)
    summary = model.summarize(np.array([target]), batch, np.ones((batch.n_atoms, 1)))
    return Visit(summary, {}, split=target, newborn=newborn)


def test_finds_of_three_batches_are_added_cluster_by_cluster_whatever_their_order():
    """The third batch finds the clusters of the first, turned; what the second found stays beside them."""
    rng = np.random.default_rng(0)
    work = prepare(Model(DPMixture(1.0), DiagGaussian()), triangle(8.0))
    model, pending, labels = work.model, {}, np.repeat([0, 1, 2], [10, 20, 30])
    places = 12.0 * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    for turn, away in ((np.array([0, 1, 2]), 0.0), (np.array([0, 1, 2]), 90.0), (np.array([1, 2, 0]), 0.0)):
        x = places[labels] + away + rng.normal(size=(60, 2))
        note(model, pending, visit_of(model, Batch(x), turn[labels]))
    first, second = pending[0]
    assert first.newborn["N"].tolist() == [20.0, 40.0, 60.0] and first.held["N"].tolist() == [120.0]
    assert second.newborn["N"].tolist() == [10.0, 20.0, 30.0] and second.held["N"].tolist() == [60.0]
    assert first.newborn.ids.tolist() == second.newborn.ids.tolist() == [-1, -2, -3]
    close(pending, 0)
    note(model, pending, visit_of(model, Batch(x), labels))
    assert pending == {0: ()}  # of a cluster that was split nothing is kept


def test_what_looks_the_same_is_put_together_and_accidents_are_left_out():
    rng = np.random.default_rng(0)
    work = prepare(Model(DPMixture(1.0), DiagGaussian()), triangle(8.0))
    model, pending = work.model, {}
    for order, lone in (([0, 1], False), ([1, 0], False), ([0, 1], True)):
        labels = np.repeat(order, 50)
        x = 8.0 * np.stack([labels, labels], axis=1) + rng.normal(size=(100, 2))
        labels = np.where(np.arange(100) < 2, 2, labels) if lone else labels
        note(model, pending, visit_of(model, Batch(x), np.argsort(order)[labels] if not lone else labels))
    together, apart = pending[0]
    assert together.held["N"].tolist() == [200.0]
    assert together.newborn["N"].tolist() == [100.0, 100.0]
    assert apart.newborn["N"].tolist() == [48.0, 50.0, 2.0]
    found = best_basis(model, [apart], 1000.0, 20.0, SmallRunPolicy())
    assert found.n_clusters == 2
    assert found["N"].sum() == pytest.approx(1000.0)
    assert best_basis(model, [apart], 1000.0, 48.0, SmallRunPolicy()).n_clusters == 2
    assert best_basis(model, [apart], 1000.0, 49.0, SmallRunPolicy()) is None
    close(pending, 0)
    note(model, pending, visit_of(model, Batch(x), labels))
    assert pending == {0: ()}
