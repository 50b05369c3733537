"""Bregman k-means++ and k-means on atoms in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError
from bnp_dask.initialize.base import summarize_assigned, take_atoms
from bnp_dask.initialize.kmeans import _attract, hard_kmeans, hard_model, largest_first, plus_plus
from bnp_dask.observation.diag_gaussian import DiagGaussian
from bnp_dask.observation.fixed_variance_gaussian import FixedVarianceGaussian
from tests.initialize.cases import OBSERVATIONS, blobs, context, cut, mixture


def model_of(observation, batch):
    return context(mixture(observation), cut(batch, 1)).model


@pytest.mark.parametrize("name", OBSERVATIONS)
@pytest.mark.parametrize("candidates", [1, None])
def test_seeds_are_distinct_and_labels_are_their_nearest(name, candidates):
    observation, batch = OBSERVATIONS[name]
    model = model_of(observation, batch)
    seeds = plus_plus(model, batch, 12, np.random.default_rng(0), candidates)
    assert len(np.unique(seeds.centres)) == 12
    assert np.array_equal(seeds.labels[seeds.centres], np.arange(12))
    assert (seeds.distance[seeds.centres] == 0).all()
    assert (seeds.distance >= 0).all()


def test_next_seed_is_drawn_in_proportion_to_weighted_divergence():
    x = np.array([[0.0], [1.0], [3.0], [-2.0]])
    weights = np.array([1e9, 2.0, 1.0, 0.5])  # the first seed is atom 0 but for one draw in 1e8
    batch = Batch(x, weights)
    model = model_of(FixedVarianceGaussian(variance=1.0), batch)
    rng = np.random.default_rng(1)
    second = [int(plus_plus(model, batch, 2, rng, candidates=1).centres[1]) for _ in range(1500)]
    share = np.bincount(second, minlength=4) / 1500
    expected = weights[1:] * x[1:, 0] ** 2
    expected /= expected.sum()
    assert share[0] == 0
    np.testing.assert_allclose(share[1:], expected, atol=4 * 0.5 / np.sqrt(1500))


def test_cost_is_that_of_scikit_learn():
    cluster = pytest.importorskip("sklearn.cluster")
    x, _ = blobs(11, 8, 1000, 5, spread=2.0)
    batch = Batch(x)
    model = model_of(FixedVarianceGaussian(variance=1.0, kappa=1e-6), batch)

    def cost(index):
        return ((x[:, None] - x[index][None]) ** 2).sum(axis=2).min(axis=1).sum()

    ours = [cost(plus_plus(model, batch, 20, np.random.default_rng(s)).centres) for s in range(10)]
    theirs = [cost(cluster.kmeans_plusplus(x, 20, random_state=s)[1]) for s in range(10)]
    assert 0.9 < np.mean(ours) / np.mean(theirs) < 1.1


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_log_joint_never_falls_and_no_cluster_dies(name):
    observation, batch = OBSERVATIONS[name]
    batch = replace(batch, weights=np.random.default_rng(1).random(batch.n_atoms) + 0.1)
    model = model_of(observation, batch)
    hard = hard_model(model)
    labels = plus_plus(model, batch, 20, np.random.default_rng(2)).labels
    values = []
    for _ in range(6):
        summary = summarize_assigned(hard, batch, labels, 20)
        assert (summary["N"] > 0).all()
        values.append(sum(hard.elbo(hard.global_step(summary), summary).values()))
        labels = hard_kmeans(model, batch, labels, 20, laps=1)
    assert values[-1] > values[0]
    assert (np.diff(values) >= -1e-9 * np.abs(values[0])).all()


def test_more_clusters_than_structure_keep_an_atom_each():
    x = np.random.default_rng(0).normal(size=(60, 2))
    batch = Batch(x)
    model = model_of(DiagGaussian(), batch)
    labels = hard_kmeans(model, batch, np.arange(60) % 50, 50, laps=20)
    assert (np.bincount(labels, minlength=50) > 0).all()


def test_k_means_matches_scikit_learn_on_separated_blobs():
    cluster = pytest.importorskip("sklearn.cluster")
    x, _ = blobs(5, 6, 600, 3, spread=4.0)
    batch = Batch(x)
    model = model_of(FixedVarianceGaussian(variance=1.0, kappa=1e-6), batch)
    seeds = plus_plus(model, batch, 6, np.random.default_rng(0))
    labels = hard_kmeans(model, batch, seeds.labels, 6, laps=50)
    theirs = cluster.KMeans(6, init=x[seeds.centres], n_init=1).fit(x)
    table = np.zeros((6, 6))
    np.add.at(table, (labels, theirs.labels_), 1)
    assert (np.count_nonzero(table, axis=1) == 1).all()


def test_fewer_distinct_atoms_than_clusters():
    x = np.repeat(np.array([[0.0, 1.0], [5.0, 5.0], [-3.0, 2.0]]), 20, axis=0)
    batch = Batch(x)
    seeds = plus_plus(model_of(DiagGaussian(), batch), batch, 10, np.random.default_rng(0))
    assert len(seeds.centres) == 3
    assert (seeds.distance == 0).all()


def test_largest_cluster_first_by_weight():
    labels = np.array([0, 0, 0, 1, 2, 2])
    assert largest_first(labels, None, 3).tolist() == [0, 0, 0, 2, 1, 1]
    assert largest_first(labels, np.array([1.0, 1, 1, 9, 1, 1]), 3).tolist() == [1, 1, 1, 0, 2, 2]


def test_data_that_changed_since_they_were_surveyed_are_refused_by_every_pass():
    observation, batch = OBSERVATIONS["DiagGaussian"]
    model = model_of(observation, batch)
    pair, surveyed = batch.take(np.arange(2)), batch.n_atoms
    passes = (
        lambda: _attract(lambda: batch, model, surveyed + 1, pair),
        lambda: take_atoms(lambda: batch, model, surveyed - 1, np.arange(2)),
    )
    for one in passes:
        with pytest.raises(DataError, match="when it was surveyed; the data must not change"):
            one()
