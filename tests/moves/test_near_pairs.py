"""Of many clusters, moves score near pairs only; of few, all pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.initialize.base import hard_resp
from bnp_dask.moves import pairs
from bnp_dask.moves.pairs import all_pairs, data_gains, gains_of_pairs, near_pairs, signatures
from bnp_dask.moves.policy import LAP
from bnp_dask.observation.labelled import Labelled

K = 48


def directions(rng, z):
    x = rng.normal(size=(K // 2, 5))[z // 2] + 0.1 * rng.normal(size=(len(z), 5))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


DATA = {
    "Gaussian": (
        bnp.Gaussian(),
        lambda rng, z: 4.0 * rng.normal(size=(K // 2, 3))[z // 2] + rng.normal(size=(len(z), 3)),
    ),
    "diagonal": (
        bnp.DiagGaussian(),
        lambda rng, z: 4.0 * rng.normal(size=(K // 2, 3))[z // 2] + rng.normal(size=(len(z), 3)),
    ),
    "bits": (bnp.Bernoulli(), lambda rng, z: 1.0 * (rng.random((len(z), 20)) < rng.random((K // 2, 20))[z // 2])),
    "words": (bnp.Multinomial(0.1), lambda rng, z: rng.poisson(9.0 * rng.dirichlet(np.ones(20), K // 2)[z // 2]) + 0.0),
    "directions": (bnp.VonMisesFisher(), directions),
}


def twins(observation, draw):
    """Clusters in twos of the same distribution: 2k and 2k + 1."""
    rng = np.random.default_rng(0)
    z = np.repeat(np.arange(K), 40)
    batch = Batch(np.ascontiguousarray(draw(rng, z)))
    model = bnp.Model(bnp.DPMixture(), observation).with_prior(survey_batch(batch))
    value = model.summarize(np.arange(K), batch, hard_resp(z, K))
    return model, model.global_step(value), value


@pytest.fixture
def few(monkeypatch):
    """As if a few clusters were many."""
    monkeypatch.setattr(pairs, "LAP", replace(LAP, all_pairs=10, alike=4, landmarks=12, near_rows=7))


DEAR = ("words", "directions")
"""Kinds whose kernels take long to compile."""


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.long] if k in DEAR else []) for k in DATA])
def test_near_clusters_are_found_for_every_likelihood(few, kind):
    model, posterior, value = twins(*DATA[kind])
    found = gains_of_pairs(model, posterior, value)
    assert len(found.gains) <= 4 * K < K * (K - 1) / 2
    for k in range(K):
        row = found[k]
        assert np.isfinite(row[k ^ 1]) and np.isneginf(row[k])
        assert (np.isfinite(row).sum() >= 4) and row.argmax() == k ^ 1
    first, second = found.first, found.second
    assert (first < second).all() and (np.diff(first * K + second) > 0).all()
    assert_allclose(found.gains, data_gains(model, value, value.ids[np.stack([first, second], 1)]), rtol=1e-9)


def test_of_few_clusters_all_pairs_are_scored():
    model, posterior, value = twins(*DATA["Gaussian"])
    first, second = near_pairs(model, posterior, value)
    assert_array_equal(np.stack([first, second], axis=1), all_pairs(value.ids))


def test_signatures_are_mean_divergences_from_other_clusters(few):
    """For Gaussians of one known covariance, half the squared distance of the means, up to the width of posteriors."""
    model, posterior, value = twins(bnp.FixedVarianceGaussian(variance=1.0), DATA["Gaussian"][1])
    points = signatures(model, posterior, value)
    assert points.shape == (K, 12)
    means = value["x"] / value["N"][:, None]
    squares = ((means[:, None] - means) ** 2).sum(axis=2) / 2.0
    for column in points.T:
        # the landmark of a column is one of the clusters: its column of distances
        assert np.abs(squares - column[:, None] ** 2).max(axis=0).min() < 0.1 * squares.max()


def test_pairs_do_not_depend_on_how_many_rows_are_held(few, monkeypatch):
    model, posterior, value = twins(*DATA["Gaussian"])
    held = near_pairs(model, posterior, value)
    monkeypatch.setattr(pairs, "LAP", replace(pairs.LAP, near_rows=1000))
    assert_array_equal(held, near_pairs(model, posterior, value))


def test_labels_forbid_unions_and_do_not_move_clusters_apart(few):
    model, _, value = twins(*DATA["Gaussian"])
    labels = np.repeat(np.where(np.arange(K) < K // 2, 0, 1), 40)
    batch = Batch(np.ascontiguousarray(DATA["Gaussian"][1](np.random.default_rng(0), np.repeat(np.arange(K), 40))))
    model = replace(model, observation=Labelled(model.observation, ("a", "b")))
    value = model.summarize(np.arange(K), replace(batch, labels=labels), hard_resp(np.repeat(np.arange(K), 40), K))
    posterior = model.global_step(value)
    found = gains_of_pairs(model, posterior, value)
    assert (found.first // (K // 2) == found.second // (K // 2)).all()
    assert all(np.isfinite(found[k][k ^ 1]) for k in range(K))


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_there_may_be_fewer_clusters_than_neighbours(n):
    first, second = pairs.alike(np.eye(n, 4) + 0.1)
    assert len(first) == n * (n - 1) // 2 == len(second)


# -- by hand -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(8))
def test_the_nearest_are_those_of_a_sorted_list_and_of_equals_the_first(seed, monkeypatch):
    monkeypatch.setattr(pairs, "LAP", replace(LAP, alike=3, near_rows=4))
    near = np.random.default_rng(seed).integers(0, 4, size=(11, 11)).astype(float)  # with many ties
    wanted = set()
    for k, row in enumerate(near):
        others = sorted((j for j in range(11) if j != k), key=lambda j: (-row[j], j))[:3]
        wanted |= {(min(k, j), max(k, j)) for j in others}
    first, second = pairs._nearest_pairs(11, lambda rows: near[rows].copy())
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == sorted(wanted)


def test_near_documents_share_words_by_the_roots_of_their_shares(monkeypatch):
    """The coefficient of Bhattacharyya: by the shares themselves, or by the counts, other pairs are near."""
    monkeypatch.setattr(pairs, "LAP", replace(LAP, alike=1))
    counts = np.array([[4.0, 0.0, 5.0], [0.0, 2.0, 5.0], [6.0, 1.0, 2.0], [0.0, 5.0, 2.0]])

    def near(likeness):
        best = (likeness - 9.0 * likeness.max() * np.eye(4)).argmax(axis=1)
        return {(min(k, j), max(k, j)) for k, j in enumerate(best.tolist())}

    shares = counts / counts.sum(axis=1, keepdims=True)
    wanted = near(np.sqrt(shares[:, None] * shares).sum(axis=2))
    long = shares / np.linalg.norm(shares, axis=1, keepdims=True)
    assert wanted != near(long @ long.T) and wanted != near(counts @ counts.T)
    first, second = pairs.alike(counts)
    assert set(zip(first.tolist(), second.tolist(), strict=True)) == wanted


def test_exactly_as_many_clusters_as_the_limit_are_all_scored(monkeypatch):
    model, posterior, value = twins(*DATA["diagonal"])
    for limit, every in ((K, True), (K - 1, False)):
        monkeypatch.setattr(pairs, "LAP", replace(LAP, all_pairs=limit, alike=2))
        first, _ = near_pairs(model, posterior, value)
        assert (len(first) == K * (K - 1) // 2) == every


def test_landmarks_hold_an_atom_and_are_of_all_sizes(monkeypatch):
    """Of six clusters those of the largest, the middle and the smallest count of one atom at least."""
    monkeypatch.setattr(pairs, "LAP", replace(LAP, landmarks=3))
    rng = np.random.default_rng(0)
    counts = [2, 50, 1, 7, 30, 4]
    z = np.repeat(np.arange(6), counts)
    batch = Batch(3.0 * z[:, None] + rng.normal(size=(len(z), 2)))
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()).with_prior(survey_batch(batch))
    score = model.observation.score
    for light, chosen in ((1.0, [1, 2, 3]), (0.9, [1, 0, 3])):  # the lightest has an atom, or less than one
        resp = np.eye(6)[z] * np.where(z == 2, light, 1.0)[:, None]
        value = model.summarize(np.arange(6), batch, resp)
        posterior = model.global_step(value)
        order = np.argsort(-value["N"], kind="stable")
        held = order[value["N"][order] >= 1.0]
        assert sorted(held[np.linspace(0, len(held) - 1, 3).round().astype(int)].tolist()) == sorted(chosen)
        params = model.observation_step(value.take(np.sort(chosen)))
        loss = np.empty((6, 3))
        for k in range(6):
            for j in range(3):
                one = value.take([k])
                lone = model.observation_step(value.take([int(np.sort(chosen)[j])]))
                loss[k, j] = score(posterior.observation, value)[k] - score(lone, one)[0]
        found = signatures(model, posterior, value)
        assert_allclose(found, np.sqrt(np.maximum(loss, 0.0) / value["N"][:, None]), atol=1e-6)
        assert len(params.m) == 3
